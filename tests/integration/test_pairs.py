"""Scenes of pairs: the ones that can lose, double, skip or lie and that no other test has; ``tests/chaos`` has more of them."""

from typing import Final

import pytest

from tests.integration.pairs import Stage, play
from tests.integration.setups import Setup
from tests.kit.kafka.region import Region

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

SCENES: Final = [
    ("plain", "group", "frozen worker", "recreated"),
    ("plain", "paused topic", "recreated", "killed"),
    ("exactly-once", "silent target", "recreated"),
    ("transforms", "frozen worker", "recreated"),
    ("sink", "frozen worker", "recreated"),
    ("same names", "group", "created by the flow back"),
]


@pytest.mark.parametrize("scene", SCENES, ids=" + ".join)
def test_what_is_promised_holds_where_features_meet(
    setup: Setup, own_regions: tuple[Region, Region], scene: tuple[str, ...]
) -> None:
    kind, *ingredients = scene
    play(
        Stage(own_regions, kind, setup.unique("pairs"), setup.folder, setup.create_topic),
        ingredients,
    )
