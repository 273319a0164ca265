"""Where a restore ends with ``--to``: to the record, in archives as logs really are."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pytest

from mm2py.api.task import Run
from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError, UsageError
from mm2py.mirror.backfills import Job, JobState
from mm2py.mirror.offset_map_pages import Page, Segment
from mm2py.mirror.producer_ids import Suppression
from mm2py.mirror.source_offsets import mirror_source_partition, source_offset
from mm2py.mirror.start_positions import Boundary, parse_boundary
from mm2py.protocol.records import NewRecord, decode_batch, encode_batch
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import ended
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.archive.archive_format import (
    ArchivedTopic,
    ArchiveHead,
    Shape,
    manifest_stem,
    partition_folder,
    put_or_check,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_task import ArchiveTask
from mm2py_jobs.archive.restore import ArchivedLog, Restore, read_archive
from mm2py_jobs.archive.restore_runs import check_end, end_notes, end_of, job_of
from mm2py_jobs.copy.archive_order import ArchivedCopy, TaskArchive
from mm2py_jobs.copy.restored_flows import renamed_flow
from mm2py_jobs.copy.survey import Known
from mm2py_jobs.job_options import RestoreOptions
from mm2py_jobs.log.log_batches import cut, log_batch
from mm2py_jobs.spark.place import SparkPlace
from tests.kit.fakes.batches import LOG_APPEND, sealed
from tests.unit.spark.test_archive_task import delivery, publish
from tests.unit.spark.test_copy_plan import Sides

T: Final = TopicPartition("t", 0)
RECORDS: Final = [
    *((at, 100 + at) for at in range(6)),
    (6, 110),  # out of order
    *((at, 100 + at) for at in range(7, 10)),
    (10, 110),  # compaction has left this batch with 10 and 13 of 10 to 14
    (13, 112),
    *((at, -1) for at in range(16, 20)),  # no timestamps; 15 was a marker
    *((at, 400) for at in range(25, 30)),  # LogAppendTime; 20 to 24 were lost
]
"""Offsets and timestamps."""
RECORDS_FROM_13: Final = 10


def a_batch(
    stamps: Sequence[int], base: int, deltas: Sequence[int] = (), appended: int = -1
) -> bytearray:
    """Return a batch; ``deltas`` where compaction has left holes, and its last offset delta."""
    records = [
        NewRecord(b"k%d" % n, b"v", [(b"h", b"x")] if n % 2 else (), it)
        for n, it in enumerate(stamps)
    ]
    data = encode_batch(records)
    struct.pack_into(">q", data, 0, base)
    if deltas:
        # A record of these begins with length, attributes and timestamp delta, a byte each.
        position = 61
        for delta in deltas[:-1]:
            data[position + 3] = 2 * delta
            position += 1 + data[position] // 2
        struct.pack_into(">i", data, 23, deltas[-1])
    if appended >= 0:
        data[22] |= LOG_APPEND
        struct.pack_into(">q", data, 35, appended)
    return sealed(data)


def an_archive(path: Path) -> ArchiveStore:
    store = ArchiveStore(str(path))
    head = ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES)
    put_or_check(store, "manifest.json", head)
    topic = ArchivedTopic(topic="t", topic_id="", partitions=1, configs={})
    put_or_check(store, "topic=t/topic.json", topic)
    stamps = [stamp for _, stamp in RECORDS]
    publish(store, T, 0, 10, [a_batch(stamps[:5], 0), a_batch(stamps[5:10], 5)])
    publish(store, T, 10, 20, [a_batch(stamps[10:12], 10, [0, 3, 4]), a_batch(stamps[12:16], 16)])
    publish(store, T, 25, 30, [a_batch([7] * 5, 25, appended=400)], lost_from=20)
    return store


def the_log(store: ArchiveStore, to: Boundary) -> ArchivedLog:
    (log,) = read_archive(store, lambda _: True, lambda name: name, to)
    return log


async def handed_out(store: ArchiveStore, first: int, end: int) -> list[tuple[int, int]]:
    """Return offsets and timestamps of what a lane sends behind a stored position."""
    context, found = FakeTaskContext(), list[tuple[int, int]]()
    if first:
        context.store(mirror_source_partition("A", T), source_offset(first - 1))
    topics = {"t": ArchivedCopy("t", "", "A.t")}
    task = ArchiveTask(TaskArchive(store.path, topics, {T: end}, {T: 0}), "A", context)
    await task.start()
    for _ in range(20):
        for outgoing in await ended(context, task.poll(1 << 20)):
            for batch in outgoing.batches:
                records = decode_batch(memoryview(sealed(batch.data)), batch.runs).records
                task.delivered(delivery(T, Run(batch.base_offset, batch.count, len(found))))
                found += [(it.offset, it.timestamp) for it in records]
    assert context.states == []
    assert context.covered == [(T, end - 1)]
    await task.stop()
    return found


@pytest.mark.parametrize(
    ("to", "end", "left_out"),
    [
        (Boundary(timestamp=103), 3, 18),  # within a batch
        (Boundary(timestamp=105), 5, 16),  # between two
        (Boundary(timestamp=106), 6, 15),  # the first one in log order, as offsetsForTimes
        (Boundary(timestamp=111), 13, RECORDS_FROM_13),
        (Boundary(timestamp=113), 25, 5),  # records without a timestamp end nothing
        (Boundary(timestamp=400), 25, 5),
        (Boundary(timestamp=401), 30, None),
        (Boundary(offset=7), 7, 14),
        (Boundary(offset=10), 10, 11),  # between two files
        (Boundary(offset=12), 12, RECORDS_FROM_13),
        (Boundary(offset=15), 15, 9),
        (Boundary(offset=22), 22, 5),
        (Boundary(offset=29), 29, 1),
        (Boundary(offset=30), 30, 0),
        (Boundary(offset=31), 30, None),
        (Boundary(), 30, None),
    ],
)
async def test_a_restore_ends_before_its_record_and_another_one_continues_there(
    tmp_path: Path, to: Boundary, end: int, left_out: int | None
) -> None:
    store = an_archive(tmp_path)
    log = the_log(store, to)
    assert (log.begins, log.end, log.is_cut) == (0, end, left_out is not None)
    assert log.left_out == (left_out or 0)
    assert await handed_out(store, 0, end) == [it for it in RECORDS if it[0] < end]
    if end < 30:
        assert await handed_out(store, end, 30) == [it for it in RECORDS if it[0] >= end]


@pytest.mark.parametrize("damaged", ["file", "manifest", "missing"])
@pytest.mark.parametrize("to", [Boundary(timestamp=111), Boundary(offset=13)])
async def test_what_is_damaged_behind_the_end_does_not_matter_and_before_it_stops_the_partition(
    tmp_path: Path, to: Boundary, damaged: str
) -> None:
    store = an_archive(tmp_path)

    def damage(begins: int, name: str) -> None:
        file = Path(store.path, partition_folder(T), name)
        manifest = Path(store.path, f"{manifest_stem(T, begins)}.json")
        if damaged == "file":
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 1
            file.write_bytes(data)
        elif damaged == "manifest":
            manifest.write_bytes(manifest.read_bytes()[:9])
        else:
            manifest.unlink()

    damage(20, "25-30.parquet")
    log = the_log(store, to)
    assert (log.end, log.broken) == (13, "")
    assert log.left_out == (-1 if damaged == "manifest" else 5 if damaged == "missing" else 10)
    assert await handed_out(store, 0, 13) == [it for it in RECORDS if it[0] < 13]
    damage(10, "10-20.parquet")
    if damaged == "missing":
        return  # as where a run was killed before it published it
    log = the_log(store, to)
    if to.timestamp is not None:
        assert log.broken
        assert not log.has_end  # it may lie there: the plan refuses it
    else:
        assert log.end == 13  # its lane says so


def options(to: str) -> RestoreOptions:
    return RestoreOptions(file=Path("f"), flow="A->B", folder="/d", place=SparkPlace(), end=to)


def test_an_age_is_counted_once_for_all_runs_of_a_job() -> None:
    given = options("1 hour ago")
    text, to = end_of(given, job_of(given, "/d").archive, ())
    begun = replace(job_of(given, "/d", text), state=JobState.FAILED)
    earlier = replace(begun, end="5")
    assert to == parse_boundary(begun.end, "--to", "now")
    assert begun.end[-1] == "Z"  # as people read it
    assert end_of(given, begun.archive, (None, earlier)) == ("5", Boundary(timestamp=5))
    over: Sequence[Job] = [replace(earlier, state=JobState.DONE), job_of(options("now"), "/d")]
    assert end_of(given, begun.archive, over)[1] != Boundary(timestamp=5)
    archives = {job_of(options(it), "/d").archive for it in ("now", "1 hour ago", "offset:3")}
    assert len(archives) == 3  # another end is another job


@pytest.mark.parametrize("to", ["yesterday", "offset:", "3000-01-01T00:00:00Z"])
def test_what_is_no_end_is_refused_before_anything_is_opened(to: str) -> None:
    with pytest.raises(UsageError, match="--to"):
        end_of(options(to), "", ())


@pytest.mark.parametrize(
    ("to", "refusal"),
    [
        ("100", "nothing before --to 100"),
        ("offset:0", "nothing before --to offset:0"),
        ("offset:31", "behind all that is archived: t-0 ends at offset 30"),
    ],
)
def test_an_end_that_the_archive_does_not_have_is_refused(
    tmp_path: Path, to: str, refusal: str
) -> None:
    _, end = end_of(options(to), "", ())
    with pytest.raises(ConfigError, match=refusal):
        check_end([the_log(an_archive(tmp_path), end)], end, to)


def test_partitions_that_do_not_end_there_are_named(tmp_path: Path) -> None:
    early = the_log(an_archive(tmp_path), Boundary(offset=31))
    nothing = replace(early, partition=1, is_cut=True, end=0, left_out=21)
    cut = replace(early, partition=2, end=7, is_cut=True, left_out=14)
    check_end([early, nothing, cut], Boundary(offset=31), "offset:31")
    first, second = end_notes([early, nothing, cut], Boundary(offset=31))
    assert first.startswith("t-0: the archive ends before --to")
    assert second == "t-1: the archive has nothing before --to"
    assert end_notes([early], Boundary()) == []


@pytest.mark.parametrize(
    ("position", "mapped", "log_end", "refused"),
    [
        (13, 11, 11, False),  # done
        (5, 5, 5, False),
        (5, 5, 11, False),  # a killed run has sent more, up to the end
        (5, 5, 12, True),  # and behind it
        (0, -1, 12, True),  # before it stored anything
        (0, -1, 11, False),
        (16, 12, 12, True),
    ],
)
async def test_a_copy_that_goes_beyond_the_end_is_refused(
    tmp_path: Path, position: int, mapped: int, log_end: int, *, refused: bool
) -> None:
    store = an_archive(tmp_path)
    (log,) = read_archive(store, lambda _: True, lambda _: "r", Boundary(offset=13))
    flow = renamed_flow(FlowName(ClusterAlias("A"), ClusterAlias("B")))
    admin = cast("Admin", Sides(("r",), log_end))
    restore = Restore(flow, [log], admin, store, SYSTEM_CLOCK, Suppression.OFF, frozenset())
    key = TopicPartition("r", 0)
    ids = (NO_TOPIC_ID, NO_TOPIC_ID)
    page = Page(0, *ids, 0, position, -1, 7, 0, (Segment(0, mapped, 0),))
    known = Known({key: position}, {key: page} if mapped >= 0 else {})
    plan = await restore.plan(known)
    assert restore.beyond == ({key} if refused else set())
    assert ["from offset 13 on" in it.reason for it in plan.refused] == [True] * refused
    if not refused:
        (planned,) = plan.partitions
        assert (planned.start, planned.end, planned.left_out) == (position, 13, 10)


@pytest.mark.parametrize(
    ("first", "end", "offsets"),
    [(0, 30, [10, 11, 20, 21]), (11, 30, [11, 20, 21]), (0, 20, [10, 11]), (12, 20, [])],
)
def test_a_batch_that_was_of_an_old_format_is_cut_by_the_offsets_of_its_records(
    first: int, end: int, offsets: list[int]
) -> None:
    batch = log_batch(memoryview(a_batch([1, 2, 3, 4], 0)))
    batch = replace(batch, base_offset=10, last_offset=21, runs=((10, 2), (20, 2)))
    records = [
        it
        for cut_batch in cut(T, batch, first, end)
        for it in decode_batch(memoryview(sealed(cut_batch.data)), cut_batch.runs).records
    ]
    stamps = {10: 1, 11: 2, 20: 3, 21: 4}
    assert [(it.offset, it.timestamp) for it in records] == [(it, stamps[it]) for it in offsets]
