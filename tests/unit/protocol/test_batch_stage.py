"""What becomes of each batch of a source right after Fetch, by its header and its producer's id, in Python and in the optional C kernel."""

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from mm2py.protocol import batch_stage
from mm2py.protocol.batch_stage import (
    Dropped,
    DropReason,
    Origins,
    ProblemKind,
    StageProblem,
    StageResult,
    classify,
)
from mm2py.protocol.kernel import SWITCH, load_kernel
from mm2py.protocol.record_batch import Codec
from mm2py.protocol.records import Record, decode_batches
from tests.kit.fakes.batches import (
    ABORT,
    COMMIT,
    CONTROL,
    HORIZON,
    TRANSACTIONAL,
    CountedLease,
    empty_batch,
    marker,
    sealed,
    stored_batch,
)

Batch = bytes | bytearray


@pytest.fixture(params=["kernel", "python"], autouse=True)
def scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(batch_stage, "scan", batch_stage.plain_scan)


def staged(
    *batches: Batch,
    wanted: int = 0,
    lease: CountedLease | None = None,
    aborted: Sequence[tuple[int, int]] = (),
    origins: Origins | None = None,
) -> StageResult:
    raw = memoryview(bytearray().join(batches))
    return classify(raw, wanted, lease, aborted=aborted, origins=origins)


def bases(result: StageResult) -> list[int]:
    return [batch.base_offset for batch in result.batches]


def problem_of(result: StageResult) -> StageProblem:
    assert result.problem is not None
    return result.problem


def put(data: bytearray, offset: int, layout: str, value: int) -> bytearray:
    """Change one field, and the CRC where it covers the field."""
    struct.pack_into(layout, data, offset, value)
    return sealed(data) if offset > 20 else data


def with_payload(batch: bytearray, payload: bytes) -> bytearray:
    data = batch[:61] + payload
    return sealed(put(data, 8, ">i", len(data) - 12))


def gaps(data: bytearray, deltas: Sequence[int], last_delta: int) -> bytearray:
    """Give an uncompressed batch of one-byte deltas the holes that a cleaner leaves."""
    position = 61
    for delta in deltas:
        data[position + 3] = delta << 1
        position += 1 + (data[position] >> 1)
    return put(data, 23, ">i", last_delta)


def records(raw: bytes | bytearray | memoryview) -> list[Record]:
    return [record for one in decode_batches(sealed(raw)) for record in one.records]


def test_ordinary_batches_are_forwarded_as_views_with_one_reference_each() -> None:
    raw = stored_batch(10, 3) + stored_batch(13, 2, codec=Codec.ZSTD)
    raw += stored_batch(15, flags=HORIZON, epoch=4)
    lease = CountedLease()
    result = classify(memoryview(raw), 10, lease)
    assert [(b.base_offset, b.last_offset, b.count, b.runs) for b in result.batches] == [
        (10, 12, 3, ((10, 3),)),
        (13, 14, 2, ((13, 2),)),
        (15, 15, 1, ((15, 1),)),
    ]
    assert (result.next_offset, result.last_epoch, result.problem) == (16, 4, None)
    assert result.batches[1].codec is Codec.ZSTD
    assert result.batches[0].max_timestamp == 1002
    assert lease.count == 4
    result.batches[0].detach()
    assert lease.count == 3
    assert result.batches[0].lease is not lease, "it has a copy"
    assert b"".join(b.data for b in result.batches) == raw


def test_an_error_gives_back_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_data: object) -> int:
        raise MemoryError

    monkeypatch.setattr(batch_stage, "crc32c", too_large)
    lease = CountedLease()
    with pytest.raises(MemoryError):
        staged(stored_batch(10, 3, codec=Codec.ZSTD), marker(13, 7, COMMIT), wanted=10, lease=lease)
    assert lease.count == 1


