"""Config store over one topic of one partition: the write sequences of Java's ``KafkaConfigBackingStore``.

Flow: ``put_...`` -> ``ConfigRecord``s -> ``RecordLog`` -> read back -> ``ConfigFold`` -> ``ConfigListener``.
Records that are not in form are named in the log once and ignored. It decides nothing.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, final

from mm2py.errors import ProtocolError, RequestTimedOutError
from mm2py.protocol.records import Record
from mm2py.storage.config_fold import ConfigFold, notify
from mm2py.storage.config_state import ConfigListener, ConfigSnapshot, RestartRequest, SessionKey
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    LoggerLevel,
    TargetPut,
    TaskPut,
    decode_config_record,
    encode_config_record,
)
from mm2py.storage.kafka_log import KafkaLog, LogTail, LogWriter
from mm2py.storage.record_log import RecordLog
from mm2py.types import TargetState, TaskId

__all__ = ["KafkaConfigBackingStore", "LogConfigBackingStore"]

log = logging.getLogger(__name__)

WRITE_S: Final = 30.0
"""How long one action may take with all its records (``READ_WRITE_TOTAL_TIMEOUT_MS``)."""


class LogConfigBackingStore:
    """Implements ``ConfigBackingStore`` over a ``RecordLog``.

    Args:
        open_log: makes the log; it is given the handler of records, called in order.
        write_s: how long one action may take.
    """

    def __init__(
        self,
        open_log: Callable[[Callable[[int, Record], None]], RecordLog],
        *,
        write_s: float = WRITE_S,
    ) -> None:
        self._log = open_log(self._read)
        self._fold = ConfigFold()
        self._listener: ConfigListener | None = None
        self._write_s = write_s
        # The records of one action stand together; two sets of task configs must not mix.
        self._writing = asyncio.Lock()

    async def start(self, listener: ConfigListener) -> None:
        """Read the topic to its end; what was there before is in the snapshot, not told."""
        self._listener = None
        self._fold = ConfigFold()
        await self._log.start()
        self._listener = listener

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        self._listener = None
        await self._log.stop()

    def snapshot(self) -> ConfigSnapshot:
        """Return what has been read so far."""
        return self._fold.snapshot()

    async def refresh(self, timeout_s: float) -> None:
        """Read to the end of now; ``RequestTimedOutError`` when that takes longer."""
        await self._log.read_to_end(timeout_s)

    async def put_connector(
        self, name: str, config: Mapping[str, str | None], target: TargetState | None = None
    ) -> None:
        """Write a connector config; ``target`` is written before it."""
        wanted = [TargetPut(name, target)] if target is not None else []
        await self._write(f"config of connector {name}", *wanted, ConnectorPut(name, dict(config)))

    async def remove_connector(self, name: str) -> None:
        """Write the tombstones of a connector and of its target state."""
        records = ConnectorPut(name, None), TargetPut(name, None)
        await self._write(f"removal of connector {name}", *records)

    async def put_tasks(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Write all task configs of a connector and their commit; none is a commit of 0 tasks."""
        tasks = [TaskPut(TaskId(name, n), dict(config)) for n, config in enumerate(configs)]
        async with self._action(f"task configs of connector {name}"):
            await self._read_back()
            if tasks:
                await self._send(*tasks)
            await self._send(Commit(name, len(tasks)))

    async def put_target(self, name: str, state: TargetState) -> None:
        """Write what a connector is wanted to be."""
        await self._write(f"target state of connector {name}", TargetPut(name, state))

    async def put_restart(self, request: RestartRequest) -> None:
        """Ask every worker for a restart."""
        await self._write(f"restart of connector {request.connector}", request)

    async def put_session_key(self, key: SessionKey) -> None:
        """Hand a new session key to every worker."""
        await self._write("session key", key)

    async def put_fenced(self, name: str, task_count: int) -> None:
        """Note for how many tasks earlier producers are fenced (Java's task count record)."""
        await self._write(f"task count of connector {name}", Fenced(name, task_count))

    async def put_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker."""
        await self._write(f"level of logger {namespace}", LoggerLevel(namespace, level))

    async def _write(self, what: str, *records: ConfigRecord) -> None:
        async with self._action(what):
            await self._send(*records)

    @asynccontextmanager
    async def _action(self, what: str) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._write_s), self._writing:
                yield
        except (TimeoutError, RequestTimedOutError) as error:
            raise RequestTimedOutError(
                f"{what} was not confirmed by topic {self._log.topic} within {self._write_s:g} s;"
                " whether it was written is unknown",
                remedy="look whether the change is there, and repeat it if it is not",
            ) from error

    async def _send(self, *records: ConfigRecord) -> None:
        """Write records in order, wait for all, and read them back."""
        posted = [self._log.post(*encode_config_record(record)) for record in records]
        await asyncio.gather(*posted)
        await self._read_back()

    async def _read_back(self) -> None:
        await self._log.read_to_end(self._write_s)

    def _read(self, _partition: int, record: Record) -> None:
        self._fold.advance(record.offset)
        try:
            event = self._fold.take(decode_config_record(record.key, record.value))
        except ProtocolError as error:
            log.warning(
                "config record is ignored topic=%s offset=%d cause=%s",
                self._log.topic,
                record.offset,
                error,
            )
            return
        if event is not None and self._listener is not None:
            notify(self._listener, event)


@final
class KafkaConfigBackingStore(LogConfigBackingStore):
    """The config topic of one group; arguments as of ``KafkaLog``."""

    def __init__(
        self,
        topic: str,
        *,
        prepare: Callable[[], Awaitable[int]],
        writer: Callable[[], LogWriter],
        reader: Callable[[], LogTail],
    ) -> None:
        super().__init__(
            lambda handle: KafkaLog(
                topic, prepare=prepare, writer=writer, reader=reader, handle=handle
            )
        )
