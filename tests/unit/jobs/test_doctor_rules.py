"""Rules of the doctor that need no cluster: which limits of a copy are narrower, which quotas count."""

from collections.abc import Mapping, Sequence

import pytest

from bench.sizing import Point, fitted, steeper
from mm2py.protocol.admin_messages import ClientQuota
from mm2py_jobs.copy_limits import limits_of
from mm2py_jobs.doctor.cluster_checks import applied, entity_options
from mm2py_jobs.doctor.load import CYCLE_S, Costs, Load

WEEK = {"retention.ms": "604800000"}
HOUR = {"retention.ms": "3600000"}
COMPACT = {"cleanup.policy": "compact"}
BOTH = {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("ours", "theirs", "keys"),
    [
        (WEEK, HOUR, ["retention.ms"]),
        (HOUR, WEEK, []),
        (WEEK, {"retention.ms": "-1"}, []),
        ({"retention.ms": "-1"}, WEEK, ["retention.ms"]),
        ({"retention.bytes": "-1"}, {"retention.bytes": "1"}, ["retention.bytes"]),
        # Nothing ages out of a log that is compacted alone.
        (COMPACT | WEEK, COMPACT | HOUR, []),
        (BOTH | WEEK, BOTH | HOUR, ["retention.ms"]),
        (COMPACT | WEEK, BOTH | HOUR, ["cleanup.policy"]),
        (WEEK | {"cleanup.policy": "delete"}, COMPACT | HOUR, ["cleanup.policy"]),
    ],
)
def test_a_limit_is_one_that_the_source_does_not_have(
    ours: Mapping[str, str], theirs: Mapping[str, str], keys: Sequence[str]
) -> None:
    assert [it.key for it in limits_of(ours, theirs)] == keys


US = {"user": "mirror"}
OTHERS = {"user": None}


@pytest.mark.parametrize(
    ("entities", "counts"),
    [
        # In each line the quotas stand in Kafka's order; the first that is not of one client counts for all the others.
        ([US, OTHERS], 1),
        ([US, {"client-id": "ours"}], 1),
        ([US | {"client-id": "ours"}, US | {"client-id": None}, US], 2),
        ([US | {"client-id": "ours"}, OTHERS, {"client-id": "ours"}], 2),
        ([OTHERS | {"client-id": None}, OTHERS], 1),
        ([{"client-id": "ours"}, {"client-id": None}], 2),
        ([{"client-id": "ours"}], 1),
        ([], 0),
    ],
)
def test_a_quota_that_another_one_replaces_does_not_count(
    entities: Sequence[Mapping[str, str | None]], counts: int
) -> None:
    quotas = [ClientQuota(it, {"consumer_byte_rate": 1.0}) for it in entities]
    assert applied(reversed(quotas)) == quotas[:counts]


@pytest.mark.parametrize(
    ("entity", "options"),
    [
        (US, "--entity-type users --entity-name mirror"),
        ({"user": None, "client-id": "A->B o"}, "--entity-type users --entity-default --entity-type clients --entity-name 'A->B o'"),
    ],
)  # fmt: skip
def test_whom_a_quota_is_for_is_named_as_kafkas_tool_takes_it(
    entity: Mapping[str, str | None], options: str
) -> None:
    assert entity_options(entity) == options


@pytest.mark.parametrize("records_per_s", [0.0, 0.5, 200.0, 1e6])
def test_a_worker_has_no_more_rounds_than_records_and_than_brokers_let_it(
    records_per_s: float,
) -> None:
    few, many = (Load(partitions=it, records_per_s=records_per_s) for it in (10, 10_000))
    assert many.rounds_per_s <= few.rounds_per_s <= min(records_per_s, 1 / CYCLE_S)


def test_a_fit_finds_what_the_runs_were_made_of_and_names_what_is_no_straight_line() -> None:
    costs = Costs(0.01, 2e-6, 0.001, 0.0005, 1e8, 6e3)
    loads = [
        Load(partitions=count, written=8, records_per_s=rate * 1000.0, bytes_per_s=rate * 1e6)
        for count in (300, 1_300, 10_300)
        for rate in (0, 2, 50)
    ]
    points = [Point(it, costs.cores(it), costs.memory_bytes(it), is_fitted=True) for it in loads]
    assert fitted(points) == pytest.approx(costs)
    assert steeper(points) == []
    most = points[6]
    points[6] = most._replace(cores=2 * most.cores, memory_bytes=2 * most.memory_bytes)
    assert [it.split()[0] for it in steeper(points)] == ["CPU", "memory"]
