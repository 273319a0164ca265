"""Whatever crashes, freezes or is cut off between any two awaits: one owner, no lost change, everything runs again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.control_plane_model import Play
from tests.property.effort import examples


@pytest.mark.timeout(300)
@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_the_invariants_of_the_control_plane_hold_in_every_play(seed: int) -> None:
    Play(seed).run()