def test_tiny_batches_that_follow_each_other_become_one_with_bytes_of_its_own() -> None:
    tiny = [stored_batch(10), stored_batch(11, 2), stored_batch(13)]
    lease = CountedLease()
    result = staged(*tiny, stored_batch(17, flags=TRANSACTIONAL), wanted=10, lease=lease)
    (joined,) = result.batches
    assert joined.runs == ((10, 4), (17, 1))
    assert (joined.base_offset, joined.last_offset, joined.count) == (10, 17, 5)
    assert (joined.attributes, joined.leader_epoch, joined.max_timestamp) == (0, 3, 1001)
    assert (lease.count, joined.lease, result.next_offset) == (1, None, 18)
    assert [r.value for r in records(joined.data)] == [b"10", b"11", b"12", b"13", b"17"]


def damaged_inside(base: int) -> bytearray:
    data = stored_batch(base)
    data[61] ^= 0x40
    return sealed(data)


@pytest.mark.parametrize(
    ("third", "fifth"),
    [
        (stored_batch(12) + stored_batch(13, pad=3_000), stored_batch(14, codec=Codec.LZ4)),
        (damaged_inside(12), stored_batch(13) + stored_batch(14)),
    ],
    ids=["few, large or compressed", "one damaged inside, and its neighbours"],
)
def test_batches_that_are_not_joined_stay_as_they_are(third: Batch, fifth: Batch) -> None:
    raw = stored_batch(10) + stored_batch(11) + third + fifth
    result = staged(raw, wanted=10)
    assert (len(result.batches), result.problem) == (5, None)
    assert b"".join(one.data for one in result.batches) == raw


def test_a_partial_batch_at_the_end_is_ignored() -> None:
    whole, tail = stored_batch(0, 2), stored_batch(2, 2)
    for size in range(len(tail)):
        result = staged(whole, tail[:size])
        assert (len(result.batches), result.next_offset, result.problem) == (1, 2, None)


def test_holes_of_compaction_are_renumbered_and_mapped_exactly() -> None:
    lease = CountedLease()
    result = staged(gaps(stored_batch(100, 4), [0, 2, 3, 9], 12), wanted=100, lease=lease)
    (spliced,) = result.batches
    assert spliced.runs == ((100, 1), (102, 2), (109, 1))
    assert (spliced.base_offset, spliced.last_offset, spliced.count) == (100, 112, 4)
    assert result.next_offset == 113
    assert (lease.count, spliced.lease) == (1, None)
    expected = [(offset, b"%d" % offset) for offset in range(100, 104)]
    assert [(r.offset, r.value) for r in records(spliced.data)] == expected


def test_the_first_batch_is_cut_below_the_wanted_offset() -> None:
    first, second = staged(stored_batch(10, 5), stored_batch(15), wanted=13).batches
    assert (first.runs, first.base_offset, first.last_offset) == (((13, 2),), 13, 14)
    assert [r.value for r in records(first.data)] == [b"13", b"14"]
    assert second.base_offset == 15


@pytest.mark.parametrize(
    ("raw", "dropped", "next_offset"),
    [
        (stored_batch(10, 2), [], 15),
        (gaps(stored_batch(10, 2), [0, 1], 9), [Dropped(15, 19, DropReason.EMPTY)], 20),
    ],
    ids=["ends below the wanted offset", "no record is left of it"],
)
def test_a_batch_without_a_wanted_record_is_passed(
    raw: Batch, dropped: list[Dropped], next_offset: int
) -> None:
    result = staged(raw, wanted=15)
    assert (result.batches, result.dropped, result.next_offset) == ([], dropped, next_offset)


def test_empty_and_control_batches_are_dropped_with_their_reason() -> None:
    result = staged(empty_batch(5), marker(6, 9, COMMIT), stored_batch(7), wanted=5)
    assert result.dropped == [Dropped(5, 5, DropReason.EMPTY), Dropped(6, 6, DropReason.CONTROL)]
    assert (bases(result), result.next_offset) == ([7], 8)


def transactional(base: int, producer: int, count: int = 1) -> bytearray:
    return stored_batch(base, count, flags=TRANSACTIONAL, producer=producer)


