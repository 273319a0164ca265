"""What people changed of one flow beside its file, in ``mm2py-flows.<source>.internal`` on the target.

Flow: file configs + records read -> ``effective``, ``held``, ``history``; a change -> overrides, then history ->
read back -> the listener. Whether this worker may write (it leads) is decided by who calls.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import ConfigError, RequestTimedOutError
from mm2py.mirror.flow_overrides import (
    Change,
    ConnectorEntry,
    FlowOverrideEntry,
    HistoryEntry,
    HoldEntry,
    OverrideEntry,
    Presence,
    Revision,
    UnknownFlowRecord,
    connector_key,
    decode_flow_record,
    encode_flow_record,
    flow_record_key,
    hold_key,
    override_key,
)
from mm2py.observability.logging import HIDDEN
from mm2py.protocol.records import Record
from mm2py.storage.kafka_log import KafkaLog, LogTail, LogWriter
from mm2py.storage.record_log import RecordLog
from mm2py.types import TopicPartition

__all__ = ["HISTORY_KEPT", "WRITE_S", "FlowOverridesStore", "kafka_flow_overrides"]

log = logging.getLogger(__name__)

WRITE_S: Final = 30.0
"""How long one change may take with all its records, as for the config topic."""

HISTORY_KEPT: Final = 200
"""Entries of the history; older ones get tombstones."""

_Puts = dict[str, FlowOverrideEntry | None]
"""Key -> what its record becomes; None is a tombstone."""


def _nothing_secret(key: str) -> bool:
    del key
    return False


@final
class FlowOverridesStore:
    """Implements ``mm2py.runtime.herder_api.Overrides``.

    Args:
        open_log: makes the log; it is given the handler of records.
        connectors: the file's connector configs, placeholders kept.
        names_a_secret: tells of a key whether its value must not be written here.
    """

    def __init__(
        self,
        open_log: Callable[[Callable[[int, Record], None]], RecordLog],
        connectors: Mapping[str, Mapping[str, str]],
        *,
        clock: Clock,
        names_a_secret: Callable[[str], bool] = _nothing_secret,
        write_s: float = WRITE_S,
    ) -> None:
        self._log = open_log(self._read)
        self._file = connectors
        self._clock = clock
        self._names_a_secret = names_a_secret
        self._write_s = write_s
        self._entries: dict[str, FlowOverrideEntry] = {}
        self._revision = 0
        self._live = False
        self._changed: Callable[[], None] | None = None
        # Revisions count up: one change at a time.
        self._writing = asyncio.Lock()

    # ---- Overrides

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        self._live = False
        self._entries.clear()
        self._revision = 0
        await self._log.start()
        self._live = True

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        self._live = False
        await self._log.stop()

    def listen(self, changed: Callable[[], None]) -> None:
        """Name who is told of every change read later; the history alone is none."""
        self._changed = changed

    def effective(self) -> Mapping[str, Mapping[str, str]]:
        """Return file and overrides by connector."""
        found = {name: dict(config) for name, config in self._file.items()}
        for entry in self._entries.values():
            if isinstance(entry, ConnectorEntry):
                if entry.state is Presence.DELETED:
                    found.pop(entry.name, None)
                elif entry.name not in self._file:
                    found[entry.name] = dict(entry.config)
        for entry in self._entries.values():
            if isinstance(entry, OverrideEntry) and entry.connector in found:
                if entry.value is None:
                    found[entry.connector].pop(entry.property, None)
                else:
                    found[entry.connector][entry.property] = entry.value
        return found

    def held(self) -> frozenset[TopicPartition]:
        """Return paused source partitions; -1 is a whole topic."""
        return frozenset(
            TopicPartition(entry.topic, entry.partition)
            for entry in self._entries.values()
            if isinstance(entry, HoldEntry)
        )

    async def record(
        self,
        name: str,
        before: Mapping[str, str] | None,
        after: Mapping[str, str] | None,
        *,
        actor: str,
    ) -> None:
        """Write the difference between a connector's config and the file, and the history.

        Raises:
            ConfigError: a secret would have to be written.
            RequestTimedOutError: the outcome is unknown.
        """
        async with self._writing:
            revision = self._next(actor)
            if after is None:
                action, puts = "delete", self._deleted(name, revision)
            else:
                action = "change" if before is not None else "create"
                self.refuse_secrets(name, after)
                puts = self._configured(name, after, revision)
            changes = self._changes(name, before, after)
            if puts or changes:
                await self._write(puts, action, name, changes, revision)

    # ---- what /flows sees and does beyond

    def refuse_secrets(self, name: str, after: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` for a config that holds a secret which the file does not."""
        file = self._file.get(name, {})
        for prop, value in after.items():
            plain = value != file.get(prop) and not _is_placeholder(value)
            if plain and self._names_a_secret(prop):
                raise ConfigError(
                    f"{prop} of connector {name} holds a secret, which is not stored over REST",
                    remedy="put it into the properties file, or refer to a config provider: ${...}",
                )

    def file_config(self, name: str) -> Mapping[str, str] | None:
        """Return what the file says of a connector, None where it has none of that name."""
        return self._file.get(name)

    def overrides(self, connector: str) -> Mapping[str, OverrideEntry]:
        """Return the overrides of a connector by property."""
        return {
            entry.property: entry
            for entry in self._entries.values()
            if isinstance(entry, OverrideEntry) and entry.connector == connector
        }

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return who changed what, newest first."""
        found = [entry for entry in self._entries.values() if isinstance(entry, HistoryEntry)]
        return tuple(sorted(found, key=_revision_number, reverse=True))

    async def hold(self, partition: TopicPartition, *, paused: bool, actor: str) -> None:
        """Pause or resume one source partition, or with number -1 a whole topic.

        To resume a topic resumes its partitions too. ``RequestTimedOutError``: the outcome is unknown.
        """
        async with self._writing:
            revision = self._next(actor)
            here = {key for key in self._holds(partition) if key in self._entries}
            key = hold_key(*partition)
            puts: _Puts
            if paused:
                entry = HoldEntry(
                    topic=partition.topic, partition=partition.partition, revision=revision
                )
                puts = {} if key in here else {key: entry}
            else:
                puts = dict.fromkeys(sorted(here))
            if not puts:
                return
            words = ("running", "paused") if paused else ("paused", "running")
            changes = tuple(Change(key=key, before=words[0], after=words[1]) for key in puts)
            await self._write(
                puts, "pause" if paused else "resume", _named(partition), changes, revision
            )

    async def note(self, action: str, target: str, *, actor: str) -> None:
        """Write a line of the history that changes nothing here (a target state, a restart)."""
        async with self._writing:
            await self._write({}, action, target, (), self._next(actor))

    # ---- changes as records

    def _next(self, actor: str) -> Revision:
        return Revision(number=self._revision + 1, by=actor, at_ms=self._clock.now_ms())

    def _holds(self, partition: TopicPartition) -> list[str]:
        if partition.partition >= 0:
            return [hold_key(*partition)]
        return [hold_key(*it) for it in self.held() if it.topic == partition.topic]

    def _deleted(self, name: str, revision: Revision) -> _Puts:
        puts: _Puts = {override_key(name, key): None for key in self.overrides(name)}
        key = connector_key(name)
        if name in self._file:
            entry = ConnectorEntry(name=name, state=Presence.DELETED, config={}, revision=revision)
            puts[key] = entry
        elif key in self._entries:
            puts[key] = None
        return puts

    def _configured(self, name: str, after: Mapping[str, str], revision: Revision) -> _Puts:
        file = self._file.get(name)
        key = connector_key(name)
        known = self._entries.get(key)
        if file is None:
            if isinstance(known, ConnectorEntry) and known.config == after:
                return {}
            return {
                key: ConnectorEntry(
                    name=name, state=Presence.ADDED, config=dict(after), revision=revision
                )
            }
        puts: _Puts = {} if known is None else {key: None}
        now = self.overrides(name)
        for prop in sorted({*file, *after, *now}):
            value, entry = after.get(prop), now.get(prop)
            if value == file.get(prop):
                if entry is not None:
                    puts[override_key(name, prop)] = None
            elif entry is None or entry.value != value:
                puts[override_key(name, prop)] = OverrideEntry(
                    connector=name, property=prop, value=value, revision=revision
                )
        return puts

    def _changes(
        self, name: str, before: Mapping[str, str] | None, after: Mapping[str, str] | None
    ) -> tuple[Change, ...]:
        presence = (None if before is None else "added", "deleted" if after is None else "added")
        found: list[Change] = []
        if presence[0] != presence[1]:
            found.append(Change(key=connector_key(name), before=presence[0], after=presence[1]))
        if before is None or after is None:
            return tuple(found)
        for prop in sorted({*before, *after}):
            texts = before.get(prop), after.get(prop)
            if texts[0] != texts[1]:
                if self._names_a_secret(prop):
                    texts = _hidden(texts[0]), _hidden(texts[1])
                found.append(Change(key=override_key(name, prop), before=texts[0], after=texts[1]))
        return tuple(found)

    async def _write(
        self,
        puts: _Puts,
        action: str,
        target: str,
        changes: tuple[Change, ...],
        revision: Revision,
    ) -> None:
        line = HistoryEntry(action=action, target=target, changes=changes, revision=revision)
        old = self.history()[HISTORY_KEPT - 1 :]
        records = {**puts, flow_record_key(line): line, **{flow_record_key(it): None for it in old}}
        try:
            async with asyncio.timeout(self._write_s):
                posted = [
                    self._log.post(
                        key.encode(), None if entry is None else encode_flow_record(entry)[1]
                    )
                    for key, entry in records.items()
                ]
                await asyncio.gather(*posted)
                await self._log.read_to_end(self._write_s)
        except (TimeoutError, RequestTimedOutError) as error:
            raise RequestTimedOutError(
                f"{action} of {target} was not confirmed by topic {self._log.topic} within"
                f" {self._write_s:g} s; whether it was written is unknown",
                remedy="look whether the change is there, and repeat it if it is not",
            ) from error

    # ---- reading

    def _read(self, _partition: int, record: Record) -> None:
        if record.key is None:
            return
        key = record.key.decode("utf-8", "replace")
        if record.value is None:
            entry = self._entries.pop(key, None)
            self._tell(entry)
            return
        found = decode_flow_record(record.key, record.value)
        if isinstance(found, UnknownFlowRecord):
            log.warning(
                "record is ignored topic=%s offset=%d cause=%s",
                self._log.topic,
                record.offset,
                found.reason,
            )
            return
        self._entries[key] = found
        self._revision = max(self._revision, found.revision.number)
        self._tell(found)

    def _tell(self, entry: FlowOverrideEntry | None) -> None:
        if not self._live or entry is None or isinstance(entry, HistoryEntry):
            return
        if self._changed is not None:
            self._changed()


def kafka_flow_overrides(
    topic: str,
    connectors: Mapping[str, Mapping[str, str]],
    *,
    prepare: Callable[[], Awaitable[int]],
    writer: Callable[[], LogWriter],
    reader: Callable[[], LogTail],
    clock: Clock,
    names_a_secret: Callable[[str], bool] = _nothing_secret,
) -> FlowOverridesStore:
    """Return the store of one flow over Kafka; arguments as of ``KafkaLog``. Opens no connection."""
    return FlowOverridesStore(
        lambda handle: KafkaLog(
            topic, prepare=prepare, writer=writer, reader=reader, handle=handle
        ),
        connectors,
        clock=clock,
        names_a_secret=names_a_secret,
    )


def _revision_number(entry: HistoryEntry) -> int:
    return entry.revision.number


def _is_placeholder(value: str) -> bool:
    return value.startswith("${") and value.endswith("}")


def _hidden(value: str | None) -> str | None:
    return value if value is None or _is_placeholder(value) else HIDDEN


def _named(partition: TopicPartition) -> str:
    return partition.topic if partition.partition < 0 else str(partition)
