"""Plans: lanes by longest processing time, estimates, boundaries."""

import pytest

from mm2py.errors import UsageError
from mm2py.mirror.start_positions import Boundary, parse_boundary
from mm2py.protocol.configs import ConfigEntry
from mm2py_jobs.copy.plan import BYTES_PER_S, PartitionPlan, Plan, Refusal, deal_lanes, estimated_s
from mm2py_jobs.copy.survey import smaller_batches


def part(number: int, size: int) -> PartitionPlan:
    return PartitionPlan(
        topic="t", partition=number, target_topic="A.t", start=0, end=10, bytes=size
    )


def test_the_largest_partition_gets_a_lane_of_its_own() -> None:
    dealt = deal_lanes(
        [part(0, 10 << 20), part(1, 90 << 20), part(2, 20 << 20), part(3, 30 << 20)], 2
    )
    assert [[it.partition for it in lane] for lane in dealt] == [[1], [3, 2, 0]]


def test_empty_partitions_are_spread_over_the_lanes() -> None:
    dealt = deal_lanes([part(number, 0) for number in range(200)], 4)
    assert [len(lane) for lane in dealt] == [50, 50, 50, 50]


def test_there_is_no_lane_without_partitions() -> None:
    assert len(deal_lanes([part(0, 5)], 8)) == 1
    assert deal_lanes([], 8) == []


def test_an_estimate_follows_the_longest_lane_or_the_rate_limit() -> None:
    dealt = deal_lanes([part(0, 2 * BYTES_PER_S), part(1, BYTES_PER_S)], 2)
    assert estimated_s(dealt, 0) == 2
    assert estimated_s(dealt, BYTES_PER_S // 10) == pytest.approx(30)
    assert estimated_s([], 0) == 0


def test_a_plan_as_json_has_exclusive_ends_and_names_refusals() -> None:
    plan = Plan(flow="A->B", partitions=(part(0, 7),), refused=(Refusal("u", 3, "because"),))
    document = plan.document(4, 0)
    assert document["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "target_topic": "A.t",
            "from": 0,
            "to": 10,
            "offsets": 10,
            "bytes": 7,
        }
    ]
    assert document["lanes"] == [{"lane": 0, "bytes": 7, "partitions": ["t-0"]}]
    assert document["refused"] == [{"topic": "u", "partition": 3, "reason": "because"}]


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ("earliest", Boundary()),
        ("offset:12", Boundary(offset=12)),
        ("1700000000000", Boundary(timestamp=1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Boundary(timestamp=1_700_000_000_000)),
        ("2023-11-14T22:13:20", Boundary(timestamp=1_700_000_000_000)),
    ],
)
def test_a_boundary_is_an_edge_an_offset_or_a_time(text: str, boundary: Boundary) -> None:
    assert parse_boundary(text, "--from", "earliest") == boundary


@pytest.mark.parametrize("text", ["now", "offset:", "offset:-1", "yesterday", ""])
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        parse_boundary(text, "--from", "earliest")


@pytest.mark.parametrize(("target", "source"), [("1000", "1048588"), ("1048588", "1048589")])
def test_a_target_topic_that_takes_smaller_batches_than_its_source_is_noted(
    target: str, source: str
) -> None:
    def limit(size: str) -> list[ConfigEntry]:
        return [ConfigEntry("max.message.bytes", size)]

    (note,) = smaller_batches("A.t", limit(target), limit(source))
    assert note.startswith(f"A.t has max.message.bytes={target}, its source {source}: ")
    for enough in (limit(source), limit(str(int(source) + 1)), []):
        assert not smaller_batches("A.t", enough, limit(source))
