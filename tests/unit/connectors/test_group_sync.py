"""The writes of groups to the target, apart from the task that chooses them."""

import asyncio

from mm2py.mirror.checkpoints import Checkpoint
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.group_sync import GroupSync
from tests.unit.connectors.group_fakes import FakeGroups


async def test_groups_that_wait_for_a_paused_task_wake_it_once_a_second() -> None:
    context, looks = FakeTaskContext("MirrorCheckpointConnector-0"), 0

    def may_write() -> bool:
        nonlocal looks
        looks += 1
        return False

    tp = TopicPartition("A.t", 0)
    known = {"g": {tp: Checkpoint("g", tp, 5, 5, "")}}
    sync = GroupSync(FakeGroups(), known, context=context, may_write=may_write)
    sync.want(["g"])
    running = asyncio.create_task(sync.run(None))
    for _ in range(200):
        await context.clock.advance(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert looks < 40
