"""Settings of target topics that a run has to change, as it would lose what it copies, and what is
only worth knowing of them.

Flow: ``mm2py_jobs.copy.survey``, ``mm2py_jobs.archive.restore`` -> configs of the target ->
``SettingChange``, notes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.mirror.backfills import SettingChange
from mm2py.protocol.configs import ConfigEntry
from mm2py_jobs.copy.expiry import value_of
from mm2py_jobs.copy.plan import PartitionPlan

LONG_MAX: Final = str((1 << 63) - 1)

REASONS: Final[Mapping[str, str]] = {
    "retention.ms": "the target would delete records older than that as soon as they are copied",
    "retention.bytes": "the target would delete the beginning while the end is copied",
    "message.timestamp.before.max.ms": "the target would refuse records that are older than that",
}
UNLIMITED_VALUES: Final = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": LONG_MAX,
}


async def changed_settings(
    target: Admin,
    planned: Sequence[PartitionPlan],
    copies: Mapping[str, TopicDescription],
    made_with: str = "the source's partitions and configs",
) -> tuple[tuple[SettingChange, ...], tuple[str, ...]]:
    """Return what has to be changed on target topics for a run, and what is only worth knowing;
    ``made_with``: what topics get that are not there yet."""
    topics = sorted({it.target_topic for it in planned if it.start < it.end})
    configs = await target.describe_topic_configs([it for it in topics if it in copies])
    changes: list[SettingChange] = []
    notes: list[str] = []
    for topic in topics:
        entries = {entry.name: entry for entry in configs.get(topic, ())}
        changes += _changes(topic, entries)
        notes += _notes(topic, entries)
        if topic not in copies:
            notes.append(
                f"{topic} does not exist on the target yet, it is created with {made_with}"
            )
    return tuple(changes), tuple(notes)


def smaller_batches(
    topic: str, entries: Sequence[ConfigEntry], of_source: Sequence[ConfigEntry]
) -> tuple[str, ...]:
    """Return a note where a target topic takes smaller batches than its source topic."""
    here, there = (
        value_of({it.name: it for it in side}, "max.message.bytes") for side in (entries, of_source)
    )
    if not here or not there or int(here) >= int(there):
        return ()
    return (
        f"{topic} has max.message.bytes={here}, its source {there}: batches above it are cut, a "
        f"record above it stops its partition; raise max.message.bytes of {topic}",
    )


def _changes(topic: str, entries: Mapping[str, ConfigEntry]) -> list[SettingChange]:
    changes: list[SettingChange] = []
    deletes = "delete" in value_of(entries, "cleanup.policy")
    for name, unlimited in UNLIMITED_VALUES.items():
        entry = entries.get(name)
        if entry is None or entry.value in (None, unlimited):
            continue
        if name.startswith("retention.") and not deletes:
            continue
        # Brokers list the value in force and where it is from (KIP-226): only a topic's own value
        # is put back afterwards, one that it inherits is what a deletion leaves.
        own = entry.source.name == "DYNAMIC_TOPIC_CONFIG"
        changes.append(SettingChange(topic, name, entry.value if own else None, unlimited))
    return changes


def _notes(topic: str, entries: Mapping[str, ConfigEntry]) -> list[str]:
    notes: list[str] = []
    if value_of(entries, "message.timestamp.type") == "LogAppendTime":
        notes.append(
            f"{topic} has message.timestamp.type=LogAppendTime: records get the time of the copy"
        )
    if (codec := value_of(entries, "compression.type")) not in ("", "producer"):
        notes.append(
            f"{topic} has compression.type={codec}: the target compresses every batch anew"
        )
    if "compact" in value_of(entries, "cleanup.policy"):
        notes.append(f"{topic} is compacted: counts of both sides differ by right")
    return notes
