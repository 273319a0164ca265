"""Source positions of one task: what was acknowledged, and when that is written.

Flow: ``acknowledged`` per batch -> pending positions -> ``commit`` -> the flow's offset store.
Invariants, tests of the same names: 1 a position is the last acknowledged record, later only where
the task reports that nothing was left to copy; 2 it never passes a failed partition's failure; 3 a
commit that fails loses nothing: its positions are pending again unless newer ones are; 4 an
unchanged position is not written again, nor is a value that is the stored one; 5 a position waits
while the loss ledger has an event of its partition that is not acknowledged; 6 a stored position is
never ahead of the offset map; 7 it is stored with the id of the topic that its record is in; 8
where the topic of positions was deleted, those that do not change are written again; 9 as long as
a request of a task that is gone may arrive, positions and maps that do not change are written over
it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, final

from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.clock import Clock
from mm2py.errors import NO_ANSWER, Mm2pyError
from mm2py.mirror.source_offsets import (
    committed_epoch,
    edited,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps, answered
from mm2py.runtime.tasks.target_sender import TaskSender
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Where positions are kept; what the committer and the task context need of it."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key, None where there is none."""
        ...

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Store values; returns when all are acknowledged, raises when one is not."""
        ...


def _log_failure(cause: str) -> None:
    if cause:
        log.warning("offset commit failed: %s", cause)


@final
class OffsetCommitter:
    """Positions of one task.

    Args:
        store: the flow's offset store.
        connector: first part of every key.
        source_partition: key of a partition, in Java's member order.
        source_offset: value that means: everything up to this position is copied.
        timeout_ms: bound of one commit (``offset.flush.timeout.ms``); None where it commits a
            transaction: then it takes as long as that takes, and raises.
        withheld: partitions whose position must not be written yet (``EventSink.unwritten``).
        maps: offset maps, which are written before positions.
        on_failure: called with the reason why positions cannot be written, and with an empty text
            when they are again.
    """

    def __init__(
        self,
        store: OffsetStore,
        connector: str,
        *,
        source_partition: Callable[[TopicPartition], SourcePartition],
        source_offset: Callable[[TopicPartition, int], SourceOffset],
        timeout_ms: int | None,
        withheld: Callable[[], Collection[TopicPartition]] = frozenset[TopicPartition],
        maps: TaskOffsetMaps | None = None,
        on_failure: Callable[[str], None] = _log_failure,
    ) -> None:
        self._on_failure = on_failure
        self.on_topic_id: Callable[[TopicPartition, bytes], None] = lambda _partition, _id: None
        """Called when a position was written that is in another topic than the one before."""
        self._store = store
        self._connector = connector
        self._source_partition = source_partition
        self._source_offset = source_offset
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._withheld = withheld
        self._maps = maps or TaskOffsetMaps(NoMapStore())
        self._pending: dict[TopicPartition, int] = {}
        self._keys: dict[TopicPartition, bytes] = {}
        self._written: dict[TopicPartition, tuple[int, bytes | None]] = {}
        self._failed: set[TopicPartition] = set()
        self._ids: dict[TopicPartition, bytes] = {}
        """Topic ids of the positions in ``_pending``; those of what was written are in
        ``_written_ids``."""
        self._written_ids: dict[TopicPartition, bytes] = {}
        self._again: Mapping[bytes, bytes] | None = None
        """Values that are written again with the next commit, with all that were written."""
        self._failing = False
        self._turn = asyncio.Lock()

    @property
    def pending(self) -> Mapping[TopicPartition, int]:
        """Positions that are acknowledged and not yet written."""
        return self._pending

    @property
    def waits(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._pending) or self._again is not None

    def write_again(self, found: Mapping[bytes, bytes]) -> None:
        """Let the next commit write every position, of those that were not written since the start
        the value that was ``found`` then."""
        # Of a commit that is under way the values are known when it has ended.
        self._again = found

    def has_few(self, records: int) -> bool:
        """Whether fewer than so many would be copied again after a kill; a first position is
        many."""
        total = 0
        for partition, position in self._pending.items():
            written = self._written.get(partition)
            # A topic that was created again starts its offsets over: the difference of two
            # positions means nothing.
            if written is None or self._ids[partition] != self._written_ids[partition]:
                return False
            total += position - written[0]
        return 0 <= total < records

    def acknowledged(self, partition: TopicPartition, position: int) -> None:
        """Note the last acknowledged record; called in source order per partition. Hot path."""
        # Batches behind a failed one may still be acknowledged; a position there would skip the
        # failed one at the next start (2).
        if partition not in self._failed:
            self._pending[partition] = position
            self._ids[partition] = self._maps.of(partition).source_id

    def failed(self, partition: TopicPartition) -> None:
        """Freeze a partition where it is: later records may be acknowledged, but one before is
        not."""
        self._failed.add(partition)

    async def commit(self) -> bool:
        """Write what changed; False if that failed, and then it stays pending.

        As in Connect, a failed commit does not fail the task; that of a transaction raises.
        """
        # The flush of the last commit at a stop may meet the periodic one; positions must be stored
        # in their order.
        async with self._turn:
            taken, again = self._take()
            # A map may have changed without a position, as by a loss on the target.
            if not taken and not self._maps.changed and again is None:
                return True
            # Before ``_maps.write``: a topic may begin anew meanwhile.
            ids = {it: self._ids[it] for it in taken}
            offsets = {it: self._source_offset(it, position) for it, position in taken.items()}
            epochs = {it: committed_epoch(at) for it, at in offsets.items()}
            # It puts position and epoch into the pages.
            self._maps.taken(taken, epochs, with_maps=self._timeout_s is None)
            written, values = False, dict[TopicPartition, bytes | None]()
            try:
                async with asyncio.timeout(self._timeout_s):
                    # What was acknowledged by now is in the maps: a position is taken after its
                    # runs were noted.
                    await self._maps.write()
                    # Without a map that covers it a position may be lower than an old one by
                    # right: it must not look like a late one (invariant 11 of the map). Where the
                    # source gives no ids, an epoch would do that.
                    if self._maps.is_refused:
                        offsets = {
                            it: at if ids[it] != NO_TOPIC_ID else edited(at)
                            for it, at in offsets.items()
                        }
                        ids = dict.fromkeys(ids, NO_TOPIC_ID)
                    values = self._encoded(
                        {it: {**at, **_tied(taken[it], ids[it])} for it, at in offsets.items()}
                    )
                    if new := self._new(values, again):
                        await self._store.set(new)
                written = True
            except (Mm2pyError, TimeoutError) as error:
                # In a transaction a failed write breaks the transaction: the task starts again from
                # what is committed.
                if self._timeout_s is None:
                    raise
                self._note_failure(error, self._timeout_s)
            # Also at a timeout or cancel: whether the store has the values is unknown, and writing
            # them again changes nothing.
            finally:
                if not written:
                    self._again = again if self._again is None else self._again
                    for partition, position in taken.items():
                        # Newer positions may have come during the await: those stay.
                        self._pending.setdefault(partition, position)
            if written:
                self._written |= {it: (taken[it], value) for it, value in values.items()}
                self._maps.stored(taken)
                self._note_ids(ids)
            if written and self._failing:
                self._failing = False
                self._on_failure("")
            return written

    def _note_ids(self, ids: Mapping[TopicPartition, bytes]) -> None:
        before, self._written_ids = self._written_ids, {**self._written_ids, **ids}
        for partition, topic_id in ids.items():
            # Zeros: a broker that gives no ids (before 2.8).
            if topic_id not in (before.get(partition), NO_TOPIC_ID):
                self.on_topic_id(partition, topic_id)

    def _take(self) -> tuple[dict[TopicPartition, int], Mapping[bytes, bytes] | None]:
        taken, self._pending = self._pending, {}
        again, self._again = self._again, None
        # Invariant 7 of ARCHITECTURE: a crash after this position and before the ledger's record
        # would hide the loss.
        for partition in self._withheld():
            position = taken.pop(partition, None)
            if position is not None:
                self._pending[partition] = position
        return taken, again

    def _new(
        self, values: Mapping[TopicPartition, bytes | None], again: Mapping[bytes, bytes] | None
    ) -> Mapping[bytes, bytes | None]:
        # A compacted topic still grows by each record; an idle partition writes none.
        new = {
            self._keys[it]: value
            for it, value in values.items()
            if self._written.get(it, ())[1:] != (value,)
        }
        if again is None:
            return new
        before = {self._keys[it]: value for it, (_, value) in self._written.items()}
        return {**again, **before, **new}

    def _encoded(
        self, offsets: Mapping[TopicPartition, SourceOffset]
    ) -> dict[TopicPartition, bytes | None]:
        for partition in offsets.keys() - self._keys.keys():
            # Encoded once: thousands of partitions are written every second.
            partition_of_task = self._source_partition(partition)
            self._keys[partition] = source_offset_key(self._connector, partition_of_task)
        return {partition: source_offset_value(offset) for partition, offset in offsets.items()}

    def _note_failure(self, error: Exception, timeout_s: float) -> None:
        # Reported once, not at each interval.
        if self._failing:
            return
        self._failing = True
        cause = str(error) or f"the target {NO_ANSWER} within {timeout_s:g} s"
        self._on_failure(f"{cause}: positions are stored later")


LATE_S: Final = (60.0, 1_140.0)
"""Pauses from the start: most late requests come within seconds; TCP gives up one after 15 to 20
minutes (Linux: ``tcp_retries2``)."""


async def overwrite_late(
    committer: OffsetCommitter,
    maps: TaskOffsetMaps,
    found: Callable[[], Mapping[bytes, bytes]],
    left_out: Callable[[], Collection[TopicPartition]],
    *,
    clock: Clock,
) -> None:
    """Let positions and maps be written again after a start, for programs that take the last
    record of a key, as Java does (9).

    Args:
        committer: writes them with its next commits.
        maps: of the task.
        found: the stored positions that the task began with, but of what it does not copy.
        left_out: what it does not copy.
        clock: for the pauses.
    """
    for pause_s in LATE_S:
        await clock.sleep(pause_s)
        await answered(maps.again(left_out), "what came late over the offset map is not known")
        committer.write_again(found())


LOOK_S: Final = 30.0


@final
class LostPositions:
    """Notices that the topic of a task's positions is gone, or another one (8).

    Args:
        topic: its name, on the target.
        sender: the target's topics.
        found: the stored positions that the task began with.
        committer: writes them again.
    """

    def __init__(
        self,
        topic: str,
        sender: TaskSender,
        found: Callable[[], Mapping[bytes, bytes]],
        committer: OffsetCommitter,
        *,
        clock: Clock,
    ) -> None:
        self._topic, self._sender = topic, sender
        self._found, self._committer, self._clock = found, committer, clock
        self._topic_id = b""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await answered(self.look(), "the topic of positions is not known")
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Compare its id with that of the last look; ``Mm2pyError``: not now."""
        here = (await self._sender.topic_ids([self._topic])).get(self._topic, b"")
        # A broker that lags names the one of before: what is written once more changes nothing.
        if self._topic_id not in (b"", here):
            log.warning(
                "topic of positions was deleted, they are written again topic=%s", self._topic
            )
            self._committer.write_again(self._found())
        self._topic_id = here or self._topic_id


def _tied(position: int, topic_id: bytes) -> SourceOffset:
    """Return the members of a stored position that identify its topic."""
    offset = dict(source_offset(position, topic_id=topic_id))
    del offset["offset"]
    return offset
