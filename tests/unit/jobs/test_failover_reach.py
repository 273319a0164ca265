"""What a plan finds out before anything is moved: whether both flows can be changed, and whether there is a way back."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
import pytest

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import SOURCE_NAME
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.failovers import FailoverKind
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName
from mm2py_cli.rest_access import Access
from mm2py_cli.rest_client import RemoteApi
from mm2py_jobs.failover import survey
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.flows import NoWorkerApi, RestFlows
from mm2py_jobs.failover.plan import FailoverRequest
from mm2py_jobs.failover.steps import REACH_S, FailoverSides
from mm2py_jobs.failover.survey import check_way_back
from mm2py_jobs.open_flow import OpenFlow, flow_plan
from mm2py_workers.answers import Row
from tests.kit.fakes.broker import FakeBroker
from tests.unit.rest.job_fakes import PLAN

AB: Final = FlowName(ClusterAlias("A"), ClusterAlias("B"))
INIT_PRODUCER_ID: Final = 22
STOP, RESUME, CREATE = "/flows/A-%3EB/stop", "/flows/B-%3EA/resume", "/flows"
FAR: Final = RetriableError("not ready (503): IO Error trying to forward REST request")


class FarLeader:
    """A worker whose lists tell what it knows itself; changes go to leaders that it may not reach."""

    def __init__(self, states: dict[str, str], error: Mm2pyError | None) -> None:
        self._states, self._error = states, error
        self.asked: dict[str, None] = {}

    async def rows(self, path: str) -> Sequence[Row]:
        assert path == "/flows"
        return [
            {"flow": flow, "state": state, "connectors": [{"name": SOURCE_NAME, "state": state}]}
            for flow, state in self._states.items()
        ]

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        assert dry_run, "a plan changes nothing"
        assert (body is not None) is (path == CREATE)
        self.asked[path] = None
        if self._error is not None:
            raise self._error


class Pair:
    """Both flows of a file."""

    name, config = AB, cast("dict[str, str]", {})
    connectors: Final[dict[str, dict[str, str]]] = {SOURCE_NAME: {}}

    def __init__(self) -> None:
        self.clock, self.back = FakeClock(), self
        self.target, self.plan = None, self


@pytest.mark.parametrize(
    ("flow", "back", "error", "asked", "said"),
    [
        ("RUNNING", "RUNNING", None, [STOP], []),
        ("RUNNING", "STOPPED", None, [STOP, RESUME], []),
        ("RUNNING", "FAILED", None, [STOP, RESUME], []),
        ("RUNNING", "", None, [STOP, CREATE], []),
        ("STOPPED", "RUNNING", FAR, [], []),
        ("WAITING", "WAITING", FAR, [], []),  # their target states are recorded without a leader
        ("RUNNING", "RUNNING", FAR, [STOP], ["flow A->B cannot be stopped"]),
        (
            "RUNNING",
            "",
            FatalError("not allowed (403)"),
            [STOP, CREATE],
            ["flow A->B cannot be stopped", "flow B->A cannot be started"],
        ),
    ],
)
async def test_a_plan_asks_the_leaders_for_the_changes_and_a_failover_they_refuse_is_refused(
    flow: str, back: str, error: Mm2pyError | None, asked: list[str], said: list[str]
) -> None:
    api = FarLeader({"A->B": flow} | ({"B->A": back} if back else {}), error)
    pair = Pair()
    sides = FailoverSides(cast("FailoverClusters", pair), RestFlows(api))
    asking = asyncio.ensure_future(sides.unreached())
    await pair.clock.advance(3 * REACH_S)
    found = await asking
    assert [*api.asked] == asked
    assert [it.partition(" through")[0] for it in found] == said
    assert all(error is not None and error.message in it for it in found)
    plan = replace(PLAN, unreached=tuple(found))
    assert plan.refusals(FailoverRequest()) == tuple(found)
    # Without a source nothing is lost by going on: the stop is repeated when it is back.
    gone = replace(plan, source_reachable=False)
    assert gone.refusals(FailoverRequest(unplanned=True, accept_loss=0)) == ()


async def test_without_a_worker_nothing_is_moved_but_a_lost_regions_flow_is_stopped_on_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers without HTTP: those that start later read the target state."""
    stopped: list[FlowName] = []

    async def stop(_target: object, plan: Pair, _clock: object) -> None:
        stopped.append(plan.name)

    monkeypatch.setattr("mm2py_jobs.failover.steps.stop_without_workers", stop)
    control = RestFlows(NoWorkerApi(FatalError("no worker is known")))
    problems = cast("Any", survey)._Problems()
    assert await cast("Any", survey)._flows(AB, control, problems) == (None, None)
    assert "no worker answered" in problems.of_flow[0]
    plan = replace(PLAN, state="")
    (refused,) = plan.refusals(FailoverRequest())
    assert "no worker of the flow answers" in refused
    lost = replace(plan, source_reachable=False)
    assert lost.refusals(FailoverRequest(unplanned=True, accept_loss=0)) == ()
    sides = FailoverSides(cast("FailoverClusters", Pair()), control)
    with pytest.raises(RetriableError, match="no worker is known"):
        await sides.stop_flow()
    assert stopped == [AB]


