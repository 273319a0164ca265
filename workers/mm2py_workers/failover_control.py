"""Flows as a failover asks and changes them: ``/flows``, of any worker from outside, of its own worker inside.

Flow: ``FailoverSides`` -> ``RestFlows`` -> ``FlowsApi`` -> ``FlowNow``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.errors import Mm2pyError
from mm2py.types import FlowName, State
from mm2py_workers.answers import Row, count_of, flow_path, rows_of, text_of, texts_of

__all__ = ["FlowNow", "FlowsApi", "RestFlows", "flow_now"]

log = logging.getLogger(__name__)

WAITING: Final = "WAITING"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNow:
    """A flow that there is; ``enabled``: it copies topics, not heartbeats alone.

    ``failed`` counts its partitions and tasks that have failed; ``paused`` names topics and partitions.
    """

    state: str
    enabled: bool
    tasks: int
    failed: int = 0
    paused: tuple[str, ...] = ()

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
        try:
            rows = await self._api.rows(flow_path(str(flow), "lag"))
        except Mm2pyError as error:
            log.info("lag is not known flow=%s cause=%s", flow, error)
            return {}
        lags = {text_of(row, "topic"): count_of(row, "lag_records") for row in rows}
        return {topic: lag for topic, lag in lags.items() if lag is not None}

    async def stop(self, flow: FlowName) -> None:
        """Stop every connector of a flow; does not wait for its tasks."""
        await self._api.post(flow_path(str(flow), "stop"))

    async def start(self, flow: FlowName, config: Mapping[str, str]) -> None:
        """Create a flow that does not copy with ``config``, resume one that is stopped."""
        now = await self.now(flow)
        if now is None or not now.enabled:
            body = {"source": flow.source, "target": flow.target, "config": dict(config)}
            await self._api.post("/flows", body)
        elif now.state in (State.STOPPED, State.PAUSED):
            await self._api.post(flow_path(str(flow), "resume"))
