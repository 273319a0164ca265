"""Which records of a target are its own, where copies have the same names: on two logs of single records.

``s7`` is what the source has at offset 7, and with it any other program's copy; ``ours`` is a mirror's; ``-`` is a marker.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from mm2py.client.connect.admin import TopicDescription
from mm2py.errors import ServerError
from mm2py.mirror.offset_map_pages import Mark, Page, Segment
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, server_error
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.copy.known_maps import KnownMap
from mm2py_jobs.copy.survey import Known
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.own_records import Hole, OwnRecords, holes_of, own_records
from mm2py_jobs.log.log_batches import LogBatch, log_batch
from mm2py_jobs.log.log_ends import LogEnds
from tests.kit.fakes.batches import sealed

TP: Final = TopicPartition("orders", 0)
ID, OTHER_ID = b"\1" * 16, b"\2" * 16
MIRROR: Final = 7
PART: Final = "mm2py_jobs.failover.own_records."
SET_PAST: Final = (Segment(0, 40, 0), Segment(40, 20, 40, Mark.UNKNOWN), Segment(60, 5, 45))
"""Set past 20 records, when five of others were on the target."""


def copies(first: int, count: int) -> list[str]:
    """Return what another program writes that copies source offsets."""
    return [f"s{it}" for it in range(first, first + count)]


def stored(offset: int, value: str, producer: int) -> LogBatch:
    data = encode_batch([NewRecord(None, value.encode(), timestamp=1_000)])
    struct.pack_into(">q", data, 0, offset)
    struct.pack_into(">q", data, 43, producer)
    return log_batch(memoryview(sealed(data)))


@dataclass
class Regions:
    """Both clusters, each with one log in all partitions that are asked about."""

    segments: Sequence[Segment] = SET_PAST
    target: Mapping[int, str] = field(default_factory=dict[int, str])
    """What is in the target's holes, by offset."""
    source_start: int = 0
    source_end: int = 100
    source_id: bytes = ID
    first_page: int = 0
    position: int = -1
    """Of a flow without a map."""
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: ServerError | None = None
    at_once: int = 1
    many: Sequence[TopicPartition] = (TP,)
    keeps_names = True
    name = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    target_end: Final = 1_000

    def __post_init__(self) -> None:
        self.records, self.target = self.target, cast("Any", "B")
        self._under_way, self._enough = 0, asyncio.Event()

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[str]:
        yield "A"

    async def target_looping(self) -> frozenset[int]:
        return frozenset({MIRROR})

    def copy_of(self, tp: TopicPartition) -> TopicPartition:
        return tp

    async def known(self) -> Known:
        page = Page(self.first_page, ID, ID, 0, -1, -1, -1, 0, tuple(self.segments))
        mapped = self.many if self.position < 0 else ()
        maps = dict.fromkeys(mapped, KnownMap({self.first_page: page}))
        return Known({TP: self.position}, {}, ids={TP: ID}, maps=maps)

    async def log_ends(
        self, cluster: str, asked: Sequence[TopicPartition], **_: object
    ) -> Mapping[TopicPartition, LogEnds]:
        ends = LogEnds(self.source_start, self.source_end) if cluster == "A" else LogEnds(0, 1_000)
        return dict.fromkeys(asked, ends)

    # ---- as ``Admin`` and as ``RangeReader``

    def at(self, cluster: str, *, read_committed: bool = False, fetch_bytes: int = 0) -> "At":
        assert not read_committed
        assert fetch_bytes <= 64 * 1024, "of many holes, each as small as a marker"
        return At(self, cluster)

    async def read(self, cluster: str, first: int, end: int) -> AsyncGenerator[list[LogBatch]]:
        self._under_way += 1
        if self._under_way >= self.at_once:
            self._enough.set()
        await self._enough.wait()
        for offset in range(max(first, self.source_start) if cluster == "A" else first, end):
            value = f"s{offset}" if cluster == "A" else self.records.get(offset, "-")
            if value != "-":
                producer = MIRROR if value == "ours" else 9
                yield [stored(offset, value, producer)]


