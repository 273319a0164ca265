"""Checks of what both clusters make of the flow: which topics, how their copies are named and
limited, groups, transactions."""

from collections.abc import AsyncIterator, Mapping
from typing import Final

from mm2py.errors import ServerError, UnsupportedVersionError
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.mirror.failovers import HANGS_MS
from mm2py.mirror.filters import (
    config_property_filter_from_config,
    group_filter_from_config,
    what_is_gone,
    why_returned,
)
from mm2py.observability.quantities import duration_text, size_text
from mm2py.protocol.acls import Acl, AclOperation, AclPermission
from mm2py.protocol.configs import ConfigSource
from mm2py.types import LONGEST_TOPIC_NAME, TopicPartition
from mm2py_connectors.acl_sync import own_denials, own_principals, remote_acls
from mm2py_connectors.config_sync import config_operations
from mm2py_jobs.copy_limits import Limit, is_shorter, limits_of, number_of
from mm2py_jobs.doctor.cluster_checks import creatable
from mm2py_jobs.doctor.examined import SHOWN, Examined, Level, Row, some

MOST_PARTITIONS: Final = 2_000
"""Whose producers are asked for."""
_FULL: Final = 0.9
"""Of the free bytes: what comes while it is copied needs some, too."""
MOST_GROUPS: Final = 1_000
"""Whose places are looked up, as ``mm2py group list`` does."""


async def topics(flow: Examined) -> AsyncIterator[Row]:
    """The selection matches something, and what it names is there."""
    chosen = await flow.chosen()
    listed = await flow.topics("source")
    unlisted = flow.names.unlisted(listed, ())
    opened = flow.sides["source"]
    denied = await opened.admin.denied_topics(unlisted)
    for error in denied.values():
        yield Level.ERROR.row(error.message, error.remedy)
    absent = [name for name in unlisted if name not in denied]
    if absent:
        yield Level.WARNING.row(
            f"not on {opened.alias}: {some(absent)}",
            f"correct topics of {flow.flow}, or create them",
        )
    returned = flow.names.selection.returned(listed)
    if returned:
        yield Level.WARNING.row(
            why_returned(returned, opened.alias, SHOWN),
            "rename the topics, or exclude them in topics.exclude",
        )
    left_out = flow.names.selection.left_out(listed)
    if left_out:
        shown = [f"{name} ({reason})" for name, reason in left_out.items()]
        yield Level.WARNING.row(
            f"can never be copied: {some(shown)}",
            "take them out of topics, or exclude them in topics.exclude",
        )
    if not chosen:
        yield Level.ERROR.row(
            f"topics={','.join(flow.config.topics)} matches none of the {len(listed)} topics of "
            f"{opened.alias} that may be seen",
            "correct topics, topics.exclude, or the rights of the principal",
        )
    else:
        count = sum(len(it.partitions) for it in chosen.values())
        yield Level.OK.row(f"{len(chosen)} topics with {count} partitions are copied")


async def names(flow: Examined) -> AsyncIterator[Row]:
    """Each copy has a name of its own that brokers accept beside the topics that are there."""
    by_copy: dict[str, list[str]] = {}
    for topic in await flow.chosen():
        by_copy.setdefault(flow.names.copy_of(topic), []).append(topic)
    wrong = False
    for copy, sources in by_copy.items():
        if len(copy) > LONGEST_TOPIC_NAME:
            wrong = True
            yield Level.ERROR.row(
                f"the copy of {sources[0]} would have {len(copy)} characters, "
                f"{LONGEST_TOPIC_NAME} are allowed",
                "exclude the topic, or shorten the alias",
            )
        if len(sources) > 1:
            wrong = True
            yield Level.ERROR.row(
                f"{some(sources)} would be copied into one topic, {copy}",
                "exclude all but one in topics.exclude",
            )
    if by_copy and not wrong:
        yield Level.OK.row(f"{len(by_copy)} names of copies")


async def gone_topics(flow: Examined) -> AsyncIterator[Row]:
    """Each copy has its source topic still; what a pattern chooses leaves no other trace when it is
    deleted."""
    source, target = flow.sides["source"], flow.sides["target"]
    gone = flow.names.selection.gone(await flow.topics("source"), await flow.topics("target"))
    denied = await source.admin.denied_topics(gone)
    for error in denied.values():
        yield Level.ERROR.row(error.message, error.remedy)
    deleted = {topic: copy for topic, copy in gone.items() if topic not in denied}
    if deleted:
        yield Level.WARNING.row(
            f"gone on {source.alias}: {what_is_gone(deleted, SHOWN)}",
            "where that was meant, delete the copies when nobody reads them: kafka-topics.sh "
            f"--bootstrap-server {target.servers} --delete --topic"
            f" {min(deleted.values())}; else create the topics on {source.alias} again",
        )
    elif not gone:
        yield Level.OK.row("each copy has its source topic, as far as names tell")


