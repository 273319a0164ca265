"""What the runtime expects of every task, as tests: for our connectors and for others'.

Derive a class ``Test...`` from ``RecordTaskContract`` or ``BatchTaskContract`` in a test file and
say how a task is opened; its methods are coroutines with plain asserts, so any runner of coroutine
tests takes them. The fake clock of the context moves while a task waits, so nothing takes real time
but what the task itself waits for.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar, TypeVar

from mm2py.api.records import SourceRecord
from mm2py.api.task import BatchSourceTask, Outgoing, SourceTask
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition

LONGEST_POLL_S = 2.0
"""``poll`` blocks for about a second; more holds up a pause, a stop and a commit."""
LONGEST_REAL_S = 20.0
"""The same by the clock of the machine, which may be busy."""
POLLS = 200
BUDGET_BYTES = 1 << 20

T = TypeVar("T")


async def ended(context: FakeTaskContext, call: Awaitable[T]) -> T:
    """Wait for a call while time passes, by the real and by the fake clock; it has to end soon by
    both."""
    begun = context.clock.monotonic()
    future = asyncio.ensure_future(call)
    loop = asyncio.get_running_loop()
    end = loop.time() + LONGEST_REAL_S
    while (
        not future.done()
        and loop.time() < end
        and context.clock.monotonic() - begun < LONGEST_POLL_S
    ):
        await asyncio.wait([future], timeout=0.001)
        if context.clock.sleepers:
            await context.clock.advance(0.1)
    if not future.done():
        future.cancel()
        raise AssertionError(f"a call did not end within {LONGEST_POLL_S} s")
    return future.result()


def _plain(position: Mapping[str, object]) -> bool:
    """Whether a position can be stored: flat JSON."""
    flat = all(isinstance(value, str | int) for value in position.values())
    return flat and json.loads(json.dumps(dict(position))) == dict(position)


class _TaskContract(ABC):
    @abstractmethod
    def open_task(self, context: FakeTaskContext) -> SourceTask | BatchSourceTask:
        """Return a new task."""

    async def test_stop_is_safe_before_start_and_safe_twice(self) -> None:
        """The runtime stops what it could not start."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await ended(context, task.stop())
        task = self.open_task(context)
        await task.start()
        await ended(context, task.stop())
        await ended(context, task.stop())


class RecordTaskContract(_TaskContract):
    """The contract of a task that returns records. The source has at least ``count`` of them."""

    count: ClassVar[int] = 3
    continues: ClassVar[bool] = True
    """Whether a task continues after the stored position; False where records have no order
    (heartbeats)."""

    @abstractmethod
    def open_task(self, context: FakeTaskContext) -> SourceTask:
        """Return a new task, as the connector's ``open_task`` does."""

    async def records(self, context: FakeTaskContext, count: int) -> list[SourceRecord]:
        """Run a new task until it has returned so many records; acknowledge them and stop it."""
        task = self.open_task(context)
        await task.start()
        found: list[SourceRecord] = []
        try:
            for _ in range(POLLS):
                polled = await ended(context, task.poll())
                for offset, record in enumerate(polled, len(found)):
                    task.delivered(record, offset)
                found += polled
                if len(found) >= count:
                    break
            await task.commit()
        finally:
            await task.stop()
        assert len(found) >= count, f"{len(found)} records in {POLLS} polls"
        return found

    async def test_a_poll_ends_soon_though_there_may_be_nothing(self) -> None:
        """A pause, a stop and a commit wait for it."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        for _ in range(self.count + 3):
            await ended(context, task.poll())
        await task.stop()

    async def test_a_poll_that_waits_ends_when_it_is_cancelled(self) -> None:
        """A task that does not end in time is cut off."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        polling = asyncio.ensure_future(task.poll())
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.wait([polling], timeout=LONGEST_REAL_S)
        assert polling.done()
        await ended(context, task.stop())

    async def test_every_record_has_a_topic_and_a_position_that_can_be_stored(self) -> None:
        """Positions are JSON objects without depth; the partition of a position does not change
        with it."""
        for record in await self.records(FakeTaskContext(), self.count):
            assert record.topic
            assert _plain(record.source_partition)
            assert _plain(record.source_offset)

    async def test_a_new_task_continues_behind_the_stored_position(self) -> None:
        """What was acknowledged is not sent again, and nothing after it is left out."""
        if not self.continues:
            return
        whole = await self.records(FakeTaskContext(), self.count)
        for done in range(1, self.count):
            context = FakeTaskContext()
            for record in whole[:done]:
                context.store(record.source_partition, record.source_offset)
            rest = await self.records(context, self.count - done)
            assert [
                (it.source_partition, it.source_offset) for it in rest[: self.count - done]
            ] == [(it.source_partition, it.source_offset) for it in whole[done : self.count]]


