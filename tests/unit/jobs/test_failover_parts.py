"""Parts of a failover without I/O: where a group continues, where the flow back begins, what refuses."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from typer.testing import CliRunner

from mm2py.client.connect.admin import Admin, ListedOffset
from mm2py.config.class_names import CHECKPOINT_NAME, SOURCE_NAME
from mm2py.errors import RetriableError
from mm2py.mirror.failovers import (
    HANGS_MS,
    Failover,
    FailoverKind,
    LogPlace,
    OpenTransaction,
    Step,
    Tail,
)
from mm2py.mirror.offset_map_pages import Mark, Page, Segment
from mm2py.mirror.offset_ranges import outside
from mm2py.storage.connect_json import TargetPut, encode_config_record
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TargetState, TopicPartition
from mm2py_cli.app import app
from mm2py_cli.output import Output, Printer
from mm2py_jobs.copy.known_maps import KnownMap
from mm2py_jobs.copy.survey import Known
from mm2py_jobs.failover import commands, survey
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.commands import print_plan
from mm2py_jobs.failover.driver import DriverProgress
from mm2py_jobs.failover.fences import FencePlan
from mm2py_jobs.failover.flows import FlowAnswer, RestFlows, flow_now, stop_record
from mm2py_jobs.failover.own_records import OwnRecords
from mm2py_jobs.failover.plan import (
    FailoverPlan,
    FailoverRequest,
    TimedPlan,
    TopicRow,
    WriterRow,
)
from mm2py_jobs.failover.quarantine import end_of
from mm2py_jobs.failover.steps import CountedEnds, FailoverSides
from mm2py_jobs.failover.survey import not_copying, stays_behind, time_of_transactions, time_plan
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import LogEnds
from mm2py_workers.answers import Row
from tests.unit.rest.job_fakes import PLAN

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW_MS = 10 * HANGS_MS
TOPIC: Final = TopicRow(
    topic="pay", copy="A.pay", partitions=1, lag_records=0, lag_ms=0, would_lose=0, copied_to={}
)


async def test_a_range_whose_writers_could_not_be_read_is_read_again() -> None:
    asked: list[tuple[int, int]] = []
    answers: list[bool | Exception] = [RetriableError("not now"), False, True, False]

    async def are_of_mirrors(_tp: TopicPartition, first: int, end: int) -> bool:
        asked.append((first, end))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def logs(end: int) -> dict[TopicPartition, LogEnds]:
        return {ONE: LogEnds(0, end)}

    ends = CountedEnds()
    assert await ends.counted(logs(5), are_of_mirrors) == {ONE: 5}
    with pytest.raises(RetriableError):
        await ends.counted(logs(8), are_of_mirrors)
    assert await ends.counted(logs(8), are_of_mirrors) == {ONE: 8}
    assert await ends.counted(logs(9), are_of_mirrors) == {ONE: 8}
    assert await ends.counted(logs(9), are_of_mirrors) == {ONE: 8}
    assert await ends.counted(logs(11), are_of_mirrors) == {ONE: 11}
    assert asked == [(5, 8), (5, 8), (8, 9), (9, 11)]


async def test_ranges_of_several_logs_are_read_side_by_side() -> None:
    ends, both = CountedEnds(), asyncio.Barrier(2)

    async def are_of_mirrors(_tp: TopicPartition, _first: int, _end: int) -> bool:
        await both.wait()
        return True

    async def counted(end: int) -> object:
        logs = {ONE: LogEnds(0, end), TWO: LogEnds(0, end)}
        return await asyncio.wait_for(ends.counted(logs, are_of_mirrors), 90)

    assert await counted(5) == await counted(8) == {ONE: 5, TWO: 5}


@pytest.mark.parametrize(
    ("spans", "at", "holes"),
    [
        ([(0, 5), (5, 9)], 0, []),
        ([(2, 5), (7, 9)], 0, [(0, 2), (5, 7)]),
        ([(2, 5), (7, 9)], 5, [(5, 7)]),
        ([(2, 5), (7, 9)], 8, []),
        ([(2, 2), (3, 4)], 2, [(2, 3)]),
    ],
)
def test_holes_between_copies_are_found_from_a_place_on(
    spans: list[tuple[int, int]], at: int, holes: list[tuple[int, int]]
) -> None:
    assert list(outside(at, spans[-1][1], spans)) == holes


def plan(
    *,
    lost: int = 0,
    there: bool = True,
    state: str = "RUNNING",
    awaited: int = 0,
    open_ms: int = -1,
) -> FailoverPlan:
    till = OpenTransaction(topic="orders", partition=0, offset=7, transactional_id="till")
    return replace(
        PLAN,
        would_lose=lost,
        source_reachable=there,
        state=state,
        awaited=awaited,
        at_ms=NOW_MS,
        transactions=() if open_ms < 0 else (replace(till, since_ms=NOW_MS - open_ms),),
    )


@pytest.mark.parametrize(
    ("found", "accept", "unplanned", "word"),
    [
        (plan(), -1, False, ""),
        (plan(lost=7), -1, False, "--accept-loss 7"),
        (plan(lost=7), 6, False, "--accept-loss 7"),
        (plan(lost=7), 7, False, ""),
        (plan(lost=7, awaited=7, open_ms=1), -1, False, ""),
        (plan(lost=7, awaited=6, open_ms=1), -1, False, "--accept-loss 7"),
        (plan(lost=7, awaited=7, open_ms=HANGS_MS + 1), -1, False, "till (producer"),
        (plan(lost=0, open_ms=HANGS_MS + 1), -1, False, "--accept-loss 0"),
        (plan(lost=0, open_ms=HANGS_MS + 1), 0, False, ""),
        (plan(state=""), -1, False, "no worker of the flow answers"),
        (plan(there=False), 0, False, "--unplanned"),
        (plan(there=False), -1, True, "--accept-loss 0"),
        (plan(there=False, lost=5), 4, True, "--accept-loss 5"),
        (plan(there=False, lost=5), 5, True, ""),
        (plan(), 0, True, "leave --unplanned out"),
    ],
)
def test_what_would_lose_is_refused_with_its_number(
    found: FailoverPlan, accept: int, unplanned: bool, word: str
) -> None:
    request = FailoverRequest(id="f", accept_loss=accept, unplanned=unplanned)
    text = "; ".join(found.refusals(request))
    assert word in text
    assert bool(word) == bool(text)


@pytest.mark.parametrize(
    ("lost", "accept", "word"),
    [
        (9, 20, "20 is more than the 9 offsets"),
        (0, 5, "5 is more than the 0 offsets"),
        (9, 9, ""),
        (9, 8, ""),
        (0, -1, ""),
    ],
)
def test_a_number_above_the_plans_is_said_to_accept_more(lost: int, accept: int, word: str) -> None:
    text = "".join(plan(lost=lost).remarks(accept))
    assert word in text
    assert bool(word) == bool(text)


@pytest.mark.parametrize(
    "number", ["-1", "99999999999999999999", "9" * 5_000, "many", "1.5", "1e3", "٣", "", " "]
)
def test_what_is_no_number_of_offsets_is_refused_in_one_line(number: str) -> None:
    words = ["failover", "mm2.properties", "--flow", "A->B", "--execute", "--accept-loss", number]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2
    (line,) = ended.output.splitlines()
    assert "is no number of offsets from 0 to 9007199254740991" in line
    assert "--plan" in line


def test_a_flow_of_the_api_is_understood() -> None:
    now = flow_now(
        {
            "flow": "A->B",
            "state": "STOPPED",
            "enabled": True,
            "failed_partitions": 0,
            "paused": [],
            "connectors": [
                {
                    "name": "copy",
                    "tasks": [{"number": 0, "state": "FAILED"}, {"number": 1, "state": "RUNNING"}],
                },
                {"name": "without tasks"},
            ],
        }
    )
    assert (now.tasks, now.failed, now.failed_tasks) == (2, 1, ("copy-0",))
    assert not now.is_stopped
    assert not now.copies
    assert flow_now({"state": "STOPPED", "connectors": []}).is_stopped
    stopped = {"name": SOURCE_NAME, "state": "STOPPED"}
    assert flow_now({"state": "STOPPED", "connectors": [stopped]}).is_stopped
    # A checkpoint connector without groups has no tasks, and would move the next group that comes.
    beside = {"name": "MirrorCheckpointConnector", "state": "RUNNING"}
    assert not flow_now({"state": "STOPPED", "connectors": [stopped, beside]}).is_stopped
    assert flow_now({"state": "RUNNING", "enabled": False}).is_stopped
    # Its source connector was deleted: groups are still moved.
    for state, tasks, ended in ("PAUSED", 0, False), ("STOPPED", 1, False), ("STOPPED", 0, True):
        left: list[Row] = [{}] * tasks
        alone: Row = {"name": CHECKPOINT_NAME, "state": state, "tasks": left}
        row: Row = {"state": "STOPPED", "enabled": False, "connectors": [alone]}
        assert flow_now(row).is_stopped is ended
    held = flow_now({"errors": [{"where": "t-0", "message": "user mm may not Write topic A.t"}]})
    assert held.errors == ("t-0: user mm may not Write topic A.t",)
    waiting = flow_now({"state": "WAITING", "enabled": False})
    assert not waiting.is_stopped
    assert not waiting.copies
    assert flow_now({"state": "DEGRADED", "enabled": True}).copies


class BesideApi:
    """Of a flow whose source connector rests beside one that is worse off; keeps what is posted."""

    def __init__(self, state: str, source: str) -> None:
        self.posted: list[str] = []
        connectors = [{"name": SOURCE_NAME, "state": source}, {"name": "MirrorCheckpointConnector"}]
        self._row: Row = {"flow": "A->B", "state": state, "connectors": connectors}

    async def rows(self, path: str) -> Sequence[Row]:
        assert path == "/flows"
        return [self._row]

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        assert body is None
        self.posted.append(path)


@pytest.mark.parametrize("source", ["PAUSED", "STOPPED"])
@pytest.mark.parametrize("state", ["FAILED", "RESTARTING", "UNASSIGNED", "DEGRADED", "RUNNING"])
async def test_a_flow_whose_source_connector_rests_copies_nothing_whatever_state_others_give_it(
    state: str, source: str
) -> None:
    api = BesideApi(state, source)
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    now = await RestFlows(api).now(flow)
    assert now is not None
    assert not now.copies
    tail = Tail(topic="pay", partition=0, start=3, end=9)
    assert stays_behind(tail, now, {}, waits=False)
    await RestFlows(api).start(flow, {})
    assert api.posted == ["/flows/A-%3EB/resume"]


@pytest.mark.parametrize("command", ["failover", "failback"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "choose one of --plan"),
        (["--plan", "--execute"], "choose one of --plan"),
        (["--execute", "--timed"], "--timed goes with --plan"),
    ],
)
def test_one_of_the_actions_has_to_be_chosen(command: str, words: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, [command, "mm2.properties", "--flow", "A->B", *words])
    assert ended.exit_code == 2
    assert said in ended.output


def test_a_flow_that_a_sink_connector_copies_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = A, B\nA.bootstrap.servers = localhost:1\nB.bootstrap.servers = localhost:2\n"
        "A->B.enabled = true\nA->B.copy.connector = sink\n"
    )
    ended = CliRunner().invoke(app, ["failover", str(file), "--flow", "A->B", "--plan"])
    assert ended.exit_code == 1
    assert "copy.connector=source" in ended.output


class HeldApi:
    """Of a flow with a partition that is held; nothing else is answered."""

    async def rows(self, path: str) -> Sequence[Row]:
        if path != "/flows/A-%3EB/partitions":
            raise RetriableError("not now")
        common: Row = {"topic": "pay", "cause": ""}
        return [
            {**common, "partition": 0, "state": "RUNNING"},
            {**common, "partition": 1, "state": "HELD", "cause": "B refuses user mm"},
            {**common, "partition": 2, "state": "FAILED"},
            {**common, "partition": 3, "state": "UNASSIGNED", "task": "copy-0"},
        ]

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        raise AssertionError(path, body)


async def test_partitions_that_are_held_or_failed_or_whose_task_failed_are_known_with_their_cause() -> (
    None
):
    a, b = ClusterAlias("A"), ClusterAlias("B")
    flow, other = FlowName(a, b), FlowName(b, a)
    stuck = {
        TopicPartition("pay", 1): "HELD: B refuses user mm",
        TopicPartition("pay", 2): "FAILED",
    }
    assert await RestFlows(HeldApi()).not_copied(flow) == stuck
    of_task = {TopicPartition("pay", 3): "UNASSIGNED"}
    assert await RestFlows(HeldApi()).not_copied(flow, ["copy-0"]) == stuck | of_task
    assert await RestFlows(HeldApi()).not_copied(other) is None


FAILED: Final = "FAILED: the record is too large"
HELD: Final = "HELD: committed records wait"


@pytest.mark.parametrize(
    ("now", "stuck", "waits", "stays"),
    [
        ({}, {}, False, False),
        ({"failed": 1}, {1: FAILED}, False, False),  # another partition's failure
        ({"failed": 1}, {0: FAILED}, False, True),
        ({"failed": 1}, {0: FAILED}, True, True),
        ({}, {0: HELD}, False, True),
        ({}, {0: HELD}, True, False),
        ({"failed": 1}, None, False, True),  # whose failure it is is not known
        ({}, None, False, False),
        ({"paused": ("pay",)}, {}, False, True),
        ({"paused": ("pay-1",)}, {}, False, False),
        ({"state": "PAUSED"}, {}, False, True),
        (
            {"state": "FAILED"},
            {},
            False,
            True,
        ),  # its connector failed, or all of it: no task, and no partition that could be named
        ({"state": "FAILED", "copied_topics": 1}, {}, False, False),  # another connector did
    ],
)
def test_only_what_nothing_copies_stays_behind_and_the_rest_is_ordinary_lag(
    now: dict[str, Any], stuck: dict[int, str] | None, *, waits: bool, stays: bool
) -> None:
    flow = replace(FlowAnswer(state="RUNNING", enabled=True, tasks=1), **now)
    causes = None if stuck is None else {TopicPartition("pay", n): it for n, it in stuck.items()}
    tail = Tail(topic="pay", partition=0, start=3, end=9)
    assert stays_behind(tail, flow, causes, waits=waits) is stays
    assert stays_behind(tail, None, causes, waits=waits)


@pytest.mark.parametrize(("writers", "said"), [((), True), (None, False)])
def test_no_writers_are_not_claimed_where_brokers_do_not_disclose_them(
    capsys: pytest.CaptureFixture[str], writers: tuple[WriterRow, ...] | None, said: bool
) -> None:
    till = OpenTransaction(topic="orders", partition=0, offset=7, producer_id=9, epoch=1)
    found = replace(plan(lost=7, awaited=7), copied_first=5, writers=writers, transactions=(till,))
    print_plan(Printer(Output.TABLE), found, -1)
    text = "".join(capsys.readouterr())
    assert ("no producer with an id has written" in text) is said
    assert "7; 7 above open transactions" in text
    assert "COPIED FIRST  5 (ordinary lag" in " ".join(text.split("\n"))
    assert "(producer 9, epoch 1) is open in orders-0 from offset 7" in text


class Rehearsed:
    """The clusters and the sides of a flow without lag; no ``divergence``, which writes to ledgers."""

    clock, store = FakeClock(), SimpleNamespace(failover=None)

    async def fence_plan(self) -> FencePlan:
        return FencePlan((), "")

    async def progress(self) -> DriverProgress:
        return DriverProgress({ONE: 5}, {ONE: 5}, {ONE: 5})

    async def nothing(self, *_: object, **__: object) -> Sequence[Any]:
        return ()

    target_ends = own_records = open_transactions = nothing


UNFINISHED = "failover f is at TAIL: --execute continues it"
GONE, NO_PLACE = "topic A.pay is missing on B", "group g: A.pay-0 is at 9 there, ahead of 7"
LEFT = "what is not copied stays behind"
RESUMED = f"{LEFT}; mm2py flow resume 'A->B'"


@pytest.mark.parametrize(
    ("row", "found", "reason", "refused"),
    [
        ({}, {}, "", False),
        ({"state": "PAUSED"}, {}, f"flow A->B is PAUSED: {RESUMED}", True),
        ({"enabled": False}, {}, f"flow A->B is not there: {LEFT}", True),  # deleted over REST
        ({"paused": ["pay"]}, {}, f"pay of flow A->B is paused: {RESUMED} --all-topics", True),
        ({}, {"unfinished": UNFINISHED}, UNFINISHED, False),
        ({}, {"topics": (replace(TOPIC, gaps=(GONE,)),)}, f"pay: {GONE}", False),
        ({}, {"unplaced": (NO_PLACE,)}, NO_PLACE, False),
        ({}, {"standing": "they are on B already"}, "they are on B already", True),
    ],
)
async def test_a_plan_and_a_drill_are_not_ready_for_the_same_reason(
    monkeypatch: pytest.MonkeyPatch, row: Row, found: dict[str, Any], reason: str, *, refused: bool
) -> None:
    """The first look of a drill is a plan, so neither ends with 0 where the other does not."""
    rehearsed = Rehearsed()
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    now = flow_now({"flow": "A->B", "state": "RUNNING", **row})
    monkeypatch.setattr("mm2py_jobs.failover.survey.move_groups", rehearsed.nothing)
    planned = replace(PLAN, resting=tuple(not_copying(flow, now)), **found)

    async def ask() -> FailoverPlan:
        return planned

    async def newest() -> None:
        return None

    async def timed_plan(request: FailoverRequest, _asks: object) -> TimedPlan:
        clusters, sides = cast("FailoverClusters", rehearsed), cast("FailoverSides", rehearsed)
        return await time_plan(clusters, sides, ask, request)

    request = FailoverRequest(settle_s=0)
    job = SimpleNamespace(plan=ask, newest=newest, timed_plan=timed_plan)
    printer, codes = Printer(Output.TABLE), set[int]()
    for timed in (False, True):
        codes.add(await cast("Any", commands)._plan(job, request, printer, timed=timed))
    assert codes == {3 if reason else 0}
    reasons = (reason,) if reason else ()
    assert (await timed_plan(request, None)).reasons == planned.not_ready(request) == reasons
    assert planned.refusals(request) == (reasons if refused else ())
    accepted = replace(planned, standing="").refusals(replace(request, accept_loss=0))
    assert accepted == (), "a loss that is accepted is not refused for what rests"


@pytest.mark.parametrize(
    ("step", "switched_ms", "words"),
    [
        (None, 0, "its plan; --status shows whether it has begun"),
        (Step.DRAIN, 0, "DRAIN; clients may be kept from writing to A: the same command continues"),
        (Step.TAIL, 5, "TAIL; clients may write to B already, the same command continues"),
    ],
)
async def test_a_failover_that_is_interrupted_says_where_clients_are(
    capsys: pytest.CaptureFixture[str], step: Step | None, switched_ms: int, words: str
) -> None:
    reached, at = asyncio.Event(), step

    async def execute(_request: object, report: Callable[[Failover], None], *_: object) -> None:
        if at is not None:
            kind = FailoverKind.FAILOVER
            report(
                Failover(id="f", flow="A->B", kind=kind, step=at, run=1, switched_ms=switched_ms)
            )
        reached.set()
        await asyncio.Event().wait()

    async def newest() -> None:
        return None

    job, printer = SimpleNamespace(execute=execute, newest=newest), Printer(Output.TABLE)
    running = asyncio.ensure_future(cast("Any", commands)._execute(job, FailoverRequest(), printer))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert f"interrupted at {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told_ms", "hangs"), [(HANGS_MS, False), (HANGS_MS + 2, True), (-1, True)]
)
async def test_a_transaction_hangs_only_where_the_source_s_clock_says_so_too(
    monkeypatch: pytest.MonkeyPatch, told_ms: int, *, hangs: bool
) -> None:
    class Cluster(Rehearsed):
        """One whose controller tells its time, or not; the driver's clock is ahead of it."""

        asked = 0

        @asynccontextmanager
        async def source(self) -> AsyncGenerator[None]:
            yield

        async def controller_time_ms(self) -> int:
            Cluster.asked += 1
            if told_ms < 0:
                raise RetriableError("the connection was closed")
            return told_ms

    cluster = Cluster()

    def admin(_: object) -> Cluster:
        return cluster

    monkeypatch.setattr("mm2py_jobs.failover.survey.Admin", admin)
    now_ms = cluster.clock.now_ms()
    since_ms = now_ms - 2 * HANGS_MS
    told_ms = told_ms if told_ms < 0 else since_ms + told_ms
    opened = OpenTransaction(
        topic="orders", partition=0, offset=7, producer_id=9, epoch=1, since_ms=since_ms
    )
    clusters = cast("FailoverClusters", cluster)
    source_ms = await time_of_transactions(clusters, [opened])
    found = replace(plan(lost=7, awaited=7), transactions=(opened,), source_ms=source_ms)
    assert bool(found.hanging) is hangs
    assert await time_of_transactions(clusters, [replace(opened, since_ms=now_ms)]) == now_ms
    assert Cluster.asked == 1, "only where one hangs by our clock"


