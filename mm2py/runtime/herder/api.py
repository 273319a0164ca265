"""Values that a herder answers with, and the parts that it is given.

Flow: composition root -> ``HerderParts`` -> ``mm2py.runtime.herder.herder.Herder`` -> values of
this module.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mm2py.config.connect_definitions import ConfigInfos
from mm2py.config.worker import WorkerConfig
from mm2py.errors import Mm2pyError
from mm2py.observability.loggers import LoggerRegistry
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter, NodeSnapshot
from mm2py.runtime.group.membership import WorkerMembership
from mm2py.runtime.plugins.catalog import PluginCatalog
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.task_host import TaskHost, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.types import FlowName, State, TaskId, TopicPartition

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
    """State of one connector or task, and the worker that wrote it."""

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
class Health:
    """``healthy``, ``starting`` or ``unhealthy`` (200, 503, 500) and a sentence about it."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One stored position; an ``offset`` of None removes it."""

    partition: Mapping[str, JsonScalar] | None
    offset: Mapping[str, JsonScalar] | None


class Validator(Protocol):
    """Checks connector configs."""

    async def validate(self, config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        """Return what is wrong with a config; ``plugin`` is the path's name, if any."""
        ...


AskPeer = Callable[[str, SessionKey], Awaitable[NodeSnapshot]]
"""Asks the member at a URL what it copies; failures are ``HerderError`` with the peer's status."""


class Overrides(Protocol):
    """Changes of the flow over REST, beside its file (``FlowOverridesStore``)."""

    async def start(self) -> None: ...
    async def refresh(self, timeout_s: float) -> None: ...
    def effective(self) -> Mapping[str, Mapping[str, str]]: ...
    async def record(
        self,
        name: str,
        before: Mapping[str, str] | None,
        after: Mapping[str, str] | None,
        *,
        actor: str,
    ) -> None: ...
    async def restore(self) -> None: ...
    def held(self) -> frozenset[TopicPartition]: ...
    def check_readable(self) -> None: ...
    def problems(self) -> Mapping[str, str]: ...
    def listen(self, changed: Callable[[], None]) -> None: ...


class FlowStores(Protocol):
    """The stores of positions, maps and losses that a herder opens and closes; tasks use those of
    their hosts."""

    async def start(self) -> None:
        """Read it to its end; may be called again after ``stop``."""
        ...

    async def stop(self) -> None: ...


class OffsetEditing(Protocol):
    """Reads and changes stored positions (``OffsetEditor``); that the connector is STOPPED is
    checked before."""

    async def read(self, connector: str, config: Mapping[str, str], /) -> Sequence[OffsetEntry]: ...
    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> str: ...
    async def reset(self, connector: str, config: Mapping[str, str]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HerderNode:
    """What all herders of a process share; ``mask`` hides secrets in traces of statuses."""

    worker_id: str
    plugins: Plugins
    catalog: PluginCatalog
    validator: Validator
    loggers: LoggerRegistry
    mask: SecretMask


@dataclass(frozen=True, slots=True, kw_only=True)
class HerderParts:
    """The real objects of one herder, built by the composition root.

    ``clusters`` maps a description (``target cluster B at b1:9092``) to what connects it;
    ``prepare`` creates and checks the internal topics; ``cluster_id`` is asked after both,
    ``cluster_ids`` (of source and target; None where connectors may read any cluster) too;
    ``resolve`` replaces placeholders; ``close`` closes what was opened; ``fence_producers`` fences
    transactional ids on the target, ``topic_limits`` asks it for ``max.message.bytes``,
    ``unfit`` which internal topics may not be written, are gone or are not as they must be, and
    why. ``overrides``, ``backfills`` and ``take_back`` (ends a stream whose driver is gone, for a
    cause) are None on an ordinary worker, whose ``guard`` gets all connectors before and after a
    change and refuses it by raising; overrides have their own.
    """

    node: HerderNode
    flow: FlowName | None
    cluster_id: Callable[[], str]
    cluster_ids: Callable[[], tuple[str, str]] | None = None
    clusters: Mapping[str, Callable[[], Awaitable[None]]]
    prepare: Callable[[], Awaitable[None]]
    config: ConfigBackingStore
    status: StatusBackingStore
    offsets: FlowStores
    membership: WorkerMembership
    hosts: Callable[[TaskWatcher, StartGuard], TaskHost]
    overrides: Overrides | None
    guard: Callable[[Mapping[str, ConnectorConfig], Mapping[str, ConnectorConfig]], None] | None = (
        None
    )
    backfills: BackfillStore | None = None
    take_back: Callable[[str], Awaitable[None]] | None = None
    resolve: Callable[[ConnectorConfig], dict[str, str]]
    editor: Callable[[Mapping[str, str]], OffsetEditing]
    meter: FlowMeter
    settings: WorkerConfig
    close: Callable[[], Awaitable[None]]
    fence_producers: Callable[[Sequence[str]], Awaitable[None]]
    topic_limits: Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
    unfit: Callable[[], Awaitable[Mapping[str, Mm2pyError]]]
