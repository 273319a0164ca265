"""Which rules keep applications from writing, and what no rule can do."""

from dataclasses import replace

import pytest

from mm2py.mirror.failovers import Rule
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py_jobs.failover.fence import EVERYBODY, fence_of, principal_of

SHOP = Acl(
    AclResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:shop",
    "*",
    AclOperation.WRITE,
    AclPermission.ALLOW,
)
MIRROR = replace(SHOP, principal="User:mirror")


def test_everybody_who_may_write_is_denied_but_the_mirror() -> None:
    reader = replace(SHOP, principal="User:reader", operation=AclOperation.READ)
    owner = replace(SHOP, principal="User:owner", operation=AclOperation.ALL)
    plan = fence_of([SHOP, MIRROR, reader, owner], ["orders"], ["User:mirror"], mirror_writes=True)
    assert set(plan.rules) == {
        Rule(topic="orders", principal="User:shop"),
        Rule(topic="orders", principal="User:owner"),
    }
    assert not plan.note
    (acl,) = {it.acl for it in plan.rules if it.principal == "User:shop"}
    assert acl == replace(SHOP, permission=AclPermission.DENY)


@pytest.mark.parametrize(
    "acl",
    [
        replace(SHOP, resource_name="or", pattern_type=PatternType.PREFIXED),
        replace(SHOP, resource_name="*"),
    ],
)
def test_rules_for_many_topics_count(acl: Acl) -> None:
    plan = fence_of([acl], ["orders", "x"], [], mirror_writes=True)
    assert Rule(topic="orders", principal="User:shop") in plan.rules


def test_what_is_denied_already_is_not_recorded_as_ours() -> None:
    denied = replace(SHOP, permission=AclPermission.DENY)
    assert not fence_of([SHOP, denied], ["orders"], [], mirror_writes=False).rules


def test_everybody_is_not_denied_where_a_mirror_writes() -> None:
    everybody = replace(SHOP, principal=EVERYBODY)
    plan = fence_of([everybody], ["orders"], [], mirror_writes=True)
    assert not plan.rules
    assert "User:*" in plan.note
    plan = fence_of([everybody], ["orders"], [], mirror_writes=False)
    assert plan.rules == (Rule(topic="orders", principal=EVERYBODY),)


def test_a_topic_without_rules_is_left_alone_and_named() -> None:
    plan = fence_of([SHOP], ["orders", "a", "b", "c", "d"], [], mirror_writes=False)
    assert {it.topic for it in plan.rules} == {"orders"}
    assert plan.note.startswith("no rule names a, b, c and 1 more:")


def test_a_login_tells_the_principal_where_it_can() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    jaas = f'{module} username="ann" password="x";'
    assert principal_of({"sasl.jaas.config": jaas, "security.protocol": "SASL_SSL"}) == "User:ann"
    assert principal_of({}) == "User:ANONYMOUS"
    assert not principal_of({"security.protocol": "SSL"})
    assert not principal_of({"sasl.jaas.config": "nonsense"})


@pytest.mark.parametrize(
    ("mirrors", "mirror_writes", "noted"),
    [
        ({""}, True, True),
        ({"", "User:mirror"}, True, True),
        ({"User:mirror"}, True, False),
        ({""}, False, False),
    ],
)
def test_a_mirror_whose_login_does_not_tell_its_name_is_said_to_be_kept_out_too(
    mirrors: set[str], mirror_writes: bool, noted: bool
) -> None:
    plan = fence_of([SHOP], ["orders"], mirrors, mirror_writes=mirror_writes)
    assert plan.rules
    assert ("super user" in plan.note) is noted
