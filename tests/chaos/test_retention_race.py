"""T8: retention runs ahead of a paused flow again and again; the ledger is exact every time."""

import logging
import random
import secrets

import pytest

from tests.integration.far_regions import Rig
from tests.integration.ledger_scenes import PARTITIONS, build_scene, entries, frozen_round
from tests.integration.mirror_process import running
from tests.integration.setups import Setup
from tests.kit.regions import COMPACTING, NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

ROUNDS = 4
"""Of five partitions each, so that either kind of topic sees twenty random cuts."""


@pytest.mark.parametrize("kind", ["compacted", "transactional"])
def test_the_ledger_is_exact_after_twenty_random_cuts_ahead_of_a_paused_flow(
    setup: Setup, rig: Rig, new_region: NewRegion, kind: str
) -> None:
    source = new_region("racing", properties=COMPACTING)
    scene = build_scene(
        kind, setup.folder, source, rig.target.region, setup.unique("race"), setup.create_topic
    )
    seed = secrets.randbelow(1 << 30)
    log.warning("T8 %s: seed %d", kind, seed)
    chance = random.Random(seed)
    scene.write(source, scene.topic, 0)
    with running(scene.flow.file, ready=False) as mirror:
        scene.wait_for_copy(mirror)
        scene.wait_until_committed(mirror)
        lost = [frozen_round(scene, mirror, chance, turn) for turn in range(1, ROUNDS + 1)]
    log.warning("T8 %s: lost and reported by round %s", kind, lost)
    # Of a compacted topic a cut may take holes alone.
    assert sum(lost) if kind == "compacted" else all(lost)
    assert len(entries(scene.flow)) == ROUNDS * PARTITIONS
