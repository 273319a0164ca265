"""The exact map: its bytes (docs/reference/formats.md), what single events make of it, the library that reads it, and what it says of records that are no copies."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from mm2py.client.connect.admin import ListedOffset
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import connection_settings
from mm2py.errors import ConnectionFailedError, FatalError, ProtocolError, ServerError
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.offset_lookup import (
    MapIndex,
    PageMissingError,
    PartitionIndex,
    Place,
    own_from,
    to_source,
    to_target,
)
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import (
    PAGE_SEGMENTS,
    START_BITS,
    Mark,
    Page,
    PageRef,
    Segment,
    decode_head,
    decode_page,
    decode_page_key,
    encode_page,
    encode_page_key,
)
from mm2py.mirror.offset_map_reader import (
    MARKERS_AT_ONCE,
    OffsetMapReader,
    PageCache,
    no_record_until,
)
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror_client import MirrorClient, RemoteOffset, hop_count
from mm2py.protocol.error_codes import OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED, server_error
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import ABORT, COMMIT, TRANSACTIONAL, marker, stored_batch
from tests.kit.fakes.broker import FakeBroker

FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"
ORDERS, T = TopicPartition("orders-eu", 3), TopicPartition("t", 0)
OLD, NEW = bytes(range(16)), bytes(range(16, 32))
SEGMENTS = (
    Segment(1000, 500, 0),
    Segment(1500, 100, 500, Mark.SOURCE_LOST),
    Segment(1600, 1, 500),
    Segment(1602, 8, 501),
)
GOLDEN = Page(0, OLD, NEW, 1612, 1612, 7, 4711, 0, SEGMENTS, start=(7 << START_BITS) | 4711)
SEGMENTS_2 = (
    Segment(4_999_999_000, 900, 7_000_000_000),
    Segment(4_999_999_500, 1000, 7_000_000_900),
)
GOLDEN_2 = Page(300, bytes(16), bytes(16), 5_000_000_000, -1, -1, -1, -1, SEGMENTS_2)
COPIED, NEVER, AT_END = Place.COPIED, Place.NEVER_EXISTED, Place.AT_END
LOST = Place.LOST
UNKNOWN, NOT_YET = (Place.UNKNOWN, -1), (Place.NOT_YET_COPIED, -1)


def documented(name: str) -> list[bytes]:
    """Return the hex blocks of a golden vector on the page, in the map's chapter."""
    chapter = (
        FORMATS.read_text().split("mm2py-offset-map.<source>.internal`\n")[1].split("\n## ")[0]
    )
    section = chapter.split(f"{name}, key and value:")[1].split("which is")[0]
    return [
        bytes.fromhex(it) for it in re.findall(r"(?:^    [0-9a-f ]+\n)+", section, re.MULTILINE)
    ]


@pytest.mark.parametrize(
    ("name", "partition", "page"),
    [("Golden vector 1", ORDERS, GOLDEN), ("Golden vector 2", TopicPartition("café", 0), GOLDEN_2)],
)
def test_pages_have_the_documented_bytes(name: str, partition: TopicPartition, page: Page) -> None:
    key, value = documented(name)
    assert encode_page_key(partition, page.number) == key
    assert encode_page(page) == value
    assert decode_page_key(key) == (partition, page.number)
    read = decode_page(page.number, value)
    assert (read, read.start) == (page, page.start)


@pytest.mark.parametrize("source", [2**59, 2**60, 2**61, 2**63 - 2])
def test_a_page_of_any_offset_is_read_as_it_was_written(source: int) -> None:
    segments = (
        Segment(source, 1, 2**63 - 2, Mark.COPIED),
        Segment(0, 1, 2**63 - 1, Mark.SOURCE_LOST),
    )
    page = replace(GOLDEN, segments=segments, covered=source + 1)
    assert decode_page(page.number, encode_page(page)) == page


def test_a_position_of_0_is_none_for_earlier_builds_that_read_the_stored_one_so() -> None:
    page, none = replace(GOLDEN, position=0), replace(GOLDEN, position=-1)
    assert page.start
    value, earlier = encode_page(page), encode_page(none)
    assert value[:-12] == earlier[:-12]
    for each, encoded in ((page, value), (none, earlier)):
        assert decode_page(each.number, encoded) == each
        assert decode_head(encoded).position == each.position


