"""The exact offset maps of one task's partitions: filled by acknowledgements, written before
positions.

Flow: ``load`` at the start -> acknowledged runs, marks -> ``write`` ->
``mm2py.storage.offset_map_store``. A target that lost what it had acknowledged is noticed here: its
offsets go back.

Invariants, tests of the same names: 1 what is written covers every position that was acknowledged
before; 2 what could not be written is written with the next turn; 3 only the open page of a
partition is in memory; 4 a page is removed only after everything that was written of its partition,
and an offset in either log is never in it (``map_pruning``); 5 a topic that was deleted gets the
open page of every partition again, and what its other pages had is unknown, not guessed; 6 a copy
whose position was set continues where that copy ended, whenever its task ends: before its first
record the map has where it began, on both sides; 7 a copy that was deleted and made again, or that
the replication policy names anew, is noticed without a record: its map loses all copies, and the
loss is reported once (``LostCopies``); 8 a position or a page that a task which is gone wrote late
does not count, and is written over: by the next start, or by the task that runs (``again``); the
first record and the first position of a task wait until its page counts (``write``), and what a
late page has ended meanwhile is written again; 9 a producer id is stored in one page with all
copies that were acknowledged or recognised before it, and that of a former task stays until then: a
start takes what another id wrote after the map's end for another writer's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from random import getrandbits
from typing import Final, TypeVar, final

from mm2py.api.context import EventKind, SourceGap
from mm2py.api.task import CopiedLogs
from mm2py.client.connect.admin import NO_LOG
from mm2py.client.permit import Permit
from mm2py.client.send.tail import Behind, Identical, KeptProducer, LogEnd
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.offset_map import PartitionMap, TargetLoss
from mm2py.mirror.offset_map_pages import (
    START_BITS,
    Mark,
    Page,
    PageRef,
    Segment,
    ending_producer,
    is_late,
    next_start,
)
from mm2py.mirror.source_offsets import NO_EPOCH
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.target_sender import TaskSender
from mm2py.storage.offset_map_store import MapStore, NoMapStore, StoredMap
from mm2py.types import NO_PRODUCER_ID, TopicPartition

T = TypeVar("T")

log = logging.getLogger(__name__)


def _log_refusal(cause: str) -> None:
    if cause:
        log.error("%s", cause)


class _Maps(dict[TopicPartition, PartitionMap]):
    """Partitions that have no stored map begin with an empty one."""

    def __init__(self, *, in_transactions: bool) -> None:
        super().__init__()
        self._in_transactions = in_transactions
        self.token = getrandbits(START_BITS)
        """Of this task, for ``Page.start``."""

    def begin(
        self, partition: TopicPartition, page: Page | None = None, older: Sequence[PageRef] = ()
    ) -> PartitionMap:
        begun = self[partition] = PartitionMap(page, older, self.token)
        # Above every task without transactions that has the same page: no ``_claim`` follows.
        if self._in_transactions:
            begun.start = next_start(begun.start, self.token)
        return begun

    def __missing__(self, partition: TopicPartition) -> PartitionMap:
        return self.begin(partition)


@final
class TaskOffsetMaps:
    """Maps of the partitions that one task copies.

    Args:
        store: where they are kept.
        identical: ``offsets.identical``.
        sweeps: whether this task removes the maps of topics that are gone, whichever task copied
            them.
        shares_targets: other tasks of the flow write into the same target partitions (transforms
            route them there), so that copies of a predecessor cannot be distinguished from theirs.
        in_transactions: maps are written in one transaction with the records that they are about:
            where a copy begins too.
    """

    def __init__(
        self,
        store: MapStore,
        identical: Identical = Identical.OFF,
        *,
        sweeps: bool = False,
        shares_targets: bool = False,
        in_transactions: bool = False,
    ) -> None:
        self._store, self.sweeps, self._shares_targets = store, sweeps, shares_targets
        self._in_transactions = in_transactions
        self.identical = identical
        self._maps = _Maps(in_transactions=in_transactions)
        self.of: Callable[[TopicPartition], PartitionMap] = self._maps.__getitem__
        """Returns the map of a partition. Hot path."""
        self._unwritten: dict[TopicPartition, list[Page]] = {}
        self._loaded: frozenset[TopicPartition] = frozenset()
        self._topics_lost: int = 0
        self.is_refused = False
        """Whether the last write was: positions may be ahead of the maps then."""
        self._turn = asyncio.Lock()
        self._astray: set[TopicPartition] = set()
        """Partitions whose copy does not continue at the end of the map, until ``begin`` has put
        its beginning there."""
        self._unsettled: set[TopicPartition] = set()
        """Partitions whose stored position is above their newest page."""
        self._begun: set[TopicPartition] = set()
        """Partitions whose lane has begun since they were loaded."""
        self._renewed: set[TopicPartition] = set()
        """Partitions whose producer id this task has stored."""
        self._claimed: set[TopicPartition] = set()
        """Partitions whose topic has a page of this task as the newest."""
        self._unclaimed: dict[TopicPartition, list[Page]] = {}
        """What this task has written of the others."""
        self.waits: Callable[[TopicPartition], bool] = lambda _: False
        """Whether a partition waits for the count of the copies behind its map."""
        self.on_count: Callable[[TopicPartition, Behind], None] = lambda _partition, _behind: None
        """Called for partitions that wait, when their lane begins."""
        self.note_arrived: Callable[[], None] = lambda: None
        """Puts what was acknowledged so far into the maps."""
        self.on_loss: Callable[[TopicPartition, TargetLoss], None] = lambda _partition, _loss: None
        self.on_skip: Callable[[TopicPartition, int, int], None] = (
            lambda _partition, _first, _last: None
        )
        """Called when a copy begins at a position that was set past these source offsets, with
        nothing of them on the target."""
        self.on_refusal: Callable[[str], None] = _log_refusal
        """Called with the reason why maps cannot be kept, and with an empty text when they are
        again."""

    @property
    def kept(self) -> "TaskOffsetMaps | None":
        """Itself where maps outlive the process, so that the copies of a predecessor are known."""
        return None if isinstance(self._store, NoMapStore) else self

    @property
    def copied(self) -> "TaskOffsetMaps | None":
        """This object, where copies that a predecessor wrote after the last page must be recognised
        in the target's log."""
        return None if self._shares_targets else self.kept

    @property
    def changed(self) -> bool:
        """Whether ``write`` would write anything."""
        # Counted by the store: the topic may have been deleted between two turns without any map
        # having changed.
        lost = self._store.topics_lost != self._topics_lost
        return lost or bool(self._unwritten) or any(it.changed for it in self._maps.values())

    async def load(self, partitions: Collection[TopicPartition]) -> None:
        """Continue where the stored maps of these partitions end; ``RetriableError``: they cannot
        be read now."""
        maps = await self._stored(partitions) or {}
        if not self._loaded:  # else some of them may still have to be written again
            self._topics_lost = self._store.topics_lost
        for partition in partitions:
            # Partitions that are taken over: another process wrote their map while it was kept out
            # here.
            for written in (self._maps, self._unwritten, self._unclaimed):
                written.pop(partition, None)
        for partition, (page, older, replaced) in maps.items():
            begun = self._maps.begin(partition, page, older)
            if replaced:
                self._unwritten[partition] = _restarted(replaced, begun.start)
        self._loaded |= frozenset(partitions)
        for known in (
            self._astray, self._unsettled, self._begun, self._renewed, self._claimed,
        ):  # fmt: skip
            known.difference_update(partitions)

    async def _stored(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap] | None:
        try:
            return await self._store.load(partitions)
        except RetriableError:
            raise
        # A map that may not be read (no ACL) does not stop the copy: offset syncs are still
        # written, as in Java.
        except Mm2pyError as error:
            self._note_refusal(error)
            return None

    def resume(
        self,
        partition: TopicPartition,
        position: int,
        topic_id: bytes = NO_TOPIC_ID,
        epoch: int = NO_EPOCH,
    ) -> int:
        """Return where the copy continues, given the stored position (-1: none) and what is stored
        with it: after the newest copy in the map.

        A position that is not the one that the map was written with was set by another program or
        an operator: it is followed, unless it is a late one (8).
        """
        partition_map = self.of(partition)
        stored = position, topic_id, epoch
        resumed, covered = partition_map.resume(*stored), partition_map.covered
        # Before the position is replaced, which ``is_set`` compares with.
        was_set, partition_map.position = partition_map.is_set(*stored), position
        if partition_map.is_empty and (was_set or not covered):
            partition_map.begin_at(max(position, 0))
        # A crash between the write of the map and that of the position: the copy continues where
        # the map ends (invariant 4 of ARCHITECTURE).
        if partition_map.is_empty or not was_set:
            return resumed
        # The map's end is not where the copy continues on the target: ``begin`` asks for the log's
        # end first.
        self._astray.add(partition)
        if position > covered:
            log.warning(
                "offsets were passed without the offset map, another program copied them or the "
                "position was"
                " set; they are not translated exactly partition=%s first_offset=%d last_offset=%d",
                partition,
                covered,
                position - 1,
            )
            partition_map.note(Segment(covered, position - covered, 0, Mark.UNKNOWN))
        else:
            log.warning(
                "records are copied again: the position was set back, or the topic of the "
                "positions was deleted partition=%s first_offset=%d last_offset=%d",
                partition,
                max(position, 0),
                covered - 1,
            )
            partition_map.go_back(position)
        return resumed

    # ---- what the Sender asks before the first copy

    def producer(self, source: TopicPartition) -> KeptProducer:
        """Return the producer id that the copies of a partition were last written with."""
        partition_map = self.of(source)
        stored, began = partition_map.producer_id, partition_map.producer_from
        if stored >= NO_PRODUCER_ID:
            return KeptProducer(stored, began)
        return KeptProducer(ending_producer(stored), began, lasts=False)

    def target_end(self, source: TopicPartition, topic_id: bytes) -> int:
        """Return the target offset after the newest known copy, -1 where the copy does not continue
        there."""
        partition_map = self.of(source)
        # The tail of the target's log belongs to the copy before the position was set; comparing
        # records with it would find nothing.
        if source in self._astray:
            return -1
        known_end = partition_map.former_end if partition_map.is_empty else partition_map.target_end
        # Another topic under the same name: all of its log lies after the known copies, from offset
        # 0 on.
        return 0 if known_end >= 0 and partition_map.is_of_another(topic_id) else known_end

    def passed_from(self, source: TopicPartition, topic_id: bytes) -> int:
        """Return the target offset after the copies that a position was set past, -1 for none."""
        partition_map = self.of(source)
        start = partition_map.passed_from if source in self._astray else -1
        return 0 if start >= 0 and partition_map.is_of_another(topic_id) else start

    def may_be_behind(self, gap: SourceGap) -> bool:
        """Whether a task that was killed may have copied what the source has lost: it begins where
        the map ends, and nothing was sent since the start."""
        partition_map = self.of(gap.partition)
        return (
            self.copied is not None
            # There the first batch of a lane is compared with the log's end.
            and self.identical is not Identical.REQUIRE
            and gap.partition not in self._begun
            and gap.partition not in self._astray
            and not gap.under_way
            and partition_map.ends_with_copy
            and partition_map.covered == gap.first_offset
        )

    def opens(self, source: TopicPartition) -> bool:
        """Note that a partition's lane begins; return whether ``count`` is wanted."""
        self._begun.add(source)
        return self.waits(source)

    def count(self, source: TopicPartition, behind: Behind) -> None:
        self.on_count(source, behind)

    async def replace_producer(self, source: TopicPartition, producer: KeptProducer) -> None:
        """Store what the copies from now on are written with."""
        self.note_arrived()  # (9)
        self._write_with(source, self.of(source).target_id, producer, producer.began)
        await self.write()

    def _write_with(
        self,
        source: TopicPartition,
        target_id: bytes,
        producer: KeptProducer | LogEnd,
        log_end: int,
    ) -> None:
        partition_map = self.of(source)
        before = partition_map.producer_id
        partition_map.writes_to(target_id, _stored(producer), log_end)
        if partition_map.producer_id != before:
            self._renewed.add(source)

    async def begin(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        """Note where the target's logs end before the first copy; returns when that is durable, or
        will be with that copy."""
        self.note_arrived()  # (9)
        for source, log_end in ends.items():
            end, topic_id = log_end.offset, log_end.topic_id
            partition_map = self.of(source)
            # Before any batch leaves: a copy that the target lost must not be counted as there once
            # new ones take its offsets.
            if not partition_map.is_empty:
                # A topic that was created again has none of the copies, however far it has grown
                # since.
                loss = partition_map.lose_target(
                    0 if partition_map.is_of_another(topic_id) else end
                )
                if loss is not None:
                    self.on_loss(source, loss)
            # (6) Written before the first record, or in one transaction with it: a kill right after
            # leaves no record without a place.
            if source in self._astray:
                if log_end.follows_copies:
                    partition_map.follow(end)
                partition_map.anchor(max(partition_map.position, 0), end)
                self._astray.discard(source)
                if (skipped := partition_map.skipped) is not None:
                    self.on_skip(source, *skipped)
            elif partition_map.target_end < 0:
                begin = end if partition_map.former_end < 0 else min(end, partition_map.former_end)
                partition_map.anchor(
                    partition_map.begins if partition_map.is_empty else partition_map.covered, begin
                )
            self._write_with(source, topic_id, log_end, end)
        # In a transaction the map is committed with the first records; alone it would be visible
        # without them.
        if not self._in_transactions:
            for source in ends.keys() - self._claimed:
                self.of(source).again()
            await self.write()

    def partitions_of_another(
        self, ids: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, bytes]:
        """Return the partitions whose copies are in another topic than the one that is there now,
        with its id."""
        return {
            partition: topic_id
            for partition, topic_id in ids.items()
            # Its map gets a new beginning in ``begin`` anyway, in whichever topic is there.
            if partition not in self._astray
            and not self.of(partition).is_empty
            and self.of(partition).is_of_another(topic_id)
        }

    def lose_copies(self, ids: Mapping[TopicPartition, bytes]) -> None:
        """The target topics of these ``partitions_of_another`` have none of the copies (7)."""
        for partition, topic_id in ids.items():
            partition_map = self.of(partition)
            loss = partition_map.lose_target(0)
            partition_map.target_id = topic_id
            if loss is not None:
                self.on_loss(partition, loss)

    # ---- what happens

    def taken(
        self,
        positions: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        *,
        with_maps: bool = False,
    ) -> None:
        """Positions are about to be stored, ``with_maps`` in one transaction; ``epochs`` are the
        leader epochs of their records."""
        for partition, position in positions.items():
            partition_map = self.of(partition)
            # The page goes into the same transaction as the position: both become visible together.
            if with_maps:
                partition_map.position = position + 1
            # No page that comes late may have less than a position that is stored (8).
            elif partition not in self._claimed and partition_map.has_content:
                partition_map.again()
            # The epoch is that of the position's record: of a map that covers more it would belong
            # to an earlier record.
            partition_map.epoch = epochs[partition] if position + 1 == partition_map.covered else -1

    def stored(self, positions: Mapping[TopicPartition, int]) -> None:
        """Positions were stored: everything up to them is copied."""
        for partition, position in positions.items():
            self.of(partition).position = position + 1
        # The page names the position before this one, until the next write: ``settle`` closes the
        # gap at the end of the task.
        self._unsettled.update(positions)

    def begin_at(self, partition: TopicPartition, position: int) -> None:
        """Note that a copy without a stored position begins above the start of the source's log,
        perhaps after copies that were made before the position was removed."""
        partition_map = self.of(partition)
        if partition_map.is_empty:
            partition_map.begin_at(position)
        else:
            partition_map.begin_after(position)

    def cover(self, partition: TopicPartition, offset: int) -> None:
        """Everything up to a source offset is copied or needs no copy."""
        self.of(partition).cover(offset + 1)

    def note_passed(self, partition: TopicPartition, first: int, count: int) -> None:
        """Records that the source has lost are on the target, behind the copies that the map
        has."""
        if count:
            self.of(partition).note(Segment(first, count, 0, Mark.UNKNOWN))

    def note_gap(self, gap: SourceGap) -> None:
        """Keep what the source lost, cut or began anew."""
        partition_map = self.of(gap.partition)
        # After the records under way: they are of the old incarnation, and are acknowledged later.
        if gap.cause == EventKind.RECREATED:
            partition_map.note(gap.topic_id, gap.under_way)
        elif gap.cause == EventKind.TRUNCATION:
            partition_map.note(Segment(gap.first_offset, 0, 0, Mark.SOURCE_CUT), gap.under_way)
        elif gap.count:
            lost = Segment(gap.first_offset, gap.count, 0, Mark.SOURCE_LOST)
            partition_map.note(lost, gap.under_way)

    def identify(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Name the incarnation of the source topic that is copied now."""
        self.of(partition).identify(topic_id)

    # ---- pages that nothing can ask for any more

    def with_copies(self) -> list[TopicPartition]:
        """Return the partitions that have copies in a target topic whose id is known."""
        return [
            partition
            for partition, partition_map in self._maps.items()
            if not partition_map.is_empty and partition_map.target_id != NO_TOPIC_ID
        ]

    def with_older_pages(self) -> list[TopicPartition]:
        """Return the partitions whose maps have pages that may expire."""
        return [partition for partition, partition_map in self._maps.items() if partition_map.older]

    async def prune(self, starts: Mapping[TopicPartition, tuple[int, int]], most: int) -> int:
        """Remove expired pages, given where both logs of partitions begin; returns how many, at
        most ``most``. ``Mm2pyError``: they cannot be removed now."""
        async with self._turn:
            expired: dict[TopicPartition, list[int]] = {}
            left = most
            for partition, (source_start, target_start) in starts.items():
                # (4) A page in the queue may still have to be written over an older one: a
                # tombstone first would be undone by it.
                if partition in self._unwritten:
                    continue
                numbers = self.of(partition).expired(source_start, target_start)[:left]
                if numbers:
                    expired[partition], left = numbers, left - len(numbers)
            if expired:
                await self._store.remove(expired)
            for partition, numbers in expired.items():
                # After the await: the map may have started over meanwhile, which ``forget`` checks.
                self.of(partition).forget(numbers[-1])
            return most - left

    def of_other_tasks(self) -> list[TopicPartition]:
        """Return partitions that have a map and are not of this task."""
        return [partition for partition in self._store.partitions if partition not in self._loaded]

    async def remove(self, partitions: Collection[TopicPartition], most: int) -> int:
        """Remove the maps of partitions that do not exist any more; as ``prune``."""
        left = most
        pages: dict[TopicPartition, Sequence[int]] = {}
        # Oldest pages first, as ``MapIndex.forget`` expects: a crash in between leaves a map that
        # only begins later.
        for partition, numbers in (await self._store.numbers(partitions)).items():
            if some := numbers[:left]:
                pages[partition], left = some, left - len(some)
        if pages:
            await self._store.remove(pages)
        return most - left

    async def write(self) -> None:
        """Write what changed since the last time; a topic that refuses is reported once and tried
        again. ``RetriableError``: not now; it stays for the next time.

        The first page of a partition is written until it counts: above what a former task's pages
        have that came since ``load``, as of one number the first does (8).
        """
        await self._write()
        while unclaimed := dict(self._unclaimed):
            # A topic that may not be read is asked once.
            stored = await self._stored(unclaimed) or {}
            maps = {it: self.of(it) for it in stored}
            ended = {
                it: await self._store.pages(it, _ended(maps[it].older, unclaimed[it], found))
                for it, found in stored.items()
                if is_late(maps[it].start, found.page.start)
            }
            for partition, pages in unclaimed.items():
                if self._unclaimed.get(partition) is not pages:
                    continue  # written again meanwhile, or taken over
                del self._unclaimed[partition]
                if partition not in ended:
                    self._claimed.add(partition)
                    continue
                partition_map = maps[partition]
                partition_map.start = next_start(stored[partition].page.start, self._maps.token)
                partition_map.again()
                again = _restarted([*ended[partition], *pages], partition_map.start)
                waits = self._unwritten.get(partition, [])
                self._unwritten[partition] = _joined(again, waits)
            await self._write()

    async def _write(self) -> None:
        # Commits and pruning take turns: each awaits the broker between its look at the maps and
        # its write.
        async with self._turn:
            if self._store.topics_lost != self._topics_lost:
                self._topics_lost = self._store.topics_lost
                self._unwritten, self._unclaimed = {}, {}
                for partition_map in self._maps.values():
                    partition_map.lose_pages()
            # Before ``take``, which must not run while ``cut_below`` is set.
            await self._deepen()
            self._forget_producers()
            pages = {
                it: partition_map.take()
                for it, partition_map in self._maps.items()
                if partition_map.changed
            }
            self._unsettled.difference_update(pages)
            for partition, changed in pages.items():
                self._unwritten[partition] = _joined(self._unwritten.get(partition, []), changed)
            # Taken out before the await: acknowledgements go on meanwhile, and what fails is joined
            # again below.
            writing, self._unwritten = self._unwritten, {}
            if writing and await self._is_written(writing) and not self._in_transactions:
                for partition in writing.keys() - self._claimed:
                    before = self._unclaimed.get(partition, [])
                    self._unclaimed[partition] = _joined(before, writing[partition])

    async def _is_written(self, writing: Mapping[TopicPartition, list[Page]]) -> bool:
        """Write pages; False where the topic refuses them: they stay for the next time."""
        written = False
        try:
            await self._store.write(writing)
            written = True
        # ``finally`` puts the pages back first; the caller tries again with the next commit.
        except RetriableError:
            raise
        except Mm2pyError as error:
            self._note_refusal(error)
        finally:
            # Also at a cancel in the middle of the write, of which the outcome is unknown: a page
            # is written again, which changes nothing.
            if not written:
                for partition, before in writing.items():
                    newer = self._unwritten.get(partition, [])
                    self._unwritten[partition] = _joined(before, newer)
        if written:
            self.is_refused = False
            self.on_refusal("")
        return written

    def _forget_producers(self) -> None:
        """Of maps that change, where transforms route records: what another start may recognise in
        the target's log lies before their positions."""
        for partition_map in self._maps.values():
            # Records that were routed are not there; those after them, if they are alike, would be
            # taken for what a predecessor wrote, and left out.
            if self._shares_targets and partition_map.changed:
                partition_map.writes_to(partition_map.target_id, NO_PRODUCER_ID, -1)

    async def again(self, left_out: Callable[[], Collection[TopicPartition]]) -> None:
        """Let the next write include the open page of every partition but of those, after what a
        late page has replaced (8); ``RetriableError``: that is not known now."""
        stored: Mapping[TopicPartition, StoredMap] = {}
        # Nothing is written meanwhile: a page that was read is as the map has it.
        async with self._turn:
            before = dict(self._maps)
            try:
                # In a transaction the read would wait for the commit, which waits for the turn.
                if not self._in_transactions:
                    stored = await self._stored(self._loaded) or {}
            finally:
                for partition in self._loaded.difference(left_out()):
                    partition_map = self.of(partition)
                    if partition_map.is_empty:
                        continue
                    partition_map.again()
                    older = stored[partition].replaced[:-1] if partition in stored else ()
                    # It may have been taken back from another process meanwhile (``load``).
                    if older and before.get(partition) is partition_map:
                        waits = self._unwritten.get(partition, [])
                        older = _restarted(older, partition_map.start)
                        self._unwritten[partition] = _joined(older, waits)

    async def settle(self, flushed: Collection[TopicPartition] = ()) -> None:
        """Write the positions that this task stored last into their maps, at its end: any other
        position was set then; ``RetriableError``: not now.

        Of partitions that are ``flushed`` a producer id that ends with the task is forgotten:
        nothing of it is under way. One of a task before it is not: a start that ends while it
        compares the log leaves the rest to the next one.
        """
        for partition in self._renewed.intersection(flushed):
            partition_map = self.of(partition)
            if not self.producer(partition).lasts:
                partition_map.writes_to(partition_map.target_id, NO_PRODUCER_ID, -1)
        for partition in self._unsettled:
            partition_map = self.of(partition)
            if not partition_map.is_empty:
                # The map itself has not changed since its last write, only the position beside it.
                partition_map.again()
        await self.write()

    async def _deepen(self) -> None:
        """Cut maps whose target lost more than their open page."""
        for partition, partition_map in self._maps.items():
            if partition_map.cut_below < 0:
                continue
            page = await self._store.page_below(partition, partition_map.cut_below)
            loss = partition_map.rebase(page)
            if loss is not None:
                self.on_loss(partition, loss)

    def _note_refusal(self, error: Mm2pyError) -> None:
        self.is_refused = True
        self.on_refusal(
            "the offset map cannot be kept, records are copied all the same; offsets are "
            f"translated by offset syncs only, and a kill may double records: {error}"
        )


def _stored(producer: KeptProducer | LogEnd) -> int:
    """Return a producer id as a page has it."""
    return producer.producer_id if producer.lasts else ending_producer(producer.producer_id)


def _restarted(pages: Sequence[Page], start: int) -> list[Page]:
    """Return pages as a task with this ``Page.start`` writes them: of those in the topic none may
    have a lower one than the page before it."""
    return [replace(page, start=start) for page in pages]


def _ended(
    older: Sequence[PageRef], written: Sequence[Page], found: StoredMap
) -> Sequence[PageRef]:
    """Return the pages of a task before those that it has written which a former one has ended, or
    replaced, since they were loaded."""
    there = {ref.number: ref.position for ref in found.older}
    before = [ref for ref in older if ref.position >= 0 and ref.number < written[0].number]
    return list(dropwhile(lambda it: there.get(it.number) == it.position, before))


def _joined(before: Sequence[Page], newer: Sequence[Page]) -> list[Page]:
    """Return pages that were not written yet with those that came since: a page ends those with
    higher numbers."""
    # A map that was cut back begins at a lower number: pages above it that still wait are of a past
    # that is over.
    first = newer[0].number if newer else before[-1].number + 1
    return [*(page for page in before if page.number < first), *newer]


# ---- pruning


LOOK_S: Final = 600.0
MORE_S: Final = 10.0
"""Pause while there is more to remove."""
MOST_PAGES: Final = 2_000
TIMEOUT_S: Final = 60.0


async def answered(look: Awaitable[T], what: str) -> T | None:
    """Return what a look returns, None where it has no answer now, within ``TIMEOUT_S``; ``what``
    is for the log."""
    try:
        # An unreachable broker must not leave a loop hanging for the life of the task.
        async with asyncio.timeout(TIMEOUT_S):
            return await look
    except (Mm2pyError, TimeoutError) as error:
        log.debug("%s now cause=%s", what, error)
    return None


@final
class MapPruning:
    """Prunes the maps of one task.

    Args:
        maps: the task's.
        logs: where the source's logs begin.
        sender: where the target's do.
    """

    def __init__(
        self,
        maps: TaskOffsetMaps,
        logs: CopiedLogs,
        sender: TaskSender,
        *,
        permit: Permit,
        clock: Clock,
    ) -> None:
        self._maps, self._logs, self._sender = maps, logs, sender
        self._permit, self._clock = permit, clock
        self._absent: frozenset[TopicPartition] = frozenset()

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        pause_s = LOOK_S
        while True:
            await self._clock.sleep(pause_s)
            removed = await answered(self.look(), "offset map cannot be pruned") or 0
            if removed:
                log.info("expired pages were removed from the offset map pages=%d", removed)
            pause_s = MORE_S if removed >= MOST_PAGES else LOOK_S

    async def look(self) -> int:
        """Remove what has expired by now; return how many pages. ``Mm2pyError``: not now."""
        # Another task may own the partition by now.
        if not self._permit.valid:
            return 0
        removed = 0
        if older := self._maps.with_older_pages():
            starts = {
                partition: both
                for partition, both in (await self._starts(older)).items()
                if NO_LOG not in both
            }
            # Again after the await.
            if self._permit.valid:
                removed = await self._maps.prune(starts, MOST_PAGES)
        if self._maps.sweeps and removed < MOST_PAGES:
            removed += await self._sweep(MOST_PAGES - removed)
        return removed

    async def _sweep(self, most: int) -> int:
        others = self._maps.of_other_tasks()
        if not others:
            return 0
        starts = await self._starts(others)
        # Found absent in two looks: a broker that has just started may not know a topic yet.
        absent = frozenset(it for it, both in starts.items() if both == (NO_LOG, NO_LOG))
        gone, self._absent = absent & self._absent, absent
        if not gone or not self._permit.valid:
            return 0
        return await self._maps.remove(gone, most)

    async def _starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return where the logs of partitions and of their copies begin, of those where both are
        known."""
        targets = {partition: self._logs.target_of(partition) for partition in partitions}
        sources = await self._logs.log_starts(partitions)
        copies = await self._sender.log_starts(targets.values())
        return {
            partition: (sources[partition], copies[target])
            for partition, target in targets.items()
            if partition in sources and target in copies
        }


# ---- copies that are gone


COPIES_LOOK_S: Final = 60.0
CONFIRM_S: Final = 10.0
"""Pause before a loss is confirmed: a broker that is cut off from the controllers answers with ids
of before."""


@final
class LostCopies:
    """Notices, at the start of a task and then now and then, that the target's topics are others
    than those of its maps.

    Args:
        maps: the task's.
        logs: the names of the copies.
        sender: the target's topics.
    """

    def __init__(
        self,
        maps: TaskOffsetMaps,
        logs: CopiedLogs,
        sender: TaskSender,
        *,
        permit: Permit,
        clock: Clock,
    ) -> None:
        self._maps, self._logs, self._sender = maps, logs, sender
        self._permit, self._clock = permit, clock
        self._suspected: Mapping[TopicPartition, bytes] = {}
        self._had: set[tuple[TopicPartition, bytes]] = set()
        """Copies that the maps have been about since the start: a topic that was deleted does not
        return."""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await answered(self.look(), "the target's topics are not known")
            await self._clock.sleep(CONFIRM_S if self._suspected else COPIES_LOOK_S)

    async def look(self) -> None:
        """Report what is lost, of partitions that were found so twice; ``Mm2pyError``: not now."""
        names = {it: self._logs.target_of(it).topic for it in self._maps.with_copies()}
        ids: Mapping[str, bytes] = {}
        # No copies, no request.
        if names:
            ids = await self._sender.topic_ids(frozenset(names.values()))
        self._had |= {(it, self._maps.of(it).target_id) for it in names}
        found = self._maps.partitions_of_another(
            {
                it: ids[name]
                for it, name in names.items()
                # Metadata of a broker that lags names the topic of before, which a map has been
                # about already: no loss.
                if name in ids and (it, ids[name]) not in self._had
            }
        )
        # Two looks in a row with the same id.
        lost = {it: key for it, key in found.items() if self._suspected.get(it) == key}
        self._suspected = {it: key for it, key in found.items() if it not in lost}
        if (
            self._permit.valid
        ):  # without an await since they were found: what the Sender does meanwhile counts
            self._maps.lose_copies(lost)
