"""A lane is one run of pytest over many files: which come first, which quarter, what is repeated, what decides nothing.

Order: the slowest files of the last run first, so that no process is left with one of them at the end; what each
took is in ``file-seconds.json`` of the cache. ``--quarter K``: the files whose name's hash says so. ``--repeats N``:
at most N failed tests run again, alone, in a process each; where all pass the run is green and names them as flaky.
``@pytest.mark.quarantine(cause, date)``: runs after the others under ``--repeats``, is reported, decides nothing.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, cast, final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.kit.hermetic import SESSION

QUARTERS: Final = 4
FAULTS: Final = "faults"
_SALT: Final = 133
"""With it the quarters of the files of test-faults took 950 to 1,030 process-seconds each when it was chosen."""
_SECONDS: Final = "file-seconds.json"
_LIMIT_S: Final = 900.0
"""Of a repeat, for a test whose own time limit does not end it."""
AGAIN_S: Final = 60.0
_SPARK: Final = "tests/spark/"
_TAIL_LINES: Final = 30


class _Node(Protocol):
    """A process of pytest-xdist, with what it sent at its end."""

    workeroutput: Mapping[str, object]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lane")
    group.addoption("--quarter", type=int, default=None, help="only every fourth file: 0 to 3")
    group.addoption("--repeats", type=int, default=0, help="failed tests that are repeated at most")
    group.addoption("--quarantined", action="store_true", help="run what is in quarantine, too")


def pytest_configure(config: pytest.Config) -> None:
    """Register the lane; in a process of pytest-xdist it only orders and selects."""
    config.addinivalue_line(
        "markers", "quarantine(cause, date): runs after the others, decides nothing"
    )
    config.pluginmanager.register(Lane(config), "mm2py-lane")


@final
class _OneSpark(LoadFileScheduling):
    """A file is for one process, and so is Spark: each process with a session has a JVM and Python workers of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid.startswith(_SPARK) else super()._split_scope(nodeid)


