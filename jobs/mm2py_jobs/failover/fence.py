"""Which rules keep applications from writing to topics, without keeping a mirror from reading or writing them.

Flow: ACLs of the cluster -> ``fence_of`` -> ``FencePlan``: one denying rule per topic and principal that may write now, and what no rule
can do. Asks no cluster. Kafka lets a rule that denies win over all that allow, but for super users.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.config.jaas import parse_jaas
from mm2py.errors import ConfigError
from mm2py.mirror.failovers import Rule
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType

EVERYBODY: Final = "User:*"
_WRITES: Final = frozenset({AclOperation.WRITE, AclOperation.ALL})
_SHOWN: Final = 3
_OWN_NAME: Final = "the mirror's own principal is not told by its login: it is kept out too, unless it is a super user"


@dataclass(frozen=True, slots=True)
class FencePlan:
    """``rules`` to make; ``note`` says who is not kept out and why, empty for nobody that is known."""

    rules: tuple[Rule, ...]
    note: str


def principal_of(props: Mapping[str, str]) -> str:
    """Return as whom a client with these properties is known, as far as its login tells; empty where it does not."""
    jaas = props.get("sasl.jaas.config", "")
    if jaas:
        try:
            name = parse_jaas(jaas).options.get("username", "")
        except ConfigError:
            return ""
        return f"User:{name}" if name else ""
    protocol = props.get("security.protocol", "PLAINTEXT").upper()
    return "User:ANONYMOUS" if protocol == "PLAINTEXT" else ""


def fence_of(
    acls: Iterable[Acl],
    topics: Collection[str],
    mirrors: Collection[str],
    *,
    mirror_writes: bool,
) -> FencePlan:
    """Return what keeps everybody but mirrors from writing topics.

    Args:
        acls: all of the cluster's topics.
        topics: names.
        mirrors: principals of our own, which are never denied; empty for one whose login does not tell it.
        mirror_writes: whether a mirror writes these topics, so that a rule against everybody would stop it.
    """
    rules: dict[Rule, None] = {}
    open_topics: list[str] = []
    for_all: list[str] = []
    known = [it for it in acls if it.resource_type is AclResourceType.TOPIC]
    denied = {(it.resource_name, it.principal) for it in known if _denies_all_hosts(it)}
    for topic in sorted(topics):
        writers = {it.principal for it in known if _allows(it) and _is_about(it, topic)}
        if not writers and not any(_is_about(it, topic) for it in known):
            open_topics.append(topic)
        for principal in sorted(writers - set(mirrors)):
            if principal == EVERYBODY and mirror_writes:
                for_all.append(topic)
            elif (topic, principal) not in denied:
                rules[Rule(topic=topic, principal=principal)] = None
    notes = (
        _note(open_topics, "no rule names {}: the brokers' own setting says who may write"),
        _note(for_all, f"{EVERYBODY} may write {{}}: to deny that would stop the flow back too"),
        _OWN_NAME if rules and mirror_writes and "" in mirrors else "",
    )
    return FencePlan(tuple(rules), "; ".join(it for it in notes if it))


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
    if acl.pattern_type is PatternType.PREFIXED:
        return topic.startswith(acl.resource_name)
    return acl.resource_name in (topic, "*")
