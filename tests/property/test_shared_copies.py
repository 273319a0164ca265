"""Groups where several flows write into one target, against a log that is read record by record."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mm2py.mirror.offset_lookup import MapIndex, to_target
from mm2py.mirror.offset_map import Page, Segment
from mm2py.mirror.shared_copies import SharedCopies
from mm2py.types import TopicPartition

TOPIC = TopicPartition("orders", 0)


@dataclass(frozen=True)
class Written:
    """One record of a copy."""

    flow: str
    offset: int


@dataclass(frozen=True)
class Course:
    """What flows wrote into the topics of a target; flows of one ``source`` copy the same topic."""

    keeps_names: dict[str, bool]
    source: dict[str, str]
    order: list[str]

    def copy_of(self, flow: str) -> str:
        return TOPIC.topic if self.keeps_names[flow] else f"{flow}.{TOPIC.topic}"

    def logs(self) -> dict[str, list[Written]]:
        logs: dict[str, list[Written]] = {}
        next_offset = dict.fromkeys(self.keeps_names, 0)
        for flow in self.order:
            log = logs.setdefault(self.copy_of(flow), [])
            log.append(Written(flow, next_offset[flow]))
            next_offset[flow] += 1
        return logs


@st.composite
def courses(draw: st.DrawFn) -> Course:
    flows = ["A", "C", "D"][: draw(st.integers(2, 3))]
    return Course(
        {it: draw(st.booleans()) for it in flows},
        {it: draw(st.sampled_from([it, it, "A"])) for it in flows},
        draw(st.lists(st.sampled_from(flows), max_size=30)),
    )


def map_of(log: Sequence[Written], flow: str, source: str, copy: str) -> tuple[MapIndex, Page]:
    mine = [(it.offset, target) for target, it in enumerate(log) if it.flow == flow]
    segments = tuple(Segment(offset, 1, target) for offset, target in mine)
    page = Page(
        0, f"id of {source}".encode(), f"id of {copy}".encode(), len(mine), -1, -1, -1, 0, segments
    )
    index = MapIndex()
    index.put(TOPIC, 0, page.head, 0)
    return index, page


def place_of(course: Course, flow: str, committed: int) -> int | None:
    """Return where the flow would let a group continue, None where it leaves it alone."""
    logs, shared = course.logs(), SharedCopies()
    maps: dict[str, tuple[MapIndex, Page]] = {}
    for it in course.keeps_names:
        name = course.copy_of(it)
        maps[it] = map_of(logs.get(name, []), it, course.source[it], name)
    shared.maps |= {it: index for it, (index, _) in maps.items() if it != flow}
    shared.learn({it: f"id of {it}".encode() for it in map(course.copy_of, course.keeps_names)})
    index, page = maps[flow]
    found = index.of(TOPIC)
    assert found is not None
    copy = TopicPartition(course.copy_of(flow), 0)
    if not found.has_segments or shared.sharers(copy, found.source_id):
        return None
    translation = to_target(found, committed, lambda _: page)
    return translation.offset if translation.offset >= 0 else None


@given(courses(), st.integers(0, 10))
def test_behind_the_place_of_a_group_lies_no_record_of_any_flow_that_the_group_has_not_read(
    course: Course, committed: int
) -> None:
    for flow in course.keeps_names:
        place = place_of(course, flow, committed)
        for it in course.logs().get(course.copy_of(flow), [])[: place or 0]:
            if it.flow == flow:
                assert it.offset < committed
            else:
                assert course.source[it.flow] == course.source[flow], "nothing of another source"


@given(courses(), st.integers(0, 10))
def test_a_copy_whose_name_says_where_it_came_from_is_never_shared(
    course: Course, committed: int
) -> None:
    for flow, keeps_name in course.keeps_names.items():
        if not keeps_name:
            alone = Course({flow: False}, course.source, [it for it in course.order if it == flow])
            assert place_of(course, flow, committed) == place_of(alone, flow, committed)


@given(courses(), st.integers(0, 10))
def test_two_maps_of_one_source_topic_share_nothing(course: Course, committed: int) -> None:
    same = Course(course.keeps_names, dict.fromkeys(course.keeps_names, "A"), course.order)
    for flow in course.keeps_names:
        place = place_of(same, flow, committed)
        mine = [it for it in course.order if it == flow]
        assert (place is None) == (not mine or committed > len(mine))


@given(courses(), st.integers(0, 10))
def test_a_copy_that_only_one_source_writes_into_places_groups(
    course: Course, committed: int
) -> None:
    for flow in course.keeps_names:
        writers = {course.source[it.flow] for it in course.logs().get(course.copy_of(flow), [])}
        if writers == {course.source[flow]} and flow in course.order:
            assert (place_of(course, flow, committed) is None) == (
                committed > course.order.count(flow)
            )
