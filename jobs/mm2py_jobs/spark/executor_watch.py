"""Ends a job whose cluster has no executor any more: Spark itself waits for a master that has stopped, without an end.

Flow: ``ExecutorWatch`` around a job -> executors by the JVM, every ``LOOK_S`` -> none for as long as a run waits -> the job is cancelled by its
tag, and ``cause`` has the reason. Not for Spark in one process, nor for Spark Connect, whose server watches its own.
"""

import threading
from typing import TYPE_CHECKING, Final, Protocol, Self, cast, final

from mm2py_jobs.spark.jvm_end import unless_ended

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_S: Final = 2.0

WAIT_EXECUTORS_S: Final = 120
"""As long as a cluster that starts containers for an application may take; one whose queue is full takes longer."""


class _Sized(Protocol):
    def size(self) -> int: ...


class _ScalaContext(Protocol):
    def getExecutorMemoryStatus(self) -> _Sized: ...  # noqa: N802 - Spark's name


class _JavaContext(Protocol):
    def sc(self) -> _ScalaContext: ...


@final
class ExecutorWatch:
    """Watches while its ``with`` block runs a job.

    Args:
        context: of the session.
        tag: of the job.
        no_executor_s: for how long there may be none.
    """

    def __init__(self, context: "SparkContext", tag: str, no_executor_s: float) -> None:
        self._context, self._tag, self._no_executor_s = context, tag, no_executor_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)
        self.cause = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        without = 0
        while not self._ended.wait(LOOK_S):
            with unless_ended():
                without = 0 if self._executors() else without + 1
            if without * LOOK_S >= self._no_executor_s:
                self.cause = (
                    f"Spark on {self._context.master} has had no executor for {self._no_executor_s:.0f} s: its master or"
                    " workers have stopped, or have no room (--wait-executors waits longer)"
                )
                with unless_ended():
                    self._context.cancelJobsWithTag(self._tag)
                return

    def _executors(self) -> int:
        """Return how many executors are registered; the status has the driver, too."""
        # Python's status tracker has no executors.
        context = cast("_JavaContext", vars(self._context)["_jsc"]).sc()
        return context.getExecutorMemoryStatus().size() - 1
