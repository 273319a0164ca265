"""Topics that appear one after the other: tasks are restarted seldom, and the others are copied meanwhile."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Load, Sent, ends, wait_for_progress, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

NEW = 60
PARTITIONS = 4
TASKS = 2


def test_topics_that_appear_one_after_the_other_are_collected_and_hold_up_no_other(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    prefix = unique("many")
    old = f"{prefix}-old"
    create_topic(region_a, old, PARTITIONS)
    flow = write_flow(tmp_path, region_a, region_b, f"{prefix}.*", {"tasks.max": str(TASKS)})
    names = [f"{prefix}-{number:03}" for number in range(NEW)]
    pauses: list[float] = []

    def watch(over: threading.Event) -> None:
        seen, since = -1, time.monotonic()
        while not over.wait(0.05):
            now, there = time.monotonic(), sum(ends(region_b, flow.remote(old)).values())
            if there != seen:
                pauses.append(now - since)
                seen, since = there, now

    with Mirror(flow.file) as mirror:
        mirror.wait_ready(90)
        with Load(region_a, old, PARTITIONS, rate=400):
            wait_for_progress(mirror, flow, old)
            started = len(mirror.lines("source task started"))
            over = threading.Event()
            watcher = threading.Thread(target=watch, args=(over,))
            watcher.start()
            for name in names:
                create_topic(region_a, name, 1)
                write(region_a, name, [Sent(0, b"x")])
            for name in reversed(names):
                until(lambda: ends(region_b, flow.remote(name)) == {0: 1}, 90, name, alive=mirror)  # noqa: B023 - called here
            over.set()
            watcher.join()
        restarts = len(mirror.lines("source task started")) - started
        print(f"restarts={restarts} longest_pause_s={max(pauses):.2f}")  # noqa: T201
        assert restarts <= 8 * TASKS
        assert mirror.stop() == 0
