"""Whatever transforms make of batches and in whichever order target partitions take them: positions and maps pass nothing that has not arrived."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.api.task import Delivery
from mm2py.protocol.records import NewRecord
from mm2py.runtime.tasks.arrivals import Arrivals, Part, SourceOrder
from mm2py.runtime.tasks.record_task import new_batch
from mm2py.types import TopicPartition
from tests.property.effort import examples

S = TopicPartition("orders", 0)
HOME, *OTHERS = (TopicPartition(name, 0) for name in ("A.orders", "audit", "all"))
WAYS = (None, HOME, *OTHERS)

parts_of_a_source = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(WAYS)), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)
"""Source batches: each record's distance from the one before it, and where it goes."""


@dataclass
class Course:
    """One source partition, and the target partitions that take what is sent in their own time."""

    reports: list[Delivery] = field(default_factory=list[Delivery])
    where: dict[int, TopicPartition | None] = field(
        default_factory=dict[int, TopicPartition | None]
    )
    there: dict[int, int] = field(default_factory=dict[int, int])
    lanes: dict[TopicPartition, deque[int]] = field(
        default_factory=dict[TopicPartition, deque[int]]
    )
    ends: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.reports.append, by_itself=False)
        self.order = SourceOrder()
        self.order.follow(self.arrivals)

    def hand_out(self, part: list[tuple[int, TopicPartition | None]]) -> None:
        counts: dict[TopicPartition, int] = {}
        last = max(self.where, default=-1)
        for distance, way in part:
            last += distance
            self.where[last] = way
            if way is not None:
                counts[way] = counts.get(way, 0) + 1
                self.lanes.setdefault(way, deque()).append(last)
        self.order.handed_out(S, HOME, Part(counts, len(part) - counts.get(HOME, 0), last))
        self.order.advance(S)

    def take(self, target: TopicPartition, count: int) -> None:
        """The next records of a lane arrive in one batch, of whichever parts they are."""
        lane = self.lanes.get(target, deque())
        offsets = [lane.popleft() for _ in range(min(count, len(lane)))]
        if not offsets:
            return
        base = self.ends.get(target, 0)
        self.ends[target] = base + len(offsets)
        self.there |= {offset: base + index for index, offset in enumerate(offsets)}
        batch = new_batch(offsets, [NewRecord(None, b"", (), 0) for _ in offsets])
        self.order.arrived(S, target, batch, base)

    def check(self) -> None:
        self.arrivals.flush()
        position = max((it.last for it in self.reports), default=-1)
        assert [it.last for it in self.reports] == sorted(it.last for it in self.reports)
        for offset, way in self.where.items():
            assert offset > position or way is None or offset in self.there
        mapped = {
            run.source_offset + index: run.target_offset + index
            for it in self.reports
            for run in it.runs
            for index in range(run.records)
        }
        expected = {
            offset: self.there[offset]
            for offset, way in self.where.items()
            if way == HOME and offset in mapped
        }
        assert mapped == expected, "exact where the policy's own partition has it, nothing else"
        assert all(
            offset in mapped
            for offset, way in self.where.items()
            if way == HOME and offset <= position
        )


@given(
    parts=parts_of_a_source,
    turns=st.lists(
        st.tuples(st.booleans(), st.sampled_from(WAYS[1:]), st.integers(1, 9)), max_size=40
    ),
)
@settings(max_examples=examples(200))
def test_positions_and_maps_pass_only_what_is_dropped_or_has_arrived(
    parts: list[list[tuple[int, TopicPartition | None]]],
    turns: list[tuple[bool, TopicPartition, int]],
) -> None:
    course, left = Course(), deque(parts)
    for hands_out, target, count in turns:
        if hands_out and left:
            course.hand_out(left.popleft())
        else:
            course.take(target, count)
        course.check()
    while left:
        course.hand_out(left.popleft())
    for target in tuple(course.lanes):
        course.take(target, len(course.where))
    course.check()
    assert course.order.is_done
    assert course.reports[-1].last == max(course.where), "all of it is behind the position"
    copied = sum(run.records for it in course.reports for run in it.runs)
    assert copied + sum(it.passed for it in course.reports) == len(course.where)
