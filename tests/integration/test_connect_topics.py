"""Connect's topics on a real broker: what one worker's stores write another knows at once, and a Java worker answers with it."""

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from mm2py.clock import closing
from mm2py.protocol.columns import partition_of
from mm2py.storage.status_records import StoredStatus, TopicUse
from mm2py.types import State, TargetState, TaskId
from tests.integration.connect_stores import PARTITIONS, Stores, eventually, open_stores
from tests.integration.java_connect import JavaConnect
from tests.integration.setups import Setup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUNNING = StoredStatus(state=State.RUNNING, worker_id="w:1", generation=1, version="4.3.1")


async def test_idle_stores_cost_next_to_nothing(setup: Setup) -> None:
    async with open_stores(setup.a.bootstrap_servers, setup.unique("connect")):
        before_s = time.thread_time()  # librdkafka's threads of other tests do not count
        await asyncio.sleep(4)  # this is the time that is measured
        spent_s = time.thread_time() - before_s
        assert spent_s < 0.08


async def test_a_start_without_transactions_waits_for_what_one_with_them_is_committing(
    setup: Setup,
) -> None:
    """A task with exactly-once support was killed while the end of its transaction was on its way."""
    prefix, key = setup.unique("connect"), b'["c",{"partition":0}]'
    async with open_stores(setup.a.bootstrap_servers, prefix) as stores:
        await stores.offsets.set({key: b'{"offset":1}'})
        servers = {"bootstrap.servers": setup.a.bootstrap_servers}
        killed = Producer({**servers, "transactional.id": prefix, "transaction.timeout.ms": 60_000})
        await asyncio.to_thread(killed.init_transactions, 60)
        killed.begin_transaction()
        topic, partitions = f"{prefix}-offsets", PARTITIONS["offsets"]
        killed.produce(topic, b'{"offset":2}', key, partition_of(key, partitions))
        await asyncio.to_thread(killed.flush, 60)
        reading = asyncio.create_task(stores.offsets.get([key]))
        answered, _ = await asyncio.wait({reading}, timeout=1)
        await asyncio.to_thread(killed.commit_transaction, 60)
        assert await reading == [b'{"offset":2}']
        assert not answered


HEARTBEAT = "org.apache.kafka.connect.mirror.MirrorHeartbeat"
PARTITION = {"sourceClusterAlias": "jcA", "targetClusterAlias": "jcB"}
KEY = b'["%s",{"sourceClusterAlias":"jcA","targetClusterAlias":"jcB"}]'
NOWHERE = StoredStatus(state=State.FAILED, trace="boom", worker_id="gone:1", generation=1)


def heartbeat_config(servers: str, name: str) -> dict[str, str]:
    return {
        "name": name,
        "connector.class": f"{HEARTBEAT}Connector",
        "tasks.max": "1",
        "source.cluster.alias": "jcA",
        "target.cluster.alias": "jcB",
        "source.cluster.bootstrap.servers": servers,
        "target.cluster.bootstrap.servers": servers,
        "heartbeats.topic.replication.factor": "1",
    }


async def write_ours(stores: Stores, servers: str) -> None:
    """A paused connector with one task, a stopped one, positions, states and a topic in use."""
    config = heartbeat_config(servers, "beat")
    await stores.config.put_connector("beat", config, TargetState.PAUSED)
    await stores.config.put_tasks("beat", [{**config, "task.class": f"{HEARTBEAT}Task"}])
    await stores.config.put_connector("rest", heartbeat_config(servers, "rest"))
    await stores.config.put_tasks("rest", [])
    await stores.config.put_target("rest", TargetState.STOPPED)
    await stores.offsets.set({KEY % b"beat": b'{"offset":0}', KEY % b"rest": b'{"offset":0}'})
    await stores.offsets.set({KEY % b"rest": None})
    stores.status.put("stray", NOWHERE)
    stores.status.put_topic(TopicUse("used by us", "beat", 0, 1_700_000_000_000))
    assert await stores.status.flush(10)


