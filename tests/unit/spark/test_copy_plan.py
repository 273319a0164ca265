"""What a copy does with each partition: lanes and estimates of a plan, where it continues, and copies that are made again.

A crash between any two steps of a copy that is made again loses nothing, and the next run does the same again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin, ListedOffset, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.errors import ServerError, UsageError
from mm2py.mirror.backfills import CopyAgain, Lease, LeaseState, decode_backfill, encode_backfill
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import (
    START_BITS,
    Mark,
    Page,
    Segment,
    encode_page,
    encode_page_key,
    is_late,
    offset_map_topic,
)
from mm2py.mirror.producer_ids import Suppression
from mm2py.mirror.start_positions import Boundary, parse_boundary
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.protocol.topics import NO_TOPIC_ID, EpochEnd, NewTopic
from mm2py.types import LATEST, ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.archive.archive import source_ends
from mm2py_jobs.archive.archive_format import ArchivedTopic
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.restore import ArchivedLog, Restore
from mm2py_jobs.copy.copy_again import begun, cut_pages, go_back
from mm2py_jobs.copy.dealing import rate_of
from mm2py_jobs.copy.known_maps import KnownMap, KnownMaps
from mm2py_jobs.copy.plan import BYTES_PER_S, PartitionPlan, Plan, Refusal, deal_lanes, estimated_s
from mm2py_jobs.copy.survey import (
    CopiesReader,
    Known,
    Survey,
    SurveyedTopics,
    known_copies,
    paused_alone,
)
from mm2py_jobs.copy.target_settings import smaller_batches
from mm2py_jobs.log.log_ends import LEADERS_S, LogEnds, log_ends
from mm2py_jobs.log.range_reader import RangeReader
from tests.kit.fakes.batches import sealed
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to
from tests.unit.runtime.runtime_fakes import EagerClock
from tests.unit.spark.driver_fakes import ONE, lease_of
from tests.unit.spark.test_archive_task import publish


def part(number: int, size: int) -> PartitionPlan:
    return PartitionPlan(
        topic="t", partition=number, target_topic="A.t", start=0, end=10, bytes=size
    )


def test_the_largest_partition_gets_a_lane_of_its_own() -> None:
    dealt = deal_lanes(
        [part(0, 10 << 20), part(1, 90 << 20), part(2, 20 << 20), part(3, 30 << 20)], 2
    )
    assert [[it.partition for it in lane] for lane in dealt] == [[1], [3, 2, 0]]


def test_empty_partitions_are_spread_over_the_lanes() -> None:
    dealt = deal_lanes([part(number, 0) for number in range(200)], 4)
    assert [len(lane) for lane in dealt] == [50, 50, 50, 50]


def test_there_is_no_lane_without_partitions() -> None:
    assert len(deal_lanes([part(0, 5)], 8)) == 1
    assert deal_lanes([], 8) == []


def test_partitions_of_a_broker_have_lanes_of_their_own_where_lanes_at_one_are_limited() -> None:
    led = [replace(part(it, 10 + it), brokers=frozenset(f"b{it % 3}")) for it in range(9)]

    for lanes in range(1, 12):
        dealt = deal_lanes(led, lanes)
        assert sorted(it.partition for lane in dealt for it in lane) == list(range(9))
        assert len(dealt) == min(lanes, 9)
        if lanes >= 3:
            assert all(len({it.brokers for it in lane}) == 1 for lane in dealt), lanes
    plan = Plan(flow="A->B", partitions=tuple(led), lanes_per_broker=1)
    assert (plan.lanes(1), plan.lanes(1, asked=2)) == (3, 2)
    whole = [replace(part(it, BYTES_PER_S), brokers=frozenset("a")) for it in range(4)]
    assert estimated_s(deal_lanes(whole, 4), 0, 4, 2) == 2, "two at a time"


def test_an_estimate_follows_the_longest_lane_or_the_rate_limit() -> None:
    dealt = deal_lanes([part(0, 2 * BYTES_PER_S), part(1, BYTES_PER_S)], 2)
    assert estimated_s(dealt, 0, 2) == 2
    assert estimated_s(dealt, 0, 1) == 3, "one lane after the other"
    assert estimated_s(dealt, BYTES_PER_S // 10, 2) == pytest.approx(30)
    assert estimated_s([], 0, 2) == 0


@pytest.mark.parametrize(
    ("partitions", "size", "slots", "asked", "lanes"),
    [
        (500, 1 << 20, 2, 0, 4),  # small: more than slots
        (500, 1 << 30, 2, 0, 500),  # large: by its bytes, whatever the cluster has now
        (10_000, 2 << 30, 2, 0, 1_000),
        (3, 1 << 30, 16, 0, 3),  # a partition is in one lane
        (500, 1 << 30, 2, 7, 7),
        (3, 1 << 30, 2, 7, 3),
    ],
)
def test_there_are_as_many_lanes_as_the_work_is_worth_or_were_asked_for(
    partitions: int, size: int, slots: int, asked: int, lanes: int
) -> None:
    plan = Plan(flow="A->B", partitions=tuple(part(number, size) for number in range(partitions)))
    assert plan.lanes(slots, asked) == lanes


def test_a_plan_as_json_has_exclusive_ends_and_names_refusals() -> None:
    plan = Plan(flow="A->B", partitions=(part(0, 7),), refused=(Refusal("u", 3, "because"),))
    document = plan.document(4, 0)
    assert document["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "target_topic": "A.t",
            "from": 0,
            "to": 10,
            "offsets": 10,
            "bytes": 7,
        }
    ]
    assert document["lanes"] == [{"lane": 0, "bytes": 7, "partitions": ["t-0"]}]
    assert document["refused"] == [{"topic": "u", "partition": 3, "reason": "because"}]


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ("earliest", Boundary()),
        ("offset:12", Boundary(offset=12)),
        ("1700000000000", Boundary(timestamp=1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Boundary(timestamp=1_700_000_000_000)),
        ("2023-11-14T22:13:20", Boundary(timestamp=1_700_000_000_000)),
    ],
)
def test_a_boundary_is_an_edge_an_offset_or_a_time(text: str, boundary: Boundary) -> None:
    assert parse_boundary(text, "--from", "earliest") == boundary


@pytest.mark.parametrize("text", ["now", "offset:", "offset:-1", "yesterday", ""])
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        parse_boundary(text, "--from", "earliest")


@pytest.mark.parametrize(("target", "source"), [("1000", "1048588"), ("1048588", "1048589")])
def test_a_target_that_takes_smaller_batches_is_noted(target: str, source: str) -> None:
    def limit(size: str) -> list[ConfigEntry]:
        return [ConfigEntry("max.message.bytes", size)]

    (note,) = smaller_batches("A.t", limit(target), limit(source))
    assert note.startswith(f"A.t has max.message.bytes={target}, its source {source}: ")
    for enough in (limit(source), limit(str(int(source) + 1)), []):
        assert not smaller_batches("A.t", enough, limit(source))


class Slow(EagerClock):
    """Time passes quickly for who waits for leaders."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + LEADERS_S)


