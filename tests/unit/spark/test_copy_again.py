"""Copies that are made again: a crash between any two steps loses nothing, and the next run does the same again."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from mm2py.mirror.backfills import CopyAgain, Lease, LeaseState, decode_backfill, encode_backfill
from mm2py.mirror.offset_map import Mark, Page, PartitionMap, Segment
from mm2py.types import TopicPartition
from mm2py_jobs.copy.copy_again import begun, cut_pages, go_back

SOURCE, COPY = TopicPartition("t", 0), TopicPartition("a.t", 0)
NO_ID = bytes(16)


class CrashError(Exception):
    """The driver dies here."""


class Target:
    """A target partition with 1,000 copies, of which the position is 1,000."""

    def __init__(self, end: int = 1_000) -> None:
        self.start, self.end = 0, end
        self.position = 1_000
        self.map_end = 1_000
        self.steps_left = 100

    def _step(self) -> None:
        if not self.steps_left:
            raise CrashError
        self.steps_left -= 1

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._step()
        return dict.fromkeys(copies, self.end)

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self._step()
        (self.position,) = positions.values()

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        self._step()
        assert self.position == 0, "1: the position is stored before anything is deleted"
        (below,) = ends.values()
        self.start = max(self.start, below)

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self._step()
        ((self.map_end, _),) = places.values()


def lease(start: int, *, deletes: bool, compared_to: int = 1_000) -> Lease:
    again = CopyAgain(topic="a.t", compared_to=compared_to, deletes=deletes)
    state = LeaseState.RESERVED
    return Lease(
        topic="t", partition=0, job="j", run=1, state=state, start=start, end=1_000, position=start, again=again
    )  # fmt: skip


@pytest.mark.parametrize("crash_at", range(6))
async def test_1_copies_are_deleted_behind_the_position_and_only_below_the_end_that_the_lease_names(
    crash_at: int,
) -> None:
    target, stored = Target(), lease(0, deletes=True)
    target.steps_left = crash_at
    for _ in range(2):
        try:
            (named,) = await begun(target, [stored])
            stored = named  # written to the backfill topic
            (stored,) = await go_back(target, [stored])
        except CrashError:
            target.steps_left = 100
            if stored.again is not None and stored.again.below >= 0:
                target.end = 1_500  # a stale driver continues while the next one's lanes copy
        else:
            break
    assert (target.position, target.map_end, stored.again) == (0, -1, None)
    assert target.start == 1_000
    assert (stored.state, stored.position) == (LeaseState.RESERVED, 0)


@pytest.mark.parametrize("crash_at", range(5))
async def test_3_a_copy_that_ends_too_early_continues_there(crash_at: int) -> None:
    target, stored = Target(end=600), lease(600, deletes=False, compared_to=600)
    target.steps_left = crash_at
    for _ in range(2):
        try:
            (stored,) = await begun(target, [stored])
            (found,) = await go_back(target, [stored])
        except CrashError:
            target.steps_left = 100
        else:
            assert (found.again, found.position, found.state) == (None, 600, LeaseState.RESERVED)
            break
    assert (target.position, target.map_end, target.start) == (600, 600, 0)


async def test_2_a_copy_that_went_on_since_it_was_compared_is_left_alone() -> None:
    target, stored = Target(end=700), lease(600, deletes=False, compared_to=600)
    (found,) = await begun(target, [stored])
    assert found.state is LeaseState.HANDED_OVER
    assert "ends at 700 now" in found.cause
    assert (target.position, target.map_end) == (1_000, 1_000)
    other = replace(stored, again=None)
    assert await begun(Target(), [other]) == await go_back(Target(), [other]) == [other]


def test_a_lease_of_a_copy_that_is_made_again_is_the_same_behind_its_record() -> None:
    stored = lease(5, deletes=True)
    assert decode_backfill(*encode_backfill(stored)) == stored


def pages_of(count: int) -> dict[int, Page]:
    """Pages of two segments each, of ten records and with a hole of one source offset behind each."""
    segments = [Segment(n * 11, 10, n * 10) for n in range(count)]
    return {
        number: Page(
            number, NO_ID, NO_ID, count * 11, count * 11, 3, -1, -1, tuple(segments[number * 2 : number * 2 + 2])
        )
        for number in range(count // 2)
    }  # fmt: skip


@pytest.mark.parametrize("end", range(1, 81))
def test_3_a_map_has_nothing_behind_the_place_where_the_copy_goes_on(end: int) -> None:
    pages = pages_of(8)
    copied = [
        (it.source + n, it.target + n)
        for number in pages
        for it in pages[number].segments
        for n in range(it.records)
    ]
    covered = next((source for source, target in copied if target == end), 88)
    page, removed = cut_pages(pages, end, covered)
    assert page is not None
    assert removed == [it for it in (3, 2, 1, 0) if it > page.number]
    kept = [pages[it] for it in range(page.number)] + [page]
    left = [
        (it.source + n, it.target + n)
        for each in kept
        for it in each.segments
        for n in range(it.records)
    ]
    assert left == copied[:end]
    assert (page.position, PartitionMap(page).covered) == (covered, covered)


def test_a_map_of_which_nothing_is_left_is_removed() -> None:
    assert cut_pages(pages_of(4), -1, 0) == (None, [1, 0])
    lost = Page(
        0, NO_ID, NO_ID, 100, 100, -1, -1, -1, (Segment(0, 60, 0), Segment(60, 40, 60, Mark.TARGET_LOST))
    )  # fmt: skip
    page, removed = cut_pages({0: lost}, 60, 60)
    assert page is not None
    assert (page.segments, page.covered, removed) == ((Segment(0, 60, 0),), 60, [])
