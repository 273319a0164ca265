"""New lanes of a Sender: their leaders, the ends of their logs and what their topics take, many at a time.

Flow: ``add`` -> metadata, limits -> ListOffsets of each leader -> ``SenderLane.opened`` -> ``LaneOwner.ready``. A target
that does not answer is asked without end, with back-off; ``LaneOwner.stalled`` reports it.
"""

import asyncio
from typing import final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.limits import LaneLimits
from mm2py.client.send.owner import LaneOwner
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError
from mm2py.protocol import error_codes as codes
from mm2py.types import LATEST

__all__ = ["LaneOpening"]


@final
class LaneOpening:
    """Opens lanes, all that wait with one request per broker."""

    def __init__(
        self,
        cluster: Cluster,
        limits: LaneLimits,
        *,
        clock: Clock,
        owner: LaneOwner,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._admin = Admin(cluster)
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, 1000)
        self._waiting: list[SenderLane] = []
        self._refused: list[SenderLane] = []
        self._opener: asyncio.Task[None] | None = None
        self._pause: asyncio.Task[None] | None = None

    def add(self, lane: SenderLane) -> None:
        """Open a lane soon."""
        self._waiting.append(lane)
        if self._opener is None or self._opener.done():
            self._opener = self._owner.spawn(self._open_all())

    async def _open_all(self) -> None:
        while self._waiting:
            lanes, self._waiting = self._waiting, []
            topics = {lane.target.topic for lane in lanes}
            try:
                # One question for all: leaders asked for one by one would each refresh the metadata.
                await self._cluster.metadata(sorted(topics))
                await self._limits.learn(topics)
            except Mm2pyError as error:
                for lane in lanes:
                    self._later(lane, error)
                continue
            by_leader: dict[int, list[SenderLane]] = {}
            for lane in lanes:
                leader = self._cluster.known_leader(lane.target)
                if leader is None:
                    self._later(lane, self._cluster.no_leader(lane.target))
                else:
                    by_leader.setdefault(leader.node_id, []).append(lane)
            for node_id, led in by_leader.items():
                self._owner.spawn(self._open_at(node_id, led))

    async def _open_at(self, node_id: int, lanes: list[SenderLane]) -> None:
        """Open the lanes that one broker leads; a broker that is silent delays no other's."""
        try:
            ends = await self._admin.list_offsets_at(
                node_id, {lane.target: LATEST for lane in lanes}
            )
        except Mm2pyError as error:
            for lane in lanes:
                self._later(lane, error)
            return
        for lane in lanes:
            end = ends[lane.target]
            if end.error is None:
                self._open(lane, node_id, end.offset)
            elif end.error.code == codes.TOPIC_AUTHORIZATION_FAILED:
                self._open(lane, node_id, -1)  # it may be written all the same
            else:
                self._later(lane, end.error)

    def _open(self, lane: SenderLane, node_id: int, log_end: int) -> None:
        self._backoff.reset()
        if lane.state is LaneState.OPENING:
            self._limits.apply(lane)
            lane.opened(node_id, log_end)
            self._owner.ready(lane)

    def _later(self, lane: SenderLane, error: Exception) -> None:
        if lane.state is not LaneState.OPENING:
            return
        self._owner.stalled(lane, error)
        self._refused.append(lane)
        if self._pause is None or self._pause.done():
            self._pause = self._owner.spawn(self._retry())

    async def _retry(self) -> None:
        await self._clock.sleep(self._backoff.next_s())
        refused, self._refused, self._pause = self._refused, [], None
        for lane in refused:
            self.add(lane)
