"""What is known of the flow's copies: where an offset of the source is on the target.

Flow: the exact map, else the offset-syncs topic (``OffsetSyncStore``), both read and followed ->
``translate``; ``take_moved`` names the source partitions of which more is known than before. A
translation never skips a record; it is exact where the map covers the offset. Where both flows of a
pair keep names, the target has records of its own between the copies: there the map of the flow
back decides too, and the lower offset counts. Where that has copied nothing of a partition, what it
has not read and the flow has not written is read on the target. Where its map was lost, the offset
syncs of the flow back show that it has copied a partition: then the offset is unknown.

Invariants, tests of the same names: where another flow writes into the same copy, no group has a
place. While the map is about another copy than the one that is there now, nothing is known of a
partition; offset syncs and checkpoints of before are of the former copy too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, final

from mm2py.api.context import TaskContext
from mm2py.client.backoff import Backoff
from mm2py.clock import together
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError, ServerError
from mm2py.mirror.offset_lookup import Beginning, Place, beside_own_records, is_past_unread
from mm2py.mirror.offset_syncs import OffsetSyncStore, decode_offset_sync
from mm2py.mirror.shared_copies import shared_reason
from mm2py.observability.logging import some_of
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.protocol.records import Record
from mm2py.protocol.topics import is_another_topic
from mm2py.types import TopicPartition
from mm2py_connectors.clients import ExactMap, TopicLog

log = logging.getLogger(__name__)

_RETRY_MS: Final = 1_000
_LONGEST_RETRY_MS: Final = 60_000
_MAP_RETRY_MS: Final = 10_000
"""A map that appears later is seen after so long; a flow's first start makes one."""
_MAP_LOOK_S: Final = 0.25
"""How often the map is checked for partitions with translated offsets that were not copied."""
_COPIES_LOOK_S: Final = 5.0
"""How often to ask whether the copies are those that the map is about."""
PLACED_AGAIN_S: Final = 300.0
"""How often all groups are placed again: the target may have lost what idle ones were placed by."""
_OTHERS_LOOK_S: Final = 1.0
"""The same where other flows write into this target: they may begin with the same copies."""
ASKED_S: Final = 0.2
"""How long a round waits for what is read of a copy; then it is for the next round."""
FINDING: Final = "offset syncs"
MAP_FINDING: Final = "offset map"
BACK_FINDING: Final = "offset map of the flow back"
SHARED_FINDING: Final = "copies of several flows"
UNREAD_FINDING: Final = "records for the flow back"
UNREADABLE_FINDING: Final = "offset maps of other flows"

_NO_COPY: Final = frozenset({Place.NEVER_EXISTED, Place.AT_END, Place.NOT_YET_COPIED})
"""Of a target offset that is no copy of the flow's."""

_Beyond = dict[TopicPartition, tuple[int, int]]
"""How far a map went when an offset was beyond it, and from which source offset on that matters."""


class FlowBack(NamedTuple):
    """What is known of the flow back, with equal names on both sides; it need not exist."""

    map: ExactMap
    syncs: TopicLog


