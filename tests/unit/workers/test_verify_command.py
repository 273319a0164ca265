"""How ``mm2py verify`` ends: a flow that copies nothing does not pass."""

from pathlib import Path

import pytest

from mm2py.errors import UsageError
from mm2py_jobs.spark.session import SparkPlace
from mm2py_jobs.verify.repair_run import repaired_report
from mm2py_jobs.verify.verify_command import VerifyOrder, exit_code
from mm2py_workers.output import NOT_EQUAL, OK, UNHEALTHY


@pytest.mark.parametrize(
    ("differences", "not_compared", "checked", "waiting", "code"),
    [
        (0, 0, 10, [0], OK),
        (0, 0, 10, [5], OK),
        (0, 0, 0, [0], OK),  # an empty topic
        (0, 0, 0, [0, 7], UNHEALTHY),
        (0, 0, 0, [], UNHEALTHY),
        (0, 1, 10, [0, 5], UNHEALTHY),
        (1, 0, 10, [0], NOT_EQUAL),
        (1, 1, 10, [0], NOT_EQUAL),
    ],
)
def test_the_exit_code_is_that_of_what_was_compared(
    differences: int, not_compared: int, checked: int, waiting: list[int], code: int
) -> None:
    report: dict[str, object] = {
        "equal": not differences and not not_compared,
        "differences": [{"kind": "missing"}] * differences,
        "not_compared": ["t-0: cannot be read"] * not_compared,
        "checked_records": checked,
        "partitions": [{"not_copied_offsets": it} for it in waiting],
    }
    assert exit_code(report) == code


def order(
    *, flow: str = "A->B", tier: int = 1, master: str = "", repairs: bool = False, deletes: bool = False,
) -> VerifyOrder:  # fmt: skip
    return VerifyOrder(
        path=Path("f"), flow=flow, topics=None, tier=tier, place=SparkPlace(master), repairs=repairs, deletes=deletes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        order(flow=""),
        order(deletes=True),
        order(repairs=True, tier=0),
    ],
)
def test_options_that_contradict_each_other_are_refused(wrong: VerifyOrder) -> None:
    with pytest.raises(UsageError):
        wrong.check()


def test_options_that_belong_together_are_taken() -> None:
    order(repairs=True, deletes=True).check()


def test_the_report_of_a_repair_has_what_was_found_and_what_is_true_now() -> None:
    def row(number: int, equal: bool, records: int) -> dict[str, object]:
        return {"topic": "t", "partition": number, "equal": equal, "checked_records": records}

    def difference(number: int) -> dict[str, object]:
        return {"topic": "t", "partition": number, "kind": "missing"}

    before: dict[str, object] = {
        "flow": "A->B",
        "equal": False,
        "checked_records": 8,
        "differences": [difference(0), difference(1)],
        "not_compared": [],
        "partitions": [row(0, False, 3), row(1, False, 4), row(2, True, 1)],
    }
    nothing: dict[str, object] = {"differences": [], "not_compared": []}
    after = nothing | {"partitions": [row(0, True, 5)]}
    found = repaired_report(before, after, [{"partition": 0, "done": True}])
    assert found["equal"] is False
    assert found["differences"] == [difference(1)]
    assert found["checked_records"] == 10
    assert found["partitions"] == [row(0, True, 5), row(1, False, 4), row(2, True, 1)]
    assert found["before"] == {
        "equal": False,
        "checked_records": 8,
        "differences": [difference(0), difference(1)],
    }
    whole = nothing | {"partitions": [row(0, True, 5), row(1, True, 4)]}
    assert repaired_report(before, whole, [])["equal"] is True
    left_out = repaired_report(before, whole | {"not_compared": ["t-1: cannot be read"]}, [])
    assert left_out["equal"] is False
