"""Opens new lanes of a Sender: looks up leaders, log ends and topic limits, for many lanes at a
time.

Flow: ``add`` -> metadata, limits -> ListOffsets of each leader -> after what predecessors wrote
(resume.py) -> ``SenderLane.opened`` -> ``LaneOwner.ready``. A target that does not answer is
retried without end, with back-off; ``LaneOwner.stalled`` reports it.
"""

import asyncio
from typing import final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.limits import LaneLimits
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.resume import LaneBeginning, LaneResume
from mm2py.client.send.tail import Identical, LaneTail, not_identical
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.types import LATEST


@final
class LaneOpening:
    """Opens all waiting lanes with one request per broker."""

    def __init__(
        self,
        cluster: Cluster,
        limits: LaneLimits,
        *,
        clock: Clock,
        owner: LaneOwner,
        resume: LaneResume | None,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._resume = resume
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

    def offered(self, lane: SenderLane) -> None:
        """Note that a lane in OPENING got more batches."""
        if self._resume is not None:
            self._resume.offered(lane)

    def needs_queue(self, lane: SenderLane) -> bool:
        """Whether the queue of a lane in OPENING decides where it begins."""
        return self._resume is not None and self._resume.needs_queue(lane)

    async def _open_all(self) -> None:
        while self._waiting:
            lanes, self._waiting = self._waiting, []
            topics = {lane.target.topic for lane in lanes}
            try:
                # One request for all: leaders looked up one by one would each refresh the metadata.
                await self._cluster.metadata(sorted(topics))
                unlearned = await self._limits.learn(topics)
            except Mm2pyError as error:
                for lane in lanes:
                    self._later(lane, error)
                continue
            by_leader: dict[int, list[SenderLane]] = {}
            for lane in lanes:
                leader = self._cluster.known_leader(lane.target)
                if leader is None:
                    self._later(lane, self._cluster.no_leader(lane.target))
                # Without the limit a large batch would be
                # refused first, and its bytes sent in vain.
                elif lane.target.topic in unlearned:
                    text = f"max.message.bytes of {lane.target.topic} cannot be requested now"
                    self._later(lane, RetriableError(text))
                else:
                    by_leader.setdefault(leader.node_id, []).append(lane)
            for node_id, led in by_leader.items():
                self._owner.spawn(self._open_at(node_id, led))

    async def _open_at(self, node_id: int, lanes: list[SenderLane]) -> None:
        """Open the lanes that one broker leads; a silent broker does not delay the lanes of
        others."""
        try:
            ends = await self._admin.list_offsets_at(
                node_id, {lane.target: LATEST for lane in lanes}
            )
            beginnings = await self._resume.look(node_id, lanes, ends) if self._resume else {}
        except Mm2pyError as error:
            for lane in lanes:
                self._later(lane, error)
            return
        for lane in lanes:
            end, beginning = ends[lane.target], beginnings.get(lane)
            if end.error is not None:
                if end.error.code == codes.TOPIC_AUTHORIZATION_FAILED:
                    self._open(
                        lane, node_id, LaneBeginning(-1)
                    )  # Write may be granted without Describe
                else:
                    self._later(lane, end.error)
            elif isinstance(beginning, Mm2pyError):
                self._later(lane, beginning)
            elif isinstance(beginning, LaneTail):
                self._owner.spawn(self._open_behind(lane, node_id, beginning))
            else:
                self._open(lane, node_id, beginning or LaneBeginning(end.offset))

    async def _open_behind(self, lane: SenderLane, node_id: int, tail: LaneTail) -> None:
        assert self._resume is not None
        try:
            beginning = await self._resume.compare(lane, tail)
        except ProtocolError as error:
            self._owner.failed(lane, error)
            return
        self._open(lane, node_id, beginning)

    def _open(self, lane: SenderLane, node_id: int, beginning: LaneBeginning) -> None:
        self._backoff.reset()
        if lane.state is not LaneState.OPENING:
            return
        log_end, writer, _ = beginning
        if self._resume is not None and self._resume.identical is not Identical.OFF:
            # A topic without copies yet: they have the same offsets only if the first one does.
            first = lane.queue[0][1].runs[0][0] if lane.queue else log_end
            if first != log_end and self._resume.identical is Identical.REQUIRE:
                text = f"the copy of source offset {first} would be at {log_end}"
                self._owner.failed(lane, not_identical(lane, text))
                return
            lane.keeps_producer(writer)
        self._limits.apply(lane)
        lane.opened(node_id, log_end)
        self._owner.ready(lane)

    def _later(self, lane: SenderLane, error: Exception) -> None:
        # Failed or abandoned while its log end was looked up.
        if lane.state is not LaneState.OPENING:
            return
        self._owner.stalled(lane, error)
        self._refused.append(lane)
        if self._pause is None or self._pause.done():
            self._pause = self._owner.spawn(self._retry())

    async def _retry(self) -> None:
        await self._clock.sleep(self._backoff.next_s())
        # All that were refused meanwhile share one pause, so one request asks for them again.
        refused, self._refused, self._pause = self._refused, [], None
        for lane in refused:
            self.add(lane)
