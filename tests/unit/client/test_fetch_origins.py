"""A Fetcher that suppresses loops: what mirrors wrote is dropped, what it cannot judge waits."""

import random
import struct
from collections.abc import Collection, Sequence
from weakref import WeakKeyDictionary

import pytest

from mm2py.client.fetch.fetcher import Fetcher
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import Origins
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.kit.fakes.seal import sealed
from tests.unit.client.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching

MIRRORS = frozenset({900, 901})
SEQUENCES: WeakKeyDictionary[Rig, dict[tuple[TopicPartition, int], int]] = WeakKeyDictionary()


class FakeOrigins:
    """Knows the mirrors from the beginning, or learns of an id when it is asked."""

    def __init__(self) -> None:
        self.passing: set[int] = set()
        self.looping: set[int] = set()
        self.known = Origins(self.passing, self.looping)
        self.asked: list[frozenset[int]] = []
        self.errors: list[Mm2pyError] = []
        self.looped: dict[TopicPartition, int] = {}

    async def find(self, producers: Collection[int]) -> None:
        self.asked.append(frozenset(producers))
        if self.errors:
            raise self.errors.pop()
        self.looping.update(MIRRORS.intersection(producers))
        self.passing.update(frozenset(producers) - MIRRORS)

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        del copied
        if looped:
            self.looped[tp] = self.looped.get(tp, 0) + len(looped)


def suppressing(rig: Rig, origins: FakeOrigins, settings: ConsumerSettings | None = None) -> None:
    """Give the rig a Fetcher with loop suppression."""
    rig.fetcher = Fetcher(
        rig.cluster,
        settings or ConsumerSettings(connection=rig.cluster.settings, fetch_max_wait_ms=50),
        clock=SYSTEM_CLOCK,
        on_gap=lambda gap: rig.gaps.append((gap.partition, gap.first_offset, gap.last_offset, "")),
        on_failed=lambda tp, error: rig.failed.append((tp, error)),
        on_stalled=lambda tp, error: (
            rig.read_again.append(tp) if error is None else rig.stalled.append((tp, error))
        ),
        origins=origins,
    )


def fill(rig: Rig, tp: TopicPartition, numbers: range, producer: int) -> None:
    """Append one batch of a producer."""
    data = encode_batch([NewRecord(None, b"%d" % n, (), 1_000) for n in numbers])
    struct.pack_into(">qh", data, 43, producer, 0)
    sequences = SEQUENCES.setdefault(rig, {})
    struct.pack_into(">i", data, 53, sequences.get((tp, producer), 0))
    sequences[tp, producer] = sequences.get((tp, producer), 0) + len(numbers)
    rig.broker.append(tp, bytes(sealed(data)))


async def test_what_a_mirror_wrote_is_not_returned_and_its_position_moves_on() -> None:
    origins = FakeOrigins()
    async with fetching() as rig:
        suppressing(rig, origins)
        fill(rig, FIRST, range(3), 7)
        fill(rig, FIRST, range(3, 6), 900)
        fill(rig, SECOND, range(2), 901)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(
            lambda: rig.fetcher.position(FIRST) == 6 and rig.fetcher.position(SECOND) == 2
        )
        assert rig.read == {FIRST: [0, 1, 2]}
        assert origins.looped == {FIRST: 1, SECOND: 1}
        assert rig.fetcher.lag(FIRST) == rig.fetcher.lag(SECOND) == 0
        assert origins.asked.count(frozenset({7, 900})) == 1
        fill(rig, FIRST, range(6, 8), 7)
        fill(rig, FIRST, range(8, 9), 900)
        await rig.until(lambda: rig.fetcher.position(FIRST) == 9)
        assert rig.read == {FIRST: [0, 1, 2, 6, 7]}
        assert len(origins.asked) == 2, "known producers are not asked for again"
        assert (rig.gaps, rig.failed, rig.stalled) == ([], [], [])
        await rig.fetcher.close()


async def test_nothing_of_a_partition_is_copied_before_its_producers_are_known() -> None:
    origins = FakeOrigins()
    origins.errors += [RetriableError("the topic is away")] * 3
    async with fetching() as rig:
        suppressing(rig, origins)
        fill(rig, FIRST, range(2), 900)
        fill(rig, FIRST, range(2, 4), 5)
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 4)
        assert rig.read == {FIRST: [2, 3]}
        assert [str(error) for _, error in rig.stalled] == ["the topic is away"] * 3
        assert rig.read_again[-1] == FIRST
        await rig.fetcher.close()


async def test_a_partition_that_was_dropped_meanwhile_is_not_read_again() -> None:
    origins = FakeOrigins()
    origins.errors += [RetriableError("the topic is away")] * 5
    async with fetching() as rig:
        suppressing(rig, origins)
        fill(rig, FIRST, range(2), 5)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: bool(rig.stalled))
        rig.fetcher.drop(FIRST)
        fill(rig, SECOND, range(1), -1)
        await rig.until(lambda: SECOND in rig.read)
        assert FIRST not in rig.read
        await rig.fetcher.close()


async def test_a_range_that_retention_took_before_a_mirrors_batch_is_a_gap() -> None:
    origins = FakeOrigins()
    origins.looping.add(900)
    async with fetching() as rig:
        suppressing(rig, origins)
        fill(rig, FIRST, range(4), 900)
        fill(rig, FIRST, range(4, 8), 900)
        rig.broker.partition(FIRST).delete_before(4)
        await rig.fetcher.assign({FIRST: 1})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        assert rig.gaps == [(FIRST, 1, 3, "")]
        await rig.fetcher.close()


@pytest.mark.parametrize("version", [4, 17])
async def test_faults_neither_lose_nor_double_nor_loop(version: int) -> None:
    chance = random.Random(version)
    origins = FakeOrigins()
    tps = [FIRST, SECOND]
    expected: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}
    written = dict.fromkeys(tps, 0)
    async with fetching(versions={FETCH: (4, version)}) as rig:
        suppressing(rig, origins)
        await rig.fetcher.assign(dict.fromkeys(tps, 0))
        for step in range(120):
            tp = chance.choice(tps)
            numbers = range(written[tp], written[tp] + chance.randrange(1, 4))
            producer = chance.choice([*MIRRORS, -1, 3, 4, 1000 + step])
            fill(rig, tp, numbers, producer)
            written[tp] = numbers.stop
            if producer not in MIRRORS:
                expected[tp] += numbers
            if chance.random() < 0.2:
                rig.broker.fail_next(
                    FETCH, chance.choice([codes.NOT_LEADER_OR_FOLLOWER, "disconnect"])
                )
            if chance.random() < 0.2:
                origins.errors.append(RetriableError("away"))
            if chance.random() < 0.2:
                rig.fetcher.pause([tp])
            if chance.random() < 0.5:
                rig.fetcher.resume(tps)
                await rig.take()
        rig.fetcher.resume(tps)
        await rig.until(lambda: all(rig.fetcher.position(tp) == written[tp] for tp in tps))
        await rig.take()
        assert rig.read == expected
        assert (rig.gaps, rig.failed) == ([], [])
        await rig.fetcher.close()