class BatchTaskContract(_TaskContract):
    """The contract of a task that returns whole batches. At least two partitions have two batches
    or more."""

    @abstractmethod
    def open_task(self, context: FakeTaskContext) -> BatchSourceTask:
        """Return a new task on a source that starts at its beginning."""

    async def poll(self, context: FakeTaskContext, task: BatchSourceTask) -> Sequence[Outgoing]:
        """Poll once; batches of one partition are in order."""
        polled = await ended(context, task.poll(BUDGET_BYTES))
        for outgoing in polled:
            for before, after in zip(outgoing.batches, outgoing.batches[1:], strict=False):
                assert before.last_offset < after.base_offset, outgoing.source
        return polled

    async def copied(
        self, context: FakeTaskContext, task: BatchSourceTask, polls: int = 20
    ) -> dict[TopicPartition, list[int]]:
        """Return the first offsets of the batches that some polls return, by source partition."""
        offsets: dict[TopicPartition, list[int]] = {}
        for _ in range(polls):
            for outgoing in await self.poll(context, task):
                firsts = offsets.setdefault(outgoing.source, [])
                firsts += [batch.base_offset for batch in outgoing.batches]
        return offsets

    async def test_batches_of_a_partition_come_in_order_and_once(self) -> None:
        """The sender keeps the order that it is given."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        offsets = await self.copied(context, task)
        await task.stop()
        assert len(offsets) >= 2
        for partition, firsts in offsets.items():
            assert len(firsts) >= 2, partition
            assert firsts == sorted(set(firsts)), partition

    async def test_a_partition_has_one_target_and_one_key_of_its_position(self) -> None:
        """Order is kept per target, positions are found again by their key."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        targets: dict[TopicPartition, TopicPartition] = {}
        for _ in range(20):
            for outgoing in await self.poll(context, task):
                assert targets.setdefault(outgoing.source, outgoing.target) == outgoing.target
                key = task.source_partition(outgoing.source)
                assert _plain(key)
                assert list(key.items()) == list(task.source_partition(outgoing.source).items())
        await task.stop()
        assert len(set(targets.values())) == len(targets)

    async def test_a_held_partition_rests_until_it_is_released_and_others_do_not(self) -> None:
        """A target that cannot take more, and a pause, concern their partitions alone."""
        all_of_it = await self._from_the_beginning(held=())
        held = min(all_of_it)
        others = await self._from_the_beginning(held=(held,))
        assert others == {tp: firsts for tp, firsts in all_of_it.items() if tp != held}

    async def _from_the_beginning(
        self, held: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[int]]:
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        task.hold(held)
        offsets = await self.copied(context, task)
        task.release(held)
        released = await self.copied(context, task)
        await task.stop()
        assert set(released) == set(held), "what was held comes when it is released"
        return offsets

    async def test_a_partition_that_was_given_up_does_not_come_again(self) -> None:
        """Nothing of it can be delivered any more."""
        context = FakeTaskContext()
        task = self.open_task(context)
        await task.start()
        (first, *_) = await self.poll(context, task)
        task.failed(first.source, RuntimeError("the target refuses it"))
        assert first.source not in await self.copied(context, task)
        await task.stop()
