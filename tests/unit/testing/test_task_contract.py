"""The contract suite finds what it is for: tasks that break one rule each."""

import asyncio
from collections.abc import Sequence

import pytest

from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, RecordTaskContract
from tests.plugins.counting_source import CountingTask
from tests.unit.runtime.runtime_fakes import FakeTask, outgoing

COUNTED = {"topic": "numbers", "count": "3"}


class Forgetful(CountingTask):
    """Starts at the beginning."""

    async def start(self) -> None:
        return


class Stubborn(CountingTask):
    """Waits for as long as it takes."""

    async def poll(self) -> Sequence[SourceRecord]:
        await asyncio.Event().wait()
        return ()


class Deep(CountingTask):
    """Has a position that cannot be stored."""

    async def poll(self) -> Sequence[SourceRecord]:
        found = await super().poll()
        for record in found:
            object.__setattr__(record, "source_offset", {"number": {"deep": 1}})
        return found


class Fragile(CountingTask):
    """Cannot be stopped before its start."""

    async def start(self) -> None:
        await super().start()
        self.connection = object()

    async def stop(self) -> None:
        assert self.connection


def contract_of(kind: type[CountingTask]) -> RecordTaskContract:
    class Broken(RecordTaskContract):
        def open_task(self, context: FakeTaskContext) -> SourceTask:
            return kind(COUNTED, context)

    return Broken()


async def test_a_task_that_starts_at_the_beginning_is_found() -> None:
    with pytest.raises(AssertionError):
        await contract_of(Forgetful).test_a_new_task_continues_behind_the_stored_position()


async def test_a_poll_that_does_not_end_is_found() -> None:
    with pytest.raises(AssertionError, match="did not end within"):
        await contract_of(Stubborn).test_a_poll_ends_soon_though_there_may_be_nothing()


async def test_a_position_that_cannot_be_stored_is_found() -> None:
    contract = contract_of(Deep)
    with pytest.raises(AssertionError):
        await contract.test_every_record_has_a_topic_and_a_position_that_can_be_stored()


async def test_a_task_that_cannot_be_stopped_before_its_start_is_found() -> None:
    with pytest.raises(AttributeError):
        await contract_of(Fragile).test_stop_is_safe_before_start_and_safe_twice()


class Careless(BatchTaskContract):
    """Of a task that returns its rounds whatever it is asked."""

    def open_task(self, context: FakeTaskContext) -> FakeTask:
        return FakeTask(
            *([outgoing(topic, first)] for first in (0, 5, 10) for topic in ("one", "two"))
        )


async def test_a_task_that_reads_held_partitions_on_is_found() -> None:
    contract = Careless()
    with pytest.raises(AssertionError):
        await contract.test_a_held_partition_rests_until_it_is_released_and_others_do_not()
    with pytest.raises(AssertionError):
        await contract.test_a_partition_that_was_given_up_does_not_come_again()
