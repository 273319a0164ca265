"""A target topic that another program writes to while lanes copy: its records and ours both once, ours in order, also after kills."""

import signal

import pytest

from tests.integration.mirror_process import until
from tests.integration.setups import Setup
from tests.integration.traffic import Load, Logs, ends, read, write
from tests.spark.backfill_process import BackfillProcess, command, taken_over, thaw
from tests.spark.test_archive import old_records

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("lanes_session"),
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
    setup: Setup,
) -> None:
    topic = setup.topic_on_both("shared", 2, config={"retention.ms": "-1"})
    write(setup.a, topic, [*old_records(RECORDS, 0), *old_records(RECORDS, 1)], batch_size=500)
    flow = setup.flow(topic, IDENTITY)

    other = Load(setup.b, topic, 2, rate=100, value_bytes=40, mark=FOREIGN)

    def ours() -> int:
        return sum(ends(setup.b, topic).values()) - other.acked

    def moved() -> None:
        before = ours()
        until(lambda: ours() > before + 500, 240, "progress of the lanes")

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
    truth, copy = read(setup.a, topic), read(setup.b, topic)
    assert values(copy, foreign=False) == values(truth, foreign=False)
    assert sum(len(it) for it in values(copy, foreign=True).values()) == other.acked
