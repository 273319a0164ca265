"""Checks of what both clusters make of the flow: which topics, how their copies are named and limited, groups, transactions."""

from collections.abc import AsyncIterator
from typing import Final

from mm2py.errors import UnsupportedVersionError
from mm2py.mirror.filters import config_property_filter_from_config, group_filter_from_config
from mm2py.observability.quantities import size_text
from mm2py.protocol.configs import ConfigSource
from mm2py.protocol.topics import NewTopic
from mm2py.types import LONGEST_TOPIC_NAME, TopicPartition
from mm2py_connectors.config_sync import config_operations
from mm2py_jobs.doctor.cluster_checks import creatable
from mm2py_jobs.doctor.examined import Examined, Level, Row, some

HANGS_AFTER_MS: Final = 15 * 60_000
"""``transaction.max.timeout.ms``: no coordinator leaves a transaction open for longer."""
MOST_PARTITIONS: Final = 2_000
"""Whose producers are asked for."""
_FULL: Final = 0.9
"""Of the free bytes: what comes while it is copied needs some, too."""
_NO_LIMIT: Final = -1


async def topics(flow: Examined) -> AsyncIterator[Row]:
    """The selection matches something, and what it names is there."""
    chosen = await flow.chosen()
    listed = await flow.topics("source")
    unlisted = flow.names.unlisted(listed, ())
    opened = flow.sides["source"]
    denied = await opened.admin.denied_topics(unlisted)
    for error in denied.values():
        yield Row(Level.ERROR, error.message, error.remedy)
    absent = [name for name in unlisted if name not in denied]
    if absent:
        yield Row(
            Level.WARNING,
            f"not on {opened.alias}: {some(absent)}",
            f"correct topics of {flow.flow}, or create them",
        )
    if not chosen:
        yield Row(
            Level.ERROR,
            f"topics={','.join(flow.config.topics)} matches none of the {len(listed)} topics of {opened.alias} that may be seen",
            "correct topics, topics.exclude, or the rights of the principal",
        )
    else:
        count = sum(len(it.partitions) for it in chosen.values())
        yield Row(Level.OK, f"{len(chosen)} topics with {count} partitions are copied")


async def names(flow: Examined) -> AsyncIterator[Row]:
    """Each copy has a name of its own that brokers accept beside the topics that are there."""
    by_copy: dict[str, list[str]] = {}
    for topic in await flow.chosen():
        by_copy.setdefault(flow.names.copy_of(topic), []).append(topic)
    wrong = False
    for copy, sources in by_copy.items():
        if len(copy) > LONGEST_TOPIC_NAME:
            wrong = True
            yield Row(Level.ERROR, f"the copy of {sources[0]} would have {len(copy)} characters, {LONGEST_TOPIC_NAME} are allowed", "exclude the topic, or shorten the alias")  # fmt: skip
        if len(sources) > 1:
            wrong = True
            yield Row(Level.ERROR, f"{some(sources)} would be copied into one topic, {copy}", "exclude all but one in topics.exclude")  # fmt: skip
    if by_copy and not wrong:
        yield Row(Level.OK, f"{len(by_copy)} names of copies")


async def new_copies(flow: Examined) -> AsyncIterator[Row]:
    """Copies that are not there yet could be created as ``replication.factor`` asks."""
    there = await flow.topics("target")
    wanted = {
        copy: NewTopic(copy, len(topic.partitions), flow.config.replication_factor)
        for name, topic in (await flow.chosen()).items()
        if (copy := flow.names.copy_of(name)) not in there and len(copy) <= LONGEST_TOPIC_NAME
    }
    async for row in creatable(flow.sides["target"], wanted):
        is_factor = row.level is Level.ERROR and "REPLICATION" in row.text
        remedy = f"set replication.factor (now {flow.config.replication_factor}) to at most the number of brokers"
        yield row._replace(remedy=remedy) if is_factor else row


