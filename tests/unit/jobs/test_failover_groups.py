"""Where a failover places groups: by the maps of both directions, or by checkpoints; and what it says of those that it leaves alone."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

import pytest

from mm2py.client.connect.admin import ListedOffset, TopicDescription
from mm2py.client.connect.group_admin import Committed, GroupCatalog, GroupListing
from mm2py.client.connect.share_positions import CONSUMER_GROUPS, SHARE_GROUPS, GroupRequests
from mm2py.errors import ConnectionFailedError, FatalError, RetriableError, ServerError
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.mirror.failovers import Failover, Step, encode_failover
from mm2py.mirror.filters import TopicSelection, group_filter_from_config
from mm2py.mirror.offset_lookup import PartitionIndex, Place, Translation, beside_own_records
from mm2py.mirror.offset_map_pages import PageRef
from mm2py.mirror.policies import policy_from_config
from mm2py.protocol.error_codes import UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC_OR_PARTITION, server_error
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.groups import (
    NOTHING_COPIED,
    BothMaps,
    Groups,
    by_checkpoints,
    committed_of,
    exact_of,
    groups_of,
    has_left,
    move_all,
    moves_of,
    place_all,
    reach_begins,
)
from mm2py_jobs.open_flow import FlowNow, flow_plan
from tests.unit.jobs.test_failover_parts import ORDERS, SameNames, moved_back

T = TypeVar("T")


@pytest.mark.parametrize(
    ("found", "own", "place"),
    [
        # Its next own record was there before the copy.
        (7, Translation(Place.NEVER_EXISTED, 4), 4),
        (12, Translation(Place.COPIED, 9), 9),
        (-1, Translation(Place.COPIED, 9), 9),
        (-1, Translation(Place.NEVER_EXISTED, 4), -1),
        (-1, Translation(Place.AT_END, 4), -1),
        (5, Translation(Place.UNKNOWN, -1), -1),
        (5, Translation(Place.AT_END, 4), 5),
        (9, Translation(Place.NOT_YET_COPIED, -1), 6),
        (5, None, 5),
        (NOTHING_COPIED, Translation(Place.AT_END, 4), 6),
    ],
)
def test_a_group_continues_at_the_copy_or_the_original_of_its_record(
    found: int, own: Translation | None, place: int
) -> None:
    assert beside_own_records(found, own, 6) == place


def test_offsets_on_the_target_never_go_back() -> None:
    wanted = {TopicPartition("orders", it): OffsetToCommit("orders", it, 10) for it in range(3)}
    there = {
        TopicPartition("orders", it): FetchedOffset("orders", it, at, -1, "", 0)
        for it, at in ((0, 9), (1, 11))
    }
    assert [it.partition for it in moves_of(wanted, there)] == [0, 2]


class Coordinators:
    """Groups of a cluster, some of whose brokers answer late."""

    def __init__(self, late: int) -> None:
        self._late, self.asked = late, 0

    def _is_late(self) -> bool:
        self.asked += 1
        return self.asked <= self._late

    async def list_groups(self) -> GroupCatalog:
        return GroupCatalog({}, "broker 2 does not answer" if self._is_late() else "")

    async def committed(self, groups: Collection[str], /) -> dict[str, Committed]:
        found: dict[str, Committed] = {it: {} for it in groups}
        if "moves" in groups and self._is_late():
            found["moves"] = RetriableError("the coordinator moves")
        if "foreign" in groups:
            found["foreign"] = FatalError("not allowed")
        return found


class DistantGroups(Coordinators):
    """Answers to commits only once 20 are under way; one group has members."""

    def __init__(self, *_: object) -> None:
        super().__init__(0)
        self._under_way, self._enough = 0, asyncio.Event()

    async def are_supported(self) -> bool:
        return True

    async def coordinators(self, groups: Collection[str]) -> dict[str, int]:
        return {it: len(it) for it in groups}

    async def commit(
        self, group: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        self._under_way += 1
        if self._under_way >= 20:
            self._enough.set()
        await self._enough.wait()
        used = server_error(UNKNOWN_MEMBER_ID, group) if group == "g7" else None
        return {TopicPartition(it.topic, it.partition): used for it in offsets}


async def test_groups_are_moved_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py_jobs.failover.groups.GroupAdmin", DistantGroups)
    offset = OffsetToCommit("orders", 0, 5)
    groups = Groups(CONSUMER_GROUPS, {f"g{it}": {ORDERS: offset} for it in range(120)})
    async with asyncio.timeout(90):
        moves = await move_all(cast("FailoverClusters", SameNames()), [groups], writes=True)
    assert [it.group for it in moves] == sorted(groups.offsets)
    assert [it.group for it in moves if it.left or it.moved != 1] == ["g7"]


class HalfAway(DistantGroups):
    """The coordinator of groups with names of four letters does not answer."""

    tried: ClassVar[list[str]] = []

    async def commit(
        self, group: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        self.tried.append(group)
        if len(group) == 4:
            raise ConnectionFailedError("no connection to b2:9092 (id 2)")
        return {TopicPartition(it.topic, it.partition): None for it in offsets}


async def test_a_coordinator_that_is_away_holds_up_its_own_groups_which_the_error_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.failover.groups.GroupAdmin", HalfAway)
    tried: list[str] = []
    monkeypatch.setattr(HalfAway, "tried", tried)
    offset = OffsetToCommit("orders", 0, 5)
    away = {"b,.c", *(f"x{it}" for it in range(100, 160))}
    here = {f"group-{it}" for it in range(60)}
    groups = Groups(CONSUMER_GROUPS, {it: {ORDERS: offset} for it in (*away, *here)})
    clusters = cast("Any", SameNames())
    clusters.of_groups = {"groups.exclude": "old-.*"}
    with pytest.raises(RetriableError, match=r"61 of 121 groups .*b,\.c, .*b2:9092") as error:
        await move_all(clusters, [groups], writes=True)
    assert here <= set(tried)
    assert len(tried) < len(groups.offsets), "clients wait for each question"
    command = re.search(r"mm2py flow set 'A/B' groups.exclude='([^']*)'", error.value.remedy)
    assert command is not None
    left = group_filter_from_config({"groups": ".*", "groups.exclude": command[1]})
    named = {"b,.c", *(f"x{it}" for it in range(100, 119)), "old-1"}
    assert {it for it in {*named, *away, *here} if not left.should_replicate_group(it)} == named


class OneKindAway(DistantGroups):
    """Consumer groups' coordinator does not answer; questions of each kind wait for the other's."""

    both: ClassVar[dict[str, asyncio.Barrier]] = {}
    moved: ClassVar[set[str]] = set()

    def __init__(self, _cluster: object = None, requests: GroupRequests = CONSUMER_GROUPS) -> None:
        super().__init__()
        self._requests = requests

    async def _with_other(self, question: str) -> None:
        await self.both.setdefault(question, asyncio.Barrier(2)).wait()

    async def list_groups(self) -> GroupCatalog:
        await self._with_other("list")
        return await super().list_groups()

    async def committed(self, groups: Collection[str], /) -> dict[str, Committed]:
        await self._with_other("committed")
        return await super().committed(groups)

    async def commit(
        self, group: str, offsets: Sequence[OffsetToCommit]
    ) -> dict[TopicPartition, ServerError | None]:
        if self._requests is CONSUMER_GROUPS:
            raise ConnectionFailedError("no connection to b2:9092 (id 2)")
        self.moved.add(group)
        return {TopicPartition(it.topic, it.partition): None for it in offsets}


async def test_both_kinds_of_groups_are_asked_for_and_moved_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that is away costs its time once, and holds up no groups of the other kind."""
    monkeypatch.setattr("mm2py_jobs.failover.groups.GroupAdmin", OneKindAway)
    monkeypatch.setattr(OneKindAway, "both", {})
    moved: set[str] = set()
    monkeypatch.setattr(OneKindAway, "moved", moved)
    clusters = cast("Any", SameNames())
    clusters.of_groups = {"groups": ".*"}
    offset = OffsetToCommit("orders", 0, 5)
    kinds = (
        Groups(CONSUMER_GROUPS, {"c": {ORDERS: offset}}),
        Groups(SHARE_GROUPS, {"s": {ORDERS: offset}}),
    )
    async with asyncio.timeout(90):
        await exact_of(clusters, cast("BothMaps", TwoInOne("")), {})
        with pytest.raises(RetriableError, match=r"1 of 2 groups .*: c: no connection to b2"):
            await move_all(clusters, kinds, writes=True)
    assert moved == {"s"}


