"""The host in this process: pause, hold, permit and close."""

import asyncio
from math import inf

from mm2py.errors import RetriableError
from mm2py.testing.waiting import until
from mm2py.types import TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import outgoing
from tests.unit.runtime.task_host_fakes import HostStage, spec_of

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 0)
FIRST = TaskId("Fake", 0)
KEY = b'["Fake",{"cluster":"A","partition":0,"topic":"orders"}]'


async def quiet(stage: HostStage) -> None:
    """Let the loop turn long enough for several polls and commits."""
    before = len(stage.clock.sleeps)
    await until(lambda: len(stage.clock.sleeps) > before + 6)


async def test_a_paused_task_commits_what_it_sent_and_polls_no_more() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0))
    await until(lambda: stage.words() == ["RUNNING"])
    task, sender = stage.tasks[0], stage.senders[0]
    sender.acknowledge = False
    task.rounds.append([outgoing("orders", 0, 3)])
    await until(lambda: bool(sender.waiting))
    await stage.host.pause_task(FIRST, paused=True)
    await until(lambda: stage.words() == ["RUNNING", "PAUSED"])
    sender.acknowledge_all()
    polls = task.polls
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":2}')
    await quiet(stage)
    assert task.polls == polls
    task.rounds.append([outgoing("orders", 3)])
    sender.acknowledge = True
    await stage.host.pause_task(FIRST, paused=False)
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":3}')
    assert stage.words() == ["RUNNING", "PAUSED", "RUNNING"]
    await stage.host.close()


async def test_a_paused_task_holds_its_partitions_and_reads_them_again() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0))
    task = stage.tasks[0]
    task.rounds.append([outgoing("orders", 0, 3)])
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":2}')
    await stage.host.pause_task(FIRST, paused=True)
    held = list(task.held)
    await stage.host.pause_task(FIRST, paused=False)
    assert held == task.released == [ORDERS]
    await stage.host.close()


async def test_a_task_that_starts_paused_opens_nothing_until_it_goes_on() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0, paused=True))
    await until(lambda: stage.words() == ["PAUSED"])
    for _ in range(20):
        await asyncio.sleep(0)
    assert (stage.senders[0].started, stage.tasks[0].started) == (0, 0)
    await stage.host.pause_task(FIRST, paused=False)
    await until(lambda: stage.words() == ["PAUSED", "RUNNING"])
    assert (stage.senders[0].started, stage.tasks[0].started) == (1, 1)
    await stage.host.close()


async def test_a_paused_task_stops_in_order() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0, paused=True))
    await until(lambda: stage.words() == ["PAUSED"])
    await stage.host.stop_task(FIRST, 1.0)
    assert stage.words() == ["PAUSED", "UNASSIGNED"]
    assert (stage.tasks[0].stopped, stage.senders[0].closed) == (1, 1)


async def test_a_task_that_waits_for_room_pauses_too() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0))
    await until(lambda: stage.words() == ["RUNNING"])
    stage.senders[0].acknowledge = False
    stage.tasks[0].rounds.append([outgoing("orders", 0, size=1 << 20)])
    await until(lambda: bool(stage.senders[0].waiting))
    await stage.host.pause_task(FIRST, paused=True)
    await until(lambda: stage.words() == ["RUNNING", "PAUSED"])
    await stage.host.close()


async def test_pauses_of_topics_and_partitions_hold_exactly_these_in_tasks_of_now_and_later() -> (
    None
):
    stage = HostStage()
    await stage.host.start_task(spec_of(0, topics="orders,bills"))
    await until(lambda: stage.words() == ["RUNNING"])
    stage.host.hold(frozenset({TopicPartition("orders", -1), BILLS, TopicPartition("x", 3)}))
    assert set(stage.tasks[0].held) == {ORDERS, BILLS}
    assert stage.meter.node_snapshot("me").partitions[0].state == "PAUSED"
    stage.host.hold(frozenset({BILLS}))
    assert stage.tasks[0].released == [ORDERS]
    await stage.host.start_task(spec_of(1, topics="orders,bills"))
    await until(lambda: stage.words(1) == ["RUNNING"])
    assert stage.tasks[1].held == [BILLS]
    stage.host.hold(frozenset())
    assert stage.tasks[1].released == [BILLS]
    assert {p.state for p in stage.meter.node_snapshot("me").partitions} == {"RUNNING"}
    await stage.host.close()