class Sides:
    """A source that does not tell what it has at a timestamp, and a target with nothing."""

    def __init__(
        self, topics: Collection[str], end: int = 100, *, elected: Sequence[int] = ()
    ) -> None:
        """``elected``: how many partitions of a topic have a leader when they are asked for the first, the second ... time; then it stays so."""
        self.cluster = SimpleNamespace(clock=Slow(), alias="B", cluster_id="b")
        self._topics, self._end = topics, end
        self._elected = list(elected)
        self.asked: list[int] = []
        """For how many partitions offsets were asked, each time."""
        self._count = max(elected, default=1)

    async def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        return {
            it: TopicDescription(it, b"1", tuple(range(self._count)), internal=False)
            for it in names
            if it in self._topics
        }

    async def denied_topics(self, _names: Collection[str]) -> dict[str, ServerError]:
        return {}

    async def list_offsets(
        self, asked: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        def at(timestamp: int) -> ListedOffset:
            if timestamp > 0:
                return ListedOffset(-1, error=server_error(29))
            return ListedOffset(self._end if timestamp == LATEST else 0)

        self.asked.append(len(asked))
        elected = self._elected[0] if self._elected else self._count
        self._elected = self._elected[1:] or self._elected
        moving = ListedOffset(-1, error=server_error(6))
        return {tp: at(it) if tp.partition < elected else moving for tp, it in asked.items()}

    async def create_topics(self, new: Sequence[NewTopic]) -> dict[str, None]:
        self._topics = (*self._topics, *(it.name for it in new))
        return {it.name: None for it in new}

    async def describe_topic_configs(self, _topics: Collection[str]) -> dict[str, object]:
        return {}

    async def partition_sizes(self, _topics: object) -> dict[TopicPartition, int]:
        return {}


async def test_a_partition_is_refused_whose_source_does_not_tell_what_it_has_at_a_time() -> None:
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), {"t": "A.t"}, "offsets")
    source, target = (cast("Admin", Sides(topics)) for topics in (("t",), ()))
    survey = Survey(source, target, flow, clock=SYSTEM_CLOCK)
    assert [it.end for it in (await survey.plan("", Boundary(), Boundary())).partitions] == [100]
    plan = await survey.plan("", Boundary(timestamp=5), Boundary())
    assert (plan.partitions, plan.refused[0].partition) == ((), 0)


