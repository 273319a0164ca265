"""Checks of each cluster by itself: its brokers, certificates, rights, and the topics that the flow
keeps there."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.client.connect.share_positions import SHARE_FEATURE
from mm2py.clock import Clock
from mm2py.config.class_names import HEARTBEAT_NAME
from mm2py.config.definitions import parse_config
from mm2py.errors import Mm2pyError, ProtocolError, ServerError, UnsupportedVersionError
from mm2py.mirror.backfills import backfill_topic
from mm2py.mirror.filters import group_filter_from_config
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.ledger import ledger_topic
from mm2py.mirror.offset_map_pages import offset_map_topic
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.observability.quantities import duration_text, size_text
from mm2py.protocol.acls import AclOperation
from mm2py.protocol.admin_messages import ClientQuota
from mm2py.protocol.connect_group import decode_metadata
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    INVALID_REPLICATION_FACTOR,
    TOPIC_ALREADY_EXISTS,
    TOPIC_AUTHORIZATION_FAILED,
)
from mm2py.protocol.groups import DescribedMember
from mm2py.protocol.topics import BrokerNode, NewTopic
from mm2py_connectors.internal_topics import OTHER_TOPIC, collides
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_heartbeat_config import MirrorHeartbeatConfig
from mm2py_jobs.copy_limits import number_of
from mm2py_jobs.doctor.examined import SIDES, Examined, Level, OpenedSide, Row, Side, some

SOON_S: Final = 14 * 86_400.0
"""A certificate that ends within this time is a warning."""
REACH_S: Final = 5.0
ASKED_S: Final = 2.0
"""How long the controller may take to tell its time: a part of the time of a check of both
sides."""
APART_S: Final = 5.0
LATER_S: Final = 60.0
"""A record from further in the future than this is a warning."""
MOST_GROUPS: Final = 200
"""Whose rights are asked for."""
MOST_TOPICS: Final = 200
"""Whose newest records are asked for."""
_COMMITS: Final = "__consumer_offsets"
_PURPOSE: Final = "doctor"
_ENTITY_TYPES: Final = {"user": "users", "client-id": "clients", "ip": "ips"}
"""As ``kafka-configs.sh`` calls them."""


async def brokers(flow: Examined) -> AsyncIterator[Row]:
    """Each advertised listener is reached, and logged in to, as a task would; both sides at
    once."""
    answers = await asyncio.gather(*(_reach_all(flow.sides[side]) for side in SIDES))
    for side, rows in zip(SIDES, answers, strict=True):
        lost = [row for row in rows if row is not None]
        for row in lost:
            yield row
        if not lost:
            yield Level.OK.row(f"{flow.sides[side].alias}: {len(rows)} brokers reached")


async def _reach_all(opened: OpenedSide) -> list[Row | None]:
    found = (await opened.admin.cluster.metadata([])).brokers
    return await asyncio.gather(*(_reach(opened, it) for it in found))


async def _reach(opened: OpenedSide, broker: BrokerNode) -> Row | None:
    try:
        async with asyncio.timeout(REACH_S):
            await opened.admin.cluster.connection(broker.node_id, _PURPOSE)
    except (Mm2pyError, TimeoutError) as error:
        text, remedy = f"no answer within {REACH_S:.0f} s", ""
        if isinstance(error, Mm2pyError):
            text, remedy = error.message, error.remedy
        return Level.ERROR.row(
            f"{opened.alias}: broker {broker.node_id} cannot be reached at "
            f"{broker.host}:{broker.port}, which it advertises: {text}",
            remedy or "check advertised.listeners of that broker, DNS and firewalls",
        )
    return None


async def versions(flow: Examined) -> AsyncIterator[Row]:
    """What the brokers of a cluster speak is the same, and enough for what is asked of it."""
    shares: dict[Side, bool] = {}
    for side in SIDES:
        opened = flow.sides[side]
        cluster = opened.admin.cluster
        spoken: dict[int, dict[int, tuple[int, int]]] = {}
        features: Mapping[str, int] = {}
        for node in cluster.broker_ids:
            with suppress(Mm2pyError):  # the check of brokers names it
                connection = await cluster.connection(node, _PURPOSE)
                spoken[node] = dict(connection.versions)
                features = connection.features
        newest = max((it.get(_FETCH, (0, 0))[1] for it in spoken.values()), default=0)
        behind = [node for node, it in spoken.items() if it.get(_FETCH, (0, 0))[1] < newest]
        release = next((it for version, it in _RELEASES if newest >= version), "2.4 or before")
        levels = [f"{name}={level}" for name, level in sorted(features.items())]
        text = ", ".join([f"{opened.alias}: brokers of Kafka {release}", *levels])
        if behind:
            yield Level.WARNING.row(
                f"{text}; {some([f'broker {it}' for it in behind])} are of "
                "an earlier one: what only newer ones do may fail at times",
                "finish the upgrade of these brokers",
            )
        elif spoken:
            yield Level.OK.row(text)
        if spoken:
            shares[side] = features.get(SHARE_FEATURE, 0) > 0
    if flow.syncs_share_groups and shares.get("source") and shares.get("target") is False:
        target = flow.sides["target"]
        yield Level.WARNING.row(
            f"{target.alias}: has no share groups, those of {flow.flow.source} are not synced: "
            "it needs Kafka 4.2, or 4.1 with share.version=1",
            f"kafka-features.sh --bootstrap-server {target.servers} upgrade --feature "
            f"{SHARE_FEATURE}=1, or sync.share.group.offsets.enabled = false",
        )


_FETCH: Final = 1
_RELEASES: Final = (
    (18, "4.1 or later"),
    (17, "3.9 to 4.0"),
    (16, "3.7 or 3.8"),
    (15, "3.5 or 3.6"),
    (13, "3.1 to 3.4"),
    (12, "2.7 to 3.0"),
    (11, "2.3 to 2.6"),
)
"""By the newest Fetch that a broker takes."""


async def certificates(flow: Examined) -> AsyncIterator[Row]:
    """The certificates that brokers show are valid for a while."""
    for side in SIDES:
        opened = flow.sides[side]
        cluster = opened.admin.cluster
        now_s = flow.clock.now_ms() / 1000
        for node in cluster.broker_ids:
            try:
                connection = await cluster.connection(node, _PURPOSE)
            except Mm2pyError:
                continue  # the check of brokers names it
            ends_s = connection.certificate_expires_s
            if ends_s is None:
                continue
            days = int((ends_s - now_s) / 86_400)
            text = f"{opened.alias}: the certificate of broker {node} ends in {days} days"
            if ends_s - now_s < SOON_S:
                yield Level.WARNING.row(text, "renew the broker's certificate")
            else:
                yield Level.OK.row(text)


async def one_cluster(flow: Examined) -> AsyncIterator[Row]:
    """Source and target are two clusters."""
    ends = [ClusterEnd.of(flow.sides[side].admin.cluster) for side in SIDES]
    refuse_one_cluster(*ends)
    yield Level.OK.row(f"two clusters: {ends[0].cluster_id} and {ends[1].cluster_id}")


async def rights(flow: Examined) -> AsyncIterator[Row]:
    """Our principal may do with topics what each feature in use needs (KIP-430)."""
    wanted: dict[Side, dict[str, dict[AclOperation, str]]] = {
        "source": {name: _of_source(flow) for name in await flow.chosen()},
        # New ones too: a copy that may not be described is in no list.
        "target": {
            name: _of_copy(flow)
            for copies in (await flow.copies(), await flow.new_copies())
            for name in copies.values()
        },
    }
    for side, kept in _internal(flow).items():
        wanted[side] |= dict.fromkeys(kept, _OF_STATE)
    for side in SIDES:
        opened = flow.sides[side]
        names = wanted[side]
        try:
            granted = await opened.admin.topic_rights(names)
        except UnsupportedVersionError:
            yield Level.SKIPPED.row(f"{opened.alias}: brokers before 2.3 do not tell rights")
            continue
        missing: dict[tuple[AclOperation, str], list[str]] = {}
        hidden = await opened.admin.unwritable([it for it in names if it not in granted])
        for name, needs in names.items():
            for operation, purpose in needs.items():
                lacks_it = name in granted and operation not in granted[name]
                if lacks_it or (name in hidden and operation is AclOperation.WRITE):
                    missing.setdefault((operation, purpose), []).append(name)
        for (operation, purpose), topics in missing.items():
            yield _missing(opened, operation, purpose, topics)
        of_cluster = await opened.rights()
        lacks = (
            []
            if of_cluster is None
            else [it for it in _of_cluster(flow, side) if it[0] not in of_cluster]
        )
        for operation, purpose in lacks:
            word = _word(operation)
            yield Level.WARNING.row(
                f"{opened.alias}: no {word} on the cluster, needed for {purpose}",
                opened.admin.cluster.granting(word, "--cluster"),
            )
        if not missing and not lacks:
            yield Level.OK.row(f"{opened.alias}: rights on {len(granted)} topics")


_OF_STATE: Final = {
    AclOperation.READ: "the flow's own state",
    AclOperation.WRITE: "the flow's own state",
}


def _of_cluster(flow: Examined, side: Side) -> list[tuple[AclOperation, str]]:
    """Return what a side has to grant on the cluster itself; the right to create topics is asked of
    the controller."""
    if not flow.config.sync_topic_acls_enabled:
        return []
    needed = AclOperation.DESCRIBE if side == "source" else AclOperation.ALTER
    return [(needed, "sync.topic.acls.enabled")]


def _word(operation: AclOperation) -> str:
    """As ``kafka-acls.sh`` calls it."""
    return operation.name.title().replace("_", "")


def _of_source(flow: Examined) -> dict[AclOperation, str]:
    needs = {AclOperation.READ: "copying"}
    if flow.config.sync_topic_configs_enabled:
        needs[AclOperation.DESCRIBE_CONFIGS] = "sync.topic.configs.enabled"
    return needs


def _of_copy(flow: Examined) -> dict[AclOperation, str]:
    needs = {
        AclOperation.WRITE: "copying",
        AclOperation.READ: "looking for what a killed task wrote",
        AclOperation.ALTER: "new partitions",
    }
    if flow.config.sync_topic_configs_enabled:
        needs[AclOperation.ALTER_CONFIGS] = "sync.topic.configs.enabled"
    return needs


def _missing(opened: OpenedSide, operation: AclOperation, purpose: str, topics: list[str]) -> Row:
    """One row for all topics that lack an operation; a mirror may work without a few of them."""
    word = _word(operation)
    is_needed = operation in (AclOperation.READ, AclOperation.WRITE)
    needed = is_needed and purpose in ("copying", _OF_STATE[AclOperation.READ])
    return Row(
        Level.ERROR if needed else Level.WARNING,
        f"{opened.alias}: no {word} on {some(topics)}, needed for {purpose}",
        opened.admin.cluster.granting(word, " ".join(f"--topic {it}" for it in sorted(topics)[:3])),
    )


async def quotas(flow: Examined) -> AsyncIterator[Row]:
    """No quota of the brokers holds the flow's clients up (KIP-546); one for another client's id
    alone is none of ours."""
    for side in SIDES:
        opened = flow.sides[side]
        try:
            found = await opened.quotas()
        except UnsupportedVersionError:
            yield Level.SKIPPED.row(f"{opened.alias}: brokers before 2.6 do not tell quotas")
            continue
        rate = "consumer_byte_rate" if side == "source" else "producer_byte_rate"
        ours = applied(
            [it for it in found if rate in it.values and _concerns(it.entity, opened, flow)]
        )
        for quota in ours:
            who = ", ".join(f"{kind} {name or '<default>'}" for kind, name in quota.entity.items())
            yield Level.WARNING.row(
                f"{opened.alias}: a quota of {size_text(quota.values[rate])}/s and broker "
                f"({rate} of {who}) bounds the copy",
                f"raise it: kafka-configs.sh --bootstrap-server {opened.servers} --alter "
                f"{entity_options(quota.entity)} --add-config {rate}=...; or set "
                "flow.max.bytes.per.second to it",
            )
        if (
            not ours
            and _user(opened) is None
            and any(it.entity.get("user") and rate in it.values for it in found)
        ):
            yield Level.SKIPPED.row(
                f"{opened.alias}: there are quotas of users ({rate}), and our principal is not "
                "known from here",
            )
        elif not ours:
            yield Level.OK.row(f"{opened.alias}: no quota")


def applied(quotas: Iterable[ClientQuota]) -> list[ClientQuota]:
    """Return those that count: what names a client beside it, and the first of the others in
    Kafka's order (``DefaultQuotaCallback``)."""
    kept: list[ClientQuota] = []
    for quota in sorted(
        quotas, key=lambda it: (_place(it.entity, "user"), _place(it.entity, "client-id"))
    ):
        kept.append(quota)
        if quota.entity.get("client-id") is None:
            break  # it is that of all other clients
    return kept


