"""``start.positions``: items, their order, and what is refused."""

import pytest

from mm2py.errors import ConfigError
from mm2py.mirror.start_positions import Boundary, StartPositions, parse_boundary
from mm2py.testing.clock import FakeClock
from mm2py.types import (
    EARLIEST,
    LATEST,
    TopicPartition,
    asked_start,
    start_at_offset,
    start_at_time,
)
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

HOUR_MS = 3_600_000


@pytest.mark.parametrize("number", [0, 1, 99, 1 << 62])
def test_a_start_position_carries_its_time_or_offset_and_no_other_does(number: int) -> None:
    assert asked_start(start_at_time(number)) == (number, None)
    assert asked_start(start_at_offset(number)) == (None, number)
    for position in (number, EARLIEST, LATEST, -6):
        assert asked_start(position) == (None, None)


def test_the_first_item_about_a_partition_counts() -> None:
    clock = FakeClock()
    now_ms = clock.now_ms()
    starts = StartPositions.parse(
        [
            "orders:1 = offset:5",
            "orders=latest",
            "clicks.*=2 Hours ago",
            "a[.=]b=earliest",
            "1970-01-01T00:00:01Z",
        ],
        clock,
    )
    found = {
        ("orders", 1): start_at_offset(5),
        ("orders", 0): LATEST,
        ("clicks-eu", 3): start_at_time(now_ms - 2 * HOUR_MS),
        ("my-orders", 0): start_at_time(1_000),
        ("a=b", 0): EARLIEST,
    }
    assert {key: starts.of(TopicPartition(*key)) for key in found} == found
    assert starts.has_latest
    alone = StartPositions.parse(["orders=10 minutes ago"], clock)
    assert alone.of(TopicPartition("other", 0)) is None
    assert not alone.has_latest


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("orders=soon", "position 'soon' is not understood"),
        ("orders=", "position '' is not understood"),
        ("=latest", "names no topic"),
        ("orders:x=latest", "names no partition"),
        ("orders(=latest", "orders"),
        ("-5 hours ago", "is not understood"),
    ],
)
def test_an_item_that_is_none_is_refused_with_what_to_write(item: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        StartPositions.parse([item], FakeClock())
    assert refusal.value.remedy
    problems = MirrorSourceConfig.cross_check({"start.positions": item})
    assert [it.name for it in problems] == ["start.positions"]


def test_a_backfill_takes_ages_too() -> None:
    clock = FakeClock()
    found = parse_boundary("1 day ago", "--from", "earliest", clock=clock)
    assert found == Boundary(timestamp=clock.now_ms() - 24 * HOUR_MS)
