"""``/flows`` and ``/lag``: the product's own API, described at ``/openapi.json``.

Flow: request -> ``FlowService`` -> views. Numbers of all members and every change are the leader's:
single flows are forwarded by the application; lists ask each flow's leader and name who did not
answer.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, final

from fastapi import APIRouter, Depends, Header, Path, Query
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from mm2py.flows.changes import ChangeRequest, FlowChanges
from mm2py.flows.service import FlowService
from mm2py.flows.view_models import (
    ChangeResult,
    ClusterView,
    ConfigView,
    Direction,
    FlowView,
    ForecastView,
    GroupView,
    HistoryView,
    LedgerView,
    PartitionView,
    SampleView,
    TopicView,
    TranslationView,
)
from mm2py.rest.answers import UNPROCESSABLE
from mm2py.rest.bodies import check_media_types, read_json, refuse_unknown
from mm2py.rest.etags import REVISION_TAG, revision_of, revision_tag
from mm2py.rest.flow_models import ErrorBody, FlowCreation, FlowPatch, body_schema, parsed_body
from mm2py.rest.parts import SIGNED_FLOW, Forwarding, signed_in
from mm2py.rest.raw_path import SLASH, plain_segment
from mm2py.runtime.errors import BadRequestError, ForwardError, HerderError, NotFoundError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import TOPIC_NAME, FlowName, TaskId, TopicPartition

OK: Final = 200
CREATED: Final = 201
MOST_ROWS: Final = 100_000
LEADER_S: Final = 3.0
"""How long another flow's leader may take for its part of a list."""

_ERRORS: Final = {
    400: "the request is wrong, or the change would be unsafe",
    403: "the caller may only read",
    404: "no such flow or connector",
    409: "not now: a rebalance is under way, no leader is known, or the flow is stopped",
    412: "If-Match names another revision than the flow's",
    415: "the body is not JSON",
    406: "the answer is JSON",
    422: "the request does not fit this description",
    500: "the worker failed",
    503: "a cluster or the leader is unreachable, or the worker is still starting (Retry-After)",
}
_ERROR_SCHEMA: Final = {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}
RESPONSES: Final[dict[int | str, dict[str, object]]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, text in _ERRORS.items()
}
"""Error responses of each of our own endpoints. A reference: FastAPI would build a validator per
endpoint and status, at each start."""


FlowPath = Annotated[str, Path(description="the flow, `A->B`", examples=["A->B"])]
DryRun = Annotated[bool, Query(description="only say what would change")]
# JavaScript's numbers are exact up to 2^53 - 1.
Revision = Annotated[
    int, Query(ge=0, le=(1 << 53) - 1, description="revision of the history; 0 is the file")
]
Then = Annotated[
    int | None, Query(ge=0, le=(1 << 53) - 1, description="as it was after this revision")
]
Rows = Annotated[int, Query(ge=1, le=MOST_ROWS, description="so many rows at most")]
GroupRows = Annotated[int, Query(ge=1, le=10_000, description="so many groups at most, by name")]
EventRows = Annotated[
    int, Query(ge=1, le=10_000, description="so many of the newest events at most")
]
_TOPIC_NAME: Final = f"^{TOPIC_NAME.pattern}$"


OneTopic = Annotated[str | None, Query(pattern=_TOPIC_NAME, description="one source topic only")]


def router(service: FlowService, changes: FlowChanges, forward: Forwarding) -> APIRouter:
    """Return the routes; ``forward`` asks other flows' leaders for their part of a list."""
    routes = APIRouter(
        tags=["flows"],
        dependencies=[Depends(check_media_types), Depends(refuse_unknown)],
        responses=RESPONSES,
    )
    reads, changing = _Reads(service, forward), _Changes(service, changes, forward)
    named: dict[int | str, dict[str, object]] = {
        500: {**RESPONSES[500], "model": ErrorBody}  # one names the schema that all refer to
    }
    routes.add_api_route("/flows", reads.flows, methods=["GET"], responses=named)
    for path, get in (
        ("/flows/{flow}", reads.flow),
        ("/flows/{flow}/partitions", reads.partitions),
        ("/flows/{flow}/topics", reads.topics),
        ("/flows/{flow}/lag", reads.topics),
        ("/flows/{flow}/forecast", reads.forecast),
        ("/flows/{flow}/samples", reads.samples),
        ("/flows/{flow}/history", reads.history),
        ("/flows/{flow}/config", reads.config),
        ("/flows/{flow}/ledger", reads.ledger),
        ("/flows/{flow}/groups", reads.groups),
        ("/flows/{flow}/groups/{group}", reads.group),
        ("/flows/{flow}/translate", reads.translate),
        ("/lag", reads.all_lag),
        ("/clusters", reads.clusters),
    ):
        routes.add_api_route(path, get, methods=["GET"])
    routes.add_api_route(
        "/flows",
        changing.create,
        methods=["POST"],
        status_code=CREATED,
        openapi_extra=body_schema(FlowCreation),
        responses={OK: {"model": ChangeResult, "description": "a dry run: nothing was done"}},
    )
    routes.add_api_route(
        "/flows/{flow}", changing.patch, methods=["PATCH"], openapi_extra=body_schema(FlowPatch)
    )
    routes.add_api_route("/flows/{flow}", changing.delete, methods=["DELETE"])
    for action, post in (
        ("pause", changing.pause),
        ("resume", changing.resume),
        ("stop", changing.stop),
        ("restart", changing.restart),
        ("rollback", changing.rollback),
    ):
        routes.add_api_route(f"/flows/{{flow}}/{action}", post, methods=["POST"])
    return routes


