"""The doctor: rules that need no cluster (limits of a copy, quotas, load), and what its flows share; a silent cluster is asked once, and all end in time."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest

from bench.sizing import Point, fitted, steeper
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import (
    ConnectionFailedError,
    FatalServerError,
    Mm2pyError,
    RetriableError,
    UsageError,
)
from mm2py.mirror.filters import DefaultTopicFilter, TopicSelection
from mm2py.mirror.policies import policy_from_config
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.admin_messages import ClientQuota
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_cli.output import Output, Printer
from mm2py_jobs.copy_limits import limits_of
from mm2py_jobs.doctor import cluster_checks, examine, flow_checks
from mm2py_jobs.doctor.cluster_checks import applied, entity_options
from mm2py_jobs.doctor.doctor_command import print_examination
from mm2py_jobs.doctor.examine import ALL_S, Shared
from mm2py_jobs.doctor.examined import SIDES, Examined, Level, Once
from mm2py_jobs.doctor.load import CYCLE_S, Costs, Load
from tests.kit.fakes.broker import FakeBroker
from tests.kit.kafka.ports import free_ports

METADATA = 3
FIRST, SECOND = (FlowName(ClusterAlias(it), ClusterAlias("B")) for it in ("A", "C"))
WEEK = {"retention.ms": "604800000"}
HOUR = {"retention.ms": "3600000"}
COMPACT = {"cleanup.policy": "compact"}
BOTH = {"cleanup.policy": "compact,delete"}


def test_a_flow_that_the_file_does_not_have_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nbootstrap.servers = h:1\n")
    with pytest.raises(UsageError, match=r"'X/Y' is no flow of .* two of A, B"):
        print_examination(file, "X/Y", Printer(Output.TABLE), is_whole=False)


@pytest.mark.parametrize(
    ("ours", "theirs", "keys"),
    [
        (WEEK, HOUR, ["retention.ms"]),
        (HOUR, WEEK, []),
        (WEEK, {"retention.ms": "-1"}, []),
        ({"retention.ms": "-1"}, WEEK, ["retention.ms"]),
        ({"retention.bytes": "-1"}, {"retention.bytes": "1"}, ["retention.bytes"]),
        # Nothing ages out of a log that is compacted alone.
        (COMPACT | WEEK, COMPACT | HOUR, []),
        (BOTH | WEEK, BOTH | HOUR, ["retention.ms"]),
        (COMPACT | WEEK, BOTH | HOUR, ["cleanup.policy"]),
        (WEEK | {"cleanup.policy": "delete"}, COMPACT | HOUR, ["cleanup.policy"]),
    ],
)
def test_a_limit_is_one_that_the_source_does_not_have(
    ours: Mapping[str, str], theirs: Mapping[str, str], keys: Sequence[str]
) -> None:
    assert [it.key for it in limits_of(ours, theirs)] == keys


US = {"user": "mirror"}
OTHERS = {"user": None}


@pytest.mark.parametrize(
    ("entities", "counts"),
    [
        # In each line the quotas stand in Kafka's order; the first that is not of one client counts for all the others.
        ([US, OTHERS], 1),
        ([US, {"client-id": "ours"}], 1),
        ([US | {"client-id": "ours"}, US | {"client-id": None}, US], 2),
        ([US | {"client-id": "ours"}, OTHERS, {"client-id": "ours"}], 2),
        ([OTHERS | {"client-id": None}, OTHERS], 1),
        ([{"client-id": "ours"}, {"client-id": None}], 2),
        ([{"client-id": "ours"}], 1),
        ([], 0),
    ],
)
def test_a_quota_that_another_one_replaces_does_not_count(
    entities: Sequence[Mapping[str, str | None]], counts: int
) -> None:
    quotas = [ClientQuota(it, {"consumer_byte_rate": 1.0}) for it in entities]
    assert applied(reversed(quotas)) == quotas[:counts]


@pytest.mark.parametrize(
    ("entity", "options"),
    [
        (US, "--entity-type users --entity-name mirror"),
        ({"user": None, "client-id": "A->B o"}, "--entity-type users --entity-default --entity-type clients --entity-name 'A->B o'"),
    ],
)  # fmt: skip
def test_whom_a_quota_is_for_is_named_as_kafkas_tool_takes_it(
    entity: Mapping[str, str | None], options: str
) -> None:
    assert entity_options(entity) == options


@pytest.mark.parametrize("records_per_s", [0.0, 0.5, 200.0, 1e6])
def test_a_worker_has_no_more_rounds_than_records_and_brokers_let_it(records_per_s: float) -> None:
    few, many = (Load(partitions=it, records_per_s=records_per_s) for it in (10, 10_000))
    assert many.rounds_per_s <= few.rounds_per_s <= min(records_per_s, 1 / CYCLE_S)


def test_a_fit_finds_what_the_runs_were_made_of_and_names_what_is_no_straight_line() -> None:
    costs = Costs(0.01, 2e-6, 0.001, 0.0005, 1e8, 6e3)
    loads = [
        Load(partitions=count, written=8, records_per_s=rate * 1000.0, bytes_per_s=rate * 1e6)
        for count in (300, 1_300, 10_300)
        for rate in (0, 2, 50)
    ]
    points = [Point(it, costs.cores(it), costs.memory_bytes(it), is_fitted=True) for it in loads]
    assert fitted(points) == pytest.approx(costs)
    assert steeper(points) == []
    most = points[6]
    points[6] = most._replace(cores=2 * most.cores, memory_bytes=2 * most.memory_bytes)
    assert [it.split()[0] for it in steeper(points)] == ["CPU", "memory"]


# ---- what its flows share


@asynccontextmanager
async def shared() -> AsyncGenerator[Shared]:
    async with AsyncExitStack() as stack:
        yield Shared(SYSTEM_CLOCK, stack)


def properties(port: int) -> dict[str, str]:
    return {
        f"{side}.cluster.bootstrap.servers": f"127.0.0.1:{port}" for side in ("source", "target")
    }


async def test_flows_share_the_cluster_that_both_have_and_one_that_is_away_is_known_to_be() -> None:
    (port,) = free_ports(1)
    async with shared() as opened, FakeBroker() as broker:
        assert opened.left_s() == ALL_S
        well = await asyncio.gather(
            *(opened.side(it, properties(broker.port), "target") for it in (FIRST, SECOND))
        )
        assert well[0] is well[1]
        assert not well[0].away
        away = await opened.side(FIRST, properties(port), "source")
        assert f"127.0.0.1:{port}" in away.away
        assert await opened.side(FIRST, properties(port), "source") is away
        assert (await opened.side(SECOND, properties(port), "source")).alias == "C"
        assert 0 < opened.left_s() < ALL_S, "all flows together end in time"


async def test_a_cluster_that_falls_silent_during_a_check_is_left_alone_by_all_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examine, "PROBE_S", 0.2)
    async with shared() as opened, FakeBroker() as broker:
        side = await opened.side(FIRST, properties(broker.port), "target")
        assert not await opened.silent(side)
        broker.hold(METADATA)
        assert await opened.silent(side)
        assert "no answer within" in side.away
        assert (await opened.side(SECOND, properties(broker.port), "target")).away == side.away


async def test_topics_that_a_policy_of_ones_own_gives_one_name_are_refused() -> None:
    class Flow:
        """What the check asks."""

        names = SimpleNamespace(copy_of=str.lower)

        async def chosen(self) -> dict[str, object]:
            return {"Orders": 0, "orders": 0, "other": 0}

    rows = [row async for row in flow_checks.names(cast("Examined", Flow()))]
    assert [(it.level, it.text) for it in rows] == [
        (Level.ERROR, "Orders, orders would be copied into one topic, orders")
    ]
    assert "topics.exclude" in rows[0].remedy


async def test_topics_that_may_not_be_described_are_named_with_the_right_that_is_missing() -> None:
    hidden = {"A.orders", "mm2-configs.A.internal"}

    def granting(word: str, of: str) -> str:
        return f"--add --operation {word} {of}"

    def kept(_flow: object) -> Mapping[str, Sequence[str]]:
        return {"source": [], "target": ["mm2-configs.A.internal"]}

    class Answers:
        """A cluster that lists neither of two topics."""

        cluster = SimpleNamespace(granting=granting)

        async def topic_rights(self, names: Collection[str]) -> dict[str, frozenset[AclOperation]]:
            return {it: frozenset(AclOperation) for it in names if it not in hidden}

        async def unwritable(self, names: Collection[str]) -> Mapping[str, object]:
            assert hidden.issuperset(names)
            return dict.fromkeys(names, 0)

        async def rights(self) -> None:
            """Nothing is known of the cluster's own."""

    class Flow:
        """What the check asks."""

        sides = MappingProxyType(
            {
                it: SimpleNamespace(alias=it, admin=Answers(), rights=Answers().rights)
                for it in SIDES
            }
        )
        config = SimpleNamespace(sync_topic_configs_enabled=False)

        async def chosen(self) -> dict[str, object]:
            return {"orders": 0}

        async def copies(self) -> dict[str, str]:
            return {}

        async def new_copies(self) -> dict[str, str]:
            return {"orders": "A.orders"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_checks, "_internal", kept)
        rows = [row async for row in cluster_checks.rights(cast("Examined", Flow()))]
    assert [(it.level, it.remedy.partition("--topic ")[2]) for it in rows if it.remedy] == [
        (Level.ERROR, "A.orders"),
        (Level.ERROR, "mm2-configs.A.internal"),
    ]
    assert all("--operation Write" in it.remedy for it in rows if it.remedy)


