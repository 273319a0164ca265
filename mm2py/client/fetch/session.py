"""A fetch session (KIP-227, Java's ``FetchSessionHandler``): only partitions that changed are sent
again. No I/O.

Flow: cursors of one broker -> ``plan`` -> request; response -> ``opened`` / ``refused`` -> next
``plan``. While several partitions have more data than fits into a response: their lag in seconds ->
``shares``. Without a session (old broker, no free slot) every plan is a full one. A partition is
touched when its state may have changed; an idle one costs nothing per round.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias, final

from mm2py.client.fetch.cursor import Cursor
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import FetchPartition, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
"""With id 0: a Fetch outside any session."""

# Then 1 again, as FetchMetadata.nextEpoch: 0 would open a session, -1 end it.
_MAX_EPOCH: Final = 0x7FFFFFFF

LEAST_BYTES: Final = 128 * 1024
"""Smallest share of a response: smaller pieces cost more per byte than the fairness is worth."""

_LEAST_LAG_MS: Final = 1000

Key: TypeAlias = tuple[str | bytes, int]
"""Topic name, or topic id from v13 on, and partition: as in responses."""


@final
class Asked:
    """One partition as it is in the broker's session."""

    __slots__ = ("cursor", "key", "wanted")

    def __init__(self, cursor: Cursor, key: Key, wanted: FetchPartition) -> None:
        self.cursor = cursor
        self.key = key
        self.wanted = wanted


class FetchPlan(NamedTuple):
    """One request's session fields, partitions and those to drop."""

    session_id: int
    epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenTopic]


@final
class FetchSession:
    """Session state of one connection; ``enabled``: the broker supports v7."""

    __slots__ = ("_asked", "_by_key", "_by_name", "_enabled", "_epoch", "_id", "_touched", "_turn")

    def __init__(self, *, enabled: bool, by_name: bool) -> None:
        self._enabled = enabled
        self._by_name = by_name
        self._id: int = NO_SESSION
        self._epoch: int = INITIAL_EPOCH if enabled else FINAL_EPOCH
        self._asked: dict[Cursor, Asked] = {}
        self._by_key: dict[Key, Asked] = {}
        self._touched: dict[Cursor, None] = {}
        self._turn = 0

    @property
    def by_name(self) -> bool:
        """Whether topics are identified by name; ids and names do not mix in a session (error
        106)."""
        return self._by_name

    @property
    def size(self) -> int:
        """Number of partitions in the session."""
        return len(self._asked)

    def touch(self, cursor: Cursor) -> None:
        """Compare the cursor with the session when the next request is built."""
        self._touched[cursor] = None

    def answered(self, topic: str | bytes, partition: int) -> Asked | None:
        """Return the partition as the last request, or an earlier one of the session, named it,
        and touch it."""
        asked = self._by_key.get((topic, partition))
        if asked is not None:
            self._touched[asked.cursor] = None
        return asked

    def plan(self, cursors: Collection[Cursor], max_bytes: int) -> FetchPlan:
        """Return the next request; ``cursors`` are those of this broker, ``max_bytes`` per
        partition.

        A plan must be sent, since it changes the session. After a failure call ``refused`` or start
        a new session.
        """
        # Epoch 0 opens a session with all partitions, -1 is a Fetch without one.
        if self._epoch <= INITIAL_EPOCH:
            return self._full(cursors, max_bytes)
        changed: list[FetchPartition] = []
        gone: list[Asked] = []
        touched, self._touched = self._touched, {}
        for cursor in touched:
            known = self._asked.get(cursor)
            if cursor in cursors and cursor.fetchable:
                # A new incarnation is another partition for the
                # broker: the old one is forgotten by its id.
                if known is None or known.wanted.topic_id != cursor.topic_id:
                    if known is not None:
                        gone.append(known)
                    changed.append(self._learn(cursor, max_bytes))
                elif _update(known.wanted, cursor, max_bytes):
                    changed.append(known.wanted)
            elif known is not None:
                gone.append(known)
                del self._asked[cursor]
        return FetchPlan(self._id, self._epoch, changed, self._forget(gone) if gone else [])

    def opened(self, session_id: int) -> None:
        """Note a response without an error; id 0: the broker has no free session slot."""
        if not self._enabled:
            return
        if session_id == NO_SESSION:
            # All slots are taken (max.incremental.fetch.session.cache.slots):
            # full requests until one is free.
            self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH or session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def refused(self, code: int) -> None:
        """Reset after a session error: the next request is a full one.

        With the old id at epoch 0 it also ends the old session (Java's
        ``nextCloseExistingAttemptNew``), unless the broker has forgotten it (error 70).
        """
        # Evicted, or the broker was restarted; there is nothing to close.
        if code == codes.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH if self._enabled else FINAL_EPOCH

    # -- inside -----------------------------------------------------------------------------------

    def _full(self, cursors: Collection[Cursor], max_bytes: int) -> FetchPlan:
        self._touched.clear()
        self._asked.clear()
        self._by_key.clear()
        fetchable = [cursor for cursor in cursors if cursor.fetchable]
        if fetchable:
            # Within a session the broker rotates partitions; outside
            # the client must, or the last ones starve (KIP-74).
            self._turn = (self._turn + 1) % len(fetchable)
            fetchable = fetchable[self._turn :] + fetchable[: self._turn]
        partitions = [self._learn(cursor, max_bytes) for cursor in _by_topic(fetchable)]
        return FetchPlan(self._id, self._epoch, partitions, [])

    def _learn(self, cursor: Cursor, max_bytes: int) -> FetchPartition:
        wanted = FetchPartition(cursor.tp.topic, cursor.topic_id, cursor.tp.partition, -1)
        _update(wanted, cursor, max_bytes)
        key = cursor.tp.topic if self._by_name else cursor.topic_id, cursor.tp.partition
        self._asked[cursor] = self._by_key[key] = Asked(cursor, key, wanted)
        return wanted

    def _forget(self, gone: list[Asked]) -> list[ForgottenTopic]:
        topics: dict[str | bytes, ForgottenTopic] = {}
        for asked in gone:
            # A new cursor of the same partition took the key over: the request changes it, and a
            # broker applies the forgotten topics after the changes, so it would drop the partition.
            if self._by_key.get(asked.key) is not asked:
                continue
            del self._by_key[asked.key]
            wanted = asked.wanted
            topic = topics.setdefault(
                asked.key[0], ForgottenTopic(wanted.topic, wanted.topic_id, [])
            )
            topic.partitions = [*topic.partitions, wanted.partition]
        return list(topics.values())