@pytest.mark.parametrize(
    ("elected", "planned", "made"),
    [
        pytest.param([0, 1, 2, 3], 3, [3, 3, 2, 1], id="as long as more and more have leaders"),
        pytest.param([3, 2], 2, [3], id="until no more come"),
    ],
)
async def test_a_plan_waits_for_the_leaders_of_topics_that_were_just_created(
    tmp_path: Path, elected: list[int], planned: int, made: list[int]
) -> None:
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), {"t": "A.t"}, "offsets")
    source, target = Sides(("t",), elected=elected), Sides(())
    survey = Survey(cast("Admin", source), cast("Admin", target), flow, clock=Slow())
    assert len((await survey.plan("", Boundary(), Boundary())).partitions) == planned
    # A restore waits for those that it has made itself, and does not ask for them again.
    target = Sides((), 0, elected=elected)
    restore = a_restore(tmp_path, target, 3, clock=Slow())
    await restore.make_topics()
    assert target.asked == made
    assert len((await restore.plan(Known({}, {}))).partitions) == 3
    assert sum(target.asked) == sum(made)


async def test_archive_and_verify_wait_for_the_leaders_of_topics_that_were_just_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partitions = [TopicPartition("t", number) for number in range(3)]
    source = Sides(("t",), elected=[0, 1, 2, 3])
    ends = await source_ends(cast("Admin", source), partitions, read_committed=True)
    assert ends == dict.fromkeys(partitions, LogEnds(0, 100))
    source = Sides(("t",), elected=[0, 1, 2, 3])

    def admin(_cluster: object) -> Sides:
        return source

    monkeypatch.setattr("mm2py_jobs.log.log_ends.Admin", admin)
    cluster = cast("Cluster", source.cluster)
    assert await log_ends(cluster, partitions, read_committed=True, waits=True) == ends


