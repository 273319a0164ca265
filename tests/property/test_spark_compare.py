"""Comparing a partition with its copy: the invariants of ``mm2py_jobs.verify.compare`` and of ``mm2py_jobs.verify.digests``, by their names."""

import asyncio
import json
import struct
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Sequence, Sized
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.errors import ProtocolError
from mm2py.protocol.record_batch import Codec, crc32c
from mm2py.protocol.records import Header, NewRecord, encode_batch
from mm2py_jobs.log.log_batches import LogBatch, log_batch
from mm2py_jobs.verify import compare as compare_module
from mm2py_jobs.verify import log_entries, open_keys
from mm2py_jobs.verify.compare import compare, find, resync_point
from mm2py_jobs.verify.differences import (
    CompareRules,
    Comparison,
    Difference,
    DifferenceKind,
    Findings,
    classify,
    join,
)
from mm2py_jobs.verify.digests import SequenceDigest, part_hash, record_hash
from mm2py_jobs.verify.log_entries import LogEntry, LogSide, OffsetRange
from mm2py_jobs.verify.open_keys import Keys, SpillError
from tests.kit.fakes.batches import sealed
from tests.property.effort import examples

relaxed = settings(max_examples=examples(30), deadline=None)
ALL: Final = OffsetRange(0, 2**62)


class Rec(NamedTuple):
    """A record and its offset."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_000
    headers: tuple[Header, ...] = ()


def batch_of(records: Sequence[Rec], codec: Codec) -> LogBatch:
    """One batch; holes between the offsets are kept by a batch per dense stretch, see ``batches``."""
    data = encode_batch(
        [NewRecord(it.key, it.value, it.headers, it.timestamp) for it in records], codec
    )
    struct.pack_into(">q", data, 0, records[0].offset)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return log_batch(memoryview(data))


def batches(
    records: Sequence[Rec], sizes: Sequence[int], codec: Codec = Codec.NONE
) -> list[LogBatch]:
    found: list[LogBatch] = []
    waiting: list[Rec] = []
    cut, turn = sizes[0], 0
    for record in records:
        if waiting and (record.offset != waiting[-1].offset + 1 or len(waiting) >= cut):
            found.append(batch_of(waiting, codec))
            waiting, turn = [], turn + 1
            cut = sizes[turn % len(sizes)]
        waiting.append(record)
    return [*found, batch_of(waiting, codec)] if waiting else found


def side(found: Sequence[LogBatch], *, digests: bool = False, wanted: OffsetRange = ALL) -> LogSide:
    async def pieces() -> AsyncIterator[tuple[OffsetRange, Sequence[LogBatch]]]:
        for batch in found:
            yield wanted, [batch]

    return LogSide(pieces(), digests=digests)


def renumbered(records: Sequence[Rec], base: int = 0) -> list[Rec]:
    return [it._replace(offset=base + at) for at, it in enumerate(records)]


def log_of(count: int) -> list[Rec]:
    return [Rec(n, b"k%d" % (n % 50), b"v%d" % n, 1_000 + n) for n in range(count)]


async def differences(
    ours: Sequence[Rec],
    theirs: Sequence[Rec],
    *,
    sizes: tuple[Sequence[int], Sequence[int]] = ((100,), (100,)),
    rules: CompareRules | None = None,
) -> Comparison:
    covered = CompareRules(covered=2**62) if rules is None else rules
    sides = side(batches(ours, sizes[0])), side(batches(theirs, sizes[1]))
    return await compare(*sides, covered, (keys_of(ours), keys_of(theirs)))


def keys_of(log: Sequence[Rec]) -> Keys:
    async def keys(first: int, end: int) -> AsyncGenerator[tuple[int, int]]:
        begin, behind = (bisect_left(log, it, key=lambda row: row.offset) for it in (first, end))
        for it in log[begin:behind]:
            key = part_hash(it.key)
            if key is not None:
                yield it.offset, key

    return keys


def watched(
    monkeypatch: pytest.MonkeyPatch, log: Sequence[Rec]
) -> tuple[Keys, list[int], list[Sized]]:
    """Keys of the target's log, its reads, and the sets of keys that memory had one after the other."""
    reads: list[int] = []
    in_memory: list[Sized] = []
    new = vars(open_keys)["_Known"]

    def known() -> object:
        in_memory.append(new())
        return in_memory[-1]

    async def keys(first: int, end: int) -> AsyncGenerator[tuple[int, int]]:
        reads.append(first)
        async for it in keys_of(log)(first, end):
            yield it

    monkeypatch.setattr(open_keys, "_Known", known)
    monkeypatch.setattr(open_keys, "OPEN_KEYS", 1_000)
    return keys, reads, in_memory


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)
codecs = st.sampled_from([Codec.NONE, Codec.LZ4])


