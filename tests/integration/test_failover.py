"""``mm2py failover``, ``failback`` and ``drill`` on real brokers: nothing lost, nothing doubled, whatever kills the driver."""

import asyncio
import json
import os
import signal
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final, cast, final

import pytest

from mm2py.clock import SYSTEM_CLOCK, closing
from mm2py.config.class_names import SOURCE_NAME
from mm2py.errors import RetriableError
from mm2py.mirror.backfills import BackfillRecord, Job, JobState, Lease, LeaseState
from mm2py.mirror.failovers import FailoverKind, Tail
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC, MirrorProducer, encode_producer
from mm2py_cli.rest_access import Access
from mm2py_cli.rest_client import RemoteApi
from mm2py_jobs.failover.driver import FailoverStore
from mm2py_jobs.failover.flows import FlowAnswer, FlowsApi, RestFlows
from mm2py_jobs.failover.job import FailoverJob, opened
from mm2py_jobs.open_flow import flow_plan, flow_sides
from mm2py_jobs.verify.verify import planned
from mm2py_workers.answers import Row
from mm2py_workers.flow_target import FlowTarget
from tests.integration.cluster_changes import grow, set_config, topics_of
from tests.integration.failovers import (
    COMMAND_S,
    EXACTLY_ONCE,
    PARTITIONS,
    Drivers,
    Ended,
    Shop,
    Sides,
    Stage,
    secured_pair,
    settled,
)
from tests.integration.ledger_scenes import entries
from tests.integration.members import READ_OF_60, place_of, read_next
from tests.integration.mirror_process import (
    SHORT_SESSION,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
    write_flow,
)
from tests.integration.rest_asking import ask
from tests.integration.setups import Setup
from tests.integration.test_quotas import throttled
from tests.integration.test_share_groups import Shares, start_offsets
from tests.integration.traffic import (
    Sent,
    commit,
    committed,
    committed_positions,
    ends,
    numbered,
    producer,
    read,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MARK: Final = "mm2py.source.offset"
LARGE: Final = 50_000_000
TIMED: Final = ["PLAN", "FENCE", "DRAIN", "GROUPS", "VERIFY", "SWITCH", "REVERSE"]
MORE: Final = "is more than the 9 offsets that would not be copied now"


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("fo") as pair:
        yield pair


@pytest.fixture
def stage(setup: Setup, sides: Sides) -> Stage:
    return Stage(*sides, setup.unique, setup.create_topic, setup.folder)


def shown(url: str) -> Mapping[str, object]:
    """Return the failover that REST shows, nothing before there is one."""
    return cast("Mapping[str, object]", ask(url)[1]["failover"] or {})


def move_there_and_back(
    stage: Stage, *, kills: list[tuple[str, str]], properties: Mapping[str, str]
) -> list[float]:
    """Fail over and back under load, each driver killed at a step; return for how long the client could not write."""
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    with stage.home(topic, properties) as drivers:
        with Shop(drivers.flow, topic, PARTITIONS) as shop:
            shop.wait_acked(50)
            for there, back in kills:
                for kind, at, here, other in (("failover", there, a, b), ("failback", back, b, a)):
                    read_to = {p: end - 3 for p, end in ends(here, topic).items()}
                    commit(here, group, topic, read_to)
                    drivers.execute(kind, kills=[at] if at else [])
                    check_group(here, other, topic, read_to, committed(other, group, topic))
                    shop.wait_acked(30)
                    assert shop.side == ("target" if kind == "failover" else "source")
            count = shop.acked
        settled(a, b, topic, shop.acked, drivers.mirror)
        assert shop.acked >= count
    return shop.gaps


def check_group(
    here: Region, other: Region, topic: str, read_to: dict[int, int], found: dict[int, int]
) -> None:
    """The group continues with the same record."""
    logs = read(here, topic), read(other, topic)
    for partition, offset in read_to.items():
        wanted, there = (
            log[partition].records[bisect_left(log[partition].offsets, at)].value
            for log, at in zip(logs, (offset, found[partition]), strict=True)
        )
        assert wanted == there


TWICE: Final = [("DRAIN", "FENCE"), ("SWITCH", "REVERSE")]
STEPS: Final = ("FENCE", "DRAIN", "GROUPS", "VERIFY", "SWITCH", "TAIL", "REVERSE")
TWENTY: Final = [*((STEPS[n % 7], STEPS[(n + 3) % 7]) for n in range(19)), ("", "")]
GAP_S: Final = 10.0
"""A driver that was killed is started again by the test: on a machine with other work that takes seconds of its own."""


@pytest.mark.faults
@pytest.mark.timeout(5_400)
@pytest.mark.parametrize(
    ("kills", "properties"),
    matrix([(TWICE, {}), ([("GROUPS", "TAIL")], EXACTLY_ONCE)], [(TWENTY, {})]),
    ids=["twice", "exactly-once", "twenty times"],
)
def test_clients_move_there_and_back_whatever_kills_the_driver(
    stage: Stage, kills: list[tuple[str, str]], properties: Mapping[str, str]
) -> None:
    gaps = move_there_and_back(stage, kills=kills, properties=properties)
    assert len(gaps) == 2 * len(kills), gaps
    if kills is TWENTY:
        assert max(gaps[-2:]) <= GAP_S, gaps
        assert sorted(gaps)[int(len(gaps) * 0.9)] <= GAP_S, gaps


@pytest.mark.faults
def test_a_failover_whose_worker_is_killed_is_continued_by_another(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    reads = {"{source}.consumer.isolation.level": "read_committed"}
    flow = stage.same_names(topic, {**SHORT_SESSION, **reads})
    write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20)])
    client = producer(a, transactional_id=topic, transaction_timeout_ms=600_000)
    client.init_transactions(60)

    def url(mirror: Mirror) -> str:
        return Drivers(flow, mirror).url + "/failover"

    with Mirror(flow.file, name="first") as first:
        first.wait_ready()
        until(lambda: sum(ends(b, topic).values()) == 20, 90, "the copy", alive=first)
        # The drain cannot end before the worker is killed.
        client.begin_transaction()
        client.produce(topic, b"open", partition=0)
        assert client.flush(60) == 0
        status, begun = ask(url(first), "POST")
        assert status == 202, begun
        assert begun["driven_here"]
        first.kill()
    with running(flow.file, name="second") as second:
        status, left = ask(url(second))
        assert status == 200, left
        assert not left["driven_here"]
        assert left["failover"]["step"] != "DONE"
        client.abort_transaction(60)

        def done() -> bool:
            status, found = ask(url(second), "POST")
            assert status in (202, 409, 503), found
            return bool(ask(url(second))[1]["failover"]["step"] == "DONE")

        until(done, 120, lambda: f"{ask(url(second))}", alive=second)
        before = sum(ends(a, topic).values())
        write(b, topic, [Sent(0, b"new")])
        until(lambda: sum(ends(a, topic).values()) == before + 1, 90, "the way back", alive=second)


