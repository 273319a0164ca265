"""One huge partition and two hundred small ones, backfilled over lines of 20 ms to both clusters, with a worker killed on the way."""

import logging
import os
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.conftest import Unique
from tests.integration.far_regions import Rig
from tests.integration.mirror_process import until, write_flow
from tests.integration.traffic import copied
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import BackfillProcess
from tests.spark.long_logs import digests, write_many

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
]

log = logging.getLogger(__name__)

HUGE: Final = int(os.environ.get("MM2PY_CHAOS_SPARK_HUGE", "1000000"))
SMALL: Final = 200
ROUND_TRIP_S: Final = 0.02


def test_a_huge_partition_beside_many_small_ones_is_backfilled_over_20_ms(
    rig: Rig, create_topic: CreateTopic, unique: Unique, tmp_path: Path
) -> None:
    source, target, mark = rig.source.region, rig.target.region, unique("far")
    huge, small = f"{mark}-huge", f"{mark}-small"
    create_topic(source, huge, 1, config={"retention.ms": "-1"})
    create_topic(source, small, SMALL, config={"retention.ms": "-1"})
    write_many(source, huge, [HUGE])
    write_many(source, small, [50] * SMALL)
    flow = write_flow(tmp_path, source, target, f"{mark}-.*", rig.bootstrap)
    for far in (rig.source, rig.target):
        far.line.set_round_trip(ROUND_TRIP_S)
    with BackfillProcess(flow) as running:
        until(lambda: copied(flow, huge) > HUGE // 20, 300, "progress of the huge partition")
        killed = running.signal_worker(signal.SIGKILL)
        log.warning("worker %d was killed, copied %d", killed, copied(flow, huge))
        ended = running.wait(600)
    assert ended.code == 0, ended.err
    assert len(ended.partitions) == SMALL + 1
    assert sum(it["records"] for it in ended.partitions) == HUGE + 50 * SMALL
    for topic in (huge, small):
        assert digests(source, topic) == digests(target, flow.remote(topic))