@relaxed
@given(st.integers(0, 300), sizes, sizes, codecs, codecs, st.booleans(), st.integers(0, 3))
def test_1_equal_records_give_no_difference_whatever_their_batches_are(
    count: int, one: list[int], other: list[int], codec: Codec, other_codec: Codec, digests: bool, shift: int
) -> None:  # fmt: skip
    log = log_of(count)
    ours = side(batches(log, one, codec), digests=digests)
    theirs = side(batches(renumbered(log, shift), other, other_codec), digests=digests)
    found = asyncio.run(compare(ours, theirs, CompareRules(covered=count)))
    assert found == Comparison(count)
    assert ours.digest == theirs.digest


@pytest.mark.parametrize("at", [0, 57, 100, 199, 990])
async def test_2_each_kind_of_change_is_named_by_its_offsets(at: int) -> None:
    log = log_of(1_000)
    one = log[at]
    changes = {
        "value": [*log[:at], one._replace(value=b"V"), *log[at + 1 :]],
        "key": [*log[:at], one._replace(key=b"K"), *log[at + 1 :]],
        "headers": [*log[:at], one._replace(headers=((b"h", None),)), *log[at + 1 :]],
        "timestamp": [*log[:at], one._replace(timestamp=5), *log[at + 1 :]],
    }
    for field, changed in changes.items():
        found = await differences(log, changed)
        assert found.differences == [Difference(DifferenceKind.ALTERED, at, at, (field,))]
        assert found.matched == 999
    dropped = await differences(log, renumbered(log[:at] + log[at + 1 :]))
    assert dropped.differences == [Difference(DifferenceKind.MISSING, at, -1)]
    extra = Rec(0, b"x", b"foreign", 77)
    added = await differences(log, renumbered([*log[:at], extra, *log[at:]]))
    assert added.differences == [Difference(DifferenceKind.EXTRA, -1, at)]
    swapped = renumbered([*log[:at], log[at + 1], log[at], *log[at + 2 :]])
    found = await differences(log, swapped)
    assert {it.kind for it in found.differences} == {DifferenceKind.REORDERED}
    assert [(it.source_offset, it.target_offset) for it in found.differences] == [
        (at, at + 1),
        (at + 1, at),
    ]


async def test_2_changes_far_apart_are_all_named_and_the_extra_record_at_the_end_too() -> None:
    log = log_of(20_000)
    changed = [
        *log[:5_000],
        *log[5_001:9_000],
        log[9_000]._replace(value=b"x"),
        *log[9_001:],
        Rec(0, None, b"e"),
    ]
    moved = changed[:12_000] + changed[12_001:17_000] + [changed[12_000]] + changed[17_000:]
    found = await differences(log, renumbered(moved), rules=CompareRules(covered=20_000))
    assert found.differences == [
        Difference(DifferenceKind.MISSING, 5_000, -1),
        Difference(DifferenceKind.ALTERED, 9_000, 8_999, ("value",)),
        Difference(DifferenceKind.REORDERED, 12_001, 16_999),
        Difference(DifferenceKind.EXTRA, -1, 19_999),
    ]


@relaxed
@given(st.data())
def test_2_each_record_that_is_on_one_side_alone_is_in_a_difference(data: st.DataObject) -> None:
    log = log_of(data.draw(st.integers(1, 200)))
    dropped = data.draw(st.sets(st.integers(0, len(log) - 1)))
    added = data.draw(st.lists(st.integers(0, len(log)), max_size=5))
    changed = [it for it in log if it.offset not in dropped]
    for number, place in enumerate(sorted(added, reverse=True)):
        changed.insert(min(place, len(changed)), Rec(0, None, b"extra %d" % number, 1))
    cuts = data.draw(sizes), data.draw(sizes)
    copy = renumbered(changed)
    found = asyncio.run(differences(log, copy, sizes=cuts))
    ours = {it.source_offset for it in found.differences}
    theirs = {it.target_offset for it in found.differences}
    assert dropped == ours - {-1}
    extra = {it.offset for it in copy if (it.value or b"").startswith(b"extra")}
    assert extra == theirs - {-1}
    assert found.matched == len(log) - len(dropped)