def visible_flows(service: FlowService, request: Request) -> Sequence[FlowName]:
    """Return the flows a request may be about: a worker's signature is for its own flow alone."""
    flows = sorted(service.flows())
    if SIGNED_FLOW in request.scope:
        return [flow for flow in flows if flow == request.scope[SIGNED_FLOW]]
    return flows


def named_flow(service: FlowService, request: Request, text: str) -> FlowName:
    """Return the flow of a path, and let the application forward for it."""
    flow = service.find(plain_segment(text))
    if flow not in visible_flows(service, request):
        raise NotFoundError(f"No flow {flow}")
    request.state.herder = service.flows()[flow].herder
    return flow


@final
class _Reads:
    """Everything that changes nothing."""

    def __init__(self, service: FlowService, forward: Forwarding) -> None:
        self._service, self._forward = service, forward

    async def flows(self, request: Request) -> list[FlowView]:
        """List all flows with state, lag, rates and what is wrong."""
        flows = visible_flows(self._service, request)
        return await asyncio.gather(*(self._described(request, flow) for flow in flows))

    async def flow(self, request: Request, response: Response, flow: FlowPath) -> FlowView:
        """Describe one flow: state, workers, lag, rates, connectors, tasks, errors."""
        name = named_flow(self._service, request, flow)
        view = await self._described(request, name, alone=True)
        response.headers["ETag"] = revision_tag(view.revision)
        return view

    async def _described(
        self, request: Request, flow: FlowName, *, alone: bool = False
    ) -> FlowView:
        """Return what the flow's leader knows, or what is known here, and why no more."""
        try:
            return await self._service.describe(flow)
        except ForwardError as error:
            # A rebalance is over soon and the next request gets all; a worker has its own answer.
            if alone and (error.url is None or SIGNED_FLOW in request.scope):
                raise
            try:
                return FlowView.model_validate_json(await self._ask(request, error, flow, ""))
            except (HerderError, TimeoutError, ValueError) as failure:
                return self._service.describe_here(flow, error.url, _why(failure))

    async def partitions(
        self, request: Request, flow: FlowPath, topic: OneTopic = None
    ) -> list[PartitionView]:
        """List every source partition of a flow, or those of one topic."""
        return await self._service.partitions(named_flow(self._service, request, flow), topic)

    async def topics(self, request: Request, flow: FlowPath) -> list[TopicView]:
        """List the source topics of a flow with lag and rates, the oldest first."""
        return await self._service.topics(named_flow(self._service, request, flow))

    async def forecast(self, request: Request, flow: FlowPath) -> list[ForecastView]:
        """List when the source's retention overtakes which partitions, the soonest first; those
        that keep up are not in it."""
        return await self._service.forecast(named_flow(self._service, request, flow))

    async def samples(self, request: Request, flow: FlowPath) -> list[SampleView]:
        """List lag and rates of this worker's part of a flow over the last hour, each 15 s, the
        oldest first."""
        return self._service.samples(named_flow(self._service, request, flow))

    async def history(self, request: Request, flow: FlowPath) -> list[HistoryView]:
        """List who changed what of a flow, newest first."""
        return self._service.history(named_flow(self._service, request, flow))

    async def config(
        self, request: Request, response: Response, flow: FlowPath, *, revision: Then = None
    ) -> list[ConfigView]:
        """List every property in force, the file's value, and who changed it; or what was after a
        revision."""
        name = named_flow(self._service, request, flow)
        if revision is None:
            response.headers["ETag"] = revision_tag(
                self._service.flows()[name].overrides.state.revision
            )
        return self._service.config(name, revision)

    async def ledger(self, request: Request, flow: FlowPath, top: EventRows = 1_000) -> LedgerView:
        """Show what a flow lost, stopped at or may have doubled, the newest first; read from its
        target."""
        return await self._service.ledger(named_flow(self._service, request, flow), top)

    async def groups(
        self, request: Request, flow: FlowPath, top: GroupRows = 1_000
    ) -> list[GroupView]:
        """List the chosen groups of the source: what each would read again or skip on the target,
        and why."""
        return await self._service.groups(named_flow(self._service, request, flow), top)

    async def group(self, request: Request, flow: FlowPath, group: str) -> GroupView:
        """Describe one group of the source by partition."""
        name = named_flow(self._service, request, flow)
        return await self._service.group(name, plain_segment(group))

    async def translate(
        self,
        request: Request,
        flow: FlowPath,
        topic: Annotated[str, Query(pattern=_TOPIC_NAME, description="the topic of the offset")],
        partition: Annotated[int, Query(ge=0, le=(1 << 31) - 1)],
        offset: Annotated[int, Query(ge=0, le=(1 << 63) - 1)],
        direction: Annotated[
            Direction, Query(description="`to-source`: topic and offset are those of the copy")
        ] = Direction.TO_TARGET,
    ) -> TranslationView:
        """Translate one offset exactly: where its record is on the other cluster, or why it is not
        there."""
        name = named_flow(self._service, request, flow)
        where = TopicPartition(topic, partition)
        return await self._service.translate(name, where, offset, direction)

    async def clusters(self) -> list[ClusterView]:
        """List the clusters of the worker's file, and between which of them a flow may run here."""
        return self._service.clusters()

    async def all_lag(self, request: Request, top: Rows = MOST_ROWS) -> list[TopicView]:
        """List lag and rates of all flows by topic, the oldest first."""

        async def one(flow: FlowName) -> list[TopicView]:
            try:
                return await self._service.topics(flow)
            except ForwardError as error:
                try:
                    answer = await self._ask(request, error, flow, "/lag")
                    return _topic_views().validate_json(answer)
                except (HerderError, TimeoutError, ValueError):
                    return self._service.topics_here(flow)

        parts = await asyncio.gather(*(one(flow) for flow in visible_flows(self._service, request)))
        rows = [row for part in parts for row in part]
        rows.sort(key=lambda it: (-(it.lag_ms or 0), -(it.lag_records or 0), it.flow, it.topic))
        return rows[:top]

    async def _ask(self, request: Request, error: ForwardError, flow: FlowName, path: str) -> bytes:
        """Return what the leader of ``flow`` answers to ``/flows/{flow}{path}``."""
        # A request of its own: the caller's method and query are not for the leader.
        scope = {
            **request.scope,
            "method": "GET",
            "path": f"/flows/{str(flow).replace('/', SLASH)}{path}",
            "query_string": b"",
        }
        herder = self._service.flows()[flow].herder
        async with asyncio.timeout(LEADER_S):
            answer = await self._forward.send(error, Request(scope, _no_body), herder)
        return bytes(answer.body)