async def limits(flow: Examined) -> AsyncIterator[Row]:
    """A copy takes what its source has, and keeps it as long."""
    copies = await flow.copies()
    ours = await flow.configs("source", [*copies])
    theirs = await flow.configs("target", [*copies.values()])
    found: dict[tuple[Level, str, str], list[str]] = {}
    for topic, copy in copies.items():
        for level, text, key in _limits(ours.get(topic, {}), theirs.get(copy, {})):
            found.setdefault((level, text, key), []).append(copy)
    servers = flow.sides["target"].servers
    for (level, text, key), named in found.items():
        yield Row(
            level,
            f"{some(named)}: {text}",
            f"kafka-configs.sh --bootstrap-server {servers} --alter --topic {sorted(named)[0]} --add-config {key}"
            if key
            else "",
        )
    if copies and not found:
        yield Row(Level.OK, f"limits of {len(copies)} copies")


def _limits(ours: dict[str, str], theirs: dict[str, str]) -> list[tuple[Level, str, str]]:
    rows: list[tuple[Level, str, str]] = []
    most, accepted = _number(ours, "max.message.bytes"), _number(theirs, "max.message.bytes")
    if most is not None and accepted is not None and accepted < most:
        rows.append((Level.WARNING, f"takes {accepted} bytes in a batch, its source {most}: a larger record fails its partition", f"max.message.bytes={most}"))  # fmt: skip
    for key, what in (("retention.ms", "ms"), ("retention.bytes", "bytes")):
        kept, held = _number(ours, key), _number(theirs, key)
        if kept is not None and held is not None and _is_shorter(held, kept):
            rows.append((Level.WARNING, f"keeps records for {held} {what}, its source for {'ever' if kept == _NO_LIMIT else f'{kept} {what}'}: a copy of older records is deleted at once", f"{key}={kept}"))  # fmt: skip
    policies = ours.get("cleanup.policy", ""), theirs.get("cleanup.policy", "")
    if policies[0] and "compact" in policies[1] and "compact" not in policies[0]:
        rows.append((Level.ERROR, f"is compacted, its source is not (cleanup.policy={policies[0]}): records of the same key are lost", f"cleanup.policy={policies[0]}"))  # fmt: skip
    return rows


def _is_shorter(held: int, kept: int) -> bool:
    return held != _NO_LIMIT and (kept == _NO_LIMIT or held < kept)


def _number(configs: dict[str, str], key: str) -> int | None:
    text = configs.get(key, "")
    return int(text) if text.lstrip("-").isdigit() else None


async def drift(flow: Examined) -> AsyncIterator[Row]:
    """Copies have the configs that sync.topic.configs gives them; what no filter lets through is the target's own."""
    copies = await flow.copies()
    ours = await flow.entries("source", [*copies])
    theirs = await flow.entries("target", [*copies.values()])
    wanted = config_property_filter_from_config(flow.connector)
    differ: dict[str, list[str]] = {}
    for topic, copy in copies.items():
        there = {it.name: it for it in theirs.get(copy, ())}
        for change in config_operations(ours.get(topic, ()), wanted):
            has = there.get(change.name)
            is_set = has is not None and has.value == change.value
            is_own = has is not None and has.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
            if is_own if change.op == "DELETE" else not is_set:
                differ.setdefault(change.name, []).append(copy)
    is_synced = flow.config.sync_topic_configs_enabled
    for name, topics in differ.items():
        yield Row(
            Level.WARNING,
            f"{name} of {some(topics)} is not that of the source"
            + ("" if is_synced else ": sync.topic.configs.enabled=false"),
            f"the flow writes it each {flow.config.sync_topic_configs_interval_seconds:.0f} s; where it does not, mm2py flow describe '{flow.flow}' has the target's refusal"
            if is_synced
            else f"set it with kafka-configs.sh --bootstrap-server {flow.sides['target'].servers} --alter --topic {sorted(topics)[0]} --add-config {name}=...",
        )
    if copies and not differ:
        yield Row(Level.OK, f"configs of {len(copies)} copies are those of their sources")