async def new_copies(flow: Examined) -> AsyncIterator[Row]:
    """Copies that are not there yet could be created as ``replication.factor`` asks."""
    wanted = {it.name: it for it in await flow.new_topics()}
    remedy = (
        f"set replication.factor (now {flow.config.replication_factor}) to at most the "
        "number of brokers"
    )
    async for row in creatable(flow.sides["target"], wanted, lambda _names: remedy):
        yield row


async def limits(flow: Examined) -> AsyncIterator[Row]:
    """A copy takes what its source has, and keeps it as long; one that is yet to be created
    would."""
    copies, new = await flow.copies(), await flow.new_copies()
    ours = await flow.configs("source", [*copies, *new])
    theirs = await flow.configs("target", [*copies.values()])
    theirs |= await flow.configs_of_new_copies()
    wrong = False
    copies, new = ({it: pairs[it] for it in pairs if it in ours} for pairs in (copies, new))
    for named in copies, new:
        found: dict[Limit, list[str]] = {}
        for topic, copy in named.items():
            for limit in limits_of(ours.get(topic, {}), theirs.get(copy, {})):
                found.setdefault(limit, []).append(topic)
        found |= {limit: topics async for limit, topics in _expired(flow, named, ours, theirs)}
        for limit, topics in found.items():
            wrong = True
            yield Row(
                Level.ERROR if limit.loses else Level.WARNING,
                f"{some([named[it] for it in topics])}{' (to be created)' if named is new else ''}: {limit.text}",
                _widening(flow, limit, min(topics), is_new=named is new),
            )
    unknown = [copy for copy in new.values() if copy not in theirs]
    if unknown:
        yield Level.SKIPPED.row(
            f"{some(unknown)} (to be created): {flow.sides['target'].alias} "
            "does not tell its defaults",
        )
    if not wrong and theirs:
        yield Level.OK.row(f"limits of {len(theirs)} copies")


def _widening(flow: Examined, limit: Limit, topic: str, *, is_new: bool) -> str:
    """Return the command that widens a limit; a copy is created with what its source sets itself,
    where the filter lets it through."""
    source, target = flow.sides["source"], flow.sides["target"]
    passes = config_property_filter_from_config(flow.connector).should_replicate_config_property(
        limit.key
    )
    of_source = is_new and passes
    side, name = (source, topic) if of_source else (target, flow.names.copy_of(topic))
    command = (
        f"kafka-configs.sh --bootstrap-server {side.servers} --alter --topic {name} "
        f"--add-config {limit.remedy}"
    )
    if of_source:
        return (
            f"{command} (the copy gets what its source sets itself, else the defaults of "
            f"{target.alias})"
        )
    return f"when it is there: {command}" if is_new else command


async def _expired(
    flow: Examined,
    copies: Mapping[str, str],
    ours: Mapping[str, Mapping[str, str]],
    theirs: Mapping[str, Mapping[str, str]],
) -> AsyncIterator[tuple[Limit, list[str]]]:
    """Return topics whose copies keep records for less than the age of their oldest ones, by what
    they keep."""
    held_ms = {
        topic: held
        for topic, copy in copies.items()
        if (held := number_of(theirs.get(copy, {}), "retention.ms")) is not None
        and "delete" in theirs[copy].get("cleanup.policy", "delete")
        and is_shorter(held, number_of(ours.get(topic, {}), "retention.ms") or held)
    }
    chosen, now_ms = await flow.chosen(), flow.clock.now_ms()
    asked = {topic: chosen[topic].partitions for topic in held_ms}
    expired: dict[int, dict[str, int]] = {}
    for tp, at_ms in (await flow.sides["source"].admin.first_times(asked)).items():
        held = held_ms[tp.topic]
        if 0 <= at_ms < now_ms - held:
            ages = expired.setdefault(held, {})
            ages[tp.topic] = max(now_ms - at_ms, ages.get(tp.topic, 0))
    for held, ages in expired.items():
        text = (
            f"keeps records for {duration_text(held)}, its source has some of "
            f"{duration_text(max(ages.values()))}: these are deleted as they arrive"
        )
        kept = max((int(ours[it]["retention.ms"]) for it in ages), key=lambda it: (it < 0, it))
        yield Limit("retention.ms", text, f"retention.ms={kept}"), [*ages]


