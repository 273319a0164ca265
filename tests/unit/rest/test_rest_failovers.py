"""``/flows/{flow}/failover``: what is started, shown and refused, over fakes; and how a worker asks itself."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mm2py.errors import FatalError, ProtocolError, RetriableError
from mm2py.flows.service import READS_AT_ONCE
from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.rest.parts import CALLER
from mm2py.runtime.errors import ConflictError
from mm2py.testing.waiting import until
from mm2py_jobs.failover.flows import RestFlows
from mm2py_jobs.failover.plan import FailoverRequest, FailoverView, TopicRow
from mm2py_jobs.failover.routes import FailoverService, OwnApi
from tests.unit.rest.failover_fakes import PLAN, FakeFailovers
from tests.unit.rest.flow_fakes import AB

THERE = FailoverKind.FAILOVER
REQUEST = FailoverRequest(id="f")
HUNTER = "hunter2-of-the-source"


def step_of(view: FailoverView) -> Step:
    assert view.failover is not None
    return view.failover.step


@asynccontextmanager
async def stage() -> AsyncGenerator[tuple[FakeFailovers, FailoverService]]:
    commands = FakeFailovers(SecretMask([HUNTER]))
    service = FailoverService(commands.opened)
    try:
        yield commands, service
    finally:
        await service.close()


async def test_a_failover_is_driven_here_until_it_is_done() -> None:
    async with stage() as (commands, service):
        assert (await service.show(AB, THERE)).failover is None
        view = await service.start(AB, REQUEST)
        assert (view.driven_here, step_of(view)) == (True, Step.FENCE)
        with pytest.raises(ConflictError, match="already"):
            await service.start(AB, REQUEST)
        commands.ended.set()
        await until(lambda: not service.driven)
        shown = await service.show(AB, THERE)
        assert (shown.driven_here, step_of(shown)) == (False, Step.DONE)


async def test_a_dry_run_shows_what_refuses_and_starts_nothing() -> None:
    async with stage() as (commands, service):
        commands.planned = replace(commands.planned, would_lose=9)
        view = await service.plan(AB, REQUEST)
        assert view.plan is not None
        assert view.plan.would_lose == 9
        assert "--accept-loss 9" in view.refused[0]
        with pytest.raises(ConflictError, match="--accept-loss 9"):
            await service.start(AB, REQUEST)
        assert not commands.requests
        await service.start(AB, replace(REQUEST, accept_loss=9))
        assert [it.accept_loss for it in commands.requests] == [9]


async def test_a_rehearsal_is_timed_and_names_what_is_in_the_way() -> None:
    async with stage() as (commands, service):
        drill = await service.drill(AB, THERE)
        assert (drill.ready, drill.reasons, drill.gap_ms) == (True, (), 2_300)
        commands.planned = replace(commands.planned, would_lose=9)
        drill = await service.drill(AB, THERE)
        assert not drill.ready
        assert "--accept-loss 9" in drill.reasons[0]
        assert [it.step for it in drill.steps] == ["PLAN"]
        assert commands.record is None


async def test_secrets_are_hidden_in_plan_drill_record_and_refusals_and_names_are_not() -> None:
    async with stage() as (commands, service):
        row = TopicRow(
            topic=HUNTER,
            copy=f"A.{HUNTER}",
            partitions=1,
            lag_records=0,
            lag_ms=0,
            would_lose=0,
            copied_to={0: 1},
            problems=(f"retention.ms differs: {HUNTER}",),
        )
        commands.planned = replace(
            commands.planned, standing=f"no login with {HUNTER}", problems=(HUNTER,), topics=(row,)
        )
        planned = await service.plan(AB, REQUEST)
        assert planned.refused == (f"no login with {HIDDEN}", HIDDEN)[: len(planned.refused)]
        assert planned.refused
        for plan in (planned.plan, (await service.drill(AB, THERE)).plan):
            assert plan is not None
            (shown,) = plan.topics
            assert (shown.topic, shown.copy) == (row.topic, row.copy)
            assert shown.problems == (f"retention.ms differs: {HIDDEN}",)
            assert (plan.standing, plan.problems) == (f"no login with {HIDDEN}", (HIDDEN,))
        assert HIDDEN in (await service.drill(AB, THERE)).reasons[0]
        commands.planned = PLAN
        await service.start(AB, REQUEST)
        assert commands.record is not None
        commands.record = replace(commands.record, cause=f"refused: {HUNTER}")
        record = (await service.show(AB, THERE)).failover
        assert record == replace(commands.record, cause=f"refused: {HIDDEN}")


async def test_readers_open_few_connections_at_once_however_many_they_are() -> None:
    async with stage() as (commands, service):
        shown = [service.show(AB, THERE) for _ in range(100)]
        planned = [service.plan(AB, REQUEST) for _ in range(100)]
        await asyncio.gather(*shown, *planned)
        assert commands.most_open == READS_AT_ONCE


async def test_a_failback_of_what_was_not_failed_over_is_a_conflict() -> None:
    async with stage() as (commands, service):
        why = "clients of A->B were not failed over"
        commands.planned = replace(commands.planned, standing=why)
        request = replace(REQUEST, kind=FailoverKind.FAILBACK)
        with pytest.raises(ConflictError, match="not failed over"):
            await service.start(AB, request)
        assert (await service.plan(AB, request)).refused == (why,)


async def test_a_cancel_ends_the_driver_first_and_a_dry_run_does_not() -> None:
    async with stage() as (_, service):
        with pytest.raises(ConflictError, match="no unfinished"):
            await service.cancel(AB, THERE, dry_run=False)
        await service.start(AB, REQUEST)
        await service.cancel(AB, THERE, dry_run=True)
        assert service.driven
        view = await service.cancel(AB, THERE, dry_run=False)
        assert (bool(service.driven), step_of(view)) == (False, Step.CANCELLED)


async def test_one_that_was_begun_goes_on_without_another_plan() -> None:
    async with stage() as (commands, service):
        commands.record = Failover(id="f", flow="A->B", kind=THERE, step=Step.DRAIN, run=3)
        commands.planned = replace(commands.planned, would_lose=9)
        await service.start(AB, REQUEST)
        assert len(commands.requests) == 1


async def test_one_that_was_begun_is_checked_again_where_it_is_to_go_on_without_its_source() -> (
    None
):
    async with stage() as (commands, service):
        commands.record = Failover(id="f", flow="A->B", kind=THERE, step=Step.DRAIN, run=3)
        request = replace(REQUEST, unplanned=True)
        with pytest.raises(ConflictError, match="the source answers"):
            await service.start(AB, request)
        assert (await service.plan(AB, request)).refused
        commands.planned = replace(commands.planned, source_reachable=False, would_lose=9)
        with pytest.raises(ConflictError, match="--accept-loss 9"):
            await service.start(AB, request)
        await service.start(AB, replace(request, accept_loss=9))
        assert len(commands.requests) == 1


async def test_clients_that_were_moved_already_are_no_question_of_loss() -> None:
    plan = replace(PLAN, standing="clients of A->B were moved already", would_lose=50)
    assert plan.refusals(REQUEST) == (plan.standing,)


async def test_drivers_end_with_the_worker() -> None:
    async with stage() as (_, service):
        await service.start(AB, REQUEST)
        await service.close()
        assert not service.driven


class Paper:
    """An application that answers what a test says."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str, str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        who = scope[CALLER]
        assert who.operator
        self.asked.append((who.name, request.method, request.url.path, await request.body()))
        status, body = self._answers.pop(0)
        await JSONResponse(body, status)(scope, receive, send)


