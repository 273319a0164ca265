"""How far a job without a claim is, published to the workers of its flow while it runs: verify,
archive, rerun.

Flow: a command -> ``reporting`` -> a thread with a connection of its own -> ``Progress`` in the job
topic every ``PROGRESS_S`` -> ``GET /jobs`` of any worker. The job does not depend on it: where the
target does not answer, or has no job topic since no worker of the flow ever ran, it goes on
without.
"""

import asyncio
import logging
import os
import platform
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK, Clock, closing
from mm2py.config.secret_names import secrets_in
from mm2py.errors import Mm2pyError
from mm2py.mirror.backfills import (
    PROGRESS_S,
    JobState,
    Progress,
    backfill_topic,
    new_id,
)
from mm2py.observability.logging import SecretMask, hide_userinfo
from mm2py.storage.backfill_store import BackfillStore
from mm2py_cli.output import Printer
from mm2py_cli.progress import Report, progress
from mm2py_jobs.flow_sides import FlowSides
from mm2py_workers.flow_target import FlowTarget

log = logging.getLogger(__name__)

_UNKNOWN: Final = "workers are not told how far the job is cause=%s"

LOOK_S: Final = 1.0
END_S: Final = 5.0
"""How long a command waits at its end until that is written."""


@final
class ReportedProgress:
    """What one job publishes; its methods may be called in any thread.

    Args:
        mask: hides secrets of the flow; credentials in URLs (of a folder) are never published.
    """

    def __init__(self, progress: Progress, clock: Clock, mask: SecretMask | None = None) -> None:
        self._progress, self._clock, self._beat = progress, clock, 0
        self._mask = mask or SecretMask()
        self._done: Callable[[], int] = lambda: 0
        self.over = threading.Event()
        self.reached = threading.Event()
        """Whether the target has answered: the end of a job waits for it only then."""

    def plan(self, total: int) -> None:
        self._progress = replace(self._progress, total=total)

    def follow(self, done: Callable[[], int]) -> None:
        """Ask ``done`` for the offsets that are read, at each record."""
        self._done = done

    def end(self, **members: object) -> None:
        """Say how it ended: members of ``Progress``. Without a state it is DONE; all of its offsets
        are read where it is."""
        state = members.get("state", JobState.DONE)
        done = max(0, self._progress.total) if state is JobState.DONE else self._done()
        whole = {"state": state, "done": done, **members}
        self._progress = replace(self._progress, **whole)  # type: ignore[arg-type] # by name

    def fail(self, error: BaseException) -> None:
        cause = str(error) or type(error).__name__
        self.end(state=JobState.FAILED, cause=cause)

    @property
    def far(self) -> tuple[int, int]:
        """How many offsets are read, of how many; 0 while that is not known."""
        return self._done(), max(0, self._progress.total)

    def now(self) -> Progress:
        self._beat += 1
        known = self._progress
        shown = replace(
            known,
            beat=self._beat,
            at_ms=self._clock.now_ms(),
            topics=self._hidden(known.topics),
            result=self._hidden(known.result),
            cause=self._hidden(known.cause),
        )
        return replace(shown, done=self._done()) if shown.state is JobState.RUNNING else shown

    def _hidden(self, text: str) -> str:
        return self._mask.apply(hide_userinfo(text))


@contextmanager
def reporting(
    flow: FlowSides,
    kind: str,
    topics: str | None,
    printer: Printer,
    clock: Clock = SYSTEM_CLOCK,
) -> Generator[ReportedProgress]:
    """Publish a job's progress while it runs, and show it beside the command; the caller says how
    it ended, one that raises has failed. ``kind`` is the job's name, of any package."""
    now_ms = clock.now_ms()
    begun = Progress(
        id=new_id(now_ms),
        kind=kind.upper(),
        topics=topics or "",
        started_ms=now_ms,
        driver=f"{platform.node()}/{os.getpid()}",
    )
    reported = ReportedProgress(begun, clock, SecretMask(secrets_in(flow.source, flow.target)))
    with progress(f"{kind} {flow.flow}", printer) as report:
        publisher = _begun("progress", lambda: asyncio.run(_publish(flow, reported, clock)))
        shower = _begun("progress shown", lambda: _show(reported, report))
        try:
            yield reported
        except BaseException as error:
            reported.fail(error)
            raise
        finally:
            reported.over.set()
            shower.join(END_S)  # else it may print after the answer
            if reported.reached.is_set():
                publisher.join(END_S)


def _begun(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _show(reported: ReportedProgress, report: Report) -> None:
    while not reported.over.wait(LOOK_S):
        done, total = reported.far
        report("offsets" if total else "being planned, or waiting for Spark", done, total)


async def _publish(flow: FlowSides, reported: ReportedProgress, clock: Clock) -> None:
    topic = backfill_topic(flow.flow.source)
    try:
        async with closing(FlowTarget(flow.flow, flow.target, clock)) as target:
            await target.cluster.connect()
            reported.reached.set()
            if topic in await Admin(target.cluster).describe_topics([topic]):
                await target.jobs.start()
                await publish(target.jobs, reported)
    except Mm2pyError as error:
        log.warning(_UNKNOWN, error)


async def publish(store: BackfillStore, reported: ReportedProgress) -> None:
    """Write a job's progress to an open job topic until it is over, and its end; what cannot be
    written is left out."""
    await _written(store.forget_progress(reported.now().kind))
    while not reported.over.is_set():
        await _written(store.post([reported.now()]))
        await asyncio.to_thread(reported.over.wait, PROGRESS_S)
    await _written(store.post([reported.now()]))


async def _written(posted: Awaitable[object]) -> None:
    try:
        await posted
    except Mm2pyError as error:
        log.warning(_UNKNOWN, error)
