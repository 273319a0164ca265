"""Where the console scripts begin: a stop signal ends a process quietly, also while its modules are
being loaded.

Flow: handlers for SIGINT and SIGTERM -> the module of the command, which takes most of a second ->
its ``main``. A worker keeps the handlers until it can stop in order (``StopSignal``). Imports
nothing of ours before.
"""

import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def connect_mirror_maker() -> NoReturn:
    """Run ``connect-mirror-maker-py``."""
    begin()
    from mm2py_workers.connect_mirror_maker import main

    main()


def connect_distributed() -> NoReturn:
    """Run ``connect-distributed-py``."""
    begin()
    from mm2py_workers.connect_distributed import main

    main()


def connect_standalone() -> NoReturn:
    """Run ``connect-standalone-py``."""
    begin()
    from mm2py_workers.connect_standalone import main

    main()


def begin() -> None:
    """End this process at SIGINT or SIGTERM without a stack trace, and print any text."""
    for number in _SIGNALS:
        signal.signal(number, _end)
    print_any_text()


def print_any_text() -> None:
    """Print escapes for what stdout's encoding lacks: a cluster's names may be of any script."""
    for stream in (sys.stdout, sys.stderr):
        # A stream whose descriptor became a pipe after it was opened cannot be changed.
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # 143 for SIGTERM, 130 for SIGINT: what a shell reports of a process that a signal ended.
    os._exit(128 + number)