CUT = encode_page(replace(GOLDEN, start=0))


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(40), CUT[:-1], CUT[:-3] + b"\x0f\x02\x01"])
def test_damaged_pages_are_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_page(0, value)


@pytest.mark.parametrize(
    "key", [None, b"", b"\x02", b"\x01\x00\x09abc", b"\x01\x00\x01\xff" + bytes(8)]
)
def test_damaged_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_page_key(key)


def look(partition_map: PartitionMap) -> tuple[PartitionIndex, Mapping[int, Page]]:
    index, pages = PartitionIndex(), dict[int, Page]()
    for page in partition_map.take():
        pages[page.number] = page
        index.put(page.number, decode_head(encode_page(page)), 100 + page.number)
    return index, pages


def translated(partition_map: PartitionMap, *offsets: int) -> list[tuple[Place, int]]:
    index, pages = look(partition_map)
    partition_map.again()
    return [to_target(index, offset, lambda ref: pages[ref.number]) for offset in offsets]


def back(partition_map: PartitionMap, *offsets: int) -> list[tuple[Place, int]]:
    index, pages = look(partition_map)
    partition_map.again()
    return [to_source(index, offset, lambda ref: pages[ref.number]) for offset in offsets]


def test_a_dense_partition_is_one_run_for_ever() -> None:
    partition = PartitionMap()
    for at in range(0, 100_000, 100):
        partition.add(at, 100, at + 7)
    (page,) = partition.take()
    assert page.segments == (Segment(0, 100_000, 7),)
    assert partition.take() == []
    partition.add(100_000, 1, 100_007)
    assert partition.take()[0].segments == (Segment(0, 100_001, 7),)


@pytest.mark.parametrize("size", [10, 10_000])
def test_invariant_8_the_first_segment_is_where_the_map_begins(size: int) -> None:
    from_start, taken_over = PartitionMap(), PartitionMap()
    from_start.anchor(0, size)  # the source begins later, and the target has records of others
    taken_over.anchor(size, size)
    for partition in (from_start, taken_over):
        assert translated(partition, size) == [NOT_YET]
        partition.add(size + 2, 5, size + 3)
    assert translated(from_start, 0, size - 1) == [(NEVER, size + 3)] * 2
    assert back(from_start, 0, size - 1) == [(NEVER, size + 2)] * 2
    assert translated(taken_over, 0, size - 1) == [UNKNOWN] * 2
    assert back(taken_over, 0, size - 1) == [UNKNOWN] * 2
    assert translated(taken_over, size) == [(NEVER, size + 3)]
    assert back(taken_over, size) == [(NEVER, size + 2)]
    taken_over.lose_target(0)  # the copy was created again
    assert translated(taken_over, size - 1) == [UNKNOWN]


def test_another_incarnation_begins_a_map_of_its_own() -> None:
    partition = PartitionMap()
    partition.identify(OLD)
    for at in range(300):
        partition.add(2 * at, 1, at)
    index, pages = PartitionIndex(), dict[int, Page]()
    for page in partition.take():
        index.put(page.number, decode_head(encode_page(page)), page.number)
    partition.note(NEW, under_way=2)
    assert partition.source_id == OLD
    partition.add(600, 3, 300)  # the third one is the first of the new topic
    assert partition.source_id == NEW
    for page in partition.take():
        index.put(page.number, decode_head(encode_page(page)), page.number)
        pages[page.number] = page
    assert [it.number for it in index.pages] == [0]
    assert index.source_id == NEW
    assert pages[0].segments == (Segment(0, 0, 302), Segment(602, 1, 302))


def test_a_run_without_a_target_offset_is_unknown_not_a_hole() -> None:
    partition = PartitionMap()
    partition.add(0, 10, 0)
    partition.add(10, 5, -1)
    partition.add(15, 5, 20)
    assert translated(partition, 9, 12, 15) == [(COPIED, 9), UNKNOWN, (COPIED, 20)]
    assert back(partition, 12, 20) == [UNKNOWN, (COPIED, 15)]


