"""REST on real herders that share a group in memory: what one node is asked, the right one does."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import ASGIApp

from mm2py.rest.app import internal_app, public_app
from mm2py.rest.forwarding import http_client
from mm2py.rest.peer_client import HttpPeerClient
from mm2py.testing.waiting import until
from tests.unit.rest.rest_fakes import parts_of
from tests.unit.runtime.herder_fakes import CONFIG, FLOW, Cluster, Node

PAIR = f"/{FLOW.source}/{FLOW.target}"


class Workers(httpx.AsyncBaseTransport):
    """Nodes by host name, their internal listeners reached in memory."""

    def __init__(self, cluster: Cluster, *names: str) -> None:
        self.cluster = cluster
        self.internal: dict[str, ASGIApp] = {}
        self.public: dict[str, ASGIApp] = {}
        self.hops: list[str] = []
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        node = self.cluster.node(name)
        parts = parts_of(
            {FLOW: node.herder}, dedicated=True, client=http_client(transport=self), eager=True
        )
        self.internal[name], self.public[name] = internal_app(parts), public_app(parts)
        node.start()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.hops.append(f"{request.method} {request.url.host}")
        transport = httpx.ASGITransport(self.internal[request.url.host])
        return await transport.handle_async_request(request)

    async def ask(self, name: str, method: str, target: str, body: object = None) -> httpx.Response:
        transport = httpx.ASGITransport(self.public[name])
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{name}") as client:
            return await client.request(method, PAIR + target, json=body)

    @property
    def leader(self) -> Node:
        return next(node for node in self.cluster.nodes.values() if node.membership.is_leader)

    @property
    def follower(self) -> Node:
        return next(node for node in self.cluster.nodes.values() if not node.membership.is_leader)


@asynccontextmanager
async def running_workers(*, sessioned: bool = True) -> AsyncGenerator[Workers]:
    cluster = Cluster()
    cluster.group.signed = sessioned
    workers = Workers(cluster, "n1", "n2")
    nodes = workers.cluster.nodes.values()
    await until(lambda: all(node.membership.generation > 0 for node in nodes))
    await until(lambda: len(workers.leader.membership.member_urls()) == 2)
    await until(lambda: all(node.herder.session_key() is not None for node in nodes))
    yield workers
    for node in nodes:
        await node.stop()


async def eventually(said: Callable[[], Awaitable[Any]], wanted: object) -> None:
    for _ in range(200):
        if await said() == wanted:
            return
        await asyncio.sleep(0)
    assert await said() == wanted


async def test_a_connector_is_created_watched_paused_stopped_and_deleted_through_a_follower() -> (
    None
):
    async with running_workers() as workers:
        name = workers.follower.name

        async def states() -> list[str]:
            said = (await workers.ask(name, "GET", "/connectors/c/status")).json()
            tasks = [task["state"] for task in said.get("tasks", [])]
            return [said.get("connector", {}).get("state"), *tasks]

        body = {"name": "c", "config": CONFIG | {"tasks.max": 2}}
        created = await workers.ask(name, "POST", "/connectors", body)
        assert created.status_code == 201
        assert created.headers["location"] == f"http://{name}{PAIR}/connectors/c"
        assert f"POST {workers.leader.name}" in workers.hops
        await eventually(states, ["RUNNING", "RUNNING", "RUNNING"])
        config = (await workers.ask(name, "GET", "/connectors/c/config")).json()
        assert config == CONFIG | {"tasks.max": "2", "name": "c"}
        assert (await workers.ask(name, "PUT", "/connectors/c/pause")).status_code == 202
        await eventually(states, ["PAUSED", "PAUSED", "PAUSED"])
        again = await workers.ask(name, "POST", "/connectors", body)
        assert (again.status_code, again.json()["message"]) == (409, "Connector c already exists")
        assert (await workers.ask(name, "PUT", "/connectors/c/stop")).status_code == 204
        await eventually(states, ["STOPPED"])
        assert (await workers.ask(name, "DELETE", "/connectors/c")).status_code == 204
        await eventually(states, [None])
        gone = await workers.ask(name, "GET", "/connectors/c")
        assert (gone.status_code, gone.json()["message"]) == (404, "Connector c not found")


async def test_a_task_is_restarted_on_the_node_that_owns_it_whichever_was_asked() -> None:
    async with running_workers() as workers:
        await workers.ask("n1", "POST", "/connectors", {"name": "c", "config": CONFIG})
        await until(lambda: len(workers.cluster.running()) == 2)
        owners = workers.cluster.running()
        for name in workers.cluster.nodes:
            for number in (0, 1):
                owner = workers.cluster.nodes[owners[f"c-{number}"]]
                before = len(owner.host.events)
                reply = await workers.ask(name, "POST", f"/connectors/c/tasks/{number}/restart")
                assert reply.status_code == 204, reply.text
                done = [" ".join(event.split()[:2]) for event in owner.host.events[before:]]
                assert done == [f"stop c-{number}", f"start c-{number}"]
        unknown = await workers.ask("n2", "POST", "/connectors/c/tasks/7/restart")
        assert (unknown.status_code, unknown.json()["message"]) == (404, "Unknown task: c-7")


async def test_a_worker_tells_another_one_what_it_copies() -> None:
    async with running_workers() as workers:
        await workers.ask("n1", "POST", "/connectors", {"name": "c", "config": CONFIG})
        await until(lambda: len(workers.cluster.running()) == 2)
        key = workers.follower.herder.session_key()
        assert key is not None
        async with http_client(transport=workers) as client:
            peers = HttpPeerClient(client, FLOW, clock=workers.cluster.clock)
            url = f"http://{workers.leader.name}/"
            snapshot = await peers.node_snapshot(url, key)
        assert snapshot.worker == workers.leader.herder.worker_id


async def test_workers_of_an_older_protocol_sign_and_forward_as_well() -> None:
    async with running_workers(sessioned=False) as workers:
        body = {"name": "c", "config": CONFIG}
        created = await workers.ask(workers.follower.name, "POST", "/connectors", body)
        assert created.status_code == 201
        await until(lambda: len(workers.cluster.running()) == 2)
