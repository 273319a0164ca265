"""The herder as REST, ``/flows`` and the composition root see it, and what it is given.

Flow: request -> ``Herder`` -> answer or ``HerderError``. Herder methods raise ``HerderError``,
``ConfigError`` (400) or ``RetriableError`` (503), and nothing else.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mm2py.config.connect_definitions import ConfigInfos
from mm2py.config.worker import WorkerConfig
from mm2py.observability.loggers import LoggerRegistry
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter, NodeSnapshot
from mm2py.runtime.group.membership import WorkerMembership
from mm2py.runtime.plugins.catalog import PluginCatalog
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.task_host import TaskHost, TaskWatcher
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.types import FlowName, State, TargetState, TaskId, TopicPartition

__all__ = [
    "ConnectorInfo",
    "ConnectorState",
    "Health",
    "Herder",
    "HerderParts",
    "JsonScalar",
    "OffsetEditing",
    "OffsetEntry",
    "OffsetStore",
    "Overrides",
    "PeerClient",
    "PutResult",
    "RunnableHerder",
    "Validator",
    "WorkState",
]

JsonScalar = str | int | float | bool | None
"""A value inside a source partition or offset."""


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector with its raw config; ``type`` is ``source``, ``sink`` or ``unknown``."""

    name: str
    config: ConnectorConfig
    tasks: tuple[TaskId, ...]
    type: str


@dataclass(frozen=True, slots=True)
class WorkState:
    """State of one connector or task, and the worker that said so."""

    state: State
    worker_id: str
    trace: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """States of a connector and, by number, of its tasks."""

    name: str
    connector: WorkState
    tasks: Mapping[int, WorkState]
    type: str


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put made; ``created`` is False where the connector existed."""

    created: bool
    info: ConnectorInfo


@dataclass(frozen=True, slots=True)
class Health:
    """``healthy``, ``starting`` or ``unhealthy`` (200, 503, 500) and a sentence about it."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One stored position; an ``offset`` of None removes it."""

    partition: Mapping[str, JsonScalar] | None
    offset: Mapping[str, JsonScalar] | None


class Herder(Protocol):
    """Connectors of one flow, or of one ordinary worker, as seen from one node.

    ``actor`` is who asks, for the history. "Leader only" and "owner only" methods raise ``ForwardError``
    on every other worker; reads through the queue raise ``RebalanceExpectedError`` before a rebalance.
    """

    @property
    def worker_id(self) -> str:
        """Name of this worker in statuses."""
        ...

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that holds the internal topics."""
        ...

    @property
    def flow(self) -> FlowName | None:
        """The flow; None on an ordinary worker."""
        ...

    # At once, from what this node has read, also during a rebalance.

    def connectors(self) -> tuple[str, ...]:
        """Return the names of all connectors."""
        ...

    def info_now(self, name: str) -> ConnectorInfo | None:
        """Return a connector as this node knows it, None where it knows none."""
        ...

    def status(self, name: str) -> ConnectorState:
        """Return all states of a connector; ``NotFoundError``: ``No status found for connector c``."""
        ...

    def task_status(self, task: TaskId) -> WorkState:
        """Return the state of a task; ``NotFoundError``: ``No status found for task c-0``."""
        ...

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics a connector uses; ``ForbiddenError`` when tracking is off."""
        ...

    async def reset_topics(self, name: str) -> None:
        """Forget which topics a connector uses; ``ForbiddenError`` when that is off."""
        ...

    def session_key(self) -> SessionKey | None:
        """Return the key that verifies requests between workers, None while none was read."""
        ...

    # Through the queue: 90 s, health 10 s, then HerderTimeoutError.

    async def health(self) -> Health:
        """Return whether the herder answers."""
        ...

    async def info(self, name: str) -> ConnectorInfo:
        """Return a connector; ``NotFoundError``: ``Connector c not found``."""
        ...

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        """Return the task configs of a connector in order."""
        ...

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector."""
        ...

    # Leader only.

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector; ``AlreadyExistsError``: ``Connector c already exists``."""
        ...

    async def put_config(self, name: str, config: ConnectorConfig, *, actor: str) -> PutResult:
        """Create a connector or replace its config; an equal config is written too."""
        ...

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys of a config; None removes one."""
        ...

    async def delete(self, name: str, *, actor: str) -> None:
        """Remove a connector; its positions stay."""
        ...

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED: no tasks first, then the target state."""
        ...

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Ask every worker for a restart; returns the states that the plan leads to."""
        ...

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector; returns the answer's message."""
        ...

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector; returns the answer's message."""
        ...

    async def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Take the task configs that a connector's owner made; the signature is verified before."""
        ...

    async def fence(self, name: str) -> None:
        """Fence the producers of earlier tasks; succeeds where nothing is pending."""
        ...

    # Any worker.

    async def pause(self, name: str, *, actor: str) -> None:
        """Make a connector PAUSED; ``NotFoundError``: ``Unknown connector c``."""
        ...

    async def resume(self, name: str, *, actor: str) -> None:
        """Make a connector run; ``NotFoundError``: ``Unknown connector c``."""
        ...

    async def set_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker."""
        ...

    # Owner only.

    async def restart_connector(self, name: str) -> None:
        """Restart the connector instance."""
        ...

    async def restart_task(self, task: TaskId) -> None:
        """Restart one task."""
        ...

    # For /flows, of this node.

    def node_snapshot(self) -> NodeSnapshot:
        """Return lag and rates of the partitions that this node copies."""
        ...

    def member_urls(self) -> tuple[str, ...]:
        """Return where all members listen; leader only."""
        ...

    async def apply_holds(self) -> None:
        """Read paused topics and partitions again and hand them to the hosts."""
        ...


class RunnableHerder(Protocol):
    """A herder as whoever runs the process sees it."""

    async def run(self) -> None:
        """Run; returns after ``stop``, or when it failed for good (``error``)."""
        ...

    def stop(self) -> None:
        """Begin an orderly stop."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why it ended by itself; None while it runs or after an orderly stop."""
        ...