@final
class Lane:
    """One run; the process that users see repeats and reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: dict[str, str] = {}
        """By test: the first line of its failure."""
        self._broken = False
        self._quarantined: set[str] = set()
        self._said: list[str] = []
        if not self._is_worker:
            _freeze_seconds()

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Import no file of another quarter, nor one that has no test of a lane's mark: each process of the run would."""
        if not collection_path.match("test_*.py"):
            return None
        quarter: int | None = self._config.getoption("quarter")
        name = collection_path.relative_to(self._config.rootpath).as_posix()
        if quarter is not None and quarter_of(name) != quarter:
            return True
        marks: str = self._config.getoption("markexpr") or ""
        if marks.startswith(FAULTS) and FAULTS not in collection_path.read_text("utf-8"):
            return True
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select the quarter, leave out what is in quarantine, put the slowest files first."""
        quarter: int | None = self._config.getoption("quarter")
        known = _last_seconds()
        chosen: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        guesses: defaultdict[str, float] = defaultdict(float)
        for item in items:
            file = _file(item.nodeid)
            guesses[file] = max(guesses[file], _guess(item))
            if quarter is not None and quarter_of(file) != quarter:
                left_out.append(item)
            elif item.get_closest_marker("quarantine") and not self._config.getoption(
                "quarantined"
            ):
                self._quarantined.add(item.nodeid)
                left_out.append(item)
            else:
                chosen.append(item)
        if left_out:
            self._config.hook.pytest_deselected(items=left_out)
        weights = {it: known.get(it, guess) for it, guess in guesses.items()}
        if self._has_one_spark:
            together = {it: seconds for it, seconds in weights.items() if it.startswith(_SPARK)}
            weights |= dict.fromkeys(together, sum(together.values()))
        chosen.sort(key=lambda it: -weights[_file(it.nodeid)])
        items[:] = chosen

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> LoadFileScheduling | None:
        """Where the files that need Spark are few, one process gets them all; the fault tests have more than one can do."""
        return _OneSpark(config, log) if self._has_one_spark else None

    @property
    def _has_one_spark(self) -> bool:
        marks: str = self._config.getoption("markexpr") or ""
        return not marks.startswith(FAULTS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Repeat the end of a test's time limit: one that is raised in a task of an event loop is lost with the task."""
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s, AGAIN_S)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, object, object]:
        """Stop that time while a failure is put into words: on a busy machine its end hit pytest itself, and ended the run."""
        left_s, again_s = signal.setitimer(signal.ITIMER_REAL, 0)
        report = yield
        if left_s or again_s:
            signal.setitimer(signal.ITIMER_REAL, left_s or again_s, again_s)
        if isinstance(report, pytest.TestReport):
            # pytest-xdist ends the run at half of a surrogate pair that was logged.
            report.sections = [
                (name, text.encode(errors="backslashreplace").decode())
                for name, text in report.sections
            ]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Give the process's log back as it was: commands set it up, and levels are changed while a worker runs."""
        root = logging.getLogger()
        handlers, levels = [*root.handlers], {it: it.level for it in _loggers()}
        result = yield
        root.handlers[:] = handlers
        for logger in _loggers():
            level = levels.get(logger, logging.NOTSET)
            if logger.level != level:  # setting one empties the caches of all
                logger.setLevel(level)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the time of each file; print a failure when it happens: a run that CI ends prints nothing at its end."""
        self._seconds[_file(report.nodeid)] += report.duration
        if report.failed and not self._is_worker:
            if hasattr(report, "node"):
                print(f"\n{report.nodeid}: {report.when}\n{report.longreprtext}", file=sys.stderr)  # noqa: T201
            self._failed.setdefault(report.nodeid, _first_line(report))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _Node) -> None:
        """Take over what a process of pytest-xdist left out."""
        output = getattr(node, "workeroutput", {})
        self._quarantined.update(cast("list[str]", output.get("quarantined", [])))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is not repeated: its tests have not run."""
        self._broken |= report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Repeat what failed; the exit code is that of the repeats."""
        if self._is_worker:
            output = cast("dict[str, object]", getattr(self._config, "workeroutput", {}))
            output["quarantined"] = sorted(self._quarantined)
            return
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            _store_seconds(self._seconds)
        repeats: int = self._config.getoption("repeats") or 0
        if not repeats:
            return
        has_failed = exitstatus == pytest.ExitCode.TESTS_FAILED and not self._broken
        if has_failed and self._pass_alone(repeats):
            session.exitstatus = pytest.ExitCode.OK
        for test in sorted(self._quarantined):
            passed, _ = self._run_alone(test)
            self._said.append(f"quarantine: {test}: {'passed' if passed else 'failed'}")

    def pytest_unconfigure(self) -> None:
        """Say what was repeated in the last lines of the run."""
        for line in self._said:
            print(line)  # noqa: T201

    def _pass_alone(self, most: int) -> bool:
        if not self._failed:
            return False
        if len(self._failed) > most:
            self._said.append(
                f"{len(self._failed)} tests failed, more than {most}: none is repeated"
            )
            return False
        well = True
        for test, line in self._failed.items():
            passed, tail = self._run_alone(test)
            if passed:
                self._said.append(f"flaky: {test} ({line})")
            else:
                well = False
                self._said += [*tail, f"failed twice: {test} ({line})"]
        return well

    def _run_alone(self, test: str) -> tuple[bool, list[str]]:
        """Run one test in a process of its own; return whether it passed, and the end of what it printed."""
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--quarantined", test]
        environ = {it: value for it, value in os.environ.items() if not it.startswith("PYTEST_")}
        try:
            done = subprocess.run(
                words,
                cwd=self._config.rootpath,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return False, [f"the repeat did not end within {_LIMIT_S:.0f} s"]
        lines = (done.stdout + done.stderr).splitlines()
        # One that is skipped now has not passed.
        passed = done.returncode == 0 and any(line.startswith("1 passed") for line in lines)
        return passed, lines[-_TAIL_LINES:]


def quarter_of(name: str) -> int:
    """Return which quarter of the files one is in: 0 to 3."""
    return zlib.crc32(f"{_SALT}:{name}".encode()) % QUARTERS


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else report.longreprtext
    lines: Iterator[str] = (line.strip() for line in text.splitlines() if line.strip())
    return f"{report.when}: {next(lines, 'no text')[:160]}"


def _loggers() -> list[logging.Logger]:
    known = logging.Logger.manager.loggerDict.values()
    return [logging.getLogger(), *(it for it in known if isinstance(it, logging.Logger))]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _guess(item: pytest.Item) -> float:
    """A file that no run has measured: its tests' time limit says roughly how long they take."""
    return _limit_s(item) / 10


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker is not None and marker.args else item.config.getini("timeout")
    return float(str(limit or _LIMIT_S))


# -- seconds of files ------------------------------------------------------------------------------


def _freeze_seconds() -> None:
    """Copy what the last run measured: all processes of a run must order by the same numbers."""
    with suppress(OSError):
        frozen = Path(os.environ[SESSION]) / _SECONDS
        frozen.write_bytes((Path(os.environ["MM2PY_CACHE"]) / _SECONDS).read_bytes())


def _last_seconds() -> dict[str, float]:
    return _read(Path(os.environ[SESSION]) / _SECONDS)


def _read(path: Path) -> dict[str, float]:
    try:
        return cast("dict[str, float]", json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _store_seconds(measured: Mapping[str, float]) -> None:
    """Note what the files of this run took, beside what others did."""
    path = Path(os.environ["MM2PY_CACHE"]) / _SECONDS
    known = _read(path)
    for name, seconds in measured.items():
        # A run of a single test says little of its file.
        known[name] = round(max(seconds, known.get(name, 0.0) * 0.8), 1)
    with suppress(OSError):
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(dict(sorted(known.items())), indent=0), "utf-8")
        fresh.replace(path)
