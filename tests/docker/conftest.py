"""Whether containers can run here; where they cannot, one line says so and the rest is green."""

import os
import shutil
import subprocess
from functools import cache

import pytest


@cache
def why_no_engine() -> str:
    """Say why no containers can run here, "" where they can."""
    docker = shutil.which("docker")
    if docker is None:
        return "there is no docker command"
    questions = [
        ("no container engine answers", (docker, "info", "--format", "{{.ServerVersion}}")),
        ("docker has no compose", (docker, "compose", "version")),
    ]
    for what, command in questions:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode or not done.stdout.strip():
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no answer"]
            return f"{what}: {lines[-1]}"
    return ""


@pytest.fixture(scope="session")
def engine() -> None:
    """Skip what needs containers where none can run."""
    if why_no_engine():
        pytest.skip(why_no_engine())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what did not run."""
    if os.environ.get("MM2PY_TEST_DOCKER") == "1" and why_no_engine():
        terminalreporter.write_line(f"{why_no_engine()}; the tests on containers did not run")
