"""A target that is cut off ten times with two workers under load: no stored position goes back."""

import logging
from pathlib import Path

import pytest

from tests.chaos.conftest import Unique
from tests.integration.far_regions import Rig
from tests.integration.target_outages import PARTITIONS, outages
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

LENGTHS_S = (8.0, 15.0) * 5


def test_ten_outages_with_two_workers_put_no_position_back_and_lose_nothing(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("outages")
    create_topic(rig.source.region, topic, PARTITIONS)
    outcome = outages(rig, tmp_path, topic, LENGTHS_S)
    log.warning("ten outages: %s", outcome)
    assert (outcome.lost, outcome.steps_back) == (0, [])
