"""A restore beside the running flow whose workers are killed and frozen: everything once, in order, and no backfill in between."""

import signal
from pathlib import Path

import pytest

from mm2py_jobs.spark.session import OpenSession
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import assert_equal, copied, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import BackfillProcess, command, taken_over, thaw
from tests.spark.test_archive import Unique, archived, old_records, restored

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(900)]


def test_a_restore_that_is_killed_and_frozen_has_everything_once_and_a_running_flow_continues_behind_it(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    """The flow runs all the time, and would copy the topic from its start if the restore did not hold its partitions."""
    topic = unique("killed")
    flow = write_flow(tmp_path, region_a, region_b, topic, {"flow.max.bytes.per.second": "100000"})
    create_topic(region_a, topic, 2, config={"retention.ms": "-1"})
    write(region_a, topic, [*old_records(30_000, 0), *old_records(30_000, 1)], batch_size=500)
    archived(lanes_session, flow, topic, tmp_path / "archive")
    options = ("--from", str(tmp_path / "archive"), "--rate-limit")

    def moved() -> None:
        before = copied(flow, topic)
        until(lambda: copied(flow, topic) > before + 500, 120, "progress of the restore")

    with BackfillProcess(flow, *options, "100000", words=("restore",)) as first:
        first.wait_copying()
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            moved()
            killed = first.signal_worker(signal.SIGKILL)
            assert killed
            taken_over(flow, killed)
            moved()
            zombie = first.orphan()
            taken_over(flow, zombie)
            moved()
            thaw(zombie)
            moved()
            refused = command(flow, "run")
            assert refused.code == 3
            assert "is running" in refused.err
            first.kill()
            refused = command(flow, "run")
            assert refused.code == 3
            assert "is unfinished" in refused.err
            assert copied(flow, topic) < 60_000
            write(region_a, topic, old_records(300, 1, turn=1))
            report = restored(flow, tmp_path / "archive")
            assert (report["state"], report["records"]) == ("DONE", 60_000)
            truth, copy = wait_for_copy(mirror, flow, topic)
            assert not mirror.lines("Traceback")
            assert mirror.stop() == 0
    assert_equal(truth, copy)
    assert sum(len(it.records) for it in truth.values()) == 60_300
