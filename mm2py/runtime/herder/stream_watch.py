"""Whether Spark copies a flow whose ``flow.engine`` is spark, and the way back to its workers.

Flow: config of the source connector, records of the backfill topic -> every ``LOOK_S`` ->
``problems`` of this node; a stream of a flow that is paused is asked to pause, one whose engine is
worker to end, and where its driver is gone it is ended from here.

Invariants, tests of the same names:

1. A flow whose engine is spark is shown with a problem unless a driver lives and every partition
   that it has reserved is copied by a lane that renews. The workers copy what no stream has
   reserved.
2. A stream is recalled only after the engine was worker for ``SURE_S``, and ended from here only
   when its driver is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import Final, final

from mm2py.clock import Clock, cancelled, look_each
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.errors import Mm2pyError
from mm2py.mirror.backfills import ALIVE_S, Job, JobKind, Lease, LeaseState, Wanted, Wish
from mm2py.mirror.flow_state import enabled, engine
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TargetState, TopicPartition

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0

SURE_S: Final = 5.0
"""A worker that starts with a changed file reads the former config first."""

IDLE_S: Final = 60.0
"""How long a partition may be copied by no lane: terms end, Spark tries again."""

_ENGINE: Final = "flow.engine"
_TAKEN_BACK: Final = "flow.engine is worker and the stream was gone"


class _Steadily:
    """Since when a value is the same."""

    def __init__(self, value: Hashable, now_s: float) -> None:
        self._value, self._since_s = value, now_s

    def for_s(self, value: Hashable, now_s: float) -> float:
        """Return for how long it has been so."""
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s


@final
class StreamWatch:
    """Follows the stream of one flow on one worker.

    Args:
        backfills: the topic; its owner starts and stops it.
        config: of the flow's connectors, as this worker has read it.
        take_back: ends a stream whose driver is gone, for a cause.
    """

    def __init__(
        self,
        backfills: BackfillStore,
        config: Callable[[], ConfigSnapshot],
        take_back: Callable[[str], Awaitable[None]],
        *,
        clock: Clock,
    ) -> None:
        self._backfills, self._config, self._take_back = backfills, config, take_back
        self._clock = clock
        self._wanted = _Steadily(None, 0.0)
        self._driver = _Steadily(None, 0.0)
        self._lanes: dict[TopicPartition, _Steadily] = {}
        self._problems: Mapping[str, str] = {}
        self._running: asyncio.Task[None] | None = None

    def problems(self) -> Mapping[str, str]:
        """Return what keeps the flow from being copied by Spark, by what is concerned."""
        return self._problems

    def open(self) -> None:
        """Begin to look; the topic was read to its end."""
        looks = look_each(self._clock, LOOK_S, self._try, log, "a stream cannot be watched")
        self._running = asyncio.create_task(looks, name="stream watch")

    async def close(self) -> None:
        """Look no more; safe twice."""
        running, self._running = self._running, None
        await cancelled(running)

    async def _try(self) -> None:
        try:
            await self._look()
        except Mm2pyError as error:
            log.warning("a stream cannot be recalled now cause=%s", error)
        except Exception as error:
            self._problems = {"stream": f"whether Spark copies is not known: {error!r}"}
            raise

    async def _look(self) -> None:
        job, now_s = self._backfills.job, self._clock.monotonic()
        stream = None if job is None or job.kind is not JobKind.STREAM else job
        wanted = _wanted(self._config())
        # Config and file may disagree for a moment at a start (SURE_S).
        sure = self._wanted.for_s(wanted, now_s) >= SURE_S
        beat = None if stream is None else (stream.id, stream.run, stream.beat)
        # The beat as it is seen here: clocks of two machines are not compared.
        gone = self._driver.for_s(beat, now_s) >= ALIVE_S
        idle = self._idle(now_s)
        if wanted is None or wanted is Wanted.CANCEL:
            self._problems = {}
        elif stream is None or gone or not stream.state.is_copied:
            self._problems = _no_driver(stream, keeps=bool(self._backfills.kept_out()))
        else:
            self._problems = _stuck(stream, idle, self._backfills.kept_out().values())
        if wanted is not None and sure and stream is not None and not stream.state.is_over:
            await self._ask(stream, wanted, gone=gone)

    async def _ask(self, stream: Job, wanted: Wanted, *, gone: bool) -> None:
        # Only a driver that lives can let its lanes end in order.
        if gone and wanted is Wanted.CANCEL:
            log.warning(
                "a stream whose driver is gone is ended, workers take over job=%s", stream.id
            )
            await self._take_back(_TAKEN_BACK)
        elif self._backfills.wanted is not wanted:
            log.info("stream is asked wanted=%s job=%s", wanted.value, stream.id)
            await self._backfills.post([Wish(job=stream.id, wanted=wanted)])

    def _idle(self, now_s: float) -> Collection[TopicPartition]:
        leases = self._backfills.kept_out()
        for gone in self._lanes.keys() - leases.keys():
            del self._lanes[gone]
        idle: list[TopicPartition] = []
        for tp, lease in leases.items():
            copying = lease.state is LeaseState.COPYING
            # What the lane wrote last; a change of it is a sign of life.
            shown = self._backfills.renewed(lease.lane) if copying else None
            lane = self._lanes.setdefault(tp, _Steadily(shown, now_s))
            if lane.for_s(shown, now_s) >= IDLE_S:
                idle.append(tp)
        return idle


def _wanted(snapshot: ConfigSnapshot) -> Wanted | None:
    """Return what a stream of the flow is to do by its config, None where nothing is to be copied,
    or that is not known."""
    for name, config in snapshot.connectors.items():
        if canonical_class(config.get("connector.class") or "") != MIRROR_SOURCE_CONNECTOR:
            continue
        if not enabled(config):
            return None
        if engine(config) != "spark":
            return Wanted.CANCEL
        return Wanted.RUN if snapshot.target(name) is TargetState.STARTED else Wanted.PAUSE
    return None


def _no_driver(stream: Job | None, *, keeps: bool) -> Mapping[str, str]:
    copied = "nothing is copied" if keeps else "workers copy meanwhile"
    last = "" if stream is None or not stream.cause else f" (the last one: {stream.cause})"
    return {
        _ENGINE: f"flow.engine is spark and no mm2py stream runs, {copied}{last}: start it, or "
        "set flow.engine = worker"
    }


def _stuck(
    stream: Job, idle: Collection[TopicPartition], leases: Iterable[Lease]
) -> Mapping[str, str]:
    problems = {f"stream: {lease.source}": lease.cause for lease in leases if lease.cause}
    for tp in idle:
        problems.setdefault(f"stream: {tp}", f"no lane has copied it for {IDLE_S:.0f} s")
    if stream.cause:
        problems["stream"] = f"Spark did not copy all of it, and tries again: {stream.cause}"
    return problems
