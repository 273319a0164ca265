"""Two workers' stores on one real broker: what one writes the other knows at once."""

import asyncio
import resource
import time
from collections.abc import Callable

import pytest

from mm2py.storage.status_records import StoredStatus, TopicUse
from mm2py.types import State, TargetState, TaskId
from tests.integration.connect_stores import eventually, open_stores
from tests.kit.kafka.region import KafkaAddress, Region

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUNNING = StoredStatus(state=State.RUNNING, worker_id="w:1", generation=1, version="4.3.1")


async def test_configs_and_states_reach_the_other_worker_at_once_and_survive(
    region_a: KafkaAddress, unique: Callable[[str], str]
) -> None:
    prefix = unique("connect")
    servers = region_a.bootstrap_servers
    async with open_stores(servers, prefix) as one, open_stores(servers, prefix) as two:
        began = time.monotonic()
        for _ in range(10):
            await one.config.put_connector("c", {"a": "1"})
        assert time.monotonic() - began < 5
        assert one.config.snapshot().offset == 10
        await one.config.put_tasks("c", [{"n": "0"}, {"n": "1"}])
        await two.config.put_target("c", TargetState.PAUSED)
        one.status.put(TaskId("c", 0), RUNNING)
        one.status.put_topic(TopicUse("t", "c", 0, 1))
        assert await one.status.flush(10)
        await eventually(lambda: two.status.get(TaskId("c", 0)) == RUNNING, "the task's state")
        await eventually(lambda: two.status.topics("c"), "the topic in use")
        await one.config.refresh(10)
        assert one.config.snapshot() == two.config.snapshot()
        assert one.news == two.news
    async with open_stores(servers, prefix) as later:
        assert later.news.told == []
        assert later.config.snapshot().tasks("c") == (TaskId("c", 0), TaskId("c", 1))
        assert later.config.snapshot().target("c") is TargetState.PAUSED
        assert later.status.get(TaskId("c", 0)) == RUNNING


async def test_idle_stores_cost_next_to_nothing(
    region_a: KafkaAddress, unique: Callable[[str], str]
) -> None:
    async with open_stores(region_a.bootstrap_servers, unique("connect")):
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(4)  # this is the time that is measured
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert spent_s < 0.08


async def test_followers_come_back_after_the_broker(
    new_region: Callable[[str], Region], unique: Callable[[str], str]
) -> None:
    region = new_region("own")
    prefix = unique("connect")
    async with open_stores(region.bootstrap_servers, prefix) as stores:
        await stores.config.put_connector("c", {"a": "1"})
        await asyncio.to_thread(region.restart)
        await stores.config.put_connector("c", {"a": "2"})
        assert stores.config.snapshot().connectors == {"c": {"a": "2"}}
        assert stores.news.told == ["changed c", "changed c"]
