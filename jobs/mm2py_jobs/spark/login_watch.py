"""Says at once that a cluster refuses the login of lanes, which Spark itself tells after their last
attempts, and ends a job of which every lane is refused.

Flow: an attempt of a lane raises ``LoginRefusedError`` (``tried``) -> ``Logins``, a question of
``mm2py_jobs.spark.job_watch``, looks for failed tasks in Spark's own figures -> one line for each
cause -> where no lane that runs has another end, the job is cancelled.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast, final

from mm2py.errors import AuthenticationError, FatalError
from mm2py_jobs.spark.jvm import Jvm

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.core.status import SparkStageInfo

log = logging.getLogger(__name__)

_MOST: Final = 10_000
"""Tasks of a stage that are looked at: more than a job has lanes."""


class LoginRefusedError(FatalError):
    """An attempt of a lane ended because a cluster refuses its login."""


_SAID: Final = re.compile(rf"^(?:\w+\.)*{LoginRefusedError.__name__}: (.+)$", re.MULTILINE)


def is_refused(error: BaseException) -> bool:
    """Whether an error has a refused login among its causes: a cluster whose login may be repaired
    meanwhile is asked again before it is raised."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AuthenticationError):
        cause = cause.__cause__
    return cause is not None


Lane = tuple[int, int]
"""Stage, and number in it."""


class Attempts(NamedTuple):
    """What Spark knows of a job's tasks at one moment.

    ``running``: the lanes of attempts that run; ``refused``: lane and cause by attempt; ``ended``:
    how many lanes have an answer.
    """

    running: frozenset[Lane]
    refused: Mapping[int, tuple[Lane, str]]
    ended: int


@final
class LoginRefusals:
    """Which causes are new, and whether every lane is refused, by one look after the other."""

    def __init__(self) -> None:
        self._said = set[str]()
        self._before = frozenset[int]()
        self._ended = 0

    def look(self, seen: Attempts) -> tuple[list[str], bool]:
        """Return the causes that were not there before, and whether no lane that runs was not
        refused since the last one had an answer."""
        causes = dict.fromkeys(cause for _, cause in seen.refused.values())
        news = [it for it in causes if it not in self._said]
        self._said.update(news)
        if seen.ended != self._ended:
            # Some lanes are not refused: perhaps one executor has another key store.
            self._ended, self._before = seen.ended, frozenset(seen.refused)
        lanes = {lane for attempt, (lane, _) in seen.refused.items() if attempt not in self._before}
        return news, bool(lanes) and seen.running <= lanes


@final
class Logins:
    """Whether each lane that runs was refused its login; each new cause of a refusal is a line of
    the log.

    Args:
        context: of the session.
        tag: of the job, or of the jobs of its lanes.
        description: of the job, for the line.
    """

    unasked = "refused logins are told when lanes have ended"

    def __init__(self, context: "SparkContext", tag: str, description: str) -> None:
        self._context, self._tag, self._description = context, tag, description
        self._jobs, self._refusals = set[int](), LoginRefusals()

    def cause(self) -> str:
        """Return the newest refusal where no lane has another end."""
        seen = self._seen()
        news, all_of_them = self._refusals.look(seen)
        for cause in news:
            log.warning("login of a lane is refused job=%s cause=%s", self._description, cause)
        if not all_of_them:
            return ""
        _, newest = seen.refused[max(seen.refused)]
        return f"the login of each lane is refused: {newest}"

    def _jvm(self, name: str) -> Jvm:
        return cast("Jvm", getattr(self._context, name))

    def _seen(self) -> Attempts:
        java = self._jvm("_jsc").sc()
        tagged = {int(it) for it in java.statusTracker().getJobIdsForTag(self._tag)}
        tracker = self._context.statusTracker()
        jobs = tagged.intersection(tracker.getActiveJobsIds())
        running, refused = set[Lane](), dict[int, tuple[Lane, str]]()
        ended = len(self._jobs - jobs)
        self._jobs |= jobs
        infos = [it for it in map(tracker.getJobInfo, jobs) if it is not None]
        stages = [cast("Jvm", it.stageIds) for it in infos]  # an array of the JVM  # pyright: ignore[reportUnknownMemberType]
        for number in (int(it) for found in stages for it in found):
            stage = tracker.getStageInfo(number)
            if stage is None:
                continue
            # Of each task: what Spark has of a stage is as of its last heartbeat.
            ended += len(self._tasks(java, stage, "SUCCESS"))
            running |= {(number, int(it.index())) for it in self._tasks(java, stage, "RUNNING")}
            for task in self._tasks(java, stage, "FAILED"):
                said = _SAID.findall(str(task.errorMessage()))
                if said:
                    refused[int(task.taskId())] = (number, int(task.index())), said[-1]
        return Attempts(frozenset(running), refused, ended)

    def _tasks(self, java: Jvm, stage: "SparkStageInfo", status: str) -> "_Tasks":
        v1 = self._jvm("_jvm").org.apache.spark.status.api.v1
        statuses = self._jvm("_jvm").java.util.ArrayList()
        statuses.add(v1.TaskStatus.valueOf(status))
        place = stage.stageId, stage.currentAttemptId
        return _Tasks(java.statusStore().taskList(*place, 0, _MOST, v1.TaskSorting.ID, statuses))


@final
class _Tasks:
    """A sequence of Scala; its items are fetched one by one."""

    def __init__(self, found: Jvm) -> None:
        self._found = found

    def __len__(self) -> int:
        return int(self._found.size())

    def __iter__(self) -> Iterator[Jvm]:
        return (self._found.apply(at) for at in range(len(self)))
