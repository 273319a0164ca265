"""How often a process that moves records collects garbage; shared by workers and task hosts."""

import gc
from typing import Final

__all__ = ["freeze_garbage_collector"]

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""The hot path makes no cycles; the default of 700 objects collects hundreds of times a second."""


def freeze_garbage_collector() -> None:
    """Take what start-up made out of the collector's sight, and let it look rarely.

    Worth about 2 us per batch (real-broker.md 8): long-lived objects are never walked again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
