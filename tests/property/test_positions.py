"""Where groups and flows continue: share groups, targets that several flows write, and any order of arrival."""

import asyncio
import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.api.task import Delivery
from mm2py.client.connect.share_positions import delivered_of, share_positions
from mm2py.mirror.offset_lookup import MapIndex, to_target
from mm2py.mirror.offset_map_pages import Page, Segment, decode_head, encode_page
from mm2py.mirror.shared_copies import SharedCopies
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.records import NewRecord
from mm2py.protocol.share_offsets import ShareOffset, ShareOffsets
from mm2py.runtime.tasks.arrivals import Arrivals, Part, SourceOrder
from mm2py.runtime.tasks.record_task import new_batch
from mm2py.types import TopicPartition
from tests.property.effort import examples

TP: Final = TopicPartition("t", 0)
AWAY: Final = 15


class Broker:
    """A partition and a share group, as Kafka 4.3 keeps them.

    The stored start offset is that before the last acknowledgement. A description reads what is stored, and then asks
    the leader for the end.
    """

    def __init__(self, seed: int, *, knows_lag: bool, moves: int) -> None:
        self._chance, self._knows_lag, self.moves = random.Random(seed), knows_lag, moves
        self.end = self.start = 0
        self.stored = -1
        self.delivered: set[int] = set()
        self.ends_known = self._chance.random() < 0.9

    def move(self) -> None:
        """Let some of what happens all the time happen, while there are moves left."""
        for _ in range(self._chance.randint(0, 3)):
            if not self.moves:
                return
            self.moves -= 1
            if self._chance.random() < 0.4:
                self.end += self._chance.randint(1, 3)
            else:
                self.acknowledge(self._chance.random() < 0.6)

    def acknowledge(self, everything: bool) -> None:
        """Deliver all records, or some in any order; what is stored is the start offset of before."""
        pending = [it for it in range(self.start, self.end) if it not in self.delivered]
        if not pending:
            return
        self.stored = self.start
        some = self._chance.sample(pending, self._chance.randint(1, len(pending)))
        self.delivered |= set(pending if everything else some)
        while self.start in self.delivered:
            self.start += 1

    async def describe(self, groups: Sequence[str]) -> Mapping[str, ShareOffsets]:
        self.move()
        stored = self.stored
        count = sum(it >= stored for it in self.delivered)
        self.move()
        lag = self.end - stored - count if self._knows_lag and stored >= 0 else -1
        self.move()
        part = ShareOffset("t", 0, stored, lag, 0)
        broken = ShareOffset("t", 1, 0, 0, AWAY)
        return {it: ShareOffsets(0, (part, broken)) for it in groups}

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert set(partitions) == {TP}, "one with an error is not asked for"
        self.move()
        end = self.end
        self.move()
        return {TP: end} if self.ends_known else {}


def position(broker: Broker) -> FetchedOffset:
    (answer,) = asyncio.run(share_positions(broker, ["g"])).values()
    found, broken = answer.offsets
    assert (broken.error_code, broken.offset) == (AWAY, 0)
    return found


@given(seed=st.integers(0, 1 << 32), knows_lag=st.booleans(), moves=st.integers(0, 60))
def test_all_before_a_position_is_delivered_and_it_is_not_behind_the_start(
    seed: int, *, knows_lag: bool, moves: int
) -> None:
    broker = Broker(seed, knows_lag=knows_lag, moves=moves)
    for _ in range(6):
        stored = broker.stored
        found = position(broker)
        assert found.offset <= broker.start, "records would be skipped"
        assert found.offset >= stored


@given(seed=st.integers(0, 1 << 32), moves=st.integers(0, 60))
def test_a_group_that_has_acknowledged_everything_is_at_the_end(seed: int, moves: int) -> None:
    broker = Broker(seed, knows_lag=True, moves=moves)
    broker.ends_known = True
    for _ in range(200):
        broker.move()
    broker.end += 1
    broker.acknowledge(everything=True)
    assert (position(broker)).offset == broker.end


def behind(broker: Broker) -> int:
    return asyncio.run(delivered_of(broker, ["g"])).get("g", {}).get(TP, 0)


@given(seed=st.integers(0, 1 << 32), knows_lag=st.booleans(), moves=st.integers(0, 60))
def test_no_more_counts_as_delivered_than_was(seed: int, *, knows_lag: bool, moves: int) -> None:
    broker = Broker(seed, knows_lag=knows_lag, moves=moves)
    for _ in range(6):
        stored = max(0, broker.stored)
        assert behind(broker) <= broker.end - stored
        assert knows_lag or not behind(broker)
    quiet = sum(it >= broker.stored for it in broker.delivered)
    if not broker.moves and 0 <= broker.stored < broker.end - quiet:
        assert behind(broker) == (quiet if knows_lag and broker.ends_known else 0)


# -- groups where several flows write into one target, against a log that is read record by record


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
        0,
        f"id of {source}".encode().ljust(16),
        f"id of {copy}".encode().ljust(16),
        len(mine),
        -1,
        -1,
        -1,
        0,
        segments,
    )
    index = MapIndex()
    index.put(TOPIC, 0, decode_head(encode_page(page)), 0)
    return index, page


def place_of(course: Course, flow: str, committed: int) -> int | None:
    """Return where the flow would let a group continue, None where it leaves it alone."""
    logs, shared = course.logs(), SharedCopies()
    maps: dict[str, tuple[MapIndex, Page]] = {}
    for it in course.keeps_names:
        name = course.copy_of(it)
        maps[it] = map_of(logs.get(name, []), it, course.source[it], name)
    shared.maps |= {it: index for it, (index, _) in maps.items() if it != flow}
    shared.learn(
        {it: f"id of {it}".encode().ljust(16) for it in map(course.copy_of, course.keeps_names)}
    )
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
def test_a_copy_whose_name_says_its_origin_is_never_shared(course: Course, committed: int) -> None:
    for flow, keeps_name in course.keeps_names.items():
        if not keeps_name:
            alone = Course({flow: False}, course.source, [it for it in course.order if it == flow])
            assert place_of(course, flow, committed) == place_of(alone, flow, committed)


@given(courses(), st.integers(0, 10))
def test_a_copy_that_one_source_writes_into_places_groups(course: Course, committed: int) -> None:
    for flow in course.keeps_names:
        writers = {course.source[it.flow] for it in course.logs().get(course.copy_of(flow), [])}
        if writers == {course.source[flow]} and flow in course.order:
            assert (place_of(course, flow, committed) is None) == (
                committed > course.order.count(flow)
            )


# -- whatever transforms make of batches and in whichever order target partitions take them


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
class OrderCourse:
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
@settings(max_examples=examples(100))
def test_positions_and_maps_pass_only_what_is_dropped_or_has_arrived(
    parts: list[list[tuple[int, TopicPartition | None]]],
    turns: list[tuple[bool, TopicPartition, int]],
) -> None:
    course, left = OrderCourse(), deque(parts)
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
