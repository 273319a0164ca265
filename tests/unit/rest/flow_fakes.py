"""Two flows of one worker behind ``/flows``, over fakes."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import httpx
from fastapi import APIRouter
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.clock import Clock
from mm2py.config.connect_definitions import ConfigInfos, ConfigValue
from mm2py.errors import RetriableError
from mm2py.flows.changes import FlowChanges
from mm2py.flows.fleet import Since
from mm2py.flows.graph import CircleGuard, FlowNode
from mm2py.flows.service import FlowService, FlowServiceParts
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowSample, NodeSnapshot, PartitionSnapshot
from mm2py.protocol.records import Record
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.parts import Forwarding, RestParts
from mm2py.rest.routes.flows import router
from mm2py.runtime.errors import ForwardError, HerderError
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey, texts_of
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName, TaskId, TopicPartition
from mm2py_jobs.copy.backfill_jobs import BackfillService
from mm2py_jobs.copy.backfill_routes import backfill_router
from tests.unit.rest.job_fakes import FakeCommands
from tests.unit.rest.rest_fakes import SOURCE, FakeHerder, Reply, ask, flow, parts_of, state

AB, BA = flow("A", "B"), flow("B", "A")
NAME = "MirrorSourceConnector"
CHECKPOINTS = "MirrorCheckpointConnector"
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
LEADER = "http://leader:1/"


def config(topics: str = ".*", **more: str) -> dict[str, str | None]:
    return {"name": NAME, "connector.class": SOURCE, "topics": topics, **more}


def partition(topic: str, number: int, lag: int, **more: Any) -> PartitionSnapshot:
    plain = PartitionSnapshot(
        source=TopicPartition(topic, number),
        target=TopicPartition(f"A.{topic}", number),
        task=f"{NAME}-0",
        state="RUNNING",
        cause="",
        records=10,
        size_bytes=100,
        lag_records=lag,
        lag_ms=lag * 10,
        newest_ms=5,
        records_per_s=2.0,
        bytes_per_s=-1.0,
    )
    return replace(plain, **more)


def snapshot(worker: str, name: FlowName, *partitions: PartitionSnapshot) -> NodeSnapshot:
    return NodeSnapshot(
        worker=worker,
        flow=name,
        at_ms=1,
        state="RUNNING",
        partitions=partitions,
        events={},
        records_lost=3,
    )


class Leader(FakeHerder):
    """Leads, unless ``elsewhere`` names the leader."""

    def __init__(
        self,
        flow: FlowName | None = None,
        *,
        elsewhere: HerderError | None = None,
        store: FlowOverridesStore | None = None,
    ) -> None:
        super().__init__(flow)
        self.urls: tuple[str, ...] = ("http://worker:8083/",)
        self.elsewhere: HerderError | None = elsewhere
        self.store = store
        self.assigned: dict[int, str] = {}
        self.owner: dict[int, ForwardError] = {}

    def member_urls(self) -> tuple[str, ...]:
        if self.elsewhere is not None:
            raise self.elsewhere
        return self.urls

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        found = self.assigned.items()
        return [(TaskId(name, n), {"task.assigned.partitions": text}) for n, text in found]

    def task_config_now(self, task: TaskId) -> dict[str, str | None]:
        return {"task.assigned.partitions": self.assigned.get(task.number, "")}

    async def restart_task(self, task: TaskId) -> None:
        await super().restart_task(task)
        if task.number in self.owner:
            raise self.owner[task.number]

    async def delete(
        self, name: str, *, actor: str, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        await super().delete(name, actor=actor, only_if=only_if)
        if name not in self.configs:
            self.states.pop(name, None)

    def show(self, **changes: Any) -> None:
        """Change what is copied."""
        assert self.snapshot is not None
        self.snapshot = replace(self.snapshot, **changes)

    def derive(self) -> None:
        """Write what follows from file and overrides, as a leader does."""
        assert self.store is not None
        for name, wanted in self.store.effective().items():
            if self.configs.get(name) != wanted:
                self.calls.append(("derived", name))
                self.configs[name] = dict(wanted)
                self.states.setdefault(name, state(name))


class Peers:
    """Answers by URL; an exception is raised."""

    def __init__(self) -> None:
        self.answers: Mapping[str, NodeSnapshot | Exception] = {}

    async def __call__(self, url: str, key: SessionKey) -> NodeSnapshot:
        answer = self.answers[url]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Validator:
    def __init__(self) -> None:
        self.refuses = ""

    async def validate(self, config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        if self.refuses:
            raise HerderError(self.refuses, status=400)
        wrong = [key for key, text in config.items() if text and text.startswith("wrong")]
        values = [
            ConfigValue(name=it, value=None, errors=(f"{it} is {config[it]}",)) for it in wrong
        ]
        found = tuple((None, value) for value in values)
        return ConfigInfos(name="n", error_count=len(found), groups=(), configs=found)


def remote_refusal(name: FlowName | None, connector: str, given: ConnectorConfig) -> str | None:
    del name, connector
    return "source.cluster.* is the file's" if "source.cluster.x" in given else None


def readers(name: str) -> tuple[str, ...]:
    if name in ("topics", "topics.exclude"):
        return (NAME, CHECKPOINTS)
    return ("MirrorHeartbeatConnector",) if name == "emit.heartbeats.interval.seconds" else ()


def property_problem(name: str) -> str:
    return "is not known: did you mean topics?" if name == "topiks" else ""


_ASKED: ContextVar["Behind"] = ContextVar("_ASKED")


class _Asked:
    """Stands for one part of the rig that a request has come to."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> object:
        return getattr(getattr(_ASKED.get(), self._part), name)