@dataclass
class At:
    """One of the clusters."""

    regions: Regions
    cluster: str

    def read(self, _tp: TopicPartition, first: int, end: int) -> AsyncGenerator[list[LogBatch]]:
        return self.regions.read(self.cluster, first, end)

    async def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
        return {
            it: TopicDescription(it, self.regions.source_id, (0,), internal=False) for it in names
        }

    async def describe_topic_configs(self, names: Sequence[str]) -> object:
        if self.regions.refused is not None:
            raise self.regions.refused
        entries = [ConfigEntry(*it) for it in self.regions.configs.items()]
        return dict.fromkeys(names, entries)


def at(first: int, *values: str) -> dict[int, str]:
    """Return what is on the target from an offset on."""
    return dict(enumerate(values, first))


OWN = ["own"] * 5
MARKERS = (Segment(0, 20, 0), Segment(20, 10, 30))
TOOK_OVER = (Segment(10, 0, 10), Segment(10, 20, 10))
BEHIND = (*SET_PAST[:2],)
"""Set past records, or copied by another program, and not continued since."""


@pytest.mark.parametrize(
    ("regions", "begin", "end", "first", "unclear", "skipped"),
    [
        # Between copies and markers; where the flow back has read it; markers alone; before the first copy.
        (Regions(MARKERS, at(25, "own")), 0, 0, 25, "", []),
        (Regions(MARKERS, at(25, "own")), 27, 0, 40, "", []),
        (Regions(MARKERS, at(25, "ours")), 0, 0, 40, "", []),
        (Regions((Segment(0, 20, 10),), at(5, "own")), 0, 0, 5, "", []),
        # A position was set past records, or another program copied them, all or some.
        (Regions(target=at(40, *OWN)), 0, 0, 40, "", [(40, 60)]),
        (Regions(target=at(40, *copies(45, 5))), 0, 0, 50, "", []),
        (Regions(target=at(40, "s41", "s42", "own", "s43", "own")), 0, 0, 42, "", []),
        (Regions(target=at(40, "own", *copies(40, 4))), 0, 0, 40, "", []),
        (Regions(target=at(40, "s41", "s42", "s41", "s42", "s43")), 0, 0, 50, "", []),  # killed
        (Regions(), 0, 0, 50, "", [(40, 60)]),  # markers of the flow's own transactions
        (Regions(target=at(40, "ours")), 0, 0, 50, "", []),  # of which no offsets were known
        (Regions(target=at(40, *OWN)), 43, 0, 43, "", [(40, 60)]),
        # Below the first copy of one that took over, or whose first position was set.
        (Regions(TOOK_OVER, at(0, *copies(0, 10))), 0, 0, 30, "", []),
        (Regions(TOOK_OVER, at(0, *copies(0, 9), "own")), 0, 0, 9, "", []),
        (Regions(TOOK_OVER, at(5, *OWN)), 0, 0, 5, "", []),
        (Regions(TOOK_OVER, at(5, *OWN), first_page=1), 0, 0, 5, "", []),
        # Behind the last copy: where clients wrote since is behind the end that is given.
        (Regions(BEHIND, at(40, *copies(40, 20), *OWN)), 0, 60, 60, "", []),
        (Regions(BEHIND, at(40, *copies(40, 19), "own")), 0, 60, 59, "", []),
        (Regions(BEHIND, at(40, *OWN)), 0, 0, 40, "", []),
        # Without a map.
        (Regions(target=at(0, *copies(0, 40), *OWN), position=40), 0, 40, 40, "", []),
        (Regions(target=at(0, *copies(0, 39), "own"), position=40), 0, 40, 39, "", []),
        (Regions(target=at(0, *copies(0, 39), "own"), position=40), 60, 40, 60, "", []),
        # What was passed is not on the source any more, or other records may have taken its place.
        (Regions(target=at(40, "s43", "s44", "s45", "s46", "own"), source_start=45), 0, 0, 44,
         "40-42 A has deleted", []),
        (Regions(target=at(40, *OWN), source_start=70), 0, 0, 50, "40-45 A has deleted", []),
        (Regions(target=at(41, *OWN[1:]), source_end=50), 0, 0, 50, "41-45 A has lost", []),
        (Regions((*SET_PAST, Segment(50, 0, 50, Mark.SOURCE_CUT)), at(40, *OWN)), 0, 0, 50,
         "40-45 A has lost", []),
        (Regions(target=at(40, *OWN), source_id=OTHER_ID), 0, 0, 50, "40-45 orders of A", []),
        (Regions(target=at(40, *OWN), configs={"cleanup.policy": "compact,delete"}), 0, 0, 50,
         "40-45 A compacts", []),
        (Regions(target=at(40, *OWN), configs={"message.timestamp.type": "LogAppendTime"}), 0, 0, 50,
         "40-45 B stamps", []),
        (Regions(target=at(40, *OWN), refused=server_error(TOPIC_AUTHORIZATION_FAILED, "configs")),
         0, 0, 50, "40-45 TOPIC_AUTHORIZATION_FAILED", []),
        (Regions(target={}, source_id=OTHER_ID), 0, 0, 50, "", []),  # nothing that could be
    ],
)  # fmt: skip
async def test_a_record_that_is_nowhere_on_the_source_is_the_targets_own(
    monkeypatch: pytest.MonkeyPatch,
    regions: Regions,
    begin: int,
    end: int,
    first: int,
    unclear: str,
    skipped: list[tuple[int, int]],
) -> None:
    found = await search(monkeypatch, regions, begin, end)
    own = found[TP]
    named = " ".join(f"{it.first}-{it.end} {it.why}" for it in own.unclear)
    assert named.startswith(unclear), named
    assert (own.first, bool(named), own.skipped) == (first, bool(unclear), skipped)
    assert own.may_begin == min([first, *(it.first for it in own.unclear)])


