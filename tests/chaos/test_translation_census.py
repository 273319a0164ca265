"""A million records with holes and aborted transactions, everything restarted, one kill: each offset translates right."""

import logging

import pytest

from tests.integration.ledger_scenes import PARTITIONS, write_compacted
from tests.integration.mirror_process import Mirror
from tests.integration.offset_census import take_census
from tests.integration.setups import Setup
from tests.integration.test_offset_map import PROPERTIES, wait_until_covered
from tests.integration.traffic import copied, read, wait_for_copy, wait_for_progress
from tests.integration.transactions import write_mixed
from tests.kit.regions import COMPACTING, NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1800)]

log = logging.getLogger(__name__)

TURNS, TRANSACTIONS, EACH = 5, 800, 250
KILLED = 2
"""The turn that ends with SIGKILL while records are copied; the others end with the restart of everything."""


async def test_of_a_million_records_every_offset_translates_right_in_both_directions(
    setup: Setup, new_region: NewRegion
) -> None:
    source, target = new_region("source", properties=COMPACTING), new_region("target")
    topic = setup.unique("census")
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    setup.create_topic(source, topic, PARTITIONS, config=config)
    write_compacted(source, topic, 0)
    flow = setup.flow(topic, PROPERTIES, source=source, target=target)
    for turn in range(TURNS):
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            before = copied(flow, topic)
            write_mixed(source, topic, TRANSACTIONS, EACH, turn=turn)
            if turn == KILLED:
                wait_for_progress(mirror, flow, topic, before=before)
                mirror.kill()
                continue
            wait_for_copy(mirror, flow, topic, committed=True, timeout_s=300)
            if turn == TURNS - 1:
                wait_until_covered(mirror, flow, topic)
            assert mirror.stop() == 0
        if turn < TURNS - 1:
            for region in (source, target):
                region.stop()
                region.start()
    truth = read(source, topic, committed=True)
    copy = read(target, flow.remote(topic))
    census = await take_census(flow, topic, truth, copy)
    log.warning("looked up %d offsets, %d wrong", census.asked, census.wrong)
    assert census.asked > 1_500_000
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"