async def test_a_full_partition_that_is_paused_is_read_again_only_when_neither_holds() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0))
    await until(lambda: stage.words() == ["RUNNING"])
    task, sender = stage.tasks[0], stage.senders[0]
    sender.acknowledge = False
    task.rounds.append([outgoing("orders", 0, size=5 << 20)])
    await until(lambda: task.held == [ORDERS])
    stage.host.hold(frozenset({ORDERS}))
    sender.acknowledge_all()
    assert task.released == []
    stage.host.hold(frozenset())
    assert task.released == [ORDERS]
    await stage.host.close()


async def test_a_task_is_drained_and_started_again_without_what_a_backfill_copies() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0, topics="orders,bills"))
    await stage.host.start_task(spec_of(1, topics="other"))
    await until(lambda: stage.words() == stage.words(1) == ["RUNNING"])
    stage.tasks[0].rounds.append([outgoing("orders", 0, 3)])
    await stage.host.keep_out(frozenset({ORDERS}))
    assert stage.tasks[0].stopped == 1
    assert stage.store.written().get(KEY) == b'{"offset":2}'  # committed before it let go
    assert stage.tasks[1].stopped == 0
    await until(lambda: stage.words() == ["RUNNING", "UNASSIGNED", "RUNNING"])
    again = stage.tasks[2]
    await stage.host.keep_out(frozenset({ORDERS}))  # nothing copies it: nothing happens
    assert again.stopped == 0
    again.take_over_errors.append(RetriableError("not now"))
    await stage.host.keep_out(frozenset())
    await until(lambda: again.taken_over == [ORDERS])
    assert again.stopped == 0
    await stage.host.close()


async def test_a_task_that_starts_later_leaves_out_what_a_backfill_copies() -> None:
    stage = HostStage()
    await stage.host.keep_out(frozenset({ORDERS}))
    await stage.host.start_task(spec_of(0, topics="orders,bills"))
    await until(lambda: stage.words() == ["RUNNING"])
    states = {it.source: it.state for it in stage.meter.node_snapshot("me").partitions}
    assert states[ORDERS] == "HELD"
    await stage.host.keep_out(frozenset())
    await until(lambda: stage.tasks[0].taken_over == [ORDERS])
    assert len(stage.tasks) == 1
    await stage.host.close()


async def test_without_a_permit_tasks_of_now_and_later_copy_nothing_and_continue_with_it() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0))
    await until(lambda: stage.words() == ["RUNNING"])
    stage.permit.revoke()
    await stage.host.start_task(spec_of(1, topics="bills"))
    await until(lambda: stage.words(1) == ["RUNNING"])
    await quiet(stage)
    first, second = stage.tasks
    first.rounds.append([outgoing("orders", 0, 3)])
    second.rounds.append([outgoing("bills", 0, 3)])
    polls = first.polls
    await quiet(stage)
    assert (first.polls, second.polls) == (polls, 0)
    assert stage.store.written() == {}
    stage.permit.grant(inf)
    await until(lambda: len(stage.store.written()) == 2)
    assert stage.store.written()[KEY] == b'{"offset":2}'
    await stage.host.close()


async def test_close_stops_every_task_in_order() -> None:
    stage = HostStage()
    for number in range(3):
        await stage.host.start_task(spec_of(number))
    await until(lambda: all(stage.words(n) == ["RUNNING"] for n in range(3)))
    await stage.host.close()
    assert [task.stopped for task in stage.tasks] == [1, 1, 1]
    assert stage.host.tasks() == ()


async def test_the_first_record_of_each_target_topic_is_told_once() -> None:
    stage = HostStage()
    await stage.host.start_task(spec_of(0, topics="orders,bills"))
    await until(lambda: stage.words() == ["RUNNING"])
    stage.tasks[0].rounds += [
        [outgoing("orders", 0)],
        [outgoing("orders", 1), outgoing("bills", 0)],
    ]
    await until(lambda: not stage.tasks[0].rounds)
    await stage.host.close()
    assert sorted(stage.topics) == [(FIRST, "A.bills"), (FIRST, "A.orders")]
