"""Where an archive lies: a local folder, or any path that pyarrow.fs or fsspec reaches.

Flow: path -> ``ArchiveStore`` -> whole files, written once, never changed. ``publish`` lets one of
two writers of a name win where the file system has hard links. Where it has none, as object stores,
both may publish in the same instant, each under a name of its own: neither replaces the other's
file, and readers join them (``archive_format.chain_of``). ``put_if_absent`` lets one of two win
there too: a writer puts a claim beside the name, and writes the file only if it then finds neither
that nor another claim. A claim that stays, as of a killed writer, stops only those who would write
something else. A file that is not published is an orphan, and harmless.
"""

import errno
import importlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast, final

from pyarrow import fs, parquet

from mm2py.errors import ConfigError, FatalError
from mm2py.observability.logging import cause_text
from mm2py_jobs.verify.open_keys import local_folders

T = TypeVar("T")
R = TypeVar("R")

_REQUESTS: Final = 32
"""At the same time: an object store takes its 50 ms for each of the thousands that a plan needs."""

_WITHOUT_LINKS: Final = frozenset(
    (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK)
)
"""What file systems without hard links answer: FUSE over a bucket, FAT, some network mounts."""

_CLAIM: Final = ".claim"
AGREE_S: Final = 10.0
"""How long a writer waits for one that has put a claim: for a few requests to the store."""
_TURN_MS: Final = 300
_PIECE_BYTES: Final = 1024 * 1024
DATE: Final = "date="
"""How folders within that of a partition begin."""

Agrees = Callable[[bytes], bool]
"""Whether it does no harm if the writer of a claim, which has these bytes, also writes the file."""

_WHOLE: Final = frozenset(("s3", "s3a", "gcs", "gs", "abfs", "az", "adl", "oss", "memory"))
"""Stores of pyarrow and fsspec that show a file only when all of it is written, and have no
folders."""


class _UrlToFs(Protocol):
    def __call__(self, url: str, /) -> tuple[object, str]: ...


def _never(_claim: bytes) -> bool:
    return False


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do ``work`` for all items, many of them at the same time; the first error, in their order,
    ends it."""
    threads = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="archive")
    try:
        return list(threads.map(work, items))
    finally:
        threads.shutdown(cancel_futures=True)


def local_file() -> BufferedIOBase:
    """Return a new file without a name on the task's local disk; ``OSError``: it takes none."""
    return tempfile.TemporaryFile(dir=secrets.choice(local_folders()))


@contextmanager
def on_local_disk() -> Generator[None]:
    """Say which disk it is that a task needs, and that does not take what is written:
    ``FatalError``."""
    try:
        yield
    except OSError as error:
        raise FatalError(
            f"a file of the archive cannot be written below {', '.join(local_folders())}: "
            f"{cause_text(error)}",
            remedy="what was published before is complete; make room there, or let spark.local.dir "
            "name another disk, and run the same command again",
        ) from error


