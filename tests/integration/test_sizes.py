"""Sizes that users have: from one task to two hundred, wide topics, many topics at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster_changes import create_topics
from tests.integration.mirror_process import until, write_flow
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.traffic import Sent, producer, wait_for_copy, write
from tests.kit.regions import Pair

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 200
TOPICS = 100
UP_S = 120.0


@pytest.fixture
def topic(setup: Setup, regions: Pair) -> str:
    return setup.topic("wide", PARTITIONS, on=regions[0])


def one_each(round_: int) -> Iterator[Sent]:
    """One record for every partition of the wide topic."""
    return (Sent(partition, f"round {round_}".encode()) for partition in range(PARTITIONS))


def test_a_flow_copies_with_any_number_of_tasks(regions: Pair, tmp_path: Path, topic: str) -> None:
    flow = write_flow(tmp_path, *regions, topic, {"tasks.max": "12"})
    with Workers(flow) as workers:
        (worker,) = workers.start("only")
        for round_, tasks in enumerate((12, 1, 10, 11, 50, 200, 12)):
            if round_:
                assert workers.calmly(worker, "/config", "PATCH", {"tasks.max": str(tasks)}) == 200
            workers.until_spread(tasks=tasks, over=1)
            write(flow.source, topic, one_each(round_))
            wait_for_copy(worker, flow, topic, timeout_s=UP_S)
        workers.stop()


def test_a_hundred_topics_get_their_first_record_at_once(setup: Setup, regions: Pair) -> None:
    prefix = setup.unique("many")
    topics = [f"{prefix}-{number}" for number in range(TOPICS)]
    create_topics(regions[0], topics)
    flow = write_flow(setup.folder, *regions, f"{prefix}-.*", {"tasks.max": "11"})
    with Workers(flow) as workers:
        (worker,) = workers.start("only")
        workers.until_spread(tasks=11, over=1)
        client = producer(flow.source)
        for name in topics:
            client.produce(name, b"first", partition=0)
        assert client.flush(UP_S) == 0
        # A topic is in use when its first record was acknowledged: a hundred states at once.
        used = {flow.remote(name) for name in topics}
        until(lambda: workers.topics(worker) >= used, UP_S, "all topics in use", alive=worker)
        for name in (topics[0], topics[-1]):
            wait_for_copy(worker, flow, name, timeout_s=UP_S)
        workers.stop()