async def partitions(flow: Examined) -> AsyncIterator[Row]:
    """A copy has the partitions of its source: with more, keys are elsewhere for who writes there after a failover."""
    there = await flow.topics("target")
    chosen = await flow.chosen()
    more = [
        f"{copy} ({len(there[copy].partitions)} for {len(chosen[topic].partitions)})"
        for topic, copy in (await flow.copies()).items()
        if len(there[copy].partitions) > len(chosen[topic].partitions)
    ]
    if more:
        yield Row(
            Level.WARNING,
            f"copies with more partitions than their source: {some(more)}; writers that move there find keys in other partitions",
            "give the source topics as many: kafka-topics.sh --alter --partitions",
        )
    elif chosen:
        yield Row(Level.OK, "copies have the partitions of their sources")


async def groups(flow: Examined) -> AsyncIterator[Row]:
    """No group that is synced has members on both sides: its offsets on the target are its own."""
    if flow.connector.get("sync.group.offsets.enabled", "false").strip().lower() != "true":
        yield Row(Level.OK, "groups are not synced (sync.group.offsets.enabled)")
        return
    wanted = group_filter_from_config(flow.connector)
    active = [
        {name for name, it in (await flow.groups(side)).groups.items() if it.has_members}
        for side in ("source", "target")
    ]
    both = [name for name in active[0] & active[1] if wanted.should_replicate_group(name)]
    if both:
        yield Row(
            Level.WARNING,
            f"active on both sides, so not synced: {some(both)}",
            f"stop them on {flow.flow.target}, or exclude them in groups.exclude",
        )
    else:
        yield Row(Level.OK, "no synced group is active on both sides")


async def transactions(flow: Examined) -> AsyncIterator[Row]:
    """No transaction of the source is open for longer than any coordinator allows: readers of committed records wait for it."""
    opened = flow.sides["source"]
    asked = [
        TopicPartition(name, number)
        for name, topic in (await flow.chosen()).items()
        for number in topic.partitions
    ][:MOST_PARTITIONS]
    try:
        producers = await opened.admin.describe_producers(asked)
    except UnsupportedVersionError:
        yield Row(
            Level.SKIPPED, f"{opened.alias}: brokers before 2.8 do not tell open transactions"
        )
        return
    now = flow.clock.now_ms()
    hanging = [
        (partition, it.transaction_start)
        for partition, found in producers.items()
        for it in found
        if it.transaction_start >= 0 and 0 <= it.last_timestamp < now - HANGS_AFTER_MS
    ]
    for partition, start in hanging[:3]:
        yield Row(
            Level.WARNING,
            f"{opened.alias}: {partition} has a transaction open since offset {start} whose last record is older than 15 min: it may hang",
            f"kafka-transactions.sh --bootstrap-server {opened.servers} find-hanging --topic {partition.topic} --partition {partition.partition} tells whether its coordinator still knows it",
        )
    if not hanging:
        yield Row(
            Level.OK, f"{opened.alias}: no hanging transaction in {len(producers)} partitions"
        )


async def disk(flow: Examined) -> AsyncIterator[Row]:
    """What is to be copied fits into the target, as far as brokers tell sizes."""
    copies = await flow.copies()
    new = {
        name: topic.partitions
        for name, topic in (await flow.chosen()).items()
        if name not in copies
    }
    sizes = await flow.sides["source"].admin.partition_sizes(new)
    total, factor = sum(sizes.values()), flow.config.replication_factor
    factor = factor if factor > 0 else 1  # the brokers' own default is at least that
    text = f"{size_text(total)} of {len(new)} topics without a copy are to come, times replication.factor={flow.config.replication_factor}"
    target = flow.sides["target"]
    free = await target.admin.free_bytes()
    if free is None:
        yield Row(Level.OK, f"{text}; brokers of {target.alias} do not tell how much they can take")
    elif total * factor > free * _FULL:
        yield Row(Level.ERROR, f"{text}; {target.alias} has {size_text(free)} left: its disks run full", "give its brokers disk, exclude topics, or set start.positions to what is needed")  # fmt: skip
    else:
        yield Row(Level.OK, f"{text}; {target.alias} has {size_text(free)} left")