async def search(
    monkeypatch: pytest.MonkeyPatch, regions: Regions, begin: int, end: int
) -> Mapping[TopicPartition, OwnRecords]:
    monkeypatch.setattr(PART + "log_ends", regions.log_ends)
    for name in ("Admin", "RangeReader"):
        monkeypatch.setattr(PART + name, regions.at)
    clusters = cast("FailoverClusters", regions)
    ends = dict.fromkeys(regions.many, end) if end else None
    async with asyncio.timeout(20):
        return await own_records(clusters, dict.fromkeys(regions.many, begin), ends)


async def test_partitions_are_searched_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [TopicPartition("orders", it) for it in range(40)]
    found = await search(monkeypatch, Regions(MARKERS, at(25, "own"), at_once=20, many=many), 0, 0)
    assert {tp: own.first for tp, own in found.items()} == dict.fromkeys(many, 25)


async def test_more_than_clients_can_wait_for_is_named_and_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PART + "MOST_COMPARED", 20)
    own = (await search(monkeypatch, Regions(target=at(40, *OWN)), 0, 0))[TP]
    assert [it.why for it in own.unclear] == ["more than 20 offsets would have to be compared"]


async def test_of_a_long_range_only_the_last_records_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a killed program may copy the last ones again, and what does not show is not called skipped."""
    monkeypatch.setattr(PART + "RECENT", 5)
    again = Regions(TOOK_OVER, at(0, *copies(0, 7), *copies(5, 2), "own"))
    assert (await search(monkeypatch, again, 0, 0))[TP] == OwnRecords(TP, 9)
    assert (await search(monkeypatch, Regions(target=at(40, *OWN)), 0, 0))[TP] == OwnRecords(TP, 40)


@pytest.mark.parametrize(
    ("segments", "begin", "holes", "end"),
    [
        ([Segment(0, 5, 0), Segment(5, 4, 5)], 0, [], 9),
        ([Segment(0, 3, 2), Segment(3, 2, 7)], 0, [Hole(0, 2), Hole(5, 7)], 9),
        ([Segment(0, 3, 2), Segment(3, 2, 7)], 8, [], 9),
        # What came after an anchor no other program copied.
        ([*SET_PAST[:2], Segment(60, 0, 45), Segment(60, 5, 47)], 0,
         [Hole(40, 45, (40, 60)), Hole(45, 47)], 52),
        ([*SET_PAST[:2], Segment(60, 3, 40, Mark.SOURCE_LOST), Segment(63, 2, 45)], 0,
         [Hole(40, 45, (40, 60))], 47),
        ([Segment(5, 3, 5, Mark.UNKNOWN)], 0, [], 0),
    ],
)  # fmt: skip
def test_holes_have_what_was_passed_before_them(
    segments: Sequence[Segment], begin: int, holes: Sequence[Hole], end: int
) -> None:
    page = Page(0, ID, ID, 0, -1, -1, -1, 0, tuple(segments))
    assert holes_of(KnownMap({0: page}), begin) == (holes, end)