def grown(pages: int) -> PartitionMap:
    """Return the map of a source of which every second offset is a hole."""
    partition = PartitionMap()
    for at in range(pages * PAGE_SEGMENTS):
        partition.add(2 * at, 1, at)
    return partition


def test_invariant_10_a_page_is_true_without_those_that_are_written_with_it() -> None:
    partition = grown(2)
    partition.writes_to(NEW, 7, 0)
    partition.writes_to(NEW, 8, PAGE_SEGMENTS + 9)
    partition.writes_to(NEW, 9, PAGE_SEGMENTS + 9)  # the one before wrote nothing
    partition.add(10_000, 1, 2 * PAGE_SEGMENTS)
    partition.note(Segment(10_001, 5, 0, Mark.SOURCE_LOST))
    found = [(it.covered, it.producer_id, it.producer_from) for it in partition.take()]
    assert found == [
        (2 * PAGE_SEGMENTS, 7, 0),  # what is behind it may be there, written with 7
        (10_000, 9, PAGE_SEGMENTS + 9),
        (10_001, 9, PAGE_SEGMENTS + 9),
    ]


def test_only_pages_below_both_logs_expire_and_the_newest_stays() -> None:
    partition = grown(3)
    partition.take()
    assert partition.expired(10_000, 10_000) == [0, 1]
    assert partition.expired(4 * PAGE_SEGMENTS - 1, 10_000) == [0, 1]
    assert partition.expired(4 * PAGE_SEGMENTS - 2, 10_000) == [0]
    assert partition.expired(10_000, 2 * PAGE_SEGMENTS - 1) == [0]
    assert partition.expired(0, 10_000) == []
    partition.forget(0)
    assert partition.expired(10_000, 10_000) == [1]
    partition.note(NEW)  # another incarnation begins with page 0
    partition.forget(1)
    assert partition.expired(10_000, 10_000) == []


def test_a_page_stays_while_a_later_one_speaks_of_lower_source_offsets() -> None:
    partition = grown(2)
    end = 2 * PAGE_SEGMENTS
    partition.add(4, 1, end)  # copied again
    for at in range(PAGE_SEGMENTS):
        partition.add(2 * (end + at), 1, end + 1 + at)
    partition.take()
    assert partition.expired(10_000, 10_000) == []
    assert partition.expired(10_000, 10_000) == []


def test_an_offset_whose_page_has_expired_is_expired_both_ways() -> None:
    index, pages = look(grown(3))
    index.forget(0)
    assert index.is_whole

    def page(ref: PageRef) -> Page:
        return pages[ref.number]

    assert to_target(index, 20, page) == (Place.EXPIRED, PAGE_SEGMENTS)
    assert to_source(index, 20, page) == (Place.EXPIRED, 2 * PAGE_SEGMENTS)
    assert to_target(index, 2 * PAGE_SEGMENTS + 1, page) == (NEVER, PAGE_SEGMENTS + 1)
    assert to_target(index, 2 * PAGE_SEGMENTS, page) == (COPIED, PAGE_SEGMENTS)
    assert to_source(index, PAGE_SEGMENTS, page) == (COPIED, 2 * PAGE_SEGMENTS)


@pytest.mark.parametrize("late", [(0,), (1,), (2,), (0, 2)])
def test_a_map_begins_after_pages_that_compaction_removed_for_late_ones_of_a_killed_task(
    late: Sequence[int],
) -> None:
    """Nothing before it is expired: a group that was placed after it would skip records."""
    pages = [
        Page(at, OLD, NEW, 80, 80, -1, -1, 0, (Segment(20 * at, 10, 10 * at),), start=2 << START_BITS)
        for at in range(4)
    ]  # fmt: skip
    whole, left = MapIndex(), MapIndex()
    for index, topic in (
        (whole, pages),
        (left, [*(it for it in pages if it.number not in late),
                *(replace(pages[it], start=1 << START_BITS) for it in late)]),
    ):  # fmt: skip
        for at, page in enumerate(topic):
            index.take(Record(at, -1, encode_page_key(T, page.number), encode_page(page)))
    before, after = whole.of(T), left.of(T)
    assert before is not None
    assert after is not None

    def page_of(ref: PageRef) -> Page:
        return pages[ref.number]

    first = max(late) + 1
    for offset in range(90):
        known = to_target(before, offset, page_of) if offset >= 20 * first else UNKNOWN
        assert to_target(after, offset, page_of) == known
    for offset in range(50):
        known = to_source(before, offset, page_of) if offset >= 10 * first else UNKNOWN
        assert to_source(after, offset, page_of) == known
    assert own_from(before, page_of, begin=0, end=50) == 40
    assert own_from(after, page_of, begin=0, end=50) == 0


