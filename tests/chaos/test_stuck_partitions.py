"""Ten of twenty partitions that the target refuses again and again, under load: the other ten keep flowing."""

import logging
import os
from collections.abc import Callable, Iterable

import pytest

from tests.integration.cluster_changes import (
    delete_topic,
    forbid_creating,
    forbid_writing,
    permit_creating,
    permit_writing,
    set_config,
    topics_of,
)
from tests.integration.far_regions import Rig
from tests.integration.ledger_scenes import entries
from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Logs,
    Sent,
    assert_equal,
    ends,
    read,
    wait_for_all,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import Region
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

PARTITIONS = 10
RATE = 500
VALUE_BYTES = 1_000
ROUNDS = 3
REFUSED = 5_000
"""Records for either topic while one of them is refused: more than the memory below."""
MEMORY = {"{target}.producer.buffer.memory": str(2 << 20), "tasks.max": "2"}
FLOW_S = 60.0
LIMIT_BYTES = 5_000
LOOKS = 50


@pytest.fixture
def target(new_region: NewRegion) -> Region:
    """A cluster without superusers, so that its rules count for the mirror too."""
    return new_region("guarded", properties={"super.users": "User:nobody"})


def test_ten_partitions_that_may_not_be_written_again_and_again_leave_ten_others_flowing(
    setup: Setup, rig: Rig, target: Region
) -> None:
    prefix, source = setup.unique("full"), rig.source.region
    stuck, flowing = f"{prefix}-stuck", f"{prefix}-flowing"
    for topic in (stuck, flowing):
        setup.create_topic(source, topic, PARTITIONS)
    flow = setup.flow(f"{prefix}-.*", MEMORY, source=source, target=target)
    waited: list[float] = []
    with running(flow.file) as mirror:
        with (
            Load(source, stuck, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES) as refused,
            Load(source, flowing, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES),
        ):
            for _ in range(ROUNDS):
                wait_for_all(mirror, flow, stuck)
                forbid_writing(target, flow.remote(stuck))
                refused.wait_acked(REFUSED)
                waited.append(wait_for_all(mirror, flow, flowing))
                assert (
                    sum(ends(source, stuck).values())
                    - sum(ends(target, flow.remote(stuck)).values())
                    > REFUSED // 2
                )
                permit_writing(target, flow.remote(stuck))
        for topic in (stuck, flowing):
            assert_equal(*wait_for_copy(mirror, flow, topic))
        log.warning("seconds until the ten others were copied: %s", [round(s, 1) for s in waited])
        assert not mirror.lines("ERROR")


