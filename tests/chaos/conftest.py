"""Clusters behind a line that the test can delay, stall and cut; everything else is the integration tests'."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.far_regions import Rig, far_pair

Unique = Callable[[str], str]


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """Shared by the chaos tests, which leave the lines healed and without delay."""
    with far_pair() as pair:
        yield pair


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no fault behind."""
    yield
    if "rig" in request.fixturenames:
        rig: Rig = request.getfixturevalue("rig")
        rig.heal()