def test_the_cache_keeps_the_pages_used_last() -> None:
    cache = PageCache(kept_segments=5)

    def ref(position: int) -> PageRef:
        return PageRef(0, position, 0, 0, 0, 0, 0)

    page = Page(0, OLD, NEW, 0, -1, -1, -1, -1, (Segment(0, 1, 0), Segment(2, 1, 1)))
    cache.put(ref(1), page)
    cache.put(ref(2), page)
    cache.get(ref(1))
    cache.put(ref(3), page)
    assert cache.get(ref(1)) is page
    with pytest.raises(PageMissingError):
        cache.get(ref(2))
    assert len(cache) == 2


SEPARATOR = "replication.policy.separator"
IDENTITY = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "source.cluster.alias": "source",
}


@asynccontextmanager
async def client_of(
    topics: Sequence[str], props: dict[str, str] | None = None
) -> AsyncGenerator[tuple[MirrorClient, FakeBroker]]:
    async with FakeBroker(topics=dict.fromkeys(topics, 1)) as broker:
        ((host, port),) = broker.bootstrap_servers
        config = {"bootstrap.servers": "nowhere:1", "admin.bootstrap.servers": f"{host}:{port}"}
        config |= {"consumer.bootstrap.servers": f"{host}:{port}", **(props or {})}
        async with MirrorClient(config) as client:
            yield client, broker


@pytest.mark.parametrize(
    ("topic", "alias", "hops"),
    [
        ("topic", "source", -1),
        ("source", "source", -1),
        ("sourcetopic", "source", -1),
        ("source1.topic", "source2", -1),
        ("source3.source2.source1.topic", "source4", -1),
        ("source1.topic", "source1", 1),
        ("source2.source1.topic", "source2", 1),
        ("source2.source1.topic", "source1", 2),
        ("source3.source2.source1.topic", "source1", 3),
    ],
)
def test_hops_are_counted_along_the_name(topic: str, alias: str, hops: int) -> None:
    assert hop_count(policy_from_config({}), topic, alias) == hops


async def test_heartbeats_name_the_clusters_upstream_and_their_distance() -> None:
    topics = ["topic1", "heartbeats", "heartbeats!", "source1heartbeats", "source1.heartbeats"]
    topics += ["source1.source2.heartbeats", "source3.source4.source5.heartbeats"]
    async with client_of(topics) as (client, _):
        assert await client.heartbeat_topics() == {topics[1], *topics[4:]}
        assert await client.upstream_clusters() == {f"source{number}" for number in range(1, 6)}
        hops = [await client.replication_hops(f"source{number}") for number in (1, 2, 3, 5, 6)]
        assert hops == [1, 2, 1, 3, -1]


async def test_checkpoint_topics_have_a_source() -> None:
    topics = ["checkpoints.internal", "source1.checkpoints.internal", "a.b.checkpoints.internal"]
    topics += ["checkpoints-internal", "source1checkpointsinternal"]
    async with client_of(topics) as (client, _):
        assert await client.checkpoint_topics() == set(topics[1:3])


@pytest.mark.parametrize("separator", [".", "__"])
async def test_remote_topics_have_a_source_and_are_not_internal(separator: str) -> None:
    remote = [
        separator.join(it)
        for it in (("source1", "topic4"), ("source1", "source2", "topic5"), ("source3", "t"))
    ]
    local = ["topic1", "topic2", separator.join(("source1", "checkpoints", "internal"))]
    async with client_of([*remote, *local], {SEPARATOR: separator}) as (client, _):
        assert await client.remote_topics() == set(remote)
        assert await client.remote_topics("source1") == set(remote[:2])


