"""Which writes of two regions are in conflict: by hand, and against a model of both logs."""

import random
import struct

import pytest

from mm2py.protocol.record_batch import HEADER_BYTES, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors import conflicts
from mm2py_connectors.conflicts import KEPT_S, ConflictWatch

T = TopicPartition("compacted", 0)
OTHER = TopicPartition("plain", 0)


class Log:
    """Batches of one partition as they are classified."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.watch = ConflictWatch({"compacted"}, self.clock)
        self.end = 0

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def local(self, *keys: bytes | None, codec: Codec = Codec.NONE) -> RecordBatch:
        """A batch that was written here."""
        first, self.end = self.end, self.end + len(keys)
        data = encode_batch([NewRecord(key, b"v", timestamp=self.now_ms()) for key in keys], codec)
        return RecordBatch(
            data, first, self.end - 1, len(keys), 0, 0, codec, ((first, len(keys)),), None
        )

    def mirrored(self, *records: tuple[bytes | None, int]) -> memoryview:
        """A batch that the other region wrote at these times."""
        data = encode_batch([NewRecord(key, b"w", timestamp=stamp) for key, stamp in records])
        struct.pack_into(">q", data, 0, self.end)
        self.end += len(records)
        return memoryview(data)


async def test_a_write_over_there_before_ours_arrived_is_a_conflict() -> None:
    log = Log()
    assert log.watch.classified(T, [log.local(b"a", b"b", b"c")], []) == 0
    before = log.now_ms()
    await log.clock.advance(1)
    log.watch.delivered(T, 1)  # a and b
    after = log.now_ms() + 200
    assert log.watch.classified(T, [], [log.mirrored((b"a", before))]) == 1
    assert log.watch.classified(T, [], [log.mirrored((b"b", after))]) == 0, "it saw ours"
    assert log.watch.classified(T, [], [log.mirrored((b"c", after))]) == 1, "not arrived yet"
    assert log.watch.classified(T, [], [log.mirrored((b"d", 0), (None, 0))]) == 0


def test_a_conflict_is_counted_once_and_other_topics_not_at_all() -> None:
    log = Log()
    log.watch.classified(T, [log.local(b"a", codec=Codec.LZ4)], [])
    assert log.watch.classified(T, [], [log.mirrored((b"a", 0), (b"a", 1))]) == 1
    assert log.watch.classified(OTHER, [log.local(b"a")], [log.mirrored((b"a", 0))]) == 0


async def test_keys_are_forgotten_when_they_arrived_long_ago_and_not_before() -> None:
    log = Log()
    log.watch.classified(T, [log.local(b"a", b"b")], [])
    await log.clock.advance(2 * KEPT_S)
    log.watch.delivered(T, 0)
    assert log.watch.classified(T, [log.local(b"c")], [log.mirrored((b"b", 0))]) == 1
    assert log.watch.classified(T, [], [log.mirrored((b"a", 0))]) == 0


async def test_memory_and_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "MOST_KEYS", 10)
    monkeypatch.setattr(conflicts, "MOST_RECORDS_PER_S", 40)
    log = Log()
    log.watch.classified(T, [log.local(*(b"%d" % n for n in range(30)))], [])
    assert log.watch.classified(T, [], [log.mirrored((b"0", 0), (b"29", 0))]) == 1
    assert log.watch.classified(T, [], [log.mirrored(*((b"28", 0),) * 20)]) == 0, "enough"
    await log.clock.advance(1)
    assert log.watch.classified(T, [], [log.mirrored((b"28", 0))]) == 1


def test_offsets_of_another_incarnation_are_not_compared() -> None:
    log = Log()
    log.watch.classified(T, [log.local(b"a")], [])
    log.watch.restarted(T)
    assert log.watch.classified(T, [], [log.mirrored((b"a", 0))]) == 0


def test_damaged_records_are_no_conflict_and_no_error() -> None:
    log = Log()
    batch = log.local(b"a")
    batch.data[HEADER_BYTES] = 0xFF
    assert log.watch.classified(T, [batch], [log.mirrored((b"a", 0))]) == 0


def orders_of_keys(log: list[tuple[bytes, str]]) -> dict[bytes, list[str]]:
    return {key: [mark for found, mark in log if found == key] for key, _ in log}


@pytest.mark.parametrize("course", range(20))
async def test_two_logs_differ_in_the_order_of_a_key_exactly_where_a_conflict_is_counted(  # noqa: C901 - a branch per event
    course: int,
) -> None:
    """Two regions that copy to each other with a random delay; clocks agree and tick 200 ms a step."""
    chance = random.Random(course)
    log = Log()
    logs: tuple[list[tuple[bytes, str]], list[tuple[bytes, str]]] = ([], [])
    there: list[tuple[bytes, int, str]] = []  # written there, on the way to us
    ours: list[tuple[bytes, int, str]] = []  # written here, on the way there
    counted = 0

    def arrive() -> None:
        key, offset, mark = ours.pop(0)
        logs[1].append((key, mark))
        log.watch.delivered(T, offset)

    def come() -> int:
        key, stamp, mark = there.pop(0)
        logs[0].append((key, mark))
        return log.watch.classified(T, [], [log.mirrored((key, stamp))])

    for step in range(60):
        await log.clock.advance(0.2)
        event = chance.choice(["here", "there", "arrive", "come"])
        if event == "here":
            key = b"%d" % step
            logs[0].append((key, "one"))
            batch = log.local(key)
            ours.append((key, batch.base_offset, "one"))
            counted += log.watch.classified(T, [batch], [])
        elif event == "there":
            key = b"%d" % chance.randrange(60)
            if (key, "two") not in logs[1]:
                logs[1].append((key, "two"))
                there.append((key, log.now_ms(), "two"))
        elif event == "arrive" and ours:
            arrive()
        elif event == "come" and there:
            counted += come()
    while ours:
        await log.clock.advance(0.2)
        arrive()
    while there:
        counted += come()
    orders = [orders_of_keys(side) for side in logs]
    assert counted == sum(orders[0][key] != orders[1][key] for key in orders[0])
