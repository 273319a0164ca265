"""Scenes of pairs: the ones that can lose, double, skip or lie and that no other test has; `make chaos` has more of them."""

from typing import Final

import pytest

from tests.integration.pairs import Stage, play
from tests.integration.setups import Setup
from tests.kit.kafka.region import Region
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

SCENES: Final = [
    ("plain", "group", "frozen worker", "recreated"),
    ("plain", "paused topic", "recreated", "killed"),
    ("exactly-once", "silent target", "recreated"),
    ("transforms", "frozen worker", "recreated"),
    ("sink", "frozen worker", "recreated"),
    ("same names", "group", "created by the flow back"),
]
MORE: Final = [
    ("plain", "group", "silent target", "recreated"),
    ("plain", "group", "paused topic", "recreated"),
    ("plain", "group", "killed", "recreated"),
    ("plain", "frozen worker", "truncated"),
    ("plain", "paused topic", "truncated"),
    ("plain", "silent target", "truncated"),
    ("plain", "silent target", "recreated", "killed"),
    ("exactly-once", "group", "frozen worker", "recreated"),
    ("exactly-once", "paused topic", "truncated", "killed"),
    ("exactly-once", "frozen worker", "truncated"),
    ("transforms", "silent target", "recreated"),
    ("transforms", "paused topic", "truncated"),
    ("transforms", "group", "paused topic", "recreated", "killed"),
    ("sink", "silent target", "recreated"),
    ("sink", "frozen worker", "truncated"),
    ("sink", "paused topic", "truncated", "killed"),
    ("sink", "silent target", "truncated"),
    ("committed", "group", "open transaction", "killed"),
    ("committed", "open transaction", "truncated"),
    ("committed", "silent target", "open transaction", "frozen worker"),
    ("same names", "group", "silent target", "killed"),
    ("same names", "frozen worker", "truncated"),
    ("same names", "group", "recreated"),
    ("same names", "recreated", "killed"),
    ("plain", "recreated", "killed", "killed"),
    ("exactly-once", "open transaction", "killed"),
    ("committed", "group", "paused topic", "open transaction"),
    ("same names", "group", "open transaction", "killed"),
    ("same names", "group", "paused topic", "truncated"),
    ("transforms", "group", "open transaction", "killed"),
    ("sink", "open transaction", "frozen worker"),
    ("committed", "group", "hanging transaction", "killed"),
    ("committed", "group", "hanging transaction", "recreated"),
    ("committed transforms", "group", "hanging transaction", "killed"),
    ("committed sink", "hanging transaction", "killed"),
    ("plain", "silent target", "recreated", "truncated"),
    ("exactly-once", "frozen worker", "recreated", "truncated"),
    ("transforms", "paused topic", "recreated", "truncated", "killed"),
    ("sink", "silent target", "recreated", "truncated"),
]


@pytest.mark.parametrize(
    "scene", matrix([(it,) for it in SCENES], [(it,) for it in MORE]), ids=" + ".join
)
def test_what_is_promised_holds_where_features_meet(
    setup: Setup, own_regions: tuple[Region, Region], scene: tuple[str, ...]
) -> None:
    kind, *ingredients = scene
    play(
        Stage(own_regions, kind, setup.unique("pairs"), setup.folder, setup.create_topic),
        ingredients,
    )
