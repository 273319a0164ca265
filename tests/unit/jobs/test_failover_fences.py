"""A failover's fence without I/O: which rules it makes, and which it leaves; and what it keeps of records that were not copied."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Final, cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.jaas import principal_of
from mm2py.flows.flow_ledger import Ledger
from mm2py.mirror.failovers import Fence, Rule, Tail, encode_failover
from mm2py.mirror.ledger import IncarnationRecord, LedgerRecord
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.record_batch import Codec
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.fences import EVERYBODY, fence_of
from mm2py_jobs.failover.flows import FlowsApi, RestFlows
from mm2py_jobs.failover.quarantine import quarantine, record_quarantined
from mm2py_jobs.failover.steps import FailoverSides
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_log import PartitionLog
from tests.unit.client.client_stage import connected_to

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


class TwoFailovers:
    """A source with its rules, and the fences that failovers of its flows to B and C have recorded; also the ``Admin`` and the clusters of these."""

    def __init__(self) -> None:
        self.acls = {SHOP}
        self.records: dict[str, Fence] = {}
        self.rights: frozenset[AclOperation] | None = None

    def __call__(self, _cluster: object) -> "TwoFailovers":
        return self

    alias = "A"

    def granting(self, operation: str, options: str) -> str:
        return f"grant {operation} {options}"

    async def cluster_rights(self) -> frozenset[AclOperation] | None:
        return self.rights

    async def list_topics(self) -> list[str]:
        return ["orders", *self.records]

    async def describe_topic_acls(self) -> list[Acl]:
        return list(self.acls)

    async def create_acls(self, acls: Sequence[Acl]) -> list[None]:
        self.acls.update(acls)
        return [None] * len(acls)

    async def delete_acls(self, acls: Sequence[Acl]) -> list[None]:
        self.acls.difference_update(acls)
        return [None] * len(acls)

    async def newest_values(
        self, _cluster: object, topic: str, _clock: object
    ) -> dict[bytes, bytes]:
        return dict([encode_failover(self.records[topic])])


class OneOfTwo:
    """The clusters of the flow from A to one other; also the store of its fence."""

    clock, keeps_names = FakeClock(), True
    config: Final[dict[str, str]] = {}
    props: Final[dict[str, str]] = {}

    def __init__(self, source: TwoFailovers, target: str) -> None:
        self.back, self._source = self, source
        self.name = FlowName(ClusterAlias("A"), ClusterAlias(target))
        self._topic = f"mm2py-failover.{target}.internal"

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[TwoFailovers]:
        yield self._source

    async def topics(self) -> list[str]:
        return ["orders"]

    async def source_store(self) -> "OneOfTwo":
        return self

    @property
    def fence(self) -> Fence | None:
        return self._source.records.get(self._topic)

    async def write(self, fence: Fence) -> None:
        self._source.records[self._topic] = fence


@pytest.mark.parametrize("by_user", [False, True])
async def test_a_failover_that_ends_leaves_the_rules_that_another_one_of_its_source_needs(
    monkeypatch: pytest.MonkeyPatch, *, by_user: bool
) -> None:
    source, denied = TwoFailovers(), replace(SHOP, permission=AclPermission.DENY)
    if by_user:
        source.acls.add(denied)
    for module in ("steps", "fences"):
        monkeypatch.setattr(f"mm2py_jobs.failover.{module}.Admin", source)
    monkeypatch.setattr("mm2py_jobs.failover.fences.newest_values", source.newest_values)
    first, second = (
        FailoverSides(
            cast("FailoverClusters", OneOfTwo(source, it)), RestFlows(cast("FlowsApi", None))
        )
        for it in "BC"
    )
    await first.fence("1")
    await second.fence("2")
    await first.lift_fence(source=True)
    assert denied in source.acls, "the second one needs it"
    await second.lift_fence(source=True)
    assert (denied in source.acls) == by_user


async def test_rules_that_may_not_be_made_are_not_planned_and_the_missing_right_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = TwoFailovers()
    source.rights = frozenset({AclOperation.DESCRIBE})
    for module in ("steps", "fences"):
        monkeypatch.setattr(f"mm2py_jobs.failover.{module}.Admin", source)
    clusters = cast("FailoverClusters", OneOfTwo(source, "B"))
    sides = FailoverSides(clusters, RestFlows(cast("FlowsApi", None)))
    plan = await sides.fence_plan()
    assert (plan.rules, "grant Alter --cluster" in plan.note) == ((), True)
    assert await sides.fence("1") == plan.note
    assert (source.acls, source.records) == ({SHOP}, {})


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


# ---- records that were not copied, between two brokers in this process

ONE = TopicPartition("orders", 0)


KEPT_IN = TopicPartition("mm2py-quarantine.A.orders.internal", 0)


async def kept(
    monkeypatch: pytest.MonkeyPatch, tail: Tail, batches: Sequence[bytes], *, deleted: int = 0
) -> tuple[Tail, list[LedgerRecord], PartitionLog]:
    """Keep a tail of what a source has; return it, the events, and what is in quarantine."""
    ledger = list[LedgerRecord]()

    async def post(_clusters: object, records: Sequence[LedgerRecord]) -> None:
        ledger.extend(records)

    async def nothing(*_: object) -> Sequence[int]:
        return ()

    async def no_topics() -> dict[str, Sequence[int]]:
        return {}

    part = "mm2py_jobs.failover.quarantine."
    monkeypatch.setattr(part + "post_to_ledger", post)
    monkeypatch.setattr(part + "_create", nothing)
    async with (
        FakeBroker(topics={"orders": 1}) as one,
        FakeBroker(topics={KEPT_IN.topic: 1}) as other,
        connected_to(one) as source,
        connected_to(other) as target,
    ):
        for batch in batches:
            one.append(ONE, batch)
        one.partition(ONE).delete_before(deleted)

        @asynccontextmanager
        async def lent() -> AsyncGenerator[Cluster]:
            yield source

        clusters = SimpleNamespace(
            topics=no_topics,
            target=target,
            source=lent,
            name=FlowName(ClusterAlias("A"), ClusterAlias("B")),
            plan=SimpleNamespace(props={"bootstrap.servers": f"127.0.0.1:{other.port}"}),
            clock=SYSTEM_CLOCK,
            source_ids={},
            source_looping=nothing,
            read_committed=False,
        )
        (done,) = await quarantine(cast("FailoverClusters", clusters), [tail])
        return done, ledger, other.partition(KEPT_IN)


async def test_what_retention_took_of_a_tail_before_it_was_kept_is_named_with_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = Tail(topic="orders", partition=0, start=2, end=9)
    batches = [
        bytes(encode_batch([NewRecord(b"k", b"%d" % it) for it in range(first, first + 5)]))
        for first in (0, 5)
    ]
    done, ledger, _ = await kept(monkeypatch, tail, batches, deleted=5)
    assert done == replace(tail, records=4, gone=((2, 5),))
    (found,) = ledger
    assert (found.event.first_offset, found.event.last_offset) == (2, 4)


async def test_what_was_kept_is_in_the_ledger_once_however_often_the_step_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    ledger, posted = Ledger(flow), list[tuple[int, int]]()

    async def read(*_: object) -> Ledger:
        return ledger

    async def post(_clusters: object, records: Sequence[LedgerRecord]) -> None:
        for record in records:
            posted.append((record.event.first_offset, record.event.last_offset))
            ledger.quarantined.take(record)

    part = "mm2py_jobs.failover.quarantine."
    monkeypatch.setattr(part + "read_ledger", read)
    monkeypatch.setattr(part + "post_to_ledger", post)
    clusters = cast("FailoverClusters", SimpleNamespace(target=None, name=flow, clock=FakeClock()))
    tail = Tail(topic="orders", partition=0, start=2, end=9, gone=((2, 4),))
    for _ in range(2):
        await record_quarantined(clusters, [tail])
    assert posted == [(4, 8)]
    # A topic that was created again has the same offsets again.
    new = IncarnationRecord(partition=tail.tp, topic_id=b"2" * 16, flow=str(flow), time_ms=2)
    ledger.quarantined.take(new)
    await record_quarantined(clusters, [replace(tail, gone=())])
    assert posted[1:] == [(2, 8)]


async def test_what_a_compressed_batch_has_is_kept_though_it_is_more_than_a_batch_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail = Tail(topic="orders", partition=0, start=0, end=20)
    records = [NewRecord(None, bytes(100_000), ((b"n", b"%d" % it),)) for it in range(20)]
    done, _, log = await kept(monkeypatch, tail, [bytes(encode_batch(records, Codec.GZIP))])
    assert done == replace(tail, records=20)
    assert log.end == 20
