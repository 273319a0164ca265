"""Dealing partitions to tasks: Java's round robin, stable when the set changes."""

import pytest

from mm2py.errors import ConfigError
from mm2py.types import TopicPartition
from mm2py_connectors.partition_deal import PartitionDeal, format_partitions, parse_partitions


def parts(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def numbers(deal: PartitionDeal, tasks: int) -> list[list[int]]:
    return [[tp.partition for tp in hand] for hand in deal.deal(tasks)]


def test_partition_k_goes_to_task_k_mod_n() -> None:
    deal = PartitionDeal()
    assert deal.update(parts(0, 1, 2, 3, 4))
    assert numbers(deal, 2) == [[0, 2, 4], [1, 3]]
    assert not deal.update(parts(4, 3, 2, 1, 0))
    assert numbers(deal, 9) == [[0], [1], [2], [3], [4]]
    assert numbers(PartitionDeal(), 3) == []


def test_growth_changes_only_the_tasks_that_get_something() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2))
    before = numbers(deal, 3)
    deal.update([*parts(-1), *parts(0, 1, 2)])
    assert numbers(deal, 3) == [[0, -1], *before[1:]]
    deal.update([*parts(9, 0, 1, 2)], anew=True)
    assert numbers(deal, 3) == [[9, 2], [0], [1]], "in a flow's first minute, as Java"


def test_a_partition_taken_out_leaves_the_others_where_they_are() -> None:
    deal = PartitionDeal()
    deal.update(parts(*range(9)))
    deal.update(parts(0, 2, 3, 4, 5, 6, 7, 8))
    assert numbers(deal, 3) == [[0, 3, 6], [4, 7], [2, 5, 8]]
    deal.update(parts(0, 2, 3, 4, 5, 6, 7, 8, 50))
    assert numbers(deal, 3) == [[0, 3, 6], [50, 4, 7], [2, 5, 8]]


def test_a_task_that_would_be_empty_makes_a_new_deal() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    deal.update(parts(0, 2))
    assert numbers(deal, 2) == [[0], [2]]


@pytest.mark.parametrize(
    ("published", "kept"),
    [
        pytest.param([(3, 1), (0, 2)], True, id="the-same-set"),
        pytest.param([(3, 1, 0), (2,)], True, id="uneven"),
        pytest.param([(3, 1), (0,)], False, id="one-is-missing"),
        pytest.param([(3, 1), (0, 2, 4)], False, id="one-is-gone"),
        pytest.param([(3, 1), (0, 2, 3)], False, id="one-has-two-tasks"),
        pytest.param([], False, id="none-is-published"),
    ],
)
def test_what_tasks_have_is_kept_where_it_is_the_same_set(
    published: list[tuple[int, ...]], kept: bool
) -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    deal.continue_with([parts(*hand) for hand in published])
    assert numbers(deal, 2) == ([[*hand] for hand in published] if kept else [[0, 2], [1, 3]])


def test_names_with_dashes_survive_the_property() -> None:
    partitions = (TopicPartition("topic-1", 2), TopicPartition("a", 10), TopicPartition("-", 0))
    text = format_partitions(partitions)
    assert text == "topic-1-2,a-10,--0"
    assert parse_partitions(text.split(",")) == partitions


@pytest.mark.parametrize("item", ["t", "-1", "t-", "t-x", "t-1.0", "t-\u0663"])
def test_what_is_no_partition_is_refused(item: str) -> None:
    with pytest.raises(ConfigError):
        parse_partitions([item])


def rates(*bytes_per_s: float) -> dict[TopicPartition, float]:
    return dict(zip(parts(*range(len(bytes_per_s))), bytes_per_s, strict=True))


def weighed(deal: PartitionDeal, tasks: int, *bytes_per_s: float) -> list[list[int]]:
    return [[tp.partition for tp in hand] for hand in deal.deal(tasks, rates(*bytes_per_s))]


def test_heavy_partitions_of_one_task_are_spread_and_stay_where_they_came() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    assert weighed(deal, 2, 9, 1, 9, 1) == [[0, 3], [2, 1]]
    assert numbers(deal, 2) == [[0, 3], [2, 1]], "without rates it stays"
    assert weighed(deal, 2, 9, 1, 9, 1) == [[0, 3], [2, 1]]


def test_tasks_that_are_about_even_are_left_alone() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    assert weighed(deal, 2, 10, 9, 10, 8) == [[0, 2], [1, 3]]


def test_one_partition_that_outweighs_all_is_not_worth_a_restart() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2))
    assert weighed(deal, 3, 1000, 1, 1) == [[0], [1], [2]]


def test_what_nobody_measured_counts_as_the_mean_and_idle_ones_are_spread() -> None:
    deal = PartitionDeal()
    deal.update(parts(*range(42)))
    measured = {TopicPartition("t", 0): 50.0, TopicPartition("t", 2): 50.0}
    hands = deal.deal(2, measured | dict.fromkeys(parts(*range(3, 42)), 0.0))
    assert sorted(len(hand) for hand in hands) != [0, 42]
    assert all(10 < len(hand) < 32 for hand in hands)