async def drift(flow: Examined) -> AsyncIterator[Row]:
    """Copies have the configs that sync.topic.configs gives them; what no filter lets through is
    the target's own."""
    copies = await flow.copies()
    ours = await flow.entries("source", [*copies])
    theirs = await flow.entries("target", [*copies.values()])
    wanted = config_property_filter_from_config(flow.connector)
    differ: dict[str, list[str]] = {}
    known = {topic: copy for topic, copy in copies.items() if topic in ours and copy in theirs}
    for topic, copy in known.items():
        there = {it.name: it for it in theirs[copy]}
        for change in config_operations(ours[topic], wanted):
            has = there.get(change.name)
            is_set = has is not None and has.value == change.value
            is_own = has is not None and has.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
            if is_own if change.op == "DELETE" else not is_set:
                differ.setdefault(change.name, []).append(copy)
    is_synced = flow.config.sync_topic_configs_enabled
    for name, topics in differ.items():
        yield Level.WARNING.row(
            f"{name} of {some(topics)} is not that of the source"
            + ("" if is_synced else ": sync.topic.configs.enabled=false"),
            (
                f"the flow writes it each {flow.config.sync_topic_configs_interval_seconds:.0f} s; "
                f"where it does not, mm2py flow describe '{flow.flow}' has the target's refusal"
            )
            if is_synced
            else (
                f"set it with kafka-configs.sh --bootstrap-server {flow.sides['target'].servers} "
                f"--alter --topic {sorted(topics)[0]} --add-config {name}=..."
            ),
        )
    if known and not differ:
        yield Level.OK.row(f"configs of {len(known)} copies are those of their sources")


async def partitions(flow: Examined) -> AsyncIterator[Row]:
    """A copy has the partitions of its source: with more, keys are elsewhere for who writes there
    after a failover."""
    there = await flow.topics("target")
    chosen = await flow.chosen()
    more = {
        topic: f"{copy} ({len(there[copy].partitions)} for {len(chosen[topic].partitions)})"
        for topic, copy in sorted((await flow.copies()).items())
        if len(there[copy].partitions) > len(chosen[topic].partitions)
    }
    if more:
        first, source = min(more), flow.sides["source"]
        count = len(there[flow.names.copy_of(first)].partitions)
        yield Level.WARNING.row(
            f"copies with more partitions than their source: {some([*more.values()])}; writers "
            "that move there find keys in other partitions",
            "give the source topics as many: kafka-topics.sh --bootstrap-server "
            f"{source.servers} --alter --topic {first} --partitions {count}",
        )
    elif chosen:
        yield Level.OK.row("copies have the partitions of their sources")


async def acls(flow: Examined) -> AsyncIterator[Row]:
    """Copies have the rules that sync.topic.acls gives them."""
    source, target = flow.sides["source"], flow.sides["target"]
    if not flow.config.sync_topic_acls_enabled:
        yield Level.OK.row("rules are not synced (sync.topic.acls.enabled=false)")
        return
    answers: dict[str, tuple[Acl, ...] | None] = {}
    for opened in (source, target):
        try:
            answers[opened.alias] = await opened.acls()
        except ServerError as error:
            yield Level.WARNING.row(
                f"{opened.alias}: rules may not be read: {error.message}; they are not synced",
                error.remedy,
            )
            return
    ours, theirs = answers.values()
    if ours is None:
        yield Level.OK.row(f"{source.alias} has no authorizer: no rules are synced")
        return
    there, own = await flow.topics("target"), own_principals(flow.connector)
    if left := own_denials(ours, selection=flow.names.selection, own=own):
        yield Level.OK.row(
            f"rules for the mirror's own principal stay on {source.alias}, on copies they would "
            f"end the copy: {some(left)}"
        )
    wanted = [
        it
        for it in remote_acls(ours, selection=flow.names.selection, policy=flow.policy, source_alias=flow.aliases.source, own=own)
        # A rule that denies writing is a failover's own.
        if it.resource_name in there and (it.permission, it.operation) != (AclPermission.DENY, AclOperation.WRITE)
    ]  # fmt: skip
    if theirs is None:
        if wanted:
            yield Level.WARNING.row(
                f"{target.alias} has no authorizer: whoever reaches it may "
                f"read {some({it.resource_name for it in wanted})}",
                "configure authorizer.class.name there, or set sync.topic.acls.enabled=false",
            )
        return
    missing = [it for it in wanted if it not in theirs]
    if missing:
        shown = [
            f"{it.permission.name} {it.operation.name} of {it.principal} on {it.resource_name}"
            for it in missing
        ]
        yield Level.WARNING.row(
            f"{target.alias}: rules that {source.alias} has are not on the copies: {some(shown)}",
            (
                f"the flow writes them each {flow.config.sync_topic_acls_interval_seconds} s; "
                "where it does not, its principal needs "
            )
            + target.admin.cluster.granting("Alter", "--cluster"),
        )
    else:
        yield Level.OK.row(f"{len(wanted)} rules of the source are on the copies")


