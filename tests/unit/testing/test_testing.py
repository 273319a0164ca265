"""What users may import: three faces, and the shipped fakes: the contract suite finds tasks that break one rule each; clocks, and conditions that come in time."""

import asyncio
import gc
from collections.abc import Sequence
from types import ModuleType

import pytest

from mm2py import api, mirror_client, testing
from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.clock import SLACK_S, SYSTEM_CLOCK, or_stop, wait_or_stop, with_slack_s
from mm2py.testing import task_contract
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, RecordTaskContract
from mm2py.testing.waiting import eventually, until
from tests.plugins.counting_source import CountingTask
from tests.unit.runtime.runtime_fakes import FakeTask, outgoing

# -- task contract


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


@pytest.mark.parametrize(
    ("kind", "rule", "error"),
    [
        (Forgetful, "a_new_task_continues_behind_the_stored_position", AssertionError),
        (Stubborn, "a_poll_ends_soon_though_there_may_be_nothing", AssertionError),
        (Deep, "every_record_has_a_topic_and_a_position_that_can_be_stored", AssertionError),
        (Fragile, "stop_is_safe_before_start_and_safe_twice", AttributeError),
    ],
)
async def test_a_record_task_that_breaks_a_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: type[CountingTask], rule: str, error: type[Exception]
) -> None:
    if kind is Stubborn:
        monkeypatch.setattr(task_contract, "LONGEST_REAL_S", 0.2)

    class Broken(RecordTaskContract):
        def open_task(self, context: FakeTaskContext) -> SourceTask:
            return kind({"topic": "numbers", "count": "3"}, context)

    with pytest.raises(error):
        await getattr(Broken(), f"test_{rule}")()


class Careless(BatchTaskContract):
    """Of a task that returns its rounds whatever it is asked."""

    def open_task(self, context: FakeTaskContext) -> FakeTask:
        return FakeTask(
            *([outgoing(topic, first)] for first in (0, 5, 10) for topic in ("one", "two"))
        )


async def test_a_batch_task_that_reads_held_partitions_on_is_found() -> None:
    contract = Careless()
    with pytest.raises(AssertionError):
        await contract.test_a_held_partition_rests_until_it_is_released_and_others_do_not()
    with pytest.raises(AssertionError):
        await contract.test_a_partition_that_was_given_up_does_not_come_again()


# -- clock


@pytest.mark.parametrize("seconds", [0.5, 0.51, 0.75, 1.0, 1.1, 30.0])
async def test_long_waits_end_at_whole_multiples_and_never_early(seconds: float) -> None:
    clock = FakeClock()
    await clock.advance(0.123)
    waits_s = with_slack_s(clock, seconds)
    assert -0.01 <= waits_s - seconds <= SLACK_S
    assert round((clock.monotonic() + waits_s) / SLACK_S, 6).is_integer()


def test_short_waits_and_those_until_a_whole_multiple_are_as_asked_for() -> None:
    clock = FakeClock()
    assert with_slack_s(clock, 0.3) == 0.3
    clock.jump(0.2500001)
    assert with_slack_s(clock, 0.75) == pytest.approx(0.75, abs=0.001)


async def test_waiting_for_an_event_ends_with_it_or_with_the_time() -> None:
    event = asyncio.Event()
    assert not await wait_or_stop(SYSTEM_CLOCK, 0.01, event)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_or_stop(SYSTEM_CLOCK, 600, event)
    assert await wait_or_stop(SYSTEM_CLOCK, 600, event)


async def test_work_that_fails_as_it_is_stopped_is_logged_by_no_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the line was cut") from None

    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    await or_stop(work(), stop)
    gc.collect()
    assert not caplog.messages


async def test_sleepers_of_a_fake_clock_wake_in_order_and_see_their_own_time() -> None:
    clock, seen = FakeClock(), list[tuple[str, float]]()
    start = clock.monotonic()

    async def sleeper(name: str, seconds: float) -> None:
        for _ in range(2):
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic() - start))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("b", 3))
        group.create_task(sleeper("a", 1))
        await clock.settle()
        assert clock.sleepers == 2
        await clock.advance(10)
    assert seen == [("a", 1), ("a", 2), ("b", 3), ("b", 6)]


async def test_a_condition_ends_the_wait_and_one_that_never_comes_is_quoted() -> None:
    done, number = asyncio.Event(), 1
    asyncio.get_running_loop().call_soon(done.set)
    await until(done.is_set)
    done.clear()
    asyncio.get_running_loop().call_later(0.002, done.set)
    await eventually(done.is_set)
    with pytest.raises(AssertionError, match=r"not within 3 turns .*lambda: number > 1"):
        await until(lambda: number > 1, turns=3)
    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: number > 2"):
        await eventually(lambda: number > 2, within_s=0)


# ---- what users may import


API = """DATE DECIMAL LEFT_OUT TIME TIMESTAMP BatchSourceTask ConfigError ConfigPropertyFilter Connector ConnectorContext
DefaultReplicationPolicy Delivery FatalError Field GroupFilter IdentityReplicationPolicy MessageHandler MirrorRecord Outgoing OutgoingRecord
PartitionState Predicate RebalanceListener ReplicationPolicy RetriableError Run Schema SchemaType SinkConnector SinkRecord SinkTask
SinkTaskContext SourceGap SourceOffset SourcePartition SourceRecord SourceTask TaskContext TopicFilter TopicPartition Transformation"""
TESTING = (
    "BatchTaskContract FakeClock FakeConnectorContext FakeTaskContext RecordTaskContract eventually"
)
CLIENT = """MirrorClient checkpoint_topics exact_offsets heartbeat_topics remote_topics replication_hops translate_offset translate_offsets
upstream_clusters"""


@pytest.mark.parametrize(("face", "names"), [(api, API), (testing, TESTING)])
def test_a_face_offers_what_is_documented_and_nothing_else(face: ModuleType, names: str) -> None:
    assert sorted(face.__all__) == sorted(names.split())
    assert [name for name in face.__all__ if not hasattr(face, name)] == []


def test_consumers_that_fail_over_find_their_functions() -> None:
    assert [name for name in CLIENT.split() if not hasattr(mirror_client, name)] == []
