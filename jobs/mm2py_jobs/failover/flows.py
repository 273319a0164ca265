"""The flow and the flow back, as a failover reads, stops and starts them.

Flow: ``FailoverSides`` -> ``RestFlows`` -> ``/flows`` of a worker (``FlowsApi``), from outside or
of the own worker. If the source is unreachable, or no worker answers: ``stop_without_workers`` ->
target state STOPPED in ``mm2-configs.<source>.internal``, which any worker may write and which
workers read before they start a task.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.api.context import PartitionState
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_values
from mm2py.client.permit import UNLIMITED
from mm2py.clock import Clock
from mm2py.config.class_names import CHECKPOINT_NAME, SOURCE_NAME
from mm2py.errors import ConnectionFailedError, Mm2pyError
from mm2py.storage.connect_json import CONNECTOR, TargetPut, encode_config_record
from mm2py.types import FlowName, State, TargetState, TopicPartition
from mm2py_jobs.open_flow import target_state
from mm2py_workers.answers import Row, count_of, flow_path, rows_of, text_of, texts_of
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.internal_stores import FlowTables, config_topic, store_producer

log = logging.getLogger(__name__)

WAITING: Final = "WAITING"
_RESTING: Final = (State.PAUSED, State.STOPPED)
_NOT_COPIED: Final = frozenset(PartitionState) - {PartitionState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowAnswer:
    """The current state of a flow; ``enabled``: it copies topics, not only heartbeats.

    ``failed`` counts its failed partitions and tasks; ``paused`` are topics and partitions;
    ``errors``: why it does not copy. ``failed_tasks``: as partitions name theirs.
    ``copied_topics``: how many have a partition that runs. ``source_rests``: its source connector
    is paused or stopped, which ``state`` does not say while another connector is worse off.
    ``others_go_on``: a connector is not stopped, which ``state`` does not say while the source
    connector is. ``moves_groups``: its checkpoint connector is there and not stopped; the source
    connector may have been deleted beside it.
    """

    state: str
    enabled: bool
    tasks: int
    failed: int = 0
    paused: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    failed_tasks: tuple[str, ...] = ()
    copied_topics: int = 0
    source_rests: bool = False
    others_go_on: bool = False
    moves_groups: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it copies or moves groups, now or later."""
        if self.is_waiting:
            return False
        if not (self.enabled or self.moves_groups):
            return True
        return self.state == State.STOPPED and not self.tasks and not self.others_go_on

    @property
    def is_waiting(self) -> bool:
        """Whether its workers wait for a cluster, and have not read its target state yet."""
        return self.state == WAITING

    @property
    def is_broken(self) -> bool:
        """Whether it failed as a whole, or its connector did before it had tasks."""
        return self.state == State.FAILED and not self.copied_topics

    @property
    def copies(self) -> bool:
        """Whether it copies, or will as soon as it can."""
        return self.enabled and not self.rests and not self.is_waiting

    @property
    def rests(self) -> bool:
        """Whether it, or its source connector alone, copies nothing until it is resumed."""
        return self.source_rests or self.state in _RESTING


class FlowsApi(Protocol):
    """The REST API of one worker; raises ``Mm2pyError`` if it refuses or does not answer."""

    async def rows(self, path: str) -> Sequence[Row]: ...
    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None: ...


@final
class NoWorkerApi:
    """The API where no worker is known: each request fails like one that is not answered."""

    def __init__(self, reason: Mm2pyError) -> None:
        self._error = ConnectionFailedError(reason.message, remedy=reason.remedy)

    async def rows(self, path: str) -> Sequence[Row]:
        del path
        raise self._error

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        del path, body, dry_run
        raise self._error


def flow_now(row: Row) -> FlowAnswer:
    """Return one flow of the answer to ``GET /flows``."""
    tasks = [
        (f"{text_of(connector, 'name')}-{count_of(task, 'number')}", text_of(task, "state"))
        for connector in rows_of(row, "connectors")
        for task in rows_of(connector, "tasks")
    ]
    failed_tasks = tuple(name for name, state in tasks if state == State.FAILED)
    active = {
        text_of(it, "name")
        for it in rows_of(row, "connectors")
        if text_of(it, "state") != State.STOPPED or rows_of(it, "tasks")
    }
    return FlowAnswer(
        state=text_of(row, "state"),
        enabled=row.get("enabled") is not False,
        tasks=len(tasks),
        failed=len(failed_tasks) + (count_of(row, "failed_partitions") or 0),
        failed_tasks=failed_tasks,
        copied_topics=count_of(row, "copied_topics") or 0,
        source_rests=any(
            text_of(it, "name") == SOURCE_NAME and text_of(it, "state") in _RESTING
            for it in rows_of(row, "connectors")
        ),
        others_go_on=bool(active),
        moves_groups=CHECKPOINT_NAME in active,
        paused=tuple(texts_of(row, "paused")),
        errors=tuple(
            f"{text_of(it, 'where')}: {text_of(it, 'message')}" for it in rows_of(row, "errors")
        ),
    )


