"""Assignment of partitions to brokers: the leader, or the nearer replica that the leader names.

Flow: ``seek`` -> leader and incarnation looked up -> ``FetchNode.add``; ``read_from`` moves a
partition to a follower (KIP-392), ``recheck`` brings it back. Retries without end: back-off and
``FetchOwner.stalled``.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.metadata_cache import Leader
from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.node import FetchNode
from mm2py.client.fetch.owner import FetchOwner
from mm2py.client.pacing import ByteRate, quota_holds
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, ServerError
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.protocol.topics import is_another_topic

log = logging.getLogger(__name__)

SILENT_S: Final = 2.0
"""A broker whose response is overdue for longer may be dead: its partitions may have another leader
by now, long before ``request.timeout.ms`` or ``socket.connection.setup.timeout.ms`` end the
attempt."""


@final
class FetchRoutes:
    """Owns the nodes, and the assignment of partitions to nodes."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        owner: FetchOwner,
        losses: FetchLosses,
        rate: ByteRate | None,
        linger_ms: int,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._owner = owner
        self._losses = losses
        self._rate = rate
        self._linger_ms = linger_ms
        self.nodes: dict[int, FetchNode] = {}
        """Brokers that are or were fetched from, by node id."""
        self._homeless: dict[Cursor, None] = {}
        self._patient: dict[Cursor, None] = {}
        self._away: dict[Cursor, None] = {}
        self._unproven: dict[Cursor, None] = {}
        self._withheld: set[Cursor] = set()
        self._router: asyncio.Task[None] | None = None
        self._pause: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None

    def leave(self, cursor: Cursor) -> None:
        """Stop fetching a partition."""
        node = self.nodes.get(cursor.node)
        if node is not None:
            node.remove(cursor)
        cursor.left()
        self._homeless.pop(cursor, None)
        self._patient.pop(cursor, None)
        self._away.pop(cursor, None)
        self._unproven.pop(cursor, None)

    def known_at(self, cursor: Cursor, now: float) -> float:
        """Return when the end of a partition's log was last known; ``now`` is monotonic."""
        node = self.nodes.get(cursor.node)
        return cursor.known_at if node is None else node.known_at(cursor, now)

    def is_blind(self, cursor: Cursor) -> bool:
        """Whether its broker's responses do not say where its log ends now."""
        node = self.nodes.get(cursor.node)
        return node is not None and node.is_blind

    def touch(self, cursor: Cursor) -> None:
        """Note that it was paused or resumed."""
        node = self.nodes.get(cursor.node)
        if node is not None:
            node.touch(cursor)

    def read_again(self, cursor: Cursor) -> None:
        """Fetch from a position that went back; a response in flight is ignored."""
        if cursor.node in self.nodes:
            self._place(cursor, cursor.node)

    def wake(self) -> None:
        """Notify nodes that memory may be free."""
        for node in self.nodes.values():
            node.wake()

    def seek(
        self, cursor: Cursor, hint: tuple[int, int] | None = None, *, pause: bool = False
    ) -> None:
        """Remove the cursor from its broker and look up the leader, after a ``pause`` if requested.

        ``hint`` is the (node, epoch) that the refusing broker named (KIP-951). The pause grows
        with ``cursor.attempts`` and delays no other partition.
        """
        moved, epoch = cursor.leader >= 0, cursor.leader_epoch
        self.leave(cursor)
        if cursor.failed:
            return
        if moved:
            # An old leader may name itself or one before it: only a newer epoch is news (KIP-951).
            if hint is not None and hint[1] > epoch:
                self._cluster.leader_moved(cursor.tp, *hint)
            else:
                self._cluster.leader_moved(cursor.tp)
        if pause:
            self._patient[cursor] = None
            self._start()
        else:
            self._find_home(cursor)

    def read_from(self, cursor: Cursor, node_id: int) -> None:
        """Read from a follower for ``metadata.max.age.ms``, then ask the leader again (KIP-392)."""
        self._place(cursor, node_id)
        max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
        cursor.follow_until(self._clock.monotonic() + max_age_s)
        self._away[cursor] = None

    def recheck(self, now: float) -> None:
        """Return partitions that have read from a follower long enough to their leader, which may
        name a replica again.

        Also reports stalled partitions as read again once a broker has answered, and looks up the
        leaders of partitions whose broker is silent.
        """
        # ``attempts`` is 0 after an answer with no error.
        for cursor in [c for c in self._unproven if not c.attempts]:
            del self._unproven[cursor]
            self._owner.stalled(cursor.tp, None)
        self._report_withheld()
        for node in self.nodes.values():
            node.look_after()
        for cursor in [c for c in self._away if c.replica_until <= now]:
            del self._away[cursor]
            self._place(cursor, cursor.leader)
        if self._check is None or self._check.done():
            silent = [node for node in self.nodes.values() if node.silent_s(now) > SILENT_S]
            waiting = [cursor for node in silent for cursor in node.cursors]
            if waiting:
                self._check = self._owner.spawn(self._move_from_silent(waiting))

    # -- inside -----------------------------------------------------------------------------------

    def _report_withheld(self) -> None:
        throttled = [it for it in self.nodes.values() if it.throttle.is_reportable()]
        withheld = {cursor: node.node_id for node in throttled for cursor in node.cursors}
        for cursor in self._withheld - withheld.keys():
            self._owner.stalled(cursor.tp, None)
        for cursor in withheld.keys() - self._withheld:
            error = quota_holds(withheld[cursor], self._cluster.settings.client_id)
            self._owner.stalled(cursor.tp, error)
        self._withheld = set(withheld)

    def _place(self, cursor: Cursor, node_id: int) -> None:
        node = self.nodes.get(cursor.node)
        if node is not None:
            node.remove(cursor)
        cursor.placed(node_id)
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = FetchNode(
                node_id,
                self._cluster,
                self._settings,
                clock=self._clock,
                owner=self._owner,
                losses=self._losses,
                rate=self._rate,
                linger_ms=self._linger_ms,
            )
            self._owner.spawn(node.run())
        node.add(cursor)

    def _start(self) -> None:
        if self._homeless and (self._router is None or self._router.done()):
            self._router = self._owner.spawn(self._route())
        if self._patient and (self._pause is None or self._pause.done()):
            self._pause = self._owner.spawn(self._wait())

    async def _wait(self) -> None:
        """Retry refused partitions, each round after a pause."""
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while self._patient:
            # The least refused one sets the pause; a partition
            # that fails for hours must not slow others.
            backoff.failures = max(0, min(cursor.attempts for cursor in self._patient) - 1)
            await self._clock.sleep(backoff.next_s())
            waiting, self._patient = self._patient, {}
            for cursor in waiting:
                self._find_home(cursor)

    async def _route(self) -> None:
        """Look up the leaders of all cursors without a broker at once; those without a leader wait
        for another round."""
        while self._homeless:
            waiting = list(self._homeless)
            problem = await self._ask_leaders(waiting)
            for cursor in waiting:
                if cursor in self._homeless:
                    del self._homeless[cursor]
                    self._find_home(cursor, problem or self._cluster.no_leader(cursor.tp))

    async def _ask_leaders(self, cursors: Collection[Cursor]) -> Mm2pyError | None:
        try:
            await self._cluster.metadata(sorted({cursor.tp.topic for cursor in cursors}))
        except Mm2pyError as error:
            return error
        return None

    def _find_home(self, cursor: Cursor, problem: Mm2pyError | None = None) -> None:
        """Place a cursor at its leader; look an unknown leader up, or wait if that failed with
        ``problem``."""
        if cursor.failed:
            return
        leader = self._cluster.known_leader(cursor.tp)
        if leader is not None:
            self._settle(cursor, leader)
        elif problem is None:
            self._homeless[cursor] = None
            self._start()
        else:
            self._look_for_another(cursor, problem)
            self._owner.stalled(cursor.tp, problem)
            if not cursor.failed:
                cursor.refused()
                self._patient[cursor] = None
                self._start()

    def _settle(self, cursor: Cursor, leader: Leader) -> None:
        cursor.led_by(leader)
        if cursor.attempts:
            # Brokers name a dead leader until its session ends:
            # only its response proves that the partition is read.
            self._unproven[cursor] = None
        else:
            self._owner.stalled(cursor.tp, None)
        self._place(cursor, leader.node_id)

    async def _move_from_silent(self, waiting: Collection[Cursor]) -> None:
        problem = await self._ask_leaders(waiting)
        if problem is not None:
            log.debug("leaders of silent brokers are not known cause=%s", problem)
            return
        for cursor in waiting:
            leader = self._cluster.known_leader(cursor.tp)
            # It found another broker while the request was under way.
            if leader is None or cursor.failed or cursor.leader < 0:
                continue
            # A frozen broker keeps its TCP connections; Java notices only after request.timeout.ms.
            if leader.node_id != cursor.node or leader.epoch != cursor.leader_epoch:
                self.leave(cursor)
                cursor.refused()
                self._settle(cursor, leader)

    def _look_for_another(self, cursor: Cursor, error: Mm2pyError) -> None:
        """Handle a missing partition whose topic was recreated with fewer partitions."""
        known = self._cluster.known_topic_id(cursor.tp.topic)
        if (
            isinstance(error, ServerError)
            and error.code == UNKNOWN_TOPIC_OR_PARTITION
            and known is not None
            and is_another_topic(cursor.topic_id, known)
        ):
            self._losses.without_partition(cursor, known)