@pytest.mark.parametrize(
    ("page_id", "epoch_end", "refused"),
    [
        (b"1", -1, False),  # copied as a whole
        (b"2", -1, True),  # created again, with fewer records than were copied
        (b"1", 60, True),  # cut at 60, and written again
    ],
)
async def test_a_backfill_does_not_take_for_done_what_was_copied_of_a_log_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, page_id: bytes, epoch_end: int, *, refused: bool
) -> None:
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), {"t": "A.t"}, "offsets")
    copied = Known({ONE: 150}, {ONE: of(page_id * 16, covered=150, epoch=4)})

    async def known(*_: object, **__: object) -> Known:
        return copied

    class Source(Sides):
        async def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
            there = await super().describe_topics(names)
            return {it: replace(topic, topic_id=b"1" * 16) for it, topic in there.items()}

        async def epoch_ends(
            self, epochs: Mapping[TopicPartition, int]
        ) -> Mapping[TopicPartition, EpochEnd]:
            return {tp: EpochEnd(*tp, 0, epoch, epoch_end) for tp, epoch in epochs.items()}

    monkeypatch.setattr("mm2py_jobs.copy.survey.known_copies", known)
    end = 150 if page_id == b"1" and epoch_end < 0 else 100
    source, target = cast("Admin", Source(("t",), end)), cast("Admin", Sides(()))
    survey = Survey(source, target, flow, clock=SYSTEM_CLOCK)
    plan = await survey.plan("", Boundary(), Boundary())
    assert bool(plan.refused) is refused
    assert not refused or "of a log that is not there any more" in plan.refused[0].reason
    stream = await survey.plan("", Boundary(), Boundary(), has_end=False)
    assert not stream.refused  # its lanes copy what is there now


@pytest.mark.parametrize(
    ("segments", "copy", "noted"),
    [
        ((Segment(40, 60, 0),), "A.t", "t-0: the flow began at offset 40 of it"),
        ((Segment(0, 100, 0),), "A.t", ""),
        ((Segment(40, 60, 40),), "A.t", ""),  # another program copied what lies below
        # There is room for copies; under the same names it may be full of the target's own records.
        ((Segment(0, 60, 0), Segment(60, 40, 60, Mark.UNKNOWN)), "A.t", ""),
        ((Segment(0, 60, 0), Segment(60, 40, 60, Mark.UNKNOWN)), "t", "t-0: offsets 60 to 99 were"),
        ((Segment(0, 60, 39), Segment(60, 40, 99, Mark.UNKNOWN)), "A.t", "t-0: offsets 60 to 99"),
    ],
)
async def test_what_lies_before_the_first_copy_or_was_passed_is_not_said_to_be_copied(
    monkeypatch: pytest.MonkeyPatch, segments: tuple[Segment, ...], copy: str, noted: str
) -> None:
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), {"t": copy}, "offsets")
    maps = offset_map_topic(ClusterAlias("A"))
    written = Page(0, NO_TOPIC_ID, NO_TOPIC_ID, 100, -1, -1, -1, -1, segments)
    later = replace(written, number=1, segments=(Segment(100, 9, 100),))
    async with FakeBroker(topics={maps: 1}) as broker, connected_to(broker, alias="B") as cluster:
        for it in (written, later):
            batch = encode_batch([NewRecord(encode_page_key(ONE, it.number), encode_page(it))])
            broker.append(TopicPartition(maps, 0), bytes(sealed(batch)))
        known = await known_copies(Admin(cluster), flow, [ONE], SYSTEM_CLOCK, whole=True)
    assert known.pages[ONE].number == 1

    async def read(*_: object, **__: object) -> Known:
        return known

    monkeypatch.setattr("mm2py_jobs.copy.survey.known_copies", read)
    source, target = (cast("Admin", Sides(topics)) for topics in (("t",), ()))
    survey = Survey(source, target, flow, clock=SYSTEM_CLOCK)
    plan = await survey.plan("", Boundary(), Boundary())
    assert noted in " ".join(plan.notes)
    assert len(plan.notes) == bool(noted)


