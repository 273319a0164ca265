"""Java's rules for topic configs and ACLs of copies."""

from collections.abc import Callable, Sequence

import pytest

from mm2py.client.connect.admin import ConfigOp
from mm2py.client.fetch.log_reader import RecordHandler, Trouble
from mm2py.errors import ProtocolError
from mm2py.mirror.failovers import Failover, FailoverKind, Fence, Rule, Step, encode_failover
from mm2py.mirror.filters import DefaultConfigPropertyFilter, DefaultTopicFilter, TopicSelection
from mm2py.mirror.policies import policy_from_config
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.records import Record
from mm2py_connectors.acl_sync import AclSync, read_fence, remote_acls
from mm2py_connectors.clients import LogSession
from mm2py_connectors.config_sync import ConfigSync, config_operations, new_topic_configs
from tests.unit.connectors.mirror_fakes import FakeAdmin

ENTRIES = (
    ConfigEntry("retention.ms", "5"),
    ConfigEntry("segment.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    ConfigEntry("cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    ConfigEntry("min.insync.replicas", "2"),
    ConfigEntry("read.only", "1", is_read_only=True),
    ConfigEntry("secret", None, is_sensitive=True),
    ConfigEntry("max.message.bytes", "9", ConfigSource.STATIC_BROKER_CONFIG),
)
POLICY = policy_from_config({})
SELECTION = TopicSelection(
    POLICY, DefaultTopicFilter({"topics": "t.*"}), source_alias="A", target_alias="B"
)


def acl(
    name: str = "t1",
    operation: AclOperation = AclOperation.READ,
    permission: AclPermission = AclPermission.ALLOW,
    *,
    kind: AclResourceType = AclResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
) -> Acl:
    return Acl(kind, name, pattern, "User:u", "*", operation, permission)


def copied(*acls: Acl) -> list[Acl]:
    return remote_acls(acls, selection=SELECTION, policy=POLICY, source_alias="A")


def acl_sync(source: FakeAdmin, target: FakeAdmin) -> AclSync:
    return AclSync(
        source, target, selection=SELECTION, policy=POLICY, source_alias="A", target_alias="B"
    )


class PaperLog:
    """A failover topic and its session."""

    cluster_id = ""

    def __init__(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._entries, self.closed = entries, False

    def opened(self) -> LogSession:
        return LogSession(self, self)

    async def connect(self) -> None:
        """It is there."""

    async def close(self) -> None:
        self.closed = True

    async def read_to_end(self, handle: RecordHandler) -> None:
        for offset, (key, value) in enumerate(self._entries):
            handle(0, Record(offset, -1, key, value))

    async def start_at_end(self, is_read: Callable[[int, int], bool]) -> int:
        raise NotImplementedError

    async def tail(
        self, handle: RecordHandler, *, on_trouble: Trouble | None = None, rest_s: float = 0.0
    ) -> None:
        raise NotImplementedError


def test_a_new_copy_gets_what_was_set_on_purpose() -> None:
    configs = new_topic_configs(ENTRIES, DefaultConfigPropertyFilter({}))
    assert configs == {"retention.ms": "5", "segment.ms": "7"}


def test_a_new_copy_gets_the_sources_defaults_where_the_user_wants_them() -> None:
    property_filter = DefaultConfigPropertyFilter({"use.defaults.from": "source"})
    configs = new_topic_configs(ENTRIES, property_filter)
    assert configs == {"retention.ms": "5", "segment.ms": "7", "cleanup.policy": "delete"}


def test_the_sync_sets_values_and_deletes_defaults() -> None:
    assert config_operations(ENTRIES, DefaultConfigPropertyFilter({})) == [
        ConfigOp("retention.ms", "SET", "5"),
        ConfigOp("segment.ms", "SET", "7"),
        ConfigOp("cleanup.policy", "DELETE"),
    ]


def test_the_sync_sets_defaults_too_where_the_sources_count() -> None:
    property_filter = DefaultConfigPropertyFilter(
        {"use.defaults.from": "source", "config.properties.exclude": "retention.*"}
    )
    assert config_operations(ENTRIES, property_filter) == [
        ConfigOp("segment.ms", "SET", "7"),
        ConfigOp("cleanup.policy", "SET", "delete"),
        ConfigOp("min.insync.replicas", "SET", "2"),
    ]


async def test_refused_configs_are_said_once_per_topic(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeAdmin({"t1": 1, "t2": 1}), FakeAdmin()
    source.configs = {"t1": ENTRIES, "t2": ENTRIES}
    target.refuse["A.t1"] = server_error(29, "no AlterConfigs")
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")

    for _ in range(2):
        await sync.run({"t1": "A.t1", "t2": "A.t2"})
    assert list(sync.refusals) == ["A.t1"]
    assert len(caplog.records) == 1
    assert "config.properties.exclude" in caplog.text
    target.refuse.clear()
    await sync.run({"t1": "A.t1", "t2": "A.t2"})
    assert not sync.refusals
    assert [set(change) for change in target.altered] == [{"A.t1", "A.t2"}] * 3


async def test_a_refused_config_holds_back_only_itself() -> None:
    source, target = FakeAdmin({"t1": 1, "t2": 1}), FakeAdmin()
    source.configs = {"t1": ENTRIES, "t2": ENTRIES}
    target.refuse_configs["segment.ms"] = server_error(44, "not here")
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")

    await sync.run({"t1": "A.t1", "t2": "A.t2"})
    for remote in ("A.t1", "A.t2"):
        assert target.written[remote, "retention.ms"] == "5"
        assert target.written[remote, "cleanup.policy"] is None
        assert "segment.ms: " in sync.refusals[remote]
        assert "retention.ms" not in sync.refusals[remote]
    assert ("A.t1", "segment.ms") not in target.written
    target.refuse_configs.clear()
    await sync.run({"t1": "A.t1", "t2": "A.t2"})
    assert target.written["A.t1", "segment.ms"] == "7"
    assert not sync.refusals


async def test_what_decides_about_deletion_is_written_whole_or_not_at_all() -> None:
    source, target = FakeAdmin({"t1": 1}), FakeAdmin()
    source.configs = {"t1": ENTRIES}
    target.refuse_configs["cleanup.policy"] = server_error(44, "not here")
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")
    await sync.run({"t1": "A.t1"})
    # Retention of a compacted source would delete records of a copy that may not be compacted.
    assert ("A.t1", "retention.ms") not in target.written
    assert target.written["A.t1", "segment.ms"] == "7"
    assert "cleanup.policy" in sync.refusals["A.t1"]


def test_allow_all_becomes_allow_read_and_deny_stays() -> None:
    deny_all = acl(operation=AclOperation.ALL, permission=AclPermission.DENY)
    deny_write = acl(operation=AclOperation.WRITE, permission=AclPermission.DENY)
    assert copied(acl(operation=AclOperation.ALL), deny_all, deny_write) == [
        acl("A.t1"),
        acl("A.t1", AclOperation.ALL, AclPermission.DENY),
        acl("A.t1", AclOperation.WRITE, AclPermission.DENY),
    ]


def test_write_rights_prefixed_patterns_and_other_resources_are_not_copied() -> None:
    assert (
        copied(
            acl(operation=AclOperation.WRITE),
            acl(pattern=PatternType.PREFIXED),
            acl(kind=AclResourceType.GROUP),
        )
        == []
    )


def test_only_topics_that_are_copied_get_rights() -> None:
    acls = [acl("t1"), acl("other"), acl("B.t1"), acl("heartbeats"), acl("__t")]
    assert [one.resource_name for one in copied(*acls)] == ["A.t1", "A.heartbeats"]


async def test_rules_of_a_fence_are_not_copied_and_a_users_own_are() -> None:
    source, target = FakeAdmin(), FakeAdmin()
    fence = acl(operation=AclOperation.WRITE, permission=AclPermission.DENY)
    own = acl(operation=AclOperation.ALL, permission=AclPermission.DENY)
    source.acls = [fence, own]

    async def fenced() -> frozenset[Acl]:
        return frozenset({fence})

    await AclSync(
        source,
        target,
        fence=fenced,
        selection=SELECTION,
        policy=POLICY,
        source_alias="A",
        target_alias="B",
    ).run()
    assert target.created_acls == [acl("A.t1", AclOperation.ALL, AclPermission.DENY)]


async def test_the_newest_fence_counts_whatever_else_is_in_its_topic() -> None:
    rule = Rule(topic="t1", principal="User:u")
    entries = [
        encode_failover(Fence(by="f", rules=(rule,))),
        encode_failover(
            Failover(id="f", flow="B->A", kind=FailoverKind.FAILOVER, step=Step.DONE, run=1)
        ),
        (b"strange", b"\x09"),
    ]
    assert set(await read_fence(PaperLog(entries).opened())) == {rule.acl}
    log = PaperLog([*entries, encode_failover(Fence(by="f"))])
    assert not await read_fence(log.opened())
    assert log.closed
    log = PaperLog([*entries, (b"fence", b"\x09{}")])
    with pytest.raises(ProtocolError, match="version"):
        await read_fence(log.opened())
    assert log.closed


async def test_a_source_without_authorizer_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    source, target = FakeAdmin(), FakeAdmin()
    sync = acl_sync(source, target)

    for _ in range(3):
        await sync.run()
    assert [record.levelname for record in caplog.records if "ACL" in record.getMessage()] == [
        "INFO",
        "DEBUG",
        "DEBUG",
    ]
    assert target.created_acls == []


async def test_acls_that_a_target_refuses_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeAdmin(), FakeAdmin()
    source.acls = [acl("t1"), acl("t2")]
    target.acl_answers = [None, server_error(31, "no Alter")]
    sync = acl_sync(source, target)

    for _ in range(2):
        await sync.run()
    assert len(sync.refusals) == 1
    assert len(caplog.records) == 1
    target.acl_answers = [server_error(54), server_error(54)]
    await sync.run()
    assert "sync.topic.acls.enabled=false" in caplog.text
    assert target.created_acls == [acl("A.t1"), acl("A.t2")] * 3