class AheadGroups(DistantGroups):
    """They are ahead on the target, in 20 partitions each."""

    async def committed(self, groups: Collection[str], /) -> dict[str, Committed]:
        at = FetchedOffset("orders", 0, 1_000_000, -1, "", 0)
        return {it: {TopicPartition("orders", number): at for number in range(20)} for it in groups}


async def test_the_record_of_a_failover_has_room_for_thousands_of_groups_that_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.failover.groups.GroupAdmin", AheadGroups)
    groups = Groups(CONSUMER_GROUPS)
    for it in range(5_000):
        groups.offsets[f"team-{it % 97}-consumer-{it}"] = {
            TopicPartition("orders", number): OffsetToCommit("orders", number, it * number % 99_991)
            for number in range(20)
        }
    moves = await move_all(cast("FailoverClusters", SameNames()), [groups], writes=True)
    assert {it.left[-1] for it in moves} == {"and 15 more: mm2py group describe"}
    failover = replace(moved_back(Step.VERIFY), groups=tuple(moves))
    assert len(encode_failover(failover)[1]) < 500_000


async def _ended(clock: FakeClock, work: Awaitable[T]) -> T:
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(0.5)
    return task.result()


@pytest.mark.parametrize(("late", "known"), [(3, True), (1_000, False)])
async def test_a_group_whose_coordinator_moves_is_asked_again(late: int, known: bool) -> None:
    clock = FakeClock()
    found = await _ended(
        clock, committed_of(Coordinators(late), ["moves", "foreign", "here"], clock)
    )
    assert (found["moves"] == {}) is known
    assert isinstance(found["foreign"], FatalError)
    assert found["here"] == {}


