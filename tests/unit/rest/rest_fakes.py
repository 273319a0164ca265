"""A herder in memory, and requests that reach an application without a network."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.clock import Clock
from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.errors import Mm2pyError
from mm2py.observability.checkpoint_ages import CheckpointAges
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowSample, LifeCounts, NodeSnapshot
from mm2py.rest.credentials import Caller
from mm2py.rest.forwarding import Forwarder, http_client
from mm2py.rest.parts import RestParts
from mm2py.runtime.errors import AlreadyExistsError, NotFoundError
from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, Health, OffsetEntry, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.plugins.catalog import PluginInfo
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, State, TargetState, TaskId
from tests.unit.runtime.runtime_fakes import EagerClock, FakeLoggers

BASE = "http://worker:8083"
KEY = SessionKey(b"k" * 32, "HmacSHA256", 0)
WELL = Health("healthy", "well")
PLACEHOLDER = "${file:topics:more}"
"""In the text of a config; its value is ``bills``."""
SOURCE = "org.apache.kafka.connect.mirror.MirrorSourceConnector"


def flow(source: str, target: str) -> FlowName:
    return FlowName(ClusterAlias(source), ClusterAlias(target))


def config_key(name: str, kind: str = "STRING") -> ConfigKey:
    return ConfigKey(
        name=name,
        type=kind,
        required=True,
        default_value=None,
        importance="HIGH",
        documentation="what it is",
        group="Common",
        order_in_group=1,
        width="SHORT",
        display_name=name,
    )


class FakeHerder(Herder):
    """A herder that does nothing: ``calls`` are its changes, each of which raises ``refusal`` if there is one."""

    def __init__(
        self,
        flow: FlowName | None = None,
        *,
        cluster_id: str = "cluster-id",
        configs: dict[str, dict[str, str | None]] | None = None,
        states: dict[str, ConnectorState] | None = None,
        refusal: Exception | None = None,
        entries: Sequence[OffsetEntry] = (),
        key: SessionKey | None = KEY,
        said_health: Health = WELL,
        snapshot: NodeSnapshot | None = None,
    ) -> None:
        self.of, self._cluster_id = flow, cluster_id
        self.configs, self.states = configs or {}, states or {}
        self.targets: dict[str, TargetState] = {}
        self.calls: list[tuple[object, ...]] = []
        self.refusal, self.entries, self.key = refusal, entries, key
        self.said_health, self.snapshot = said_health, snapshot
        self.backfill_store: BackfillStore | None = None
        self.leading = True
        self.life = LifeCounts()
        self.waits, self.changing = "", False
        self.file: dict[str, dict[str, str]] = {}
        self.broken: Mm2pyError | None = None
        self.without_owner: set[TaskId] = set()

    @property
    def flow(self) -> FlowName | None:
        return self.of

    @property
    def worker_id(self) -> str:
        return "worker:8083"

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def failure(self) -> Mm2pyError | None:
        return self.broken

    @property
    def configured(self) -> Mapping[str, Mapping[str, str]]:
        return self.file

    @property
    def checkpoint_ages(self) -> tuple[CheckpointAges, ...]:
        return ()

    @property
    def life_counts(self) -> LifeCounts:
        return self.life

    @property
    def not_ready(self) -> str:
        return self.waits

    @property
    def idles(self) -> str:
        suspended = self.snapshot is not None and self.snapshot.state == "SUSPENDED"
        return "is SUSPENDED: the target does not answer" if suspended else self.waits

    @property
    def pending(self) -> bool:
        return self.changing

    @property
    def leads(self) -> bool:
        return self.leading

    @property
    def backfills(self) -> BackfillStore | None:
        return self.backfill_store

    def _did(self, *call: object) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal

    def _info(self, name: str) -> ConnectorInfo:
        if name not in self.configs:
            raise NotFoundError(f"Connector {name} not found")
        return ConnectorInfo(name, self.configs[name], (TaskId(name, 0),), "source")

    def connectors(self) -> tuple[str, ...]:
        return tuple(self.configs)

    def resolved_config(self, name: str) -> dict[str, str]:
        return self.resolved(self.configs[name])

    def resolved(self, config: Mapping[str, str | None]) -> dict[str, str]:
        texts = ((key, text) for key, text in config.items() if text is not None)
        return {key: text.replace(PLACEHOLDER, "bills") for key, text in texts}

    def info_now(self, name: str) -> ConnectorInfo | None:
        return self._info(name) if name in self.configs else None

    def task_config_now(self, task: TaskId) -> dict[str, str | None]:
        del task
        return {}

    def target_now(self, name: str) -> TargetState:
        return self.targets.get(name, TargetState.STARTED)

    def status(self, name: str) -> ConnectorState:
        if name not in self.states:
            raise NotFoundError(f"No status found for connector {name}")
        return self.states[name]

    def task_status(self, task: TaskId) -> WorkState:
        found = self.states.get(task.connector)
        if found is None or task.number not in found.tasks:
            raise NotFoundError(f"No status found for task {task}")
        return found.tasks[task.number]

    def topics(self, name: str) -> tuple[str, ...]:
        self._did("topics", name)
        return ("t1",)

    async def reset_topics(self, name: str) -> None:
        self._did("reset_topics", name)

    def session_key(self) -> SessionKey | None:
        return self.key

    async def health(self) -> Health:
        return self.said_health

    async def wait_for_configs(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        return condition()

    async def info(self, name: str) -> ConnectorInfo:
        self._did("info", name)
        return self._info(name)

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        self._did("task_configs", name)
        return [(TaskId(name, 0), {"x": "1"})]

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        self._did("offsets", name)
        return self.entries

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        self._did("create", name, dict(config), target, actor)
        if name in self.configs:
            raise AlreadyExistsError(f"Connector {name} already exists")
        self.configs[name] = dict(config)
        return ConnectorInfo(name, dict(config), (), "source")

    async def put_config(
        self, name: str, config: ConnectorConfig, *, actor: str
    ) -> tuple[bool, ConnectorInfo]:
        self._did("put_config", name, dict(config), actor)
        created = name not in self.configs
        self.configs[name] = dict(config)
        return created, self._info(name)

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        self._did("patch_config", name, dict(patch), actor)
        merged = {**self._info(name).config, **patch}
        self.configs[name] = {key: value for key, value in merged.items() if value is not None}
        return self._info(name)

    async def delete(
        self, name: str, *, actor: str, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        if not only_if():
            return
        self._did("delete", name, actor)
        del self.configs[self._info(name).name]

    async def stop_connector(self, name: str, *, actor: str) -> None:
        self._did("stop", name, actor)
        self.targets[name] = TargetState.STOPPED

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        self._did("restart", name, only_failed, include_tasks)
        return self.status(name)

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        self._did("alter_offsets", name, list(entries))
        return "altered"

    async def reset_offsets(self, name: str) -> str:
        self._did("reset_offsets", name)
        return "reset"

    async def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        self._did("put_task_configs", name, [dict(config) for config in configs])

    async def fence(self, name: str) -> None:
        self._did("fence", name)

    async def pause(self, name: str, *, actor: str) -> None:
        self._did("pause", name, actor)
        self.targets[name] = TargetState.PAUSED

    async def resume(self, name: str, *, actor: str) -> None:
        self._did("resume", name, actor)
        self.targets[name] = TargetState.STARTED

    async def set_logger_level(self, namespace: str, level: str) -> None:
        self._did("set_logger_level", namespace, level)

    async def restart_connector(self, name: str) -> None:
        self._did("restart_connector", name)

    async def restart_task(self, task: TaskId) -> None:
        self._did("restart_task", task)

    def node_snapshot(self) -> NodeSnapshot:
        if self.snapshot is not None:
            return self.snapshot
        flow = self.of or FlowName(ClusterAlias("connect"), ClusterAlias("connect"))
        return NodeSnapshot(
            worker="", flow=flow, at_ms=0, state="RUNNING", partitions=(), events={}, records_lost=0
        )

    def sample(self) -> FlowSample:
        return FlowSample(at_ms=0, lag_records=None, lag_ms=None, records=0, size_bytes=0)

    def member_urls(self) -> tuple[str, ...]:
        return ()

    def has_no_owner(self, task: TaskId) -> bool:
        return task in self.without_owner

    async def apply_holds(self) -> None:
        self._did("apply_holds")


def state(name: str, *, tasks: Mapping[int, WorkState] | None = None) -> ConnectorState:
    running = WorkState(State.RUNNING, "worker:8083", None, "4.3.1")
    return ConnectorState(name, running, {0: running} if tasks is None else tasks, "source")


@dataclass
class FakeCatalog:
    """One source connector with a password, and one converter without a version."""

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        connector = PluginInfo(SOURCE, "source", "4.3.1")
        converter = PluginInfo("org.x.SomeConverter", "converter", None)
        return [connector] if connectors_only else [connector, converter]

    def definitions(self, plugin: str) -> Sequence[ConfigKey]:
        if plugin not in {SOURCE, "MirrorSourceConnector", "MirrorSource"}:
            raise NotFoundError(f"Unknown plugin {plugin}.")
        return [config_key("topics"), config_key("source.pw", "PASSWORD")]

    def connector_type(self, config: Mapping[str, str | None]) -> str:
        return "source" if config.get("connector.class") == SOURCE else "unknown"


@dataclass
class FakeValidator:
    """Finds one error in every config, with the config's secret in its text."""

    asked: list[tuple[dict[str, str | None], str | None]] = field(
        default_factory=list[tuple[dict[str, str | None], str | None]]
    )

    async def validate(self, config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        self.asked.append((dict(config), plugin))
        value = ConfigValue(name="topics", value="canary-value", errors=("not canary-value",))
        return ConfigInfos(
            name="n",
            error_count=1,
            groups=("Common",),
            configs=(
                (config_key("topics"), value),
                (config_key("source.pw", "PASSWORD"), ConfigValue(name="source.pw", value="open")),
                (None, None),
            ),
        )


def parts_of(
    herders: Mapping[FlowName | None, Herder] | None = None,
    *,
    dedicated: bool = False,
    client: httpx.AsyncClient | None = None,
    eager: bool = False,
    started_ms: int = 0,
    remote_refusal: Callable[[FlowName | None, str, ConnectorConfig], str | None] | None = None,
) -> RestParts:
    """Return parts over fakes; ``canary`` anywhere in a text is a secret."""
    found: Mapping[FlowName | None, Herder] = {None: FakeHerder()} if herders is None else herders
    clock, hasty = FakeClock(), EagerClock()
    hasty.seconds = clock.now_ms() / 1000
    now: Clock = hasty if eager else clock
    return RestParts(
        herders=lambda: found,
        dedicated=dedicated,
        catalog=FakeCatalog(),
        validator=FakeValidator(),
        loggers=FakeLoggers(),
        mask=SecretMask(["canary-value"]),
        clock=now,
        forward=Forwarder(lambda: client or http_client(), now),
        started_ms=started_ms,
        commit="mm2py-0.1.0",
        remote_refusal=remote_refusal or (lambda flow, name, config: None),
    )


@dataclass(frozen=True)
class Reply:
    """An answer, its body still bytes."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def message(self) -> str:
        """The text of an error body, whose code has to be the status."""
        body = json.loads(self.content)
        assert set(body) == {"error_code", "message"}
        assert body["error_code"] == self.status
        return str(body["message"])


def ask(
    app: ASGIApp,
    method: str,
    target: str,
    *,
    body: object = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request; ``body`` goes as JSON, ``content`` as it is."""

    async def send() -> Reply:
        transport = httpx.ASGITransport(app)
        sent = json.dumps(body).encode() if body is not None else content
        given = dict(headers or {})
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            reply = await client.request(method, target, content=sent, headers=given)
            return Reply(reply.status_code, reply.headers, reply.content)

    return asyncio.run(send())


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer behind a gate who asked, and how long the body was."""
    caller = scope["mm2py.caller"]
    assert isinstance(caller, Caller)
    body = await Request(scope, receive).body()
    answer = {"name": caller.name, "operator": caller.operator, "body": len(body)}
    await JSONResponse(answer)(scope, receive, send)
