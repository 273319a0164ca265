"""Which ACLs keep applications from writing, but no mirror from reading or writing.

Flow: ACLs of a cluster, principals of its mirrors, rules of other failovers -> ``fence_of`` ->
``FencePlan``, which ``mm2py_jobs.failover.steps`` creates and removes.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_values
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.failovers import Fence, Rule, decode_failover, is_failover_topic
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType

log = logging.getLogger(__name__)

EVERYBODY: Final = "User:*"
_WRITES: Final = frozenset({AclOperation.WRITE, AclOperation.ALL})
_SHOWN: Final = 3
_OWN_NAME: Final = (
    "the mirror's login does not tell its principal: it is fenced too, unless it is a super user"
)


@dataclass(frozen=True, slots=True)
class FencePlan:
    """``rules`` to create; ``note``: principals that they cannot block, and why; empty if none."""

    rules: tuple[Rule, ...]
    note: str


def fence_of(
    acls: Iterable[Acl],
    topics: Collection[str],
    mirrors: Collection[str],
    *,
    mirror_writes: bool,
    others: Collection[Rule] = (),
) -> FencePlan:
    """Return one DENY rule for each topic and principal, except mirrors, that an ACL allows to
    write; DENY wins over ALLOW, except for super users.

    Args:
        acls: topic ACLs of the cluster.
        topics: names.
        mirrors: our own principals, which are never denied; an empty one is unknown.
        mirror_writes: whether a mirror writes these topics, so that denying ``User:*`` would stop
            it.
        others: recorded by other failovers, which may remove them: a rule that is there by one of
            them counts for this fence too.
    """
    rules: dict[Rule, None] = {}
    open_topics: list[str] = []
    for_all: list[str] = []
    topic_acls = [acl for acl in acls if acl.resource_type is AclResourceType.TOPIC]
    denied = {(acl.resource_name, acl.principal) for acl in topic_acls if _denies_all_hosts(acl)}
    denied -= {(rule.topic, rule.principal) for rule in others}
    for topic in sorted(topics):
        writers = {acl.principal for acl in topic_acls if _allows(acl) and _is_about(acl, topic)}
        # allow.everyone.if.no.acl.found of the brokers decides for a topic that no ACL is about.
        if not writers and not any(_is_about(acl, topic) for acl in topic_acls):
            open_topics.append(topic)
        for principal in sorted(writers - set(mirrors)):
            if principal == EVERYBODY and mirror_writes:
                for_all.append(topic)
            elif (topic, principal) not in denied:
                rules[Rule(topic=topic, principal=principal)] = None
    notes = (
        _note(open_topics, "no rule names {}: the brokers' own setting says who may write"),
        _note(for_all, f"{EVERYBODY} may write {{}}: denying that would stop the flow back too"),
        _OWN_NAME if rules and mirror_writes and "" in mirrors else "",
    )
    return FencePlan(tuple(rules), "; ".join(note for note in notes if note))


def _note(topics: Collection[str], text: str) -> str:
    return text.format(some_of(sorted(topics), _SHOWN)) if topics else ""


def _allows(acl: Acl) -> bool:
    return acl.permission is AclPermission.ALLOW and acl.operation in _WRITES


def _denies_all_hosts(acl: Acl) -> bool:
    return (
        acl.permission is AclPermission.DENY
        and acl.operation in _WRITES
        and acl.host == "*"
        and acl.pattern_type is PatternType.LITERAL
    )


def _is_about(acl: Acl, topic: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:  # KIP-290
        return topic.startswith(acl.resource_name)
    return acl.resource_name in (topic, "*")


async def rules_of_others(cluster: Cluster, topic: str, clock: Clock) -> frozenset[Rule]:
    """Return the rules on a cluster that failovers have recorded in other topics than this one;
    what may not be read is logged."""
    rules: set[Rule] = set()
    for name in await Admin(cluster).list_topics():
        if name == topic or not is_failover_topic(name):
            continue
        try:
            value = (await newest_values(cluster, name, clock)).get(b"fence")
            fence = None if value is None else decode_failover(b"fence", value)
        except RetriableError:
            raise
        except Mm2pyError as error:
            log.warning("fence of another failover cannot be read topic=%s cause=%s", name, error)
            continue
        if isinstance(fence, Fence):
            rules.update(fence.rules)
    return frozenset(rules)