@pytest.mark.parametrize(("late", "missing"), [(3, ""), (1_000, "broker 2 does not answer")])
async def test_groups_of_a_silent_broker_are_asked_for_again(late: int, missing: str) -> None:
    clock = FakeClock()
    found = await _ended(clock, groups_of(Coordinators(late), clock))
    assert found.missing == missing


ONE_ID, NEW_ID = bytes(15) + b"1", bytes(15) + b"2"


class OneMap:
    """Of a partition that is covered up to ``covered``: its answer to every question is ``answer``."""

    def __init__(self, covered: int, answer: Translation) -> None:
        self._index, self._answer = PartitionIndex(), answer
        self._index.covered = covered

    def index_of(self, _partition: TopicPartition) -> PartitionIndex:
        return self._index

    def is_former(self, _partition: TopicPartition) -> bool:
        return False

    def partitions(self) -> Sequence[TopicPartition]:
        return [ORDERS]

    async def to_target(self, _partition: TopicPartition, _offset: int) -> Translation:
        return self._answer

    to_source = to_target


@pytest.mark.parametrize(
    ("left", "copied_back", "place"),
    [
        (None, 200, 200),  # a user stopped it: what B's clients wrote from 200 on is not read
        (moved_back(Step.CANCELLED), 200, 200),
        (moved_back(Step.DRAIN), 200, 200),
        (moved_back(Step.DONE), 200, 300),  # a failback: B has only copies behind 200
        (moved_back(Step.DONE, 190), 180, 300),  # its position went on over what the flow wrote
        (moved_back(Step.DONE, 150), 200, 200),  # it was resumed since, and stopped by a user
        (moved_back(Step.DONE, stopped_at=5), 200, 200),  # the same, and it had copied nothing
        (moved_back(Step.DONE, stopped_at=-1), 200, 300),  # of an earlier build
    ],
)
async def test_a_group_skips_no_record_that_a_stopped_flow_back_has_not_copied(
    left: Failover | None, copied_back: int, place: int
) -> None:
    maps = cast("Any", BothMaps(cast("FailoverClusters", SameNames())))
    maps._forward = OneMap(100, Translation(Place.AT_END, 300))
    maps._back = OneMap(200, Translation(Place.AT_END, 100))
    maps._back.index_of(ORDERS).pages = [PageRef(0, 0, 0, copied_back, 0, 100, -1)]
    maps._forward.index_of(ORDERS).pages = [PageRef(0, 0, 0, 100, 0, 300, -1)]
    maps._ids = defaultdict(dict)
    maps._has_left = has_left(left, maps._copied_back, 7)
    assert await maps.place(ORDERS, 100, None) == place