async def test_positions_are_read_before_the_map_whatever_order_topics_are_listed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flow writes its map first: a position that is newer than the map would seem to be set."""
    read: list[str] = []

    class Reader:
        def __init__(self, _cluster: object, topic: str, **_: object) -> None:
            self._topic = topic

        async def read_to_end(self, _take: object) -> None:
            read.append(self._topic)

    class Listing:
        cluster = None

        async def describe_topics(self, names: Collection[str]) -> Mapping[str, None]:
            return dict.fromkeys(sorted(names))

    monkeypatch.setattr("mm2py_jobs.copy.survey.LogReader", Reader)
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    await CopiesReader(cast("Admin", Listing()), flow, "offsets", SYSTEM_CLOCK).read()
    assert read[:2] == ["offsets", offset_map_topic(ClusterAlias("A"))]


@pytest.mark.parametrize(("page", "is_known"), [((0, 60), False), ((20, 20), True)])
async def test_a_page_that_has_only_where_a_copy_begins_is_no_copy(
    page: tuple[int, int], *, is_known: bool
) -> None:
    """Else a position that Java stored would be taken for one of the topic that is there now."""
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), {"t": "t"}, "offsets")
    maps = offset_map_topic(ClusterAlias("A"))
    value = encode_page(Page(0, NO_TOPIC_ID, NO_TOPIC_ID, *page, -1, -1, -1, ()))
    async with FakeBroker(topics={maps: 1}) as broker, connected_to(broker, alias="B") as cluster:
        batch = encode_batch([NewRecord(encode_page_key(ONE, 0), value)])
        broker.append(TopicPartition(maps, 0), bytes(sealed(batch)))
        known = await known_copies(Admin(cluster), flow, [ONE], SYSTEM_CLOCK)
    assert known.has(ONE) == is_known


async def test_topics_of_a_backfill_are_names_and_patterns_with_commas_as_in_the_file() -> None:
    names = ("a", "b", "b2", "c")
    copies = {it: f"A.{it}" for it in names}
    flow = SurveyedTopics(FlowName(ClusterAlias("A"), ClusterAlias("B")), copies, "offsets")
    source, target = (cast("Admin", Sides(topics)) for topics in (names, ()))
    survey = Survey(source, target, flow, clock=SYSTEM_CLOCK)
    for topics, chosen in (("a,b.*", ["a", "b", "b2"]), ("c , a", ["a", "c"]), ("b", ["b"])):
        plan = await survey.plan(topics, Boundary(), Boundary())
        assert sorted(it.topic for it in plan.partitions) == chosen


def a_restore(
    path: Path,
    target: Sides,
    partitions: int,
    *held: TopicPartition,
    begins: int = 0,
    clock: Clock = SYSTEM_CLOCK,
    topic_id: str = "",
    end: int = 9,
    copy: str = "A.t",
) -> Restore:
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    topic = ArchivedTopic(topic="t", topic_id=topic_id, partitions=partitions, configs={})
    logs = [
        ArchivedLog(
            topic=topic,
            partition=number,
            target_topic=copy,
            begins=begins,
            end=end,
            records=end - begins,
            bytes=9,
            lost=0,
        )
        for number in range(partitions)
    ]
    admin, store = cast("Admin", target), ArchiveStore(str(path))
    return Restore(flow, logs, admin, store, clock, Suppression.OFF, frozenset(held))


@pytest.mark.parametrize("begins", [0, 5])
async def test_a_restore_that_was_cancelled_before_it_copied_anything_may_begin_again(
    tmp_path: Path, begins: int
) -> None:
    tp, ids = TopicPartition("t", 0), (NO_TOPIC_ID, NO_TOPIC_ID)
    restore = a_restore(tmp_path, Sides(("A.t",), 0), 1, begins=begins)
    for map_page in (None, Page(0, *ids, 0, begins, -1, 7, 0, (Segment(begins, 0, 0),))):
        pages = {} if map_page is None else {tp: map_page}
        plan = await restore.plan(Known({tp: begins}, pages))
        assert [(it.start, it.end) for it in plan.partitions] == [(begins, 9)]
    assert not restore.emptied
    assert (await restore.plan(Known({tp: 9}, {}))).refused
    assert restore.emptied == {tp}


async def test_a_restore_says_what_topics_get_that_it_makes(tmp_path: Path) -> None:
    plan = await a_restore(tmp_path, Sides((), 0), 1).plan(Known({}, {}))
    assert plan.notes == (
        "A.t does not exist on the target yet, it is created with the archive's partitions, "
        "cleanup.policy and max.message.bytes, and retention.ms=-1",
    )


NOW, FORMER = b"n" * 16, b"f" * 16


@pytest.mark.parametrize(
    "known",
    [
        Known({ONE: 5}, {ONE: Page(0, NOW, NO_TOPIC_ID, 5, 5, -1, 7, 0, (Segment(0, 5, 0),))}),
        Known({ONE: 5}, {}, ids={ONE: NOW}),  # the map was lost
        Known({ONE: 5}, {}, incarnations={ONE: NOW}),
    ],
)
async def test_a_restore_puts_no_records_behind_copies_of_another_topic_of_that_name(
    tmp_path: Path, known: Known
) -> None:
    """The flow would continue behind what is restored, and skip as much of the topic that is there now."""
    restore = a_restore(tmp_path, Sides(("A.t",), 5), 1, topic_id=FORMER.hex())
    (refused,) = (await restore.plan(known)).refused
    assert "copies of another topic of that name" in refused.reason


@pytest.mark.parametrize(
    ("copies", "started", "outcome"),
    [
        (range(20), 0, ""),
        (range(100, 120), 0, "copies of another topic of that name, use --rename; or the position"),
        (range(100, 120), 3, "the copies do not show"),  # retention may have taken them
        (range(18), 0, "t-0: offsets 18 to 19 were passed"),  # by hand
    ],
)
async def test_a_position_without_a_topic_id_is_compared_by_the_last_archived_records_before_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copies: Sequence[int],
    started: int,
    outcome: str,
) -> None:
    """As MirrorMaker 2 of Java stores it: the source topic may have been created again before it was archived."""

    async def no_configs(_admin: Admin, _names: Collection[str]) -> Mapping[str, object]:
        return {}

    monkeypatch.setattr(Admin, "describe_topic_configs", no_configs)
    tp, copy = TopicPartition("t", 0), TopicPartition("A.t", 0)
    publish(ArchiveStore(str(tmp_path)), tp, 0, 40)
    target = Sides(("A.t",), len(copies))
    restore = a_restore(tmp_path, target, 1, topic_id=FORMER.hex(), end=40)
    async with FakeBroker(topics={"A.t": 1}) as broker, connected_to(broker, alias="B") as cluster:
        vars(target)["cluster"] = cluster
        for number in copies:
            # Each fifth of the archive is alike.
            value = number % 5 if number < 100 else number
            broker.append(copy, bytes(sealed(encode_batch([NewRecord(b"k", b"%d" % value)]))))
        broker.partition(copy).start = started
        plan = await restore.plan(Known({tp: 20}, {}))
    refused = [it.reason for it in plan.refused]
    assert outcome in " ".join((*refused, *plan.notes))
    is_refused = "another topic" in outcome
    assert (len(refused), len(plan.notes)) == (is_refused, bool(outcome) and not is_refused)


def mapped(*segments: Segment, covered: int) -> Page:
    return Page(0, FORMER, NO_TOPIC_ID, covered, covered, -1, 7, 0, segments)


BEFORE, PASSED = Segment(0, 20, 0), Segment(20, 10, 20, Mark.UNKNOWN)


@pytest.mark.parametrize(
    ("page", "copy", "copies", "refused", "noted"),
    [
        (mapped(BEFORE, covered=20), "A.t", 20, "set it to 19", ""),
        (mapped(BEFORE, covered=20), "A.t", 25, "", "t-0: offsets 20 to 29 were passed"),
        # Another program copied them; or they are the target's own, under the same names.
        (mapped(BEFORE, covered=20), "A.t", 30, "", ""),
        (mapped(BEFORE, covered=20), "t", 30, "", "t-0: offsets 20 to 29 were passed"),
        # A task has run since.
        (mapped(BEFORE, PASSED, Segment(30, 0, 20), covered=30), "A.t", 20, "set it to 19", ""),
        (mapped(BEFORE, PASSED, Segment(30, 0, 30), covered=30), "A.t", 30, "", ""),
        (mapped(BEFORE, PASSED, Segment(30, 5, 20), covered=35), "A.t", 25, "", "offsets 20 to 29"),
        (mapped(BEFORE, covered=35), "A.t", 20, "", ""),  # nothing was set
        (mapped(Segment(0, 30, 0), covered=10), "A.t", 30, "", ""),  # set back, then forward again
        (mapped(Segment(30, 0, 20), covered=0), "A.t", 20, "", ""),  # it begins at a position
    ],
)
async def test_a_position_that_was_set_past_the_copies_is_refused_and_what_was_passed_is_named(
    page: Page, copy: str, copies: int, refused: str, noted: str, tmp_path: Path
) -> None:
    """The restore would be done, and the records in between would be nowhere."""
    known = Known({ONE: max(30, page.covered)}, {ONE: page}, maps={ONE: KnownMap({0: page})})
    target = Sides((copy,), copies)
    restore = a_restore(tmp_path, target, 1, topic_id=FORMER.hex(), end=40, copy=copy)
    plan = await restore.plan(known)
    reasons = [it.reason for it in plan.refused]
    assert (len(reasons), len(plan.notes)) == (bool(refused), bool(noted))
    assert refused in " ".join(reasons)
    assert noted in " ".join(plan.notes)
    assert restore.passed == ({ONE} if refused else set())
    # A loss that was accepted in a failover is named so, one that is larger is not.
    for end, named in (30, True), (25, False):
        kept = replace(known, quarantined={ONE: [(20, end)]})
        for it in (await restore.plan(kept)).refused:
            assert refused in it.reason
            assert ("were not copied to A.t-0, which was accepted" in it.reason) is named
            assert ("mm2py-quarantine.A.t.internal" in it.reason) is named
            assert ("was set past" in it.reason) is not named


async def test_a_restore_refuses_what_was_paused_alone_under_the_name_of_the_flow(
    tmp_path: Path,
) -> None:
    restore = a_restore(tmp_path, Sides(()), 2, TopicPartition("t", 1))
    plan = await restore.plan(Known({}, {}))
    assert [it.partition for it in plan.partitions] == [0]
    assert [(it.partition, it.reason) for it in plan.refused] == [
        (1, paused_alone(FlowName(ClusterAlias("A"), ClusterAlias("B")), "t"))
    ]


async def test_a_lane_reads_no_faster_than_its_share_of_the_limit() -> None:
    tp, values = TopicPartition("t", 0), [b"%d" % n + bytes(9_000) for n in range(10)]
    async with FakeBroker(topics={"t": 1}) as broker, connected_to(broker, alias="A") as cluster:
        for value in values:
            batch = encode_batch([NewRecord(b"k", value, (), 1)])
            broker.append(tp, bytes(sealed(batch)))
        rate = rate_of({"rate": 90_000.0}, SYSTEM_CLOCK)
        reader = RangeReader(cluster, read_committed=False, rate=rate)
        began = SYSTEM_CLOCK.monotonic()
        found = [it async for batches in reader.read(tp, 0, 10) for it in batches]
        assert SYSTEM_CLOCK.monotonic() - began > 0.5, (
            "90 KB, of which a quarter of a second is at once"
        )
    assert [it.base_offset for it in found] == list(range(10))
    assert rate_of({"rate": 0}, SYSTEM_CLOCK) is None


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
def test_a_position_that_the_map_does_not_know_is_followed(stored: int, continues: int) -> None:
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


def test_a_log_that_does_not_reach_the_position_counts_from_its_beginning() -> None:
    assert Known({ONE: 100}, {}).copied(ONE, NO_TOPIC_ID, LogEnds(5, 80), None) == 5
    assert Known({ONE: 100}, {}).copied(ONE, NEW, LogEnds(5, 80), None) == 5


SOURCE, COPY = TopicPartition("t", 0), TopicPartition("a.t", 0)
NO_ID = bytes(16)


class CrashError(Exception):
    """The driver dies here."""


class Target:
    """A target partition with 1,000 copies, of which the position is 1,000."""

    def __init__(self, end: int = 1_000) -> None:
        self.start, self.end, self.source_start = 0, end, 0
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

    async def source_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        self._step()
        return dict.fromkeys(sources, self.source_start)

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self._step()
        (self.position,) = positions.values()

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        self._step()
        (below,) = ends.values()
        assert not below or not self.position, "1: the position is stored before a deletion"
        self.start = max(self.start, below)

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self._step()
        ((self.map_end, _),) = places.values()


def lease(start: int, *, deletes: bool, compared_to: int = 1_000) -> Lease:
    again = CopyAgain(topic="a.t", compared_to=compared_to, deletes=deletes)
    return replace(lease_of(SOURCE, start=start, end=1_000), again=again)


@pytest.mark.parametrize("crash_at", range(7))
async def test_1_copies_are_deleted_behind_the_position_below_the_leases_end(crash_at: int) -> None:
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


async def test_2_a_copy_is_not_deleted_where_the_source_has_lost_of_it_meanwhile() -> None:
    target = Target()
    target.source_start = 1
    (found,) = await begun(target, [lease(0, deletes=True)])
    assert found.state is LeaseState.HANDED_OVER
    assert "has deleted its offsets 0 to 1 since" in found.cause
    assert await go_back(target, [found]) == [found]
    assert (target.position, target.start) == (1_000, 0)
    named = replace(
        lease(0, deletes=True),
        again=CopyAgain(topic="a.t", compared_to=1_000, deletes=True, below=9),
    )
    assert await begun(target, [named]) == [named], "what is begun is done to its end"


def test_a_lease_of_a_copy_that_is_made_again_is_the_same_behind_its_record() -> None:
    stored = lease(5, deletes=True)
    assert decode_backfill(*encode_backfill(stored)) == stored


def pages_of(count: int) -> dict[int, Page]:
    """Pages of two segments each, of ten records and with a hole of one source offset behind each."""
    segments = [Segment(n * 11, 10, n * 10) for n in range(count)]
    return {
        number: Page(
            number, NO_ID, NO_ID, count * 11, count * 11, 3, -1, -1, tuple(segments[number * 2 : number * 2 + 2]),
            start=number + 1 << START_BITS,
        )
        for number in range(count // 2)
    }  # fmt: skip


def taken(pages: Iterable[Page], *, whole: bool = True) -> KnownMap:
    """Return the map that records of its topic make."""
    maps = KnownMaps(whole=whole)
    for at, page in enumerate(pages):
        key, value = encode_page_key(ONE, page.number), encode_page(page)
        maps.take(0, Record(at, -1, key, value))
    return maps.known()[ONE]


def test_a_page_that_a_start_wrote_again_before_it_was_killed_ends_none_of_those_after_it() -> None:
    pages = pages_of(8)
    topic = [*pages.values(), replace(pages[1], start=9 << START_BITS)]
    assert taken(topic).pages == pages
    assert taken(topic, whole=False).pages == {0: pages[0], 3: pages[3]}


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
    assert removed == [it for it in (3, 2, 1, 0) if it > page.number]
    assert not is_late(page.start, pages[3].start), "readers take it"
    kept = [pages[it] for it in range(page.number)] + [page]
    left = [
        (it.source + n, it.target + n)
        for each in kept
        for it in each.segments
        for n in range(it.records)
    ]
    assert left == copied[:end]
    assert (page.position, PartitionMap(page).covered) == (covered, covered)


def test_of_a_map_of_which_nothing_is_left_one_page_stays_that_late_ones_do_not_follow() -> None:
    pages = pages_of(4)
    page, removed = cut_pages(pages, -1, 0)
    assert (PartitionMap(page).is_empty, PartitionMap(page).covered, removed) == (True, 0, [1])
    assert PartitionMap(page).resume(5) == 5
    assert taken([page, *pages.values()]).pages == {0: page}
    lost = Page(
        0, NO_ID, NO_ID, 100, 100, -1, -1, -1, (Segment(0, 60, 0), Segment(60, 40, 60, Mark.TARGET_LOST))
    )  # fmt: skip
    page, removed = cut_pages({0: lost}, 60, 60)
    assert (page.segments, page.covered, removed) == ((Segment(0, 60, 0),), 60, [])
