"""What lanes of the tests run: importable, so that a worker finds them."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path


def double(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Return twice the number."""
    return {"twice": 2 * int(str(lane["number"])), "process": os.getpid()}


def die_once(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Kill the own worker at the first attempt."""
    mark = Path(str(lane["mark"]))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": "second"}


def fail(_lane: Mapping[str, object]) -> Mapping[str, object]:
    """Raise."""
    raise ValueError("lane is wrong")


def until_killed(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Run until the job is cancelled."""
    Path(str(lane["mark"])).touch()
    time.sleep(120)
    return {}


def until_there(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Wait for a file, where the lane names one."""
    mark, end = Path(str(lane["mark"])), time.monotonic() + 90
    while lane["mark"] and not mark.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return {}


def where_pyspark_is(_lane: Mapping[str, object]) -> Mapping[str, object]:
    """Return the file of the pyspark that runs this."""
    import pyspark

    return {"file": pyspark.__file__}
