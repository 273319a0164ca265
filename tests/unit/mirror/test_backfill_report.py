"""What people see of a backfill that was planned over REST, before there is a job and behind it."""

from dataclasses import replace

from mm2py.mirror.backfill_report import GONE, NO_DRIVER, cause_of, order_report, without_driver
from mm2py.mirror.backfills import Job, JobState, Order

ORDER = Order(id="o", topics="orders.*", by="ann", at_ms=5)
JOB = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)


def test_what_was_planned_over_rest_is_shown_until_its_job_begins() -> None:
    shown = order_report(ORDER, JOB, ())
    assert shown is not None
    assert (shown["id"], shown["state"], shown["topics"]) == ("o", "PLANNED", "orders.*")
    assert order_report(ORDER, replace(JOB, id="o"), ()) is None
    assert order_report(None, JOB, ()) is None


def test_an_order_is_starting_only_while_its_worker_is_in_the_group() -> None:
    started = replace(ORDER, worker="w1:8083")
    for workers, expected in ((["w1:8083"], ("STARTING", "")), (["w2:8083"], ("FAILED", GONE))):
        shown = order_report(started, None, workers)
        assert shown is not None
        assert (shown["state"], shown["cause"]) == expected


def test_a_driver_that_wrote_no_cause_is_shown_with_what_its_worker_noted() -> None:
    noted = replace(ORDER, id="j", cause="no Java")
    assert cause_of(without_driver(JOB), noted) == f"no Java; {NO_DRIVER}"
    assert cause_of(without_driver(JOB), ORDER) == NO_DRIVER
    assert cause_of(JOB, noted) == ""