NO_TOPICS: Final[Mapping[str, TopicDescription]] = {}


def orders_of(topic_id: bytes, *partitions: int) -> Mapping[str, TopicDescription]:
    return {"orders": TopicDescription("orders", topic_id, partitions, internal=False)}


@pytest.mark.parametrize(("offset", "place"), [(100, 190), (101, 300)])
async def test_a_group_that_reads_nothing_where_clients_went_does_not_pass_what_was_kept_there(
    offset: int, place: int
) -> None:
    """It has not read what a failover put into quarantine, of which the records are still where it returns to."""
    maps = cast("Any", BothMaps(cast("FailoverClusters", SameNames())))
    maps._forward = OneMap(100, Translation(Place.AT_END, 300))
    maps._back = OneMap(200, Translation(Place.AT_END, 200))
    maps._back.index_of(ORDERS).pages = [PageRef(0, 0, 0, 200, 0, 100, -1)]
    maps._ids = defaultdict(dict)
    maps._has_left, maps._kept = True, {ORDERS: 190}
    assert await maps.place(ORDERS, offset, None) == place


class AboutAnotherCopy(OneMap):
    def is_former(self, _partition: TopicPartition) -> bool:
        return True


@pytest.mark.parametrize(
    ("forward", "topics", "lost", "reason"),
    [
        (OneMap, (orders_of(ONE_ID, 0), NO_TOPICS), "", "B has no partition orders-0"),
        (OneMap, (orders_of(ONE_ID, 0, 1), orders_of(ONE_ID, 1)), "", "B has no partition"),
        (AboutAnotherCopy, (NO_TOPICS, orders_of(ONE_ID, 0)), "", "orders is another topic than"),
        (OneMap, (orders_of(NEW_ID, 0), orders_of(ONE_ID, 0)), "", "was created again on A"),
        (
            OneMap,
            (orders_of(ONE_ID, 0), orders_of(ONE_ID, 0)),
            "back",
            "offset map of B->A is lost",
        ),
        (OneMap, (orders_of(ONE_ID, 0), orders_of(ONE_ID, 0)), "forward", "map of A->B is lost"),
        (OneMap, (orders_of(ONE_ID, 0), orders_of(ONE_ID, 0)), "", "below the beginning of the"),
    ],
)
async def test_a_group_without_a_place_is_named_with_the_reason(
    forward: type[OneMap],
    topics: tuple[Mapping[str, TopicDescription], Mapping[str, TopicDescription]],
    lost: str,
    reason: str,
) -> None:
    maps = cast("Any", BothMaps(cast("FailoverClusters", SameNames())))
    maps._forward = forward(100, Translation(Place.UNKNOWN, -1))
    maps._forward.index_of(ORDERS).source_id = ONE_ID
    maps._back = NothingBack()
    maps._ids = dict(zip("AB", topics, strict=True))
    maps._lost, maps._lost_back = ([ORDERS] if lost == it else [] for it in ("forward", "back"))
    assert await maps.place(ORDERS, 5, None) == -1
    assert reason in maps.why_not(ORDERS, ORDERS)


