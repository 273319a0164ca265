"""Flows as a failover asks and changes them: ``/flows``, of any worker from outside, of its own worker inside.

Flow: ``FailoverSides`` -> ``RestFlows`` -> ``FlowsApi`` -> ``FlowNow``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.api.context import PartitionState
from mm2py.errors import ConnectionFailedError, Mm2pyError
from mm2py.types import FlowName, State, TopicPartition
from mm2py_workers.answers import Row, count_of, flow_path, rows_of, text_of, texts_of

log = logging.getLogger(__name__)

WAITING: Final = "WAITING"
_NOT_COPIED: Final = frozenset(PartitionState) - {PartitionState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNow:
    """A flow that there is; ``enabled``: it copies topics, not heartbeats alone.

    ``failed`` counts its partitions and tasks that have failed; ``paused`` names topics and partitions; ``errors`` say
    what keeps it from copying.
    """

    state: str
    enabled: bool
    tasks: int
    failed: int = 0
    paused: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it copies, now or later."""
        if self.is_waiting:
            return False
        return not self.enabled or (self.state == State.STOPPED and not self.tasks)

    @property
    def is_waiting(self) -> bool:
        """Whether its workers wait for a cluster: what it is to do is not known to them yet."""
        return self.state == WAITING

    @property
    def copies(self) -> bool:
        """Whether it copies, or will as soon as it can."""
        return self.enabled and self.state not in (State.STOPPED, State.PAUSED, WAITING)


class FlowsApi(Protocol):
    """One worker's API; ``Mm2pyError`` where it refuses or does not answer."""

    async def rows(self, path: str) -> Sequence[Row]:
        """GET a list of objects."""
        ...

    async def post(self, path: str, body: object = None) -> None:
        """POST a change."""
        ...


@final
class NoWorkerApi:
    """The API where no worker is known."""

    def __init__(self, reason: Mm2pyError) -> None:
        self._error = ConnectionFailedError(reason.message, remedy=reason.remedy)

    async def rows(self, path: str) -> Sequence[Row]:
        """Raise why."""
        del path
        raise self._error

    async def post(self, path: str, body: object = None) -> None:
        """Raise why."""
        del path, body
        raise self._error


def flow_now(row: Row) -> FlowNow:
    """Return one flow of the answer to ``GET /flows``."""
    tasks = [task for it in rows_of(row, "connectors") for task in rows_of(it, "tasks")]
    failed = sum(text_of(it, "state") == State.FAILED for it in tasks)
    return FlowNow(
        state=text_of(row, "state"),
        enabled=row.get("enabled") is not False,
        tasks=len(tasks),
        failed=failed + (count_of(row, "failed_partitions") or 0),
        paused=tuple(texts_of(row, "paused")),
        errors=tuple(
            f"{text_of(it, 'where')}: {text_of(it, 'message')}" for it in rows_of(row, "errors")
        ),
    )


@final
class RestFlows:
    """Flows over ``/flows``; ``RetriableError`` for "not now"."""

    def __init__(self, api: FlowsApi) -> None:
        self._api = api

    async def now(self, flow: FlowName) -> FlowNow | None:
        """Return a flow as it is; None where there is none."""
        rows = await self._api.rows("/flows")
        found = [flow_now(row) for row in rows if text_of(row, "flow") == str(flow)]
        return found[0] if found else None

    async def lag(self, flow: FlowName) -> Mapping[str, int]:
        """Return the records of each topic that its tasks knew of and had not copied; none where no worker answers."""
        rows = await self._rows(flow, "lag")
        lags = {text_of(row, "topic"): count_of(row, "lag_records") for row in rows}
        return {topic: lag for topic, lag in lags.items() if lag is not None}

    async def not_copied(self, flow: FlowName) -> Mapping[TopicPartition, str]:
        """Return the source partitions of which nothing is copied now, with state and cause; none where no worker answers."""
        rows = await self._rows(flow, "partitions")
        return {
            TopicPartition(text_of(row, "topic"), count_of(row, "partition") or 0): ": ".join(
                it for it in (text_of(row, "state"), text_of(row, "cause")) if it
            )
            for row in rows
            if text_of(row, "state") in _NOT_COPIED
        }

    async def _rows(self, flow: FlowName, what: str) -> Sequence[Row]:
        try:
            return await self._api.rows(flow_path(str(flow), what))
        except Mm2pyError as error:
            log.info("%s not known flow=%s cause=%s", what, flow, error)
            return ()

    async def stop(self, flow: FlowName) -> None:
        """Stop every connector of a flow; does not wait for its tasks."""
        await self._api.post(flow_path(str(flow), "stop"))

    async def start(self, flow: FlowName, config: Mapping[str, str]) -> None:
        """Create a flow that does not copy with ``config``, resume one that is stopped."""
        now = await self.now(flow)
        if now is None or not now.enabled:
            body = {"source": flow.source, "target": flow.target, "config": dict(config)}
            await self._api.post("/flows", body)
        elif now.state in (State.STOPPED, State.PAUSED, WAITING):
            await self._api.post(flow_path(str(flow), "resume"))