ORDERS: Final = TopicPartition("orders", 0)


class BackApi:
    """Of a flow back in a state; what is done to it is kept, and changes it."""

    def __init__(self, state: str, copied: int) -> None:
        self.row: dict[str, object] = {"flow": "B->A", "state": state, "copied_topics": copied}
        self.done: list[str] = []

    async def rows(self, path: str) -> Sequence[Row]:
        assert path == "/flows"
        return [self.row]

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        assert body is None
        self.done.append(path.rpartition("/")[2])
        self.row["state"] = {"stop": "STOPPED", "resume": "RUNNING"}[self.done[-1]]


class BeginsBack:
    """Clusters of which the flow back is placed."""

    name, clock = FlowName(ClusterAlias("A"), ClusterAlias("B")), FakeClock()
    config: Final[dict[str, str]] = {}
    connectors: Final[dict[str, dict[str, str]]] = {SOURCE_NAME: {}}

    def __init__(self, done: list[str]) -> None:
        self._done, self.back = done, self

    async def known_back(self) -> Known:
        self._done.append("placed")
        return Known({ORDERS: 10}, {})


@pytest.mark.parametrize(
    ("state", "copied", "done"),
    [
        ("RUNNING", 1, []),
        ("DEGRADED", 0, []),
        ("FAILED", 1, []),  # another connector of it did
        ("FAILED", 0, ["stop", "placed", "resume"]),
        ("PAUSED", 1, ["stop", "placed", "resume"]),
        ("STOPPED", 0, ["placed", "resume"]),
    ],
)
async def test_a_flow_back_that_copies_is_left_alone_and_any_other_begins_where_the_record_says(
    state: str, copied: int, done: list[str]
) -> None:
    api = BackApi(state, copied)
    clusters = cast("FailoverClusters", BeginsBack(api.done))
    start = LogPlace(topic="orders", partition=0, offset=10)
    await FailoverSides(clusters, RestFlows(api)).start_reverse([start])
    assert api.done == done


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step.FENCE, "failback 1 of B->A is at FENCE: --execute it to its end, or --cancel it"),
        (Step.TAIL, "failback 1 of B->A is at TAIL: --execute it to its end"),
        (Step.DONE, ""),
        (Step.CANCELLED, ""),
        (None, ""),
    ],
)
async def test_a_failover_of_the_flow_back_that_began_at_the_same_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, step: Step | None, said: str
) -> None:
    async def no_job(*_: object) -> str:
        return ""

    monkeypatch.setattr("mm2py_jobs.failover.steps.unfinished_job", no_job)
    other = None if step is None else moved_back(step)
    clusters = cast("FailoverClusters", SameNames(other))
    assert await FailoverSides(clusters, RestFlows(HeldApi())).unfinished_job() == said


