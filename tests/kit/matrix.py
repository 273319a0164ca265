"""Rows of a matrix of features: CI runs one for each value, `make chaos` all."""

from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet


def matrix(
    kept: Sequence[tuple[object, ...]], in_chaos: Sequence[tuple[object, ...]]
) -> list[ParameterSet]:
    """Return the rows for ``parametrize``; those of ``in_chaos`` repeat values that a kept row has."""
    return [pytest.param(*row) for row in kept] + [
        pytest.param(*row, marks=pytest.mark.chaos) for row in in_chaos
    ]
