"""Every offset translates right, both ways: holes, aborted transactions, restarts and a kill."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.ledger_scenes import COMPACTING, PARTITIONS, write_compacted
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.offset_census import take_census
from tests.integration.traffic import committed_positions, ends, read, wait_for_copy
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]

PROPERTIES = {
    "{source}.consumer.isolation.level": "read_committed",
    "sync.topic.configs.enabled": "false",
}


@pytest.fixture(scope="module")
def compacting() -> Iterator[Region]:
    """A cluster that compacts at once; no test stops it."""
    with Region("compacting", properties=COMPACTING) as region:
        yield region


def wait_until_covered(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Wait until the stored positions are the log ends, markers and aborted records behind the last one included."""
    wanted = {p: end - 1 for p, end in ends(flow.source, topic).items()}
    until(
        lambda: committed_positions(flow, topic) == wanted,
        90,
        lambda: f"{wanted}, there is {committed_positions(flow, topic)}",
        alive=mirror,
    )


async def test_every_offset_translates_right_in_both_directions(
    compacting: Region,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("census")
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    create_topic(compacting, topic, PARTITIONS, config=config)
    write_compacted(compacting, topic, 0)
    flow = write_flow(tmp_path, compacting, region_b, topic, PROPERTIES)
    for turn in range(4):
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            write_mixed(compacting, topic, 20, 50, turn=turn)
            if turn == 2:
                until(lambda: ends(region_b, flow.remote(topic)), 90, "the copy", alive=mirror)
                mirror.kill()
                continue
            wait_for_copy(mirror, flow, topic, committed=True)
            if turn == 3:
                wait_until_covered(mirror, flow, topic)
            assert mirror.stop() == 0
    truth = read(compacting, topic, committed=True)
    copy = read(region_b, flow.remote(topic))
    census = await take_census(flow, topic, truth, copy)
    assert census.asked > 2_000
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"