@pytest.mark.parametrize(
    ("state", "offset"),
    [(TargetState.STOPPED, 5), (TargetState.PAUSED, -1), (TargetState.STARTED, -1), (None, -1)],
)
async def test_a_stop_is_known_by_its_record(
    monkeypatch: pytest.MonkeyPatch, state: TargetState | None, offset: int
) -> None:
    async def records(*_: object) -> dict[bytes, tuple[int, bytes]]:
        key, value = encode_config_record(TargetPut(SOURCE_NAME, state or TargetState.STARTED))
        assert value is not None
        return {} if state is None else {key: (5, value)}

    monkeypatch.setattr("mm2py_jobs.open_flow.newest_records", records)
    asked = cast("Any", SameNames())
    assert await stop_record(asked, asked, asked.clock) == offset


# ---- where a group continues beside records of the target's own


def moved_back(step: Step, end: int = 200, stopped_at: int = 7) -> Failover:
    place = LogPlace(topic="orders", partition=0, offset=end)
    return Failover(
        id="1",
        flow="B->A",
        kind=FailoverKind.FAILBACK,
        step=step,
        run=1,
        ends=(place,),
        stopped_at=stopped_at,
    )


class SameNames:
    """Clusters with the same names on both sides."""

    keeps_names = True
    clock = FakeClock()
    name = names = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    target = source_tables = None
    forward = Known({}, {})
    source_ids: Final = {"orders": b"\0" * 16}
    worker: Final = SimpleNamespace(config_storage_topic="mm2-configs.A.internal")

    def __init__(
        self, left: Failover | None = None, read_back: int = -1, back: KnownMap | None = None
    ) -> None:
        self._back_maps = {} if back is None else {ORDERS: back}
        self.selection = self.policy = self.back_policy = self.back = self
        self.failover, self._read_back = left, read_back

    async def copied(self) -> Mapping[TopicPartition, int]:
        return {ORDERS: 200}

    async def known(self) -> Known:
        return self.forward

    async def known_back(self) -> Known:
        return Known({ORDERS: self._read_back}, {}, maps=self._back_maps)

    async def source_looping(self) -> frozenset[int]:
        return frozenset({7})

    async def target_looping(self) -> frozenset[int]:
        return frozenset({7})

    async def seen_source_store(self) -> "SameNames | None":
        return None if self.failover is None else self

    def replicate(self, _topic: str) -> bool:
        return True

    def copy_of(self, partition: TopicPartition) -> TopicPartition:
        return partition

    def comes_back(self, copy: TopicPartition, partition: TopicPartition) -> bool:
        return copy == partition

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[None]:
        yield


