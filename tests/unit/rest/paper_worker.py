"""A worker that is real but for its clusters: herder, validator, stores, ``/flows`` and the public application.

Flow: ``PaperWorker`` starts a herder on topics in memory -> ``send`` puts one request to the application.
Connectors run on paper; their options are checked by the model of MirrorSourceConnector.
"""

import asyncio
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Final, Self, TypeVar, final

import httpx

from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR
from mm2py.config.definitions import ConfigModel
from mm2py.config.override_policy import override_policy
from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.flows.changes import FlowChanges
from mm2py.flows.fleet import Since
from mm2py.flows.graph import CircleGuard, FlowNode, Sources
from mm2py.flows.service import FlowService, FlowServiceParts
from mm2py.observability.metrics import FlowSample, NodeSnapshot
from mm2py.rest.app import public_app
from mm2py.rest.forwarding import Forwarder, http_client
from mm2py.rest.parts import RestParts
from mm2py.rest.routes.flows import router
from mm2py.runtime.errors import RebalanceExpectedError
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.offset_editing import OffsetEditor
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey, texts_of
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.waiting import until
from mm2py.types import FlowName
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_jobs.copy.backfill_jobs import BackfillService
from mm2py_jobs.copy.backfill_routes import backfill_router
from mm2py_jobs.failover.routes import FailoverService, failover_router
from tests.kit.fakes.stores import MemoryOffsetBackingStore
from tests.unit.rest.job_fakes import FakeCommands, FakeFailovers
from tests.unit.runtime.herder_fakes import FLOW, Cluster, TestConnector
from tests.unit.runtime.runtime_fakes import EagerClock, FakeLoggers

NAME: Final = "MirrorSourceConnector"
REQUEST_S: Final = 90.0
CALM_TURNS: Final = 5_000
CONFIG: Final[Mapping[str, str]] = {
    "name": NAME,
    "connector.class": MIRROR_SOURCE_CONNECTOR,
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
    "tasks.max": "2",
}
T = TypeVar("T")


class PaperMirror(TestConnector):
    """Stands for MirrorSourceConnector: its name and options, and tasks on paper."""

    __test__ = False
    java_class = MIRROR_SOURCE_CONNECTOR
    plugin_version: ClassVar[str] = "4.3.1"
    config_model: ClassVar[type[ConfigModel]] = MirrorSourceConnector.config_model

    @staticmethod
    def check_offsets(config: Mapping[str, str], entries: Any) -> bool:
        """As the connector it stands for."""
        return MirrorSourceConnector.check_offsets(config, entries)


@dataclass(frozen=True)
class _Itself:
    """The only member of the group, asked as if it were another."""

    herder: Herder

    async def __call__(self, url: str, key: SessionKey) -> NodeSnapshot:
        return self.herder.node_snapshot()


class _Turns(EagerClock):
    """A clock whose sleeps let the herder do what it has to do."""

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for _ in range(50):
            await asyncio.sleep(0)


@dataclass(frozen=True)
class _Fleet:
    """The one flow of the file, which can be deleted and added."""

    node: FlowNode
    elsewhere: Sources

    @property
    def nodes(self) -> Mapping[FlowName, FlowNode]:
        return {FLOW: self.node}

    @property
    def pairs(self) -> Collection[FlowName]:
        return (FLOW,)

    def file(self, flow: FlowName) -> Mapping[str, Mapping[str, str]]:
        return {NAME: CONFIG}

    def since(self, flow: FlowName, state: str) -> Since:
        return Since(state, 5)

    def samples(self, flow: FlowName) -> Sequence[FlowSample]:
        return ()

    def resolve(self, config: Mapping[str, str]) -> Mapping[str, str]:
        return config

    def guard(self, flow: FlowName) -> CircleGuard:
        return CircleGuard(flow, lambda: self.nodes, self.elsewhere)

    async def open(self, flow: FlowName) -> FlowNode:
        return self.node


