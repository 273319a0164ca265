"""How a process that moves records treats its memory; shared by workers and task hosts."""

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Final

__all__ = ["freeze_garbage_collector", "keep_freed_memory"]

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""The hot path makes no cycles; the default of 700 objects collects hundreds of times a second."""

_KEPT_BYTES: Final = 16 * 1024 * 1024
_LARGEST_KEPT_BYTES: Final = 2 * 1024 * 1024
"""Above a joined batch, below a receive buffer, which its pool keeps."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def freeze_garbage_collector() -> None:
    """Take what start-up made out of the collector's sight, and let it look rarely.

    Worth about 2 us per batch (real-broker.md 8): long-lived objects are never walked again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def keep_freed_memory() -> None:
    """Let malloc keep what joined batches give back: else each one faults its pages in anew.

    Joining 16 batches of 16 KiB takes half of the time then.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
