"""Changes made to one flow over REST, in ``mm2py-flows.<source>.internal`` on the target.

Flow: file configs + records read -> ``effective``, ``held``, ``history``; a change -> overrides,
then history -> read back -> the listener. Whether this worker may write (it leads) is decided by
who calls.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Final, Protocol, final

from mm2py.clock import Clock
from mm2py.config.limits import MAX_CONFIG_BYTES
from mm2py.config.remote_allow_list import reaches_a_cluster
from mm2py.config.secret_names import names_a_secret
from mm2py.errors import ConfigError, Mm2pyError, RequestTimedOutError, RetriableError
from mm2py.mirror.flow_overrides import (
    REVISIONS,
    Change,
    FlowOverrideEntry,
    HistoryEntry,
    Revision,
    UnknownFlowRecord,
    decode_flow_record,
    encode_flow_record,
    flow_record_key,
    is_setting,
)
from mm2py.mirror.flow_state import Configs, FlowPicture, FlowState, Puts, is_placeholder
from mm2py.protocol.records import Record
from mm2py.storage.table import Entry, Table, batched
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

WRITE_S: Final = 30.0
"""How long one change may take with all its records, as for the config topic."""

HISTORY_KEPT: Final = 200
"""Entries of the history; older ones get tombstones."""

Edit = Callable[[FlowPicture], FlowPicture]
"""Maps the settings in force to the new ones."""


class ChangeGuard(Protocol):
    """Refuses changes because of what other flows do."""

    def check(self, before: Configs, after: Configs) -> None:
        """Raise an ``Mm2pyError`` for a forbidden change; called before anything is written."""
        ...

    def under_way(self, after: Configs) -> AbstractContextManager[None]:
        """Let checks of other flows' changes count ``after`` while it is written."""
        ...

    async def refresh(self, before: Configs, after: Configs) -> bool:
        """Read what the other flows are now; return whether the change must be checked again."""
        ...


