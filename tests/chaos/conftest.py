"""Clusters behind a line that the test can delay, stall and cut; everything else is the integration tests'."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration import setups
from tests.integration.far_regions import Rig, far_pair
from tests.integration.mirror_process import Mirror

Unique = Callable[[str], str]
setup = setups.setup


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """Shared by the chaos tests, which leave the lines healed and without delay."""
    with far_pair() as pair:
        yield pair


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers as their users do: what is measured for minutes begins with nothing loaded."""
    monkeypatch.setattr(Mirror, "FORKED", False)


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no fault behind."""
    yield
    if "rig" in request.fixturenames:
        rig: Rig = request.getfixturevalue("rig")
        rig.heal()