def stamped(batch: LogBatch) -> LogBatch:
    """The batch as a broker has it whose topic takes the time of the append."""
    data = bytearray(batch.data)
    data[22] |= 0x08
    return log_batch(memoryview(sealed(data)))


@relaxed
@given(st.data())
def test_2_records_compared_by_their_bytes_differ_as_decoded_ones_do(data: st.DataObject) -> None:
    log = log_of(data.draw(st.integers(20, 300)))
    copy = renumbered(changed_log(data, log)) if data.draw(st.booleans()) else log
    first, end = sorted(data.draw(st.lists(st.integers(0, 300), min_size=2, max_size=2)))
    wanted = data.draw(st.sampled_from([ALL, OffsetRange(first, end)]))
    batch_lists = [batches(it, data.draw(sizes), data.draw(codecs)) for it in (log, copy)]
    for it in batch_lists:
        for number in range(len(it)):
            if data.draw(st.sampled_from([False] * 30 + [True])):
                it[number] = stamped(it[number])
    compacts = data.draw(st.booleans())
    rules = CompareRules(covered=len(log), target_compacts=compacts, expected=lambda offset: offset)
    found: list[Comparison] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_module, "_CALM", data.draw(st.sampled_from([1, 5, 4_096])))
        for digests in (False, True):
            ours, theirs = (side(it, digests=digests, wanted=wanted) for it in batch_lists)
            found.append(asyncio.run(compare(ours, theirs, rules)))
    assert found[0] == found[1]


async def test_1_behind_a_difference_bytes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(30_000)
    copy = [*log[:100], log[100]._replace(value=b"x"), *log[101:]]
    decoded: list[int] = []
    real = log_entries.entries_of

    def entries_of(batch: LogBatch) -> list[LogEntry]:
        decoded.append(batch.count)
        return real(batch)

    monkeypatch.setattr(log_entries, "entries_of", entries_of)
    ours, theirs = side(batches(log, [70])), side(batches(copy, [990, 20]))
    found = await compare(ours, theirs, CompareRules(covered=30_000))
    assert found.differences == [Difference(DifferenceKind.ALTERED, 100, 100, ("value",))]
    assert found.matched == 29_999
    assert sum(decoded) < 15_000  # of 60,000


async def test_a_damaged_record_is_an_error_that_names_its_batch() -> None:
    for codec in (Codec.NONE, Codec.LZ4):
        found = batches(log_of(100), [40])
        data = encode_batch([NewRecord(b"k", b"v") for _ in range(3)])
        data[61] ^= 0x40  # the length of its first record
        struct.pack_into(">q", data, 0, 100)
        found.append(log_batch(memoryview(sealed(data))))
        other = batches(log_of(103), [33], codec)
        with pytest.raises(ProtocolError, match="batch at offset 100"):
            await compare(side(found), side(other), CompareRules(covered=200))
        with pytest.raises(ProtocolError, match="batch at offset 100"):
            await compare(side(other), side(found), CompareRules(covered=200))


@relaxed
@given(st.data())
def test_3_what_compaction_may_have_removed_is_no_difference(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.booleans(), min_size=1, max_size=120))
    # Without a map, tombstones with the same key and timestamp cannot be distinguished.
    log = [
        Rec(n, b"k%d" % (n % 7), b"v%d" % n if it else None, 1_000 + n)
        for n, it in enumerate(values)
    ]
    kept = cleaned(data, log)
    expected = data.draw(st.sampled_from([in_place, nowhere]))
    rules = CompareRules(covered=len(log), target_compacts=True, expected=expected)
    back = CompareRules(covered=len(log), source_compacts=True, expected=expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_keys, "OPEN_KEYS", data.draw(st.sampled_from([1, 4, 250_000])))
        # Without a map a hole is crossed only inside of the largest window.
        windows = [(64, 512)] if expected is nowhere else [(8,), (64, 512)]
        patch.setattr(compare_module, "WINDOWS", data.draw(st.sampled_from(windows)))
        assert not asyncio.run(differences(log, kept, rules=rules)).differences
        assert not asyncio.run(differences(kept, log, rules=back)).differences
        # A tombstone whose older record is there was not removed by a cleaner.
        lost = [
            it
            for at, it in enumerate(kept)
            if it.value is None and any(older.key == it.key for older in kept[:at])
        ]
        if lost:
            one = data.draw(st.sampled_from(lost))
            less = [it for it in kept if it is not one]
            found = asyncio.run(differences(log, less, rules=rules))
            assert Difference(DifferenceKind.MISSING, one.offset, -1) in found.differences
            found = asyncio.run(differences(less, log, rules=back))
            assert Difference(DifferenceKind.EXTRA, -1, one.offset) in found.differences


