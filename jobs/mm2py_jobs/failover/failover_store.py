"""The failover topic of one cluster (``mm2py-failover.<alias>.internal``): the newest failover into it, and the fence on it.

Flow: ``start`` -> read to its end -> ``failover``, ``fence``; ``claim`` -> ``write``, which only the newest driver can. A fold over a
``Table``; what the records mean is in ``mm2py.mirror.failovers``.
"""

import logging
from typing import Final, final

from mm2py.errors import ProtocolError
from mm2py.mirror.failovers import (
    Failover,
    FailoverRecord,
    Fence,
    decode_failover,
    encode_failover,
)
from mm2py.mirror.versioned_json import unreadable
from mm2py.protocol.records import Record
from mm2py.storage.privileged_writer import Claim, PrivilegedWriter
from mm2py.storage.table import Table

log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""Longest read to the end of the topic (``default.api.timeout.ms``)."""


@final
class FailoverStore:
    """The newest record of each key.

    Args:
        table: the topic; read by ``refresh``.
        writer: writes under a driver's transactional id; None only reads, and writes fences without one.
    """

    def __init__(self, table: Table, writer: PrivilegedWriter | None = None) -> None:
        self._table, self._writer = table, writer
        self._records: dict[bytes, FailoverRecord | ProtocolError] = {}
        self._claim = None if writer is None else Claim(writer)

    async def start(self) -> None:
        """Read the topic to its end; it is created where it does not exist.

        Raises:
            RetriableError: not now; a later call begins anew.
        """
        self._records.clear()
        await self._table.start(self._take)

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        await self._table.stop()
        if self._writer is not None:
            await self._writer.close()

    async def refresh(self) -> None:
        """Read the topic to its end of now."""
        await self._table.read_to_end(READ_S)

    @property
    def failover(self) -> Failover | None:
        """The newest failover into this cluster, None if there was none.

        Raises:
            FatalError: it is of a version that this program cannot read.
        """
        found = self._readable(b"failover")
        return found if isinstance(found, Failover) else None

    @property
    def fence(self) -> Fence | None:
        """The fence on this cluster, None where there is none; raises as ``failover``."""
        found = self._readable(b"fence")
        return found if isinstance(found, Fence) and found.rules else None

    @property
    def claimed(self) -> bool:
        """Whether no other driver has claimed the topic since, as far as is known, and what these wrote before is read."""
        return self._claim is not None and self._claim.holds

    async def claim(self) -> None:
        """Become the only driver: one before can write nothing more.

        Raises:
            RetriableError: not now.
        """
        assert self._claim is not None
        await self._claim.take(self.refresh)

    async def write(self, failover: Failover) -> None:
        """Write the failover in a transaction.

        Raises:
            RetriableError: not now, or another driver has claimed it; ``claimed`` is lost.
        """
        assert self._writer is not None
        await self._writer.write([encode_failover(failover)])

    async def put_fence(self, fence: Fence) -> None:
        """Write which rules are in force on this cluster; returns when that is acknowledged.

        Raises:
            RetriableError: not now; or this is a driver's store, and another one has claimed it.
        """
        if self._writer is None:
            await self._table.post([encode_failover(fence)])
        else:
            await self._writer.write([encode_failover(fence)])
        self._records[b"fence"] = fence

    def _take(self, _partition: int, record: Record) -> None:
        key = bytes(record.key or b"")
        if record.value is None:
            self._records.pop(key, None)
            return
        try:
            self._records[key] = decode_failover(key, bytes(record.value))
        except ProtocolError as error:
            log.warning("record cannot be read offset=%d cause=%s", record.offset, error)
            self._records[key] = error  # an older one does not count any more

    def _readable(self, key: bytes) -> FailoverRecord | None:
        record = self._records.get(key)
        if isinstance(record, ProtocolError):
            raise unreadable("the failover topic", record)
        return record