@dataclass(frozen=True, slots=True)
class _Given:
    """What every change of a flow is given: its path, whether it is a dry run, the revision."""

    request: Request
    flow: str
    dry_run: bool
    revision: int | None


def _given(
    request: Request,
    flow: FlowPath,
    *,
    dry_run: DryRun = False,
    if_match: Annotated[
        str | None,
        Header(pattern=REVISION_TAG, description="ETag of the flow: 412 if it was changed since"),
    ] = None,
) -> _Given:
    return _Given(request, flow, dry_run, revision_of(if_match))


def _part(
    topic: OneTopic = None,
    partition: Annotated[
        int | None, Query(ge=0, le=(1 << 31) - 1, description="one partition of `topic` only")
    ] = None,
) -> TopicPartition | None:
    if topic is None and partition is not None:
        raise HerderError("query.partition: topic is needed too", status=UNPROCESSABLE)
    return None if topic is None else TopicPartition(topic, -1 if partition is None else partition)


Given = Annotated[_Given, Depends(_given)]
Part = Annotated[TopicPartition | None, Depends(_part)]


@final
class _Changes:
    """Everything that changes a flow; the leader does it."""

    def __init__(self, service: FlowService, changes: FlowChanges, forward: Forwarding) -> None:
        self._service, self._changes, self._forward = service, changes, forward

    async def create(
        self, request: Request, response: Response, *, dry_run: DryRun = False
    ) -> ChangeResult:
        """Add a flow between two clusters of the properties file.

        It runs on all workers and survives their restart. A flow of the file that sends only
        heartbeats, or that was deleted, begins to copy; positions that are there count.
        """
        body = await read_json(request, numbers_as_written=False)
        creation = parsed_body(FlowCreation, body)
        flow = self._changes.pair(creation.source, creation.target)
        if request.scope.get(SIGNED_FLOW, flow) != flow:
            raise NotFoundError(f"No flow {flow}")

        def opened(herder: Herder) -> None:
            request.state.herder = herder

        asked = ChangeRequest(flow, signed_in(request), dry_run)
        result = await self._changes.create(asked, creation.patches(), opened)
        response.status_code = OK if dry_run else CREATED
        return result

    async def delete(self, given: Given, part: Part) -> ChangeResult:
        """Delete a flow, or take one topic out of it; positions stay."""
        if part is None:
            return await self._changes.delete(self._asked(given))
        if part.partition >= 0:
            raise BadRequestError(
                f"Partition {part} cannot be taken out of a flow alone; pause it instead"
            )
        return await self._changes.remove_topic(self._asked(given), part.topic)

    async def patch(self, given: Given) -> ChangeResult:
        """Change topics, excludes, rates or any other property of a flow's connectors.

        The change is kept in Kafka: it survives a restart of all nodes and wins over the properties
        file.
        """
        body = await read_json(given.request, numbers_as_written=False)
        patches = parsed_body(FlowPatch, body).patches()
        if not any(patches.values()):
            raise HerderError("body: nothing is to be changed", status=UNPROCESSABLE)
        return await self._changes.patch(self._asked(given), patches)

    async def rollback(self, given: Given, revision: Revision) -> ChangeResult:
        """Make properties and pauses of topics what they were after a revision of the history; 0
        is the file."""
        return await self._changes.rollback(self._asked(given), revision)

    async def pause(self, given: Given, part: Part) -> ChangeResult:
        """Pause a flow, one topic or one partition; positions stay."""
        return await self._set(given, "pause", part)

    async def stop(self, given: Given, part: Part) -> ChangeResult:
        """Stop a flow: its tasks end, positions stay. One topic or partition is held as if
        paused."""
        return await self._set(given, "stop", part)

    async def resume(
        self,
        given: Given,
        part: Part,
        *,
        all_topics: Annotated[
            bool, Query(description="also what was paused by topic or partition")
        ] = False,
    ) -> ChangeResult:
        """Resume a flow, one topic or one partition; `still_paused` names what was paused alone."""
        if part is not None and all_topics:
            raise HerderError("query.all_topics: not with topic", status=UNPROCESSABLE)
        return await self._set(given, "resume", part, all_topics=all_topics)

    async def restart(
        self,
        given: Given,
        part: Part,
        *,
        only_failed: Annotated[
            bool, Query(description="only what has failed, and tasks of which a partition has")
        ] = False,
    ) -> ChangeResult:
        """Restart the connectors and tasks of a flow, or the tasks that have one topic or
        partition."""
        asked = self._asked(given)

        async def elsewhere(error: ForwardError, task: TaskId) -> None:
            await self._restart_there(given.request, asked.flow, error, task)

        if part is None:
            stuck = await self._service.stuck_tasks(asked.flow) if only_failed else ()
            return await self._changes.restart(
                asked, elsewhere, only_failed=only_failed, stuck=stuck
            )
        return await self._changes.restart_part(asked, part, elsewhere, only_failed=only_failed)

    def _asked(self, given: _Given) -> ChangeRequest:
        flow = named_flow(self._service, given.request, given.flow)
        return ChangeRequest(flow, signed_in(given.request), given.dry_run, given.revision)

    async def _set(
        self, given: _Given, action: str, part: TopicPartition | None, *, all_topics: bool = False
    ) -> ChangeResult:
        asked = self._asked(given)
        if part is None:
            return await self._changes.set_state(asked, action, all_topics=all_topics)
        return await self._changes.hold(asked, part, action)

    async def _restart_there(
        self, request: Request, flow: FlowName, error: ForwardError, task: TaskId
    ) -> None:
        """Ask the worker that owns a task, in Connect's dialect."""
        source, target, connector = (it.replace("/", SLASH) for it in (*flow, task.connector))
        path = f"/pairs/{source}/{target}/connectors/{connector}/tasks/{task.number}/restart"
        scope = {**request.scope, "method": "POST", "path": path, "query_string": b""}
        herder = self._service.flows()[flow].herder
        await self._forward.send(error, Request(scope, _no_body), herder)


def _why(failure: Exception) -> str:
    return failure.message if isinstance(failure, HerderError) else "no answer in time"


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


@cache
def _topic_views() -> TypeAdapter[list[TopicView]]:
    return TypeAdapter(list[TopicView])