@final
class ArchiveStore:
    """The files below one path; names are relative to it, with ``/``.

    Raises:
        ConfigError: no file system is known for the path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._system, self._root = _open(path)
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError)
        """What the file system raises; libraries below fsspec have errors of their own."""
        if isinstance(self._system, fs.PyFileSystem):
            self._errors = (Exception,)

    @property
    def _is_local(self) -> bool:
        return isinstance(self._system, fs.LocalFileSystem)

    @property
    def _is_whole(self) -> bool:
        return not _WHOLE.isdisjoint(re.findall(r"\w+", self._system.type_name))

    @property
    def _fresh(self) -> fs.FileSystem:
        """The file system without what fsspec remembers of folders: other processes write there."""
        if isinstance(self._system, fs.PyFileSystem):
            self._system.handler.fs.invalidate_cache()
        return self._system

    def read(self, name: str) -> bytes:
        """Return a whole file; ``FatalError``: it is not there, or cannot be read."""
        with self.reading(name):
            if isinstance(self._system, fs.PyFileSystem):
                return self._system.handler.fs.cat_file(self._at(name))  # one request
            with self._system.open_input_stream(self._at(name)) as stream:
                return stream.read()

    @contextmanager
    def reading(self, name: str) -> Generator[None]:
        """Say which file it is that is not there, or cannot be read: ``FatalError``."""
        try:
            yield
        except FatalError:
            raise
        except self._errors as error:
            raise FatalError(
                f"archive file {name} below {self.path}: {cause_text(error)}"
            ) from error

    def columns(self, name: str, names: Sequence[str]) -> list[dict[str, object]]:
        """Return the rows of columns of a Parquet file, without reading the others; ``FatalError``:
        it is not there, cannot be read, or is none."""
        with self.reading(name), self._system.open_input_file(self._at(name)) as file:
            return parquet.ParquetFile(file).read(columns=list(names)).to_pylist()

    def footer(self, name: str) -> parquet.FileMetaData:
        """Return what a Parquet file says of itself; ``FatalError``: as ``columns``."""
        with self.reading(name), self._system.open_input_file(self._at(name)) as file:
            return parquet.ParquetFile(file).metadata

    def opened(self, name: str) -> BufferedIOBase:
        """Return a file, or a copy of it on the local disk; ``FatalError``: as ``read``, or the
        local disk takes no more."""
        with self.reading(name):
            if self._is_local:
                return Path(self._at(name)).open("rb")
            with on_local_disk():
                copy = local_file()
            with self._system.open_input_stream(self._at(name)) as stream:
                while piece := stream.read(_PIECE_BYTES):
                    with on_local_disk():
                        copy.write(piece)
                        copy.flush()
        return copy

    def put_if_absent(self, name: str, data: bytes, agrees: Agrees = _never) -> bool:
        """Write a file unless there is one of that name; False if there is.

        Raises:
            ConfigError: the claim of another writer stays that does not agree.
            FatalError: it cannot be written.
        """
        return self._guarded(name, lambda: self._put(name, data, agrees))

    def publish(self, stem: str, kind: str, data: bytes) -> bool:
        """Write ``<stem>.<kind>`` unless there is one, False if there is; without hard links it is
        ``<stem>.<token>.<kind>``. ``FatalError``: it cannot be written."""
        return self._guarded(stem, lambda: self._publish(stem, kind, data))

    def replace(self, name: str, data: bytes | BufferedIOBase) -> None:
        """Write a file, in place of the one that is there; a crash may leave none. It is seen when
        it is whole, and durable as far as the store allows that. ``FatalError``: it cannot be
        written; a full disk, for one."""
        self._guarded(name, lambda: self._replace(name, data))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder, sorted; none if it does not exist.
        ``FatalError``: it cannot be read."""
        return sorted(it.base_name for it in self._listed(folder))

    def files(self, folder: str) -> list[str]:
        """Return the files in a folder and in those of its dates, ``date=<date>/<name>``, sorted by
        their own names, hidden ones among the others; raises as ``names``."""
        found: list[tuple[str, str]] = []
        for it in self._listed(folder, recursive=True):
            parent, name = it.path.split("/")[-2:]
            if it.is_file:
                path = f"{parent}/{name}" if parent.startswith(DATE) else name
                found.append((name.lstrip("."), path))
        return [path for _, path in sorted(found)]

    def _listed(self, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        try:
            try:
                return self._fresh.get_file_info(selector)
            except NotADirectoryError:
                # Of a store without folders: its first file was written between two requests.
                return self._fresh.get_file_info(selector)
        except self._errors as error:
            raise FatalError(
                f"archive folder {folder or '.'} below {self.path}: {cause_text(error)}"
            ) from error

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        folder, _, base = name.rpartition("/")
        return base in self.names(folder)

    def delete(self, name: str) -> None:
        """Remove a file, if it is still there; on a local disk the last one of a date with its
        folder. ``FatalError``: it cannot be removed."""
        try:
            with suppress(FileNotFoundError):
                self._system.delete_file(self._at(name))
        except self._errors as error:
            raise FatalError(
                f"archive file {name} cannot be removed below {self.path}: {cause_text(error)}",
                remedy="let it be removed there, and run the same command again",
            ) from error
        if self._is_local and f"/{DATE}" in name:
            with suppress(OSError):
                Path(self._at(name)).parent.rmdir()

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _guarded(self, name: str, work: Callable[[], T]) -> T:
        folder = self._at(name).rpartition("/")[0]
        try:
            while True:
                if not self._is_whole:  # nor is a bucket made whose name is misspelt
                    self._system.create_dir(folder, recursive=True)
                try:
                    return work()
                except FileNotFoundError:
                    # Another run has removed the last file of a date, with its folder, meanwhile.
                    if not self._is_local or Path(folder).exists():
                        raise
        except (ConfigError, FatalError):
            raise
        except self._errors as error:
            raise FatalError(
                f"archive file {name} cannot be written below {self.path}: {cause_text(error)}",
                remedy="what was published before is complete; make room and run the same "
                "command again",
            ) from error

    def _write(self, name: str, data: bytes | BufferedIOBase) -> None:
        source = BytesIO(data) if isinstance(data, bytes) else data
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        try:
            if not self._is_local:
                # An object store completes the upload when the stream is closed, and has no file
                # before.
                with self._system.open_output_stream(self._at(name)) as stream:
                    shutil.copyfileobj(source, stream, _PIECE_BYTES)
                return
            with Path(self._at(name)).open("wb") as file:
                shutil.copyfileobj(source, file, _PIECE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(FatalError, *self._errors):
                # Closed after an error, it may be there in part; whole, and under its own name, it
                # is what a twin has written.
                there = self._fresh.get_file_info(self._at(name)).size if self._is_whole else None
                if there is None or there < size:
                    self.delete(name)
            raise

    def _put(self, name: str, data: bytes, agrees: Agrees) -> bool:
        if (is_new := self._linked(name, data)) is not None:
            return is_new
        deadline_s = time.monotonic() + AGREE_S
        while not self.exists(name):
            is_late = time.monotonic() > deadline_s  # who lives has ended, or has withdrawn
            others = self._put_alone(name, data, agrees if is_late else _never)
            if not others or name in others:
                return not others
            if is_late and self.exists(others[0]):
                raise ConfigError(
                    f"another run has begun to write {name} below {self.path} with other "
                    f"settings, or before the topic was created again, as {others[0]} says, and "
                    "has not ended it",
                    remedy="run its command again; where it was killed and cannot, or is not "
                    f"wanted, remove {others[0]} below {self.path}",
                )
            time.sleep(secrets.randbelow(_TURN_MS) / 1000)  # both have withdrawn
        return False

    def _put_alone(self, name: str, data: bytes, agrees: Agrees) -> list[str]:
        """Write a file unless a writer that does not agree writes it at the same time; return what
        is there of those.

        Of two each has put its claim before it looks for the other's, so that one at least finds
        it; a claim is removed only after the file was written, or after its writer gave up. That of
        another is never removed: its writer may be frozen, and write later.
        """
        folder = name.rpartition("/")[0]
        mine = f"{name}.{secrets.token_hex(4)}{_CLAIM}"
        try:
            self._write(mine, data)
            there = (f"{folder}/{it}" if folder else it for it in self.names(folder))
            others = [
                it
                for it in there
                if it == name
                or (
                    it.startswith(f"{name}.")
                    and it.endswith(_CLAIM)
                    and it != mine
                    and self._bars(it, agrees)
                )
            ]
            if not others and self.exists(name):
                others = [name]  # put, and its claim removed, while the folder was listed
            if not others:
                self._replace(name, data)
        finally:
            with suppress(FatalError):  # of a bucket where nothing may be deleted
                self.delete(mine)
        return others

    def _bars(self, claim: str, agrees: Agrees) -> bool:
        try:
            return agrees is _never or not agrees(self.read(claim))
        except FatalError:
            return True  # gone since it was listed: its file may be there

    def _publish(self, stem: str, kind: str, data: bytes) -> bool:
        if (is_new := self._linked(f"{stem}.{kind}", data)) is not None:
            return is_new
        folder, _, begin = stem.rpartition("/")
        if any(it.startswith(f"{begin}.") and it.endswith(f".{kind}") for it in self.names(folder)):
            return False
        self._replace(f"{stem}.{secrets.token_hex(4)}.{kind}", data)
        return True

    def _linked(self, name: str, data: bytes) -> bool | None:
        """Write a file unless there is one, in one step; None where there are no hard links."""
        if not self._is_local:
            return None
        temporary = _temporary(name)
        self._write(temporary, data)
        try:
            # POSIX: of two links to one name one fails. A rename would replace what is there.
            os.link(self._at(temporary), self._at(name))
        except FileExistsError:
            # Also where the answer to a first request was lost: a client of NFS asks again.
            return Path(self._at(temporary)).stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            return None
        finally:
            Path(self._at(temporary)).unlink()
        return True

    def _replace(self, name: str, data: bytes | BufferedIOBase) -> None:
        if self._is_whole:
            self._write(name, data)
            return
        temporary = _temporary(name)
        self._write(temporary, data)
        if not self._is_local:
            self.delete(name)  # some move nothing over a file
        self._system.move(self._at(temporary), self._at(name))


def _temporary(name: str) -> str:
    """Return where a file is while it is written: hidden, as Spark and pyarrow read each other file
    of a folder."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.{secrets.token_hex(4)}.tmp"


def _open(path: str) -> tuple[fs.FileSystem, str]:
    if "://" not in path:
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        system, root = fs.FileSystem.from_uri(path)
    except (ValueError, OSError) as error:
        try:
            url_to_fs = cast("_UrlToFs", importlib.import_module("fsspec.core").url_to_fs)
            filesystem, root = url_to_fs(path)
        except (ImportError, ValueError, OSError) as other:
            raise ConfigError(f"{path}: {error}; with fsspec: {other}") from other
        system = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    return system, root.rstrip("/")