async def groups(flow: Examined) -> AsyncIterator[Row]:
    """Each group that is to be synced has its place on the target, as ``mm2py group list`` shows
    it: it would go on there after a failover."""
    if not flow.syncs_groups:
        yield Level.OK.row("groups are not synced (sync.group.offsets.enabled)")
        return
    source, target = flow.sides["source"], flow.sides["target"]
    wanted = group_filter_from_config(flow.of_groups)
    ours, theirs = (await source.groups()).groups, (await target.groups()).groups
    used = {
        name
        for name, it in theirs.items()
        if it.has_members and name in ours and wanted.should_replicate_group(name)
    }
    if used:
        both = {name for name in used if ours[name].has_members}
        where = f"on both sides ({some(both)})" if both else f"on {target.alias}"
        yield Level.WARNING.row(
            f"active {where}, so not synced: {some(used)}",
            f"stop them on {flow.flow.target}, or exclude them in groups.exclude",
        )
    by_reason: dict[str, list[str]] = {}
    offsets = FlowOffsets(
        flow.flow,
        flow.of_groups,
        flow.clock,
        has_checkpoints=flow.has_checkpoints,
        clusters=(source.admin.cluster, target.admin.cluster),
    )
    async with offsets:
        views = await offsets.groups(None, MOST_GROUPS)
    for view in views:
        if view.not_synced and view.group not in used:
            by_reason.setdefault(view.not_synced, []).append(view.group)
    # Before the first start no group has a place, and none needs one.
    began = flow.policy.checkpoints_topic(flow.aliases.source) in await flow.topics("target")
    for reason, named in by_reason.items() if began else ():
        yield Level.WARNING.row(
            f"not synced: {some(named)}: {reason}",
            f"mm2py group describe '{flow.flow}' {min(named)!r}; a new group takes "
            "refresh.groups.interval.seconds and emit.checkpoints.interval.seconds",
        )
    if not began:
        yield Level.OK.row(f"{len(views)} groups; none has a place before the flow has run")
    elif not used and not by_reason:
        yield Level.OK.row(f"{len(views)} groups have their places on {target.alias}")


async def transactions(flow: Examined) -> AsyncIterator[Row]:
    """No transaction of the source is open for longer than any coordinator allows: readers of
    committed records wait for it."""
    opened = flow.sides["source"]
    asked = [
        TopicPartition(name, number)
        for name, topic in (await flow.chosen()).items()
        for number in topic.partitions
    ][:MOST_PARTITIONS]
    try:
        producers = await opened.admin.describe_producers(asked)
    except UnsupportedVersionError:
        yield Level.SKIPPED.row(f"{opened.alias}: brokers before 2.8 do not tell open transactions")
        return
    now = flow.clock.now_ms()
    hanging = [
        (partition, it.transaction_start)
        for partition, found in producers.items()
        for it in found
        if it.transaction_start >= 0 and 0 <= it.last_timestamp < now - HANGS_MS
    ]
    for partition, start in hanging[:3]:
        yield Level.WARNING.row(
            f"{opened.alias}: {partition} has a transaction open since offset {start} whose last "
            "record is older than 15 min: it may hang",
            f"kafka-transactions.sh --bootstrap-server {opened.servers} find-hanging --topic "
            f"{partition.topic} --partition {partition.partition} tells whether its coordinator "
            "still knows it",
        )
    if not hanging:
        yield Level.OK.row(f"{opened.alias}: no hanging transaction in {len(producers)} partitions")


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
    text = (
        f"{size_text(total)} of {len(new)} topics without a copy are to come, times "
        f"replication.factor={flow.config.replication_factor}"
    )
    target = flow.sides["target"]
    free = await target.free_bytes()
    if free is None:
        yield Level.OK.row(f"{text}; brokers of {target.alias} do not tell how much they can take")
    elif total * factor > free * _FULL:
        yield Level.ERROR.row(
            f"{text}; {target.alias} has {size_text(free)} left: its disks run full",
            "give its brokers disk, exclude topics, or set start.positions to what is needed",
        )
    else:
        yield Level.OK.row(f"{text}; {target.alias} has {size_text(free)} left")
