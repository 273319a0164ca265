"""Writes what RUNNING work of this worker does not copy into its published state, as the trace:
every worker shows the same.

Flow: meter of the flow, problems of connectors -> each ``EVERY_S``, where it is not what the status
topic has -> ``AssignedWork.explain``. Connect has no state for work that is done in part.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, final

from mm2py.api.context import PartitionState
from mm2py.clock import Clock, look_each
from mm2py.observability.metrics import KEPT_OUT, FlowMeter
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.types import State, TaskId

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0
AGAIN_S: Final = 30.0
"""A text that changes, such as a time that is left, is written at most so often."""
MOST_CAUSES: Final = 20
_NOT_COPIED: Final = frozenset({PartitionState.FAILED.value, PartitionState.HELD.value})


@final
class TraceWatch:
    """Keeps the traces of what runs on this worker as they should be.

    Args:
        meter: the flow's.
        work: what runs on this worker.
        states: where they are published.
    """

    def __init__(
        self, meter: FlowMeter, work: AssignedWork, states: StatusBackingStore, *, clock: Clock
    ) -> None:
        self._meter, self._work, self._states, self._clock = meter, work, states, clock
        self._told_at: dict[str | TaskId, float] = {}
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        what = "partitions that are not copied cannot be reported"
        looks = look_each(self._clock, EVERY_S, self._tell, log, what)
        self._running = asyncio.create_task(looks, name="trace watch")

    def close(self) -> None:
        """Watch no more; safe twice."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    async def _tell(self) -> None:
        now = self._clock.monotonic()
        for work, unmasked in self._texts().items():
            text = self._work.masked(unmasked)
            stored = self._states.get(work)
            if stored is None or stored.state is not State.RUNNING or (stored.trace or "") == text:
                continue
            changes_only = bool(text and stored.trace)
            if changes_only and now - self._told_at.get(work, -inf) < AGAIN_S:
                continue
            self._told_at[work] = now
            self._work.explain(work, text)

    def _texts(self) -> dict[str | TaskId, str]:
        """Return the causes of all RUNNING work here, empty where all is copied."""
        problems, tasks = self._work.reported(), causes_of_tasks(self._meter)
        texts: dict[str | TaskId, str] = {}
        for name, status in self._work.connector_status().items():
            if status.state is State.RUNNING:
                own = f"{name}: "
                named = [it for it in problems.items() if it[0].startswith(own)]
                texts[name] = _text([f"{where.removeprefix(own)}: {it}" for where, it in named])
        for task, status in self._work.task_status().items():
            if status.state is State.RUNNING:
                texts[task] = _text(tasks.get(str(task), ()))
        self._told_at = {work: at for work, at in self._told_at.items() if work in texts}
        return texts


def causes_of_tasks(meter: FlowMeter) -> Mapping[str, Sequence[str]]:
    """Return what tasks report that harms, and which partitions are FAILED or HELD; not those that
    a backfill copies."""
    causes: dict[str, list[str]] = {}
    for it in meter.findings:
        if it.harms:
            causes.setdefault(it.task, []).append(f"{it.what}: {it.text}")
    for part in meter.partitions:
        if part.shown_state in _NOT_COPIED and part.cause != KEPT_OUT:
            text = f"{part.source} is {part.shown_state}: {part.cause}"
            causes.setdefault(part.task, []).append(text)
    return causes


def _text(causes: Sequence[str]) -> str:
    more = [f"{len(causes) - MOST_CAUSES} more"] if len(causes) > MOST_CAUSES else []
    return "\n".join([*causes[:MOST_CAUSES], *more])
