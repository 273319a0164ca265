"""How many lanes of a job have ended, while it runs.

Flow: ``LaneProgress`` around a job -> stages of the job's tag by the JVM, every ``LOOK_S`` -> ``report``. Not for Spark Connect.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self, cast, final

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_S: Final = 1.0

LaneReport = Callable[[str, int, int], None]
"""Takes what is done, and how many of how many."""


class _Jobs(Protocol):
    def getJobIdsForTag(self, tag: str, /) -> Sequence[int]: ...  # noqa: N802 - Spark's name


class _Job(Protocol):
    stageIds: Sequence[int]  # noqa: N815 - Spark's name


class _ScalaContext(Protocol):
    def statusTracker(self) -> _Jobs: ...  # noqa: N802 - Spark's name


class _JavaContext(Protocol):
    def sc(self) -> _ScalaContext: ...


@final
class LaneProgress:
    """Reports while its ``with`` block runs a job; called in a thread of its own.

    Args:
        context: of the session.
        tag: of the job.
        lanes: how many there are.
    """

    def __init__(self, context: "SparkContext", tag: str, lanes: int, report: LaneReport) -> None:
        self._context, self._tag, self._lanes, self._report = context, tag, lanes, report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lanes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._report("lanes", self._done(), self._lanes)

    def _done(self) -> int:
        # Python's status tracker knows no tags.
        jobs = cast("_JavaContext", vars(self._context)["_jsc"]).sc().statusTracker()
        tracker, done = self._context.statusTracker(), 0
        for job in jobs.getJobIdsForTag(self._tag):
            known = tracker.getJobInfo(job)
            stages: Sequence[int] = () if known is None else cast("_Job", known).stageIds
            infos = [tracker.getStageInfo(stage) for stage in stages]
            done += sum(info.numCompletedTasks for info in infos if info is not None)
        return min(done, self._lanes)
