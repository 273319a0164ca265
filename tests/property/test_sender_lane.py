"""The sender's state machine against a model of a broker's log and producer state."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.client.send import tail as tail_module
from mm2py.client.send.lane import LaneState, MergePlan, SenderLane, Sent
from mm2py.client.send.limits import fitting
from mm2py.client.send.tail import NO_PRODUCER, Behind, KeptProducer, LaneTail
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import (
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    TRANSACTIONAL_FLAG,
    Codec,
    RecordBatch,
    build_batch,
    crc32c,
)
from mm2py.protocol.record_bytes import append_record
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch, record_body
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import sealed, source_batch
from tests.property.effort import examples

SOURCE = TopicPartition("orders", 0)
TARGET = TopicPartition("A.orders", 0)
OLD, YOUNG, REMEMBERED_SINCE = 1_000, 9_000, 5_000
MEMORY = 5


def batch_of(first: int, count: int, timestamp: int) -> RecordBatch:
    """A batch whose values are the numbers of its records."""
    offsets = range(first, first + count)
    records = [NewRecord(None, b"%d" % n, (), timestamp) for n in offsets]
    return source_batch(offsets, records, leader_epoch=3)


def numbers_in(batch: RecordBatch) -> tuple[int, ...]:
    (decoded,) = decode_batches(sealed(batch.data))
    return tuple(int(record.value or b"") for record in decoded.records)


@dataclass
class Request:
    sent: Sent
    producer: tuple[int, int]
    sequence: int
    count: int
    content: tuple[int, ...]
    timestamp: int


@dataclass
class ModelBroker:
    """One partition with a real broker's rules (``ProducerStateManager``): duplicates, gaps, forgotten state, refusals."""

    records: list[int] = field(default_factory=list[int])
    batches: list[tuple[tuple[int, int], int, int]] = field(
        default_factory=list[tuple[tuple[int, int], int, int]]
    )
    epoch: int = -1
    remembered: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=MEMORY))
    newest: int = 0
    too_large: int = 99

    def append(self, request: Request) -> tuple[int, int]:
        """Return (error code, base offset)."""
        if request.count > self.too_large:
            return codes.MESSAGE_TOO_LARGE, -1
        if request.producer[1] < self.epoch:
            return codes.INVALID_PRODUCER_EPOCH, -1
        if request.producer[1] == self.epoch and self.remembered:
            for sequence, count, offset in self.remembered:
                if (sequence, count) == (request.sequence, request.count):
                    return 0, offset
            last_sequence, last_count, _ = self.remembered[-1]
            if request.sequence != last_sequence + last_count:
                return codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        elif self.epoch >= 0 and request.sequence != 0:
            return codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if request.producer[1] != self.epoch:
            self.remembered.clear()
            self.epoch = request.producer[1]
        offset = len(self.records)
        self.records.extend(request.content)
        self.batches.append((request.producer, request.sequence, offset))
        self.remembered.append((request.sequence, request.count, offset))
        self.newest = request.timestamp
        return 0, offset

    def restart(self) -> None:
        """State of old batches is not restored where their timestamps are a year old."""
        if self.newest < REMEMBERED_SINCE:
            self.remembered.clear()
            self.epoch = -1