@final
class FlowOverridesStore:
    """Implements ``mm2py.runtime.herder.api.Overrides``.

    Args:
        table: the topic.
        connectors: the file's connector configs, placeholders kept.
        by_file: whether the file enables the flow.
    """

    def __init__(
        self,
        table: Table,
        connectors: Mapping[str, Mapping[str, str]],
        *,
        clock: Clock,
        by_file: bool = True,
        write_s: float = WRITE_S,
    ) -> None:
        self._table, self._clock, self._write_s = table, clock, write_s
        self.state: Final = FlowState(connectors, names_a_secret, by_file=by_file)
        """File and changes as read; only this store modifies it."""
        self._newer: dict[str, str] = {}
        """Keys of settings that only a newer version can read, and why."""
        self._damaged: dict[str, str] = {}
        """Keys of damaged settings, and why: until compaction an older one counts, or the file."""
        self._there: FlowState | None = None
        """What a topic created again or cut at its end holds; None: all that this worker knows."""
        self._live = False
        self._changed: Callable[[], None] | None = None
        self._guard: ChangeGuard | None = None
        # Revisions count up: one change at a time.
        self._writing = asyncio.Lock()
        # Listeners act on whole changes, not on their first record.
        self._holding_news = False
        self._news = False

    # ---- Overrides

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        self._live = False
        self.state.clear()
        self._newer.clear()
        self._damaged.clear()
        self._there = None
        await self._table.start(self._read, self._read_again)
        self.check_readable()
        self._live = True

    def check_readable(self) -> None:
        """Refuse to run with a part of the settings: compaction must not decide which ones count.
        ``RetriableError``: a setting was written by a newer version of this program."""
        if self._newer:
            key, reason = next(iter(self._newer.items()))
            raise RetriableError(
                f"topic {self._table.topic} holds a setting of a newer version of this program "
                f"(key {key}: {reason})",
                remedy="run that version here, or take the setting back with it",
            )

    def problems(self) -> Mapping[str, str]:
        """Return the unreadable settings; empty where there are none."""
        wrong: list[str] = []
        if self._damaged:
            keys = ", ".join(f"{key} ({reason})" for key, reason in sorted(self._damaged.items()))
            wrong.append(
                f"settings are damaged, what was before them or the file counts: {keys};"
                " change them over REST once more"
            )
        if self._there is not None:
            wrong.append(
                "it was created again or has lost its end: changes over REST after revision "
                f"{self._there.revision}, up to {self.state.revision}, are in the memory of workers"
                " alone until their leader has written them again; do not restart the workers"
            )
        return {f"topic {self._table.topic}": "; ".join(wrong)} if wrong else {}

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        self._live = False
        await self._table.stop()

    def listen(self, changed: Callable[[], None]) -> None:
        """Set the listener for every change read later; the history alone is none."""
        self._changed = changed

    def guarded_by(self, guard: ChangeGuard) -> None:
        """Have every later change checked by ``guard`` too."""
        self._guard = guard

    def effective(self) -> Configs:
        """Return file and overrides by connector; none of a flow that does not exist."""
        return self._configs(self.state.picture())

    async def refresh(self, timeout_s: float) -> None:
        """Read the topic to its end of now; ``RequestTimedOutError``."""
        await self._table.read_to_end(timeout_s)

    async def restore(self) -> None:
        """Write what the topic has lost and this worker knows, as its leader;
        ``RequestTimedOutError``: not now."""
        # A change that waits for the cluster has the lock for long, and does this itself.
        if self._there is not None:
            async with self._writing:
                await self._restore()

    def held(self) -> frozenset[TopicPartition]:
        """Return paused source partitions; -1 is a whole topic."""
        return self.state.held

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
            ConfigError: as ``edit``, or the flow was deleted.
            RequestTimedOutError: the outcome is unknown.
        """
        if not self.state.present:
            if after is None:
                return  # the end of the flow has it
            raise ConfigError(
                f"connector {name} belongs to a flow that is not there",
                remedy="create the flow with POST /flows",
            )
        action = "delete" if after is None else "create" if before is None else "change"
        file = self.state.file
        await self.edit(action, name, lambda now: now.with_config(name, after, file), actor=actor)

    # ---- what /flows sees and does beyond

    @property
    def live(self) -> bool:
        return self._live

    def preview(self, edit: Edit) -> tuple[Change, ...]:
        """Return what an edit would change; ``ConfigError``: a secret would have to be written, or
        it is left out how a cluster is reached."""
        return self.state.changes(self._edited(edit))

    async def edit(
        self,
        action: str,
        target: str,
        edit: Edit,
        *,
        actor: str,
        notes: Sequence[Change] | None = None,
    ) -> int | None:
        """Write a change and its line of the history; return its revision, None if nothing changes.

        With ``notes``, changes that are not kept here (target states), the line is written in any
        case.

        Raises:
            ConfigError: a secret would have to be written, it is left out how a cluster is reached,
                or all of it fits no batch.
            RequestTimedOutError: the topic could not be read, or the outcome is unknown.
        """
        async with self._writing:
            # A former leader's last change, or one whose
            # outcome was unknown, may not have been read.
            await self._table.read_to_end(self._write_s)
            # First: the difference alone would be all that the topic holds of this flow.
            await self._restore()
            before, after = self.state.picture(), self._edited(edit)
            # No await since the check: of two changes that close a circle together the second one
            # sees the first, which may take long to be written.
            with self._announced(after), self._news_held():
                # Listeners act on whole changes, and only on those that are kept.
                number = await self._record(action, target, after, actor, notes)
                if number is not None and self._guard is not None:
                    await self._confirm(self._guard, action, before, after, actor)
            return number

    def refuse_secrets(self, name: str, after: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` for a config that holds a secret which the file does not."""
        file = self.state.file.get(name, {})
        for prop, value in after.items():
            # What the file holds itself may be sent back as it is: it is on every node already.
            plain = value != file.get(prop) and not is_placeholder(value)
            if plain and names_a_secret(prop):
                raise ConfigError(
                    f"{prop} of connector {name} holds a secret, which is not stored over REST",
                    remedy="put it into the properties file, or refer to a config provider: ${...}",
                )

    def _refuse_without_cluster(self, name: str, after: Mapping[str, str]) -> None:
        left_out = [
            prop
            for prop in self.state.file.get(name, {})
            if prop not in after and reaches_a_cluster(prop)
        ]
        if left_out:
            raise ConfigError(
                f"connector {name} is left without {', '.join(left_out)}:"
                " only the file defines how clusters are reached",
                remedy="send them as they are, [hidden] for a secret, or change the file on "
                "every node and restart",
            )

    # ---- changes as records

    def _configs(self, picture: FlowPicture) -> Configs:
        return picture.configs if self.state.is_present(picture.presence) else {}

    async def _record(
        self,
        action: str,
        target: str,
        after: FlowPicture,
        actor: str,
        notes: Sequence[Change] | None = None,
    ) -> int | None:
        revision = self._next(actor)
        changes, puts = self.state.changes(after), self.state.puts(after, revision)
        if not puts and notes is None:
            return None
        await self._write(puts, action, target, (*changes, *(notes or ())), revision)
        return revision.number

    async def _confirm(
        self, guard: ChangeGuard, action: str, before: FlowPicture, after: FlowPicture, actor: str
    ) -> None:
        """Revert a written change that conflicts with another flow's meanwhile."""
        old, new = self._configs(before), self._configs(after)
        if not await guard.refresh(old, new):
            return
        try:
            guard.check(old, new)
        except Mm2pyError:
            # Two flows were changed at once, and each was right by itself: this one is taken back.
            await self._record("undo", action, before, actor)
            raise

    def _announced(self, after: FlowPicture) -> AbstractContextManager[None]:
        return nullcontext() if self._guard is None else self._guard.under_way(self._configs(after))

    @contextmanager
    def _news_held(self) -> Generator[None]:
        self._holding_news, self._news = True, False
        try:
            yield
        finally:
            self._holding_news = False
            if self._news:
                self._tell()

    def _next(self, actor: str) -> Revision:
        number = self.state.revision + 1
        if number not in REVISIONS:
            # No reader accepts it: the newest revision is not of this program.
            raise ConfigError(
                f"topic {self._table.topic} has a record of revision {number - 1}, none can follow",
                remedy="write a tombstone for the key of each record with it, and restart the "
                "workers",
            )
        return Revision(number=number, by=actor, at_ms=self._clock.now_ms())

    def _edited(self, edit: Edit) -> FlowPicture:
        before = self.state.picture()
        after = edit(before)
        for name, config in after.configs.items():
            if config != before.configs.get(name):
                self.refuse_secrets(name, config)
                self._refuse_without_cluster(name, config)
        if self._guard is not None:
            self._guard.check(self._configs(before), self._configs(after))
        return after

    async def _write(
        self, puts: Puts, action: str, target: str, changes: tuple[Change, ...], revision: Revision
    ) -> None:
        line = HistoryEntry(action=action, target=target, changes=changes, revision=revision)
        # Tombstones for what is above the limit, in the same batch as the new line.
        old = self.state.history()[HISTORY_KEPT - 1 :]
        records: Puts = {
            **puts,
            flow_record_key(line): line,
            **{flow_record_key(it): None for it in old},
        }
        batch = _encoded(records)
        size_bytes = sum(len(key) + len(value or b"") for key, value in batch)
        if size_bytes > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{action} of {target} needs {size_bytes} bytes in topic {self._table.topic}, with "
                f"its line of the history; at most {MAX_CONFIG_BYTES} fit",
                remedy="change fewer or shorter properties at a time; the line has each text of "
                "before and after",
            )
        # One batch: a change without its line of the history, or half of it, is never read.
        await self._post(
            [batch],
            f"{action} of {target} was not confirmed by topic {self._table.topic} within"
            f" {self._write_s:g} s; whether it was written is unknown",
            "look whether the change is there, and repeat it if it is not",
        )

    async def _post(self, batches: Iterable[Sequence[Entry]], failure: str, remedy: str) -> None:
        """Write batches and read them again; ``RequestTimedOutError`` with these texts."""
        try:
            async with asyncio.timeout(self._write_s):
                for batch in batches:
                    await self._table.post(batch)
                await self._table.read_to_end(self._write_s)
        except (TimeoutError, RequestTimedOutError) as error:
            raise RequestTimedOutError(failure, remedy=remedy) from error

    async def _restore(self) -> None:
        if self._there is None:
            return
        entries = _encoded(self.state.missing_in(self._there))
        await self._post(
            batched(entries),
            f"topic {self._table.topic} was created again or has lost its end, and took what it"
            f" held not back within {self._write_s:g} s",
            "keep a worker of the flow running: it tries again",
        )
        self._there = None
        log.warning(
            "changes over REST are written again topic=%s records=%d revision=%d",
            self._table.topic,
            len(entries),
            self.state.revision,
        )

    # ---- reading

    def _read_again(self, _partition: int, records: Sequence[Record]) -> None:
        """Take a log that was read again; changes that it has lost still count."""
        there = FlowState({}, names_a_secret, by_file=False)
        for record in records:
            _fold(there, record)
        if there.revision >= self.state.revision:
            self._there = None
            for record in records:
                self._take(record)
            return
        self._there = there
        log.error(
            "topic was created again or has lost its end, changes over REST that it held are in "
            "the memory of workers alone topic=%s revision=%d known=%d",
            self._table.topic,
            there.revision,
            self.state.revision,
        )
        self._tell()  # whoever leads writes them again

    def _read(self, _partition: int, record: Record) -> None:
        self._take(record)
        if self._there is not None:
            _fold(self._there, record)
            if self._there.revision >= self.state.revision:
                self._there = None  # another worker has written them again

    def _take(self, record: Record) -> None:
        if record.key is None:
            return
        key = record.key.decode("utf-8", "replace")
        # A later record of the key decides again, a tombstone too.
        self._newer.pop(key, None)
        self._damaged.pop(key, None)
        taken = _fold(self.state, record)
        if isinstance(taken, UnknownFlowRecord) and taken.newer:
            self._newer[key] = taken.reason
            self._tell()
            return
        if isinstance(taken, UnknownFlowRecord):
            log.warning(
                "record is ignored topic=%s offset=%d cause=%s",
                self._table.topic,
                record.offset,
                taken.reason,
            )
            if is_setting(key):
                self._damaged[key] = taken.reason
            return
        if taken is None or isinstance(taken, HistoryEntry):
            return
        if self._holding_news:
            self._news = True
        else:
            self._tell()

    def _tell(self) -> None:
        if self._live and self._changed is not None:
            self._changed()


def _encoded(records: Puts) -> list[Entry]:
    return [
        (key.encode(), None if entry is None else encode_flow_record(entry)[1])
        for key, entry in records.items()
    ]


def _fold(state: FlowState, record: Record) -> FlowOverrideEntry | UnknownFlowRecord | None:
    """Take one record; return the entry that it is or ends, or why it cannot be read."""
    key = (record.key or b"").decode("utf-8", "replace")
    decoded = None if record.value is None else decode_flow_record(record.key, record.value)
    if isinstance(decoded, UnknownFlowRecord):
        state.pass_line(key)
        return decoded
    return state.take(key, decoded)


def held_edit(partition: TopicPartition, *, paused: bool) -> Edit:
    """Return the edit that pauses or resumes a source partition, or (-1) a whole topic."""

    def edit(now: FlowPicture) -> FlowPicture:
        if paused:
            return replace(now, held=now.held | {partition})
        whole = partition.partition < 0
        kept = {
            it for it in now.held if not (it.topic == partition.topic if whole else it == partition)
        }
        return replace(now, held=frozenset(kept))

    return edit
