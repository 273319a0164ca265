"""Where a copy continues, by stored position and offset map, as the task of the flow decides it."""

import pytest

from mm2py.mirror.offset_map import Page, Segment
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition
from mm2py_jobs.copy.survey import Known

ONE = TopicPartition("t", 0)


def page(position: int) -> Page:
    """A map that was written when this position was stored, with copies up to source offset 100."""
    ids = NO_TOPIC_ID, NO_TOPIC_ID
    return Page(0, *ids, 100, position, -1, -1, -1, (Segment(0, 100, 0),))


@pytest.mark.parametrize(
    ("stored", "continues"),
    [
        (80, 100),  # the position that was stored when the map was written: the map knows more
        (100, 100),
        (20, 20),  # set back by an operator
        (-1, -1),  # deleted by an operator
        (500, 500),  # set behind the copies
    ],
)
def test_a_position_that_the_map_was_not_written_with_is_followed(
    stored: int, continues: int
) -> None:
    positions = {ONE: stored} if stored >= 0 else {}
    assert Known(positions, {ONE: page(80)}).resume(ONE) == continues


def test_without_a_stored_position_the_map_of_a_first_run_counts() -> None:
    assert Known({}, {ONE: page(-1)}).resume(ONE) == 100
    assert Known({}, {}).resume(ONE) == -1