class OwnLog:
    """A log on the source by range: a batch for each offset, of the mirror's producer 7 or of another."""

    def __init__(self, own: int) -> None:
        self._own = own

    def __call__(self, _cluster: object, **_: object) -> "OwnLog":
        return self

    async def read(
        self, _tp: TopicPartition, first: int, end: int
    ) -> AsyncGenerator[list[LogBatch]]:
        for offset in range(first, end):
            data = memoryview(b"own" if offset == self._own else b"mirror")
            yield [LogBatch(data, offset, offset, 1, 0, 0, 0)]


def own_producer(batch: LogBatch) -> int:
    return 9 if bytes(batch.data) == b"own" else 7


def map_of(*segments: Segment, covered: int = 0) -> KnownMap:
    ids = b"\0" * 16
    return KnownMap({0: Page(0, ids, ids, covered, covered, -1, -1, 0, segments)})


SET, WHOLE = 60, map_of(Segment(0, 40, 0), covered=40)
GONE_ON = map_of(
    Segment(0, 40, 0), Segment(40, 20, 40, Mark.UNKNOWN), Segment(60, 5, 40), covered=65
)
SURE = "20 offsets of partition 0 were not copied, as its position was set past them"


@pytest.mark.parametrize(
    ("known", "start", "target_end", "back", "own", "skipped", "noted"),
    [
        (WHOLE, 0, 40, (), 45, (), SURE),
        (GONE_ON, 0, 45, (), 45, (), SURE),
        (WHOLE, 50, 40, (), 55, (), "10 offsets of partition 0"),
        (WHOLE, 60, 40, (), 45, (), ""),  # the source has deleted them
        (WHOLE, 0, 60, (), 45, (), ""),  # another program copied them
        (WHOLE, 0, 60, (), 45, [(40, 60)], SURE),  # the target's own, as they were compared
        (WHOLE, 0, 50, (), 45, (), "up to 20 offsets of partition 0 were not copied: "),
        (WHOLE, 0, 50, (), 45, [(40, 60)], SURE),
        (WHOLE, 0, 50, (Segment(0, 20, 40),), 45, (), ""),  # they came from the target
        (WHOLE, 0, 50, (Segment(0, 10, 40),), 55, (), "up to 10 offsets"),
        (WHOLE, 0, 40, (), 99, (), ""),  # written by mirrors alone, as the producer ids tell
        (map_of(Segment(0, 60, 0), covered=60), 0, 60, (), 45, (), ""),
    ],
)
async def test_a_plan_names_what_a_position_was_set_past(
    monkeypatch: pytest.MonkeyPatch,
    known: KnownMap,
    start: int,
    target_end: int,
    back: tuple[Segment, ...],
    own: int,
    skipped: Sequence[tuple[int, int]],
    noted: str,
) -> None:
    """The copy would seem complete, and groups move past them."""
    clusters = SameNames(back=map_of(*back))
    position = max(SET, known.newest.covered)
    clusters.forward = Known({ORDERS: position}, {ORDERS: known.newest}, maps={ORDERS: known})

    async def logs(_cluster: object, asked: Sequence[TopicPartition], **__: object) -> object:
        return dict.fromkeys(asked, LogEnds(start, 100))

    async def ends(_admin: Admin, asked: Mapping[TopicPartition, int]) -> object:
        return dict.fromkeys(asked, ListedOffset(target_end))

    monkeypatch.setattr("mm2py_jobs.failover.survey.log_ends", logs)
    monkeypatch.setattr(Admin, "list_offsets", ends)
    monkeypatch.setattr("mm2py_jobs.failover.own_records.RangeReader", OwnLog(own))
    monkeypatch.setattr("mm2py_jobs.failover.own_records.producer_of", own_producer)
    parts = cast("Any", survey)
    problems = parts._Problems()
    own_records = {ORDERS: OwnRecords(ORDERS, 0, skipped=list(skipped))}
    source = parts._SurveyedSource(clusters, problems, (), None, 0, own_records)
    await source._check_maps(SimpleNamespace(ends={ORDERS: 100}))
    assert noted in " ".join(problems.by_topic.get("orders", ()))
    assert (len(problems.by_topic), problems.gaps) == (bool(noted), {})


