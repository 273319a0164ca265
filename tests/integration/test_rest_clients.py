"""A REST client that we did not write, over real HTTP, against a herder in memory."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from kafka_connect import KafkaConnect

from mm2py.rest.app import public_app
from mm2py.rest.listening import Listener
from mm2py.rest.server import RestServer
from mm2py.testing.waiting import until
from tests.unit.rest.rest_fakes import parts_of
from tests.unit.runtime.herder_fakes import CONFIG, FLOW, Cluster, Node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

T = TypeVar("T")


async def said(call: Callable[[], T]) -> T:
    """Ask in a thread; again where a rebalance is under way, as clients of Connect have to."""
    for _ in range(100):
        try:
            return await asyncio.to_thread(call)
        except OSError as error:  # requests' HTTPError
            if not str(error).startswith(("409", "500")):
                raise
    return await asyncio.to_thread(call)


async def session(client: KafkaConnect, name: str, node: Node) -> None:
    """Everything the client can ask; the path goes as it encodes it."""
    assert (await said(client.get_cluster_info))["version"] == "4.3.1"
    assert [p["type"] for p in await said(client.list_connector_plugins)] == ["source"]
    config = CONFIG | {"tasks.max": "2"}
    made = await said(lambda: client.create_connector({"name": name, "config": config}))
    assert (made["name"], made["type"]) == (name, "source")
    await until(lambda: node.state(name) == "RUNNING" and len(node.host.running) == 2)
    assert await said(lambda: client.list_connectors(state="RUNNING")) == [name]
    expanded = await said(lambda: client.list_connectors(expand="status", state="RUNNING"))
    assert list(expanded) == [name]
    assert (await said(lambda: client.get_connector_config(name)))["name"] == name
    updated = await said(lambda: client.update_connector(name, config | {"tasks.max": 3}))
    assert updated["config"] == config | {"tasks.max": "3", "name": name}
    await until(lambda: node.state(name) == "RUNNING" and len(node.host.running) == 2)
    assert len(await said(lambda: client.list_connector_tasks(name))) == 2
    task = await said(lambda: client.get_connector_task_status(name, 0))
    assert task["state"] == "RUNNING"
    await said(lambda: client.restart_connector_task(name, 0))
    await said(lambda: client.restart_connector(name))
    restarted = await said(lambda: client.restart_connector(name, include_tasks=True))
    assert restarted is not None
    assert restarted["name"] == name
    await until(lambda: node.state(name) == "RUNNING")
    await said(lambda: client.pause_connector(name))
    await until(lambda: node.state(name) == "PAUSED")
    await said(lambda: client.resume_connector(name))
    await until(lambda: node.state(name) == "RUNNING")
    assert await said(lambda: client.list_connector_topics(name)) == {name: {"topics": []}}
    await said(lambda: client.reset_connector_topics(name))
    checked = await said(lambda: client.validate_connector_config("MirrorSource", {"name": name}))
    assert checked["error_count"] == 1
    await said(lambda: client.stop_connector(name))
    await until(lambda: node.state(name) == "STOPPED")
    await said(lambda: client.delete_connector(name))
    assert await said(client.list_connectors) == []


@pytest.mark.parametrize("name", ["mirror", "A->B mirror"])
async def test_kafka_connect_py_drives_a_connector_through_its_life(name: str) -> None:
    node = Cluster().node("n1")
    app = public_app(parts_of({FLOW: node.herder}, dedicated=True, eager=True))
    server = RestServer([Listener("127.0.0.1", 0)], app)
    (url,) = await server.start()
    node.start()
    await until(lambda: node.herder.session_key() is not None)
    await session(KafkaConnect(f"{url}{FLOW.source}/{FLOW.target}"), name, node)
    await node.stop()
    await server.stop(5)