def test_a_plan_names_lag_groups_and_writers_and_changes_nothing(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    other = {"{target}->{source}.enabled": "true", "{target}->{source}.topics": "other"}
    with stage.home(topic, {**other, **with_heartbeats(topic)}) as drivers:
        write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(40)], enable_idempotence=1)
        commit(a, group, topic, {0: 5})
        flow = drivers.flow
        until(lambda: sum(ends(b, topic).values()) == 40, 90, "the copy", alive=drivers.mirror)
        wait_for_heartbeats(a, drivers.mirror)
        until(
            lambda: (
                f"{flow.source_alias}.heartbeats" in topics_of(b)
                and f"{flow.target_alias}.heartbeats" in topics_of(a)
            ),
            alive=drivers.mirror,
        )
        before = topics_of(a), topics_of(b)
        ended = drivers.run("failover", "--plan", "-o", "json")
        assert ended.code == 0, ended.said
        plan = ended.document
        assert plan["source_reachable"]
        assert plan["state"] == "RUNNING"
        assert plan["would_lose"] == 0
        back = f"flow {flow.target_alias}->{flow.source_alias} copies no {topic}"
        assert back in plan["problems"][0]
        return_plan = drivers.run("failback", "--plan", "-o", "json").document
        assert [it for it in return_plan["problems"] if back in it]
        (row,) = plan["topics"]
        assert (row["partitions"], row["problems"]) == (PARTITIONS, [])
        assert plan["fence_rules"] == 1
        assert {it["topic"] for it in plan["writers"]} == {topic}
        assert group in {it["group"] for it in plan["groups"]}
        dry = drivers.run("failover", "--execute", "--dry-run")
        assert dry.code == 0, dry.said
        report = stage.folder / "drill.json"
        drill = drivers.run("drill", "--report", str(report))
        assert drill.code == 0, drill.said
        timed = drivers.run("failover", "--plan", "--timed", "-o", "json")
        assert timed.code == 0, timed.said
        assert timed.document.keys() == json.loads(report.read_text()).keys()
        assert [it["step"] for it in timed.document["steps"]] == TIMED
        assert (topics_of(a), topics_of(b)) == before
        assert drivers.run("failover", "--status").code == 0
        refused = drivers.run("failback", "--execute")
        assert refused.code == 3
        assert "not failed over" in refused.said
        assert (topics_of(a), topics_of(b)) == before
        # Clients that move find less room than they have; the sync writes only what the source sets itself.
        set_config(b, topic, "max.message.bytes", "5000")
        (row,) = drivers.run("failover", "--plan", "-o", "json").document["topics"]
        assert "the copy takes 5000 bytes in a batch, its source 1048588" in row["problems"][0]
        # Without lag a failover would still fence clients, and wait for what they write until then.
        connectors = f"{drivers.worker}/{flow.source_alias}/{flow.target_alias}/connectors"
        assert ask(f"{connectors}/{SOURCE_NAME}", "DELETE")[0] == 204
        until(lambda: not ask(drivers.url)[1]["enabled"], 90, "no source", alive=drivers.mirror)
        drill_again = ["drill", "--report", str(report)]
        for command in (["failover", "--plan"], drill_again, ["failover", "--execute"]):
            ended = drivers.run(*command)
            assert (ended.code, "is not there: what is not copied" in ended.said) == (3, True)


