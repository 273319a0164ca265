"""How many examples a property is tried with: its own number, or ``FUZZ_EXAMPLES`` of ``make fuzz``."""

import os
from typing import Final

__all__ = ["examples"]

_FUZZ: Final = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def examples(usual: int) -> int:
    """Return the number for ``settings(max_examples=...)``."""
    return _FUZZ or usual