async def java_answers_ours(java: JavaConnect, servers: str) -> None:
    # The answers of a REST interface have no types.
    info: Any = await java.call("GET", "/connectors/beat")
    assert info["config"] == heartbeat_config(servers, "beat")
    assert info["tasks"] == [{"connector": "beat", "task": 0}]
    tasks: Any = await java.call("GET", "/connectors/beat/tasks")
    assert tasks[0]["config"]["task.class"] == f"{HEARTBEAT}Task"
    status: Any = await java.call("GET", "/connectors/beat/status")
    assert status["connector"]["state"] == "PAUSED"
    assert [task["state"] for task in status["tasks"]] == ["PAUSED"]
    stopped: Any = await java.call("GET", "/connectors/rest/status")
    assert (stopped["connector"]["state"], stopped["tasks"]) == ("STOPPED", [])
    assert await java.call("GET", "/connectors/beat/topics") == {"beat": {"topics": ["used by us"]}}
    assert await java.call("GET", "/connectors/beat/offsets") == {
        "offsets": [{"partition": PARTITION, "offset": {"offset": 0}}]
    }
    assert await java.call("GET", "/connectors/rest/offsets") == {"offsets": []}
    assert "ERROR" not in java.process.log()


async def we_read_what_java_writes(java: JavaConnect, stores: Stores, servers: str) -> None:
    news, config, status = stores.news, stores.config, stores.status
    await eventually(lambda: config.snapshot().session_key, "the session key")
    # The leader removes states of connectors that are not in the config.
    await eventually(lambda: status.get("stray") is None, "no state of an unknown connector")
    await java.call("PUT", "/connectors/beat/resume", expected=202)
    await eventually(lambda: "target beat" in news, "the target state")
    running = TaskId("beat", 0)
    await eventually(
        lambda: (found := status.get(running)) and found.state is State.RUNNING, "a running task"
    )
    found = status.get(running)
    assert found is not None
    assert found.worker_id == java.url.removeprefix("http://")
    await eventually(lambda: "heartbeats" in status.topics("beat"), "the topic in use")
    await java.call("POST", "/connectors/beat/restart?includeTasks=true", expected=202)
    await eventually(lambda: "restart beat False True" in news, "the restart")
    level, logger = {"level": "DEBUG"}, "org.apache.kafka.connect.mirror"
    await java.call("PUT", f"/admin/loggers/{logger}?scope=cluster", level, expected=204)
    await eventually(lambda: f"level {logger} DEBUG" in news, "the level")


async def we_follow_a_connector_of_java(java: JavaConnect, stores: Stores, servers: str) -> None:
    made = heartbeat_config(servers, "made")
    body = {"name": "made", "config": made, "initial_state": "STOPPED"}
    await java.call("POST", "/connectors", body, expected=201)
    await eventually(lambda: "made" in stores.config.snapshot().connectors, "the new connector")
    snapshot = stores.config.snapshot()
    assert snapshot.connectors["made"] == made
    assert snapshot.target("made") is TargetState.STOPPED
    await eventually(
        lambda: (found := stores.status.get("made")) and found.state is State.STOPPED, "its state"
    )
    entries = {"offsets": [{"partition": PARTITION, "offset": {"offset": 0}}]}
    await java.call("PATCH", "/connectors/made/offsets", entries)
    assert await stores.offsets.entries("made") == {KEY % b"made": b'{"offset":0}'}
    await java.call("DELETE", "/connectors/made", expected=204)
    await eventually(lambda: "removed made" in stores.news, "the removal")
    await eventually(lambda: stores.status.get("made") is None, "no state of it")


@pytest.mark.faults
@pytest.mark.java
async def test_a_java_worker_goes_on_with_our_topics_and_we_with_its(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    servers, prefix = setup.a.bootstrap_servers, setup.unique("connect")
    async with open_stores(servers, prefix) as stores:
        await write_ours(stores, servers)
        async with closing(JavaConnect(servers, prefix, setup.folder)) as java:
            await java.ready()
            await java_answers_ours(java, servers)
            await we_read_what_java_writes(java, stores, servers)
            await we_follow_a_connector_of_java(java, stores, servers)
        seen = stores.config.snapshot()
    async with open_stores(servers, prefix) as later:
        assert later.config.snapshot() == seen
    assert "record is ignored" not in caplog.text