@pytest.mark.faults
def test_heartbeats_do_not_hold_a_failover_up(stage: Stage) -> None:
    """The default file selects the topic ``heartbeats`` like any other, and it is written each second."""
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    with stage.home(topic, with_heartbeats(topic)) as drivers:
        write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(40)])
        until(lambda: sum(ends(b, topic).values()) == 40, 90, "the copy", alive=drivers.mirror)
        wait_for_heartbeats(a, drivers.mirror)
        drivers.execute("failover")
        write(b, topic, [Sent(0, b"new")])
        until(lambda: sum(ends(a, topic).values()) == 41, 90, "the way back", alive=drivers.mirror)
        drivers.execute("failback")
        write(a, topic, [Sent(0, b"newer")])
        until(lambda: sum(ends(b, topic).values()) == 42, 90, "the copy", alive=drivers.mirror)


@pytest.mark.faults
def test_a_failover_and_a_failback_wait_for_what_quotas_hold_back(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    sides = [(region, kind) for region in (a, b) for kind in ("consumer", "producer")]
    with stage.home(topic) as drivers, throttled(*sides):
        for kind, here, other, new in ("failover", a, b, 250), ("failback", b, a, 50):
            before = sum(ends(here, topic).values())
            write(here, topic, [Sent(n % PARTITIONS, bytes(10_000)) for n in range(new)])
            drivers.execute(kind)
            assert sum(ends(other, topic).values()) == before + new


def with_heartbeats(topic: str) -> Mapping[str, str]:
    """Properties of a flow that writes heartbeats to its source and copies them."""
    return {
        "{source}->{target}.topics": f"{topic},heartbeats",
        "emit.heartbeats.enabled": "true",
        "heartbeats.replication.enabled": "true",
    }


def wait_for_heartbeats(source: KafkaAddress, mirror: Mirror) -> None:
    """Return when one more was written."""
    there = "heartbeats" in topics_of(source)
    before = sum(ends(source, "heartbeats").values()) if there else 0
    until(
        lambda: (
            "heartbeats" in topics_of(source) and sum(ends(source, "heartbeats").values()) > before
        ),
        alive=mirror,
    )


def test_what_would_be_lost_is_refused_without_its_number_and_kept_with_it(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    with stage.home(topic) as drivers:
        flow, mirror = drivers.flow, drivers.mirror
        write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20)])
        until(lambda: sum(ends(b, topic).values()) == 20, 90, "the copy", alive=mirror)
        drivers.change_flow("stop", "STOPPED")
        before = drivers.run("failover", "--plan", "-o", "json").document
        late = [Sent(n % PARTITIONS, b"%d" % n, b"k%d" % n, [("h", b"1")]) for n in range(20, 29)]
        write(a, topic, late, enable_idempotence=1)
        # By a mirror of a third cluster: such records are copied like any other.
        (writer,) = {
            it["producer_id"]
            for it in drivers.run("failover", "--plan", "-o", "json").document["writers"]
            if not it["in_transaction"] and it["topic"] == topic
        } - {it["producer_id"] for it in before["writers"]}
        relay = MirrorProducer(
            producer_id=writer,
            flow="c->a",
            source="c",
            source_cluster="",
            task="",
            worker="",
            time_ms=0,
        )
        if PRODUCERS_TOPIC not in topics_of(a):
            stage.create_topic(a, PRODUCERS_TOPIC, 1)
        key, value = encode_producer(relay)
        write(a, PRODUCERS_TOPIC, [Sent(0, value, key)])
        # Of an earlier failover, when the topic had one partition; it was deleted and created again since.
        quarantined = f"mm2py-quarantine.{flow.source_alias}.{topic}.internal"
        stage.create_topic(b, quarantined, 1)
        write(b, quarantined, [Sent(0, b"old", None, [(MARK, b"1000")])])
        for words in ((), ("--accept-loss", "8")):
            refused = drivers.run("failover", "--execute", *words)
            assert refused.code == 3
            assert "--accept-loss 9" in refused.said
        more = drivers.run("failover", "--execute", "--dry-run", "--accept-loss", "20")
        assert (more.code, MORE in more.said) == (0, True), more.said
        ended = drivers.execute("failover", "--accept-loss", "9")
        assert MORE not in ended.said
        drill = ["drill", "--report", str(stage.folder / "drill.json")]
        for command in (["failover", "--execute"], drill):
            again = drivers.run(*command)
            assert again.code == 3
            assert f"are on {flow.target_alias} already" in again.said
        tail = {it["partition"]: (it["start"], it["end"]) for it in ended.document["tail"]}
        assert tail == {0: (10, 15), 1: (10, 14)}
        kept = read(b, quarantined)
        assert kept.keys() == {0, 1}
        for partition, log in kept.items():
            source = read(a, topic)[partition].records[10:]
            found = [it for it in log.records if it.value != b"old"]
            assert [it.value for it in found] == [it.value for it in source]
            assert [it.key for it in found] == [it.key for it in source]
            assert [it.timestamp_ms for it in found] == [it.timestamp_ms for it in source]
            marks = [dict(it.headers)[MARK] for it in found]
            assert marks == [b"%d" % (10 + n) for n in range(len(found))]
        assert sum(ends(b, topic).values()) == 20
        write(b, topic, [Sent(0, b"new")])
        until(lambda: ends(a, topic)[0] == 16, 90, lambda: f"{ends(a, topic)}", alive=mirror)
        assert ends(a, topic) == {0: 16, 1: 14}
        # A driver that died before it had recorded the end does the last step again, whoever has paused the flow back meanwhile.
        back = Flow(b, a, flow.target_alias, flow.source_alias, flow.file)
        Drivers(back, mirror).change_flow("pause", "PAUSED")
        write(b, topic, [Sent(0, b"newer")])
        asyncio.run(reversed_again(drivers))
        until(lambda: ends(a, topic)[0] >= 17, 90, lambda: f"{ends(a, topic)}", alive=mirror)
        assert [it.value for it in read(a, topic)[0].records[15:]] == [b"new", b"newer"]


