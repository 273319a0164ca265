"""Scenes of pairs: the ones that can lose, double, skip or lie and that no other test has; ``tests/chaos`` has more of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.pairs import Stage, play
from tests.kit.kafka.region import Region
from tests.kit.regions import CreateTopic

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
    own_regions: tuple[Region, Region],
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
    scene: tuple[str, ...],
) -> None:
    kind, *ingredients = scene
    play(Stage(own_regions, kind, unique("pairs"), tmp_path, create_topic), ingredients)
