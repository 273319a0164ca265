"""A flow with ``auto.offset.reset=latest``: what was there before is left out, what comes later never."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, committed_positions, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def test_what_arrives_while_no_task_runs_is_copied_and_so_is_a_topic_made_meanwhile(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    prefix = unique("latest")
    idle, empty, late = (f"{prefix}-{name}" for name in ("idle", "empty", "late"))
    create_topic(region_a, idle, 1)
    create_topic(region_a, empty, 1)
    write(region_a, idle, [Sent(0, b"old")] * 5)
    reset = {"{source}->{target}.source.consumer.auto.offset.reset": "latest"}
    flow = write_flow(tmp_path, region_a, region_b, f"{prefix}.*", reset)

    def copies(topic: str) -> list[bytes | None]:
        logs = read(region_b, flow.remote(topic))
        return [record.value for log in logs.values() for record in log.records]

    with Mirror(flow.file) as mirror:
        mirror.wait_ready(90)
        until(
            lambda: committed_positions(flow, idle) == {0: 4},
            30,
            "the start is stored",
            alive=mirror,
        )
        until(lambda: committed_positions(flow, empty) == {0: -1}, 30, "an empty start is stored")
        assert mirror.stop() == 0
    for topic in (idle, empty):
        write(region_a, topic, [Sent(0, b"between")] * 3)
    create_topic(region_a, late, 1)
    write(region_a, late, [Sent(0, b"new")] * 4)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready(90)
        expected = {idle: [b"between"] * 3, empty: [b"between"] * 3, late: [b"new"] * 4}
        for topic, values in expected.items():
            until(lambda: copies(topic) == values, 30, topic, alive=mirror)  # noqa: B023 - called here
        assert mirror.stop() == 0
