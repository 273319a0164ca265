"""A home of Spark without pyspark's archive, for JVMs that are started here.

Flow: ``home_without_zip`` around the start of a JVM -> a folder of links below the temporary one,
locked while this process lives -> those of dead processes are removed first. A lock, not a process
id: containers that share the folder have numbers of their own.
"""

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PREFIX: Final = "mm2py-spark-home-"


@contextmanager
def home_without_zip() -> Generator[None]:
    """Let a JVM that is started here find pyspark where this Python has it.

    It puts ``SPARK_HOME/python/lib/pyspark.zip`` before all else on its Python workers' path
    (``PythonUtils.sparkPythonPath``), which compile what they load of it at each start: 1.3 s of
    CPU.
    """
    from pyspark.find_spark_home import _find_spark_home  # pyright: ignore[reportPrivateUsage]

    if "SPARK_HOME" in os.environ:
        yield
        return
    os.environ["SPARK_HOME"] = str(_links_to(_find_spark_home()))
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@cache
def _links_to(home: str) -> Path:
    """Return a folder with everything of Spark's home but its Python, for as long as this process
    lives."""
    place = Path(tempfile.gettempdir())
    remove_abandoned(place)
    folder = own_folder(place)
    atexit.register(_remove, folder, os.getpid())
    for part in Path(home).iterdir():
        if part.name != "python":
            (folder / part.name).symlink_to(part)
    return folder


def own_folder(place: Path) -> Path:
    """Return a new folder below ``place`` that no other process removes while this one lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        try:
            _lock(folder)  # the system frees it with the process, killed or not
        except (BlockingIOError, FileNotFoundError):
            continue  # another process came between, and has removed it as abandoned
        except OSError as error:
            # Of a file system without locks, where no other process gets one either.
            log.debug("folder is not locked folder=%s cause=%s", folder, error)
        return folder


def remove_abandoned(place: Path) -> None:
    """Remove the folders of this user below ``place`` whose processes are gone."""
    for folder in place.glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = _lock(folder)
        except OSError:
            continue  # its process lives, or another one is removing it
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed, or this process has ended.

    Raises:
        BlockingIOError: another process has locked it.
        FileNotFoundError: it is not there any more.
        OSError: it is no folder, or cannot be locked.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.lstat()  # another one may just have removed what was opened here
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(folder: Path, owner: int) -> None:
    # A child that was forked ends with the same handlers.
    if os.getpid() == owner:
        with suppress(OSError):
            shutil.rmtree(folder)
