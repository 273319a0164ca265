"""Backfills over REST: what ``/backfills`` answers, and the commands that it runs beside the
worker.

Flow: ``POST /backfills`` -> ``mm2py backfill plan`` in a child process -> ``Order`` in the backfill
topic -> ``:start`` -> the same program drives it -> job and leases in the topic, which every worker
of the flow follows -> views. Pause and resume are written by the leader itself. What a child that
failed wrote last is in its order, so any worker shows it.
"""

import asyncio
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast, final

from typing_extensions import TypedDict

from mm2py.clock import Clock
from mm2py.errors import Mm2pyError
from mm2py.flows.graph import FlowNode
from mm2py.mirror.backfills import NO_DRIVER, Job, JobKind, Lease, Order, Wanted, Wish, new_id
from mm2py.observability.logging import SecretMask, hide_userinfo
from mm2py.runtime.errors import (
    BadRequestError,
    ConflictError,
    ForwardError,
    HerderError,
    NotFoundError,
)
from mm2py.storage.backfill_store import BackfillStore, describe_unfinished
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_report import (
    GONE,
    PLANNED,
    STARTING,
    PartitionReport,
    cause_of,
    report,
)
from mm2py_jobs.job_views import STREAM, JobView, copied_so_far, kind_of, progress_view
from mm2py_jobs.routes import JobRuns

log = logging.getLogger(__name__)

OK: Final = 0
USAGE: Final = 2
REFUSED: Final = 3
"""Exit codes of ``mm2py backfill``."""

FAILED: Final = "FAILED"
_LOCAL: Final = re.compile(r"local(?:\[[0-9*, ]*\])?")

Nodes = Mapping[FlowName, FlowNode]


BackfillSummary = TypedDict(
    "BackfillSummary",
    {
        "flow": str,
        "kind": str,
        "id": str,
        "state": str,
        "wanted": str,
        "topics": str,
        "from": str,
        "to": str,
        "rate_limit": int | None,
        "master": str | None,
        "by": str,
        "worker": str,
        "started_ms": int | None,
        "records": int,
        "bytes": int,
        "offsets_left": int | None,
        "partitions_by_state": dict[str, int],
        "cause": str,
    },
)
"""One backfill, restore or stream (``kind``); a stream has no offsets left, as it has no end.
``rate_limit``, ``master``, ``by`` and ``worker`` (whose child process drives it) are those of one
that was begun over REST."""


class BackfillView(BackfillSummary):
    """With its partitions, and the last lines of a driver that failed."""

    partitions: list[PartitionReport]
    log: list[str]


