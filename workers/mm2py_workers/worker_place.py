"""Where the workers of this machine and user serve REST, so that commands ask the worker of their
file.

Flow: worker -> ``WorkerPlace.begin``, later ``open`` (one small JSON file per process, locked while
it lives) -> command -> ``find_worker`` -> address. A file whose lock is free was left by a killed
worker and is ignored.
"""

import fcntl
import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from typing import Final, cast, final
from urllib.parse import urlsplit

from mm2py.errors import UsageError

log = logging.getLogger(__name__)

STATE_DIR: Final = "MM2PY_STATE_DIR"
"""Environment variable: a directory that worker and commands share, instead of the user's own."""

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]", "::1")
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - addresses that are replaced, not bound


@dataclass(frozen=True, slots=True)
class _PlaceEntry:
    file: str
    url: str


@final
class WorkerPlace:
    """The entry of one worker process.

    Args:
        file: its mirror maker file.
        environ: where directories are named.
    """

    def __init__(self, file: str, environ: Mapping[str, str] = os.environ) -> None:
        self._file = str(Path(file).resolve())
        self._environ = environ
        self._open: TextIOWrapper | None = None
        self._path: Path | None = None

    def begin(self) -> None:
        """Write that this process runs; what cannot be written is logged, no more."""
        directory = _directory(self._environ)
        name = f"{sha256(self._file.encode()).hexdigest()[:16]}-{os.getpid()}.json"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(directory):
                return
            self._path = directory / name
            self._open = self._path.open("w", encoding="utf-8")
            # The system frees the lock with the process: an entry without it is dead.
            fcntl.flock(self._open, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.info("commands need --url to find this worker cause=%s", error)
        self.open(())

    def open(self, urls: Sequence[str]) -> None:
        """Write where this process serves users."""
        if self._open is None:
            return
        url = _nearest(urls) if urls else ""
        try:
            # At the place of the former text, which is shorter.
            self._open.seek(0)
            json.dump({"file": self._file, "pid": os.getpid(), "url": url}, self._open)
            self._open.flush()
        except OSError as error:
            log.info("commands need --url to find this worker cause=%s", error)

    def close(self) -> None:
        """Remove the entry; safe without ``open``."""
        opened, self._open = self._open, None
        if opened is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            opened.close()


class NoWorkerError(UsageError):
    """No worker is known here that could be asked."""


def find_worker(file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of the worker of ``file``, or of the only file that workers here run.

    Raises:
        NoWorkerError: none is known, or it does not serve REST yet.
        UsageError: workers of several files run here.
    """
    path = None if file is None else str(file.resolve())
    by_file: dict[str, str] = {}
    for place in _places(_directory(environ)):
        if path in (None, place.file):
            by_file[place.file] = place.url or by_file.get(place.file, "")
    if len(by_file) > 1:
        known = ", ".join(
            f"{name} at {url or '(no REST yet)'}" for name, url in sorted(by_file.items())
        )
        raise UsageError(
            f"workers of several files run here: {known}", remedy="choose one with --file or --url"
        )
    for name, url in by_file.items():
        if url:
            return url
        raise NoWorkerError(
            f"the worker of {name} has not opened REST yet",
            remedy="try again in a moment; its log says why if that lasts",
        )
    of_file = "" if file is None else f" of {file}"
    raise NoWorkerError(
        f"no worker{of_file} of this user is known on this machine",
        remedy="start it, or give the address of one with --url or MM2PY_URL (a worker logs it "
        "as 'rest listens public=')",
    )


def _directory(environ: Mapping[str, str]) -> Path:
    named = environ.get(STATE_DIR)
    if named:
        return Path(named)
    runtime = environ.get("XDG_RUNTIME_DIR")
    return (
        Path(runtime) / "mm2py" if runtime else Path(tempfile.gettempdir()) / f"mm2py-{os.getuid()}"
    )


def _is_ours(directory: Path) -> bool:
    """Whether only this user writes there: commands send passwords to the address of an entry."""
    status = directory.lstat()
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    )


def _places(directory: Path) -> Iterator[_PlaceEntry]:
    try:
        if not _is_ours(directory):
            return
        paths = sorted(directory.glob("*.json"))
    except OSError:
        return
    for path in paths:
        place = _read(path)
        if place is not None:
            yield place


def _read(path: Path) -> _PlaceEntry | None:
    try:
        with path.open(encoding="utf-8") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # its worker lives
            else:
                return None
            document: object = json.load(opened)
    except (OSError, ValueError):
        return None
    members = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    file, url = members.get("file"), members.get("url")
    return _PlaceEntry(file, url) if isinstance(file, str) and isinstance(url, str) else None


def _nearest(urls: Sequence[str]) -> str:
    """Return the address for commands of this machine."""
    for url in urls:
        if urlsplit(url).hostname in _LOOPBACK:
            return url
    parts = urlsplit(urls[0])
    if parts.hostname in _ANY:
        return parts._replace(netloc=f"localhost:{parts.port}").geturl()
    return urls[0]
