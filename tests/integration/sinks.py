"""Flows that a consumer group copies: their file, their group as any lag tool sees it, and records of every kind.

Flow: ``a_flow`` -> ``Mirror`` -> ``wait_ready`` -> records -> ``wait_committed``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from tests.integration.cluster_changes import members_of
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import Sent, committed, ends
from tests.kit.kafka.region import KafkaAddress

_OWN: Final = "{source}->{target}."
CALM_SESSIONS: Final = {
    _OWN + "consumer.override.session.timeout.ms": "10000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
SHORT_SESSIONS: Final = {
    _OWN + "consumer.override.session.timeout.ms": "6000",
    _OWN + "consumer.override.heartbeat.interval.ms": "1000",
    **SHORT_SESSION,
}
"""Of a flow whose test waits until a worker or a member counts as dead."""
PARTITIONS: Final = 6
TASKS: Final = 3


def a_flow(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topic: str,
    more: Mapping[str, str] | None = None,
    sessions: Mapping[str, str] = CALM_SESSIONS,
) -> Flow:
    """Write a flow that is copied by a group; a member that is killed has left it after 10 s, with ``SHORT_SESSIONS`` after 6."""
    own = {"copy.connector": "sink", "tasks.max": str(TASKS), **(more or {})}
    properties = {**sessions, **{_OWN + name: text for name, text in own.items()}}
    return write_flow(folder, source, target, topic, properties)


def group_of(flow: Flow) -> str:
    return f"connect-{flow.name}.MirrorSinkConnector"


def wait_ready(mirror: Mirror, members: int = TASKS) -> None:
    """Wait until so many tasks have partitions."""
    until(lambda: len(mirror.lines("partitions assigned")) >= members, 90, "members", alive=mirror)


def wait_assigned(mirror: Mirror, flow: Flow, topic: str, members: int = TASKS) -> None:
    """Wait until the group has so many members, and these have all partitions of a topic."""
    wanted = set(ends(flow.source, topic))

    def is_assigned() -> bool:
        found = members_of(flow.source, group_of(flow))
        assigned = {it.partition for one in found for it in one if it.topic == topic}
        return len(found) == members and assigned == wanted

    until(is_assigned, 120, alive=mirror)


def wait_committed(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Wait until the group has committed the end of each partition that has records."""
    wanted = {p: end for p, end in ends(flow.source, topic).items() if end}
    until(
        lambda: is_committed(flow, topic, wanted),
        120,
        lambda: f"committed {committed(flow.source, group_of(flow), topic)}",
        alive=mirror,
    )


def is_committed(flow: Flow, topic: str, wanted: Mapping[int, int]) -> bool:
    """Whether the group has committed these offsets, or more."""
    now = committed(flow.source, group_of(flow), topic)
    return all(now[partition] >= end for partition, end in wanted.items())


def every_kind(count: int) -> list[Sent]:
    """Keys, null values and empty ones, headers that repeat, old timestamps; all different."""
    found: list[Sent] = []
    for number in range(count):
        key = b"" if number % 10 == 0 else b"key-%d" % number
        value = None if number % 7 == 0 else b"" if number % 7 == 1 else b"value %d" % number
        headers = (("a", b"1"), ("a", None), ("b", b"")) if number % 3 == 0 else ()
        found.append(Sent(number % PARTITIONS, value, key, headers, 1_500_000_000_000 + number))
    return found


def shown(mirror: Mirror, flow: Flow) -> dict[str, object]:
    """Return what ``GET /flows/{flow}`` says."""
    return cast("dict[str, object]", Asked(mirror).done("GET", path_of(flow)))