class PlannedBackfill(BackfillView):
    """With what it would copy, as ``mm2py backfill plan -o json`` prints it."""

    plan: dict[str, object]


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended: exit code (negative: a signal), standard output, the last lines of
    standard error."""

    code: int
    out: str
    log: tuple[str, ...]

    @property
    def cause(self) -> str:
        """Its own last word, what refused it, or how the process ended."""
        if self.code < 0:
            return f"the process was ended by signal {-self.code}"
        if self.code == REFUSED and self.out:
            rows = cast("list[Mapping[str, object]]", json.loads(self.out)["refused"])
            return "; ".join(_refused(row) for row in rows)
        errors = [line.removeprefix("mm2py: ") for line in self.log if line.startswith("mm2py: ")]
        return errors[-1] if errors else f"the process ended with exit code {self.code}"


class BackfillCommands(Protocol):
    """Runs ``mm2py backfill`` beside this process; each method returns when the command has
    ended."""

    async def missing(self, master: str) -> str: ...
    async def plan(self, flow: FlowName, order: Order) -> CommandEnd: ...
    async def run(self, flow: FlowName, order: Order) -> CommandEnd: ...
    async def cancel(self, flow: FlowName) -> CommandEnd: ...
    def stop(self, flow: FlowName) -> None: ...


@dataclass(frozen=True, slots=True)
class _ShownJob:
    """What is known of one backfill: what was planned over REST, its job, or both."""

    flow: FlowName
    order: Order | None
    job: Job | None
    leases: Collection[Lease] = ()
    wanted: Wanted = Wanted.RUN

    @property
    def id(self) -> str:
        known = self.job or self.order
        assert known is not None
        return known.id

    @property
    def kind(self) -> str:
        return kind_of(self.job)


@final
class BackfillService:
    """Backfills of the flows of this process.

    Args:
        commands: runs the program.
        masters: Spark masters that may be named over REST, beside those of this machine.
        mask: hides secrets of what commands wrote.
    """

    def __init__(
        self,
        commands: BackfillCommands,
        *,
        masters: Collection[str],
        mask: SecretMask,
        clock: Clock,
    ) -> None:
        self._commands, self._masters = commands, masters
        self._mask, self._clock = mask, clock
        self._driving, self._cancelling = JobRuns[FlowName](), JobRuns[FlowName]()
        self._runs_before: dict[FlowName, int] = {}
        """Number of the run before that of the driver that was started last."""
        self._planning, self._starting = asyncio.Lock(), asyncio.Lock()

    # ---- reading, on any worker

    def all(self, nodes: Nodes) -> list[BackfillSummary]:
        """Return what was planned last and the newest backfill of each flow."""
        return [
            self._summary(nodes, entry) for flow in sorted(nodes) for entry in _entries(nodes, flow)
        ]

    def jobs(self, nodes: Nodes) -> list[JobView]:
        """Return the jobs of each flow: what ``all`` has, then those without a claim, the newest
        first."""
        found: list[JobView] = []
        for flow in sorted(nodes):
            found += (self._job(nodes, entry) for entry in _entries(nodes, flow))
            store = nodes[flow].herder.backfills
            if store is not None and store.live:
                found += (progress_view(str(flow), it, self._hidden) for it in store.progress)
        return found

    def flow_of(self, nodes: Nodes, identifier: str) -> FlowName:
        """Return the flow of a backfill; ``NotFoundError``: no flow has such a one; a flow keeps
        its newest alone."""
        for flow in nodes:
            if any(entry.id == identifier for entry in _entries(nodes, flow)):
                return flow
        raise NotFoundError(f"No backfill {identifier}")

    def show(self, nodes: Nodes, flow: FlowName, identifier: str) -> BackfillView:
        entry = _entry(nodes, flow, identifier)
        shown = [] if entry.job is None else report(entry.job, entry.leases)["partitions"]
        lines = () if entry.order is None else entry.order.log
        return {**self._summary(nodes, entry), "partitions": shown, "log": list(lines)}

    # ---- changing, on the leader

    async def plan(self, nodes: Nodes, flow: FlowName, order: Order) -> PlannedBackfill:
        """Plan a backfill, and keep the order; ``order`` has no id yet.

        Raises:
            ForwardError: another worker leads the flow.
            ConflictError: one is unfinished, a check refuses it, or Spark cannot be used here.
            BadRequestError: the Spark master may not be named over REST.
            HerderError: a cluster does not answer.
        """
        store = _store(nodes, flow)
        nodes[flow].herder.member_urls()
        self._refuse_unfinished(store)
        await self._refuse_without_spark(order.master)
        now_ms = self._clock.now_ms()
        order = replace(order, id=new_id(now_ms), at_ms=now_ms)
        async with self._planning:
            ended = await self._commands.plan(flow, order)
        if ended.code != OK:
            raise self._refusal(ended)
        self._refuse_unfinished(store)
        await _post(store, order)
        plan = cast("dict[str, object]", json.loads(ended.out))
        return {**self.show(nodes, flow, order.id), "plan": plan}

    async def start(self, nodes: Nodes, flow: FlowName, identifier: str, by: str) -> BackfillView:
        """Start a planned backfill, or one whose driver is gone.

        Raises:
            ForwardError: another worker leads the flow.
            ConflictError: it runs, it is over, or Spark cannot be used here.
        """
        store = _store(nodes, flow)
        herder = nodes[flow].herder
        async with self._starting:
            herder.member_urls()
            entry = _entry(nodes, flow, identifier)
            self._refuse_start(store, entry)
            order = entry.order or _order_of(entry.job)
            await self._refuse_without_spark(order.master)
            now_ms, worker = self._clock.now_ms(), herder.worker_id
            order = replace(order, worker=worker, by=by, at_ms=now_ms, cause="", log=())
            await _post(store, order)
            self._runs_before[flow] = 0 if entry.job is None else entry.job.run
            self._driving.start(
                flow, self._drive(flow, store, order), name=f"backfill {identifier} of {flow}"
            )
        return self.show(nodes, flow, identifier)

    async def request(
        self, nodes: Nodes, flow: FlowName, identifier: str, wanted: Wanted
    ) -> BackfillView:
        """Pause, resume or cancel a backfill; its state follows within seconds.

        Raises:
            ForwardError: another worker leads the flow.
            ConflictError: it is over, was not started, or has no driver that could be paused or
                resumed.
        """
        store = _store(nodes, flow)
        nodes[flow].herder.member_urls()
        job = _entry(nodes, flow, identifier).job
        if job is None:
            if wanted is not Wanted.CANCEL or flow not in self._driving:
                raise ConflictError(f"backfill {identifier} was not started")
            self._commands.stop(flow)
        elif job.state.is_over:
            raise ConflictError(f"backfill {identifier} is {job.state.value}")
        elif job.kind is JobKind.STREAM:
            raise ConflictError(describe_unfinished(job, str(flow)))
        elif wanted is not Wanted.CANCEL and not job.state.is_copied:
            raise ConflictError(f"backfill {identifier}: {job.cause or NO_DRIVER}")
        else:
            await store.post([Wish(job=identifier, wanted=wanted)])
            await store.refresh()
            if wanted is Wanted.CANCEL and flow not in self._cancelling:
                self._cancelling.start(
                    flow, self._cancel(flow, identifier), name=f"cancel of backfill {identifier}"
                )
        return self.show(nodes, flow, identifier)

    # ---- inside

    async def _drive(self, flow: FlowName, store: BackfillStore, order: Order) -> None:
        """Run the driver to its end; note why it failed."""
        ended = await self._commands.run(flow, order)
        try:
            await self._note_end(store, order, ended)
        except Mm2pyError as error:
            log.warning("the end of backfill %s cannot be noted cause=%s", order.id, error)

    async def _note_end(self, store: BackfillStore, order: Order, ended: CommandEnd) -> None:
        if store.live:
            await store.refresh()
        job = store.job
        if job is not None and job.id == order.id and job.state.is_over:
            log.info("backfill ended id=%s state=%s", order.id, job.state.value)
            return
        cause = self._mask.apply(ended.cause)
        log.warning("driver of a backfill ended before its time id=%s cause=%s", order.id, cause)
        # Where the worker stops the driver was stopped in order, which its job shows.
        if store.live and store.order is not None and store.order.id == order.id:
            lines = tuple(self._mask.apply(line) for line in ended.log)
            await _post(store, replace(order, cause=cause, log=lines))

    async def _cancel(self, flow: FlowName, identifier: str) -> None:
        """Let the command wait for the driver, or do without it."""
        ended = await self._commands.cancel(flow)
        if ended.code not in (OK, REFUSED):
            cause = self._mask.apply(ended.cause)
            log.warning("backfill is not cancelled flow=%s id=%s cause=%s", flow, identifier, cause)

    def _refuse_unfinished(self, store: BackfillStore) -> None:
        job = store.job
        if job is not None and not job.state.is_over:
            raise ConflictError(
                f"backfill {job.id} is unfinished: start it again, or cancel it, before another "
                "one is planned"
            )

    def _refuse_start(self, store: BackfillStore, entry: _ShownJob) -> None:
        job = entry.job
        if job is not None and job.state.is_over:
            raise ConflictError(f"backfill {job.id} is {job.state.value}: plan another one")
        if job is not None and entry.kind != "backfill":
            raise ConflictError(describe_unfinished(job, str(entry.flow)))
        if entry.flow in self._driving:
            raise ConflictError(f"backfill {entry.id} is starting, running or just ending")
        if job is None:
            self._refuse_unfinished(store)
        elif job.state.is_copied:
            raise ConflictError(f"backfill {job.id} is {job.state.value}")

    async def _refuse_without_spark(self, master: str) -> None:
        if master and not _LOCAL.fullmatch(master) and master not in self._masters:
            raise BadRequestError(
                f"body.master: {master} may not be named over REST, its tasks get the flow's "
                "credentials; add it to rest.spark.masters in the worker's file"
            )
        missing = await self._commands.missing(master)
        if missing:
            raise ConflictError(missing)

    def _refusal(self, ended: CommandEnd) -> HerderError:
        """Return why a plan was not made, as an answer."""
        text = self._mask.apply(ended.cause)
        if ended.code == REFUSED:
            return ConflictError(text)
        return BadRequestError(text) if ended.code == USAGE else HerderError(text, status=503)

    def _summary(self, nodes: Nodes, entry: _ShownJob) -> BackfillSummary:
        order, job = entry.order, entry.job
        state, cause = self._state(nodes, entry)
        counts: dict[str, int] = {}
        for lease in entry.leases:
            counts[lease.state.value] = counts.get(lease.state.value, 0) + 1
        asked = job or order
        assert asked is not None
        return {
            "flow": str(entry.flow),
            "kind": entry.kind,
            "id": entry.id,
            "state": state,
            "wanted": entry.wanted.value,
            "topics": asked.topics,
            "from": asked.start,
            "to": asked.end,
            "rate_limit": None if order is None else order.rate_limit,
            "master": None if order is None else order.master,
            "by": "" if order is None else order.by,
            "worker": "" if order is None else order.worker,
            "started_ms": None if job is None else job.started_ms,
            "records": sum(it.records for it in entry.leases),
            "bytes": sum(it.bytes for it in entry.leases),
            "offsets_left": None if entry.kind == STREAM else sum(it.left for it in entry.leases),
            "partitions_by_state": counts,
            "cause": cause,
        }

    def _job(self, nodes: Nodes, entry: _ShownJob) -> JobView:
        shown = self._summary(nodes, entry)
        done, total, lag = copied_so_far(entry.leases, entry.kind)
        archive = "" if entry.job is None else entry.job.archive
        begins = f"from {shown['from'] or 'earliest'} to {shown['to'] or 'now'}"
        return {
            "flow": shown["flow"],
            "kind": entry.kind,
            "id": entry.id,
            "state": shown["state"],
            "wanted": shown["wanted"],
            "topics": shown["topics"],
            "range": ""
            if entry.kind == STREAM
            else self._hidden(f"of {archive}")
            if archive
            else begins,
            "by": shown["by"],
            "started_ms": shown["started_ms"],
            "at_ms": None,
            "done": done,
            "total": total,
            "lag": lag,
            "records": shown["records"],
            "bytes": shown["bytes"],
            "partitions_by_state": shown["partitions_by_state"],
            "equal": None,
            "differences": None,
            "not_compared": None,
            "result": "",
            "cause": shown["cause"],
        }

    def _hidden(self, text: str) -> str:
        # Which credentials a command's folder holds this process does not know; records of older
        # versions have them.
        return self._mask.apply(hide_userinfo(text))

    def _state(self, nodes: Nodes, entry: _ShownJob) -> tuple[str, str]:
        order, job = entry.order, entry.job
        of_process = "" if order is None else order.cause
        driven = entry.flow in self._driving
        if job is None:
            assert order is not None
            if not order.worker:
                return PLANNED, ""
            gone = not driven and self._is_gone(nodes[entry.flow], order.worker)
            cause = of_process or (GONE if gone else "")
            return (FAILED if cause else STARTING), cause
        if job.state.value == FAILED and driven and job.run == self._runs_before[entry.flow]:
            return STARTING, ""
        return job.state.value, self._hidden(cause_of(job, order, entry.leases))

    def _is_gone(self, node: FlowNode, worker: str) -> bool:
        if worker == node.herder.worker_id:
            return True  # this one, which does not drive it
        try:
            members = node.herder.member_urls()
        except (ForwardError, HerderError):
            return False  # the leader knows
        return not any(worker in url for url in members)


def _entries(nodes: Nodes, flow: FlowName) -> Sequence[_ShownJob]:
    store = nodes[flow].herder.backfills
    if store is None or not store.live:
        return ()
    job, order = store.shown_job, store.order
    entries: list[_ShownJob] = []
    if order is not None and (job is None or job.id != order.id):
        entries.append(_ShownJob(flow, order, None))
    if job is not None:
        same = order if order is not None and order.id == job.id else None
        entries.append(_ShownJob(flow, same, job, list(store.leases.values()), store.wanted))
    return entries


def _entry(nodes: Nodes, flow: FlowName, identifier: str) -> _ShownJob:
    for entry in _entries(nodes, flow):
        if entry.id == identifier:
            return entry
    raise NotFoundError(f"No backfill {identifier}")


def _store(nodes: Nodes, flow: FlowName) -> BackfillStore:
    """Return the backfill topic of a flow; ``HerderError`` (503) while it is not read."""
    store = nodes[flow].herder.backfills
    if store is None or not store.live:
        raise HerderError(
            f"The backfill topic of flow {flow} is not read: the flow is starting, or may not "
            "create it (see the log)",
            status=503,
        )
    return store


async def _post(store: BackfillStore, order: Order) -> None:
    await store.post([order])
    await store.refresh()


def _order_of(job: Job | None) -> Order:
    """Return the order of a job that was begun without REST."""
    assert job is not None
    return Order(id=job.id, topics=job.topics, start=job.start, end=job.end)


def _refused(row: Mapping[str, object]) -> str:
    number = row["partition"]
    where = f"{row['topic']}-{number}" if isinstance(number, int) and number >= 0 else row["topic"]
    return f"{where}: {row['reason']}"