def _update(wanted: FetchPartition, cursor: Cursor, max_bytes: int) -> bool:
    """Update the request's partition; returns whether anything changed."""
    most = min(cursor.share_bytes, max_bytes) if cursor.share_bytes else max_bytes
    if (
        wanted.position == cursor.position
        # Each of these is state that the broker keeps: what is not sent again it continues with.
        and wanted.current_leader_epoch == cursor.leader_epoch
        and wanted.last_fetched_epoch == cursor.last_epoch
        and wanted.max_bytes == most
    ):
        return False
    wanted.position = cursor.position
    wanted.current_leader_epoch = cursor.leader_epoch
    wanted.last_fetched_epoch = cursor.last_epoch
    wanted.max_bytes = most
    return True


def _by_topic(cursors: Iterable[Cursor]) -> list[Cursor]:
    """Group partitions by topic, as the request does, in the order of rotation."""
    topics: dict[str, list[Cursor]] = {}
    for cursor in cursors:
        topics.setdefault(cursor.tp.topic, []).append(cursor)
    return [cursor for group in topics.values() for cursor in group]


def shares(
    backlogged: Collection[Cursor], limit: int, answer_bytes: int, now_ms: int
) -> Iterator[tuple[Cursor, int]]:
    """Yield the partitions whose share changes, with the new one; 0 is no limit.

    While all fit into a response none is limited. Otherwise each gets a part of it by its lag in
    seconds, a quarter of it equally, so that a partition far behind catches up first but not alone.
    The broker serves a session's partitions in turn, so none starves.
    """
    if len(backlogged) * limit <= answer_bytes:
        yield from ((cursor, 0) for cursor in backlogged if cursor.share_bytes)
        return
    lags = [max(now_ms - cursor.newest_ms, _LEAST_LAG_MS) for cursor in backlogged]
    equal = answer_bytes // 4 // len(backlogged)
    rest, total = answer_bytes - answer_bytes // 4, sum(lags)
    for cursor, lag in zip(backlogged, lags, strict=True):
        # Room for two batches like the last: a broker leaves out what would be cut (KIP-74).
        share = max(2 * cursor.batch_bytes, equal + rest * lag // total)
        steps = -(-share // LEAST_BYTES)  # whole steps, so that small changes need no request
        share = min(limit, steps * LEAST_BYTES)
        if share != cursor.share_bytes:
            yield cursor, share