async def test_rules_for_the_mirror_s_own_principal_are_shown_as_those_that_stay() -> None:
    denial = Acl(
        AclResourceType.TOPIC, "orders", PatternType.LITERAL, "User:u", "*",
        AclOperation.WRITE, AclPermission.DENY,
    )  # fmt: skip
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u";'

    class Side:
        def __init__(self, alias: str, *rules: Acl) -> None:
            self.alias, self._rules = alias, rules

        async def acls(self) -> tuple[Acl, ...]:
            return self._rules

    class Flow:
        """What the check asks."""

        sides = MappingProxyType({"source": Side("A", denial), "target": Side("B")})
        config = SimpleNamespace(sync_topic_acls_enabled=True)
        aliases = SimpleNamespace(source="A")
        policy = policy_from_config({})
        connector = MappingProxyType(
            {
                "target.cluster.security.protocol": "SASL_SSL",
                "target.cluster.sasl.jaas.config": login,
            }
        )
        names = SimpleNamespace(
            selection=TopicSelection(
                policy, DefaultTopicFilter({}), source_alias="A", target_alias="B"
            )
        )

        async def topics(self, _side: str) -> dict[str, object]:
            return {"A.orders": 0}

    rows = [row async for row in flow_checks.acls(cast("Examined", Flow()))]
    assert [it.level for it in rows] == [Level.OK, Level.OK]
    assert "stay on A" in rows[0].text
    assert rows[0].text.endswith("DENY WRITE orders User:u")


