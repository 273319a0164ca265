"""What ends a job of Spark from outside: the first cause that is found."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from mm2py.testing.waiting import eventually
from mm2py_jobs.spark.job_watch import JobWatch

if TYPE_CHECKING:
    from pyspark import SparkContext


class Context:
    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert tag == "t"


@dataclass
class Asked:
    answer: str
    unasked: str = ""
    times: int = 0

    def cause(self) -> str:
        self.times += 1
        return self.answer


async def test_the_cause_that_is_found_first_is_the_one_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.spark.job_watch.LOOK_S", 0)
    questions = [Asked(""), Asked("no executor"), Asked("each lane is cancelled")]
    with JobWatch(cast("SparkContext", Context()), "t", questions) as watch:
        await eventually(lambda: watch.cause != "")
    assert (watch.cause, [it.times for it in questions]) == ("no executor", [1, 1, 0])
