"""A target that is away for longer than a session with two workers: no position goes back (short form)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.far_regions import far_pair
from tests.integration.target_outages import PARTITIONS, outages
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

UNDER_WAY = 4_000
"""What eight partitions may have under way and not committed at two outages, at 1,000 records/s."""


def test_no_stored_position_goes_back_and_nothing_is_lost_when_the_target_is_cut_off(
    unique: Callable[[str], str], create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("outage")
    with far_pair() as rig:
        create_topic(rig.source.region, topic, PARTITIONS)
        outcome = outages(rig, tmp_path, topic, (8.0, 15.0))
    assert outcome.positions
    assert (outcome.lost, outcome.steps_back) == (0, []), outcome
    assert outcome.doubled < UNDER_WAY, outcome