async def test_with_the_identity_policy_every_topic_is_remote_but_heartbeats() -> None:
    topics = ["topic1", "topic2", "heartbeats", "backup.heartbeats"]
    async with client_of(topics, IDENTITY) as (client, _):
        assert await client.remote_topics() == {"topic1", "topic2", "backup.heartbeats"}
        assert await client.upstream_clusters() == {"backup"}


async def test_the_last_checkpoint_of_each_partition_of_a_group_counts() -> None:
    topic = TopicPartition("A.checkpoints.internal", 0)
    first, second = TopicPartition("A.t", 0), TopicPartition("A.t", 1)
    records = [
        NewRecord(*encode_checkpoint(Checkpoint(*it)))
        for it in (
            ("g1", first, 1, 1, ""),
            ("g2", first, 5, 4, "m"),
            ("g1", second, 7, 7, ""),
            ("g1", first, 3, 2, "new"),
        )
    ]
    async with client_of([topic.topic]) as (client, broker):
        broker.append(topic, bytes(encode_batch([*records, NewRecord(b"rubbish", b"")])))
        one = {first: RemoteOffset(2, "new"), second: RemoteOffset(7, "")}
        other = {first: RemoteOffset(4, "m")}
        assert await client.remote_consumer_offsets("g1", "A") == {"g1": one}
        assert await client.remote_consumer_offsets("g", "A") == {}
        assert await client.remote_consumer_offsets("g.", "A") == {}
        pattern = re.compile("g.")
        assert await client.remote_consumer_offsets(pattern, "A") == {"g1": one, "g2": other}
        with pytest.raises(FatalError, match=r"there are no checkpoints of X here"):
            await client.remote_consumer_offsets("g1", "X")


@pytest.mark.parametrize(
    "copy", ["the one of the map", "another one", "gone", "under another name"]
)
async def test_a_map_about_another_copy_than_the_present_places_nothing(copy: str) -> None:
    pages, checkpoints = "mm2py-offset-map.A.internal", "A.checkpoints.internal"
    target, source = TopicPartition("A.t", 0), TopicPartition("t", 0)
    topics = {"gone": [], "under another name": ["old.t"]}.get(copy, ["A.t"])
    async with client_of([pages, checkpoints, *topics]) as (client, broker):
        target_id = NEW if copy == "another one" else OLD
        for topic in topics:
            if copy != "another one":
                target_id = broker.cluster.topics[topic].topic_id
        page = Page(0, bytes(16), target_id, 100, -1, -1, -1, 0, (Segment(0, 100, 0),))
        record = NewRecord(encode_page_key(source, 0), encode_page(page))
        broker.append(TopicPartition(pages, 0), bytes(encode_batch([record])))
        written = NewRecord(*encode_checkpoint(Checkpoint("g", target, 60, 55, "")))
        broker.append(TopicPartition(checkpoints, 0), bytes(encode_batch([written])))
        there = await client.translate("A", source, 60)
        back = await client.translate("A", target, 60, to_source=True)
        offsets = await client.exact_consumer_offsets("g", "A")
        if copy == "the one of the map":
            assert (there, back) == ((COPIED, 60), (COPIED, 60))
            assert offsets == {"g": {target: RemoteOffset(60, "")}}
        else:
            assert (there, back, offsets) == (UNKNOWN, UNKNOWN, {})


GONE: Final = Segment(0, 200, 0, Mark.TARGET_LOST)


