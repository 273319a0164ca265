"""Memory of joined batches stays with the process."""

import platform
import subprocess
import sys

import pytest

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