@relaxed
@given(st.data())
def test_5_what_is_spilled_is_judged_as_what_is_in_memory(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.booleans(), min_size=1, max_size=80))
    log = [Rec(n, b"k%d" % (n % 7), b"v%d" % n if it else None) for n, it in enumerate(values)]
    dropped = data.draw(st.sets(st.integers(0, len(log) - 1)))
    less = [it for it in log if it.offset not in dropped]
    rules = CompareRules(
        covered=len(log), source_compacts=True, target_compacts=True, expected=in_place
    )
    for ours, theirs in ((log, less), (less, log)):
        found: list[Comparison] = []
        with pytest.MonkeyPatch.context() as patch:
            for most in (1, 4, 250_000):
                patch.setattr(open_keys, "OPEN_KEYS", most)
                found.append(asyncio.run(differences(ours, theirs, rules=rules)))
        assert found[0] == found[1] == found[2]


def in_place(offset: int) -> int:
    return offset


def nowhere(_offset: int) -> int:
    return -1


def cleaned(data: st.DataObject, log: Sequence[Rec]) -> list[Rec]:
    """What a cleaner leaves: below its end the newest record of each key, and of those a tombstone for some time."""
    end = data.draw(st.integers(0, len(log)))
    newest = {it.key: it.offset for it in log[:end]}
    expired = data.draw(st.integers(0, end))
    return [
        it
        for it in log
        if it.offset >= end
        or (newest[it.key] == it.offset and (it.value is not None or it.offset >= expired))
    ]


@pytest.mark.parametrize("count", [60, 20_000])
@pytest.mark.parametrize("mapped", [True, False])
async def test_3_a_lost_tombstone_is_named_a_compacted_one_is_not(count: int, mapped: bool) -> None:
    log = [Rec(0, b"k1", b"v1"), Rec(1, b"k1", None)]
    log += [Rec(n, b"k%d" % n, b"v", 1_000 + n) for n in range(2, count)]
    without_tombstone, compacted = [log[0], *log[2:]], log[2:]
    if not mapped:
        without_tombstone, compacted = renumbered(without_tombstone), renumbered(compacted)
    rules = CompareRules(
        covered=count if mapped else None,
        source_compacts=True,
        target_compacts=True,
        expected=in_place if mapped else nowhere,
    )
    found = await differences(log, without_tombstone, rules=rules)
    assert found.differences == [Difference(DifferenceKind.MISSING, 1, -1)]
    assert not (await differences(log, compacted, rules=rules)).differences
    back = await differences(without_tombstone, log, rules=rules)
    assert back.differences == [Difference(DifferenceKind.EXTRA, -1, 1)]
    assert not (await differences(compacted, log, rules=rules)).differences


