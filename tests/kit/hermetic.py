"""What tests depend on and do not set themselves, set in one place: signals, locale, time zone, folders, limits.

``begin`` runs where tests/conftest.py is loaded, before the tests' modules, in pytest and in each process of
pytest-xdist; whatever these start inherits it. ``scripts/hostile.sh`` runs a command in the opposite of each.
"""

import atexit
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.kit.kafka.jars import cache_dir, fetch_jars

SESSION: Final = "MM2PY_TEST_SESSION"
"""The folder of this run of pytest: HOME and the like of its processes; of the process that made it, and then of its children."""
ROOT: Final = Path(__file__).parents[2]
_OURS: Final = ("CACHE", "KAFKA_HOME", "MAVEN_URL", "JAVA", "NATIVE", "KILL_ROUNDS")
"""Settings of a run of the tests, and those that begin with ``MM2PY_TEST_``, ``_CHAOS_`` or ``_BENCH_``."""
_PYTHON: Final = ("PYTHONPYCACHEPREFIX", "PYTHONMALLOC")
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_DISPLAY: Final = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS")  # fmt: skip
_TERMINALS: Final = ("GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")
"""Rich takes each for a terminal with colours."""
_LONGEST_TMPDIR: Final = 40
"""A Unix socket's path has at most 107 bytes."""
_OPEN_FILES: Final = 65536


def begin() -> None:
    """Make this process and its children independent of what started them; a second call changes nothing."""
    _reset_signals()
    os.umask(0o022)
    _raise_open_files()
    environ = os.environ
    if SESSION in environ:
        return
    _choose_cache()
    for name in [*environ]:
        if _is_foreign(name):
            del environ[name]
    environ.update(LANG="C.UTF-8", TZ="UTC", TERM="dumb")
    time.tzset()
    if not _is_usable(environ.get("TMPDIR", "")):
        environ.pop("TMPDIR", None)
        tempfile.tempdir = None
    session = Path(tempfile.mkdtemp(prefix="mm2py-tests-"))
    atexit.register(_remove, session, os.getpid())
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        folder = session / name.lower()
        folder.mkdir(mode=0o700)
        environ[name] = str(folder)
    environ[SESSION] = str(session)


def _reset_signals() -> None:
    """What a runner ignores or blocks (``nohup``, service managers) is inherited; Python itself sets SIGINT and SIGPIPE."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _choose_cache() -> None:
    """Keep to the user's cache, whatever becomes of HOME; jars that it lacks are fetched while proxies are known."""
    if "PYTHONDONTWRITEBYTECODE" in os.environ:
        # Tests start hundreds of Python processes; one that compiles its modules needs twice the CPU for its start.
        os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".mm2py" / "pycache")
        sys.dont_write_bytecode = False
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = ROOT / ".mm2py" / "cache"
    os.environ["MM2PY_CACHE"] = str(folder.absolute())
    if any(name.lower() in _PROXIES for name in os.environ):
        fetch_jars("tools")


def _is_foreign(name: str) -> bool:
    if name.startswith("MM2PY_"):
        kind = name.removeprefix("MM2PY_")
        return kind not in _OURS and not kind.startswith(("TEST_", "CHAOS_", "BENCH_"))
    if name.startswith("PYTHON"):
        return name not in _PYTHON
    return (
        name.startswith(("LC_", "XDG_", "SPARK_", "KRB5"))
        or name in _DISPLAY + _TERMINALS
        or name.lower() in _PROXIES
    )


def _is_usable(folder: str) -> bool:
    return 0 < len(folder) <= _LONGEST_TMPDIR and os.access(folder, os.W_OK | os.X_OK)


def _remove(session: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked
        shutil.rmtree(session, ignore_errors=True)
