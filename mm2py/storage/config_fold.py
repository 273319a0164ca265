"""The config topic as a table: each record changes it, and becomes an event for the workers.

Flow: ``ConfigRecord`` -> ``ConfigFold.take`` -> ``ConfigEvent`` and the next ``ConfigSnapshot``
(the rules of Java's ``KafkaConfigBackingStore``). Pure: it reads no topic, and its caller decides
whether listeners are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.storage.config_state import (
    EMPTY,
    ConfigSnapshot,
    ConnectorConfig,
    RestartRequest,
    SessionKey,
)
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    LoggerLevel,
    TargetPut,
    TaskPut,
)
from mm2py.types import TargetState, TaskId


@dataclass(frozen=True, slots=True)
class ConnectorChanged:
    """A connector config was read, perhaps an equal one."""

    name: str


@dataclass(frozen=True, slots=True)
class ConnectorRemoved:
    """A connector is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """A commit of task configs was read, complete or not (``ConfigSnapshot.inconsistent``)."""

    connector: str


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """The target state of an existing connector has changed."""

    connector: str


ConfigEvent = (
    ConnectorChanged
    | ConnectorRemoved
    | TasksChanged
    | TargetChanged
    | RestartRequest
    | LoggerLevel
)
"""The effect of one record, for listeners."""

_NOTHING: Final[Mapping[str, str]] = {}

ConfigListener = Callable[[ConfigEvent], None]
"""Called on the loop with what was read after ``start`` returned; neither blocks nor raises."""


@final
class ConfigFold:
    """All that the records so far add up to.

    Task configs wait in a buffer per connector until a commit makes them valid. The buffer stays
    once it was there, because a commit of 0 tasks counts as a generation only after task records,
    as in Java.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._commit_offset = 0
        self._session_key: SessionKey | None = None
        self._connectors: dict[str, ConnectorConfig] = {}
        self._targets: dict[str, TargetState] = {}
        self._counts: dict[str, int] = {}
        self._tasks: dict[str, dict[int, ConnectorConfig]] = {}
        self._deferred: dict[str, dict[int, ConnectorConfig]] = {}
        self._generations: dict[str, int] = {}
        self._applied: dict[str, ConnectorConfig] = {}
        self._beside: dict[str, Sequence[Mapping[str, str]]] = {}
        self._former: dict[str, Sequence[ConnectorConfig]] = {}
        self._fenced: dict[str, int] = {}
        self._pending_fencing: set[str] = set()
        self._inconsistent: set[str] = set()
        self._snapshot: ConfigSnapshot | None = EMPTY

    def advance(self, offset: int) -> None:
        """Note that the record at ``offset`` was read, whether or not it was of use."""
        self._offset = offset + 1
        self._snapshot = None

    def take(self, record: ConfigRecord) -> ConfigEvent | None:
        """Apply the next record and return what listeners receive of it."""
        self._snapshot = None
        event: ConfigEvent | None = None
        match record:
            case ConnectorPut(name, config):
                event = self._remove(name) if config is None else self._put(name, config)
            case TaskPut(TaskId(connector, number), config):
                # Not in force before the commit: a leader may have died between the two.
                self._deferred.setdefault(connector, {})[number] = config
            case Commit():
                event = self._commit(record)
            case TargetPut(name, state):
                event = self._want(name, state)
            case Fenced(name, task_count):
                self._fenced[name] = task_count
                # KIP-618: producers of earlier generations are fenced, tasks may start.
                self._pending_fencing.discard(name)
            case SessionKey():
                self._session_key = record
            case RestartRequest() | LoggerLevel():
                event = record
        return event

    def snapshot(self) -> ConfigSnapshot:
        if self._snapshot is None:
            self._snapshot = ConfigSnapshot(
                offset=self._offset,
                commit_offset=self._commit_offset,
                session_key=self._session_key,
                connectors=dict(self._connectors),
                task_counts=dict(self._counts),
                targets=dict(self._targets),
                task_configs={
                    TaskId(connector, number): config
                    for connector, configs in self._tasks.items()
                    for number, config in configs.items()
                },
                generations=dict(self._generations),
                applied=dict(self._applied),
                beside=dict(self._beside),
                former=dict(self._former),
                task_count_records=dict(self._fenced),
                pending_fencing=frozenset(self._pending_fencing),
                inconsistent=frozenset(self._inconsistent),
                unfinished=frozenset(name for name, waits in self._deferred.items() if waits),
            )
        return self._snapshot

    def _put(self, name: str, config: ConnectorConfig) -> ConnectorChanged:
        self._connectors[name] = config
        # A target state may come first (KIP-980: a connector created STOPPED or PAUSED).
        self._targets.setdefault(name, TargetState.STARTED)
        return ConnectorChanged(name)

    def _remove(self, name: str) -> ConnectorRemoved:
        # Generation, task count record and fencing flag outlive the connector, as in Java.
        for of_connector in (
            self._connectors,
            self._counts,
            self._tasks,
            self._deferred,
            self._applied,
            self._beside,
            self._former,
        ):
            of_connector.pop(name, None)
        return ConnectorRemoved(name)

    def _commit(self, commit: Commit) -> TasksChanged | None:
        name, tasks, beside = commit.name, commit.tasks, commit.beside
        config = self._connectors.get(name)
        if config is None:
            # Compaction has eaten the connector's config
            # and its tombstone: what is left means nothing.
            before = self._deferred.get(name)
            self._remove(name)
            # Or a newer config follows: it had these before.
            if before:
                self._former[name] = tuple(before.values())
            return None
        deferred = self._deferred.get(name)
        # Compaction keeps the newest record of a key: of an older set of task configs
        # some may be gone, and a commit that was written after a smaller set finds fewer.
        complete = all(number in (deferred or ()) for number in range(tasks))
        if complete:
            if deferred is not None:
                self._keep_former(name, deferred, tasks)
                told = (*beside, *(_NOTHING for _ in range(tasks)))
                self._tasks[name] = {it: {**deferred[it], **told[it]} for it in range(tasks)}
                self._beside[name] = beside
                self._generations[name] = self._generations.get(name, -1) + 1
            self._inconsistent.discard(name)
            self._applied[name] = config
        else:
            # As in Java: its tasks are not started until the leader writes their configs again.
            self._inconsistent.add(name)
        if deferred is not None:
            deferred.clear()
        self._counts[name] = tasks
        # Each commit begins a generation whose predecessors must be fenced first (KIP-618).
        self._pending_fencing.add(name)
        # ``advance`` was called for this record: the offset after the commit.
        self._commit_offset = self._offset
        return TasksChanged(name)

    def _keep_former(self, name: str, deferred: Mapping[int, ConnectorConfig], tasks: int) -> None:
        """Keep the task configs that a stop removes, until others are in force."""
        if tasks:
            self._former.pop(name, None)
        # Of a topic that was compacted the commit of these may be gone.
        elif before := self._tasks.get(name) or deferred:
            self._former[name] = tuple(before.values())

    def _want(self, name: str, state: TargetState | None) -> TargetChanged | None:
        before = self._targets.get(name)
        exists = name in self._connectors
        if state is not None:
            self._targets[name] = state
        # A tombstone of the state alone: Java falls back to STARTED.
        elif exists:
            self._targets[name] = TargetState.STARTED
        else:
            self._targets.pop(name, None)
        # A state may be read before its connector; the connector's own event covers it then.
        return TargetChanged(name) if exists and self._targets[name] != before else None
