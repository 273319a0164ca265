"""The closed form of the offset-sync rule says the same as the rule record by record."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.task import Run
from mm2py.mirror.offset_syncs import (
    OffsetSync,
    OffsetSyncState,
    decode_offset_sync,
    encode_offset_sync,
)
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


@given(steps=STEPS, lag_max=st.integers(0, 120))
def test_closed_form_chooses_the_first_and_the_last_of_what_the_rule_chooses(
    steps: list[Step], lag_max: int
) -> None:
    closed, plain = OffsetSyncState(lag_max), OffsetSyncState(lag_max)
    shift: int | None = None
    for run in runs_of(steps):
        chosen: list[int] = []
        for index in range(run.records):
            if plain.observe(run.source_offset + index, run.target_offset + index):
                chosen.append(index)
            plain.reset()
        got = closed.observe_run(run)
        new_shift = run.target_offset - run.source_offset
        if shift is not None and new_shift != shift and 0 not in chosen:
            # Where only the shift changed we write one sync more than Java and start the lag there.
            assert 0 in got
            return
        shift = new_shift
        assert len(got) <= 2
        assert set(got) <= set(chosen)
        assert got[-1:] == tuple(chosen[-1:])
        assert (0 in got) is (0 in chosen)
        assert closed.last_synced_downstream == plain.last_synced_downstream


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