def entity_options(entity: Mapping[str, str | None]) -> str:
    """Return the options of ``kafka-configs.sh`` that name whom a quota is for."""
    return " ".join(
        f"--entity-type {_ENTITY_TYPES.get(kind, kind)} "
        + ("--entity-default" if name is None else f"--entity-name {shlex.quote(name)}")
        for kind, name in entity.items()
    )


def _place(entity: Mapping[str, str | None], kind: str) -> int:
    """A name goes before the default of its kind, that before what says nothing of the kind."""
    return 2 if kind not in entity else int(entity[kind] is None)


def _user(opened: OpenedSide) -> str | None:
    """Return the user that brokers know us as, None where a certificate, a ticket or a token says
    it."""
    settings = opened.admin.cluster.settings
    if settings.sasl is not None:
        return settings.sasl.username or None
    return None if settings.tls is not None else "ANONYMOUS"


def _concerns(entity: Mapping[str, str | None], opened: OpenedSide, flow: Examined) -> bool:
    user = _user(opened)
    for kind, name in entity.items():
        if kind == "user" and name is not None and name != user:
            return False
        # The clients of a flow have its name in theirs, or begin with Connect's words.
        if (
            kind == "client-id"
            and name is not None
            and str(flow.flow) not in name
            and not name.startswith("connector-")
        ):
            return False
    return "ip" not in entity


