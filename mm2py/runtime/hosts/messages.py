"""What a worker and a task host in a child process say to each other.

Flow: worker -> ``ToHost`` -> host; host -> ``FromHost`` -> worker. Plain data only, never a record's
bytes; ``id`` joins a ``Done`` to what it answers. No I/O; bytes are in ``host_frames``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, cast

from pydantic import BeforeValidator, PlainSerializer

from mm2py.api.context import LossEvent
from mm2py.observability.metrics import PartitionSnapshot
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.types import FlowName, State, TaskId, TopicPartition

__all__ = [
    "Bye",
    "CloseFlow",
    "Done",
    "FirstRecord",
    "FlowSpec",
    "FromHost",
    "Hello",
    "Hold",
    "Incarnation",
    "IncarnationsAnswer",
    "IncarnationsQuestion",
    "LeaseUntil",
    "LedgerEntry",
    "LedgerOk",
    "LogLevel",
    "LogLine",
    "Meters",
    "OpenFlow",
    "PauseTask",
    "Resume",
    "StartTask",
    "StopTask",
    "Suspend",
    "TaskStatus",
    "ToHost",
]


def _id_text(topic_id: bytes) -> str:
    return topic_id.hex()


def _id_bytes(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


def _ids_list(known: Mapping[TopicPartition, bytes]) -> list[tuple[str, int, str]]:
    return [(tp.topic, tp.partition, topic_id.hex()) for tp, topic_id in known.items()]


def _ids_map(value: object) -> object:
    if not isinstance(value, list):
        return value
    rows = cast("list[tuple[str, int, str]]", value)
    return {(topic, partition): bytes.fromhex(text) for topic, partition, text in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec:
    """Everything a host needs of a flow before its first task; resolved texts."""

    flow: FlowName
    worker: Mapping[str, str] = field(repr=False)
    offset_topic: str
    secrets: tuple[str, ...] = field(repr=False)
    log_level: str
    suspended: bool


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """``flow``: the first message of a flow's channel."""

    id: int
    spec: FlowSpec


@dataclass(frozen=True, slots=True)
class StartTask:
    """``start``."""

    id: int
    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class StopTask:
    """``stop``: in order, cut off after ``timeout_ms``."""

    id: int
    task: TaskId
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class PauseTask:
    """``pause``: ``paused`` False lets it go on."""

    id: int
    task: TaskId
    paused: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """``hold``: all paused source partitions, -1 for a whole topic."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Suspend:
    """``suspend``."""


@dataclass(frozen=True, slots=True)
class Resume:
    """``resume``."""


@dataclass(frozen=True, slots=True)
class LeaseUntil:
    """``lease``: membership is proven until ``ends_s``.

    On the monotonic clock, which all processes of a machine share: a host that was frozen reads old messages.
    """

    ends_s: float


@dataclass(frozen=True, slots=True)
class LogLevel:
    """``log_level``: of one logger and those below it."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True)
class LedgerOk:
    """``ledger_ok``: the ledger entry ``seq`` is written; positions may pass it."""

    seq: int


@dataclass(frozen=True, slots=True)
class IncarnationsAnswer:
    """``incarnations``: which topic id stored positions belong to."""

    id: int
    known: Annotated[
        Mapping[TopicPartition, bytes], PlainSerializer(_ids_list), BeforeValidator(_ids_map)
    ]


@dataclass(frozen=True, slots=True)
class CloseFlow:
    """``close``: stop the flow's tasks in order and close what it opened; the last message of a channel."""

    id: int


@dataclass(frozen=True, slots=True)
class Bye:
    """``bye``: stop all tasks of all flows in order and end."""

    id: int


ToHost = (
    OpenFlow
    | StartTask
    | StopTask
    | PauseTask
    | Hold
    | Suspend
    | Resume
    | LeaseUntil
    | LogLevel
    | LedgerOk
    | IncarnationsAnswer
    | CloseFlow
    | Bye
)
"""Every message of the worker."""


@dataclass(frozen=True, slots=True)
class Hello:
    """``hello``: the host runs; its version must be the worker's."""

    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Done:
    """``done``: the message ``id`` was carried out, or why not."""

    id: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """``status``: a task changed its state; the error is empty unless it is FAILED.

    ``error_kind`` is the name of a class of ``mm2py.errors``, or of the foreign class.
    """

    task: TaskId
    state: State
    error_kind: str = ""
    error_message: str = ""
    trace: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Meters:
    """``meters``: partitions that changed, each second; empty, after quiet ones, is a sign of life.

    ``gone`` are the last words of partitions whose task ended; they come before ``partitions``.
    """

    partitions: tuple[PartitionSnapshot, ...] = ()
    gone: tuple[PartitionSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """``topic``: the task's first record of a target topic was acknowledged."""

    task: TaskId
    topic: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """``ledger``: an event to write; the host holds positions back until ``LedgerOk``."""

    seq: int
    event: LossEvent


@dataclass(frozen=True, slots=True)
class IncarnationsQuestion:
    """``incarnations``: asks for an ``IncarnationsAnswer``."""

    id: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """``incarnation``: which topic id the stored position of a partition belongs to."""

    partition: TopicPartition
    topic_id: Annotated[bytes, PlainSerializer(_id_text), BeforeValidator(_id_bytes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """``log``: one line, with the scope it was written in; ``trace`` is empty without an error."""

    level: str
    logger: str
    scope: str
    text: str
    trace: str = ""


FromHost = (
    Hello
    | Done
    | TaskStatus
    | Meters
    | FirstRecord
    | LedgerEntry
    | IncarnationsQuestion
    | Incarnation
    | LogLine
)
"""Every message of the host."""
