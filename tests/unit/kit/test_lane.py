"""A failed test is repeated alone: one that fails once is flaky, one that fails twice is red; quarantine decides nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.kit.hermetic import ROOT
from tests.kit.lane import QUARTERS, quarter_of

pytestmark = pytest.mark.timeout(300)

ONCE: Final = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "the machine was busy"
"""
ALWAYS: Final = "def test_fails():\n    assert not 'wrong'\n"
BEHIND: Final = """
import pytest
@pytest.fixture
def broker():
    yield
    raise AssertionError("a broker is left behind")
def test_leaves_something(broker): pass
"""
HANGS: Final = """
import pytest, threading
@pytest.mark.timeout(0.3)
def test_hangs(): threading.Event().wait()
"""
STANDS: Final = """
import asyncio, pytest
from tests.kit import lane
lane.AGAIN_S = 0.3
@pytest.mark.timeout(0.3)
def test_stands():
    async def run():
        async def works():
            while True:
                pass
        task = asyncio.create_task(works())  # in which the first time limit ends
        await asyncio.wait([task])
        await asyncio.Event().wait()
    asyncio.run(run())
"""
SKIPS: Final = """
import pytest
from pathlib import Path
def test_skips():
    seen = Path(__file__).with_name("seen")
    if seen.exists(): pytest.skip("the tool is gone")
    seen.touch()
    assert not 'wrong'
"""
QUARANTINED: Final = """
import pytest
@pytest.mark.quarantine("the broker forgets it", "2026-11-28")
def test_unsteady(): assert not 'wrong'
def test_well(): pass
"""
LOGS: Final = """
import logging
def test_leaves_a_level_and_a_handler():
    logging.getLogger("mm2py").setLevel("DEBUG")
    logging.getLogger().addHandler(left := logging.NullHandler())
    left.name = "left"
def test_finds_none():
    assert logging.getLogger("mm2py").level == 0
    assert "left" not in [it.name for it in logging.getLogger().handlers]
"""
PLAIN: Final = " ".join(
    f"-p no:{it}" for it in ("schemathesis", "hypothesispytest", "randomly", "anyio")
)
"""Each takes longer to load than these tests."""
FLAKY: Final = "flaky: test_it.py::test_fails_once (call: AssertionError: the machine"
NINE: Final = "".join(f"def test_{it}(): assert 0\n" for it in range(9))


def run(folder: Path, body: str, *words: str) -> tuple[int, str]:
    """Run pytest over one file in a tree of its own."""
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.kit.lane"]\n')
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {PLAIN}\n")
    (folder / "test_it.py").write_text(body)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MM2PY_CACHE": str(folder)}
    environ = {it: value for it, value in environ.items() if not it.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_it.py", "--repeats", "8", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("processes", "bodies", "code", "said"),
    [
        (0, [ONCE, LOGS], 0, [FLAKY, "2 passed"]),
        (2, [ONCE, QUARANTINED], 0, [FLAKY, "quarantine: test_it.py::test_unsteady: failed"]),
        (
            0,
            [ALWAYS, BEHIND, HANGS, STANDS, SKIPS],
            1,
            [
                "failed twice: test_it.py::test_fails (call: AssertionError",
                "failed twice: test_it.py::test_leaves_something (teardown: Assertion",
                "failed twice: test_it.py::test_hangs (call: Failed: Timeout",
                "failed twice: test_it.py::test_stands (call: Failed: Timeout",
                "failed twice: test_it.py::test_skips",
            ],
        ),
        (0, [NINE], 1, ["9 tests failed, more than 8"]),
    ],
    ids=["flaky and logs", "flaky and quarantine", "failed twice", "nine"],
)
def test_what_fails_is_repeated_alone_and_named(
    tmp_path: Path, processes: int, bodies: list[str], code: int, said: list[str]
) -> None:
    ended, printed = run(tmp_path, "\n".join(bodies), "-n", str(processes))
    assert (ended, [it for it in said if it not in printed]) == (code, []), printed
    assert printed.count("flaky: ") == said.count(FLAKY), printed


def test_a_file_that_cannot_be_imported_is_not_hidden_by_a_flaky_test(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    ended, printed = run(tmp_path, ONCE, "-n", "2", "test_broken.py")
    assert (ended != 0, "test_broken.py" in printed) == (True, True), printed


def test_every_file_is_in_one_quarter_and_each_has_some() -> None:
    files = [str(it.relative_to(ROOT)) for it in (ROOT / "tests").rglob("test_*.py")]
    assert {quarter_of(name) for name in files} == set(range(QUARTERS))
