"""Java's rules for topic configs and ACLs of copies, and what a target that refuses them, or the copies, holds up."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

import pytest

from mm2py.client.connect.admin import ConfigOp
from mm2py.client.fetch.log_reader import RecordHandler, Trouble
from mm2py.errors import (
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    ServerError,
    UnsupportedVersionError,
    command_in,
)
from mm2py.mirror.failovers import Failover, FailoverKind, Fence, Rule, Step, encode_failover
from mm2py.mirror.filters import DefaultConfigPropertyFilter, DefaultTopicFilter, TopicSelection
from mm2py.mirror.policies import policy_from_config
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, server_error
from mm2py.protocol.records import Record
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors.acl_sync import AclSync, own_principals, read_fence, remote_acls
from mm2py_connectors.clients import LogSession
from mm2py_connectors.config_sync import (
    TOPICS_PER_REQUEST,
    ConfigSync,
    config_operations,
    new_topic_configs,
)
from mm2py_connectors.remote_topics import CERTAIN_S, TARGET_CHECK_S, FlowTopics, RemoteTopics
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
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
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


def test_a_deny_for_the_mirror_s_own_principal_stays_on_the_source() -> None:
    """It would end the copy, as with Java; one for `User:*` or `User:ANONYMOUS` is copied."""
    login = {
        "target.cluster.security.protocol": "SASL_SSL",
        "target.cluster.sasl.jaas.config": f'{PLAIN} required username="u" password="p";',
    }
    own = own_principals(login)
    assert own == {"User:u"}
    assert not own_principals({"target.cluster.security.protocol": "PLAINTEXT"})
    denied, everybody = (
        replace(acl(operation=AclOperation.WRITE, permission=AclPermission.DENY), principal=it)
        for it in ("User:u", "User:*")
    )
    found = remote_acls(
        [denied, everybody, acl()], selection=SELECTION, policy=POLICY, source_alias="A", own=own
    )
    assert [(it.principal, it.permission) for it in found] == [
        ("User:*", AclPermission.DENY),
        ("User:u", AclPermission.ALLOW),
    ]
    assert copied(denied), "with an empty login it is any user's"


async def no_fence() -> frozenset[Acl]:
    return frozenset()


def acl_sync(
    source: FakeAdmin,
    target: FakeAdmin,
    fence: Callable[[], Awaitable[frozenset[Acl]]] = no_fence,
    own: Collection[str] = (),
) -> AclSync:
    return AclSync(
        source,
        target,
        selection=SELECTION,
        policy=POLICY,
        source_alias="A",
        target_alias="B",
        fence=fence,
        own=own,
    )


async def test_rules_that_stay_on_the_source_are_told_once_and_again_when_they_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = FakeAdmin()
    first, second = (acl(it, AclOperation.WRITE, AclPermission.DENY) for it in ("t1", "t2"))
    sync = acl_sync(source, FakeAdmin(), own={"User:u"})
    source.acls = [first, acl("foreign", permission=AclPermission.DENY)]
    await sync.run()
    await sync.run()
    source.acls = [second, first]
    await sync.run()
    told = [it.getMessage().partition("rules=")[2] for it in caplog.records]
    assert told == ["DENY WRITE t1 User:u", "DENY WRITE t1 User:u; DENY WRITE t2 User:u"]


def remote_topics(
    source: FakeAdmin, target: FakeAdmin, clock: FakeClock, *, looks: bool = True
) -> RemoteTopics:
    flow = FlowTopics(
        selection=SELECTION,
        policy=POLICY,
        property_filter=DefaultConfigPropertyFilter({}),
        source_alias="A",
        target_alias="B",
        replication_factor=1,
    )
    return RemoteTopics(source, target, flow, many_s=0, patience_s=9, looks=looks, clock=clock)


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


FROM_SOURCE = {"use.defaults.from": "source"}


@pytest.mark.parametrize(
    ("given", "new", "synced"),
    [
        ({}, {"retention.ms": "5", "segment.ms": "7"},
         {"retention.ms": "5", "segment.ms": "7", "cleanup.policy": None}),
        (FROM_SOURCE | {"config.properties.exclude": "retention.*"},
         {"segment.ms": "7", "cleanup.policy": "delete", "min.insync.replicas": "2"},
         {"segment.ms": "7", "cleanup.policy": "delete", "min.insync.replicas": "2"}),
        (FROM_SOURCE, {"retention.ms": "5", "segment.ms": "7", "cleanup.policy": "delete"},
         {"retention.ms": "5", "segment.ms": "7", "cleanup.policy": "delete"}),
    ],
    ids=["what was set on purpose", "chosen by the user", "the source's defaults"],
)  # fmt: skip
def test_a_new_copy_and_the_sync_set_what_was_chosen_and_the_sync_deletes_defaults(
    given: dict[str, str], new: dict[str, str], synced: dict[str, str | None]
) -> None:
    chosen = DefaultConfigPropertyFilter(given)
    assert new_topic_configs(ENTRIES, chosen) == new
    assert config_operations(ENTRIES, chosen) == [
        ConfigOp(name, "DELETE") if text is None else ConfigOp(name, "SET", text)
        for name, text in synced.items()
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
    assert "no AlterConfigs" in caplog.text
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


async def test_a_config_that_was_copied_goes_with_the_source_topics_own_one() -> None:
    """Retention of a second, set to empty a topic, else stayed on its copy where the brokers of the source have another
    one in their file."""
    source, target = FakeAdmin({"t1": 1}), FakeAdmin()
    of_file = [
        ConfigEntry(it, "8", ConfigSource.STATIC_BROKER_CONFIG)
        for it in ("retention.ms", "segment.ms")
    ]
    source.configs = {"t1": (ConfigEntry("retention.ms", "1000"), of_file[1])}
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")
    await sync.run({"t1": "A.t1"})
    source.configs = {"t1": tuple(of_file)}
    target.refuse["A.t1"] = server_error(29, "no AlterConfigs")
    await sync.run({"t1": "A.t1"})
    assert target.written == {("A.t1", "retention.ms"): "1000"}
    target.refuse.clear()
    await sync.run({"t1": "A.t1"})
    assert target.written == {("A.t1", "retention.ms"): None}
    # What someone sets on the copy from now on is theirs.
    changes = len(target.altered)
    await sync.run({"t1": "A.t1"})
    assert not any(target.altered[changes:])


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

    await acl_sync(source, target, fence=fenced).run()
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


async def test_a_topic_that_cannot_be_created_now_holds_up_neither_others_nor_the_start() -> None:
    source, target = FakeAdmin({"t1": 2, "t2": 1}), FakeAdmin({"A.t1": 1})
    target.put_off = RequestTimedOutError("the quota of B is used up")
    topics = remote_topics(source, target, FakeClock())

    assert await topics.refresh()
    assert topics.ready() == [TopicPartition("t1", 0), TopicPartition("t1", 1)]
    assert topics.waiting() == {
        TopicPartition("t2", 0): "the quota of B is used up; it is tried again at every refresh"
    }
    target.put_off = None
    assert await topics.refresh()
    assert topics.waiting() == {}


async def test_a_copy_that_exists_and_is_not_visible_is_named_with_the_missing_right() -> None:
    source, target = FakeAdmin({"t": 1}), FakeAdmin({"A.t": 1})
    target.hidden.add("A.t")
    topics = remote_topics(source, target, FakeClock())

    await topics.refresh()
    (cause,) = topics.waiting().values()
    assert "exists" not in cause, "a broker may not know yet what was created a moment ago"
    await topics.refresh()
    (cause,) = topics.waiting().values()
    assert cause.startswith("A.t exists on B, but in no list")
    denied = server_error(TOPIC_AUTHORIZATION_FAILED, "u may not Write topic A.t of cluster B")
    denied.remedy = "kafka-acls.sh --add --operation Write --topic A.t"
    target.unwritable_topics["A.t"] = denied
    topics = remote_topics(source, target, FakeClock())
    await topics.refresh()
    (cause,) = topics.waiting().values()
    assert cause.startswith("A.t exists, but not for this principal: TOPIC_AUTHORIZATION_FAILED")
    assert str(denied) in cause
    target.hidden.clear()
    await topics.refresh()
    assert (topics.waiting(), topics.ready()) == ({}, [TopicPartition("t", 0)])


async def test_a_list_that_leaves_out_a_copy_which_is_there_takes_it_from_no_task() -> None:
    clock, source, target = FakeClock(), FakeAdmin({"t": 2}), FakeAdmin({"A.t": 2})
    topics = remote_topics(source, target, clock)
    await topics.refresh()
    ready = topics.ready()
    target.hidden.add("A.t")  # a broker that has just started
    await clock.advance(TARGET_CHECK_S)
    assert await topics.refresh()
    assert topics.ready() == ready
    target.hidden.clear()
    del target.topics["A.t"]
    target.refuse["A.t"] = server_error(44, "not here")
    await clock.advance(TARGET_CHECK_S)
    await topics.refresh()
    assert topics.ready() == []


async def test_a_topic_that_may_not_be_seen_any_more_is_wrong_and_a_deleted_one_is_a_note() -> None:
    clock, source, target = FakeClock(), FakeAdmin({"t1": 1, "t2": 1}), FakeAdmin({"A.t3": 1})
    source.denied = dict.fromkeys(("t1", "t3"), server_error(29, "may not Describe"))
    topics = remote_topics(source, target, clock)
    await topics.refresh()
    seen_before = "not visible on the source"
    assert (topics.hidden, topics.notes()[seen_before].split(":")[0]) == ({}, "t3")

    kept, source.topics = source.topics, {"t5": 1}
    for _ in range(2):
        await topics.refresh()
        await clock.advance(CERTAIN_S)
    assert list(topics.hidden) == ["t1"]
    assert "may not Describe" in topics.hidden["t1"]
    assert topics.notes()["gone on the source"].startswith("t2; not copied")
    source.topics = kept
    await topics.refresh()
    assert (topics.hidden, [*topics.notes()]) == ({}, [seen_before])


async def test_without_refresh_a_copy_that_waits_is_made_as_soon_as_it_can_be() -> None:
    source, target = FakeAdmin({"t1": 1}), FakeAdmin()
    target.refuse["A.t1"] = server_error(44, "not here")
    topics = remote_topics(source, target, FakeClock(), looks=False)
    await topics.refresh()
    target.refuse.clear()
    source.topics["t2"] = 1
    assert await topics.refresh()
    assert topics.ready() == [TopicPartition("t1", 0)], "new topics are not looked for"
    assert not await topics.refresh()
    assert (source.listings, target.listings) == (1, 2)


def denied(operation: str, topic: str) -> ServerError:
    error = server_error(29, f"may not {operation} topic {topic}")
    error.remedy = f"kafka-acls.sh --add --operation {operation} --topic {topic}"
    return error


async def test_configs_that_may_not_be_read_or_written_hold_up_no_others() -> None:
    source, target = FakeAdmin({"t1": 1, "t2": 1, "t3": 1}), FakeAdmin()
    source.configs = dict.fromkeys(("t1", "t2", "t3"), ENTRIES)
    source.unreadable["t1"] = denied("DescribeConfigs", "t1")
    target.refuse["A.t3"] = denied("AlterConfigs", "A.t3")
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")
    copies = {"t1": "A.t1", "t2": "A.t2", "t3": "A.t3"}

    await sync.run(copies)
    assert {remote for remote, _ in target.written} == {"A.t2"}
    assert [command_in(it) for it in sync.refusals.values()] == [
        "kafka-acls.sh --add --operation DescribeConfigs --topic t1",
        "kafka-acls.sh --add --operation AlterConfigs --topic A.t3",
    ]
    assert "config.properties.exclude" not in str(sync.refusals)
    source.unreadable.clear()
    target.refuse.clear()
    await sync.run(copies)
    assert sync.refusals == {}
    assert {remote for remote, _ in target.written} == {"A.t1", "A.t2", "A.t3"}


async def test_a_run_that_cannot_end_is_continued_by_the_next_one() -> None:
    names = {f"t{it:03}": f"A.t{it:03}" for it in range(3 * TOPICS_PER_REQUEST)}
    source, target = FakeAdmin(dict.fromkeys(names, 1)), FakeAdmin()
    source.configs = dict.fromkeys(names, ENTRIES)
    source.unreadable["t000"] = server_error(7, "not now")
    sync = ConfigSync(source, target, DefaultConfigPropertyFilter({}), target_alias="B")
    for _ in range(2):
        with pytest.raises(RetriableError):
            await sync.run(names)
    assert len({remote for remote, _ in target.written}) == 2 * TOPICS_PER_REQUEST
    source.unreadable.clear()
    await sync.run(names)
    assert {remote for remote, _ in target.written} == {*names.values()}


async def test_brokers_without_acls_end_no_flow_are_said_once_and_what_was_refused_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, target = FakeAdmin(), FakeAdmin()
    source.acls, target.acl_answers = [acl()], [server_error(31, "no Alter")]
    sync = acl_sync(source, target)
    await sync.run()
    assert len(sync.refusals) == 1
    source.no_acls = UnsupportedVersionError("no DescribeAcls")
    await sync.run()
    assert "no DescribeAcls" in sync.refusals["all of A"]
    assert "sync.topic.acls.enabled=false" in sync.refusals["all of A"]
    source.no_acls, source.acls = None, None
    caplog.set_level("DEBUG")
    caplog.clear()
    for _ in range(3):
        await sync.run()
    assert [it.levelname for it in caplog.records] == ["INFO", "DEBUG", "DEBUG"]
    assert sync.refusals == {}