async def test_the_ages_of_what_is_not_copied_are_asked_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under_way, enough = list[int](), asyncio.Event()

    async def stamp(_source: object, tp: TopicPartition, start: int) -> int | None:
        under_way.append(start)
        if len(under_way) >= 20:
            enough.set()
        await enough.wait()
        return None if tp.topic == "unknown" else start

    monkeypatch.setattr("mm2py_jobs.log.open_transactions.first_stamp", stamp)
    clusters = SameNames()
    source = cast("Any", survey)._SurveyedSource(clusters, None, (), None, 0, {})
    names = ["orders"] * 49 + ["unknown"]
    tails = [
        Tail(topic=it, partition=number, start=number, end=100) for number, it in enumerate(names)
    ]
    async with asyncio.timeout(90):
        ages = await source._asked_ages(tails)
    assert ages == {"orders": clusters.clock.now_ms(), "unknown": None}


class CountedMarkers(Sequence[tuple[int, int]]):
    """A marker at each tenth offset: commits and aborts in turn."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, at: Any) -> Any:
        self.read += 1
        return at * 10, at % 2


@pytest.mark.parametrize(("last_offset", "end"), [(8, 1), (500_003, 1), (500_013, 0), (10**6, -1)])
def test_the_marker_that_ends_a_batch_is_found_among_those_of_thousands_of_transactions(
    monkeypatch: pytest.MonkeyPatch, last_offset: int, end: int
) -> None:
    def of_seven(_batch: LogBatch) -> int:
        return 7

    monkeypatch.setattr("mm2py_jobs.failover.quarantine.producer_of", of_seven)
    markers, transactional = CountedMarkers(), 0x10
    batch = LogBatch(memoryview(b""), last_offset, last_offset, 1, transactional, 0, 0)
    assert end_of(batch, {7: markers}) == end
    assert markers.read < 30
