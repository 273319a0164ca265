"""Kafka Connect's group protocol: the metadata and assignments that workers exchange in JoinGroup
and SyncGroup.

Flow: ``WorkerMetadata`` <-> bytes of JoinGroup, ``Assignment`` <-> bytes of SyncGroup. Java:
``ConnectProtocol`` (v0, eager) and ``IncrementalCooperativeConnectProtocol`` (v1, v2; KIP-415,
KIP-507). Assignments are computed by ``mm2py.runtime.group.assignor``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from struct import Struct, error
from typing import Final

from mm2py.errors import ProtocolError
from mm2py.protocol.groups import GroupProtocol
from mm2py.types import TaskId, Work

PROTOCOL_TYPE: Final = "connect"

PROTOCOL_VERSIONS: Final = {"sessioned": 2, "compatible": 1, "default": 0}
"""Group protocols in Connect's order of preference, with the version of each."""

CONFIG_MISMATCH: Final = 1
"""Error of an assignment whose leader could not read the config topic far enough."""

_MARK: Final = "mm2py-"
"""Prefix of Connect's names in our own offers: a group that speaks a prefixed name has mm2py
workers only."""

_OFFERED: Final = {
    "sessioned": ("sessioned", "compatible", "default"),
    "compatible": ("compatible", "default"),
    "eager": ("default",),
}

CONNECTOR_ITSELF: Final = -1
"""Placeholder of the connector instance in a task list."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


@dataclass(frozen=True, slots=True)
class ConnectorTasks:
    """Tasks of one connector; -1 among them is the connector instance."""

    connector: str
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leader's assignment to one worker; ``revoked`` and ``delay_ms`` exist from version 1
    on."""

    version: int
    leader: str
    leader_url: str
    config_offset: int
    assigned: tuple[ConnectorTasks, ...] = ()
    revoked: tuple[ConnectorTasks, ...] = ()
    delay_ms: int = 0
    error: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """Metadata of a worker in its JoinGroup; ``allocation`` exists from version 1 on."""

    version: int
    url: str
    config_offset: int
    allocation: Assignment | None = None


def offers(connect_protocol: str, metadata: WorkerMetadata) -> tuple[GroupProtocol, ...]:
    """Return what a worker offers in JoinGroup: our names first, then Java's with the same bytes.

    The coordinator picks a name that all members offer, so one of Java's means that a member is not
    ours.

    Raises:
        ValueError: ``connect_protocol`` is no value of ``connect.protocol``.
    """
    if connect_protocol not in _OFFERED:
        raise ValueError(f"no Connect protocol: {connect_protocol}")
    names = _OFFERED[connect_protocol]
    data = {name: encode_metadata(_versioned(metadata, PROTOCOL_VERSIONS[name])) for name in names}
    # The coordinator chooses by votes among the names
    # common to all, each member voting for its first.
    return tuple(GroupProtocol(mark + name, data[name]) for mark in (_MARK, "") for name in names)


def is_ours(protocol_name: str) -> bool:
    """Return whether all members of a group that chose this protocol are mm2py workers."""
    return protocol_name.removeprefix(_MARK) in PROTOCOL_VERSIONS and protocol_name.startswith(
        _MARK
    )


def version_of(protocol_name: str) -> int:
    """Return the version that a protocol's bytes carry.

    Raises:
        ProtocolError: it is not Connect's.
    """
    version = PROTOCOL_VERSIONS.get(protocol_name.removeprefix(_MARK))
    if version is None:
        raise ProtocolError(
            f"the group speaks '{protocol_name}', which is not a protocol of Connect",
            remedy="make sure that only Connect workers use this group.id",
        )
    return version


def connector_tasks(work: Work) -> tuple[ConnectorTasks, ...]:
    """Return work in the form of an assignment."""
    by_connector: dict[str, list[int]] = {name: [CONNECTOR_ITSELF] for name in work.connectors}
    for task in sorted(work.tasks):
        by_connector.setdefault(task.connector, []).append(task.number)
    return tuple(ConnectorTasks(name, tuple(by_connector[name])) for name in sorted(by_connector))


