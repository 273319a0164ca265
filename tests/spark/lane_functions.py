"""What lanes of the tests run: importable, so that a worker finds them."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pyarrow as pa

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import AuthenticationError, RequestTimedOutError
from mm2py.testing.waiting import eventually
from mm2py_jobs.copy.backfill_lane import run_backfill_lane
from mm2py_jobs.copy.dealing import rate_of
from mm2py_jobs.copy.rate_desk import part_of_rate
from mm2py_jobs.verify.open_keys import local_folders


def double(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Return twice the number."""
    return {"twice": 2 * int(str(lane["number"])), "process": os.getpid()}


def where_it_spills(_lane: Mapping[str, object]) -> Mapping[str, object]:
    """Return where verify would put what memory does not take, and which of it is there."""
    return {"folders": [it for it in local_folders() if Path(it).is_dir()]}


def die_once(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Kill the own worker at the first attempt."""
    mark = Path(str(lane["mark"]))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": "second"}


def die_of_three(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Kill the own process, however often, where the lane has partition 3."""
    if lane["lost"]:
        return {"partitions": [str(lane["lost"])]}
    partitions = cast("list[int]", lane["partitions"])
    if 3 in partitions:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"partitions": partitions}


def copy_and_die_of_one(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Copy, and kill the own process where the lane has partition 1 of a topic."""
    partitions = cast("list[tuple[str, int]]", lane["partitions"])
    if not lane["lost"] and any(number == 1 for _, number in partitions):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_backfill_lane(lane)


def fail(_lane: Mapping[str, object]) -> Mapping[str, object]:
    """Raise."""
    raise ValueError("lane is wrong")


def refused(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Be refused at the first attempt, where the lane names a file for it; then wait as ``until_there``."""
    if lane["refused"] and not (mark := Path(str(lane["refused"]))).exists():
        mark.touch()
        login = AuthenticationError("b1:9092 refused the login of user mm")
        raise RequestTimedOutError(f"no broker of cluster A can be reached: {login}") from login
    return until_there(lane)


def kill_executor(_lane: Mapping[str, object]) -> Mapping[str, object]:
    """Kill the JVM of the own executor: it started the daemon that started the worker, which forks for a last attempt."""
    number, name = os.getpid(), ""
    while name != "java":
        _, _, rest = Path(f"/proc/{number}/stat").read_text().rpartition(")")
        number = int(rest.split()[1])
        name = Path(f"/proc/{number}/comm").read_text().strip()
    os.kill(number, signal.SIGKILL)
    time.sleep(120)
    return {}


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


def until_alone(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Wait for half of the rate, and the first lane then for all of it, which it has when the others have ended."""
    return asyncio.run(_until_alone(lane))


async def _until_alone(lane: Mapping[str, object]) -> Mapping[str, object]:
    (name,) = cast("list[str]", lane["names"])
    folder, limit = Path(str(lane["folder"])), float(str(lane["limit"]))
    rate = rate_of(lane, SYSTEM_CLOCK)
    assert rate is not None
    async with part_of_rate(lane, [rate]):
        await eventually(lambda: rate.bytes_per_s == limit / 2, within_s=90)
        (folder / name).touch()
        if name == "a":
            await eventually(lambda: len(list(folder.iterdir())) == 3, within_s=90)
            await eventually(lambda: rate.bytes_per_s == limit, within_s=90)
    return {"partitions": [{"name": name}]}


def beside_another(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Wait until two lanes have begun, this one too; return when it began and ended, by the clock of this machine."""
    (name,) = cast("list[str]", lane["names"])
    begin, folder = time.monotonic(), Path(str(lane["folder"]))
    (folder / name).touch()
    asyncio.run(eventually(lambda: len(list(folder.iterdir())) >= 2, within_s=90))
    return {"partitions": [{"name": name, "begin": begin, "end": time.monotonic()}]}


def until_marked(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Wait as ``until_there``; answer as lanes of ``answers_of`` do."""
    return {"partitions": [], **until_there(lane)}


def held_rows(
    mark: str, first: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what hands the rows of a task on, for ``mapInArrow``: from number ``first`` on when a file is there."""

    def handed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            if rows >= first:
                until_there({"mark": mark})
            rows += batch.num_rows
            yield batch

    return handed_on