class TwoInOne:
    """The target's orders have the records of orders and of B.orders; ``unknown`` has no place there."""

    def __init__(self, unknown: str) -> None:
        self._unknown = unknown

    def other_side(self, tp: TopicPartition, /) -> TopicPartition | None:
        return None if tp.topic == "other" else ORDERS

    def sharers(self, tp: TopicPartition, /) -> Sequence[str]:
        return ["C"] if self._unknown == f"{tp.topic} of C" else ()

    async def place(self, tp: TopicPartition, offset: int, _checkpoint: object, /) -> int:
        return -1 if tp.topic == self._unknown else offset

    def why_not(self, tp: TopicPartition, copy: TopicPartition, /) -> str:
        return f"of {tp} in {copy}"


@pytest.mark.parametrize(
    ("unknown", "at", "left"),
    [
        ("", {"B.orders": 30, "orders": 20}, []),
        ("", {"B.orders": 20, "orders": 30, "other": 5}, []),
        ("orders", {"B.orders": 20, "orders": 30}, ["orders-0 30 has no place there: of orders-0"]),
        ("B.orders", {"B.orders": 20, "orders": 30}, ["B.orders-0 20 has no place there: of B."]),
        ("orders of C", {"B.orders": 20, "orders": 30}, ["orders-0 30 has no place there: flows"]),
    ],
)
async def test_of_two_topics_that_are_one_on_the_target_the_lower_place_counts(
    unknown: str, at: dict[str, int], left: list[str]
) -> None:
    groups = Groups(CONSUMER_GROUPS)
    offsets = {TopicPartition(it, 0): FetchedOffset(it, 0, to, -1, "", 0) for it, to in at.items()}
    await place_all(groups, {"g": offsets}, TwoInOne(unknown), {})
    assert [it.offset for it in groups.offsets["g"].values()] == ([] if unknown else [20])
    assert [
        it[: len(begin)] for it, begin in zip(groups.left.get("g", []), left, strict=True)
    ] == left


class Unreadable(Coordinators):
    """The coordinator of one of two groups does not answer."""

    def __init__(self, *_: object) -> None:
        super().__init__(1_000)

    async def list_groups(self) -> GroupCatalog:
        return GroupCatalog({it: GroupListing(it, 1, "Empty") for it in ("here", "moves")})


class WithCheckpoints(TwoInOne):
    async def by_checkpoints(self, _checkpoints: object) -> Groups:
        offsets = {ORDERS: OffsetToCommit("orders", 0, 7)}
        return Groups(CONSUMER_GROUPS, {"here": offsets, "moves": offsets})


async def test_a_group_that_cannot_be_read_gets_the_offsets_of_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py_jobs.failover.groups.GroupAdmin", Unreadable)
    clusters = cast("Any", SameNames())
    clusters.of_groups = {"groups": ".*"}
    maps = cast("BothMaps", WithCheckpoints(""))
    found, _ = await _ended(clusters.clock, exact_of(clusters, maps, {}))
    assert {it: list(offsets) for it, offsets in found.offsets.items()} == {"moves": [ORDERS]}
    assert ["cannot be read" in it for it in found.left["moves"]] == [True, False]


class OneWay(SameNames):
    """The same, without copies of the flow back among the source's records."""

    def comes_back(self, copy: TopicPartition, partition: TopicPartition) -> bool:
        return False


@pytest.mark.parametrize(
    ("begin", "there", "place"),
    [
        (ListedOffset(40, -1, -1, None), 60, 60),
        (ListedOffset(90, -1, -1, None), 60, 90),  # latest would skip all that is left there
        (ListedOffset(-1, -1, -1, server_error(UNKNOWN_TOPIC_OR_PARTITION, "orders")), 60, 60),
        (ListedOffset(90, -1, -1, None), -1, -1),
    ],
)
async def test_a_group_that_retention_of_the_copy_has_passed_continues_at_its_beginning(
    begin: ListedOffset, there: int, place: int
) -> None:
    maps = cast("Any", BothMaps(cast("FailoverClusters", OneWay())))
    maps._forward = OneMap(100, Translation(Place.COPIED if there >= 0 else Place.UNKNOWN, there))
    maps._ids = defaultdict(dict)
    maps._begins = {ORDERS: begin}
    assert await maps.place(ORDERS, 60, None) == place
    if place >= 0:  # and without the source
        offsets = {ORDERS: OffsetToCommit("orders", 0, there, metadata="m")}
        reach_begins(Groups(CONSUMER_GROUPS, {"g": offsets}), (), maps._begins)
        assert offsets == {ORDERS: OffsetToCommit("orders", 0, place, metadata="m")}


