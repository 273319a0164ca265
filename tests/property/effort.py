"""Chance in tests: the same examples in every ``make test``, fresh ones in ``make fuzz`` (``FUZZ_EXAMPLES``)."""

import os
import secrets
import zlib
from typing import Final

from hypothesis import settings

_FUZZ: Final = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def load_profile() -> None:
    """Set what every property starts from; no deadline, because the machine may be busy.

    What is generated for a function without a course of events is used up soon; ``make fuzz`` runs the rest.
    """
    settings.register_profile(
        "fixed", max_examples=35, derandomize=True, database=None, deadline=None
    )
    settings.register_profile("fuzz", max_examples=_FUZZ or 100, deadline=None, print_blob=True)
    settings.load_profile("fuzz" if _FUZZ else "fixed")


def examples(usual: int, *, share: float = 1.0) -> int:
    """Return the number for ``settings(max_examples=...)``.

    Args:
        usual: the number in ``make test``.
        share: the part of ``FUZZ_EXAMPLES`` that a property gets whose examples take long.
    """
    return max(usual, int(_FUZZ * share)) if _FUZZ else usual


def is_fuzz() -> bool:
    """Whether fresh examples are run, as many as were asked for."""
    return bool(_FUZZ)


def seed_of(test: str) -> int:
    """Return the seed of a test that has no hypothesis: of its name, or a fresh one."""
    return secrets.randbelow(1 << 32) if _FUZZ else zlib.crc32(test.encode())