@cache
def _routes() -> Sequence[Route]:
    """The routes of all rigs: FastAPI takes a tenth of a second to analyse them."""
    service = cast("FlowService", _Asked("service"))
    changes, forward = cast("FlowChanges", _Asked("changes")), cast("Forwarding", _Asked("forward"))
    backfills = cast("BackfillService", _Asked("backfills"))
    made = router(service, changes, forward), backfill_router(service, backfills)
    return [route for each in made for route in each.routes if isinstance(route, Route)]


@dataclass(frozen=True)
class Behind:
    """What the routes of one rig ask."""

    service: FlowService
    changes: FlowChanges
    forward: Forwarding
    backfills: BackfillService

    def routes(self) -> APIRouter:
        made = APIRouter()
        for route in _routes():
            own = copy(route)
            own.app = self._asked(route.app)
            made.routes.append(own)
        return made

    def _asked(self, app: ASGIApp) -> ASGIApp:
        async def ask_here(scope: Scope, receive: Receive, send: Send) -> None:
            before = _ASKED.set(self)
            try:
                await app(scope, receive, send)
            finally:
                _ASKED.reset(before)

        return ask_here


class Rig:
    """Two flows of one worker, which leads both."""

    def __init__(self) -> None:
        self.herders: dict[FlowName, Leader] = {}
        self.stores: dict[FlowName, FlowOverridesStore] = {}
        self.topics: dict[FlowName, MemoryTopic] = {}
        self.tables: dict[FlowName, MemoryTable] = {}
        self.peers, self.validator, self.commands = Peers(), Validator(), FakeCommands()
        self.client: httpx.AsyncClient | None = None
        self.files: dict[FlowName, Mapping[str, Mapping[str, str]]] = {}
        self.listed: Collection[str] | None = ()
        """Topics of every source; None: it does not answer."""
        self.sampled: dict[FlowName, Sequence[FlowSample]] = {}
        self.beside: Mapping[str, Mapping[str, str]] = {}
        """Other connectors of the files of flows that are added from now on."""
        self.elsewhere: dict[FlowName, Sequence[Mapping[str, str]]] = {}
        self.being_written: dict[FlowName, Sequence[Mapping[str, str]]] = {}
        self.opened: list[FlowName] = []
        self._app: ASGIApp | None = None

    def add(self, name: FlowName, **more: str) -> "Leader":
        texts = texts_of(config(**more))
        herder = self.placed(name, texts, by_file=True, configured=True)
        backfills = herder.backfill_store = BackfillStore(MemoryTable(MemoryTopic("backfill")))

        async def start() -> None:
            await self.stores[name].start()
            await backfills.start()

        asyncio.run(start())
        return herder

    def absent(self, name: FlowName, **more: str) -> None:
        """A pair of the file that nothing runs for."""
        texts = texts_of(config(**more))
        self.files[name] = {NAME: {"enabled": "false", **texts}}

    def placed(
        self, name: FlowName, texts: Mapping[str, str], *, by_file: bool, configured: bool
    ) -> "Leader":
        """Add a flow whose stores are not read yet."""
        topic = self.topics.setdefault(name, MemoryTopic(f"mm2py-flows.{name.source}.internal"))
        self.files[name] = {NAME: texts, **self.beside}
        table = self.tables[name] = MemoryTable(topic)
        store = FlowOverridesStore(table, self.files[name], clock=FakeClock(), by_file=by_file)
        herder = Leader(flow=name)
        if configured:
            whole: dict[str, str | None] = dict(texts)
            herder.configs, herder.states = {NAME: whole}, {NAME: state(NAME)}
        herder.snapshot = snapshot("worker:8083", name, partition("t", 0, 7))
        herder.store = store
        store.listen(herder.derive)
        store.guarded_by(self.guard(name))
        self.herders[name], self.stores[name] = herder, store
        return herder

    # ---- the fleet

    @property
    def nodes(self) -> Mapping[FlowName, FlowNode]:
        return {
            name: FlowNode(herder, self.stores[name], self.peers)
            for name, herder in self.herders.items()
        }

    @property
    def pairs(self) -> Collection[FlowName]:
        return self.files.keys()

    def file(self, name: FlowName) -> Mapping[str, Mapping[str, str]]:
        return self.files[name]

    def resolve(self, config: Mapping[str, str]) -> Mapping[str, str]:
        return FakeHerder().resolved(config)

    def guard(self, name: FlowName) -> CircleGuard:
        return CircleGuard(
            name, lambda: self.nodes, self.elsewhere, FakeHerder().resolved, self.being_written
        )

    def since(self, name: FlowName, state: str) -> Since:
        return Since(state, 5)

    def samples(self, name: FlowName) -> Sequence[FlowSample]:
        return self.sampled.get(name, [])

    async def open(self, name: FlowName) -> FlowNode:
        if name not in self.herders:
            self.opened.append(name)
            self.placed(name, self.files[name][NAME], by_file=False, configured=False)
            await self.stores[name].start()
        return self.nodes[name]

    @property
    def flow_parts(self) -> FlowServiceParts:
        return FlowServiceParts(
            fleet=self,
            validator=self.validator,
            mask=SecretMask(["canary-value"]),
            clock=FakeClock(),
            remote_refusal=remote_refusal,
            property_problem=property_problem,
            readers=readers,
            source_topics=self.source_topics,
            stored_changes=self.stored_changes,
        )

    async def source_topics(
        self, name: FlowName, config: Mapping[str, str], clock: Clock
    ) -> Collection[str]:
        del clock
        if self.listed is None:
            raise RetriableError(f"{name.source} does not answer", remedy=config["topics"])
        return self.listed

    async def stored_changes(
        self, name: FlowName, config: Mapping[str, str], clock: Clock
    ) -> Sequence[Record]:
        del config, clock
        return self.topics[name].records if name in self.topics else ()

    @property
    def parts(self) -> RestParts:
        herders: dict[FlowName | None, Herder] = dict(self.herders.items())
        flow_parts = self.flow_parts
        base = parts_of(herders, dedicated=True, client=self.client, eager=True)
        behind = Behind(
            FlowService(flow_parts),
            FlowChanges(flow_parts),
            base.forward,
            BackfillService(self.commands, masters=(), mask=flow_parts.mask, clock=FakeClock()),
        )
        return replace(base, flows=behind.routes(), changing=flow_parts.changing)

    def ask(self, method: str, target: str, **more: Any) -> Reply:
        if self._app is None:
            self._app = public_app(self.parts)
        return ask(self._app, method, target, **more)


def changes(reply: Reply) -> dict[str, tuple[Any, Any]]:
    """Return what a change did: key -> before and after."""
    assert reply.status < 300, reply.content
    return {it["key"]: (it["before"], it["after"]) for it in reply.json["changes"]}


class Network:
    """One other worker, as an application, and what it was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._inner = httpx.ASGITransport(app)
        self.asked: list[str] = []

    @property
    def client(self) -> httpx.AsyncClient:
        async def handle(request: httpx.Request) -> httpx.Response:
            self.asked.append(f"{request.method} {request.url.raw_path.decode()}")
            return await self._inner.handle_async_request(request)

        return httpx.AsyncClient(transport=httpx.MockTransport(handle))


def follower(leading: Rig, *flows: FlowName, **more: str) -> tuple[Rig, Network]:
    """Return a worker with these flows, which ``leading`` leads, and the way to it."""
    network, asked = Network(internal_app(leading.parts)), Rig()
    for name in flows:
        asked.add(name, **more).elsewhere = ForwardError(LEADER)
    asked.client = network.client
    return asked, network