@pytest.mark.parametrize(
    ("numbers", "segments", "upstream", "downstream", "remote", "exact"),
    [
        # The source's topic was created again: 1,500 records of the former one lie before the copies of the new one.
        ((0,), [Segment(0, 5000, 1500)], 1000, 1000, 1000, 1000),
        ((0,), [Segment(0, 5000, 1500)], 1500, 1500, 1500, 1500),
        ((0,), [Segment(0, 5000, 1500)], 1000, 2400, 2400, 2500),
        # The same, and both logs have deleted what lay before.
        ((3,), [Segment(800, 5000, 2300)], 1000, 1000, 1000, 2300),
        # Compaction has left a late page of a killed task in place of what lay before.
        ((3, 0), [Segment(800, 5000, 2300)], 500, 1000, 1000, 1000),
        # The target lost the end of its copies, or all of them, and has others at their places.
        ((0,), [Segment(0, 150, 0), GONE._replace(source=150, records=50, target=150), Segment(200, 100, 150)], 190, 190, None, 150),
        ((0,), [GONE, Segment(200, 300, 0)], 190, 190, None, 0),
        # It lost them just now.
        ((0,), [GONE], 190, 190, None, 0),
        # Java had copied what the map does not know of.
        ((0,), [Segment(200, 100, 200)], 150, 120, 120, 120),
    ],
)  # fmt: skip
async def test_a_checkpoint_of_copies_that_are_gone_or_of_a_former_topic_skips_nothing(
    numbers: Sequence[int],
    segments: list[Segment],
    upstream: int,
    downstream: int,
    remote: int | None,
    exact: int,
) -> None:
    pages, checkpoints = "mm2py-offset-map.A.internal", "A.checkpoints.internal"
    target, source = TopicPartition("A.t", 0), TopicPartition("t", 0)
    async with client_of([pages, checkpoints, "A.t"]) as (client, broker):
        copy_id, end = broker.cluster.topics["A.t"].topic_id, segments[-1].source_end
        ids = bytes(16), copy_id
        for at, number in enumerate(numbers):
            page = Page(
                number, *ids, end, -1, -1, -1, 0, tuple(segments), start=9 - at << START_BITS
            )
            record = NewRecord(encode_page_key(source, number), encode_page(page))
            broker.append(TopicPartition(pages, 0), bytes(encode_batch([record])))
        record = NewRecord(*encode_checkpoint(Checkpoint("g", target, upstream, downstream, "")))
        broker.append(TopicPartition(checkpoints, 0), bytes(encode_batch([record])))
        offsets = await client.remote_consumer_offsets("g", "A")
        assert offsets == {"g": {} if remote is None else {target: RemoteOffset(remote, "")}}
        offsets = await client.exact_consumer_offsets("g", "A")
        assert offsets == {"g": {target: RemoteOffset(exact, "")}}


async def test_a_map_that_is_read_again_is_never_what_it_was_before() -> None:
    topic, source = TopicPartition("mm2py-offset-map.A.internal", 0), TopicPartition("t", 0)
    async with FakeBroker(topics={topic.topic: 1}) as broker:
        for key, source_id, segment in (
            (source, OLD, Segment(0, 100, 0)),
            (source, NEW, Segment(0, 50, 100)),
            (ORDERS, OLD, Segment(0, 1, 0)),
        ):
            page = Page(0, source_id, bytes(16), segment.source_end, -1, -1, -1, 0, (segment,))
            record = NewRecord(encode_page_key(key, 0), encode_page(page))
            broker.append(topic, bytes(encode_batch([record])))
        ((host, port),) = broker.bootstrap_servers
        settings = connection_settings({"bootstrap.servers": f"{host}:{port}"})
        async with Cluster(settings, alias="B", clock=SYSTEM_CLOCK) as cluster:
            reader, anew = OffsetMapReader(cluster, "A", clock=SYSTEM_CLOCK), list[TopicPartition]()
            reader.report_anew(anew.append)
            await reader.read_to_end()
            log = broker.partition(topic)
            log.batches.pop()  # an unclean election
            log.end -= 1
            await reader.read_to_end()
            assert anew == [source], "once, when it was created again"
            assert await reader.to_target(source, 20) == (COPIED, 120)
            await reader.close()


@pytest.mark.parametrize(
    ("copies", "is_former", "is_elsewhere"),
    [("t", False, False), ("B.t", True, True), ("gone", True, False)],
)
async def test_a_map_of_the_flow_back_is_about_this_name_another_one_or_a_topic_that_is_gone(
    copies: str, is_former: bool, is_elsewhere: bool
) -> None:
    pages, source = "mm2py-offset-map.B.internal", TopicPartition("t", 0)
    async with FakeBroker(topics=dict.fromkeys([pages, "t", "B.t"], 1)) as broker:
        there = broker.cluster.topics
        target_id = there[copies].topic_id if copies in there else OLD
        page = Page(0, bytes(16), target_id, 100, -1, -1, -1, 0, (Segment(0, 100, 0),))
        record = NewRecord(encode_page_key(source, 0), encode_page(page))
        broker.append(TopicPartition(pages, 0), bytes(encode_batch([record])))
        ((host, port),) = broker.bootstrap_servers
        settings = connection_settings({"bootstrap.servers": f"{host}:{port}"})
        async with Cluster(settings, alias="A", clock=SYSTEM_CLOCK) as cluster:
            back = OffsetMapReader(cluster, "B", clock=SYSTEM_CLOCK, copy_of=str, is_back=True)
            await back.read_to_end()
            assert (back.is_former(source), back.is_elsewhere(source)) == (is_former, is_elsewhere)
            await back.close()