async def clocks(flow: Examined) -> AsyncIterator[Row]:
    """The clock of the controller is this machine's, no broker stamped a commit of the future
    (KIP-734 finds the newest), no writer a record."""
    for side in SIDES:
        opened = flow.sides[side]
        texts: list[str] = []
        apart_s = await _controller_apart_s(opened, flow.clock)
        if abs(apart_s) > APART_S:
            where = "ahead of" if apart_s > 0 else "behind"
            texts.append(f"the controller's clock is {abs(apart_s):.0f} s {where} this machine's")
        stamps = (await opened.commits()).values()
        now_ms = flow.clock.now_ms()
        ahead_s = (max(stamps, default=0) - now_ms) / 1000
        if ahead_s > APART_S:
            texts.append(
                f"a broker stamped a commit {ahead_s:.0f} s ahead of this machine's clock: its "
                "clock is ahead, or was, or this one is behind"
            )
        for text in texts:
            yield Level.WARNING.row(
                f"{opened.alias}: {text}",
                "synchronise both with NTP (chronyc tracking): ages, RPO and certificates are "
                "judged by them",
            )
        later = dict[str, float]()
        if side == "source":
            newest = await opened.admin.newest_times([*await flow.chosen()][:MOST_TOPICS])
            for tp, at_ms in newest.items():
                if at_ms - now_ms > LATER_S * 1000:
                    later[tp.topic] = max(later.get(tp.topic, 0), (at_ms - now_ms) / 1000)
        if later:
            yield Level.WARNING.row(
                f"{opened.alias}: records of {some(later)} have times up to "
                f"{duration_text(round(max(later.values()) * 1000))} in the future:"
                " retention keeps them for longer, and nothing behind them is found by time",
                "correct the clocks of their writers, or set message.timestamp.type=LogAppendTime",
            )
        if not texts and not later:
            yield Level.OK.row(f"{opened.alias}: no clock is apart, nothing is of the future")


