"""Memory of a process that moves records for months; shared by workers and task hosts.

The hot path makes no reference cycles, so the collector looks rarely; closed connections are
cycles, so once a minute it scans everything if there is anything new. What was freed goes back to
the system: an outage leaves holes.
"""

import ctypes
import gc
import sys
from contextlib import suppress
from itertools import count
from typing import Final

from mm2py.clock import Clock

LOADED_S: Final = 1.5
"""After this long modules and configs are read, which leaves holes of some MB in all."""
SETTLE_S: Final = 5.0
"""After this long what start-up made is there."""

EVERY_S: Final = 60.0
FEW: Final = 100
"""Objects made and not freed since the last look: one closed connection leaves about as many."""
SURE_LOOKS: Final = 10
"""Every so many minutes it looks in any case."""
GC_THRESHOLDS: Final = (50_000, 50, 100)
"""The default of 700 objects collects hundreds of times a second."""

_KEPT_BYTES: Final = 16 * 1024 * 1024
_LARGEST_KEPT_BYTES: Final = 2 * 1024 * 1024
"""Above a joined batch, below the larger receive buffers, which their pool keeps."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


async def settle(clock: Clock) -> None:
    """Take what start-up made out of the collector's sight, then ``collect`` each minute in which
    objects came; never returns.

    Worth about 2 us per batch: long-lived objects are never walked again.
    """
    await clock.sleep(LOADED_S)
    collect(0)
    await clock.sleep(SETTLE_S - LOADED_S)
    collect(0)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    for look in count(1):
        await clock.sleep(EVERY_S)
        # Looking at the objects of 1,000 topics takes 60 ms: not while hardly any were made since.
        if look % SURE_LOOKS == 0 or gc.get_count() > (FEW, 0, 0):
            collect()


def collect(kept_bytes: int = _KEPT_BYTES) -> None:
    """Free unreachable objects, and give free pages back; takes milliseconds."""
    gc.collect()
    give_back(kept_bytes)


def give_back(kept_bytes: int = 0) -> None:
    """Give free pages back to the system but for so many bytes."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(kept_bytes)


def keep_freed_memory() -> None:
    """Let malloc keep what joined batches give back: else each one faults its pages in anew.

    Joining 16 batches of 16 KiB takes half of the time then.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
