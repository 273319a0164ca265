"""What brokers of the target say of their own limits: how large a batch may be, how long state is kept.

Flow: DescribeConfigs -> ``TargetLimits`` (kept for minutes) -> ``LaneLimits`` cuts batches in time and knows
whether a blind resend is safe. Where it may not be read: unknown size, Kafka's default time. One question at a time.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.owner import LaneOwner
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.admin_messages import describe_configs
from mm2py.protocol.configs import ConfigResource, ConfigResourceType, DescribedConfigs
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.splice import split
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

MAX_AGE_S: Final = 300.0
"""Both are settings of operators, which change seldom; a refusal asks again at once."""

ASK_TIMEOUT_S: Final = 5.0
TOPICS_PER_REQUEST: Final = 500

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
EXPIRATION: Final = "producer.id.expiration.ms"
EXPIRATION_BEFORE_3_5: Final = "transactional.id.expiration.ms"
"""Until KIP-854 this one also said when producers without transactions are forgotten."""

DEFAULT_EXPIRATION_MS: Final = 24 * 3600 * 1000
MINUTE_MS: Final = 60_000


def remembered_ms(expiration_ms: int) -> int:
    """Return how old a batch may be for a resend of it to be recognised for sure.

    The margin is for clocks that differ and for the time until the resend arrives.
    """
    return expiration_ms - max(expiration_ms // 24, min(MINUTE_MS, expiration_ms // 2))


def fitting(batches: Sequence[RecordBatch], limit_bytes: int) -> Sequence[RecordBatch]:
    """Cut batches above ``limit_bytes``; the input's buffers of cut ones are released.

    A batch that cannot be cut so far (one large record, damaged bytes) stays: the target says no to it.
    """
    if all(len(batch.data) <= limit_bytes for batch in batches):
        return batches
    cut: list[RecordBatch] = []
    for batch in batches:
        cut.extend([batch] if len(batch.data) <= limit_bytes else _cut(batch, limit_bytes))
    return cut


def _cut(batch: RecordBatch, limit_bytes: int) -> list[RecordBatch]:
    try:
        result = split(batch, limit_bytes)
    except ProtocolError:
        return [batch]
    if result.too_large is not None:
        return [batch]
    lease, batch.lease = batch.lease, None
    if lease is not None:
        lease.release()
    return result.parts


@final
class TargetLimits:
    """Asks seldom, for many topics at a time."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sizes: dict[str, tuple[int, float]] = {}
        self._asking = asyncio.Lock()
        self._expirations: dict[int, tuple[int, float]] = {}

    def max_message_bytes(self, topic: str) -> int:
        """Return what a batch of the topic may measure as the target said last, 0 unknown."""
        return self._sizes.get(topic, (0, 0.0))[0]

    def is_old(self, topic: str, max_age_s: float = MAX_AGE_S) -> bool:
        """Whether the topic's limit was never asked for, or so long ago."""
        known = self._sizes.get(topic)
        return known is None or self._clock.monotonic() - known[1] > max_age_s

    async def learn_sizes(self, topics: Collection[str], *, max_age_s: float = MAX_AGE_S) -> None:
        """Ask for the limits that are older than that, 0 where they may not be read.

        They are not learned while the target does not answer, or does not know the topic yet.
        """
        asked_at = self._clock.monotonic()
        async with self._asking:
            # What another caller asked for meanwhile is new enough.
            max_age_s += self._clock.monotonic() - asked_at
            names = sorted(name for name in set(topics) if self.is_old(name, max_age_s))
            for start in range(0, len(names), TOPICS_PER_REQUEST):
                chunk, now = names[start : start + TOPICS_PER_REQUEST], self._clock.monotonic()
                # A limit that is only old serves until the answer: no other caller waits for it, or asks again.
                again = {name: (self._sizes[name][0], now) for name in chunk if name in self._sizes}
                self._sizes.update(again)
                sizes = await self._sizes_of(chunk)
                self._sizes.update({name: (size, now) for name, size in sizes.items()})

    async def remembered_ms(self, node_id: int) -> int:
        """Return how old a batch may be for a broker to recognise its resend (sender rule 5).

        Raises:
            RetriableError: the broker cannot be reached.
        """
        known = self._expirations.get(node_id)
        if known is None or self._clock.monotonic() - known[1] > MAX_AGE_S:
            known = await self._expiration_of(node_id), self._clock.monotonic()
            self._expirations[node_id] = known
        return remembered_ms(known[0])

    async def _sizes_of(self, topics: Sequence[str]) -> dict[str, int]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
        call = describe_configs(asked, keys=[MAX_MESSAGE_BYTES])
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answers = await self._cluster.call_any(call)
        except (RetriableError, TimeoutError):
            return {}
        except Mm2pyError:
            return dict.fromkeys(topics, 0)  # not offered: the target refuses what is too large
        return {
            answer.resource.name: _number(answer, MAX_MESSAGE_BYTES)
            for answer in answers
            if answer.error_code not in codes.RETRIABLE
        }

    async def _expiration_of(self, node_id: int) -> int:
        resource = ConfigResource(ConfigResourceType.BROKER, str(node_id))
        call = describe_configs([resource], keys=[EXPIRATION, EXPIRATION_BEFORE_3_5])
        connection = await self._cluster.connection(node_id, ADMIN)
        try:
            (answer,) = await connection.call(call)
        except RetriableError:
            raise
        except Mm2pyError:
            return DEFAULT_EXPIRATION_MS
        known = _number(answer, EXPIRATION) or _number(answer, EXPIRATION_BEFORE_3_5)
        if known and known != DEFAULT_EXPIRATION_MS:
            log.info("target broker forgets producers node=%d after_ms=%d", node_id, known)
        return known or DEFAULT_EXPIRATION_MS


def _number(answer: DescribedConfigs, name: str) -> int:
    """Return a config's number, 0 where there is none."""
    for entry in answer.entries:
        if entry.name == name and entry.value is not None and entry.value.isdigit():
            return int(entry.value)
    return 0


@final
class LaneLimits:
    """Puts upon the lanes of one Sender what their topics take: what waits for its first sending is cut.

    What was sent already is never cut here (rule 4).
    """

    def __init__(
        self,
        lanes: Mapping[TopicPartition, SenderLane],
        limits: TargetLimits,
        *,
        owner: LaneOwner,
        cuts: bool,
        most_bytes: int,
    ) -> None:
        self.cuts = cuts
        """Whether batches may be cut at all; else limits are not asked for."""
        self._lanes = lanes
        self._limits = limits
        self._owner = owner
        self._most_bytes = most_bytes  # that the user allows, 0 for any size

    def is_old(self, topic: str) -> bool:
        """Whether a topic's limit is worth another question."""
        return self._limits.is_old(topic)

    async def learn(self, topics: set[str]) -> frozenset[str]:
        """Ask for the limits of topics where they are unknown or old; return those that could not be asked for."""
        if not self.cuts:
            return frozenset()
        await self._limits.learn_sizes(topics)
        return frozenset(topic for topic in topics if self._limits.is_old(topic))

    async def learn_again(self, topic: str) -> None:
        """The limit may have been raised since: cutting is work for nothing then."""
        await self.learn({topic})
        self._apply_all(topic)

    async def max_message_bytes(self, topic: str) -> int:
        """Ask what a target topic takes, 0 when it does not say; what waits is cut by it."""
        await self._limits.learn_sizes([topic], max_age_s=0)
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
            self._owner.resized(grown)

    def _apply_all(self, topic: str) -> None:
        for lane in self._lanes.values():
            if lane.target.topic == topic and lane.state is not LaneState.FAILED:
                self.apply(lane)
