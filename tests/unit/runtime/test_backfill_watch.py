"""What a worker does when a backfill takes partitions and gives them back; the names are the watch's invariants."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import RetriableError
from mm2py.runtime.herder.backfill_watch import BackfillWatch
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import turns

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeBackfills:
    def __init__(self) -> None:
        self.reserved = 0
        self.partitions: set[TopicPartition] = set()
        self.notices: list[tuple[str, int]] = []
        self.failures = 0
        self.changed: Callable[[], None] = lambda: None

    def listen(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def kept_out(self) -> Collection[TopicPartition]:
        return self.partitions

    async def notice(self, worker: str, offset: int) -> None:
        if self.failures:
            self.failures -= 1
            raise RetriableError("not now")
        self.notices.append((worker, offset))

    def reserve(self, offset: int, *partitions: TopicPartition) -> None:
        self.reserved = offset
        self.partitions |= set(partitions)
        self.changed()

    def give_back(self, partition: TopicPartition) -> None:
        self.partitions.discard(partition)
        self.changed()


class Tasks:
    def __init__(self) -> None:
        self.seen: list[frozenset[TopicPartition]] = []
        self.drained = asyncio.Event()
        self.drained.set()

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        await self.drained.wait()
        self.seen.append(partitions)


class Stage:
    """A watch on fakes, which a test opens."""

    def __init__(self) -> None:
        self.backfills, self.tasks, self.clock = FakeBackfills(), Tasks(), FakeClock()
        self.watch = BackfillWatch(self.backfills, self.tasks.keep_out, "w", clock=self.clock)


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    yield stage
    await stage.watch.close()


async def test_a_task_never_copies_what_was_kept_out_when_it_started(stage: Stage) -> None:
    backfills, tasks = stage.backfills, stage.tasks
    backfills.reserve(3, ONE)
    await stage.watch.open()
    assert tasks.seen == [frozenset({ONE})]  # before ``open`` returns
    await until(lambda: backfills.notices == [("w", 3)])


async def test_a_notice_is_written_only_after_no_task_copies_what_was_reserved(
    stage: Stage,
) -> None:
    backfills, tasks = stage.backfills, stage.tasks
    await stage.watch.open()
    tasks.drained.clear()
    backfills.reserve(5, ONE, TWO)
    await turns(20)
    assert backfills.notices == []
    tasks.drained.set()
    await until(lambda: backfills.notices == [("w", 5)])
    assert tasks.seen == [frozenset({ONE, TWO})]


async def test_each_partition_is_given_back_by_itself_and_needs_no_notice(stage: Stage) -> None:
    backfills, tasks = stage.backfills, stage.tasks
    backfills.reserve(5, ONE, TWO)
    await stage.watch.open()
    await until(lambda: len(backfills.notices) == 1)
    backfills.give_back(ONE)
    await until(lambda: tasks.seen[-1] == frozenset({TWO}))
    backfills.give_back(TWO)
    await until(lambda: tasks.seen[-1] == frozenset())
    assert backfills.notices == [("w", 5)]


async def test_a_partition_that_is_reserved_again_is_noticed_again(stage: Stage) -> None:
    backfills, tasks = stage.backfills, stage.tasks
    backfills.reserve(5, ONE)
    await stage.watch.open()
    backfills.reserve(9)
    await until(lambda: backfills.notices[-1:] == [("w", 9)])
    assert tasks.seen == [frozenset({ONE})]


async def test_a_notice_that_cannot_be_written_is_written_later(stage: Stage) -> None:
    backfills, clock = stage.backfills, stage.clock
    await stage.watch.open()
    backfills.failures = 1
    backfills.reserve(2, ONE)
    await until(lambda: not backfills.failures)
    await clock.advance(1.0)
    await until(lambda: backfills.notices == [("w", 2)])