class Rig:
    """Plays the Sender: carries requests and answers, and does what the lane's state asks for."""

    def __init__(self, max_in_flight: int, plan: MergePlan | None = None) -> None:
        self.plan = plan
        self.lane = SenderLane(TARGET, producer_id=7, epoch=0, max_in_flight=max_in_flight)
        self.broker = ModelBroker()
        self.requests: deque[Request] = deque()
        self.answers: deque[tuple[Request, int, int]] = deque()
        self.delivered: list[tuple[int, int]] = []
        self.offered = 0
        self.max_seen = 0
        self.gives_back = False
        """Once it is in BACKOFF, also what was refused for certain."""
        self.lane.opened(1, 0)

    def offer(self, count: int, timestamp: int) -> None:
        self.lane.offer(SOURCE, [batch_of(self.offered, count, timestamp)])
        self.offered += count

    def send(self) -> None:
        if not self.lane.can_send():
            return
        sent = self.lane.take(self.plan)
        fields = HEADER.unpack_from(sent.batch.data, 0)
        count = sent.batch.count
        producer, content = (fields[9], fields[10]), numbers_in(sent.batch)
        newest = sent.batch.max_timestamp
        self.requests.append(Request(sent, producer, fields[11], count, content, newest))
        self.max_seen = max(self.max_seen, self.lane.under_way)

    def serve(self, fault: int = 0, *, applied: bool = False) -> None:
        """The broker handles its oldest request, perhaps with an injected answer."""
        if not self.requests:
            return
        request = self.requests.popleft()
        if fault and not applied:
            self.answers.append((request, fault, -1))
            return
        code, offset = self.broker.append(request)
        self.answers.append((request, fault or code, offset))

    def answer(self) -> None:
        if not self.answers:
            return
        request, code, offset = self.answers.popleft()
        if code:
            self.lane.refused(request.sent, code, "")
        else:
            self.note(self.lane.acknowledged(request.sent, offset))
        self.follow()

    def disconnect(self, applied: int) -> None:
        """The first ``applied`` requests still reach the log, no answer comes back."""
        for _ in range(min(applied, len(self.requests))):
            self.broker.append(self.requests.popleft())
        self.answers.clear()
        lost = [it for it in self.lane.unsettled if it.outcome.name == "UNDER_WAY"]
        self.requests.clear()
        for sent in lost:
            self.lane.lost(sent, "connection lost")
        self.lane.travels_by(object())
        self.follow()

    def note(self, delivered: Sequence[Sent]) -> None:
        for sent in delivered:
            assert sent.base_offset >= 0
            stored = self.broker.records[sent.base_offset : sent.base_offset + sent.batch.count]
            first = sent.batch.base_offset
            assert stored == list(range(first, first + sent.batch.count))
            self.delivered.append((first, sent.batch.count))

    def give_back(self, *, later: bool = False) -> None:
        self.gives_back = later
        if later:
            return
        given = self.lane.give_back()
        assert self.lane.queued_bytes == sum(it.counted for it in self.lane.unsettled)
        if given:
            self.offered = given[0].base_offset

    def follow(self) -> None:
        lane = self.lane
        if lane.state is LaneState.BACKOFF and self.gives_back:
            self.give_back()
        if lane.state is LaneState.BACKOFF and not lane.must_read_first(REMEMBERED_SINCE):
            lane.resumed(1)
        elif lane.state in (LaneState.BACKOFF, LaneState.RESOLVING):
            found = {
                sequence: offset
                for producer, sequence, offset in self.broker.batches
                if producer == (lane.producer_id, lane.epoch) and offset >= lane.acked_end
            }
            self.note(lane.resolved(found))
            if lane.bump_wanted:
                lane.new_epoch(lane.producer_id, lane.epoch + 1)
            lane.resumed(1)
        elif lane.state is LaneState.REPAIRING:
            self.split()

    def split(self) -> None:
        sent = self.lane.first_unsettled()
        first, count = sent.batch.base_offset, sent.batch.count
        half = count // 2
        stamp = sent.batch.max_timestamp
        parts = [batch_of(first, half, stamp), batch_of(first + half, count - half, stamp)]
        self.lane.replaced(sent, parts)

    def settle(self) -> None:
        for _ in range(10_000):
            if self.lane.idle:
                return
            while self.lane.can_send():
                self.send()
            self.serve()
            self.answer()
        raise AssertionError(f"the lane does not come to rest: {self.lane.state}")


REFUSALS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.NOT_ENOUGH_REPLICAS,
    codes.TOPIC_AUTHORIZATION_FAILED,
)
DOUBTS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.REQUEST_TIMED_OUT,
    codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