async def _controller_apart_s(opened: OpenedSide, clock: Clock) -> float:
    """Return how far the controller's clock is ahead of ours, negative: behind; 0 where it is not
    known. What the answer took is no difference."""
    asked_ms, at_ms = clock.now_ms(), -1
    with suppress(
        Mm2pyError, TimeoutError
    ):  # unknown to the broker, or forbidden: the other checks count
        async with asyncio.timeout(ASKED_S):
            at_ms = await opened.admin.controller_time_ms()
    return 0.0 if at_ms < 0 else (at_ms - min(max(at_ms, asked_ms), clock.now_ms())) / 1000


async def group_rights(flow: Examined) -> AsyncIterator[Row]:
    """Groups can be listed and read on the source, and written on the target where they are
    synced."""
    opened = flow.sides["source"]
    try:
        catalog = await opened.groups()
    except ServerError as error:
        yield Level.ERROR.row(
            f"{opened.alias}: groups cannot be listed: {error.message}",
            opened.admin.cluster.granting("Describe", "--cluster"),
        )
        return
    offsets = await opened.admin.topic_rights([_COMMITS])
    if AclOperation.READ not in offsets.get(_COMMITS, {AclOperation.READ}):
        yield _missing(opened, AclOperation.READ, "following commits", [_COMMITS])
    elif catalog.missing:
        yield Level.WARNING.row(
            f"{opened.alias}: groups of some brokers are not known: {catalog.missing}",
        )
    else:
        yield Level.OK.row(f"{opened.alias}: {len(catalog.groups)} groups")
    if not flow.syncs_groups:
        return
    target, wanted = flow.sides["target"], group_filter_from_config(flow.of_groups)
    named = sorted(filter(wanted.should_replicate_group, catalog.groups))[:MOST_GROUPS]
    granted = await GroupAdmin(target.admin.cluster).rights(named)
    lacking = sorted(
        it for it, operations in granted.items() if AclOperation.READ not in operations
    )
    if lacking:
        yield Level.ERROR.row(
            f"{target.alias}: no Read on groups {some(lacking)}, needed for "
            "sync.group.offsets.enabled",
            target.admin.cluster.granting(
                "Read", " ".join(f"--group {shlex.quote(it)}" for it in lacking[:3])
            ),
        )