async def test_a_question_is_asked_once_and_again_only_where_it_failed() -> None:
    asked = list[str]()

    async def ask() -> str:
        asked.append("question")
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise RetriableError("not now")
        return "answer"

    once = Once(ask)
    answers = await asyncio.gather(once(), once(), once(), return_exceptions=True)
    assert [str(it) for it in answers] == ["not now", "answer", "answer"]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        # A quorum whose leader is no voter, or a broker that leaves the time out.
        (-1, "no clock is apart"),
        (ConnectionFailedError("closed by the broker"), "no clock is apart"),
        (FatalServerError(31, "CLUSTER_AUTHORIZATION_FAILED"), "no clock is apart"),
        (1_000_000 - 10_000, "clock is 10 s behind this machine's"),
    ],
)
async def test_a_controller_that_does_not_tell_its_time_keeps_no_other_clock_from_being_judged(
    told: int | Mm2pyError, said: str
) -> None:
    async def tells() -> int:
        if isinstance(told, Mm2pyError):
            raise told
        return told

    async def nothing(*_: object) -> dict[TopicPartition, int]:
        return {}

    admin = SimpleNamespace(controller_time_ms=tells, newest_times=nothing)
    side = SimpleNamespace(alias="A", admin=admin, commits=nothing)
    clock = FakeClock(1_000_000)
    flow = SimpleNamespace(sides=dict.fromkeys(SIDES, side), clock=clock, chosen=nothing)
    rows = [row async for row in cluster_checks.clocks(cast("Examined", flow))]
    assert [said in it.text for it in rows] == [True, True]