class Validator(Protocol):
    """Checks connector configs."""

    async def validate(self, config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        """Return what is wrong with a config; ``plugin`` is the name in the path, if there is one."""
        ...


class PeerClient(Protocol):
    """Asks other workers; failures are ``HerderError`` with the peer's status."""

    async def post_tasks(
        self, url: str, connector: str, configs: Sequence[Mapping[str, str]], key: SessionKey
    ) -> None:
        """Hand a connector's task configs to the leader at ``url``."""
        ...

    async def node_snapshot(self, url: str, key: SessionKey) -> NodeSnapshot:
        """Return what the member at ``url`` copies."""
        ...


class Overrides(Protocol):
    """What people changed of the flow beside its file."""

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        ...

    def effective(self) -> Mapping[str, Mapping[str, str]]:
        """Return file and overrides by connector: what a leader writes where it differs."""
        ...

    async def record(
        self,
        name: str,
        before: Mapping[str, str] | None,
        after: Mapping[str, str] | None,
        *,
        actor: str,
    ) -> None:
        """Note a change before the leader writes the config record; None is absent."""
        ...

    def held(self) -> frozenset[TopicPartition]:
        """Return paused source partitions; -1 is a whole topic."""
        ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Name who is told of every change read later."""
        ...


class OffsetStore(Protocol):
    """The offset store as far as a herder goes; tasks use their hosts' own."""

    async def start(self) -> None:
        """Read it to its end; may be called again after ``stop``."""
        ...

    async def stop(self) -> None:
        """Close its connections."""
        ...


class OffsetEditing(Protocol):
    """Reads and changes stored positions; that the connector is STOPPED is checked before."""

    async def read(self, connector: str) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector."""
        ...

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> str:
        """Write positions; ``BadRequestError`` or ``HerderError`` when the connector refuses them."""
        ...

    async def reset(self, connector: str, config: Mapping[str, str]) -> str:
        """Remove all positions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HerderParts:
    """The real objects of one herder, built by the composition root.

    ``clusters`` maps a description (``target cluster B at b1:9092``) to what connects it; ``prepare``
    creates and checks the internal topics; ``cluster_id`` is asked after both; ``resolve`` replaces
    placeholders; ``close`` closes what was opened. ``overrides`` is None on an ordinary worker. ``mask``
    hides secrets in traces of statuses.
    """

    flow: FlowName | None
    worker_id: str
    cluster_id: Callable[[], str]
    clusters: Mapping[str, Callable[[], Awaitable[None]]]
    prepare: Callable[[], Awaitable[None]]
    config: ConfigBackingStore
    status: StatusBackingStore
    offsets: OffsetStore
    membership: WorkerMembership
    hosts: Callable[[TaskWatcher], TaskHost]
    plugins: Plugins
    catalog: PluginCatalog
    validator: Validator
    peers: PeerClient
    overrides: Overrides | None
    resolve: Callable[[ConnectorConfig], dict[str, str]]
    editor: OffsetEditing
    meter: FlowMeter
    loggers: LoggerRegistry
    settings: WorkerConfig
    auto_restart: bool
    close: Callable[[], Awaitable[None]]
    mask: SecretMask = field(default_factory=SecretMask)