BOTH_WAYS: Final = """clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
A->B.topics = orders
B->A.enabled = true
B->A.topics = orders
"""
NAMELESS: Final = "A->B.source.cluster.alias =", "B->A.source.cluster.alias ="


@pytest.mark.parametrize(
    ("config", "topic", "other_side", "place"),
    [
        ("B->A.replication.policy.separator = _", "orders", "A.orders", 7),
        ("B->A.replication.policy.separator = _", "B_orders", "orders", 50),
        ("B->A.replication.policy.separator = _", "B.orders", None, -1),
        ("A->B.replication.policy.class = IdentityReplicationPolicy", "orders", "orders", 7),
        ("A->B.replication.policy.class = IdentityReplicationPolicy", "B.orders", "orders", 50),
        ("replication.policy.class = IdentityReplicationPolicy", "orders", "orders", 50),
        ("", "B.orders", "orders", 50),
        (f"replication.policy.separator =\n{NAMELESS[0]}", "orders", "orders", 7),
        ("\n".join(("replication.policy.separator =", *NAMELESS)), "orders", "orders", 50),
    ],
)
async def test_a_group_is_placed_by_the_names_that_each_direction_gives_its_copies(
    tmp_path: Path, config: str, topic: str, other_side: str | None, place: int
) -> None:
    """The flow has copied its record to 7, and the flow back that of the same offset from 50."""
    file = tmp_path / "mm2.properties"
    file.write_text(BOTH_WAYS + config)
    clusters = FailoverClusters(flow_plan(file, "A->B"), flow_plan(file, "B->A"), FakeClock())
    cast("Any", clusters).source = SameNames().source
    maps = cast("Any", BothMaps(clusters))
    maps._forward = OneMap(100, Translation(Place.COPIED, 7))
    maps._back = OneMap(100, Translation(Place.COPIED, 50))
    maps._ids = defaultdict(dict)
    found = maps.other_side(TopicPartition(topic, 0))
    assert found == (other_side and TopicPartition(other_side, 0))
    if found is not None:
        assert await maps.place(TopicPartition(topic, 0), 5, None) == place


def prefixed(partition: TopicPartition) -> TopicPartition:
    return partition._replace(topic=f"A.{partition.topic}")


CHOSEN: Final = {"groups": "billing, shop.*", "groups.exclude": "shop-old"}


class LostMap(OneMap):
    """A map of copies of which the target has lost those from 50 on, and has 150 others there."""

    def is_of_former_copy(self, _partition: TopicPartition, _upstream: int, _there: int) -> bool:
        return False

    def sharers(self, _partition: TopicPartition) -> Sequence[str]:
        return ()

    async def to_target(  # type: ignore[override]
        self, partition: TopicPartition, offset: int
    ) -> Translation | None:
        if partition != ORDERS:
            return None
        lost = Translation(Place.LOST, 50)
        return Translation(Place.COPIED, offset) if offset < 50 else lost

    async def to_source(self, _partition: TopicPartition, offset: int) -> Translation:
        return Translation(Place.COPIED, offset if offset < 50 else offset + 150)


