"""What each target topic takes at most, put upon the lanes that write to it.

Flow: topics of lanes -> ``TargetLimits`` asks the target -> ``SenderLane.limit_bytes``, and what waits for its
first sending is cut. What was sent already is never cut here (rule 4).
"""

from collections.abc import Callable, Mapping
from typing import final

from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.target_limits import TargetLimits, fitting
from mm2py.types import TopicPartition

__all__ = ["LaneLimits"]


@final
class LaneLimits:
    """Keeps the limits of one Sender's lanes; ``on_resized`` gets by how many bytes cutting changed them."""

    def __init__(
        self,
        lanes: Mapping[TopicPartition, SenderLane],
        limits: TargetLimits,
        *,
        on_resized: Callable[[int], None],
        cuts: bool,
        most_bytes: int,
    ) -> None:
        self.cuts = cuts
        """Whether batches may be cut at all; else limits are not asked for."""
        self._lanes = lanes
        self._limits = limits
        self._on_resized = on_resized
        self._most_bytes = most_bytes  # that the user allows, 0 for any size

    def is_old(self, topic: str) -> bool:
        """Whether a topic's limit is worth another question."""
        return self._limits.is_old(topic)

    async def learn(self, topics: set[str]) -> None:
        """Ask for the limits of topics where they are unknown or old."""
        if self.cuts:
            await self._limits.learn_sizes({t for t in topics if self._limits.is_old(t)})

    async def learn_again(self, topic: str) -> None:
        """The limit may have been raised since: cutting is work for nothing then."""
        await self.learn({topic})
        self._apply_all(topic)

    async def max_message_bytes(self, topic: str) -> int:
        """Ask what a target topic takes, 0 when it does not say; what waits is cut by it."""
        await self._limits.learn_sizes([topic])
        self._apply_all(topic)
        return self._limits.max_message_bytes(topic)

    async def remembered_ms(self, node_id: int) -> int:
        """Return for how long a broker remembers what a producer wrote."""
        return await self._limits.remembered_ms(node_id)

    def apply(self, lane: SenderLane) -> None:
        """Cut what waits for its first sending by the topic's limit."""
        known, most = self._limits.max_message_bytes(lane.target.topic), self._most_bytes
        grown = lane.limit(min(known or most, most or known), fitting)
        if grown:
            self._on_resized(grown)

    def _apply_all(self, topic: str) -> None:
        for lane in self._lanes.values():
            if lane.target.topic == topic and lane.state is not LaneState.FAILED:
                self.apply(lane)
