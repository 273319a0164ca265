"""Memory of a process that moves records: cycles are freed, holes go back, joined batches stay."""

import asyncio
import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2py.testing.clock import FakeClock
from mm2py_workers.process_memory import FEW, SURE_LOOKS, collect, settle

PIECE_BYTES = 100_000
PIECES = 600


class Ring:
    """An object that nothing but itself refers to, as a closed connection and its receiver do."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def test_what_refers_to_itself_alone_is_freed_within_minutes_however_little_is_allocated() -> (
    None
):
    clock = FakeClock()
    settling = asyncio.create_task(settle(clock))
    await clock.advance(10)
    assert gc.get_threshold()[0] > 10_000
    for _ in range(2):
        rings = [Ring() for _ in range(FEW + 1)]
        ring = weakref.ref(rings.pop())
        rings.clear()
        assert ring() is not None
        await clock.advance(60)
        assert ring() is None
    ring = weakref.ref(Ring())
    for _ in range(SURE_LOOKS):
        await clock.advance(60)
    assert ring() is None, "also where hardly anything was made"
    settling.cancel()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_that_were_freed_below_a_living_object_go_back_to_the_system() -> None:
    collect()
    before = resident_bytes()
    pieces = [bytearray(b"x") * PIECE_BYTES for _ in range(PIECES)]
    pinned = pieces[:: PIECES // 10]
    whole = PIECES * PIECE_BYTES
    assert resident_bytes() > before + whole // 2
    pieces.clear()
    collect()
    assert resident_bytes() < before + whole // 2
    assert len(pinned) == 10


SCRIPT = """
from collections import deque
from resource import RUSAGE_SELF, getrusage
from mm2py_workers.process_memory import keep_freed_memory

keep_freed_memory()
batches = deque(maxlen=5)

def join(times):
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(times):
        batches.append(bytearray(256 * 1024))
    batches.clear()
    return getrusage(RUSAGE_SELF).ru_minflt - before

join(10)
print(join(1000))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_the_memory_of_joined_batches_is_not_faulted_in_anew() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert int(ended.stdout) < 100  # 64 pages each, 64,000 together, if it went back every time
