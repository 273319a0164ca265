"""Twenty failovers and failbacks under load with drivers killed at every step, and ten regions lost; names of the fault list T12, T13."""

import logging
from typing import Final

import pytest

from tests.integration.failovers import Stage, secured_pair
from tests.integration.setups import Setup
from tests.integration.test_failover import lose_and_return, move_there_and_back

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(5_400)]

log = logging.getLogger(__name__)

ROUNDS: Final = 20
LOSSES: Final = 10
GAP_S: Final = 10.0
STEPS: Final = ("FENCE", "DRAIN", "GROUPS", "VERIFY", "SWITCH", "TAIL", "REVERSE")


def test_twenty_failovers_and_failbacks_with_killed_drivers_lose_nothing(setup: Setup) -> None:
    kills = [(STEPS[n % 7], STEPS[(n + 3) % 7]) for n in range(ROUNDS - 1)] + [("", "")]
    with secured_pair("chaos") as pair:
        gaps = move_there_and_back(
            Stage(*pair, setup.unique, setup.create_topic, setup.folder), kills=kills
        )
    log.warning("clients could not write for %s s", [round(it, 1) for it in gaps])
    assert len(gaps) == 2 * ROUNDS
    # A driver that was killed is started again by the test: on a machine with other work that takes seconds of its own.
    assert max(gaps[-2:]) <= GAP_S
    assert sorted(gaps)[int(len(gaps) * 0.9)] <= GAP_S


@pytest.mark.parametrize("number", range(LOSSES))
def test_the_tail_of_a_lost_region_is_listed_exactly_and_kept(setup: Setup, number: int) -> None:
    with secured_pair(f"lost{number}") as pair:
        stage = Stage(*pair, setup.unique, setup.create_topic, setup.folder)
        lose_and_return(stage, tail=2 + 13 * number, restarts=bool(number % 2))