@final
class RestFlows:
    """Flows over ``/flows``; raises ``RetriableError`` for "not now"."""

    def __init__(self, api: FlowsApi) -> None:
        self._api = api

    async def now(self, flow: FlowName) -> FlowAnswer | None:
        """Return the state of a flow, None if the worker does not know it."""
        rows = await self._api.rows("/flows")
        return next((flow_now(row) for row in rows if text_of(row, "flow") == str(flow)), None)

    async def lag(self, flow: FlowName) -> Mapping[str, int]:
        """Return the lag in records by topic, as its tasks know it; empty if no worker answers."""
        rows = await self._rows(flow, "lag") or ()
        lags = {text_of(row, "topic"): count_of(row, "lag_records") for row in rows}
        return {topic: lag for topic, lag in lags.items() if lag is not None}

    async def not_copied(
        self, flow: FlowName, failed_tasks: Collection[str] = ()
    ) -> Mapping[TopicPartition, str] | None:
        """Return the source partitions that are held or failed, or whose task failed, with state
        and cause; None if no worker answers."""
        rows = await self._rows(flow, "partitions")
        return (
            None
            if rows is None
            else {
                TopicPartition(text_of(row, "topic"), count_of(row, "partition") or 0): ": ".join(
                    it for it in (text_of(row, "state"), text_of(row, "cause")) if it
                )
                for row in rows
                if text_of(row, "state") in _NOT_COPIED or text_of(row, "task") in failed_tasks
            }
        )

    async def _rows(self, flow: FlowName, what: str) -> Sequence[Row] | None:
        try:
            return await self._api.rows(flow_path(str(flow), what))
        except Mm2pyError as error:
            log.info("%s not known flow=%s cause=%s", what, flow, error)
            return None

    async def stop(self, flow: FlowName, *, dry_run: bool = False) -> None:
        """Stop every connector of a flow; does not wait for its tasks."""
        await self._api.post(flow_path(str(flow), "stop"), dry_run=dry_run)

    async def start(
        self, flow: FlowName, config: Mapping[str, str], *, dry_run: bool = False
    ) -> None:
        """Create a flow that does not copy with ``config``, or resume it if it is stopped, as a dry
        run does with any other."""
        now = await self.now(flow)
        if now is None or not now.enabled:
            body = {"source": flow.source, "target": flow.target, "config": dict(config)}
            await self._api.post("/flows", body, dry_run=dry_run)
        elif now.rests or now.is_waiting or dry_run:
            await self._api.post(flow_path(str(flow), "resume"), dry_run=dry_run)


# ---- target states in Connect's config topic


async def stop_without_workers(target: Cluster, plan: FlowPlan, clock: Clock) -> None:
    """Write target state STOPPED for every connector of a flow; workers that start later read it.
    Returns after the acknowledgement. ``RetriableError``: the target does not answer."""
    topic = config_topic(plan.props, plan.worker)
    tables = FlowTables(
        target, store_producer(plan.props, plan.name), permit=UNLIMITED, clock=clock
    )
    table = tables.table(topic, follow=False, transactional=True)  # only written here
    try:
        await table.start(lambda _partition, _record: None)
        keys = {
            key.decode(errors="replace") for key in await newest_values(target, topic.name, clock)
        }
        names = {key.removeprefix(CONNECTOR) for key in keys if key.startswith(CONNECTOR)}
        puts = [TargetPut(it, TargetState.STOPPED) for it in sorted({*names, *plan.connectors})]
        await table.post([encode_config_record(put) for put in puts])
    finally:
        await table.stop()
        await tables.close()


async def stop_record(target: Cluster, plan: FlowPlan, clock: Clock) -> int:
    """Return the offset of the record that the flow's source connector is STOPPED by, -1 where it
    is not; read-only.

    Each stop has a record of its own: its offset shows whether the flow was resumed and stopped
    again since.

    Raises:
        RetriableError: the target does not answer.
    """
    state, offset = await target_state(plan, target, clock)
    return offset if state is TargetState.STOPPED else -1
