"""Where a copy continues, by stored position and offset map, as the task of the flow decides it."""

import pytest

from mm2py.client.fetch.range_reader import LogEnds
from mm2py.mirror.offset_map import Page, Segment
from mm2py.protocol.topics import NO_TOPIC_ID, EpochEnd
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


OLD, NEW, NEWER = b"o" * 16, b"n" * 16, b"r" * 16
WHOLE = LogEnds(0, 100)


def of(source_id: bytes, *, covered: int = 100, epoch: int = -1) -> Page:
    return Page(0, source_id, NO_TOPIC_ID, covered, -1, epoch, -1, -1, (Segment(0, covered, 0),))


@pytest.mark.parametrize(
    ("ledger", "page_id", "present", "copied"),
    [
        (OLD, OLD, OLD, 100),
        (OLD, OLD, NEW, 0),  # created again, nothing of it was copied
        (None, OLD, NEW, 0),
        (OLD, NEW, NEW, 0),  # killed before a position of the new one was stored: it begins anew
        (NEW, OLD, NEW, 100),  # a position of the new one, whose map was not written yet
        (NEW, NEW, NEW, 100),
        (None, NO_TOPIC_ID, NEW, 100),  # carried over from a program that keeps no ids
        (OLD, OLD, NO_TOPIC_ID, 100),  # a source before 2.8
    ],
)
def test_what_was_copied_of_another_incarnation_does_not_count(
    ledger: bytes | None, page_id: bytes, present: bytes, copied: int
) -> None:
    incarnations = {} if ledger is None else {ONE: ledger}
    known = Known({ONE: 100}, {ONE: of(page_id)}, incarnations)
    assert known.copied(ONE, present, WHOLE, None) == copied


@pytest.mark.parametrize(
    ("stored_id", "written_at", "page_id", "ledger", "present", "copied"),
    [
        (NEW, 100, NEW, OLD, NEW, 100),  # killed before the ledger had it
        (NEW, 70, OLD, OLD, NEW, 100),  # the map could not be written
        (OLD, 100, OLD, NEW, NEW, 0),  # the ledger of a run before the position was set back
        (OLD, 100, NEW, OLD, NEW, 40),  # killed between the first map and the first position
        (OLD, 100, NEW, OLD, NEWER, 0),  # and created once more
        (OLD, 70, NEW, OLD, NEW, 0),  # the position was set
    ],
)
def test_the_topic_id_that_is_stored_with_a_position_counts_before_the_ledger(
    stored_id: bytes, written_at: int, page_id: bytes, ledger: bytes, present: bytes, copied: int
) -> None:
    covered = 100 if page_id == stored_id else 40
    map_page = Page(
        0, page_id, NO_TOPIC_ID, covered, written_at, -1, -1, -1, (Segment(0, covered, 0),)
    )
    known = Known({ONE: 100}, {ONE: map_page}, {ONE: ledger}, {}, {ONE: stored_id})
    assert known.copied(ONE, present, WHOLE, None) == copied


def test_a_map_of_another_incarnation_adds_nothing_to_the_position_in_this_one() -> None:
    known = Known({ONE: 30}, {ONE: of(OLD)}, {ONE: NEW})
    assert known.copied(ONE, NEW, WHOLE, None) == 30
    assert Known({}, {ONE: of(OLD)}, {}).copied(ONE, NEW, LogEnds(7, 100), None) == 7


@pytest.mark.parametrize(
    ("log", "epoch", "ended", "copied"),
    [
        (LogEnds(0, 100), 4, EpochEnd("t", 0, 0, 4, 100), 100),  # nothing was cut
        (LogEnds(0, 120), 4, EpochEnd("t", 0, 0, 4, 110), 100),
        (LogEnds(0, 130), 4, EpochEnd("t", 0, 0, 4, 60), 60),  # cut at 60, written again to 130
        (LogEnds(0, 130), 4, EpochEnd("t", 0, 0, 3, 110), 99),  # of our epoch nothing is there
        (LogEnds(0, 130), 4, EpochEnd("t", 0, 0, 3, 50), 50),
        (LogEnds(0, 130), 4, EpochEnd("t", 0, 0, -1, -1), 100),  # an epoch it does not know
        (LogEnds(70, 130), 4, EpochEnd("t", 0, 0, 4, 60), 70),
        (LogEnds(0, 80), -1, None, 80),  # the same incarnation was cut
    ],
)
def test_what_lies_above_a_place_where_the_log_was_cut_is_not_copied(
    log: LogEnds, epoch: int, ended: EpochEnd | None, copied: int
) -> None:
    stored = Known({ONE: 100}, {}, {ONE: NEW}, {ONE: epoch})
    assert stored.copied(ONE, NEW, log, ended) == copied
    by_map = Known({ONE: 100}, {ONE: of(NEW, epoch=epoch)}, {ONE: NEW})
    assert by_map.copied(ONE, NEW, log, ended) == copied


def test_a_log_that_does_not_reach_the_position_counts_from_its_beginning_unless_it_is_the_same() -> (
    None
):
    assert Known({ONE: 100}, {}).copied(ONE, NO_TOPIC_ID, LogEnds(5, 80), None) == 5
    assert Known({ONE: 100}, {}).copied(ONE, NEW, LogEnds(5, 80), None) == 5