async def test_a_dry_run_is_asked_for_over_the_network_too() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.raw_path.decode()}")
        return httpx.Response(200, json={})

    access = Access(url="http://localhost:8083", transport=httpx.MockTransport(answer))
    with access.client() as rest:
        flows = RestFlows(RemoteApi(rest))
        await flows.stop(AB, dry_run=True)
        await flows.stop(AB)
    assert asked == [f"POST {STOP}?dry_run=true", f"POST {STOP}"]


@pytest.mark.parametrize("opened", ["job", "failover"])
async def test_what_opens_a_flow_that_was_changed_over_rest_creates_no_topic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opened: str
) -> None:
    """A status, a list and a plan open it; its topics are its workers' and drivers' to create."""

    async def none(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(Admin, "describe_topic_configs", none)
    flows, file = flows_topic(AB.source), tmp_path / "mm2.properties"
    async with FakeBroker(topics={flows: 1}) as broker:
        servers = "".join(f"{it}.bootstrap.servers = 127.0.0.1:{broker.port}\n" for it in "AB")
        file.write_text(f"clusters = A, B\n{servers}A->B.enabled = true\n")
        plan, back = (flow_plan(file, it) for it in ("A->B", "B->A"))
        flow = OpenFlow(plan, role="job")
        async with flow if opened == "job" else FailoverClusters(plan, back, SYSTEM_CLOCK):
            assert list(broker.cluster.topics) == [flows]
        assert not broker.count(INIT_PRODUCER_ID), "a plan may be without the right to write"


@pytest.mark.parametrize(
    ("newest", "kind", "said"),
    [
        (2, FailoverKind.FAILOVER, True),
        (3, FailoverKind.FAILOVER, False),
        (None, FailoverKind.FAILOVER, False),
        (2, FailoverKind.FAILBACK, False),
    ],
)
async def test_a_plan_says_that_a_source_is_too_old_for_a_failback(
    newest: int | None, kind: FailoverKind, *, said: bool
) -> None:
    class Source:
        """Brokers that take InitProducerId up to a version, or do not answer."""

        name, broker_ids = AB, (0, 1)

        @asynccontextmanager
        async def source(self) -> AsyncGenerator["Source"]:
            yield self

        async def connection(self, _node: int, _purpose: str) -> Any:
            if newest is None:
                raise RetriableError("no answer")
            return SimpleNamespace(versions={22: (0, newest)})

    problems: list[str] = []
    await check_way_back(cast("FailoverClusters", Source()), problems, kind)
    assert [("older than Kafka 2.5" in it, "failback" in it) for it in problems] == (
        [(True, True)] if said else []
    )