Step = tuple[str, int, int]
KINDS: tuple[list[Step], ...] = (
    [("offer", count, stamp) for stamp in (YOUNG, OLD) for count in range(1, 5)],
    [("send", 0, 0)],
    [("serve", 0, 0)],
    [("answer", 0, 0)],
    [("refuse", code, 0) for code in REFUSALS],
    [("doubt", code, 0) for code in DOUBTS],
    [("disconnect", applied, 0) for applied in range(6)],
    [("restart", applied, 0) for applied in range(6)],
    [("shrink", count, 0) for count in range(2, 5)],
    [("back", later, 0) for later in range(2)],
)
STEPS = st.sampled_from([it for kind in KINDS for it in kind * (24 // len(kind))])
"""Each kind as often as any other; one choice a step, since examples of eighty steps cost what is drawn for them."""


def play(rig: Rig, steps: list[Step]) -> None:
    for name, number, timestamp in steps:
        if name == "offer":
            rig.offer(number, timestamp)
        elif name in ("send", "serve", "answer"):
            getattr(rig, name)()
        elif name == "refuse":
            rig.serve(number)
        elif name == "doubt":
            rig.serve(number, applied=True)
        elif name == "disconnect":
            rig.disconnect(number)
        elif name == "restart":
            rig.disconnect(number)
            rig.broker.restart()
        elif name == "back":
            rig.give_back(later=bool(number))
        else:
            rig.broker.too_large = min(rig.broker.too_large, number)


@settings(max_examples=examples(1500))
@given(
    steps=st.lists(STEPS, max_size=80),
    max_in_flight=st.integers(1, 5),
    joined_bytes=st.sampled_from([0, 200, 1_000]),
)
@example(  # an idle lane does not notice the restart; a later batch was taken before a refused one
    steps=[
        *(("offer", 1, 1000), ("offer", 3, 9000), ("send", 0, 0), ("offer", 1, 9000)),
        *(("serve", 0, 0), ("answer", 0, 0), ("restart", 0, 0), ("shrink", 2, 0)),
    ],
    max_in_flight=2,
    joined_bytes=0,
)
@example(  # a batch that may be there is too large for the topic by the time it is sent again
    steps=[
        *(("offer", 3, YOUNG), ("send", 0, 0), ("doubt", codes.REQUEST_TIMED_OUT, 0)),
        *(("answer", 0, 0), ("shrink", 2, 0)),
    ],
    max_in_flight=1,
    joined_bytes=0,
)
def test_every_record_arrives_once_and_in_order_whatever_is_lost(
    steps: list[Step], max_in_flight: int, joined_bytes: int
) -> None:
    plan = MergePlan(joined_bytes, 1_000, 1_000) if joined_bytes else None
    rig = Rig(max_in_flight, plan)
    play(rig, steps)
    rig.settle()
    assert rig.broker.records == list(range(rig.offered))
    covered = [o for first, count in rig.delivered for o in range(first, first + count)]
    assert covered == list(range(rig.offered))
    assert rig.max_seen <= max_in_flight


@settings(max_examples=examples(300))
@given(steps=st.lists(STEPS, max_size=60))
def test_rule_1_only_one_batch_is_under_way_before_the_first_answer(steps: list[Step]) -> None:
    rig = Rig(5)
    confirmed = False
    for step in steps:
        before = len(rig.delivered)
        play(rig, [step])
        confirmed = confirmed or len(rig.delivered) > before
        if not confirmed:
            assert rig.lane.under_way <= 1


@settings(max_examples=examples(150))
@given(
    counts=st.lists(st.integers(1, 60), min_size=12, max_size=80),
    step_ms=st.sampled_from([0, 20, 100, 100_000]),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    limit=st.integers(700, 20_000),
)
@example(counts=[34] * 80, step_ms=100, codec=Codec.NONE, limit=20_000)
def test_a_joined_batch_is_never_above_the_limit_of_its_topic(
    counts: list[int], step_ms: int, codec: Codec, limit: int
) -> None:
    lane = SenderLane(TARGET, producer_id=7, epoch=0, max_in_flight=1)
    first = 0
    for count in counts:  # one batch's records are close in time, those of a joined one are not
        offsets = range(first, first + count)
        rows = [NewRecord(None, b"%d" % n, (), YOUNG + n * step_ms) for n in offsets]
        batch = source_batch(offsets, rows, codec, leader_epoch=3)
        batch.max_timestamp = YOUNG
        lane.offer(SOURCE, [batch])
        first += count
    lane.limit(limit, fitting)
    lane.opened(1, 0)
    while not lane.idle:
        sent = lane.take(MergePlan(256 * 1024, 64 * 1024, 64 * 1024))
        assert len(sent.batch.data) <= limit
        lane.acknowledged(sent, 0)


HOSTILE = st.tuples(
    st.integers(1, 4),
    st.sampled_from(list(Codec)),
    st.lists(st.tuples(st.integers(27, 400), st.integers(0, 255)), max_size=3),
)


def hostile_batch(
    first: int, count: int, codec: Codec, damage: list[tuple[int, int]]
) -> RecordBatch:
    """Return a batch whose CRC and counts are right, so that a broker may have stored it."""
    rows = [NewRecord(None, b"%d" % n, (), YOUNG) for n in range(first, first + count)]
    data = encode_batch(rows, codec)
    payload = [n for n in range(len(data)) if 27 <= n < 43 or n >= HEADER_BYTES]
    for position, byte in damage:
        data[payload[position % len(payload)]] = byte
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    runs = ((first, count),)
    return RecordBatch(data, first, first + count - 1, count, YOUNG, 3, int(codec), runs, None)


@settings(max_examples=examples(300))
@given(batches=st.lists(HOSTILE, min_size=4, max_size=20), max_in_flight=st.integers(1, 5))
@example(  # the second record of the third batch has the offset delta of the first
    batches=[(2, Codec.NONE, [(16 + 11, 0)] if n == 2 else []) for n in range(8)], max_in_flight=2
)
def test_a_batch_that_cannot_be_joined_is_sent_alone_and_the_lane_goes_on(
    batches: list[tuple[int, Codec, list[tuple[int, int]]]], max_in_flight: int
) -> None:
    lane = SenderLane(TARGET, producer_id=7, epoch=0, max_in_flight=max_in_flight)
    lane.opened(1, 0)
    first = 0
    for count, codec, damage in batches:
        lane.offer(SOURCE, [hostile_batch(first, count, codec, damage)])
        first += count
    sent_offsets: list[int] = []
    under_way: deque[Sent] = deque()
    while not lane.idle:
        while lane.can_send():
            sent = lane.take(MergePlan(2_000, 1_000, 1_000))
            sent_offsets += [o for start, n in sent.batch.runs for o in range(start, start + n)]
            under_way.append(sent)
            assert lane.under_way == len(under_way)
        delivered = lane.acknowledged(under_way.popleft(), 0)
        assert len(delivered) == 1
    assert sent_offsets == list(range(first))
    assert lane.queued_bytes == 0


# ---- what a predecessor wrote is recognised record by record


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=12)
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP])


