"""The first positions of a MirrorSink's group (``start.positions``), committed before one of its
members reads; with ``auto.offset.reset=latest`` also those of partitions without a rule.

Flow: partitions without a position -> rules -> ListOffsets -> one commit of the group, which a
broker takes from outside only while the group has no members. Topics that would begin elsewhere
without it wait for that; those that would not begin as ``auto.offset.reset`` defines.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, final

from mm2py.errors import Mm2pyError, RetriableServerError
from mm2py.mirror.start_positions import StartPositions
from mm2py.protocol import error_codes as codes
from mm2py.protocol.groups import OffsetToCommit
from mm2py.types import EARLIEST, LATEST, TopicPartition, asked_start
from mm2py_connectors.clients import GroupSession, MirrorAdmin

log = logging.getLogger(__name__)

_HAS_MEMBERS: Final = frozenset({codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION})

Offsets = Mapping[TopicPartition, int]


@final
class FirstPositions:
    """The rules of one connector, applied to its group.

    Args:
        consumer: properties of the consumer of its tasks.
        source: admin client of the source.
        groups: opens the administration of groups there.
        read: topics that the flow's tasks had before this start.
    """

    def __init__(
        self,
        starts: StartPositions,
        consumer: Mapping[str, str],
        source: MirrorAdmin,
        groups: Callable[[], GroupSession],
        read: Collection[str] = (),
    ) -> None:
        self._starts, self._source, self._groups = starts, source, groups
        self._read = frozenset(read)
        self._group = consumer["group.id"]
        self._reset = consumer["auto.offset.reset"].strip().lower()
        self._committed_only = consumer.get("isolation.level", "").strip() == "read_committed"
        self._settled: set[TopicPartition] = set()
        self._is_later = False
        self._unknown: dict[TopicPartition, str] = {}
        """Partitions whose leaders do not say where their logs begin and end, with the cause."""
        self.waiting: Mapping[TopicPartition, str] = {}
        """Partitions whose topic must not be read yet, with the cause."""

    async def settle(self, partitions: Collection[TopicPartition]) -> None:
        """Give positions to those that have a rule and no position; those that were checked before
        cost nothing.

        Raises:
            RetriableError: the source cannot be asked now.
            ServerError: it refuses the group, or its offsets.
        """
        new = [tp for tp in partitions if tp not in self._settled]
        ruled = [tp for tp in new if self._start_of(tp) is not None]
        waiting, self._unknown = dict[TopicPartition, str](), {}
        if ruled:
            opened = self._groups()
            try:
                await opened.session.connect()
                waiting = await self._begin(ruled, opened)
            finally:
                await opened.session.close()
        self._settled.update(tp for tp in new if tp not in waiting and tp not in self._unknown)
        self.waiting, self._is_later = waiting, True

    async def _begin(
        self, ruled: Sequence[TopicPartition], opened: GroupSession
    ) -> dict[TopicPartition, str]:
        stored = (await opened.groups.committed([self._group]))[self._group]
        if isinstance(stored, Mm2pyError):
            raise stored
        new = [tp for tp in ruled if tp not in stored]
        if not new:
            return {}
        is_later = self._is_later or bool(stored)
        begins = await self._listed(dict.fromkeys(new, EARLIEST))
        ends = await self._listed(dict.fromkeys(begins, LATEST))
        offsets = await self._offsets(begins, ends, is_later=is_later)
        known = {tp.topic for tp in stored} | self._read
        waiting = {tp: why for tp, why in self._unknown.items() if tp.topic not in known}
        if not offsets or await self._commit(opened, offsets):
            for tp, offset in offsets.items():
                log.info("partition begins partition=%s offset=%d", tp, offset)
            return waiting
        without = {"earliest": begins, "latest": ends}.get(self._reset, {})
        for tp, offset in offsets.items():
            # A member would begin at the end, behind what is written until it comes.
            moves_on = self._reset == "latest" and self._start_of(tp) == LATEST
            if offset == without.get(tp) and not (
                moves_on and self._is_late(tp, is_later=is_later)
            ):
                continue
            if tp.topic in known:
                log.warning(
                    "start.positions does not count for a new partition of a topic that is being copied partition=%s"
                    " offset=%d auto.offset.reset=%s",
                    tp, offset, self._reset,
                )  # fmt: skip
                continue
            why = "auto.offset.reset" if self._starts.of(tp) is None else "start.positions"
            waiting[tp] = (
                f"it cannot begin at offset {offset} ({why}) while group {self._group} "
                "has members: stop the connector, and resume it"
            )
        return waiting

    async def _offsets(self, begins: Offsets, ends: Offsets, *, is_later: bool) -> Offsets:
        """Return where each partition begins; what appears later begins at its first record in
        place of ``latest``."""
        times: dict[TopicPartition, int] = {}
        offsets: dict[TopicPartition, int] = {}
        for tp, end in ends.items():
            position, begin = self._start_of(tp), begins[tp]
            assert position is not None
            at_ms, offset = asked_start(position)
            if at_ms is not None:
                times[tp] = at_ms
            elif offset is not None:
                offsets[tp] = min(max(offset, begin), end)
            else:
                is_late = position != LATEST or self._is_late(tp, is_later=is_later)
                offsets[tp] = begin if is_late else end
        if times:
            listed = await self._listed(times)
            offsets |= {tp: at if at >= 0 else ends[tp] for tp, at in listed.items()}
        return offsets

    def _start_of(self, tp: TopicPartition) -> int | None:
        """Return where a partition begins by its rule, or by ``latest``, which is the flow's first
        start: a consumer takes it for its own at each start and for each topic."""
        position = self._starts.of(tp)
        return LATEST if position is None and self._reset == "latest" else position

    def _is_late(self, tp: TopicPartition, *, is_later: bool) -> bool:
        """Whether a partition was found after the first start. Earlier builds gave those no
        position that have no rule."""
        return is_later and not (self._starts.of(tp) is None and tp.topic in self._read)

    async def _listed(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        listed = await self._source.list_offsets(timestamps, read_committed=self._committed_only)
        for tp, it in listed.items():
            if isinstance(it.error, RetriableServerError):
                self._unknown[tp] = f"where it begins is not known now: {it.error}"
            elif it.error is not None:
                raise it.error
        return {tp: it.offset for tp, it in listed.items() if it.error is None}

    async def _commit(self, opened: GroupSession, offsets: Offsets) -> bool:
        """Commit all of them or none; False while the group has members."""
        commits = [OffsetToCommit(*tp, offset) for tp, offset in offsets.items()]
        answers = await opened.groups.commit(self._group, commits)
        for refusal in answers.values():
            if refusal is not None:
                # A broker takes commits from outside of a group only while it has no members.
                if refusal.code in _HAS_MEMBERS:
                    return False
                raise refusal
        return True