@pytest.mark.parametrize("count", [3_000, 12_000])
async def test_5_keys_in_memory_and_reads_of_a_log_are_bounded_whatever_number_of_keys_there_are(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    log = [Rec(n, b"k%d" % (n % count), b"v%d" % n, n) for n in range(2 * count)]
    theirs = log[count:]
    keys, reads, in_memory = watched(monkeypatch, theirs)
    monkeypatch.setattr(compare_module, "WINDOWS", (64, 512))
    rules = CompareRules(covered=len(log), target_compacts=True, expected=lambda offset: offset)
    ours, copy = side(batches(log, [100])), side(batches(theirs, [100]))
    compared = await compare(ours, copy, rules, (keys_of(log), keys))
    assert (compared.matched, compared.differences) == (count, [])
    assert max(map(len, in_memory)) == 1_000
    assert len(reads) == 1


@pytest.mark.parametrize("fate", ["written later", "deleted later", "lost"])
async def test_5_places_of_compaction_and_what_no_later_record_explains_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """Records that both have lie between; the target has removed tombstones with what they delete."""
    count = 6_000
    log = [Rec(n, b"k%d" % (n // 2) if n % 2 else b"both%d" % n, b"v%d" % n, n) for n in range(2 * count)]  # fmt: skip
    later = None if fate == "deleted later" else b"w"
    more = [] if fate == "lost" else [Rec(2 * count + n, b"k%d" % n, later, n) for n in range(count)]  # fmt: skip
    theirs = [*log[::2], *(more if later else [])]
    log += more
    keys, reads, in_memory = watched(monkeypatch, theirs)
    rules = CompareRules(covered=len(log), target_compacts=True, expected=in_place, most=500)
    ours, copy = side(batches(log, [100])), side(batches(theirs, [1]))
    found = await find(ours, copy, rules, (keys_of(log), keys))
    assert found.regions == []
    assert max(map(len, in_memory)) == 1_000
    assert len(reads) == 1
    assert found.matched == len(theirs)
    # The first ones are named, as of differences that compaction does not explain.
    assert found.missing == ([*range(1, 1_000, 2)] if fate == "lost" else [])
    assert found.complete == (fate != "lost")


@pytest.mark.parametrize("buffer", [2, 1 << 17])
async def test_a_full_disk_is_one_line_and_no_file_is_left(
    monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    """With the larger buffer it is noticed only when what was spilled is judged."""
    files: list[BinaryIO] = []

    def full(_size: int, dir: str) -> BinaryIO:  # noqa: A002 - as tempfile has it
        assert dir in ("/disk/1", "/disk/2")
        files.append(Path("/dev/full").open("w+b", buffering=buffer))  # noqa: SIM115 - that it is closed is the claim
        return files[-1]

    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk/1,/disk/2")
    monkeypatch.setattr("tempfile.SpooledTemporaryFile", full)
    monkeypatch.setattr(open_keys, "OPEN_KEYS", 10)
    log = [Rec(n, b"k%d" % n, b"v") for n in range(3_000)]  # so that each file has some
    rules = CompareRules(covered=3_000, target_compacts=True, expected=in_place)
    with pytest.raises(SpillError, match=r"/disk/1.*No space left on device; free space") as raised:
        await differences(log, log[::2], rules=rules)
    assert "\n" not in str(raised.value)
    assert files
    assert all(it.closed for it in files)


async def test_3_an_altered_record_of_a_compacted_topic_is_named() -> None:
    log = [Rec(n, b"k%d" % (n // 3), b"v%d" % n) for n in range(99)]
    kept = [it for it in log if it.offset % 3]
    kept[10] = kept[10]._replace(value=b"x")
    rules = CompareRules(covered=100, target_compacts=True, expected=lambda offset: offset)
    found = await differences(log, kept, rules=rules)
    at = kept[10].offset
    assert found.differences == [Difference(DifferenceKind.ALTERED, at, at, ("value",))]


@pytest.mark.parametrize("covered", [700, None])
async def test_4_records_that_are_not_copied_yet_are_no_difference(covered: int | None) -> None:
    log = log_of(1_000)
    found = await differences(log, log[:700], rules=CompareRules(covered=covered))
    assert not found.differences
    assert (found.matched, found.behind) == (700, 700)
    extra = renumbered([*log[:700], Rec(0, None, b"extra", 3)])
    found = await differences(log, extra, rules=CompareRules(covered=covered))
    assert found.differences == [Difference(DifferenceKind.EXTRA, -1, 700)]
    assert found.behind == 700


async def test_a_copy_that_differs_everywhere_ends_the_comparison() -> None:
    log = log_of(3_000)
    other = [it._replace(value=b"other %d" % it.offset) for it in log]
    found = await differences(log, other, rules=CompareRules(covered=3_000, most=500))
    assert not found.complete
    assert len(found.differences) >= 500


def parts_of(
    ours: Sequence[Rec], theirs: Sequence[Rec], cuts: Sequence[tuple[int, int]]
) -> Comparison:
    """Compare parts, cut at (source offset, target offset), each as a task does, and join what they answer."""

    async def run() -> list[Findings]:
        found: list[Findings] = []
        begin = 0, 0
        for end in (*cuts, (2**62, 2**62)):
            one = [it for it in ours if begin[0] <= it.offset < end[0]]
            other = [it for it in theirs if begin[1] <= it.offset < end[1]]
            rules = CompareRules(covered=min(end[0], len(ours)))
            part = await find(side(batches(one, [7])), side(batches(other, [9])), rules)
            found.append(Findings.from_json(json.loads(json.dumps(part.to_json()))))
            begin = end
        return found

    whole = join(asyncio.run(run()))
    return classify(whole, CompareRules(covered=len(ours), expected=lambda offset: offset))


def changed_log(data: st.DataObject, log: Sequence[Rec]) -> list[Rec]:
    """Records are changed, swapped or gone at their places, as they can be behind an offset map."""
    copy = list(log)
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(copy) - 2))
        match data.draw(st.sampled_from(["value", "swap", "drop", "end"])):
            case "value":
                copy[at] = copy[at]._replace(value=b"changed %d" % at)
            case "swap":
                one, other = copy[at], copy[at + 1]
                copy[at : at + 2] = [
                    other._replace(offset=one.offset),
                    one._replace(offset=other.offset),
                ]
            case "drop" if len(copy) > 3:
                del copy[at]
            case _ if len(copy) > 30:
                del copy[-data.draw(st.integers(1, 9)) :]
            case _:
                pass
    return copy


@relaxed
@given(st.data())
def test_differences_1_parts_have_the_differences_of_the_whole(data: st.DataObject) -> None:
    log = log_of(data.draw(st.integers(20, 400)))
    copy = changed_log(data, log)
    places = data.draw(st.lists(st.integers(1, len(log) - 1), max_size=5, unique=True))
    found = parts_of(log, copy, [(it, it) for it in sorted(places)])
    rules = CompareRules(covered=len(log), expected=lambda offset: offset)
    whole = asyncio.run(differences(log, copy, rules=rules))
    assert found.matched + len({it.source_offset for it in found.differences} - {-1}) == len(log)
    assert whole.tail == found.tail
    # Of a swapped pair one record or both can be said to have moved.
    if not any(
        it.kind is DifferenceKind.REORDERED for it in (*whole.differences, *found.differences)
    ):
        assert whole.differences == found.differences


def test_differences_2_a_pair_that_is_swapped_over_a_cut_is_named_once() -> None:
    log = log_of(100)
    one, other = log[49], log[50]
    copy = [*log[:49], other._replace(offset=49), one._replace(offset=50), *log[51:]]
    found = parts_of(log, copy, [(50, 50)])
    assert found.differences == [
        Difference(DifferenceKind.REORDERED, 49, 50),
        Difference(DifferenceKind.REORDERED, 50, 49),
    ]
    # The target has one record more before the cut: what is behind it is the same all the same.
    shifted = [*log[:40], Rec(40, None, b"extra"), *renumbered(log[40:], 41)]
    assert parts_of(log, shifted, [(50, 50)]).differences == [
        Difference(DifferenceKind.EXTRA, -1, 40)
    ]
    assert parts_of(log, log, [(10, 10), (10, 10), (100, 100)]) == Comparison(100)


async def test_a_copy_that_ends_too_early_has_a_tail() -> None:
    log = log_of(100)
    assert (await differences(log, log[:60], rules=CompareRules(covered=90))).tail == 60
    assert (await differences(log, log[:60], rules=CompareRules(covered=60))).tail == -1
    other = [*log[:60], Rec(60, None, b"x")]
    assert (await differences(log, other, rules=CompareRules(covered=90))).tail == -1
    assert (await differences(log, log[1:], rules=CompareRules(covered=90))).tail == -1


def test_the_nearest_point_wins() -> None:
    assert resync_point("abcdefghij", "xabcdefghi", 3) == (0, 1)
    assert resync_point("abc", "xyz", 1) is None


hashes = st.lists(st.integers(0, 2**128 - 1), max_size=20)


def digest_of(values: Sequence[int]) -> SequenceDigest:
    return SequenceDigest().add_all(values)


@relaxed
@given(hashes, hashes, hashes)
def test_digests_1_joining_is_associative_and_2_cuts_do_not_count(
    one: list[int], two: list[int], three: list[int]
) -> None:
    a, b, c = digest_of(one), digest_of(two), digest_of(three)
    assert (a + b) + c == a + (b + c) == digest_of(one + two + three)
    assert a + SequenceDigest() == a == SequenceDigest() + a
    assert SequenceDigest.parse(str(a)) == a


@relaxed
@given(st.lists(st.binary(max_size=5), min_size=2, max_size=20, unique=True), st.data())
def test_digests_3_a_changed_missing_added_or_moved_record_changes_it(
    bodies: list[bytes], data: st.DataObject
) -> None:
    values = [record_hash(1, body) for body in bodies]
    at = data.draw(st.integers(0, len(values) - 2))
    others = [
        values[:at] + values[at + 1 :],
        [*values, values[at]],
        [*values[:at], values[at + 1], values[at], *values[at + 2 :]],
        [*values[:at], record_hash(2, bodies[at]), *values[at + 1 :]],
    ]
    assert all(digest_of(other) != digest_of(values) for other in others)
