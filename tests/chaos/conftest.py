"""Clusters behind a line that the test can delay, stall and cut; everything else is the integration tests'."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from mm2py.embedded.region import Listener, Region, start_regions
from mm2py.testing.delay_proxy import DelayProxy
from tests.integration.conftest import CreateTopic, NewRegion, create_topic, new_region, unique

__all__ = [
    "CreateTopic",
    "Far",
    "NewRegion",
    "Rig",
    "Unique",
    "create_topic",
    "new_region",
    "unique",
]

LISTENER = "FAR"
Unique = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Far:
    """A cluster and the line to it; its plain listener is the tests' own way past the line."""

    region: Region
    line: DelayProxy


@dataclass(frozen=True, slots=True)
class Rig:
    """Source and target, each behind a line of its own."""

    source: Far
    target: Far


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """Shared by the chaos tests, which leave the lines healed and without delay."""
    with ExitStack() as stack:
        found: list[Far] = []
        for name in ("far-source", "far-target"):
            line = stack.enter_context(DelayProxy())
            listener = Listener(LISTENER, "PLAINTEXT", advertise=line.front)
            region = Region(name, listeners=[listener])
            stack.callback(region.close)
            found.append(Far(region, line))
        start_regions(*(far.region for far in found))
        yield Rig(*found)


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no fault behind."""
    yield
    if "rig" in request.fixturenames:
        rig: Rig = request.getfixturevalue("rig")
        for far in (rig.source, rig.target):
            far.line.heal()
            far.line.set_round_trip(0.0)
