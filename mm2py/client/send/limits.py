"""Limits of the target's brokers: the largest batch, and how long producer state is kept.

Flow: DescribeConfigs -> ``TargetLimits`` (cached for minutes) -> ``LaneLimits`` cuts batches in
time and knows whether a blind resend is safe. Where it may not be read: unknown size, Kafka's
default time. One request at a time.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.parts import chunks
from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.owner import LaneOwner
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError, ServerError
from mm2py.observability.logging import some_of
from mm2py.protocol import error_codes as codes
from mm2py.protocol.admin_messages import describe_configs
from mm2py.protocol.configs import ConfigResource, ConfigResourceType, DescribedConfigs
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.splice import split
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

MAX_AGE_S: Final = 300.0
"""Both are broker and topic settings, which rarely change; a refused size is looked up again at
once."""

ASK_TIMEOUT_S: Final = 5.0
TOPICS_PER_REQUEST: Final = 500

SHOWN: Final = 5
"""Topics in a line of the log."""

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
EXPIRATION: Final = "producer.id.expiration.ms"
EXPIRATION_BEFORE_3_5: Final = "transactional.id.expiration.ms"
"""Until KIP-854 (Kafka 3.5) this one also applied to producers without transactions."""

DEFAULT_EXPIRATION_MS: Final = 24 * 3600 * 1000
MINUTE_MS: Final = 60_000


def remembered_ms(expiration_ms: int) -> int:
    """Return how old a batch may be so that a resend is certainly recognised as a duplicate.

    The margin covers clock differences and the time until the resend arrives.
    """
    return expiration_ms - max(expiration_ms // 24, min(MINUTE_MS, expiration_ms // 2))


def fitting(batches: Sequence[RecordBatch], limit_bytes: int) -> Sequence[RecordBatch]:
    """Cut batches above ``limit_bytes``; the input's buffers of cut ones are released.

    A batch that cannot be cut that small (one large record, damaged bytes) stays: the target
    refuses it.
    """
    for batch in batches:
        if len(batch.data) > limit_bytes:
            break
    else:
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


async def topic_limits(
    cluster: Cluster, topics: Collection[str], denied: dict[str, ServerError] | None = None
) -> dict[str, int]:
    """Return ``max.message.bytes`` of topics, 0 where it may not be read (``denied`` gets the
    missing rights); without those that are not answered for now."""
    sizes: dict[str, int] = {}
    names = sorted(topics)
    for chunk in chunks(names, TOPICS_PER_REQUEST):
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in chunk]
        call = describe_configs(asked, keys=[MAX_MESSAGE_BYTES])
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answers = await cluster.call_any(call)
        except (RetriableError, TimeoutError):
            continue
        except Mm2pyError:
            # May not be read: the target refuses what is too large.
            sizes |= dict.fromkeys(chunk, 0)
            continue
        for answer in answers:
            name = answer.resource.name
            if answer.error_code not in codes.RETRIABLE:
                sizes[name] = _number(answer, MAX_MESSAGE_BYTES)
            error = cluster.denied(answer.error_code, "DescribeConfigs", name)
            if denied is not None and error is not None:
                denied[name] = error
    return sizes


@final
class TargetLimits:
    """Cached limits of one cluster; requested rarely, for many topics at a time."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sizes: dict[str, tuple[int, float]] = {}
        self._asking = asyncio.Lock()
        self._expirations: dict[int, tuple[int, float]] = {}
        self._told: set[str] = set()
        """Topics whose limits may not be read, as they were logged."""

    def max_message_bytes(self, topic: str) -> int:
        """Return the last known ``max.message.bytes`` of a topic, 0 unknown."""
        return self._sizes.get(topic, (0, 0.0))[0]

    def is_old(self, topic: str, max_age_s: float = MAX_AGE_S) -> bool:
        """Whether the topic's limit was never requested, or longer ago than ``max_age_s``."""
        known = self._sizes.get(topic)
        return known is None or self._clock.monotonic() - known[1] > max_age_s

    async def learn_sizes(self, topics: Collection[str], *, max_age_s: float = MAX_AGE_S) -> None:
        """Request the limits that are older than ``max_age_s``; 0 where they may not be read.

        They stay unknown while the target does not answer, or does not have the topic yet.
        """
        asked_at = self._clock.monotonic()
        async with self._asking:
            # What another caller requested meanwhile is recent enough.
            max_age_s += self._clock.monotonic() - asked_at
            names = sorted(name for name in set(topics) if self.is_old(name, max_age_s))
            for chunk in chunks(names, TOPICS_PER_REQUEST):
                now = self._clock.monotonic()
                # An old limit is used until the response, so
                # other callers neither wait nor request it again.
                again = {name: (self._sizes[name][0], now) for name in chunk if name in self._sizes}
                self._sizes.update(again)
                denied: dict[str, ServerError] = {}
                sizes = await topic_limits(self._cluster, chunk, denied)
                self._tell(denied)
                self._sizes.update({name: (size, now) for name, size in sizes.items()})

    def _tell(self, denied: Mapping[str, ServerError]) -> None:
        """Log once which limits may not be read."""
        new = sorted(denied.keys() - self._told)
        self._told.update(new)
        if new:
            log.warning(
                "max.message.bytes may not be read, larger batches are sent and refused before "
                "they are cut topics=%s cause=%s",
                some_of(new, SHOWN),
                denied[new[0]],
            )

    async def remembered_ms(self, node_id: int) -> int:
        """Return how old a batch may be so that a broker recognises its resend (sender rule 5).

        Raises:
            RetriableError: the broker cannot be reached.
        """
        known = self._expirations.get(node_id)
        if known is None or self._clock.monotonic() - known[1] > MAX_AGE_S:
            known = await self._expiration_of(node_id), self._clock.monotonic()
            self._expirations[node_id] = known
        return remembered_ms(known[0])

    async def _expiration_of(self, node_id: int) -> int:
        # Per broker: a node answers only for itself, and
        # settings may differ while they are rolled out.
        resource = ConfigResource(ConfigResourceType.BROKER, str(node_id))
        call = describe_configs([resource], keys=[EXPIRATION, EXPIRATION_BEFORE_3_5])
        connection = await self._cluster.connection(node_id, ADMIN)
        try:
            (answer,) = await connection.call(call)
        except RetriableError:
            raise
        except Mm2pyError:
            return DEFAULT_EXPIRATION_MS
        # A broker answers only for keys that it knows, so both are requested.
        # The newer name first (KIP-854): brokers that have both do not use the other for it.
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
    """Applies topic limits to the lanes of one Sender: batches that were never sent are cut.

    A batch that was sent is never cut here (rule 4).
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
        """Whether batches may be cut at all; if not, limits are not requested."""
        self._lanes = lanes
        self._limits = limits
        self._owner = owner
        self._most_bytes = most_bytes  # that the user allows, 0 for any size

    def is_old(self, topic: str) -> bool:
        """Whether a topic's limit should be requested again."""
        return self._limits.is_old(topic)

    async def learn(self, topics: set[str]) -> frozenset[str]:
        """Request the limits of topics where they are unknown or old; return the topics without an
        answer."""
        if not self.cuts:
            return frozenset()
        await self._limits.learn_sizes(topics)
        return frozenset(topic for topic in topics if self._limits.is_old(topic))

    async def learn_again(self, topic: str) -> None:
        """Request a limit that is in use again: it may have been raised, which makes cutting
        unnecessary."""
        await self.learn({topic})
        self._apply_all(topic)

    async def max_message_bytes(self, topic: str) -> int:
        """Request the limit of a topic (0 unknown) and cut waiting batches to it."""
        await self._limits.learn_sizes([topic], max_age_s=0)
        self._apply_all(topic)
        return self._limits.max_message_bytes(topic)

    async def remembered_ms(self, node_id: int) -> int:
        """As ``TargetLimits.remembered_ms``."""
        return await self._limits.remembered_ms(node_id)

    def apply(self, lane: SenderLane) -> None:
        """Cut a lane's batches that were never sent to the topic's limit."""
        known, most = self._limits.max_message_bytes(lane.target.topic), self._most_bytes
        grown = lane.limit(min(known or most, most or known), fitting)
        if grown:
            self._owner.resized(grown)

    def _apply_all(self, topic: str) -> None:
        for lane in self._lanes.values():
            if lane.target.topic == topic and lane.state is not LaneState.FAILED:
                self.apply(lane)
