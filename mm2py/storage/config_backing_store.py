"""The store of connector configs, a fold over a table of one partition (Java's
``KafkaConfigBackingStore``).

Flow: ``put_...`` -> ``ConfigRecord``s -> ``Table`` -> read back -> ``ConfigFold`` -> ``snapshot``
and ``ConfigListener``. A change of several records is one batch. Records that are not in form are
logged once and ignored. The herder decides which worker may write.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from mm2py.errors import ProtocolError, RequestTimedOutError
from mm2py.protocol.records import Record
from mm2py.storage.config_fold import ConfigFold, ConfigListener
from mm2py.storage.config_state import ConfigSnapshot, RestartRequest, SessionKey
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
    is_state,
)
from mm2py.storage.privileged_writer import PrivilegedWriter
from mm2py.storage.table import Table, batched
from mm2py.types import TargetState, TaskId

log = logging.getLogger(__name__)

WRITE_S: Final = 30.0
"""How long one action may take with all its records (``READ_WRITE_TOTAL_TIMEOUT_MS``)."""


@final
class ConfigBackingStore:
    """Connector configs of one group.

    Every ``put_...`` and ``remove_connector`` returns when its records were read back. After
    ``write_s`` it takes them back and raises ``RequestTimedOutError``: whether they had been
    written before is unknown.

    Args:
        table: the config topic.
        write_s: how long one action may take.
        privileged: writes what only a leader may write, in transactions; None where its records are
            as all others.
    """

    def __init__(
        self, table: Table, *, write_s: float = WRITE_S, privileged: PrivilegedWriter | None = None
    ) -> None:
        self._table = table
        self.privileged = privileged
        self._fold = ConfigFold()
        self._damaged: dict[bytes, str] = {}
        """Keys of unreadable records, and why: the record before counts, until compaction."""
        self._listener: ConfigListener | None = None
        self._write_s = write_s
        self._changed = asyncio.Event()
        # The batches of one action stay together: two sets of task configs must not mix.
        self._writing = asyncio.Lock()

    async def start(self, listener: ConfigListener) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now.

        What was there before is in the snapshot; the listener gets what comes later.
        """
        self._listener = None
        self._fold = ConfigFold()
        self._damaged.clear()
        # Without a listener: what was there before is state, not news.
        await self._table.start(self._read)
        self._listener = listener

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        self._listener = None
        if self.privileged is not None:
            await self.privileged.close()
        await self._table.stop()

    def snapshot(self) -> ConfigSnapshot:
        return self._fold.snapshot()

    def problems(self) -> Mapping[str, str]:
        """Return the unreadable configs and states; empty where there are none."""
        if not self._damaged:
            return {}
        damaged = sorted(self._damaged.items())
        keys = ", ".join(f"{key.decode(errors='replace')} ({reason})" for key, reason in damaged)
        return {
            f"topic {self._table.topic}": "records are damaged, what was before them counts: "
            f"{keys}; put the config or state once more, or write a tombstone for the key"
        }

    async def refresh(self, timeout_s: float) -> None:
        """Read to the end of now; ``RequestTimedOutError`` when that takes longer."""
        await self._table.read_to_end(timeout_s)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition`` is true, evaluated now and after every change that is read;
        False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    # Between the check and the wait nothing else
                    # runs on the loop, so no change is missed.
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def put_connector(
        self, name: str, config: Mapping[str, str | None], target: TargetState | None = None
    ) -> None:
        """Write a connector config; ``target`` goes before it in the same batch."""
        # KIP-980: first, or a worker would start a connector that is created STOPPED.
        targets = [TargetPut(name, target)] if target is not None else []
        await self._write(f"config of connector {name}", *targets, ConnectorPut(name, dict(config)))

    async def remove_connector(self, name: str) -> None:
        """Write the tombstones of a connector and of its target state."""
        # As Java's removeConnectorConfig: a state that stayed
        # would apply to a later connector of the name.
        records = ConnectorPut(name, None), TargetPut(name, None)
        await self._write(f"removal of connector {name}", *records)

    async def put_tasks(
        self,
        name: str,
        configs: Sequence[Mapping[str, str]],
        beside: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Write all task configs of a connector, and their commit with properties ``beside``.

        Configs that do not fit one batch go in several: without the commit they are not in force.
        """
        tasks = [TaskPut(TaskId(name, n), dict(config)) for n, config in enumerate(configs)]
        commit = Commit(name, len(tasks), beside)
        await self._write(f"task configs of connector {name}", *tasks, commit)

    async def put_target(self, name: str, state: TargetState) -> None:
        await self._write(f"target state of connector {name}", TargetPut(name, state))

    async def put_restart(self, request: RestartRequest) -> None:
        """Request a restart from every worker."""
        await self._write(f"restart of connector {request.connector}", request)

    async def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new session key to every worker."""
        await self._write("session key", key)

    async def put_fenced(self, name: str, task_count: int) -> None:
        """Note for how many tasks earlier producers are fenced (Java's task count record)."""
        await self._write(f"task count of connector {name}", Fenced(name, task_count))

    async def put_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker."""
        await self._write(f"level of logger {namespace}", LoggerLevel(namespace, level))

    async def _write(self, what: str, *records: ConfigRecord) -> None:
        """Write records in order and read them back."""
        try:
            async with asyncio.timeout(self._write_s), self._writing:
                for batch in batched([encode_config_record(record) for record in records]):
                    if self.privileged is None or _any_worker_writes(records):
                        await self._table.post(batch)
                    else:
                        await self.privileged.write(batch)
                await self._table.read_to_end(self._write_s)
        except (TimeoutError, RequestTimedOutError) as error:
            raise RequestTimedOutError(
                f"{what} was not confirmed by topic {self._table.topic} within {self._write_s:g} s;"
                " whether it was written is unknown",
                remedy="look whether the change is there, and repeat it if it is not",
            ) from error

    def _read(self, _partition: int, record: Record) -> None:
        self._fold.advance(record.offset)
        self._damaged.pop(record.key or b"", None)
        try:
            event = self._fold.take(decode_config_record(record.key, record.value))
        except ProtocolError as error:
            log.warning(
                "config record is ignored topic=%s offset=%d cause=%s",
                self._table.topic,
                record.offset,
                error,
            )
            if record.value is not None and is_state(record.key):
                self._damaged[record.key or b""] = error.message
            return
        self._changed.set()
        if event is not None and self._listener is not None:
            self._listener(event)


def _any_worker_writes(records: Sequence[ConfigRecord]) -> bool:
    return all(isinstance(record, TargetPut | LoggerLevel) for record in records)