@asynccontextmanager
async def opened_work(
    drivers: Drivers, api: Callable[[FlowsApi], FlowsApi] = lambda it: it
) -> AsyncGenerator[FailoverJob]:
    """What a driver works with, in this process."""
    with Access(url=drivers.worker).client() as rest:
        flows = RestFlows(api(RemoteApi(rest)))
        async with opened(drivers.flow.file, drivers.name, FailoverKind.FAILOVER, flows) as work:
            yield work


async def reversed_again(drivers: Drivers) -> None:
    async with opened_work(drivers) as work:
        failover = await work.newest()
        assert failover is not None
        assert failover.starts
        await work.sides.start_reverse(failover.starts)


async def kept(drivers: Drivers, tails: Sequence[Tail]) -> Sequence[Tail]:
    async with opened_work(drivers) as work:
        return await work.sides.quarantine(tails)


async def fenced_late(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as a driver does that stood still before it had recorded its rules, while another one cancelled."""
    async with opened_work(drivers) as work:
        failover = await work.newest()
        assert failover is not None
        start = FailoverStore.start

        async def not_now(_store: FailoverStore) -> None:
            monkeypatch.setattr(FailoverStore, "start", start)
            raise RetriableError("not now")

        monkeypatch.setattr(FailoverStore, "start", not_now)
        with pytest.raises(RetriableError, match="not now"):
            await work.sides.fence(failover.id)
        await work.sides.fence(failover.id)
        await work.sides.restore_fences()


@final
class LateApi:
    """Of a worker that has begun a moment ago: it does not know yet what was added over REST."""

    def __init__(self, known: FlowsApi) -> None:
        self._known, self._asked = known, 0

    async def rows(self, path: str) -> Sequence[Row]:
        self._asked += 1
        return [] if self._asked <= 2 else await self._known.rows(path)

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        await self._known.post(path, body, dry_run=dry_run)


async def stopped_late(drivers: Drivers) -> FlowAnswer | None:
    """Stop a flow that the worker learns of late; return it as it is then."""
    async with opened_work(drivers, LateApi) as work:
        await work.sides.stop_flow()
        return await work.control.now(work.clusters.name)


def test_a_flow_that_no_worker_knows_yet_is_not_taken_for_a_stopped_one(stage: Stage) -> None:
    with stage.home(stage.unique("orders")) as drivers:
        now = asyncio.run(stopped_late(drivers))
        assert now is not None
        assert now.is_stopped, now


@pytest.mark.faults
def test_a_failback_waits_for_a_job_of_the_flow_that_it_begins_again(stage: Stage) -> None:
    topic = stage.unique("orders")
    with stage.home(topic) as drivers:
        flow, name = drivers.flow, f"{drivers.flow.source_alias}->{drivers.flow.target_alias}"
        write(stage.a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20)])
        drivers.execute("failover")
        job = Job(id="j", state=JobState.FAILED, run=1, lanes=1)
        lease = Lease(
            topic=topic,
            partition=0,
            job="j",
            run=1,
            state=LeaseState.RESERVED,
            start=0,
            end=9,
            position=0,
        )

        async def write_job(*records: BackfillRecord) -> None:
            plan = flow_plan(flow.file, name)
            async with closing(FlowTarget(plan.name, plan.props, SYSTEM_CLOCK)) as target:
                await target.open()
                await target.jobs.post(records)

        asyncio.run(write_job(job, lease))
        for words in (("--plan",), ("--execute", "--accept-loss", "1000")):
            refused = drivers.run("failback", *words)
            assert refused.code == 3, refused.said
            assert f"backfill j of {name} is FAILED" in refused.said
        asyncio.run(write_job(replace(job, state=JobState.CANCELLED)))
        drivers.execute("failback")


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(10))
def test_a_lost_region_s_tail_is_listed_exactly_and_kept(stage: Stage, number: int) -> None:
    with secured_pair(f"lost{number}") as (a, b):
        lost = replace(stage, a=a, b=b)
        lose_and_return(lost, tail=2 + 13 * number, restarts=bool(number % 2))


def lose_and_return(stage: Stage, *, tail: int, restarts: bool = False) -> None:
    """Lose A with records that were not copied (and the worker, whose next process finds no A), write to B, bring A back, fail back.

    Of one partition nothing is ever copied: there the group begins at the log's beginning, not wherever its ``auto.offset.reset`` says.
    """
    a, b, topic, group = stage.a, stage.b, stage.unique("orders"), stage.unique("billing")
    flow = stage.same_names(topic)
    for region in (a, b):
        grow(region, topic, PARTITIONS + 1)
    write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20)])
    with ExitStack() as stack:
        mirror = stack.enter_context(Mirror(flow.file))
        mirror.wait_ready()
        drivers = Drivers(flow, mirror)
        until(lambda: sum(ends(b, topic).values()) == 20, 90, "the copy", alive=mirror)
        positions = committed_positions
        until(lambda: positions(flow, topic) == {0: 9, 1: 9}, 90, "the commit", alive=mirror)
        commit(a, group, topic, {0: 5, 1: 6})
        checkpoints = f"{flow.source_alias}.checkpoints.internal"
        until(lambda: sum(ends(b, checkpoints).values()) >= 2, 90, "checkpoints", alive=mirror)
        if restarts:
            mirror.kill()
        else:
            drivers.change_flow("pause", "PAUSED")
        write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20, 20 + tail)])
        a.kill()
        if restarts:
            mirror = stack.enter_context(Mirror(flow.file))
            drivers = Drivers(flow, mirror)
        refused = drivers.run("failover", "--execute")
        assert refused.code == 3
        assert "--unplanned" in refused.said
        plan = drivers.run("failover", "--plan", "-o", "json").document
        assert not plan["source_reachable"]
        unplanned = ("--execute", "--unplanned", "--settle", "1", "-o", "json")
        refused = drivers.run("failover", *unplanned)
        assert refused.code == 3

        def accepted() -> Ended | None:
            # The worker may have learned a moment ago of records that it had asked for when the source went.
            lost = drivers.run("failover", "--plan", "-o", "json").document["would_lose"]
            ended = drivers.run("failover", *unplanned, "--accept-loss", str(lost))
            return None if ended.code == 3 and "--accept-loss" in ended.said else ended

        switched = until(accepted, 90, "the loss that is known is accepted", alive=mirror)
        assert switched.code == 4, switched.said
        assert switched.document["step"] == "TAIL"
        places = committed(b, group, topic)
        assert places.pop(PARTITIONS) == 0
        assert all(0 <= places[number] <= read_to for number, read_to in {0: 5, 1: 6}.items())
        write(b, topic, [Sent(n % PARTITIONS, b"new %d" % n) for n in range(12)])
        a.start()
        ended = drivers.execute("failover")
        found = {
            (it["partition"], it["start"], it["end"], it["records"])
            for it in ended.document["tail"]
        }
        of_one, of_two = (tail + 1) // 2, tail // 2
        assert found == {(0, 10, 10 + of_one, of_one), (1, 10, 10 + of_two, of_two)}
        logs = read(b, f"mm2py-quarantine.{flow.source_alias}.{topic}.internal")
        values = sorted(int(it.value or b"") for log in logs.values() for it in log.records)
        assert values == list(range(20, 20 + tail))
        until(lambda: sum(ends(a, topic).values()) == 32 + tail, 90, "the way back", alive=mirror)
        of_mirrors = [Tail(topic=topic, partition=0, start=10 + of_one, end=ends(a, topic)[0])]
        assert [it.records for it in asyncio.run(kept(drivers, of_mirrors))] == [0]
        a.kill()
        again = drivers.run("failover", *unplanned, "--accept-loss", "0")
        assert again.code == 3
        assert f"are on {flow.target_alias} already" in again.said
        a.start()
        drivers.execute("failback")
        write(a, topic, [Sent(0, b"home")])
        until_equal(lambda: sum(ends(b, topic).values()), 33, alive=mirror)
        assert [it.value for it in read(b, topic)[0].records[-1:]] == [b"home"]
        assert mirror.stop() == 0


@pytest.mark.chaos
def test_a_failback_goes_on_when_its_source_is_back_and_without_it_where_that_is_accepted(
    stage: Stage,
) -> None:
    topic, group = stage.unique("orders"), stage.unique("billing")
    with secured_pair("cut") as (a, b), replace(stage, a=a, b=b).home(topic) as drivers:
        mirror, written = drivers.mirror, 0

        def write_to(region: Region, records: int) -> None:
            nonlocal written
            numbers = range(written, written + records)
            write(region, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in numbers])
            written += records

        write_to(a, 20)
        for step in ("FENCE", "DRAIN", "GROUPS"):
            drivers.execute("failover")
            write_to(b, 20)
            commit(b, group, topic, {p: end - 2 for p, end in ends(b, topic).items()})
            drivers.run("failback", "--execute", "--settle", "1", kill_at=step)
            b.freeze()
            try:
                refused = drivers.run("failback", "--execute", "--settle", "1")
            finally:
                b.thaw()
            assert refused.code in (1, 3), refused.said
            drivers.execute("failback")
            assert committed(a, group, topic) == {
                p: end - 2 for p, end in ends(a, topic).items()
            }, step
            write_to(a, 10)
            settled(a, b, topic, written, mirror)
        drivers.execute("failover")
        write_to(b, 20)
        until(lambda: sum(ends(a, topic).values()) == written, 90, "the way back", alive=mirror)
        drivers.run("failback", "--execute", "--settle", "1", kill_at="SWITCH")
        b.kill()
        ended = drivers.run(
            "failback",
            "--execute",
            "--unplanned",
            "--settle",
            "1",
            "--accept-loss",
            "0",
            "-o",
            "json",
        )
        assert (ended.code, ended.document["step"]) == (4, "TAIL"), ended.said
        write_to(a, 10)
        b.start()
        assert drivers.execute("failback").document["tail"] == []
        settled(a, b, topic, written, mirror)


def test_topics_with_prefixes_move_with_their_groups_and_over_rest(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    excluded = stage.unique("excluded")
    stage.create_topic(a, topic, PARTITIONS)
    stage.create_topic(b, topic, PARTITIONS)
    flow = write_flow(stage.folder, a, b, topic)
    copy, back = flow.remote(topic), f"{flow.target_alias}.{topic}"
    write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(20)])
    with running(flow.file) as mirror:
        until(lambda: sum(ends(b, copy).values()) == 20, 90, "the copy", alive=mirror)
        for it in (group, excluded):
            commit(a, it, topic, {0: 6, 1: 4})
        change = {"config": {"groups.exclude": "excluded-.*", "sync.group.offsets.enabled": "true"}}
        url = Drivers(flow, mirror).url
        status, changed = ask(url, "PATCH", change)
        assert status == 200, changed
        url += "/failover"
        status, dry = ask(f"{url}?dry_run=true", "POST")
        assert status == 200, dry
        assert dry["plan"]["would_lose"] == 0
        planned = {it["group"]: it["not_synced"] for it in dry["plan"]["groups"]}
        assert "sync.group.offsets.enabled" not in planned[group]
        assert excluded not in planned
        assert dry["failover"] is None
        status, begun = ask(url, "POST")
        assert status == 202, begun
        until(lambda: shown(url).get("step") == "DONE", 90, lambda: f"{ask(url)}", alive=mirror)
        assert shown(url)["tail"] == []
        assert committed(b, group, copy) == {0: 6, 1: 4}
        assert max(committed(b, excluded, copy).values()) < 0, "it has no offset there"
        # The group reads on in the copy, and clients write to the topic of their own region.
        commit(b, group, copy, {0: 9, 1: 10})
        write(b, topic, [Sent(0, b"new %d" % n) for n in range(5)])
        until(lambda: ends(a, back).get(0) == 5, 90, lambda: f"{ends(a, back)}", alive=mirror)
        commit(b, group, topic, {0: 3})
        status, refused = ask(f"{url}/cancel", "POST")
        assert status == 409, refused
        status, begun = ask(f"{url}?kind=failback", "POST")
        assert status == 202, begun
        until_equal(lambda: shown(f"{url}?kind=failback").get("step"), "DONE", alive=mirror)
        assert committed(a, group, topic) == {0: 9, 1: 10}
        assert committed(a, group, back)[0] == 3
        write(a, topic, [Sent(1, b"home")])
        until(lambda: ends(b, copy)[1] == 11, 90, lambda: f"{ends(b, copy)}", alive=mirror)
        assert sum(ends(a, back).values()) == 5


def test_an_accepted_loss_is_not_called_a_position_that_was_set(stage: Stage) -> None:
    """In the ledger, in the next plan and in what is verified: its records are in quarantine."""
    a, b, topic = stage.a, stage.b, stage.unique("orders")
    for region in (a, b):
        stage.create_topic(region, topic, PARTITIONS)
    flow = write_flow(stage.folder, a, b, topic)
    copy, kept_in = flow.remote(topic), f"mm2py-quarantine.{flow.source_alias}.{topic}.internal"
    write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(10)])
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        until(lambda: sum(ends(b, copy).values()) == 10, 90, "the copy", alive=mirror)
        drivers.change_flow("stop", "STOPPED")
        write(a, topic, [Sent(n % PARTITIONS, b"%d" % n) for n in range(10, 14)])
        drivers.execute("failover", "--accept-loss", "4")
        drivers.execute("failback")
        write(a, topic, [Sent(n, b"home") for n in range(PARTITIONS)])
        until(lambda: sum(ends(b, copy).values()) == 12, 90, "the copy", alive=mirror)
        plan = drivers.run("failover", "--plan", "-o", "json").document
    # The worker has ended in order, so all is in the ledger that is to be there.
    found = {(it.kind, it.partition, it.first, it.last) for it in entries(flow)}
    assert found == {("quarantined", number, 5, 6) for number in range(PARTITIONS)}
    (row,) = plan["topics"]
    assert sorted(row["problems"]) == [
        f"2 offsets of partition {number} were not copied before a failover, which was accepted: "
        f"their records are in {kept_in}"
        for number in range(PARTITIONS)
    ]
    verified = asyncio.run(planned(flow_sides(flow.file, flow.name, topic), None))
    for partition in verified.partitions:
        assert partition.unvouched == ()
        assert [it for it in partition.notes if "5 to 7" in it and kept_in in it], partition.notes


def test_a_record_of_50_mb_that_is_not_copied_is_kept_whole(stage: Stage) -> None:
    a, b, topic = stage.a, stage.b, stage.unique("large")
    size, record = {"max.message.bytes": str(LARGE + 100_000)}, Sent(0, os.urandom(LARGE))
    stage.create_topic(a, topic, 1, config=size)
    flow = write_flow(stage.folder, a, b, topic)
    write(a, topic, [Sent(0, b"copied")])
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        until(lambda: ends(b, flow.remote(topic)).get(0) == 1, 90, "the copy", alive=mirror)
        drivers.change_flow("stop", "STOPPED")
        write(a, topic, [record, Sent(0, b"behind")], message_max_bytes=LARGE + 100_000)
        ended = drivers.execute("failover", "--accept-loss", "2")
    (tail,) = ended.document["tail"]
    assert (tail["start"], tail["end"], tail["records"]) == (1, 3, 2)
    kept = read(b, f"mm2py-quarantine.{flow.source_alias}.{topic}.internal")[0].records
    assert [it.value for it in kept] == [record.value, b"behind"]


@pytest.mark.faults
def test_a_failover_that_is_cancelled_lets_clients_write_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = stage.b
    topic = stage.unique("orders")
    with stage.home(topic) as drivers:
        with Shop(drivers.flow, topic, PARTITIONS) as shop:
            shop.wait_acked(20)
            drivers.run("failover", "--execute", kill_at="DRAIN")
            assert drivers.run("failover", "--status").code == 3
            back = drivers.run("failback", "--execute")
            assert back.code == 3
            assert "--execute it to its end, or --cancel it" in back.said
            assert drivers.run("failover", "--cancel", "--dry-run").code == 0
            cancelled = drivers.run("failover", "--cancel", "-o", "json")
            assert cancelled.code == 0, cancelled.said
            assert cancelled.document["step"] == "CANCELLED"
            shop.wait_acked(20)
            assert shop.side == "source"
            assert drivers.run("failover", "--cancel").code == 3
            asyncio.run(fenced_late(drivers, monkeypatch))
            shop.wait_acked(20)
            assert shop.side == "source"
        count = shop.acked
        until(lambda: sum(ends(b, topic).values()) == count, 90, "the copy", alive=drivers.mirror)


@pytest.mark.faults
def test_a_driver_that_stood_still_while_clients_moved_and_returned_lets_nobody_write(
    stage: Stage,
) -> None:
    topic = stage.unique("orders")
    with stage.home(topic) as drivers:
        drivers.execute("failover")
        drivers.execute("failback")
        with drivers.standing_still("failover", "SWITCH") as standing:
            drivers.execute("failover")
            drivers.execute("failback")
            standing.process.send_signal(signal.SIGCONT)
            assert standing.process.wait(COMMAND_S) == 3, drivers.said
        rule = f"User:shop on {topic}"
        plan = drivers.run("failback", "--plan", "-o", "json").document
        assert plan["fence_rules"] == 0, f"{rule} is denied already"
        assert not [it for it in plan["problems"] if "copies no" in it]
        plan = drivers.run("failover", "--plan", "-o", "json").document
        assert plan["fence_rules"] == 1, f"{rule} may write"


@pytest.mark.faults
def test_share_groups_move_with_their_start_offsets(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic, group, busy = stage.unique("orders"), stage.unique("shares"), stage.unique("busy")
    stage.create_topic(a, topic, 1)
    write(a, topic, [Sent(0, b"%d" % n) for n in range(60)])
    flow = write_flow(stage.folder, a, b, topic)
    copy = flow.remote(topic)
    for name in (group, busy):
        member = Shares(a, topic, name)
        assert member.read(60) == list(range(60))
        member.close()
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        until(lambda: ends(b, copy).get(0) == 60, 90, "the copy", alive=mirror)
        plan = drivers.run("failover", "--plan", "-o", "json").document
        rows = {it["group"]: it for it in plan["groups"]}
        assert (rows[group]["type"], rows[group]["state_there"]) == ("share", "")
        assert "sync.group.offsets.enabled is not set" in rows[group]["not_synced"]
        there = Shares(b, copy, busy)
        until(there.take, 120, "a member on the target")
        ended = drivers.execute("failover").document
        moves = {it["group"]: it for it in ended["groups"]}
        assert (moves[group]["moved"], moves[group]["left"]) == (1, [])
        assert start_offsets(b, group) == {(copy, 0): 60}
        assert (moves[busy]["moved"], len(moves[busy]["left"])) == (0, 1)
        assert "it has members on the target" in moves[busy]["left"][0]
        there.close()
        write(b, copy, [Sent(0, b"60")])
        moved = Shares(b, copy, group)
        assert moved.read(1) == [60]
        moved.close()


def test_groups_of_each_kind_move_there_and_back_with_their_next_record(stage: Stage) -> None:
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    with stage.home(topic) as drivers:
        write(a, topic, numbered(0, 60))
        groups = {kind: stage.unique(kind) for kind in READ_OF_60}
        read_to = dict.fromkeys(groups, 0)
        for turn, (move, here, there) in enumerate((("failover", a, b), ("failback", b, a))):
            end = 60 + 5 * turn
            for kind, group in groups.items():
                first, more = read_to[kind], 5 if turn else READ_OF_60[kind]
                found = read_next(here, topic, group, kind, more)
                assert found == list(range(first, first + more)), f"{kind} before the {move}"
                read_to[kind] += more
            drivers.execute(move)
            for kind, group in groups.items():
                assert place_of(there, topic, group, kind) == read_to[kind], f"{kind}: {move}"
            write(there, topic, numbered(end, 5))
        for kind, group in groups.items():
            first = read_to[kind]
            assert read_next(a, topic, group, kind, 5) == list(range(first, first + 5)), kind