async def test_a_worker_asks_itself_as_an_operator() -> None:
    stopped = {"flow": "A->B", "state": "STOPPED", "enabled": True}
    app = Paper((200, [stopped]), (200, [stopped]), (200, {}), (200, []), (201, {}), (200, {}))
    flows = RestFlows(OwnApi(lambda: app))
    now = await flows.now(AB)
    assert now is not None
    assert now.is_stopped
    await flows.start(AB, {})
    await flows.start(AB, {"topics": "orders"})
    await flows.stop(AB)
    assert [(method, path) for _, method, path, _ in app.asked] == [
        ("GET", "/flows"),
        ("GET", "/flows"),
        ("POST", "/flows/A->B/resume"),
        ("GET", "/flows"),
        ("POST", "/flows"),
        ("POST", "/flows/A->B/stop"),
    ]
    assert b'"topics":"orders"' in app.asked[4][3].replace(b" ", b"")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, {"message": "a rebalance"}), RetriableError),
        ((503, {"message": "starting"}), RetriableError),
        ((400, {"message": "wrong"}), FatalError),
        ((200, {"not": "a list"}), ProtocolError),
    ],
)
async def test_refusals_of_the_own_api_say_whether_to_ask_again(
    answer: tuple[int, Any], error: type[Exception]
) -> None:
    app = Paper(answer)
    with pytest.raises(error):
        await OwnApi(lambda: app).rows("/flows")


async def test_lag_that_is_not_known_is_no_error() -> None:
    app = Paper((503, {}), (200, [{"topic": "t", "lag_records": 4}, {"topic": "u"}]))
    flows = RestFlows(OwnApi(lambda: app))
    assert await flows.lag(AB) == {}
    assert await flows.lag(AB) == {"t": 4}