def test_aborted_transactions_are_dropped_until_their_marker() -> None:
    result = staged(
        transactional(0, 1),  # committed later
        transactional(1, 2),  # aborted
        stored_batch(2, producer=2),  # not transactional
        transactional(3, 1),
        transactional(4, 2, 2),
        marker(6, 2, ABORT),
        transactional(7, 2),  # a new transaction
        marker(8, 2, COMMIT),
        marker(9, 1, COMMIT),
        transactional(10, 2),  # aborted again
        aborted=[(2, 10), (2, 1)],
    )
    assert bases(result) == [0, 2, 3, 7]
    aborted = [it[:2] for it in result.dropped if it.reason is DropReason.ABORTED]
    assert aborted == [(1, 1), (4, 5), (10, 10)]
    assert result.next_offset == 11


def test_without_a_list_of_aborted_transactions_all_data_is_forwarded() -> None:
    result = staged(stored_batch(0, flags=TRANSACTIONAL, producer=2), marker(1, 2, ABORT))
    assert bases(result) == [0]


def test_holes_inside_a_committed_transaction_are_spliced_under_read_committed() -> None:
    raw = gaps(stored_batch(0, 2, flags=TRANSACTIONAL, producer=1), [0, 3], 4)
    (spliced,) = staged(raw, aborted=[(9, 0)]).batches
    assert spliced.runs == ((0, 1), (3, 1))
    assert spliced.attributes == 0


def field(offset: int, layout: str, value: int) -> bytearray:
    return put(stored_batch(5, 2), offset, layout, value)


def cut_off(payload: bytes) -> bytearray:
    """Return a marker with this payload."""
    return with_payload(marker(5, 7, ABORT), payload)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (stored_batch(5)[:-1] + b"\1", ProblemKind.CRC),
        (field(16, "b", 3), ProblemKind.MAGIC),
        (field(16, "b", -1), ProblemKind.MAGIC),
        (field(22, "b", 5), ProblemKind.CODEC),
        (field(22, "b", 7), ProblemKind.CODEC),
        (field(8, ">i", -5), ProblemKind.LENGTH),
        (field(8, ">i", 48), ProblemKind.LENGTH),
        (field(23, ">i", -1), ProblemKind.LENGTH),
        (field(57, ">i", -1), ProblemKind.LENGTH),
        (field(57, ">i", 3), ProblemKind.LENGTH),
        (field(57, ">i", 1), ProblemKind.RECORDS),
        (field(0, ">q", 4), ProblemKind.OVERLAP),
        (field(22, "b", CONTROL | Codec.GZIP), ProblemKind.RECORDS),
        (cut_off(bytes([8, 0, 0x80, 1, 0])), ProblemKind.RECORDS),  # no byte for the key's length
        (cut_off(bytes([10, 0, 0, 0, 8, 0])), ProblemKind.RECORDS),  # a key longer than its record
        (cut_off(bytes([10, 0, 0, 0, 0x80, 0x80])), ProblemKind.RECORDS),  # a length without end
    ],
)
def test_what_cannot_be_read_stops_the_walk_and_keeps_what_was_before(
    raw: bytearray, kind: ProblemKind
) -> None:
    lease = CountedLease()
    aborted = [(99, 0)] if raw[22] & CONTROL else []
    batches = stored_batch(3, 2), raw, stored_batch(9)
    result = staged(*batches, wanted=3, lease=lease, aborted=aborted)
    assert (bases(result), result.next_offset, lease.count) == ([3], 5, 2)
    problem = problem_of(result)
    assert (problem.kind, problem.offset) == (kind, 4 if kind is ProblemKind.OVERLAP else 5)
    assert "offset" in problem.text


def test_a_compressed_payload_that_is_garbage_is_a_problem_only_when_it_must_be_opened() -> None:
    raw = stored_batch(0, 2, codec=Codec.LZ4)
    raw[70] ^= 0xFF
    assert staged(sealed(raw)).problem is None
    assert problem_of(staged(sealed(raw), wanted=1)).kind is ProblemKind.RECORDS


