"""Whatever comes and goes: every partition has one task, no task is empty, growth moves nothing."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.types import TopicPartition
from mm2py_connectors.partition_deal import PartitionDeal

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
