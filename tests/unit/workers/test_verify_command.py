"""How ``mm2py verify`` ends: a flow that copies nothing does not pass."""

import pytest

from mm2py_workers.output import OK, UNHEALTHY
from mm2py_workers.verify_command import NOT_EQUAL, exit_code


@pytest.mark.parametrize(
    ("equal", "checked", "waiting", "code"),
    [
        (True, 10, [0], OK),
        (True, 10, [5], OK),
        (True, 0, [0], OK),  # an empty topic
        (True, 0, [0, 7], UNHEALTHY),
        (True, 0, [], UNHEALTHY),
        (False, 10, [0], NOT_EQUAL),
    ],
)
def test_the_exit_code_is_that_of_what_was_compared(
    equal: bool, checked: int, waiting: list[int], code: int
) -> None:
    partitions = [{"not_copied_offsets": it} for it in waiting]
    report = {"equal": equal, "checked_records": checked, "partitions": partitions}
    assert exit_code(report) == code
