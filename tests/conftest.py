"""Tests are coroutines, each in an event loop of its own; chance in tests is fixed but for ``make fuzz``."""

import asyncio
import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from tests.property.effort import is_fuzz, load_profile, seed_of

load_profile()

pytest_plugins = ["tests.kit.regions"]

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Tests start hundreds of Python processes; one that compiles its modules needs twice the CPU for its start.
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / ".mm2py" / "pycache")

_SLOWEST = re.compile(r"^\| (test_\w+\.py) \| (\d+) \|", re.MULTILINE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files of CONTRIBUTING.md first, so that no process is left with one of them at the end.

    ``make fuzz`` has no time limits.
    """
    table = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    seconds = {name: int(number) for name, number in _SLOWEST.findall(table)}
    items.sort(key=lambda item: -seconds.get(item.path.name, 0))
    if is_fuzz():
        for item in items:  # their times are for the examples of make test
            item.own_markers[:] = [it for it in item.own_markers if it.name != "timeout"]
            for parent in item.listchain():
                parent.own_markers[:] = [it for it in parent.own_markers if it.name != "timeout"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure of another process when it happens: a run that CI ends for its time prints nothing at its end."""
    if report.failed and hasattr(report, "node"):
        print(f"\n{report.nodeid}: {report.when}\n{report.longreprtext}", file=sys.stderr)  # noqa: T201


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close what the session has, brokers and Spark, outside of the time of the process's last test."""
    cancel_timeout: Callable[[], None] | None = getattr(item, "cancel_timeout", None)
    if nextitem is None and cancel_timeout is not None:
        cancel_timeout()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; fixtures that are async context managers are entered in its loop."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            arguments = {
                name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters
            }
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    opened = cast("AbstractAsyncContextManager[object]", value)
                    arguments[name] = await stack.enter_async_context(opened)
            await test(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a test with a random course of its own starts from; printed, so that a failure can be repeated."""
    number = seed_of(request.node.nodeid)
    print(f"seed {number}")  # noqa: T201 - shown when the test fails
    return number