def test_an_old_message_behind_a_newer_offset_is_an_overlap() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1000)
    builder.append(1, 5, b"k", b"v")
    result = staged(stored_batch(0, 3), builder.build())
    assert problem_of(result).kind is ProblemKind.OVERLAP
    assert bases(result) == [0]


def test_an_offset_above_what_the_header_covers_is_a_problem() -> None:
    problem = problem_of(staged(gaps(stored_batch(100, 3), [0, 1, 9], 5), wanted=100))
    assert "offset delta 9 is above the last, 5" in problem.text


# ---- batches that mirrors wrote to the source ----

APPLICATION, MIRROR, STRANGER = 7, 8, 9
KNOWN = Origins(frozenset({APPLICATION}), frozenset({MIRROR}))


def written(base: int, producer: int, count: int = 2, *, flags: int = 0) -> bytearray:
    return stored_batch(base, count, producer=producer, flags=flags, pad=3_000)


def test_a_mirrors_batch_is_dropped_and_the_position_moves_behind_it() -> None:
    mirrors = [written(12, MIRROR), written(16, MIRROR, 3)]
    rest = [written(10, APPLICATION), written(14, -1)]
    result = staged(rest[0], mirrors[0], rest[1], mirrors[1], wanted=10, origins=KNOWN)
    assert bases(result) == [10, 14]
    assert result.dropped == [Dropped(12, 13, DropReason.LOOP), Dropped(16, 18, DropReason.LOOP)]
    assert [len(it) for it in result.looped] == [len(it) for it in mirrors]
    assert (result.next_offset, result.unknown, result.problem) == (19, frozenset(), None)


def test_the_walk_stops_at_an_unknown_producer_and_names_all_that_follow() -> None:
    batches = written(0, APPLICATION), written(2, STRANGER), written(4, MIRROR), written(6, 55)
    result = staged(*batches, origins=KNOWN)
    assert bases(result) == [0]
    assert (result.next_offset, sorted(result.unknown)) == (2, [STRANGER, 55])
    assert (result.dropped, result.problem) == ([], None)


def test_ids_of_damaged_batches_are_not_named() -> None:
    damaged = written(2, 0)
    struct.pack_into(">q", damaged, 43, 2**40)
    result = staged(written(0, STRANGER), damaged, written(4, 55), origins=KNOWN)
    assert result.unknown == {STRANGER}


def test_without_suppression_nothing_is_asked_and_nothing_dropped() -> None:
    result = staged(written(0, MIRROR), written(2, STRANGER))
    assert (bases(result), result.unknown, result.looped) == ([0, 2], frozenset(), [])


def test_a_damaged_batch_is_never_dropped_as_a_loop() -> None:
    raw = written(0, APPLICATION)
    struct.pack_into(">q", raw, 43, MIRROR)  # one bit of the producer id was turned
    result = staged(raw, origins=KNOWN)
    assert problem_of(result).kind is ProblemKind.CRC
    assert (result.dropped, result.next_offset) == ([], 0)


def test_tiny_batches_are_joined_with_no_mirrors_between_them() -> None:
    producers = [APPLICATION] * 4 + [MIRROR] + [APPLICATION] * 4 + [-1] * 4
    tiny = [stored_batch(base, producer=it) for base, it in enumerate(producers)]
    result = staged(*tiny, origins=KNOWN)
    assert [(it.base_offset, it.count) for it in result.batches] == [(0, 4), (5, 8)]
    assert result.dropped == [Dropped(4, 4, DropReason.LOOP)]