@pytest.mark.parametrize(
    ("group", "copy", "offset", "places", "left"),
    [
        ("billing", "A.orders", 30, {"A.orders": 30}, ""),
        ("billing", "A.orders", 60, {}, "B lost copies since"),
        ("billing", "A.new", 60, {"A.new": 60}, ""),  # of which there is no map
        ("shop-old", "A.orders", 30, {}, ""),  # excluded since its checkpoint
        ("other", "A.orders", 30, {}, ""),
        ("billing", "A.scratch", 30, {}, ""),  # the same of a topic
        ("billing", "orders", 30, {}, ""),  # under former names
    ],
)
async def test_a_checkpoint_places_only_what_is_chosen_now_and_nothing_past_unread_records(
    group: str, copy: str, offset: int, places: dict[str, int], left: str
) -> None:
    clusters = cast("Any", SameNames())
    config = {"topics": ".*", "topics.exclude": "scratch", "source.cluster.alias": "A"}
    clusters.of_groups, clusters.policy = CHOSEN, policy_from_config(config)
    clusters.selection = TopicSelection.of(clusters.name, config)
    clusters.copy_of = prefixed
    written = Checkpoint(group, TopicPartition(copy, 0), offset, offset, "")
    forward = cast("Any", LostMap(200, Translation(Place.AT_END, 200)))
    groups = await by_checkpoints(clusters, {group: {written.partition: written}}, forward)
    found = groups.offsets.get(group, {})
    assert {tp.topic: it.offset for tp, it in found.items()} == places
    assert left in "".join(groups.left.get(group, []))
    assert bool(groups.left) == bool(left)


async def test_a_group_by_its_checkpoints_skips_nothing_that_retention_left_or_that_comes() -> None:
    """Its coordinator at the source does not answer, so that its offsets there are not known."""
    clusters = cast("Any", SameNames())
    clusters.of_groups = CHOSEN
    clusters.policy = policy_from_config({"source.cluster.alias": "A"})
    maps = cast("Any", BothMaps(cast("FailoverClusters", clusters)))
    maps._forward = LostMap(200, Translation(Place.AT_END, 200))
    empty, other = TopicPartition("orders", 1), TopicPartition("other", 0)
    maps._begins = {it: ListedOffset(45, -1, -1, None) for it in (ORDERS, empty, other)}
    written = Checkpoint("billing", ORDERS, 30, 30, "")
    groups = await maps.by_checkpoints({"billing": {ORDERS: written}})
    assert {tp: it.offset for tp, it in groups.offsets["billing"].items()} == {
        ORDERS: 45,
        empty: 45,
    }


class NothingBack:
    """The map of a flow back that has copied nothing."""

    def index_of(self, _partition: TopicPartition) -> None:
        return None

    async def to_source(self, _partition: TopicPartition, _offset: int) -> None:
        return None


@pytest.mark.parametrize(
    ("config", "read_back", "place"),
    [
        # The flow back was paused before its first record: what B's clients wrote from 40 on is not read.
        ({"enabled": "true"}, -1, 40),
        ({"enabled": "true"}, 60, 300),  # it has read that, and had nothing to copy
        ({"enabled": "false"}, -1, 300),
        (None, -1, 300),  # one way
    ],
)
async def test_a_group_skips_no_record_of_a_partition_that_the_flow_back_has_not_begun(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, str] | None, read_back: int, place: int
) -> None:
    async def in_force(*_: object) -> FlowNow:
        return FlowNow(config)

    async def own_records(
        _clusters: object, back_at: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        return {tp: 40 if at <= 40 else 300 for tp, at in back_at.items()}

    monkeypatch.setattr("mm2py_jobs.failover.groups.flow_in_force", in_force)
    clusters = SameNames(None, read_back)
    maps = cast("Any", BothMaps(cast("FailoverClusters", clusters)))
    maps._forward = OneMap(100, Translation(Place.AT_END, 300))
    maps._back = NothingBack()
    maps._forward.index_of(ORDERS).pages = [PageRef(0, 0, 0, 100, 0, 300, -1)]
    maps._ids = defaultdict(
        dict, {"B": {"orders": TopicDescription("orders", b"", (0,), internal=False)}}
    )
    maps._own = await own_records(clusters, await maps._not_copied_back())
    assert await maps.place(ORDERS, 100, None) == place
