"""Names, offset syncs, the ledger and the deal of partitions hold their rules for generated input."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.context import EventKind, LossEvent
from mm2py.api.policies import DefaultReplicationPolicy
from mm2py.api.records import SourcePartition
from mm2py.api.task import Run
from mm2py.mirror.filters import DefaultTopicFilter, TopicSelection
from mm2py.mirror.ledger import (
    KnownEvents,
    LedgerRecord,
    UnknownLedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
)
from mm2py.mirror.offset_syncs import (
    OffsetSync,
    OffsetSyncEmitter,
    OffsetSyncState,
    decode_offset_sync,
    encode_offset_sync,
)
from mm2py.mirror.source_offsets import (
    parse_source_offset_key,
    partition_identity,
    source_offset_key,
)
from mm2py.protocol.records import NewRecord
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors.partition_deal import PartitionDeal
from tests.kit.fakes.stores import an_event

ALIASES = st.text("ABCxyz-_", min_size=1, max_size=6)
TOPICS = st.text("abcXYZ019-_", min_size=1, max_size=20)


@given(hops=st.lists(ALIASES, min_size=1, max_size=5), topic=TOPICS)
def test_remote_names_are_undone_hop_by_hop(hops: list[str], topic: str) -> None:
    policy = DefaultReplicationPolicy({})
    name = topic
    for alias in hops:
        name = policy.remote_topic(alias, name)
    assert policy.original_topic(name) == topic
    for alias in reversed(hops):
        assert policy.topic_source(name) == alias
        name = policy.upstream_topic(name) or ""
    assert name == topic


@given(hops=st.lists(ALIASES, min_size=1, max_size=5), topic=TOPICS, source=ALIASES)
def test_nothing_is_sent_where_it_came_from(hops: list[str], topic: str, source: str) -> None:
    policy = DefaultReplicationPolicy({})
    name = topic
    for alias in hops:
        name = policy.remote_topic(alias, name)
    for target in hops:
        flow = TopicSelection(
            policy,
            DefaultTopicFilter({"topics.exclude": ""}),
            source_alias=source,
            target_alias=target,
        )
        assert not flow.replicate(name)


MEMBERS: st.SearchStrategy[SourcePartition] = st.dictionaries(
    st.text(max_size=10), st.one_of(st.text(max_size=10), st.integers(-(2**63), 2**63 - 1))
)


@given(connector=st.text(max_size=20), partition=MEMBERS)
def test_source_offset_keys_are_read_as_written(connector: str, partition: SourcePartition) -> None:
    name, read = parse_source_offset_key(source_offset_key(connector, partition))
    assert name == connector
    assert partition_identity(read) == partition_identity(partition)


@dataclass(frozen=True)
class Step:
    """A run, relative to the one before."""

    source_jump: int
    target_jump: int
    count: int


STEPS = st.lists(
    st.builds(
        Step,
        source_jump=st.one_of(st.just(0), st.integers(-50, 50)),
        target_jump=st.one_of(st.just(0), st.integers(-50, 50)),
        count=st.integers(1, 400),
    ),
    min_size=1,
    max_size=12,
)


def runs_of(steps: list[Step]) -> list[Run]:
    runs: list[Run] = []
    source, target = 100, 1000
    for step in steps:
        source = max(0, source + step.source_jump)
        target = max(0, target + step.target_jump)
        runs.append(Run(source, step.count, target))
        source += step.count
        target += step.count
    return runs


class JavaRule:
    """``PartitionState`` of Java's ``OffsetSyncWriter``, record by record."""

    def __init__(self, lag_max: int) -> None:
        self.lag_max = lag_max
        self.upstream = self.downstream = self.synced = -1

    def is_due(self, upstream: int, downstream: int) -> bool:
        due = (
            self.synced == -1
            or downstream - (self.synced + 1) >= self.lag_max
            or upstream - self.upstream != 1
            or downstream < self.downstream
        )
        if due:
            self.synced = downstream
        self.upstream, self.downstream = upstream, downstream
        return due


@given(steps=STEPS, lag_max=st.integers(0, 120))
def test_the_closed_form_chooses_what_javas_rule_chooses(steps: list[Step], lag_max: int) -> None:
    closed, java = OffsetSyncState(lag_max), JavaRule(lag_max)
    shift: int | None = None
    for run in runs_of(steps):
        breaks, by_lag = closed.observe_run(run)
        new_shift = run.target_offset - run.source_offset
        chosen = [
            index
            for index in range(run.records)
            if java.is_due(run.source_offset + index, run.target_offset + index)
        ]
        if shift is not None and new_shift != shift and 0 not in chosen:
            # Where only the shift changed we write one sync more than Java and start the lag there.
            assert breaks
            return
        shift = new_shift
        assert [0] * breaks + list(by_lag) == chosen


