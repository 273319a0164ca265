"""Which broker each partition is fetched from: its leader, or the nearer replica that the leader names.

Flow: ``seek`` -> leader, position and incarnation looked up -> ``FetchNode.add``; ``read_from`` moves a
partition to a follower (KIP-392), ``recheck`` brings it back. Never gives up: back-off and ``on_stalled``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster, Leader
from mm2py.client.fetch.cursor import NO_TOPIC_ID, Cursor
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.node import FetchNode
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ServerError
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.protocol.fetch import FETCH_KEY
from mm2py.types import TopicPartition

__all__ = ["FetchRoutes"]

_DIVERGING_VERSION = 12
"""From here on Fetch itself tells a truncation; before, OffsetForLeaderEpoch does."""


@final
class FetchRoutes:
    """Knows the nodes and who is fetched where."""

    def __init__(
        self,
        cluster: Cluster,
        losses: FetchLosses,
        *,
        clock: Clock,
        read_committed: bool,
        new_node: Callable[[int], FetchNode],
        spawn: Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"],
        on_stalled: Callable[[TopicPartition, Exception | None], None],
    ) -> None:
        self._cluster = cluster
        self._losses = losses
        self._clock = clock
        self._read_committed = read_committed
        self._new_node = new_node
        self._spawn = spawn
        self._on_stalled = on_stalled
        self._admin = Admin(cluster)
        self._nodes: dict[int, FetchNode] = {}
        self._homeless: dict[Cursor, None] = {}
        self._patient: dict[Cursor, None] = {}
        self._away: dict[Cursor, None] = {}
        self._unproven: dict[Cursor, None] = {}
        self._router: asyncio.Task[None] | None = None
        self._pause: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> Iterable[FetchNode]:
        """Brokers that are or were fetched from."""
        return self._nodes.values()

    def leave(self, cursor: Cursor) -> None:
        """Fetch it from nowhere."""
        node = self._nodes.get(cursor.node)
        if node is not None:
            node.remove(cursor)
        cursor.node = cursor.leader = -1
        self._homeless.pop(cursor, None)
        self._patient.pop(cursor, None)
        self._away.pop(cursor, None)
        self._unproven.pop(cursor, None)

    def touch(self, cursor: Cursor) -> None:
        """It was paused or resumed."""
        node = self._nodes.get(cursor.node)
        if node is not None:
            node.touch(cursor)

    def wake(self) -> None:
        """There may be memory for another Fetch."""
        for node in self._nodes.values():
            node.wake()

    def seek(
        self, cursor: Cursor, hint: tuple[int, int] | None = None, *, pause: bool = False
    ) -> None:
        """Take the cursor from its broker and find out who leads now, after a pause if asked.

        ``hint`` is (node, epoch) as the broker that refused us named it (KIP-951). The pause grows
        with ``cursor.attempts`` and holds up nobody else.
        """
        moved, epoch = cursor.leader >= 0, cursor.leader_epoch
        self.leave(cursor)
        if cursor.failed:
            return
        if moved:
            if hint is not None and hint[1] > epoch:
                self._cluster.leader_moved(cursor.tp, *hint)
            else:
                self._cluster.leader_moved(cursor.tp)
        (self._patient if pause else self._homeless)[cursor] = None
        self._start()

    def read_from(self, cursor: Cursor, node_id: int) -> None:
        """Read from a follower for ``metadata.max.age.ms``, then ask the leader again (KIP-392)."""
        self._place(cursor, node_id)
        cursor.replica_until = (
            self._clock.monotonic() + self._cluster.settings.metadata_max_age_ms / 1000
        )
        self._away[cursor] = None

    def recheck(self, now: float) -> None:
        """Let the leader choose again for those that have read from a follower long enough.

        Also says of those that were stalled that they are read again, once a broker has answered.
        """
        for cursor in [c for c in self._unproven if not c.attempts]:
            del self._unproven[cursor]
            self._on_stalled(cursor.tp, None)
        for cursor in [c for c in self._away if c.replica_until <= now]:
            del self._away[cursor]
            self._place(cursor, cursor.leader)

    def lost(self, cursors: list[Cursor], error: Exception) -> None:
        """A broker is away."""
        for cursor in cursors:
            self._on_stalled(cursor.tp, error)
            cursor.attempts += 1
            self.seek(cursor, pause=True)

    # -- inside -----------------------------------------------------------------------------------

    def _place(self, cursor: Cursor, node_id: int) -> None:
        node = self._nodes.get(cursor.node)
        if node is not None:
            node.remove(cursor)
        cursor.node = node_id
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = self._new_node(node_id)
            self._spawn(node.run())
        node.add(cursor)

    def _start(self) -> None:
        if self._homeless and (self._router is None or self._router.done()):
            self._router = self._spawn(self._route())
        if self._patient and (self._pause is None or self._pause.done()):
            self._pause = self._spawn(self._wait())

    async def _wait(self) -> None:
        """Let those who were refused try again, each round after a pause."""
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while self._patient:
            backoff.failures = max(0, min(cursor.attempts for cursor in self._patient) - 1)
            await self._clock.sleep(backoff.next_s())
            self._homeless.update(self._patient)
            self._patient.clear()
            self._start()

    async def _route(self) -> None:
        """Give every homeless cursor its leader and position; who gets none waits for another round."""
        while self._homeless:
            waiting = list(self._homeless)
            unknown = [c for c in waiting if self._cluster.known_leader(c.tp) is None]
            problem = await self._prefetch(unknown) if unknown else None
            await self._look_up_positions([c for c in waiting if c.position < 0])
            for cursor in waiting:
                if cursor in self._homeless and cursor.position >= 0:
                    await self._settle(cursor, problem)
                if cursor in self._homeless:
                    del self._homeless[cursor]
                    cursor.attempts += 1
                    self._patient[cursor] = None
            self._start()

    async def _prefetch(self, cursors: list[Cursor]) -> Mm2pyError | None:
        """Ask for all leaders at once; one by one each would refresh the metadata."""
        try:
            await self._cluster.metadata(sorted({cursor.tp.topic for cursor in cursors}))
        except Mm2pyError as error:
            for cursor in cursors:
                self._on_stalled(cursor.tp, error)
            return error
        return None

    async def _look_up_positions(self, cursors: list[Cursor]) -> None:
        if not cursors:
            return
        try:
            answers = await self._admin.list_offsets(
                {c.tp: c.position for c in cursors}, read_committed=self._read_committed
            )
        except Mm2pyError as error:
            for cursor in cursors:
                self._on_stalled(cursor.tp, error)
            return
        for cursor in cursors:
            answer = answers[cursor.tp]
            if answer.error is None:
                cursor.position = answer.offset
            else:
                self._cluster.leader_moved(cursor.tp)
                self._on_stalled(cursor.tp, answer.error)

    async def _settle(self, cursor: Cursor, problem: Mm2pyError | None) -> None:
        """Place one cursor; who has no leader after the question for all waits for the next round."""
        tp = cursor.tp
        leader = self._cluster.known_leader(tp)
        try:
            if leader is None:
                raise problem or self._cluster.no_leader(tp)
            if cursor.topic_id in (NO_TOPIC_ID, leader.topic_id):
                await self._validate(cursor, leader)
        except Mm2pyError as error:
            self._cluster.leader_moved(tp)  # whoever that was, the next round asks again
            self._look_for_another(cursor, error)
            self._on_stalled(tp, error)
            return
        if cursor not in self._homeless:
            return
        if cursor.topic_id not in (NO_TOPIC_ID, leader.topic_id):
            known = await self._losses.incarnation_ended(cursor, leader)
            if not known or cursor not in self._homeless:
                return
        del self._homeless[cursor]
        cursor.topic_id = leader.topic_id
        cursor.leader, cursor.leader_epoch = leader.node_id, leader.epoch
        if cursor.attempts:
            # Brokers name a dead leader until its session ends: only its answer tells that it is read.
            self._unproven[cursor] = None
        else:
            self._on_stalled(tp, None)
        self._place(cursor, leader.node_id)

    def _look_for_another(self, cursor: Cursor, error: Mm2pyError) -> None:
        """Whether the partition is missing because its topic is another one now, with fewer of them."""
        known = self._cluster.known_topic_id(cursor.tp.topic)
        if (
            isinstance(error, ServerError)
            and error.code == UNKNOWN_TOPIC_OR_PARTITION
            and known not in (None, NO_TOPIC_ID, cursor.topic_id)
            and cursor.topic_id != NO_TOPIC_ID
        ):
            self._losses.without_partition(cursor, known)

    async def _validate(self, cursor: Cursor, leader: Leader) -> None:
        """Check the position against a new leader's log where Fetch does not do it (before v12)."""
        if cursor.last_epoch < 0 or cursor.validated_epoch == leader.epoch:
            return
        connection = await self._cluster.connection(leader.node_id, "fetch")
        version = connection.negotiated(FETCH_KEY, 4, _DIVERGING_VERSION, "Fetch")
        if version < _DIVERGING_VERSION:
            await self._losses.check_epoch(cursor)
        cursor.validated_epoch = leader.epoch
