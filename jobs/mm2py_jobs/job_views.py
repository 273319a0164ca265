"""Every job of a flow in one shape, as ``GET /jobs`` answers and the page shows: backfill, restore,
stream, verify, archive, rerun.

Flow: job topic that a worker follows -> ``BackfillSummary``, ``Progress`` -> ``JobView``. Failovers
have records of their own.
"""

from collections.abc import Callable, Collection
from typing import Final

from typing_extensions import TypedDict

from mm2py.mirror.backfills import Job, Lease, Progress

STREAM: Final = "stream"


class JobView(TypedDict):
    """One job of a flow.

    ``kind``: backfill, restore, stream, verify, archive, rerun, or that of another package.
    ``done`` of ``total`` offsets are behind it (a verify reads both sides); ``total`` is null for a
    stream, which has no end, and while it is planned. ``lag``: of a stream, offsets that were not
    copied yet when its lanes wrote last. ``equal``, ``differences`` and ``not_compared``
    (partitions) are of a verify that has ended, else null; ``result`` is what a job says at its
    end, ``cause`` why it ended before, or what holds partitions of one that runs. ``wanted``,
    ``by`` and ``partitions_by_state`` are of jobs that copy. ``started_ms`` and ``at_ms``, when it
    told how far it was (null: now), are since the epoch.
    """

    flow: str
    kind: str
    id: str
    state: str
    wanted: str
    topics: str
    range: str
    by: str
    started_ms: int | None
    at_ms: int | None
    done: int
    total: int | None
    lag: int | None
    records: int
    bytes: int
    partitions_by_state: dict[str, int]
    equal: bool | None
    differences: int | None
    not_compared: int | None
    result: str
    cause: str


def kind_of(job: Job | None) -> str:
    """Return what a job that copies is called; None is a backfill that was planned and not
    begun."""
    if job is None:
        return "backfill"
    return "restore" if job.archive else job.kind.value.lower()


def copied_so_far(leases: Collection[Lease], kind: str) -> tuple[int, int | None, int | None]:
    """Return offsets that are copied, all of them, and the lag; a stream has no end, the others
    have no lag."""
    # A stream that begins where the flow's positions are has them from its lanes: -1 before.
    done = sum(max(0, min(it.position, it.end) - max(0, it.start)) for it in leases)
    if kind != STREAM:
        return done, sum(it.end - it.start for it in leases), None
    lags = [it.lag for it in leases if it.state.keeps_live_out]
    return done, None, sum(lags) if lags and min(lags) >= 0 else None


def progress_view(flow: str, progress: Progress, mask: Callable[[str], str]) -> JobView:
    """Return a job without a claim; ``mask`` hides secrets in what users wrote and brokers
    answered."""
    ended = progress.equal is not None
    return {
        "flow": flow,
        "kind": progress.kind.lower(),
        "id": progress.id,
        "state": progress.state.value,
        "wanted": "RUN",
        "topics": mask(progress.topics),
        "range": "",
        "by": "",
        "started_ms": progress.started_ms,
        "at_ms": progress.at_ms,
        "done": progress.done,
        "total": progress.total if progress.total >= 0 else None,
        "lag": None,
        "records": progress.records,
        "bytes": progress.bytes,
        "partitions_by_state": {},
        "equal": progress.equal,
        "differences": progress.differences if ended else None,
        "not_compared": progress.not_compared if ended else None,
        "result": mask(progress.result),
        "cause": mask(progress.cause),
    }