async def leaders(flow: Examined) -> AsyncIterator[Row]:
    """What the flow reads and writes has leaders, and what it writes enough replicas in sync to
    take a batch."""
    kept = _internal(flow)
    read: dict[Side, set[str]] = {"source": {*await flow.chosen()}, "target": set()}
    copies = (await flow.copies()).values()
    written: dict[Side, set[str]] = {
        "source": {*kept["source"]},
        "target": {*kept["target"], *copies},
    }
    for side in SIDES:
        opened, there = flow.sides[side], (await flow.topics(side)).keys()
        configs = await flow.configs(side, written[side] & there)
        least = {name: number_of(it, "min.insync.replicas") or 1 for name, it in configs.items()}
        found = await opened.admin.cluster.metadata(sorted((read[side] | written[side]) & there))
        partitions = [
            (f"{of.name}-{it.partition}", of.name, it)
            for of in found.topics
            for it in of.partitions
        ]
        none = [name for name, _, it in partitions if it.leader < 0]
        few = [
            name for name, of, it in partitions if it.leader >= 0 and it.in_sync < least.get(of, 0)
        ]
        describe = f"kafka-topics.sh --bootstrap-server {opened.servers} --describe"
        if none:
            yield Level.ERROR.row(
                f"{opened.alias}: no leader, so neither read nor written: {some(none)}",
                f"start the brokers that have them: {describe} --unavailable-partitions",
            )
        if few:
            yield Level.ERROR.row(
                f"{opened.alias}: fewer replicas in sync than min.insync.replicas, so not written: "
                f"{some(few)}",
                f"start their other brokers: {describe} --under-min-isr-partitions",
            )
        if not none and not few:
            yield Level.OK.row(f"{opened.alias}: leaders of {len(partitions)} partitions")


