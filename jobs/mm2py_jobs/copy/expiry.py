"""What the target would delete of a copy when the run is over and its settings are put back:
refused unless it is accepted.

Flow: a setting that is changed for the run, what it is put back to, ranges -> ``expiring`` -> a
reason for each partition.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from mm2py.protocol.configs import ConfigEntry
from mm2py.types import TopicPartition
from mm2py_jobs.copy.plan import PartitionPlan, Refusal

Older = Callable[[Sequence[PartitionPlan], int], Awaitable[Mapping[TopicPartition, int]]]
"""Returns how many offsets of each range have records that are older than so many ms."""


async def expiring(
    name: str,
    kept: str,
    entries: Mapping[str, ConfigEntry],
    ranges: Sequence[PartitionPlan],
    older: Older,
    *,
    source_keeps: str = "",
) -> dict[TopicPartition, str]:
    """Return why records of which ranges would be deleted by one setting of their target topic.

    Args:
        name: of the setting.
        kept: what it is put back to.
        entries: configs of the topic.
        ranges: of that topic.
        older: asks where the records come from.
        source_keeps: what the source has; empty: all.
    """
    if not name.startswith("retention.") or _keeps(kept, source_keeps):
        return {}
    if name == "retention.bytes":
        counts: Mapping[TopicPartition, int] = {it.source: _beyond(it, int(kept)) for it in ranges}
    elif value_of(entries, "message.timestamp.type") == "LogAppendTime":
        # Retention goes by the largest time of a segment, which is that of the copy.
        return {}
    else:
        counts = await older(ranges, int(kept))
    topics = {it.source: it.target_topic for it in ranges}
    source = f" (the source: {source_keeps})" if source_keeps else ""
    return {
        tp: f"about {count:,} records are more than {name}={kept} of {topics[tp]} on the target "
        f"keeps{source}:"
        f" it would delete them when the copy is done; raise {name} there"
        for tp, count in counts.items()
        if count > 0
    }


def refused_expiry(reasons: Mapping[TopicPartition, str]) -> tuple[Refusal, ...]:
    """Return refusals that name the option which accepts them."""
    return tuple(
        Refusal(*tp, f"{reason}, or accept it with --accept-expiry")
        for tp, reason in sorted(reasons.items())
    )


def value_of(entries: Mapping[str, ConfigEntry], name: str) -> str:
    """Return a config, empty where it is not known."""
    entry = entries.get(name)
    return (entry.value or "") if entry is not None else ""


def _keeps(kept: str, source_keeps: str) -> bool:
    """Whether a retention is as long as that of the source: what is beyond expires there as
    well."""
    return int(kept) < 0 or 0 <= int(source_keeps or -1) <= int(kept)


def _beyond(part: PartitionPlan, retention_bytes: int) -> int:
    """Return how many offsets of a range are beyond a size, as far as sizes are known."""
    if not 0 <= retention_bytes < part.bytes:
        return 0
    return (part.end - part.start) * (part.bytes - retention_bytes) // part.bytes