async def test_a_cluster_that_is_away_is_said_at_the_door() -> None:
    with pytest.raises(ConnectionFailedError):
        async with MirrorClient({"bootstrap.servers": "127.0.0.1:1"}):
            pass


# ---- where records that are no copies may be in the log of a copy


NO_ID: Final = b"\0" * 16
PART: Final = "mm2py.mirror.offset_map_reader."


class CopyLog:
    """The log of a copy: its batches by their first offset, and the offsets that were asked for."""

    def __init__(self, *batches: bytearray, aborted: list[tuple[int, int]] | None = None) -> None:
        self.batches = {int.from_bytes(it[:8]): it for it in batches}
        self.aborted, self.error = aborted or [], cast("ServerError | None", None)
        self.asked: list[int] = []

    async def fetch(
        self, _cluster: object, _tp: object, at: int, *, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        assert (max_bytes, isolation_level) == (1, 1)
        self.asked.append(at)
        if self.error is not None:
            raise self.error
        data = next((it for base, it in sorted(self.batches.items()) if base >= at), None)
        records = None if data is None else memoryview(data)
        return FetchedPartition("t", NO_ID, 0, 0, 99, 99, 0, self.aborted, -1, records)


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (CopyLog(stored_batch(5)), 5),
        (CopyLog(marker(5, 7, COMMIT)), 6),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(7, 4)]), 8),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(7, 6)]), 5),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(8, 4)]), 5),
        (CopyLog(stored_batch(9)), 9),  # compacted
        (CopyLog(), 5),  # above the last stable offset
    ],
)
async def test_markers_and_aborted_batches_are_no_records(
    monkeypatch: pytest.MonkeyPatch, log: CopyLog, end: int
) -> None:
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    assert await no_record_until(cast("Cluster", None), T, 5) == end


@pytest.mark.parametrize(
    ("code", "end"), [(OFFSET_OUT_OF_RANGE, 40), (TOPIC_AUTHORIZATION_FAILED, 5)]
)
async def test_what_is_gone_from_a_log_is_no_record_and_what_may_not_be_read_may_be_one(
    monkeypatch: pytest.MonkeyPatch, code: int, end: int
) -> None:
    class Starts:
        def __init__(self, _cluster: object) -> None:
            pass

        async def list_offsets(self, _asked: object) -> dict[TopicPartition, ListedOffset]:
            return {T: ListedOffset(40, -1)}

    log = CopyLog()
    log.error = server_error(code, "reading")
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    monkeypatch.setattr(PART + "Admin", Starts)
    assert await no_record_until(cast("Cluster", None), T, 5) == end


async def test_each_place_between_copies_is_read_once_and_so_many_for_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = MARKERS_AT_ONCE + 9
    log = CopyLog(*(marker(2 * it + 1, 7, ABORT) for it in range(many)))
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    reader = cast("Any", OffsetMapReader(cast("Cluster", None), "A", clock=FakeClock()))
    copies = tuple(Segment(it, 1, 2 * it) for it in range(many + 1))
    page = Page(0, NO_ID, NO_ID, many + 1, -1, -1, -1, 0, copies)
    reader._take(0, Record(0, 0, encode_page_key(T, 0), encode_page(page)))
    end = 2 * many + 1
    assert await reader.own_from(T, 0, end) == 2 * MARKERS_AT_ONCE
    assert await reader.own_from(T, 4, end) == end
    assert await reader.own_from(T, 0, end) == end
    assert log.asked == [2 * it + 1 for it in range(many)], "each once"
    log.batches[5] = stored_batch(5)
    reader._markers.clear()
    assert await reader.own_from(T, 2, end) == 5
    assert await reader.own_from(TopicPartition("u", 0), 0, end) is None