def test_a_deleted_copy_that_may_not_be_created_again_leaves_ten_others_flowing(
    setup: Setup, rig: Rig, target: Region
) -> None:
    prefix, source = setup.unique("gone"), rig.source.region
    stuck, flowing = f"{prefix}-stuck", f"{prefix}-flowing"
    for topic in (stuck, flowing):
        setup.create_topic(source, topic, PARTITIONS)
    flow = setup.flow(f"{prefix}-.*", MEMORY, source=source, target=target)
    with running(flow.file) as mirror:
        with (
            Load(source, stuck, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES) as refused,
            Load(source, flowing, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES),
        ):
            refused.wait_acked(REFUSED // 2)
            wait_for_all(mirror, flow, stuck)
            forbid_creating(target, flow.remote(stuck))
            delete_topic(target, flow.remote(stuck))
            until(lambda: flow.remote(stuck) not in topics_of(target), 30, "the deletion")
            refused.wait_acked(REFUSED)
            mirror.wait_for_log(f"cannot be created.* name={flow.remote(stuck)} ")
            waited = wait_for_all(mirror, flow, flowing)
            assert flow.remote(stuck) not in topics_of(target)
            permit_creating(target, flow.remote(stuck))
        log.warning("seconds until the ten others were copied: %.1f", waited)
        assert_equal(*wait_for_copy(mirror, flow, flowing))
        truth = read(source, stuck)
        until(
            lambda: ends_alike(truth, target, flow.remote(stuck)),
            90,
            lambda: f"{ends(source, stuck)}, {ends(target, flow.remote(stuck))}",
            alive=mirror,
        )
    # What was on the deleted copy is gone with it; from there on nothing is missing or doubled.
    reported = entries(flow)
    for partition, copy in read(target, flow.remote(stuck)).items():
        records = truth[partition].records
        gone = len(records) - len(copy.records)
        assert gone > 0
        assert copy.records == records[gone:]
        # A task that was started anew while the topic was away does not know what the target had acknowledged.
        named = [each for each in reported if (each.topic, each.partition) == (stuck, partition)]
        for entry in named:
            assert (entry.kind, entry.first) == ("target-lost", 0), f"partition {partition}"
            assert entry.last == gone - 1, f"partition {partition}"


def ends_alike(truth: Logs, target: Region, remote: str) -> bool:
    """Whether the copy has as its last record of every partition the last one of the source."""
    if remote not in topics_of(target):
        return False
    copy = read(target, remote)
    return all(copy[p].records[-1:] == one.records[-1:] for p, one in truth.items())


def worst_lag(flow: Flow, topic: str, partitions: Iterable[int]) -> int:
    """Return by how many records the copies of partitions were behind at most, of some looks."""
    worst = 0
    for _ in range(LOOKS):
        # The copies first: what is written between the two questions counts against us.
        copies, now = ends(flow.target, flow.remote(topic)), ends(flow.source, topic)
        worst = max(worst, sum(now[p] - copies.get(p, 0) for p in partitions))
    return worst


def test_ten_partitions_with_a_record_too_large_leave_the_other_ten_of_the_topic_flowing(
    setup: Setup, rig: Rig, target: Region
) -> None:
    topic, source, every = setup.unique("large"), rig.source.region, 2 * PARTITIONS
    setup.create_topic(source, topic, every)
    properties = MEMORY | {"sync.topic.configs.enabled": "false"}
    flow = setup.flow(topic, properties, source=source, target=target)
    remote = flow.remote(topic)
    setup.create_topic(target, remote, every, config={"max.message.bytes": str(LIMIT_BYTES)})
    with running(flow.file) as mirror:
        with Load(source, topic, every, rate=RATE, value_bytes=VALUE_BYTES) as load:
            load.wait_acked(RATE)
            healthy = range(PARTITIONS, every)
            wait_for_all(mirror, flow, topic)
            quiet = worst_lag(flow, topic, healthy)
            write(source, topic, (Sent(p, os.urandom(4 * LIMIT_BYTES)) for p in range(PARTITIONS)))
            failed: Callable[[], bool] = lambda: all(  # noqa: E731
                mirror.lines(f"ERROR .*partition={topic}-{p} ") for p in range(PARTITIONS)
            )
            until(failed, FLOW_S, "ten failed partitions", alive=mirror)
            struck = worst_lag(flow, topic, healthy)
            log.warning("T15: the others' worst lag: %d records before, %d after", quiet, struck)
            # Two seconds' worth, which a busy machine may take.
            assert struck < 2 * quiet + 2 * RATE
            load.wait_acked(REFUSED)
        truth = read(source, topic)
        others = {p: one for p, one in truth.items() if p >= PARTITIONS}
        wait_for_all(mirror, flow, topic, leave_out=range(PARTITIONS))
        copy = read(target, remote)
        assert_equal(others, {p: copy[p] for p in others})
        for p in range(PARTITIONS):
            assert copy[p].records == truth[p].records[: len(copy[p].records)]
            assert len(copy[p].records) < len(truth[p].records)
        assert len(mirror.lines("ERROR")) == PARTITIONS
    set_config(target, remote, "max.message.bytes", "100000")
    with Mirror(flow.file, name="cured") as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
        assert not mirror.complaints()
