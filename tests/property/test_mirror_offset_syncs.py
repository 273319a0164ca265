"""The closed form of the offset-sync rule says the same as the rule record by record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.task import Run
from mm2py.mirror.offset_syncs import (
    OffsetSync,
    OffsetSyncEmitter,
    OffsetSyncState,
    decode_offset_sync,
    encode_offset_sync,
)
from mm2py.protocol.records import NewRecord
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition


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
def test_the_closed_form_chooses_what_javas_rule_chooses_record_by_record(
    steps: list[Step], lag_max: int
) -> None:
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
    emitter = OffsetSyncEmitter(store, "syncs", lag_max=lag_max, clock=clock)
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
