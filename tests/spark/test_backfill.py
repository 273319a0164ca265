"""Backfills beside a running flow, on real brokers: one exact seam per partition, nothing lost, nothing doubled."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mm2py.embedded.region import KafkaAddress
from tests.integration.conftest import CreateTopic
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write
from tests.spark.backfill_process import BackfillProcess, command

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

OLD_MS = 1_600_000_000_000
SLOW_FLOW = {"flow.max.bytes.per.second": "20000"}
"""The live flow gets nowhere by itself."""


def history(topic_partitions: int, records: int, size: int = 200) -> list[Sent]:
    return [
        Sent(
            i % topic_partitions,
            b"%d-" % i + b"x" * size,
            b"k%d" % i,
            (("n", b"%d" % i),),
            OLD_MS + i,
        )
        for i in range(records)
    ]


@pytest.fixture
def old_orders(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Callable[[str], str],
) -> tuple[Flow, str]:
    """A flow, and a topic with 9 MB of history from 2020 on its source."""
    topic = unique("orders")
    create_topic(region_a, topic, 3, config={"retention.ms": "-1"})
    write(region_a, topic, history(3, 40_000))
    return write_flow(tmp_path, region_a, region_b, topic, SLOW_FLOW), topic


def test_a_running_flow_continues_behind_a_backfill_whose_worker_and_driver_are_killed(
    old_orders: tuple[Flow, str],
) -> None:
    flow, topic = old_orders
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with BackfillProcess(flow, "--rate-limit", "600000") as first:
            mirror.wait_for_log("left_to_backfill=3", 120)
            before = copied(flow, topic)
            until(lambda: copied(flow, topic) > before + 3_000, 120, "progress of the lanes")
            assert first.signal_worker(signal.SIGKILL)
            before = copied(flow, topic)
            until(
                lambda: copied(flow, topic) > before + 3_000, 120, "progress of the second attempt"
            )
            write(flow.source, topic, history(3, 300))  # behind the end of the backfill
            first.kill()
        stopped_at = copied(flow, topic)
        assert stopped_at < 40_000
        ended = command(flow, "run", "--master", "local[2]", "--rate-limit", "100000000")
        assert ended.code == 0, ended.err
        assert ended.report["state"] == "DONE"
        for partition in ended.partitions:
            # The source is dense and nothing else writes: the offsets of both sides are the same.
            assert partition["target_from"] == partition["from"]
            assert partition["target_to"] == partition["to"] >= 13_333
        write(flow.source, topic, history(3, 30))
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.lines("partitions of a backfill are copied from here on")
        assert not mirror.lines("Traceback")
    status = command(flow, "status")
    assert status.report["state"] == "DONE"