def work_of(items: Sequence[ConnectorTasks]) -> Work:
    """Return the work of an assignment."""
    tasks = {TaskId(item.connector, number) for item in items for number in item.tasks}
    itself = {task for task in tasks if task.number == CONNECTOR_ITSELF}
    return Work(frozenset(task.connector for task in itself), frozenset(tasks - itself))


def encode_metadata(metadata: WorkerMetadata) -> bytes:
    """Return the bytes of JoinGroup."""
    out = _INT16.pack(metadata.version) + _string(metadata.url)
    out += _INT64.pack(metadata.config_offset)
    # Eager (before KIP-415): no allocation.
    if metadata.version == 0:
        return out
    # Null bytes, as Java writes them for a worker that has no assignment yet.
    if metadata.allocation is None:
        return out + _INT32.pack(-1)
    allocation = encode_assignment(metadata.allocation)
    return out + _INT32.pack(len(allocation)) + allocation


def decode_metadata(data: bytes) -> WorkerMetadata:
    """Decode the metadata of a worker.

    Raises:
        ProtocolError: the bytes are not Connect's.
    """
    read = _ByteReader(data, "worker metadata")
    version, url, config_offset = read.int16(), read.string(), read.int64()
    # Eager: every worker gives up all of its work before it joins.
    if version == 0:
        return WorkerMetadata(version, url, config_offset)
    allocation = read.data()
    return WorkerMetadata(
        version, url, config_offset, decode_assignment(allocation) if allocation else None
    )


def encode_assignment(assignment: Assignment) -> bytes:
    """Return the bytes of SyncGroup."""
    out = _INT16.pack(assignment.version) + _INT16.pack(assignment.error)
    out += _string(assignment.leader) + _string(assignment.leader_url)
    out += _INT64.pack(assignment.config_offset) + _connectors(assignment.assigned)
    # Eager: nothing is left to be revoked when a round begins.
    if assignment.version == 0:
        return out
    return out + _connectors(assignment.revoked) + _INT32.pack(assignment.delay_ms)


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment.

    Raises:
        ProtocolError: the bytes are not Connect's.
    """
    read = _ByteReader(data, "assignment")
    version, code = read.int16(), read.int16()
    leader, leader_url, config_offset = read.string(), read.string(), read.int64()
    assigned = read.connectors()
    # KIP-415: what to give back, and scheduled.rebalance.max.delay.ms that is left.
    revoked, delay_ms = ((), 0) if version == 0 else (read.connectors(), read.int32())
    return Assignment(version, leader, leader_url, config_offset, assigned, revoked, delay_ms, code)


def _versioned(metadata: WorkerMetadata, version: int) -> WorkerMetadata:
    allocation = metadata.allocation
    if allocation is not None:
        allocation = replace(allocation, version=version)
    return replace(metadata, version=version, allocation=allocation)


def _string(value: str) -> bytes:
    data = value.encode()
    return _INT16.pack(len(data)) + data


def _connectors(connectors: Iterable[ConnectorTasks]) -> bytes:
    items = [
        _string(item.connector)
        + _INT32.pack(len(item.tasks))
        + b"".join(_INT32.pack(task) for task in item.tasks)
        for item in connectors
    ]
    return _INT32.pack(len(items)) + b"".join(items)


class _ByteReader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._position, self._what = data, 0, what

    def _number(self, layout: Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except error:
            raise self._damaged() from None
        self._position += layout.size
        return int(value)

    def _raw(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self._damaged()
        self._position, start = end, self._position
        return self._data[start:end]

    def _damaged(self) -> ProtocolError:
        return ProtocolError(
            f"the Connect {self._what} of a group member is cut off after {len(self._data)} bytes",
            remedy="make sure that only Connect workers use this group.id",
        )

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        try:
            return self._raw(max(0, self.int16())).decode()
        except UnicodeDecodeError:
            raise self._damaged() from None

    def data(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._raw(size)

    def connectors(self) -> tuple[ConnectorTasks, ...]:
        # A length of -1, Java's null, is an empty list.
        return tuple(
            ConnectorTasks(self.string(), tuple(self.int32() for _ in range(self.int32())))
            for _ in range(self.int32())
        )
