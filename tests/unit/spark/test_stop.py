"""A run that is stopped while its target takes nothing ends all the same, with the cause."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mm2py.errors import RetriableError
from mm2py_cli.output import Output, Printer
from mm2py_jobs.copy import backfill_spark, stream_copy
from mm2py_jobs.copy.backfill import new_job
from mm2py_jobs.copy.backfill_spark import SparkRun
from mm2py_jobs.copy.plan import Plan
from mm2py_jobs.spark.place import SparkPlace
from mm2py_jobs.spark.session import OpenSession
from tests.unit.spark.test_lanes_that_fail import OneSlot
from tests.unit.spark.test_stream_copy import a_copy
from tests.unit.spark.test_stream_driver import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mm2py_jobs.copy.backfill_flow import BackfillSession

TROUBLE = "cluster B confirms no record of the driver: b1 refused the login of user mm"


async def never(*_: object) -> None:
    """Wait for a target that takes nothing, also at a first cancel."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


class Stopped:
    """A stop signal that has come."""

    def __enter__(self) -> "Stopped":
        return self

    def __exit__(self, *_exception: object) -> None: ...

    async def wait(self) -> None: ...


async def test_a_backfill_that_is_stopped_ends_though_its_target_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("STOP_WITHIN_S", "NOTE_WITHIN_S"):
        monkeypatch.setattr(backfill_spark, name, 0.01)
    monkeypatch.setattr(backfill_spark, "StopSignal", Stopped)

    def cancelled(*_: object) -> None: ...

    def opened(*_: object) -> OpenSession:
        return OpenSession(cast("SparkSession", OneSlot()), owned=False)

    monkeypatch.setattr(backfill_spark, "cancel_lanes", cancelled)
    monkeypatch.setattr(SparkPlace, "open", opened)
    monkeypatch.setattr(backfill_spark, "show_progress", never)
    session = SimpleNamespace(
        driver=SimpleNamespace(run=never, stop=never), trouble=TROUBLE, name="A->B", store=None
    )
    run = SparkRun(cast("BackfillSession", session), Printer(Output.JSON))
    with pytest.raises(RetriableError, match=f"stopped, which is not noted: {TROUBLE}"):
        await run.run(
            Plan(flow="A->B", partitions=()), {}, new_job("j", topics=""), place=SparkPlace()
        )


async def test_a_stream_that_is_ended_ends_though_its_target_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_copy, "NOTE_S", 0.01)
    copy = a_copy(Stage(), monkeypatch)
    vars(copy)["_driver"] = SimpleNamespace(end_term=lambda: asyncio.Event().wait())
    vars(copy)["_session"] = SimpleNamespace(trouble=TROUBLE)
    with pytest.raises(RetriableError, match=f"ended, which is not noted: {TROUBLE}"):
        await copy._end_term()  # pyright: ignore[reportPrivateUsage] # what comes before it needs a Spark