@final
class PaperWorker:
    """One worker of the dedicated mode, or an ordinary one; a context manager."""

    def __init__(self, *, dedicated: bool, elsewhere: Sources | None = None) -> None:
        self.dedicated = dedicated
        self._runner = asyncio.Runner()
        cluster = Cluster()
        node = cluster.node("n1")
        plugins = Plugins([EntryPoint(NAME, f"{__name__}:PaperMirror", "mm2py.connectors")])
        validator = ConfigValidator(
            plugins, resolve=texts_of, policy=override_policy("All"), mask=node.parts.node.mask
        )
        offsets = MemoryOffsetBackingStore()
        overrides = backfills = None
        if dedicated:
            backfills = BackfillStore(MemoryTable(MemoryTopic("mm2py-backfill.A.internal")))
            topic = MemoryTopic("mm2py-flows.A.internal")
            overrides = FlowOverridesStore(MemoryTable(topic), {NAME: CONFIG}, clock=cluster.clock)

        def editor(_config: Mapping[str, str]) -> OffsetEditor:
            return OffsetEditor(offsets, plugins.find)

        self.herder = Herder(
            replace(
                node.parts,
                node=replace(
                    node.parts.node,
                    plugins=plugins,
                    catalog=InstalledPlugins(plugins),
                    validator=validator,
                ),
                overrides=overrides,
                backfills=backfills,
                offsets=offsets,
                editor=editor,
            ),
            clock=cluster.clock,
        )
        herders = {FLOW if dedicated else None: self.herder}
        client = http_client()
        parts = RestParts(
            herders=lambda: herders,
            dedicated=dedicated,
            catalog=InstalledPlugins(plugins),
            validator=validator,
            loggers=FakeLoggers(),
            mask=node.parts.node.mask,
            clock=cluster.clock,
            forward=Forwarder(lambda: client, cluster.clock),
            remote_refusal=self._refusal,
            started_ms=0,
        )
        if overrides is not None:
            fleet = _Fleet(FlowNode(self.herder, overrides, _Itself(self.herder)), elsewhere or {})
            overrides.guarded_by(fleet.guard(FLOW))
            flows = FlowServiceParts(
                fleet=fleet,
                validator=validator,
                mask=node.parts.node.mask,
                clock=_Turns(),
                remote_refusal=self._refusal,
                property_problem=lambda _: "",
                readers=lambda _: (),
            )
            service = FlowService(flows)
            routes = router(service, FlowChanges(flows), parts.forward)
            runs = BackfillService(
                FakeCommands(), masters=(), mask=node.parts.node.mask, clock=cluster.clock
            )
            routes.routes.extend(backfill_router(service, runs).routes)
            failovers = FailoverService(FakeFailovers(node.parts.node.mask).opened)
            routes.routes.extend(failover_router(service, failovers).routes)
            parts = replace(parts, flows=routes)
        self._overrides = overrides
        self._app = public_app(parts)

    def _refusal(self, flow: FlowName | None, name: str, config: ConnectorConfig) -> str | None:
        del flow, name
        texts = CONFIG if self.dedicated else {}
        problems = remote_problems(config, dedicated=self.dedicated, file_texts=texts, providers=())
        return refusal_text(problems)

    def send(self, request: httpx.Request) -> httpx.Response:
        """Return what the worker answers."""

        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.send(request)

        return self._run(sent())

    def send_measured(self, request: httpx.Request) -> tuple[httpx.Response, float]:
        """Return what the worker answers, and the longest step of its event loop in CPU seconds."""
        longest_s = 0.0

        async def tick() -> None:
            nonlocal longest_s
            before = time.thread_time()
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest_s, before = max(longest_s, now - before), now

        async def sent() -> httpx.Response:
            ticking = asyncio.create_task(tick())
            try:
                transport = httpx.ASGITransport(self._app)
                async with httpx.AsyncClient(transport=transport) as client:
                    return await client.send(request)
            finally:
                ticking.cancel()

        return self._run(sent()), longest_s

    def mend(self, *, stopped: bool = False) -> None:
        """Let the connector run with what the file says, or stop it, whatever was done to it."""
        if self._overrides is not None and not self._overrides.state.present:
            added = {"source": FLOW.source, "target": FLOW.target}
            self.send(httpx.Request("POST", "http://worker/flows", json=added))
        self._run(self.herder.put_config(NAME, CONFIG, actor="test"))
        step = self.herder.stop_connector if stopped else self.herder.resume
        self._run(step(NAME, actor="test"))
        self._run(self._calm())

    async def _calm(self) -> None:
        """Wait until no rebalance is due: reads answer 500 until then, as in Connect."""
        for _ in range(CALM_TURNS):
            try:
                await self.herder.info(NAME)
            except RebalanceExpectedError:
                await asyncio.sleep(0)
            else:
                return
        raise AssertionError

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(REQUEST_S):
                return await doing

        return self._runner.run(limited())

    def __enter__(self) -> Self:
        async def start() -> asyncio.Task[None]:
            life = asyncio.create_task(self.herder.run())
            await until(lambda: self.herder.session_key() is not None)
            return life

        self._life = self._run(start())
        self.mend()
        return self

    def __exit__(self, *error: object) -> None:
        async def end() -> None:
            self.herder.stop()
            await self._life

        self._run(end())
        self._runner.close()
