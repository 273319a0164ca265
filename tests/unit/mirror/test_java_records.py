"""Java's records: bytes of heartbeats, offset syncs, checkpoints and source offsets, checks of edited offsets; when a sync is written, and how a position is translated by it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from mm2py.api.task import Run
from mm2py.errors import ConfigError, ProtocolError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from mm2py.mirror.offset_checks import (
    Positions,
    check_heartbeat_offsets,
    check_mirror_offsets,
    hash_map_order,
    java_text,
)
from mm2py.mirror.offset_syncs import (
    EVERY_SYNC,
    MIN_SPACING_S,
    REFUSED_S,
    SLOTS,
    OffsetSync,
    OffsetSyncEmitter,
    OffsetSyncState,
    OffsetSyncStore,
    SyncSlots,
    decode_offset_sync,
    encode_offset_sync,
)
from mm2py.mirror.source_offsets import (
    heartbeat_source_partition,
    mirror_source_partition,
    next_offset,
    parse_source_offset_key,
    parse_source_offset_value,
    partition_identity,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.protocol.records import NewRecord
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_heartbeat import encode_heartbeat
from tests.unit.runtime.runtime_fakes import EagerClock

Encode = Callable[[Any], tuple[bytes, bytes]]  # of the record of its row
Decode = Callable[[bytes, bytes], object]


@pytest.mark.parametrize(
    ("encode", "decode", "record", "key", "value"),
    [
        (
            encode_offset_sync,
            decode_offset_sync,
            OffsetSync(TopicPartition("topic-1", 2), 3, 4),
            "00 07 74 6f 70 69 63 2d 31 00 00 00 02",
            "00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04",
        ),
        (
            encode_offset_sync,
            decode_offset_sync,
            OffsetSync(TopicPartition("orders", 7), 1234567, 1234001),
            "00 06 6f 72 64 65 72 73 00 00 00 07",
            "00 00 00 00 00 12 d6 87 00 00 00 00 00 12 d4 51",
        ),
        (
            encode_checkpoint,
            decode_checkpoint,
            Checkpoint("group-1", TopicPartition("A.orders", 3), 1000, 901, ""),
            "00 07 67 72 6f 75 70 2d 31 00 08 41 2e 6f 72 64 65 72 73 00 00 00 03",
            "00 00 00 00 00 00 00 00 03 e8 00 00 00 00 00 00 03 85 00 00",
        ),
        (
            encode_checkpoint,
            decode_checkpoint,
            Checkpoint("g", TopicPartition("t", 0), 4, 5, "metadata-6"),
            "00 01 67 00 01 74 00 00 00 00",
            "00 00 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 05 00 0a 6d 65 74 61 64 61 74 61 2d 36",
        ),
    ],
)
def test_records_have_javas_bytes(
    encode: Encode, decode: Decode, record: object, key: str, value: str
) -> None:
    assert encode(record) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode(bytes.fromhex(key), bytes.fromhex(value) + b"more") == record


def test_a_heartbeat_has_javas_bytes() -> None:
    key, value = bytes.fromhex("00 01 41 00 01 42"), bytes.fromhex("00 00 00 00 01 8b cf e5 68 00")
    assert encode_heartbeat("A", "B", 1700000000000) == (key, value)


@pytest.mark.parametrize(
    ("decode", "key", "value"),
    [
        (decode_checkpoint, "0001", "0000"),
        (decode_checkpoint, "00016700017400000000", "0000"),
        (decode_checkpoint, "000167000174", "00000000000000000004000000000000000500 00"),
        (decode_checkpoint, "00016700017400000000", "00010000000000000004000000000000000500 00"),
        (decode_checkpoint, "00016700017400000000", "00000000000000000004000000000000000500"),
        (decode_offset_sync, "000174000000", "00000000000000010000000000000002"),
        (decode_offset_sync, "00017400000000", "000000000000000100000000000000"),
    ],
)
def test_broken_records_are_refused(decode: Decode, key: str, value: str) -> None:
    with pytest.raises(ProtocolError):
        decode(bytes.fromhex(key), bytes.fromhex(value))


def test_source_offset_keys_have_javas_member_order() -> None:
    mirror = mirror_source_partition("A", TopicPartition("orders", 3))
    beat = heartbeat_source_partition("A", "B")
    assert source_offset_key("MirrorSourceConnector", mirror) == (
        b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
    )
    assert source_offset_key("MirrorHeartbeatConnector", beat) == (
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]'
    )
    assert source_offset_value(source_offset(41)) == b'{"offset":41}'
    assert source_offset_value(source_offset(41, 3)) == b'{"offset":41,"epoch":"3@41"}'
    assert source_offset_value(None) is None
    beyond_ascii = mirror_source_partition("Zürich", TopicPartition("t", 0))
    assert "Zürich".encode() in source_offset_key("c", beyond_ascii)


def test_keys_are_read_by_content_whatever_their_order() -> None:
    name, partition = parse_source_offset_key(b'["c", {"topic":"t", "partition":0, "cluster":"A"}]')
    ours = mirror_source_partition("A", TopicPartition("t", 0))
    assert name == "c"
    assert partition_identity(partition) == partition_identity(ours)


@pytest.mark.parametrize(
    "key", [b"", b"[]", b'["c"]', b'["c",3]', b'[1,{"a":1}]', b'["c",{"a":null}]', b"\xff", b'"c"']
)
def test_keys_that_are_not_source_offsets_are_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_source_offset_key(key)


@pytest.mark.parametrize(
    ("value", "following"),
    [
        (None, -1),
        (b'{"offset":41}', 42),
        (b'{"offset":-1}', 0),
        (b"{}", -1),
        (b"null", -1),
        (b'{"offset":-5}', -1),
        (b'{"offset":41,"of":[1],"a":null,"later":{"version":true}}', 42),
        (b'{"offset":true}', -1),
        (b'{"offset":1.5}', -1),
        (b'{"offset":"41"}', -1),
        (b'{"offset":9223372036854775807}', -1),
    ],
)
def test_a_copy_continues_after_the_stored_offset(value: bytes | None, following: int) -> None:
    assert next_offset(parse_source_offset_value(value)) == following


def test_a_value_that_is_no_map_is_refused() -> None:
    for value in (b"3", b"[]", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(ProtocolError):
            parse_source_offset_value(value)


PARTITION: Mapping[str, object] = {"topic": "t", "partition": 0, "cluster": "A"}
ALIASES: Mapping[str, object] = {"targetClusterAlias": "B", "sourceClusterAlias": "A"}


@pytest.mark.parametrize(
    ("members", "order"),
    [
        ({"topic": 1, "partition": 1, "cluster": 1}, ["cluster", "partition", "topic"]),
        ({"group": 1, "topic": 1, "partition": 1}, ["partition", "topic", "group"]),
        (
            {"targetClusterAlias": 1, "sourceClusterAlias": 1},
            ["sourceClusterAlias", "targetClusterAlias"],
        ),
    ],
)
def test_members_have_the_order_of_a_hash_map(members: Mapping[str, int], order: list[str]) -> None:
    assert list(hash_map_order(members)) == order


def test_large_maps_are_ordered_in_larger_tables() -> None:
    members = {chr(ord("a") + n): n for n in reversed(range(20))}
    assert list(hash_map_order(members)) == sorted(members)


def test_values_are_printed_as_java_does() -> None:
    assert java_text({"b": None, "a": True, "c": 1.5, "d": "x"}) == "{a=true, b=null, c=1.5, d=x}"


def test_right_positions_and_all_removals_pass() -> None:
    assert check_mirror_offsets(
        [(PARTITION, {"offset": 41, "more": "x"}), (None, None), ({"x": 1}, None)]
    )
    assert check_heartbeat_offsets([(ALIASES, {"offset": 0}), ({}, None)])


@pytest.mark.parametrize(
    ("check", "partition", "offset", "message"),
    [
        # What Java says of other wrong positions is among its recorded answers.
        (
            check_mirror_offsets,
            {**PARTITION, "partition": 2**31},
            {"offset": 1},
            "Source partition {cluster=A, partition=2147483648, topic=t} has an invalid value"
            " 2147483648 for the 'partition' key, which must be an integer",
        ),
        (
            check_heartbeat_offsets,
            ALIASES,
            {"offset": 1},
            "Source offset {offset=1} for source partition {sourceClusterAlias=A,"
            " targetClusterAlias=B} has an invalid value 1 for the 'offset' key; the only accepted"
            " value is 0",
        ),
    ],
)
def test_wrong_positions_are_refused_in_javas_words(
    check: Callable[[Positions], bool],
    partition: Mapping[str, object] | None,
    offset: Mapping[str, object],
    message: str,
) -> None:
    with pytest.raises(ConfigError) as refused:
        check([(PARTITION, None), (partition, offset)])
    assert refused.value.message == message


# ---- offset syncs: when one is written (Java's golden sequence), and how a position is translated


T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class Writer:
    """Keeps what is posted until the test answers."""

    def __init__(self) -> None:
        self.posts: list[list[OffsetSync]] = []
        self.open: list[Callable[[int | Exception], None]] = []
        self.partitions: set[TopicPartition] = set()
        self.refusals: list[Exception | None] = []

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> None:
        self.partitions.add(tp)
        self.posts.append([decode_offset_sync(r.key or b"", r.value or b"") for r in records])
        self.open.append(done)

    def answer(self, result: int | Exception = 0) -> None:
        while self.open:
            self.open.pop(0)(result)

    @property
    def syncs(self) -> list[tuple[int, int]]:
        return [(sync.upstream, sync.downstream) for post in self.posts for sync in post]


def emitter(
    writer: Writer, clock: EagerClock | None = None, lag_max: int = 100
) -> OffsetSyncEmitter:
    queue = OffsetSyncEmitter(
        writer,
        "mm2-offset-syncs.B.internal",
        lag_max=lag_max,
        clock=clock or EagerClock(),
        on_refusal=writer.refusals.append,
    )
    queue.open()
    return queue


def due(state: OffsetSyncState, run: Run) -> list[int]:
    """Return the indexes of a run that get a sync."""
    breaks, by_lag = state.observe_run(run)
    return [0] * breaks + list(by_lag)


def test_the_rule_gives_javas_worked_sequence() -> None:
    state = OffsetSyncState(50)
    steps = [
        *((0, 100, True), (2, 102, True), (3, 103, False), (4, 153, True), (5, 154, False)),
        *((6, 155, False), (7, 204, True), (2, 206, True), (3, 207, False), (4, 3, True)),
        *((5, 4, False), (7, 6, True), (8, 7, False), (10, 57, True), (11, 58, False)),
    ]
    for upstream, downstream, expected in steps:
        assert due(state, Run(upstream, 1, downstream)) == [0] * expected, (upstream, downstream)


def test_the_syncs_of_a_run_are_written_in_order_in_one_request() -> None:
    writer = Writer()
    emitter(writer).observe(T0, [Run(5, 300, 1000)])
    assert writer.posts == [
        [OffsetSync(T0, 5, 1000), OffsetSync(T0, 106, 1101), OffsetSync(T0, 207, 1202)]
    ]
    assert writer.partitions == {TopicPartition("mm2-offset-syncs.B.internal", 0)}


def test_records_of_which_the_target_did_not_say_where_they_are_get_no_sync() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    queue.observe(T0, [Run(0, 300, -1)])
    queue.promote_delayed()
    assert writer.syncs == []
    queue.observe(T0, [Run(300, 1, 300), Run(301, 300, -1)])
    assert writer.syncs == [(300, 300)]


def test_a_commit_writes_the_last_offset_of_a_quiet_partition_once_and_moves_no_lag_rule() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    queue.observe(T0, [Run(0, 50, 0)])
    for _ in range(3):
        writer.answer()
        queue.promote_delayed()
    assert writer.syncs == [(0, 0), (49, 49)]
    clock.seconds += 1
    queue.observe(T0, [Run(50, 60, 50)])
    assert writer.syncs == [(0, 0), (49, 49), (101, 101)]


def test_while_a_request_is_under_way_syncs_wait_and_the_middle_of_long_runs_is_thinned() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    queue.observe(T1, [Run(0, 1, 0)])
    for batch in range(100):
        clock.seconds += 1
        queue.observe(T0, [Run(batch * 1000, 1000, batch * 1000)])
    queue.observe(T0, [Run(200_000, 1_000_000, 100_000)])
    assert len(writer.posts) == 1
    writer.answer()
    queue.promote_delayed()
    written = [sync.upstream for sync in writer.posts[1]]
    assert written == sorted(written)
    assert {0, 200_000, 1_199_999} <= set(written)
    for start, end in ((0, 100_000), (200_000, 1_200_000)):
        run = [offset for offset in written if start <= offset < end]
        assert len(run) <= EVERY_SYNC + 2
        for earlier, later in pairwise(run):
            assert later - earlier <= 101 + (1_200_000 - later) // 3


def test_a_request_has_a_bound_and_the_next_one_follows_at_once() -> None:
    writer, clock = Writer(), EagerClock()
    queue = OffsetSyncEmitter(
        writer, "syncs", lag_max=100, clock=clock, on_refusal=writer.refusals.append
    )
    partitions = [TopicPartition("t", number) for number in range(450)]
    for partition in partitions:
        queue.observe(partition, [Run(0, 1, 0)])
    queue.open()
    writer.answer()
    assert [len(post) for post in writer.posts] == [200, 200, 50]
    assert [sync.partition for post in writer.posts for sync in post] == partitions


def test_what_cannot_be_written_is_bounded_over_all_partitions_and_has_where_offsets_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py.mirror.offset_syncs.MOST_WAITING_IN_ALL", 1_000)
    writer = Writer()
    queue = emitter(writer)
    partitions = [TopicPartition("t", number) for number in range(50)]
    runs = [Run(100 + 2 * batch, 1, 100 + batch) for batch in range(200)]  # holes of markers
    for run in (*runs, Run(1, 1, 0), *runs):
        for partition in partitions:
            queue.observe(partition, [run])
    writer.answer()
    queue.promote_delayed()
    writer.answer()
    assert len(writer.syncs) < 1_500
    again = {it.partition for post in writer.posts for it in post if (it[1], it[2]) == (1, 0)}
    assert again == set(partitions)


def test_requests_keep_their_distance_while_a_backlog_is_copied() -> None:
    writer, clock = Writer(), EagerClock()
    queue = emitter(writer, clock)
    for batch in range(10):
        queue.observe(T0, [Run(batch * 50, 50, batch * 50)])
        queue.observe(T1, [Run(batch * 50, 50, batch * 50)])
        writer.answer()
    assert len(writer.posts) == 1
    clock.seconds += MIN_SPACING_S
    queue.observe(T0, [Run(500, 10, 500)])
    assert len(writer.posts) == 2
    assert {(s.partition, s.upstream) for s in writer.posts[1]} == {
        *((T0, at) for at in (101, 202, 303, 404, 505)),
        *((T1, at) for at in (0, 101, 202, 303, 404)),
    }


async def test_a_flush_writes_what_waits_and_ends_at_its_time() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 1, 0)])
    queue.observe(T1, [Run(0, 1, 0)])
    await queue.flush(0.01)
    assert len(writer.posts) == 1
    flushing = asyncio.create_task(queue.flush(10))
    await until(lambda: bool(writer.open))
    writer.answer()
    await until(lambda: len(writer.posts) == 2)
    writer.answer()
    await flushing
    assert [sync.partition for post in writer.posts for sync in post] == [T0, T1]


async def test_of_refused_syncs_the_newest_of_each_partition_are_written_once_possible() -> None:
    writer, clock, denied = Writer(), EagerClock(), OSError("denied")
    queue = emitter(writer, clock, lag_max=0)
    queue.observe(T0, [Run(0, 3, 10)])
    queue.observe(T1, [Run(0, 1, 20)])
    writer.answer(denied)
    queue.promote_delayed()
    assert len(writer.posts) == 1, "not at once"
    clock.seconds += REFUSED_S
    queue.observe(T1, [Run(1, 1, 21)])
    await queue.flush(0.01)
    writer.answer(denied)
    await queue.flush(10)
    writer.answer(denied)
    clock.seconds += REFUSED_S
    queue.promote_delayed()
    assert sorted(writer.posts[-1]) == [OffsetSync(T0, 2, 12), OffsetSync(T1, 1, 21)]
    writer.answer()
    clock.seconds += REFUSED_S
    queue.promote_delayed()
    assert writer.refusals == [denied, denied, denied, None]
    assert len(writer.posts) == 4


def test_a_closed_queue_writes_nothing() -> None:
    writer = Writer()
    queue = emitter(writer)
    queue.observe(T0, [Run(0, 10, 0)])
    queue.close()
    queue.observe(T0, [Run(10, 500, 10)])
    queue.promote_delayed()
    assert len(writer.posts) == 1


TP = TopicPartition("topic1", 2)


def sync(upstream: int, downstream: int | None = None) -> OffsetSync:
    return OffsetSync(TP, upstream, upstream if downstream is None else downstream)


def slots_of(*upstreams: int) -> SyncSlots:
    slots = SyncSlots(sync(upstreams[0]))
    for upstream in upstreams[1:]:
        slots.add(sync(upstream))
    return slots


def distinct(slots: SyncSlots) -> list[int]:
    return list(dict.fromkeys(slots.upstreams()))


def store(*syncs: OffsetSync, keeps_backlog: bool = True) -> OffsetSyncStore:
    made = OffsetSyncStore(keeps_backlog=keeps_backlog)
    for each in syncs:
        made.add(each)
    return made


def test_an_offset_is_translated_by_the_newest_sync_at_or_below_it() -> None:
    made = store()
    made.read_to_end()
    for upstream, downstream, translations in (
        (100, 200, {150: 201}),
        (150, 251, {150: 251, 5: -1}),
        (200, 10, {200: 10}),
        (20, 20, {20: 20}),
    ):
        made.add(sync(upstream, downstream))
        assert {it: made.translate(TP, it) for it in translations} == translations


def test_nothing_is_translated_before_the_backlog_is_read() -> None:
    made = store(keeps_backlog=False)
    assert made.translate(TP, 0) is None
    made.add(sync(100, 200))
    assert made.translate(TP, 100) is None
    made.read_to_end()
    assert [made.translate(TP, it) for it in (0, 100, 200)] == [-1, 200, 201]
    assert made.translate(TopicPartition("other", 0), 5) is None


def test_of_a_backlog_whose_checkpoints_are_unknown_only_the_last_sync_is_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)), keeps_backlog=False)
    made.read_to_end()
    assert [made.translate(TP, it) for it in (999, 1000, 1001)] == [-1, 1000, 1001]
    for upstream in range(1010, 10_001, 10):
        made.add(sync(upstream))
    kept = [10000, 9990, 9970, 9940, 9880, 9640, 9160, 8680, 6760, 4840, 1000]
    assert_translates(made, kept)
    assert made.translate(TP, 999) == -1


def test_of_a_backlog_whose_checkpoints_are_known_all_syncs_are_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)))
    made.read_to_end()
    assert_translates(made, [1000, 990, 960, 900, 840, 720, 480, 0])
    for upstream in range(1000, 10_001, 10):
        made.add(sync(upstream))
    assert_translates(made, [10000, 9990, 9960, 9900, 9840, 9600, 9120, 8640, 7680, 3840, 0])


def assert_translates(made: OffsetSyncStore, kept: list[int]) -> None:
    older = [*kept[1:], None]
    for newer, next_older in zip(kept, older, strict=True):
        assert made.translate(TP, newer) == newer
        assert made.translate(TP, newer + 1) == made.translate(TP, newer + 2) == newer + 1
        if next_older is not None:
            assert made.translate(TP, newer - 1) == next_older + 1


@pytest.mark.parametrize(
    ("step", "end", "kept"),
    [
        (100, 100_000, [100000, 99900, 99800, 99600, 99200, 97600, 96000, 89600, 76800, 51200, 0]),
        (1, 1_000, [1000, 999, 998, 996, 992, 976, 960, 896, 768, 512, 0]),
    ],
)
def test_even_syncs_are_kept_at_doubling_distances(step: int, end: int, kept: list[int]) -> None:
    assert distinct(slots_of(*range(0, end + 1, step))) == kept


def test_syncs_that_are_not_the_identity_are_translated_by_what_is_kept() -> None:
    slots = SyncSlots(sync(11, 4))
    translated: list[int] = []
    for upstream in range(11, 18):
        slots.add(sync(upstream, upstream - 7))
        translated.append(slots.translate(13))
    assert translated == [5, 6, 6, 6, 6, 6, 5]
    assert distinct(slots) == [17, 16, 15, 11]


def test_irregular_syncs_and_equal_and_lower_ones() -> None:
    slots = slots_of(0, 1, 2, 3, 1000, 1001, 1002, 5000, 5001, 1_000_000, 1_000_001)
    kept = [1_000_001] + [1_000_000] * 20 + [0] * 43
    assert slots.upstreams() == kept
    slots.add(sync(1_000_001, 7))
    assert slots.upstreams() == kept
    assert slots.translate(1_000_001) == 7
    slots.add(sync(10, 8))
    assert slots.upstreams() == [10] * SLOTS


def test_pseudo_random_syncs() -> None:
    number, upstream = 42, 0
    slots = SyncSlots(sync(0))
    for _ in range(500):
        number = (1103515245 * number + 12345) % 2**31
        upstream += number % 1000 + 1
        slots.add(sync(upstream))
    single = [256159, 255212, 253255, 249748, 243466, 216913, 160116, 106856]
    assert slots.upstreams() == [256718] * 11 + single + [0] * 45


def test_offsets_at_the_edge_of_64_bits() -> None:
    slots = slots_of(0, 2**62, 2**62 + 2**61, 2**63 - 1)
    assert slots.upstreams() == [2**63 - 1] * 62 + [2**62 + 2**61, 2**62]


def test_syncs_of_a_copy_that_is_gone_are_replaced_by_the_first_one_of_the_new_copy() -> None:
    made = store(sync(0, 0), sync(100, 100), sync(148, 0))
    made.read_to_end()
    assert [made.translate(sync(0).partition, it) for it in (100, 148, 149)] == [-1, 0, 1]
    assert made.newest(sync(0).partition) == 148
