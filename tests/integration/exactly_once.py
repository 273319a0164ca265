"""Copies of exactly-once flows: each record of the source once, as a read_committed consumer sees both sides."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.mirror_process import Flow, Mirror, Running, running, until
from tests.integration.traffic import (
    Logs,
    Sent,
    assert_equal,
    copied,
    ends,
    read,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress

ENABLED: Final[Mapping[str, str]] = {
    "{target}.exactly.once.source.support": "enabled",
    "{target}.session.timeout.ms": "4000",
    "{target}.heartbeat.interval.ms": "1000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
"""Properties of a flow with exactly-once support whose dead workers count as dead soon."""


def make_exactly_once(flow: Flow) -> None:
    """Change the file of a flow that is at least once."""
    with flow.file.open("a", encoding="latin-1") as file:
        file.write(f"{flow.target_alias}.exactly.once.source.support = enabled\n")


def committed_copy(flow: Flow, topic: str) -> Logs:
    """Return the copy as a consumer with ``read_committed`` sees it."""
    return read(flow.target, flow.remote(topic), committed=True)


def wait_for_committed(
    mirror: Running, flow: Flow, topic: str, *, dropped: int = 0
) -> tuple[Logs, Logs]:
    """Wait until the last record of every source partition is a committed one on the target; both logs."""
    return wait_for_copy(
        mirror, flow, topic, timeout_s=120, committed=True, once=True, dropped=dropped
    )


def assert_each_once(mirror: Running, flow: Flow, topic: str) -> int:
    """0 lost, 0 doubled, in order; return the number of records."""
    truth, copy = wait_for_committed(mirror, flow, topic)
    assert_equal(truth, copy)
    return sum(len(log.records) for log in truth.values())


def wait_for_more(mirror: Running, flow: Flow, topic: str) -> None:
    """Wait until records are committed on the target that were not there before."""
    before = copied(flow, topic)
    # More than the markers of a transaction that was aborted.
    until(lambda: copied(flow, topic) > before + 100, 90, "the copy to continue", alive=mirror)


SMALL_LIMIT: Final = {"max.message.bytes": "70000"}
"""Configs of a topic that takes less than small batches are joined to."""


def write_small_batches(region: KafkaAddress, topic: str, partitions: int, records: int) -> None:
    """Write a backlog whose batches would be larger joined than apart: 34 records of a few bytes each, spread in time."""
    chance = random.Random(topic)
    began_ms = SYSTEM_CLOCK.now_ms() - 50 * records
    codecs = ("none", "none", "lz4", "none", "zstd", "none")
    for number, codec in enumerate(codecs):

        def some(first: int) -> Iterator[Sent]:
            for n in range(first, first + records // len(codecs)):
                key, value = b"%d" % n, chance.randbytes(chance.randrange(10, 20))
                yield Sent(n % partitions, value, key, timestamp_ms=began_ms + 20 * n)

        records_of = some(number * (records // len(codecs)))
        write(region, topic, records_of, batch_num_messages=34, compression_type=codec)


def assert_no_cause_twice(mirror: Running) -> None:
    """No task was restarted twice for one cause."""
    causes = Counter(line.partition("task failed: ")[2] for line in mirror.lines("task failed: "))
    assert all(times == 1 for times in causes.values()), causes


def first_start(flow: Flow, topic: str, *, name: str, killed: bool = False) -> int:
    """Start a flow for the first time, and again where it is killed amid its first copy; return what arrived, each once."""
    if killed:
        with Mirror(flow.file, name=f"{name}-killed") as mirror:
            copy = flow.remote(topic)
            until(lambda: sum(ends(flow.target, copy).values()) > 0, 90, "a record", alive=mirror)
            mirror.kill()
            assert_no_cause_twice(mirror)
    with running(flow.file, name=name) as mirror:
        records = assert_each_once(mirror, flow, topic)
        assert_no_cause_twice(mirror)
        mirror.check_defects()
    return records