@final
class OffsetTranslator:
    """Translates offsets of one flow.

    Args:
        syncs: the offset-syncs topic.
        topic: its name.
        exact: the flow's exact map; its topic need not exist.
        back: the flow back where names are the same on both sides, else None.
        context: time and findings.
        on_moved: called when there is something for ``take_moved``.
    """

    def __init__(
        self,
        syncs: TopicLog,
        topic: str,
        exact: ExactMap,
        *,
        back: FlowBack | None = None,
        context: TaskContext,
        on_moved: Callable[[], None],
    ) -> None:
        self._syncs, self._topic, self._map = syncs, topic, exact
        self._back, self._knows_back, self._has_back = back, back is None, False
        self._copied_back: set[TopicPartition] = set()
        self._own_from: dict[TopicPartition, int] = {}
        """Up to where the target's own records were read, where the flow back copied nothing."""
        self._unread: dict[TopicPartition, int] = {}
        """Where records begin that groups wait before, until the flow back has copied them; -1
        none."""
        self._asking: dict[TopicPartition, asyncio.Task[int | None]] = {}
        self._context, self._clock, self._on_moved = context, context.clock, on_moved
        self._store = OffsetSyncStore(keeps_backlog=True)
        self._moved: dict[TopicPartition, int] = {}
        self.renewals = 0
        """How many times the map of a partition has begun anew."""
        self._renewed: dict[TopicPartition, int] = {}
        exact.report_anew(self._note_anew)
        self._is_read = self._knows_map = self._has_map = False
        self._former: frozenset[TopicPartition] = frozenset()
        self._shared: Mapping[TopicPartition, tuple[str, ...]] = {}
        self._looking = asyncio.Lock()
        self._placed_again_s = self._clock.monotonic()
        self._former_back: frozenset[TopicPartition] = frozenset()
        self._waiting: _Beyond = {}
        self._held_back: _Beyond = {}  # the same of the map of the flow back
        self._asked_beyond = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether the backlog was read, and the map where there is one."""
        return self._is_read and self._knows_map and self._knows_back

    async def translate(self, source: TopicPartition, offset: int) -> int | None:
        """Return where a group at ``offset`` continues without skipping, None if unknown."""
        if self.is_former(source) or self.is_shared(source):
            return None
        translated, is_exact = await self._by_map(source, offset)
        # Both are safe, so the higher one is too, and closer.
        if not is_exact:
            translated = max(translated, self._by_syncs(source, offset))
        translated = await self._beside_own_records(source, offset, translated)
        return None if translated < 0 else translated

    def is_former(self, source: TopicPartition) -> bool:
        """Whether all that is known of a partition is of another copy than the present one."""
        return self._has_map and self._map.is_former(source)

    async def read_copies(self) -> None:
        """Ask which copies there are now; ``Mm2pyError`` where the target does not answer."""
        async with self._looking:
            if self._has_map:
                await self._map.read_copies()

    def is_shared(self, source: TopicPartition) -> bool:
        """Whether another flow writes into the copy of a partition: behind a group's place would be
        records that it has not read."""
        return self._has_map and bool(self._map.sharers(source))

    def is_of_former_copy(self, source: TopicPartition, upstream: int, downstream: int) -> bool:
        """Whether an earlier translation is of a former copy."""
        return self._has_map and self._map.is_of_former_copy(source, upstream, downstream)

    async def is_left_behind(self, source: TopicPartition, offset: int, downstream: int) -> bool:
        """Whether an earlier translation is of copies that the flow does not continue, while it has
        a copy of ``offset`` before them.

        The flow was killed before it stored its position, so that Java made its last copies again,
        and was killed before it stored its own: the flow goes on behind what it had itself copied.
        """
        if not self._has_map or self._back is not None or self.is_shared(source):
            return False
        try:
            copy = await self._map.to_target(source, offset)
            there = await self._map.to_source(source, downstream)
        except Mm2pyError as error:
            log.debug("offset map cannot be read partition=%s cause=%s", source, error)
            return False
        is_before = copy is not None and copy.place is Place.COPIED and copy.offset < downstream
        return is_before and there is not None and there.place in _NO_COPY

    async def is_past_unread(self, source: TopicPartition, offset: int, downstream: int) -> bool:
        """Whether an earlier translation is past records that a group at ``offset`` lacks."""
        if not self._has_map:
            return False
        try:
            return await is_past_unread(self._map, source, offset, downstream)
        except Mm2pyError as error:
            log.debug("offset map cannot be read partition=%s cause=%s", source, error)
            return False

    def _by_syncs(self, source: TopicPartition, offset: int) -> int:
        """Return the answer of the offset syncs, -1 for none; one beyond all copies of what the map
        covers is of a former copy."""
        translated = self._store.translate(source, offset)
        if translated is None:
            return -1
        newest = self._store.newest(source)
        is_former = self.is_of_former_copy(source, min(newest, offset) + 1, translated)
        return -1 if is_former else translated

    async def _beside_own_records(
        self, source: TopicPartition, offset: int, translated: int
    ) -> int:
        """Return ``translated``, or the target's first own record that a group at ``offset`` has
        not read, if that is lower."""
        # Copies under another name do not lie between these records.
        if self._back is None or self._back.map.is_elsewhere(source):
            return translated
        index = self._back.map.index_of(source) if self._has_back else None
        if index is None:
            return await self._before_the_flow_back(source, translated)
        self._note_unread(source, -1)
        try:
            own = await self._back.map.to_source(source, offset)
        except Mm2pyError as error:
            log.debug(
                "offset map of the flow back cannot be read partition=%s cause=%s", source, error
            )
            return -1
        if own is None or self._is_former_back(source, self._back.map):
            return -1
        if own.place in (Place.AT_END, Place.NOT_YET_COPIED):
            self._note_beyond(self._held_back, source, index.covered, 0)
        return beside_own_records(translated, own, index.covered)

    def _is_former_back(self, source: TopicPartition, back: ExactMap) -> bool:
        """Whether the map of the flow back is of a recreated topic, on either cluster."""
        index, copies = back.index_of(source), self._map.index_of(source)
        return back.is_former(source) or (
            index is not None
            and copies is not None
            and is_another_topic(index.source_id, copies.target_id)
        )

    async def _before_the_flow_back(self, source: TopicPartition, translated: int) -> int:
        """As ``_beside_own_records`` where the flow back has copied nothing: what it has not read
        yet may be the target's own."""
        if self._back is None or not (self._has_back or source in self._copied_back):
            return translated  # there is no flow back
        # Where it begins counts, as in a failover: it copies nothing before that, be it what Java
        # copied, or what its position was set past.
        passed = self._passed(self._back.map, source) if self._has_back else -1
        own: int | None = -1
        # Else its map was lost, and begins with its next record.
        if source not in self._copied_back:
            try:
                own = await self._own_records_from(source, max(passed, 0), translated)
            except Mm2pyError as error:
                log.debug("copies cannot be read partition=%s cause=%s", source, error)
                if isinstance(error, RetriableError):
                    self._note_beyond(self._held_back, source, passed - 1, 0)  # at the next look
                return -1
        if own is None:
            own = min(passed, translated)  # the flow has no map of it
        if own > self._unread.get(source, -1) or 0 <= own < translated:  # else it is before them
            self._note_unread(source, own if own < translated else -1)
        if own < translated:
            self._note_beyond(self._held_back, source, passed, 0)
            if own > self._own_from.get(source, -1):
                # It may have been read in part only: once more, until it comes no further.
                self._own_from[source] = own
                self._note_moved(source, 0)
        return own

    def _passed(self, exact: ExactMap, source: TopicPartition) -> int:
        """As ``ExactMap.passed``, of the topics that are there now."""
        copies = None if exact is self._map else self._map.index_of(source)
        return exact.passed(source) if copies is None else exact.passed(source, copies.target_id)

    def _note_unread(self, source: TopicPartition, unread: int) -> None:
        """Show where groups wait before records of the target's own, -1 where none does."""
        if unread == self._unread.get(source, -1):
            return
        self._unread[source] = unread
        waits = [f"{it} at {at}" for it, at in sorted(self._unread.items()) if at >= 0]
        text = (
            f"groups wait before records that the flow back has not copied: {some_of(waits, 3)}; "
            "let it copy them, or set its position behind what it is to leave out"
        )
        self._context.report_finding(
            UNREAD_FINDING, text if waits else "", count=len(waits), harms=False
        )

    async def _own_records_from(self, source: TopicPartition, begin: int, end: int) -> int | None:
        """As ``ExactMap.own_from``; -1 while a leader is slow to answer, which would hold up the
        checkpoints of all others."""
        # Its answer is on the way; the next round has it.
        if source in self._asking:
            return -1
        asking = asyncio.create_task(self._map.own_from(source, begin, end))
        self._asking[source] = asking
        # Not cancelled: the read continues beside the rounds.
        await asyncio.wait({asking}, timeout=ASKED_S)
        if asking.done():
            del self._asking[source]
            return asking.result()
        asking.add_done_callback(partial(self._answered, source))
        return -1

    def _answered(self, source: TopicPartition, asking: "asyncio.Task[int | None]") -> None:
        """Ask again in the next round, which has what was read."""
        del self._asking[source]
        if not asking.cancelled():
            asking.exception()  # the next round has it again
            self._note_moved(source, 0)

    async def _by_map(self, source: TopicPartition, offset: int) -> tuple[int, bool]:
        """Return the answer of the map (-1: none), and whether that is exact: else it is the end of
        the copies before ``offset``."""
        if not self._has_map:
            return -1, False
        index = self._map.index_of(source)
        if index is None:
            self._note_beyond(self._waiting, source, -1, -1)
            return -1, False
        try:
            translation = await self._map.to_target(source, offset)
        except Mm2pyError as error:
            log.debug("offset map cannot be read partition=%s cause=%s", source, error)
            return -1, False
        # UNKNOWN (-1) is not exact: offset syncs may know more, but of a former copy.
        if translation is None or translation.place is not Place.NOT_YET_COPIED:
            return (
                (-1, False)
                if translation is None
                else (translation.offset, translation.offset >= 0)
            )
        self._note_beyond(self._waiting, source, index.covered, index.covered)
        # The group has read all that the map knows of.
        return index.target_end, False

    @property
    def has_map(self) -> bool:
        return self._has_map

    async def beginning(self, source: TopicPartition) -> Beginning | None:
        """Return where the exact map of a partition begins; None while that is not known."""
        try:
            return await self._map.beginning(source) if self._has_map else None
        except Mm2pyError as error:
            log.debug("offset map cannot be read partition=%s cause=%s", source, error)
            return None

    def renewed(self, source: TopicPartition) -> int:
        """Return which renewal was the last one of a partition, 0 for none: earlier offsets are of
        a topic that is gone."""
        return self._renewed.get(source, 0)

    def _note_anew(self, source: TopicPartition) -> None:
        if self._has_map:  # else nothing was translated by it
            self.renewals += 1
            # Commits below this number are of a topic that is gone (``GroupWatch``, 6).
            self._renewed[source] = self.renewals
            self._note_moved(source, 0)

    def take_moved(self) -> Mapping[TopicPartition, int]:
        """Return the source partitions of which more is known, each with the lowest new offset."""
        moved, self._moved = self._moved, {}
        return moved

    async def run(self, *, keeps_backlog: bool) -> None:
        """Read and follow what is written until cancelled.

        ``keeps_backlog``: as ``OffsetSyncStore``. Raises what no retry cures.
        """
        self._store = OffsetSyncStore(keeps_backlog=keeps_backlog)
        # Java's order too: syncs to their end, then translation, then what follows.
        await self._read()
        self._store.read_to_end()
        self._is_read = True
        self._on_moved()
        try:
            await together(
                self._syncs.tail(self._take, on_trouble=self._report),
                self._follow_map(),
                self._follow_back(),
            )
        finally:
            for asking in self._asking.values():
                asking.cancel()

    async def _follow_map(self) -> None:
        """Use the map as soon as it is there, and note when it reaches offsets that were beyond it.

        Until it is known whether there is one, nothing is translated: offset syncs may be of copies
        that are gone.
        """
        backoff = Backoff(_RETRY_MS, _MAP_RETRY_MS)
        while not self._has_map:
            try:
                await self._map.read_to_end()
            except Mm2pyError as error:
                log.debug("there is no offset map yet: %s", error)
                # No map, or no right to it: a Java mirror wrote the copies, with syncs.
                if not isinstance(error, RetriableError) or _is_missing(error):
                    self._know_map()  # there is none, or it may not be read
                elif not self._knows_map:
                    text = f"it cannot be read, offsets are not translated: {error}"
                    self._context.report_finding(MAP_FINDING, text)
                await self._clock.sleep(backoff.next_s())
            else:
                self._map.follow()
                self._has_map = True
        self._former = frozenset(filter(self._map.is_former, self._map.partitions()))
        self._moved |= dict.fromkeys(self._map.partitions(), 0)
        self._know_map()
        await together(self._watch(self._map, self._waiting), self._watch_copies())

    def _know_map(self) -> None:
        if not self._knows_map:
            self._context.report_finding(MAP_FINDING, "")
        self._knows_map = True
        self._on_moved()

    async def _watch_copies(self) -> None:
        """Note when copies are gone, or made again, and when the map knows the new ones."""
        while True:
            self._note_shared()
            await self._clock.sleep(_OTHERS_LOOK_S if self._map.has_others else _COPIES_LOOK_S)
            try:
                await self.read_copies()
            except Mm2pyError as error:
                log.debug("copies are not known now cause=%s", error)
                continue
            former = frozenset(filter(self._map.is_former, self._map.partitions()))
            changed, self._former = former ^ self._former, former
            now = self._clock.monotonic()
            if now - self._placed_again_s >= PLACED_AGAIN_S:
                self._placed_again_s, changed = now, frozenset(self._map.partitions())
            for source in changed:
                self._note_moved(source, 0)

    def _note_shared(self) -> None:
        """Note which copies other flows write into, since when and until when."""
        shared = {it: tuple(self._map.sharers(it)) for it in self._map.partitions()}
        shared = {it: others for it, others in shared.items() if others}
        if shared != self._shared:
            for source in shared.keys() ^ self._shared.keys():
                self._note_moved(source, 0)
            self._shared = shared
            # A note: a failover must not wait for it, and names such groups itself.
            self._context.report_finding(
                SHARED_FINDING, shared_text(shared), count=len(shared), harms=False
            )
        unreadable = self._map.unreadable
        text = ""
        if unreadable:
            topic, cause = next(iter(unreadable.items()))
            text = (
                f"{topic} cannot be read, so it is not known whether that flow writes into the "
                f"same copies, where groups would skip its records: {cause}; grant Read on it"
            )
        self._context.report_finding(UNREADABLE_FINDING, text, count=len(unreadable), harms=False)

    async def _follow_back(self) -> None:
        """Use the map of the flow back; nothing is translated until its existence is known."""
        back = self._back
        if back is None:
            return
        backoff = Backoff(_RETRY_MS, _MAP_RETRY_MS)
        while not self._has_back:
            try:
                # Before the map: a partition that is copied from now on is in that first.
                await _read_if_there(back.syncs.read_to_end(self._take_back))
                self._has_back = await _read_if_there(back.map.read_to_end())
            except Mm2pyError as error:
                self._report_back(error)
                await self._clock.sleep(backoff.next_s())
                continue
            self._report_back(None)
            self._note_back(back.map)
            if not self._has_back:  # no flow back yet, or one that is not ours
                await self._clock.sleep(backoff.next_s())
        back.map.follow()
        await together(self._watch(back.map, self._held_back), self._watch_copies_back(back.map))

    async def _watch_copies_back(self, back: ExactMap) -> None:
        """Note which topics of the source were created again, and when the map of the flow back
        knows the new ones."""
        while True:
            former = frozenset(it for it in back.partitions() if self._is_former_back(it, back))
            changed, self._former_back = former ^ self._former_back, former
            for source in changed:
                self._note_moved(source, 0)
            await self._clock.sleep(_COPIES_LOOK_S)
            with suppress(Mm2pyError):  # what was known before counts
                await back.read_copies()

    def _take_back(self, _partition: int, record: Record) -> None:
        if record.key is not None and record.value is not None:
            with suppress(ProtocolError):  # the flow back logs it
                sync = decode_offset_sync(bytes(record.key), bytes(record.value))
                self._copied_back.add(sync.partition)

    async def _watch(self, exact: ExactMap, beyond: _Beyond) -> None:
        while True:
            # Sleeps without a timer while no group waits for the map.
            if not beyond:
                self._asked_beyond.clear()
                await self._asked_beyond.wait()
            await self._clock.sleep(_MAP_LOOK_S)
            for source, (covered, lowest) in tuple(beyond.items()):
                # A flow back that has copied nothing may have read what groups wait for.
                is_known = beyond is self._held_back or exact.index_of(source) is not None
                # It went on; whether far enough is for the translation to say.
                if is_known and self._passed(exact, source) > covered:
                    del beyond[source]
                    self._note_moved(source, lowest)

    def _note_beyond(
        self, beyond: _Beyond, source: TopicPartition, covered: int, lowest: int
    ) -> None:
        beyond[source] = covered, lowest
        self._asked_beyond.set()

    def _note_back(self, back: ExactMap) -> None:
        self._knows_back = True
        self._moved |= dict.fromkeys(back.partitions(), 0)
        self._on_moved()

    def _report_back(self, error: Mm2pyError | None) -> None:
        text = (
            "" if error is None else f"offset map or syncs of the flow back cannot be read: {error}"
        )
        self._context.report_finding(BACK_FINDING, text)

    def _note_moved(self, source: TopicPartition, lowest: int) -> None:
        self._moved[source] = min(self._moved.get(source, lowest), lowest)
        self._on_moved()

    async def _read(self) -> None:
        """Read all offset syncs of now, however long that takes; meanwhile the flow shows why it
        does not checkpoint."""
        backoff = Backoff(_RETRY_MS, _LONGEST_RETRY_MS)
        while True:
            try:
                await self._syncs.read_to_end(self._take)
            except RetriableError as error:
                self._report(error)
                await self._clock.sleep(backoff.next_s())
            else:
                self._report(None)
                return

    def _take(self, _partition: int, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        try:
            sync = decode_offset_sync(bytes(record.key), bytes(record.value))
        except ProtocolError as error:
            log.warning("offset sync is ignored offset=%d cause=%s", record.offset, error)
            return
        self._store.add(sync)
        if self._is_read:
            self._note_moved(sync.partition, sync.upstream)

    def _report(self, error: Mm2pyError | None) -> None:
        text = (
            ""
            if error is None
            else (
                f"topic {self._topic} cannot be read, offsets are translated by what was read "
                f"before: {error}"
            )
        )
        self._context.report_finding(FINDING, text)


async def _read_if_there(reading: Awaitable[None]) -> bool:
    """Return whether the topic that is read exists."""
    try:
        await reading
    except ServerError as error:
        if _is_missing(error):
            return False
        raise
    return True


def shared_text(shared: Mapping[TopicPartition, Sequence[str]]) -> str:
    """Return which copies several flows write into, what that means, what to do; empty for none."""
    if not shared:
        return ""
    topics = sorted({it.topic for it in shared})
    others = sorted({alias for aliases in shared.values() for alias in aliases})
    return shared_reason(some_of(topics, 3), others)


def _is_missing(error: Mm2pyError) -> bool:
    return isinstance(error, ServerError) and error.code == UNKNOWN_TOPIC_OR_PARTITION
