"""Runs and compiles Java classes with the pinned jars."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.errors import FatalError
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.jars import Group, fetch_jars

LIGHT_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_STDERR_CHARS: Final = 2_000


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


def java_command(
    main_class: str,
    *args: str,
    group: Group = "tools",
    jvm_args: Sequence[str] = (),
    classpath: Sequence[Path] = (),
) -> list[str]:
    """Return the command line that runs a class of the jars; ``classpath`` comes before the jars."""
    jars = os.pathsep.join(str(path) for path in (*classpath, *fetch_jars(group)))
    java = str(find_java().executable)
    return [java, *LIGHT_JVM, *jvm_args, "-cp", jars, main_class, *args]


def run_java(
    main_class: str,
    *args: str,
    group: Group = "tools",
    classpath: Sequence[Path] = (),
    stdin: str = "",
    timeout_s: float = 120,
) -> JavaResult:
    """Run a class of the jars to its end; text goes in and out as UTF-8.

    Raises:
        FatalError: It did not end within ``timeout_s``; it is killed.
    """
    command = java_command(
        main_class,
        *args,
        group=group,
        jvm_args=("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"),
        classpath=classpath,
    )
    try:
        done = subprocess.run(
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


def compile_java(sources: Sequence[Path], into: Path) -> None:
    """Compile Java 17 sources against the jars of the tools; a JRE is enough."""
    jars = os.pathsep.join(str(path) for path in fetch_jars("tools"))
    files = [str(source) for source in sources]
    options = ["-17", "-proc:none", "-nowarn", "-encoding", "UTF-8", "-d", str(into), "-cp", jars]
    compiler = "org.eclipse.jdt.internal.compiler.batch.Main"
    run_java(compiler, *options, *files, group="compiler").check()