class Store:
    """Keeps what an emitter writes, answered at once."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> None:
        assert tp.partition == 0
        for record in records:
            sync = decode_offset_sync(record.key or b"", record.value or b"")
            self.written.append((sync.upstream, sync.downstream))
        done(0)


@given(steps=STEPS, lag_max=st.integers(0, 120), opened_after=st.integers(0, 12))
def test_first_syncs_gaps_and_rewinds_are_all_written_whenever_the_writer_opens(
    steps: list[Step], lag_max: int, opened_after: int
) -> None:
    store, clock, java = Store(), FakeClock(), JavaRule(lag_max)
    emitter = OffsetSyncEmitter(
        store, "syncs", lag_max=lag_max, clock=clock, on_refusal=lambda _: None
    )
    tp = TopicPartition("t", 0)
    wanted: list[tuple[int, int]] = []
    runs = runs_of(steps)
    for number, run in enumerate(runs):
        if number == opened_after:
            emitter.open()
        emitter.observe(tp, [run])
        due = [
            java.is_due(run.source_offset + index, run.target_offset + index)
            for index in range(run.records)
        ]
        if due[0] and (not wanted or java_breaks(runs[number - 1], run)):
            wanted.append((run.source_offset, run.target_offset))
    emitter.open()
    emitter.promote_delayed()
    written = iter(store.written)
    assert all(pair in written for pair in wanted), "in this order, with others between them"
    last = runs[-1]
    end = last.records - 1
    assert store.written[-1] == (last.source_offset + end, last.target_offset + end)


def java_breaks(before: Run, run: Run) -> bool:
    """Whether a run begins at a gap or a rewind."""
    return (
        run.source_offset != before.source_offset + before.records
        or run.target_offset < before.target_offset + before.records - 1
    )


@given(
    topic=st.text(max_size=40),
    partition=st.integers(0, 2**31 - 1),
    upstream=st.integers(-(2**63), 2**63 - 1),
    downstream=st.integers(-(2**63), 2**63 - 1),
)
def test_offset_syncs_survive_a_round_trip(
    topic: str, partition: int, upstream: int, downstream: int
) -> None:
    sync = OffsetSync(TopicPartition(topic, partition), upstream, downstream)
    assert decode_offset_sync(*encode_offset_sync(sync)) == sync


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text()
EVENTS = st.builds(
    LossEvent,
    kind=st.sampled_from(EventKind),
    partition=st.builds(TopicPartition, TEXT, st.integers(0, 1 << 31)),
    first_offset=INT64,
    last_offset=INT64,
    policy=TEXT,
    cause=TEXT,
    task=TEXT,
)


@given(event=EVENTS, flow=TEXT, time_ms=INT64)
def test_a_record_is_read_as_it_was_written(event: LossEvent, flow: str, time_ms: int) -> None:
    record = LedgerRecord(event=event, flow=flow, time_ms=time_ms)
    key, value = encode_ledger_record(record)
    assert decode_ledger_record(key, value) == record
    assert key.decode() == str(event.partition)


@given(value=st.binary() | st.binary().map(lambda tail: b"\x01" + tail))
def test_other_bytes_are_kept_as_they_are(value: bytes) -> None:
    found = decode_ledger_record(b"k", value)
    assert isinstance(found, UnknownLedgerRecord)
    assert (found.key, found.value) == (b"k", value)


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.booleans()), max_size=12))
def test_whatever_is_found_again_a_loss_is_written_once(steps: list[tuple[int, int, bool]]) -> None:
    """``steps``: records copied, then offsets lost behind them, then whether the process is killed.

    A kill forgets the position unless something was copied (and committed) since.
    """
    known = KnownEvents()
    ledger: list[LossEvent] = []
    lost: set[int] = set()
    committed = position = start = 0
    for copied, gone, killed in steps:
        if position >= start:
            position += copied
            if copied:
                committed = position
        start = max(start, position) + gone
        lost.update(range(position, start))
        event = an_event(position, start - 1)
        ledger += known.take(event)
        position = start
        if killed:
            known = KnownEvents()
            for event in ledger:
                known.note(event)
            position = committed
    offsets = [o for event in ledger for o in range(event.first_offset, event.last_offset + 1)]
    assert sorted(offsets) == sorted(lost)


SETS = st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=8)


def parts(numbers: set[int]) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in sorted(numbers)]


@given(sets=SETS, tasks=st.integers(1, 6))
def test_every_partition_has_exactly_one_task(sets: list[set[int]], tasks: int) -> None:
    deal = PartitionDeal()
    for wanted in sets:
        changed = deal.update(parts(wanted))
        hands = deal.deal(tasks)
        dealt = [partition for hand in hands for partition in hand]
        assert sorted(dealt) == parts(wanted)
        assert len(hands) == min(tasks, len(wanted))
        assert all(hands)
        assert changed or not deal.update(parts(wanted))


@given(first=st.sets(st.integers(0, 30)), more=st.sets(st.integers(0, 30)), tasks=st.integers(1, 6))
def test_growth_takes_nothing_from_a_task(first: set[int], more: set[int], tasks: int) -> None:
    deal = PartitionDeal()
    deal.update(parts(first))
    before = deal.deal(tasks)
    deal.update(parts(first | more))
    after = deal.deal(tasks)
    if len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            assert new[: len(old)] == old


@given(
    sets=SETS, tasks=st.integers(1, 6), rates=st.dictionaries(st.integers(0, 30), st.floats(0, 1e9))
)
def test_with_rates_every_partition_has_one_task_and_the_deal_is_kept(
    sets: list[set[int]], tasks: int, rates: dict[int, float]
) -> None:
    deal = PartitionDeal()
    measured = {TopicPartition("t", number): rate for number, rate in rates.items()}
    for wanted in sets:
        deal.update(parts(wanted))
        hands = deal.deal(tasks, measured)
        assert sorted(partition for hand in hands for partition in hand) == parts(wanted)
        assert len(hands) == min(tasks, len(wanted))
        assert all(hands)
        assert deal.deal(tasks) == hands
