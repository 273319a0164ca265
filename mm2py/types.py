"""The few value types that every layer speaks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, NewType, TypeGuard

ClusterAlias = NewType("ClusterAlias", str)
"""Name of a cluster in the user's properties file."""

EARLIEST: Final = -2
"""ListOffsets timestamp of the log start (``ListOffsetsRequest.EARLIEST_TIMESTAMP``)."""

MAX_TIMESTAMP: Final = -3
"""The offset of the record with the largest timestamp, brokers from 3.0 (KIP-734)."""

LATEST: Final = -1
"""ListOffsets timestamp of the log end (``ListOffsetsRequest.LATEST_TIMESTAMP``)."""

NO_PRODUCER_ID: Final = -1
"""In batches of clients without idempotence (``RecordBatch.NO_PRODUCER_ID``), and wherever no id is
known or kept."""

LONGEST_TOPIC_NAME: Final = 249
"""In characters (``org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH``)."""

TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_TOPIC_NAME}}}")
"""A legal name of a topic, but for ``.`` and ``..``, which ``is_topic_name`` knows."""

_FIRST_ASKED: Final = -100
"""Below all timestamps that ListOffsets gives a meaning of its own."""


def is_topic_name(name: object) -> TypeGuard[str]:
    """Whether brokers accept it as the name of a topic (``Topic.validate``)."""
    return (
        isinstance(name, str) and name not in {".", ".."} and TOPIC_NAME.fullmatch(name) is not None
    )


@lru_cache(maxsize=20_000)
def names_a_topic(name: str) -> bool:
    """``is_topic_name`` of what is asked for each partition each time that a flow is looked at."""
    return is_topic_name(name)


def start_at_time(timestamp_ms: int) -> int:
    """Return the start position "first record at or after this time", which a leader has to be
    asked for as for EARLIEST."""
    return _FIRST_ASKED - 2 * timestamp_ms


def start_at_offset(offset: int) -> int:
    """Return the start position "this offset, or the end of the log that is nearer to it"."""
    return _FIRST_ASKED - 2 * offset - 1


def asked_start(position: int) -> tuple[int | None, int | None]:
    """Return the time in ms, or the offset, that a start position asks for; neither for any other
    position."""
    if position > _FIRST_ASKED:
        return None, None
    number, is_offset = divmod(_FIRST_ASKED - position, 2)
    return (None, number) if is_offset else (number, None)


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Java does, ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class FlowName(NamedTuple):
    """An ordered pair of clusters (Java's ``SourceAndTarget``); prints as ``A->B``."""

    source: ClusterAlias
    target: ClusterAlias

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


class TaskId(NamedTuple):
    """One task of one connector (Java's ``ConnectorTaskId``); prints as ``connector-0``."""

    connector: str
    number: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.number}"


class State(StrEnum):
    """Connect's states of a connector or task (``AbstractStatus.State``)."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


class TargetState(StrEnum):
    """What a connector is wanted to be (Java's ``TargetState``)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    @property
    def state(self) -> "State":
        """The state that this leads to."""
        return State.RUNNING if self is TargetState.STARTED else State[self.name]


INITIAL_STATES: Final[Mapping[str, TargetState]] = {it.state.value: it for it in TargetState}
"""By ``initial_state`` of a request or a file (KIP-980)."""


@dataclass(frozen=True, slots=True)
class Work:
    """A set of connector instances and tasks, as workers own it and hand it over."""

    connectors: frozenset[str] = frozenset()
    tasks: frozenset[TaskId] = frozenset()

    def __or__(self, other: "Work") -> "Work":
        return Work(self.connectors | other.connectors, self.tasks | other.tasks)

    def __and__(self, other: "Work") -> "Work":
        return Work(self.connectors & other.connectors, self.tasks & other.tasks)

    def __sub__(self, other: "Work") -> "Work":
        return Work(self.connectors - other.connectors, self.tasks - other.tasks)

    def __len__(self) -> int:
        return len(self.connectors) + len(self.tasks)