async def internal_topics(flow: Examined) -> AsyncIterator[Row]:
    """What the flow keeps in Kafka is there in the right form, or can be created as its properties
    ask."""
    for side, topics in _internal(flow).items():
        opened = flow.sides[side]
        there = await flow.topics(side)
        found = [it for it in topics if it in there]
        for name, values in (await flow.configs(side, found)).items():
            for key, needed in topics[name].configs.items():
                if values.get(key, needed) != needed:
                    yield Level.ERROR.row(
                        f"{opened.alias}: {name} has {key}={values[key]}: what the flow keeps "
                        "there is deleted",
                        f"kafka-configs.sh --bootstrap-server {opened.servers} --alter --topic "
                        f"{name} --add-config {key}={needed}",
                    )
        missing = {name: it for name, it in topics.items() if name not in there}
        new = {it: NewTopic(it, 1, of.factor, of.configs) for it, of in missing.items()}
        async for row in creatable(opened, new, partial(_factors, missing)):
            yield row
        if topics and len(found) == len(topics):
            yield Level.OK.row(f"{opened.alias}: {len(found)} internal topics")


def _factors(topics: Mapping[str, "_Kept"], names: Iterable[str]) -> str:
    properties = sorted({f"{topics[it].prefix}.replication.factor" for it in names})
    return f"set {', '.join(properties)} to at most the number of brokers"


class _Kept(NamedTuple):
    """A topic of the flow's own: its replicas, the prefix of the property that says so, and the
    configs that it must have."""

    factor: int
    prefix: str
    configs: Mapping[str, str]


def _internal(flow: Examined) -> dict[Side, dict[str, _Kept]]:
    worker, config, policy = flow.plan.worker, flow.config, flow.policy
    by_side: dict[Side, dict[str, _Kept]] = {"source": {}, "target": {}}
    target, source = by_side["target"], flow.flow.source
    ledger, factor = ledger_topic(source), worker.offset_storage_replication_factor
    ours = ledger, offset_map_topic(source), flows_topic(source), backfill_topic(source)
    for prefix, name, replicas in (
        ("config.storage", worker.config_storage_topic, worker.config_storage_replication_factor),
        ("status.storage", worker.status_storage_topic, worker.status_storage_replication_factor),
        *(("offset.storage", name, factor) for name in (worker.offset_storage_topic, *ours)),
    ):
        target[name] = _Kept(replicas, prefix, _KEPT if name == ledger else _COMPACTED)
    if config.emit_offset_syncs_enabled:
        side: Side = "source" if config.offset_syncs_topic_location == "source" else "target"
        other = flow.aliases.target if side == "source" else flow.aliases.source
        by_side[side][policy.offset_syncs_topic(other)] = _Kept(
            config.offset_syncs_topic_replication_factor, "offset-syncs.topic", _COMPACTED
        )
    if flow.has_checkpoints:
        checkpoints = parse_config(MirrorCheckpointConfig, flow.of_groups)
        if checkpoints.emit_checkpoints_enabled:
            target[policy.checkpoints_topic(flow.aliases.source)] = _Kept(
                checkpoints.checkpoints_topic_replication_factor, "checkpoints.topic", _COMPACTED
            )
    heartbeat = flow.plan.connectors.get(HEARTBEAT_NAME)
    if heartbeat is not None:
        heartbeats = parse_config(MirrorHeartbeatConfig, flow.plan.resolve(heartbeat))
        if heartbeats.emit_heartbeats_enabled:
            target[policy.heartbeats_topic()] = _Kept(
                heartbeats.heartbeats_topic_replication_factor, "heartbeats.topic", {}
            )
    return by_side


