"""A target topic that another program writes to while lanes copy: its records and ours both once, ours in order, also after kills."""

import signal
from pathlib import Path

import pytest

from tests.integration.mirror_process import until, write_flow
from tests.integration.traffic import Load, Logs, ends, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import BackfillProcess, command, taken_over, thaw
from tests.spark.test_archive import Unique, old_records

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(500),
]

IDENTITY = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "{source}.consumer.isolation.level": "read_committed",
}
FOREIGN = b"foreign"
RECORDS = 20_000


def values(logs: Logs, *, foreign: bool) -> dict[int, list[bytes | None]]:
    """Return the values of a topic by partition, the other program's or ours."""
    return {
        partition: [it.value for it in log.records if (FOREIGN in (it.value or b"")) is foreign]
        for partition, log in logs.items()
    }


def test_another_writer_of_the_target_neither_loses_nor_doubles_a_record_under_kill_and_zombie(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("shared")
    for region in (region_a, region_b):
        create_topic(region, topic, 2, config={"retention.ms": "-1"})
    write(region_a, topic, [*old_records(RECORDS, 0), *old_records(RECORDS, 1)], batch_size=500)
    flow = write_flow(tmp_path, region_a, region_b, topic, IDENTITY)

    other = Load(region_b, topic, 2, rate=100, value_bytes=40, mark=FOREIGN)

    def ours() -> int:
        return sum(ends(region_b, topic).values()) - other.acked

    def moved() -> None:
        before = ours()
        until(lambda: ours() > before + 500, 120, "progress of the lanes")

    with BackfillProcess(flow, "--rate-limit", "60000") as running:
        running.wait_copying()
        # Not before: a target that is not empty is refused.
        with other:
            moved()
            killed = running.signal_worker(signal.SIGKILL)
            assert killed
            taken_over(flow, killed)
            moved()
            zombie = running.orphan()
            taken_over(flow, zombie)
            moved()
            thaw(zombie)
            running.kill()
            ended = command(flow, "run", "--master", "local[2]")
            assert ended.code == 0, ended.err
    truth, copy = read(region_a, topic), read(region_b, topic)
    assert values(copy, foreign=False) == values(truth, foreign=False)
    assert sum(len(it) for it in values(copy, foreign=True).values()) == other.acked