def a_record(number: int, kinds: int) -> NewRecord:
    """Return one of few different records: equal ones follow each other."""
    kind = number % kinds
    return NewRecord(b"k%d" % kind, b"v%d" % kind, ((b"h", None),), 1000 + kind)


def batches(
    records: Sequence[tuple[int, NewRecord]], sizes: Sequence[int], codec: Codec
) -> Iterator[RecordBatch]:
    """Cut records with their source offsets into batches."""
    at = turn = 0
    while at < len(records):
        part = records[at : at + sizes[turn % len(sizes)]]
        at, turn = at + len(part), turn + 1
        batch = source_batch([offset for offset, _ in part], [it for _, it in part], codec)
        batch.data[:8] = part[0][0].to_bytes(8)
        yield batch


OURS = KeptProducer(7, 0)


class Target:
    """A log in memory."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.log_start = 0
        self.data: list[tuple[int, bytes]] = []

    def append(self, data: bytearray, count: int) -> int:
        data[:8] = self.end.to_bytes(8)
        base, self.end = self.end, self.end + count
        self.data.append((base, bytes(data)))
        return base

    def copy(self, batch: RecordBatch) -> int:
        """Append a copy, as our producer writes it."""
        data = bytearray(batch.data)
        sign(data, producer_id=OURS.producer_id, producer_epoch=0, base_sequence=0)
        return self.append(data, batch.count)

    async def read(self, position: int) -> FetchedPartition:
        position = max(position, self.log_start)
        ahead = [data for _, data in self.data if _last_offset(data) >= position]
        found = ahead[0] if ahead else None
        return FetchedPartition(
            topic=TARGET.topic,
            topic_id=bytes(16),
            partition=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=self.log_start,
            aborted=[],
            preferred_read_replica=-1,
            records=None if found is None else memoryview(found),
        )

    def clean(self, left: Collection[int]) -> None:
        """Leave records at these offsets alone, as compaction does: a batch keeps its offsets, an empty one is gone."""
        batches: list[tuple[int, bytes]] = []
        for base, data in self.data:
            (decoded,) = decode_batches(memoryview(data))
            kept = [it for it in decoded.records if it.offset in left]
            if kept:
                batches.append((base, with_holes(data, base, kept)))
        self.data = batches


def with_holes(data: bytes, base: int, kept: Sequence[Record]) -> bytes:
    """Return a batch with some of its records, at their offsets."""
    payload, first = bytearray(), kept[0].timestamp
    for it in kept:
        body = record_body(it.key, it.value, it.headers)
        append_record(payload, body, it.timestamp - first, it.offset - base)
    newest = max(it.timestamp for it in kept)
    batch = build_batch(
        payload,
        base_offset=base,
        count=len(kept),
        base_timestamp=first,
        max_timestamp=newest,
        attributes=0,
    )
    batch[23:27], batch[43:51] = data[23:27], data[43:51]
    return bytes(batch)


def _last_offset(data: bytes) -> int:
    return int.from_bytes(data[:8]) + int.from_bytes(data[23:27])


@settings(max_examples=examples(100))
@given(
    holes=st.lists(st.booleans(), min_size=1, max_size=40),
    kinds=st.integers(1, 40),
    copied=st.integers(0, 40),
    before=SIZES,
    now=SIZES,
    codecs=st.tuples(CODECS, CODECS),
    foreign=st.sets(st.integers(0, 12), max_size=3),
    start=st.integers(0, 1 << 40),
    known=st.integers(0, 40),
)
def test_nothing_that_is_there_is_sent_and_everything_else_is(
    holes: list[bool],
    kinds: int,
    copied: int,
    before: list[int],
    now: list[int],
    codecs: tuple[Codec, Codec],
    foreign: set[int],
    start: int,
    known: int,
) -> None:
    """Also where the map ends within a batch, as where the write of its pages was cut off."""
    source: list[tuple[int, NewRecord]] = []
    offset = 100
    for number, hole in enumerate(holes):
        offset += 1 + hole
        source.append((offset, a_record(number, kinds)))
    target, place = Target(start), dict[int, int]()
    for turn, batch in enumerate(batches(source[:copied], before, codecs[0])):
        if turn in foreign:
            target.append(encode_batch([NewRecord(b"foreign", b"x", (), 5)]), 1)
        base = target.copy(batch)
        for first, count in batch.runs:
            place |= {first + at: base + at for at in range(count)}
            base += count
    del source[: min(known, copied)]
    behind = [offset for offset, _ in source]
    place = {offset: at for offset, at in place.items() if offset in behind}
    at = min(place.values(), default=target.end)
    tail = LaneTail(TARGET, at, target.end, target.read, OURS)
    counted = asyncio.run(tail.behind())
    found, sent = asyncio.run(compare(tail, list(batches(source, now, codecs[1])), source))
    assert sorted([*found, *sent]) == behind
    assert found == place
    assert tail.recognised == len(place) == counted.records


@settings(max_examples=examples(100))
@given(
    records=st.integers(1, 40),
    copied=st.integers(0, 40),
    before=SIZES,
    now=SIZES,
    source_left=st.sets(st.integers(0, 39)),
    removed=st.sets(st.integers(0, 39)),
    cut=st.integers(0, 40),
    offered_at_once=st.integers(1, 12),
)
def test_what_was_before_a_record_of_the_tail_is_not_sent_though_its_copy_is_gone(
    records: int,
    copied: int,
    before: list[int],
    now: list[int],
    source_left: set[int],
    removed: set[int],
    cut: int,
    offered_at_once: int,
) -> None:
    source = [(number, a_record(number, 40)) for number in range(records)]
    target, copied = Target(100), min(copied, records)
    for batch in batches(source[:copied], before, Codec.NONE):
        target.copy(batch)
    left = [number for number in range(copied) if number not in removed and number >= cut]
    target.clean([100 + number for number in left])
    target.log_start = 100 + min(cut, copied)
    tail = LaneTail(TARGET, 100, target.end, target.read, OURS)
    whole = list(batches(source, now, Codec.NONE))
    found, sent = asyncio.run(compare(tail, whole, source, at_once=len(whole)))
    known = max(left, default=-1) + 1
    assert sent == list(range(known, records))
    assert found == {number: 100 + number for number in range(known)}
    # The source too has lost some: nothing that was not copied is passed over, whatever else is sent.
    lost = [it for it in source if it[0] in source_left]
    tail = LaneTail(TARGET, 100, target.end, target.read, OURS)
    some = list(batches(lost, now, Codec.NONE))
    found, sent = asyncio.run(compare(tail, some, source, at_once=offered_at_once))
    assert sorted([*found, *sent]) == [offset for offset, _ in lost]
    assert all(number < copied for number in found)


async def test_others_transactions_end_the_look_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "AHEAD_BYTES", 1_000)
    monkeypatch.setattr(tail_module, "COUNTED_BYTES", 1_000)
    target, reads = Target(0), list[int]()
    source = [(number, a_record(number, 40)) for number in range(10)]
    copies, more = list(batches(source, [5], Codec.NONE))
    target.copy(copies)
    for _ in range(100):
        target.append(in_a_transaction(), 1)

    def read(position: int) -> Awaitable[FetchedPartition]:
        reads.append(position)
        return target.read(position)

    tail = LaneTail(TARGET, 0, target.end, read, OURS)
    found, sent = await compare(tail, [copies, more], source)
    assert (len(found), sent) == (5, list(range(5, 10)))
    assert tail.is_over
    assert len(reads) < 20
    # What is behind them may be ours: it is named, not taken for read.
    assert "was not searched" in tail.doubt
    assert 0 < tail.left < target.end - 5
    known = LaneTail(TARGET, 0, target.end, target.read, OURS)
    assert not (await known.behind()).is_known


async def test_4_transactions_and_others_between_copies_are_no_holes() -> None:
    target = Target(7)
    source = [(number, a_record(number, 40)) for number in range(30)]
    copies = list(batches(source, [3, 1, 6], Codec.NONE))
    for copy in copies:
        target.append(in_a_transaction(), 1)
        target.copy(copy)
        target.append(encode_batch([NewRecord(b"foreign", b"x", (), 5)]), 1)
    tail = LaneTail(TARGET, 7, target.end, target.read, OURS)
    for copy in copies:
        assert not await tail.hole()
        parts, rest = await tail.compare(copy)
        assert (sum(part.batch.count for part in parts), rest) == (copy.count, None)
        assert not tail.has_holes


@pytest.mark.parametrize("stamped", [False, True], ids=["times of the source", "of the target"])
@pytest.mark.parametrize("kept", [7, -1], ids=["an id", "in transactions before"])
async def test_3_equal_records_of_another_writer_are_no_copies(kept: int, *, stamped: bool) -> None:
    """Nor are an earlier task's under an id that was replaced: the map has them, as all that was written in transactions."""
    target, equal = Target(0), NewRecord(b"k", b"ping", (), 5)
    source = [(number, equal) for number in range(8)]
    for producer_id in (3, 7, 9, 7, -1):
        data = encode_batch([equal])
        sign(data, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        data[21:23] = (int.from_bytes(data[21:23]) | LOG_APPEND_FLAG * stamped).to_bytes(2)
        target.append(data, 1)
    tail = LaneTail(TARGET, 0, target.end, target.read, KeptProducer(kept, 1))
    found, sent = await compare(tail, list(batches(source, [1], Codec.NONE)), source)
    ours = [1, 3] if kept == 7 else []
    assert found == dict(enumerate(ours))
    assert sent == list(range(len(ours), 8))
    if kept == 7:
        assert tail.others == {3: (0, 0), 9: (2, 2), -1: (4, 4)}


@pytest.mark.parametrize(
    ("kept", "writers", "behind"),
    [
        (KeptProducer(7, 0), (7, 9, 7, -1), Behind(2)),
        (KeptProducer(7, 2), (7, 9, 3, 9), Behind(1)),
        (NO_PRODUCER, (3, 9), Behind(0)),
        (KeptProducer(7, 0), (), Behind(0)),
    ],
    ids=["known", "another id before", "in transactions", "nothing"],
)
async def test_copies_behind_the_map_are_counted_by_their_producer_id(
    kept: KeptProducer, writers: tuple[int, ...], behind: Behind
) -> None:
    target = Target(0)
    for producer_id in writers:
        data = encode_batch([NewRecord(b"k", b"v", (), 5)])
        sign(data, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        target.append(data, 1)
        target.append(in_a_transaction(), 1)
    assert await LaneTail(TARGET, 0, target.end, target.read, kept).behind() == behind
    if behind.records:
        target.log_start = 1
        tail = LaneTail(TARGET, 0, target.end, target.read, kept)
        assert await tail.behind() == behind._replace(is_known=False)


def in_a_transaction() -> bytearray:
    data = encode_batch([NewRecord(b"foreign", b"x" * 50, (), 5)])
    attributes = int.from_bytes(data[21:23]) | TRANSACTIONAL_FLAG
    data[21:23] = attributes.to_bytes(2)
    return data


async def compare(
    tail: LaneTail,
    offered: list[RecordBatch],
    source: list[tuple[int, NewRecord]],
    *,
    at_once: int = 1,
) -> tuple[dict[int, int], list[int]]:
    """Return where records were found, and those that are left to send, whose bytes are checked."""
    found: dict[int, int] = {}
    sent: list[int] = []
    queue = deque(offered)
    while queue:
        hole = await tail.hole()
        if hole and not tail.align(list(islice(queue, at_once)), hole):
            tail.give_up()
        batch = queue.popleft()
        parts, rest = await tail.compare(batch)
        for part in parts:
            at = part.base_offset
            for first, count in part.batch.runs:
                found |= {first + step: at + step for step in range(count)}
                at += count
        if rest is not None and not tail.is_over:
            queue.appendleft(rest)
        elif rest is not None:
            offsets = [first + step for first, count in rest.runs for step in range(count)]
            (decoded,) = decode_batches(memoryview(_resigned(rest)))
            wanted = [record for offset, record in source if offset in offsets]
            assert [(it.timestamp, it.key, it.value, it.headers) for it in decoded.records] == [
                (it.timestamp, it.key, it.value, tuple(it.headers)) for it in wanted
            ]
            sent += offsets
    return found, sent


def _resigned(batch: RecordBatch) -> bytearray:
    """Return the batch with its right CRC, as it leaves."""
    data = bytearray(batch.data)
    sign(data, producer_id=1, producer_epoch=0, base_sequence=0)
    return data
