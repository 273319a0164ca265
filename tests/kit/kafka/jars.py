"""The jars of Kafka: committed list -> parallel download -> user cache, every hash checked.

Three groups: ``broker`` (one Kafka broker), ``tools`` (that, plus MirrorMaker 2, Connect and the console
tools) and ``compiler`` (the Eclipse compiler, which needs no JDK). ``MM2PY_KAFKA_HOME`` (an unpacked Kafka)
replaces the first two, ``MM2PY_MAVEN_URL`` the address they come from, ``MM2PY_CACHE`` the cache.
Resolves nothing: scripts/resolve_jars.py does that for the maintainer.
"""

import functools
import hashlib
import json
import os
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mm2py.errors import ConfigError, Mm2pyError, RetriableError

Group = Literal["broker", "tools", "compiler"]

KAFKA_VERSION: Final = "4.3.1"
_PARTS: Final[Mapping[Group, tuple[str, ...]]] = {
    "broker": ("broker",),
    "tools": ("broker", "tools"),
    "compiler": ("compiler",),
}
_THREADS: Final = 8
_TRIES: Final = 3
_TIMEOUT_S: Final = 30
_CHUNK_BYTES: Final = 1 << 17
_OFFLINE_REMEDY: Final = (
    "check the network, or set MM2PY_MAVEN_URL to a repository that can be reached, "
    "or MM2PY_KAFKA_HOME to an unpacked Kafka"
)


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the committed list."""

    coordinate: str  # group:artifact:version
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the cache and in the repository."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def repository_path(self) -> str:
        """Path below a Maven repository's address."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


def cache_dir() -> Path:
    """Return the user's cache folder of this product; it may not exist yet."""
    if chosen := os.environ.get("MM2PY_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mm2py"


def jars_of(group: Group) -> list[Jar]:
    """Return the committed list of a group."""
    path = Path(__file__).parent / f"jars-{KAFKA_VERSION}.json"
    groups: Mapping[str, Mapping[str, str]] = json.loads(path.read_text(encoding="utf-8"))["groups"]
    return [Jar(c, digest) for part in _PARTS[group] for c, digest in groups[part].items()]


def fetch_jars(group: Group) -> list[Path]:
    """Return the jars of a group, fetching what the cache lacks; the order is stable.

    Several threads and processes may do so at once.

    Raises:
        RetriableError: The repository cannot be reached.
        ConfigError: A jar is not there or is not the one of the list, or MM2PY_KAFKA_HOME is no Kafka.
    """
    home = os.environ.get("MM2PY_KAFKA_HOME")
    if home and group != "compiler":
        return _unpacked_kafka(Path(home).expanduser())
    return list(_fetch_group(group, cache_dir() / "jars", os.environ.get("MM2PY_MAVEN_URL", "")))


def fetch(jars: list[Jar], folder: Path, base_address: str = "") -> list[Path]:
    """Bring ``jars`` into ``folder``; those already there are checked and kept if they are right."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the jar cache {folder}: {error.strerror}",
            remedy="set MM2PY_CACHE to a folder that you may write to",
        ) from error
    with ThreadPoolExecutor(_THREADS) as pool:
        intact = list(pool.map(_is_intact, [folder / jar.file_name for jar in jars], jars))
        missing = [jar for jar, present in zip(jars, intact, strict=True) if not present]
        if missing:
            _download_all(missing, folder, base_address or _default_address(), pool)
    return [folder / jar.file_name for jar in jars]


@functools.cache
def _fetch_group(group: Group, folder: Path, base_address: str) -> tuple[Path, ...]:
    return tuple(fetch(jars_of(group), folder, base_address))


def _unpacked_kafka(home: Path) -> list[Path]:
    found = sorted((home / "libs").glob("*.jar"))
    if not any(jar.name.startswith("kafka_2.") for jar in found):
        raise ConfigError(
            f"MM2PY_KAFKA_HOME={home} holds no libs/kafka_2.*.jar",
            remedy="point it at an unpacked Kafka 4.x, or unset it to fetch the pinned jars",
        )
    return found


def _default_address() -> str:
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
    except ImportError as error:
        raise ConfigError(
            "the address of the Maven repository is not known: the package jgo is not installed",
            remedy="run make setup, or set MM2PY_MAVEN_URL or MM2PY_KAFKA_HOME",
        ) from error
    return MAVEN_CENTRAL_URL


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _download_all(
    jars: list[Jar], folder: Path, base_address: str, pool: ThreadPoolExecutor
) -> None:
    base = base_address.rstrip("/")
    if not base.startswith(("https://", "http://", "file://")):
        raise ConfigError(
            f"MM2PY_MAVEN_URL={base_address} is no https, http or file address",
            remedy="write it with its scheme, as in https://host/path",
        )
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    stop = threading.Event()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Kafka jars", total=len(jars))

        def one(jar: Jar) -> Mm2pyError | None:
            if stop.is_set():
                return None
            try:
                _download(jar, folder, f"{base}/{jar.repository_path}")
            except Mm2pyError as error:
                stop.set()
                return error
            progress.advance(bar)
            return None

        failures = [error for error in pool.map(one, jars) if error is not None]
    if failures:
        raise failures[0]


def _download(jar: Jar, folder: Path, address: str) -> None:
    """Fetch one jar under a temporary name; it gets its own once its hash is right."""
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{jar.file_name}-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            found = _retried(lambda: _copy_hashing(address, file), jar)
        if found != jar.sha256:
            raise ConfigError(
                f"{address} has sha256 {found}, the pinned list says {jar.sha256}",
                remedy="the repository serves another file: check MM2PY_MAVEN_URL and proxies",
            )
        temporary.chmod(0o644)
        temporary.replace(folder / jar.file_name)
    finally:
        temporary.unlink(missing_ok=True)


def _retried(attempt: Callable[[], str], jar: Jar) -> str:
    last: OSError | None = None
    for _ in range(_TRIES):
        try:
            return attempt()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                raise ConfigError(
                    f"the repository answers {error.code} for {jar.coordinate} ({error.url})",
                    remedy="check MM2PY_MAVEN_URL: it must be a Maven repository that has this jar",
                ) from error
            last = error
        except OSError as error:  # URLError, time-outs, resets
            last = error
    reason = getattr(last, "reason", last)
    raise RetriableError(f"cannot fetch {jar.coordinate}: {reason}", remedy=_OFFLINE_REMEDY)


def _copy_hashing(address: str, file: BinaryIO) -> str:
    """Write what ``address`` holds into ``file`` from its start; return the sha256 of it."""
    file.seek(0)
    file.truncate()
    digest = hashlib.sha256()
    # The scheme was checked by _download_all.
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        announced = answer.headers.get("Content-Length")
        while chunk := answer.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if announced is not None and file.tell() != int(announced):
        raise ConnectionError(f"the answer ended after {file.tell()} of {announced} bytes")
    return digest.hexdigest()
