"""``/flows`` of a running product, asked as its users do.

Flow: ``FlowsFile`` (source aliases on one region, a target on another) -> ``Mirror`` -> ``Asked`` -> status and
decoded body.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import quote, urlencode

from tests.integration.mirror_process import (
    SINGLE_REPLICA,
    Flow,
    Mirror,
    until,
    until_equal,
    write_file,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.traffic import Sent, copied, write
from tests.kit.kafka.region import KafkaAddress

SOURCE: Final = "MirrorSourceConnector"
_NOBODY: Final = "IO Error trying to forward REST request"
_NOT_NOW: Final = ("momentarily", "conflicting operation", "a rebalance is expected")


def flows_file(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topics: Sequence[str],
    *,
    running: int,
    properties: Mapping[str, str] | None = None,
) -> list[Flow]:
    """Write one file with a source alias per topic, all flows to one target; the first ``running`` are enabled.

    ``{target}`` in a property's name stands for the target's alias.
    """
    mark = secrets.token_hex(3)
    aliases, there = [f"s{n}x{mark}" for n in range(len(topics))], f"t{mark}"
    lines = {
        "clusters": ", ".join([*aliases, there]),
        f"{there}.bootstrap.servers": target.bootstrap_servers,
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
        "consumer.poll.timeout.ms": "100",  # a stop waits for the end of a poll
        **{name.format(target=there): text for name, text in (properties or {}).items()},
    }
    for number, (alias, topic) in enumerate(zip(aliases, topics, strict=True)):
        lines[f"{alias}.bootstrap.servers"] = source.bootstrap_servers
        lines[f"{alias}->{there}.topics"] = topic
        if number < running:
            lines[f"{alias}->{there}.enabled"] = "true"
    file = folder / f"flows-{mark}.properties"
    write_file(file, lines)
    return [Flow(source, target, alias, there, file) for alias in aliases]


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """REST of one process."""

    mirror: Mirror

    def __call__(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, Any]:
        """Ask once; return status and decoded body."""
        words = urlencode({key: str(value).lower() for key, value in query.items()})
        return ask(f"{public_url(self.mirror).rstrip('/')}{path}?{words}", method, body)

    def patiently(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, Any]:
        """Ask until the answer is another than "not now"."""

        def answer() -> tuple[int, Any] | None:
            status, found = self(method, path, body, **query)
            # As in Java, while the leader is dead and nobody has noticed yet.
            gone = status == 500 and _NOBODY in found["message"]
            assert status < 500 or status == 503 or gone, f"{method} {path}: {status} {found}"
            busy = status == 409 and any(text in found["message"] for text in _NOT_NOW)
            return None if busy or gone or status == 503 else (status, found)

        return until(answer, 90, f"an answer to {method} {path}", alive=self.mirror)

    def done(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Ask for something that has to work; return the body."""
        status, found = self.patiently(method, path, body, **query)
        assert status in (200, 201), f"{method} {path}: {status} {found}"
        return found

    def wait_there(self, flow: Flow) -> None:
        """Wait until the worker knows a flow."""

        def there() -> bool:
            return self("GET", path_of(flow))[0] == 200

        until(there, 90, f"flow {flow.source_alias} to be there", alive=self.mirror)

    def pause(self, flow: Flow, **only: object) -> None:
        """Pause a flow, a topic or a partition, and wait until no task reads it any more: the answer comes before."""
        self.done("POST", f"{path_of(flow)}/pause", **only)
        until_equal(lambda: self.states(flow, **only), {"PAUSED"}, alive=self.mirror)

    def states(self, flow: Flow, **only: object) -> set[str]:
        """Return the states of the flow's partitions, or of those of a topic."""
        views = self.done("GET", f"{path_of(flow)}/partitions")
        return {it["state"] for it in views if only.items() <= it.items()}

    def paused(self, flow: Flow) -> set[str]:
        """Return paused topics and partitions."""
        return set(self.done("GET", path_of(flow))["paused"])

    def properties(self, flow: Flow) -> dict[str, str]:
        """Return what is in force of the source connector."""
        views = self.done("GET", f"{path_of(flow)}/config")
        (found,) = (view for view in views if view["connector"] == SOURCE)
        return {item["key"]: item["value"] for item in found["properties"]}


def path_of(flow: Flow) -> str:
    """Return where ``/flows`` has a flow."""
    return "/flows/" + quote(flow.name, safe="")


def push(flow: Flow, topic: str, count: int = 20) -> int:
    """Write records to a source topic of one partition; return how many there are now."""
    mark = secrets.token_hex(4)
    write(flow.source, topic, [Sent(0, f"{mark}-{n}".encode()) for n in range(count)])
    return count


def wait_for_records(
    mirror: Mirror, flow: Flow, topic: str, count: int, timeout_s: float = 90
) -> None:
    """Wait until so many records are in the copy."""
    until(
        lambda: copied(flow, topic) >= count,
        timeout_s,
        lambda: f"{count} records of {flow.remote(topic)}, there are {copied(flow, topic)}",
        alive=mirror,
    )