def test_aborted_control_and_empty_batches_need_no_origin() -> None:
    batches = [
        written(0, APPLICATION, flags=TRANSACTIONAL),
        marker(2, APPLICATION, ABORT),
        empty_batch(3, STRANGER),
        written(5, MIRROR, flags=TRANSACTIONAL),
        written(7, APPLICATION),
    ]
    result = staged(*batches, aborted=[(APPLICATION, 0)], origins=KNOWN)
    assert [it.reason.name for it in result.dropped] == ["ABORTED", "CONTROL", "EMPTY", "LOOP"]
    assert bases(result) == [7]


def test_a_position_inside_a_mirrors_batch_counts_only_what_is_behind_it() -> None:
    result = staged(written(10, MIRROR, 4), wanted=12, origins=KNOWN)
    assert result.dropped == [Dropped(12, 13, DropReason.LOOP)]
    assert result.next_offset == 14


def test_what_is_learned_between_two_walks_counts_at_the_second() -> None:
    passing = {APPLICATION}
    origins = Origins(passing, frozenset({MIRROR}))
    assert staged(written(0, STRANGER), origins=origins).unknown == {STRANGER}
    passing.add(STRANGER)
    assert bases(staged(written(0, STRANGER), origins=origins)) == [0]


# ---- the C kernel is optional: built where a compiler is, switched off on request, never half trusted


ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "mm2py/protocol/kernel.c"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_compiler() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler on PATH")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no Python headers")


def in_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize(
    ("environ", "module"),
    [
        ({SWITCH: "0"}, "mm2py.protocol._kernel"),
        ({}, "mm2py.protocol._no_such_kernel"),
        ({}, "struct"),
    ],
    ids=["switched off", "not built", "of another interface"],
)
def test_without_a_kernel_of_ours_python_does_it(environ: dict[str, str], module: str) -> None:
    assert load_kernel(environ, module) is None


USERS = """
from mm2py.protocol import batch_stage as stage, record_bytes as record
from mm2py.protocol.kernel import native
names = [(stage, "sign"), (stage, "scan")]
names += [(record, name) for name in ("borders", "renumber", "join", "same")]
print(native is None, {getattr(it, name) is getattr(it, "plain_" + name) for it, name in names})
"""


@pytest.mark.parametrize("switch", ["0", ""])
def test_every_user_takes_the_kernel_where_it_is_and_may_be_used(switch: str) -> None:
    """That both give the same answers is among the properties."""
    plain = load_kernel({SWITCH: switch}) is None
    done = in_python(USERS, **{SWITCH: switch})
    assert done.stdout.split() == [str(plain), f"{{{plain}}}"], done.stderr


@pytest.mark.timeout(120)  # a compiler, on a machine that may be busy
@pytest.mark.parametrize("flag", ["-DHARDWARE_CRC_WHERE_IT_IS", "-DPORTABLE_CRC"])
def test_it_compiles_without_warnings_and_gives_the_known_answer(tmp_path: Path, flag: str) -> None:
    require_compiler()
    builder = load("hatch_build", ROOT / "hatch_build.py")
    library = builder.build_kernel(SOURCE, tmp_path, ("-Werror", flag))
    assert [found.name for found in tmp_path.iterdir()] == [library.name]
    # In a process of its own: a C module that was loaded from elsewhere keeps its state.
    done = in_python(
        "import _kernel;"
        "from mm2py.protocol.kernel import load_kernel;"
        "assert load_kernel({}, '_kernel') is _kernel;"
        f"print(_kernel.__file__ == {str(library)!r}, hex(_kernel.crc32c(b'123456789')))",
        PYTHONPATH=str(tmp_path),
    )
    assert done.stdout.split() == ["True", "0xe3069283"], done.stderr


def test_without_a_compiler_the_builder_says_so(tmp_path: Path) -> None:
    code = (
        "import hatch_build; from pathlib import Path\n"
        "try: hatch_build.build_kernel(Path('mm2py/protocol/kernel.c'), Path('/nowhere'))\n"
        "except OSError as error: print(error)"
    )
    done = in_python(code, PATH=str(tmp_path), CC="")
    assert done.stdout.startswith(("there is no C compiler", "Python's headers")), done.stderr
