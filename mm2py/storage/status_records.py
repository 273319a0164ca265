"""The content of the status topic: connectors, tasks and the topics they use, and the rules for
reading it.

Flow: records of the topic -> ``decode_status_record`` -> ``StatusTable`` -> ``StoredStatus`` and
``TopicUse`` (the rules of Java's ``KafkaStatusBackingStore``). No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast, final

from mm2py.errors import ProtocolError
from mm2py.storage.connect_json import (
    INT32,
    compact_json,
    integer_member,
    json_object,
    key_text,
    optional_text_member,
    task_id,
    text_member,
)
from mm2py.types import State, TaskId

CONNECTOR: Final = "status-connector-"
TASK: Final = "status-task-"
TOPIC: Final = "status-topic-"
OF_CONNECTOR: Final = ":connector-"

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatus:
    """State of a connector or task, by whom and of which generation it was written."""

    state: State
    trace: str | None = None
    worker_id: str
    generation: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A connector's task wrote to or read from a topic for the first time."""

    topic: str
    connector: str
    task: int
    discovered_ms: int


@dataclass(frozen=True, slots=True)
class StatusPut:
    """A state was read; none is a tombstone."""

    work: str | TaskId
    status: StoredStatus | None


@dataclass(frozen=True, slots=True)
class TopicPut:
    """The use of a topic was read; none is a tombstone."""

    connector: str
    topic: str
    use: TopicUse | None


def status_key(work: str | TaskId) -> bytes:
    """Return the record key of a connector's or task's state."""
    prefix = TASK if isinstance(work, TaskId) else CONNECTOR
    return f"{prefix}{work}".encode(errors="replace")


def status_value(status: StoredStatus) -> bytes | None:
    """Return the record value; DESTROYED is a tombstone."""
    if status.state is State.DESTROYED:
        return None
    return compact_json(
        {
            "state": status.state,
            "trace": status.trace,
            "worker_id": status.worker_id,
            "generation": status.generation,
            "version": status.version,
        }
    )


def topic_key(connector: str, topic: str) -> bytes:
    """Return the record key of a connector's use of a topic."""
    return f"{TOPIC}{topic}{OF_CONNECTOR}{connector}".encode(errors="replace")


def topic_value(use: TopicUse) -> bytes:
    """Return the record value of a connector's use of a topic."""
    members = {
        "name": use.topic,
        "connector": use.connector,
        "task": use.task,
        "discoverTimestamp": use.discovered_ms,
    }
    return compact_json({"topic": members})


def decode_status_record(key: bytes | None, value: bytes | None) -> StatusPut | TopicPut:
    """Read a record of the status topic; ``ProtocolError``: the key is unknown, or the value is not
    what the key promises."""
    name = key_text(key)
    if name.startswith(CONNECTOR):
        connector = _some(name.removeprefix(CONNECTOR), "connector")
        return StatusPut(connector, _status(value))
    if name.startswith(TASK):
        task = task_id(name.removeprefix(TASK))
        _some(task.connector, "connector")
        return StatusPut(task, _status(value))
    if name.startswith(TOPIC):
        # A topic's name cannot hold a colon, a connector's can.
        topic, colon, rest = name.removeprefix(TOPIC).partition(":")
        if not (colon + rest).startswith(OF_CONNECTOR):
            raise ProtocolError("key names a topic without a connector")
        connector = _some((colon + rest).removeprefix(OF_CONNECTOR), "connector")
        return TopicPut(connector, _some(topic, "topic"), _topic_use(value))
    raise ProtocolError("key is none of Connect's")


def _some(text: str, what: str) -> str:
    if not text:
        raise ProtocolError(f"key names no {what}")
    return text


def _status(value: bytes | None) -> StoredStatus | None:
    if value is None:
        return None
    members = json_object(value)
    word = text_member(members, "state")
    try:
        state = State(word)
    except ValueError:
        raise ProtocolError(f"state {word[:40]!r} is unknown") from None
    return StoredStatus(
        state=state,
        trace=optional_text_member(members, "trace"),
        worker_id=text_member(members, "worker_id"),
        generation=integer_member(members, "generation", INT32),
        version=optional_text_member(members, "version"),
    )


def _topic_use(value: bytes | None) -> TopicUse | None:
    if value is None:
        return None
    topic = json_object(value).get("topic")
    if not isinstance(topic, dict):
        raise ProtocolError("value has no object 'topic'")
    members = cast("dict[str, object]", topic)
    return TopicUse(
        text_member(members, "name"),
        text_member(members, "connector"),
        integer_member(members, "task", INT32),
        integer_member(members, "discoverTimestamp"),
    )


def may_write_safely(status: StoredStatus, known: StoredStatus | None) -> bool:
    """Whether no other worker has written a newer state (Java's ``putSafe``)."""
    return (
        known is None
        or known.worker_id == status.worker_id
        or known.generation <= status.generation
    )


@final
class StatusTable:
    """The newest record per key that was read."""

    def __init__(self) -> None:
        self._connectors: dict[str, StoredStatus] = {}
        self._tasks: dict[str, dict[int, StoredStatus]] = {}
        self._topics: dict[str, dict[str, TopicUse]] = {}

    def take(self, record: StatusPut | TopicPut) -> None:
        """Apply the next record of the topic."""
        if isinstance(record, TopicPut):
            topics = self._topics.setdefault(record.connector, {})
            _put(topics, record.topic, record.use)
        elif isinstance(record.work, TaskId):
            self._take_task(record.work, record.status)
        else:
            _put(self._connectors, record.work, record.status)
            # A connector that is gone has no tasks; their tombstones may come later, or never.
            if record.status is None:
                self._tasks.pop(record.work, None)

    def get(self, work: str | TaskId) -> StoredStatus | None:
        if isinstance(work, TaskId):
            return self._tasks.get(work.connector, {}).get(work.number)
        return self._connectors.get(work)

    def tasks(self, connector: str) -> Mapping[int, StoredStatus]:
        return dict(sorted(self._tasks.get(connector, {}).items()))

    def connectors(self) -> frozenset[str]:
        return frozenset(self._connectors)

    def topics(self, connector: str) -> Mapping[str, TopicUse]:
        return dict(self._topics.get(connector, {}))

    def _take_task(self, task: TaskId, status: StoredStatus | None) -> None:
        tasks = self._tasks.setdefault(task.connector, {})
        known = tasks.get(task.number)
        late = (
            status is not None
            and status.state is State.UNASSIGNED
            and known is not None
            and known.state is State.RUNNING
            and known.generation >= status.generation
        )
        # A shutdown may be reported after the task runs elsewhere already (KAFKA-9184).
        if not late:
            _put(tasks, task.number, status)


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