_COMPACTED: Final = {"cleanup.policy": "compact"}
_KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Of the ledger, whose events have no key."""


async def creatable(
    opened: OpenedSide, topics: dict[str, NewTopic], factors: Callable[[Iterable[str]], str]
) -> AsyncIterator[Row]:
    """Ask the controller whether topics could be created, without creating them; one row for each
    cause; ``factors`` tells what to do where it has too few brokers for some."""
    causes: dict[tuple[int, str, str], list[str]] = {}
    answers = await opened.admin.create_topics([*topics.values()], validate_only=True)
    for name, error in answers.items():
        if error is not None and error.code != TOPIC_ALREADY_EXISTS:
            text = error.message.replace(name, "...")
            remedy = OTHER_TOPIC if collides(error) else error.remedy
            causes.setdefault((error.code, text, remedy), []).append(name)
    for (code, text, remedy), names in causes.items():
        if code in (TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED):
            yield Level.ERROR.row(
                f"{opened.alias}: no right to create {some(names)}",
                opened.admin.cluster.granting("Create", "--cluster"),
            )
        else:
            yield Level.ERROR.row(
                f"{opened.alias}: {some(names)} cannot be created: {text}",
                factors(names) if code == INVALID_REPLICATION_FACTOR else remedy,
            )
    if topics and not causes:
        yield Level.OK.row(f"{opened.alias}: {len(topics)} topics can be created")


async def workers(flow: Examined) -> AsyncIterator[Row]:
    """Workers of the flow reach each other's REST: changes go to the leader, states and secrets of
    tasks come from it (KIP-710); Connect's group has their addresses."""
    group = await flow.sides["target"].admin.describe_group(flow.plan.worker.group_id)
    urls = [_url_of(it) for it in group.members]
    # Java's dedicated workers without REST have no address.
    addresses = {(it.hostname, it.port) for it in map(urlsplit, urls) if it.hostname}
    answers = await asyncio.gather(*(_knock(*it) for it in addresses))
    for row in filter(None, answers):
        yield row
    if not all(it.metadata for it in group.members):
        yield Level.SKIPPED.row("the group deals its work anew just now: ask again")
    elif not urls:
        yield Level.OK.row("no worker runs")
    elif not any(answers):
        yield Level.OK.row(
            f"{len(addresses)} of {len(urls)} workers have an address, and are reached there",
        )


def _url_of(member: DescribedMember) -> str:
    try:
        return decode_metadata(member.metadata).url
    except ProtocolError:
        return ""  # of the moment in which a round is not over


async def _knock(host: str, port: int | None) -> Row | None:
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        text = (
            f"no answer within {REACH_S:.0f} s" if isinstance(error, TimeoutError) else str(error)
        )
        return Level.WARNING.row(
            f"the worker at {host}:{port} cannot be reached from here: {text}",
            "open the port of its internal.listener between workers, and set "
            "rest.advertised.host.name to what the others reach",
        )
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None


def away(sides: dict[Side, OpenedSide]) -> Iterator[Row]:
    """Name the clusters that do not answer."""
    for side, opened in sides.items():
        if opened.away:
            text = f"{side} cluster {opened.alias} does not answer: {opened.away}"
            yield Level.ERROR.row(text)
