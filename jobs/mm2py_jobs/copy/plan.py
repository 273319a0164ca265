"""What a backfill would do: ranges of partitions, checks, settings to change, lanes. Values and
arithmetic, no I/O.

Flow: ``mm2py_jobs.copy.survey`` -> ``PartitionPlan`` and ``Refusal`` -> ``deal_lanes`` (longest
processing time first) -> ``Plan`` -> JSON.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Final

from mm2py.mirror.backfills import CopyAgain, SettingChange
from mm2py.types import TopicPartition
from mm2py_jobs.copy.dealing import deal, lanes_for
from mm2py_jobs.copy.leaders import Leaders, LedPartition

BYTES_PER_S: Final = 60 << 20
"""What a lane copies on a machine that it shares with nothing, where no rate is asked for."""

LANE_BYTES: Final = 256 << 20
"""A lane for each of them: a few seconds of copying, beside one to begin and end it."""

LEAST_BYTES: Final = 64 * 1024
"""What even an empty partition counts for in a lane: it costs requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """One partition to copy: source offsets ``start`` to ``end`` (exclusive), and about how many
    bytes that is.

    ``again``: it is copied from ``start`` on whatever was copied before. ``left_out``: of a
    restore, archived records from ``end`` on, -1 where that is not known.
    """

    topic: str
    partition: int
    target_topic: str
    start: int
    end: int
    bytes: int
    resumes: bool = False
    again: CopyAgain | None = None
    left_out: int = 0
    brokers: frozenset[str] = frozenset()
    """That it is read from and written to, where lanes at a broker are limited."""

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def places(self, sides: Collection[str]) -> list[LedPartition]:
        """Return where it is read and written, of these clusters."""
        copy = TopicPartition(self.target_topic, self.partition)
        both = LedPartition("source", self.source), LedPartition("target", copy)
        return [it for it in both if it.side in sides]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a partition (-1: a topic) is not copied."""

    topic: str
    partition: int
    reason: str

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole of it; ``settings`` are changed for the run and put back, ``notes`` need nothing.

    ``forgotten``: partitions whose positions are removed first, because their copies are gone.
    ``lanes_per_broker``: how many lanes work at a time at one broker, 0: any.
    """

    flow: str
    partitions: tuple[PartitionPlan, ...]
    refused: tuple[Refusal, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    forgotten: tuple[TopicPartition, ...] = ()
    lanes_per_broker: int = 0

    def limited(
        self, most: int, clusters: Mapping[str, Mapping[str, str]]
    ) -> tuple["Plan", Leaders]:
        """Return the plan for at most so many lanes at a time at one broker of these clusters, by
        side; asks them."""
        places = {it: it.places(clusters) for it in self.partitions}
        leaders = Leaders(clusters, {it for each in places.values() for it in each})
        partitions = tuple(
            replace(it, brokers=leaders.brokers(places[it])) for it in self.partitions
        )
        return replace(self, partitions=partitions, lanes_per_broker=most), leaders

    def lanes(self, slots: int, asked: int = 0) -> int:
        """Return how many lanes a run has at most, on so many slots: those that were ``asked`` for,
        else by the bytes."""
        total = sum(max(LEAST_BYTES, it.bytes) for it in self.partitions)
        most = lanes_for(total, LANE_BYTES, slots, asked)
        if not asked:
            most = max(most, len({it.brokers for it in self.partitions}))
        return min(max(1, len(self.partitions)), most)

    def document(self, slots: int, rate_limit: int, lanes: int = 0) -> dict[str, object]:
        """Return the plan as JSON members; ``to`` is exclusive. ``lanes`` as in ``lanes``."""
        dealt = deal_lanes(self.partitions, self.lanes(slots, lanes))
        return {
            "flow": self.flow,
            "lanes": [
                {
                    "lane": number,
                    "bytes": _known_bytes(lane),
                    "partitions": [str(it.source) for it in lane],
                }
                for number, lane in enumerate(dealt)
            ],
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "target_topic": partition.target_topic,
                    "from": partition.start,
                    "to": partition.end,
                    "offsets": partition.end - partition.start,
                    "bytes": _known_bytes([partition]),
                    **({"left_out": partition.left_out} if partition.left_out else {}),
                }
                for partition in self.partitions
            ],
            "refused": [asdict(it) for it in self.refused],
            "settings": [
                {
                    "topic": setting.topic,
                    "property": setting.name,
                    "from": setting.before,
                    "to": setting.during,
                    "reason": self.reasons.get(setting.name, ""),
                }
                for setting in self.settings
            ],
            "notes": list(self.notes),
            "bytes": _known_bytes(self.partitions),
            "estimated_seconds": round(
                estimated_s(dealt, rate_limit, slots, self.lanes_per_broker), 1
            ),
        }


def _known_bytes(partitions: Sequence[PartitionPlan]) -> int | None:
    """Return None where the brokers do not return the sizes of logs with records."""
    total = sum(partition.bytes for partition in partitions)
    return (
        total
        if total or all(partition.start == partition.end for partition in partitions)
        else None
    )


def deal_lanes(partitions: Sequence[PartitionPlan], lanes: int) -> list[list[PartitionPlan]]:
    """Deal partitions to at most ``lanes`` lanes: the largest first, each to the lane with the
    least so far."""
    in_order = sorted(partitions, key=lambda it: it.source)
    return deal(
        in_order, max(1, lanes), lambda it: max(LEAST_BYTES, it.bytes), lambda it: it.brokers
    )


def estimated_s(
    dealt: Sequence[Sequence[PartitionPlan]], rate_limit: int, slots: int, per_broker: int = 0
) -> float:
    """Return how long the longest lane takes, or all together on so many slots, at so many lanes a
    broker or under a rate limit."""
    total = sum(it.bytes for lane in dealt for it in lane)
    longest = max((sum(it.bytes for it in lane) for lane in dealt), default=0)
    unlimited_s = max(longest, total / slots) / BYTES_PER_S
    if per_broker:
        led = Counter[str]()
        for partition in chain.from_iterable(dealt):
            led.update(dict.fromkeys(partition.brokers, partition.bytes))
        unlimited_s = max(unlimited_s, max(led.values(), default=0) / per_broker / BYTES_PER_S)
    return max(unlimited_s, total / rate_limit) if rate_limit > 0 else unlimited_s
