"""Ends a job of Spark for a cause that Spark itself does not know, or tells late: questions that
are asked while the job runs.

Flow: ``JobWatch`` around a job -> its questions (``Executors``,
``mm2py_jobs.spark.login_watch.Logins``), every ``LOOK_S`` -> one has a cause -> the job is
cancelled by its tag, and ``cause`` has the reason. Not over Spark Connect, whose server alone has
what they ask for.
"""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self, cast, final

from mm2py_jobs.spark.jvm import Jvm, has_ended

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0

WAIT_EXECUTORS_S: Final = 120
"""As long as a cluster that starts containers for an application may take; one whose queue is full
takes longer."""


class Question(Protocol):
    """What is asked of a job again and again."""

    unasked: str
    """What is so where it cannot be asked any more, for the log."""

    def cause(self) -> str:
        """Return why the job is to end, empty where it goes on; whatever is raised ends the
        questions."""
        ...


@final
class JobWatch:
    """Watches while its ``with`` block runs a job.

    Args:
        context: of the session.
        tag: of the job, or of the jobs of its lanes.
        questions: about it.
    """

    def __init__(self, context: "SparkContext", tag: str, questions: Sequence[Question]) -> None:
        self._context, self._tag, self._questions = context, tag, list(questions)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job watch", daemon=True)
        self.cause = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.cause and not self._over.wait(LOOK_S):
            for question in tuple(self._questions):
                if not self.cause:  # the first is reported: the job ends by it
                    self._ask(question)

    def _ask(self, question: Question) -> None:
        try:
            cause = question.cause()
            if cause and not self._over.is_set():
                self.cause = cause
                self._context.cancelJobsWithTag(self._tag)
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes, and no job depends on it
            self._questions.remove(question)
            if not has_ended(error):
                log.warning("%s cause=%s", question.unasked, error)


@final
class Executors:
    """Whether the cluster has given the job no executor for ``no_executor_s``: Spark itself waits
    without an end for a master that has stopped."""

    unasked = "whether the job has executors is not known any more"

    def __init__(self, context: "SparkContext", no_executor_s: float) -> None:
        self._context, self._no_executor_s = context, no_executor_s
        self._looks_without = 0

    def cause(self) -> str:
        """Return that there was none for so long."""
        # Python's status tracker has no executors; the JVM's status has the driver, too.
        java = cast("Jvm", vars(self._context)["_jsc"]).sc()
        has_some = int(java.getExecutorMemoryStatus().size()) > 1
        self._looks_without = 0 if has_some else self._looks_without + 1
        if self._looks_without * LOOK_S < self._no_executor_s:
            return ""
        return (
            f"Spark on {self._context.master} has had no executor for {self._no_executor_s:.0f} s: "
            "its master or workers have stopped, or have no room (--wait-executors waits longer)"
        )
