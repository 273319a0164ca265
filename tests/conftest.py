"""Tests are coroutines, each in an event loop of its own; chance in tests is fixed but for ``make fuzz``."""

import asyncio
import gc
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import cast

import pytest
from typer.main import get_command

from tests.kit import hermetic
from tests.property.effort import is_fuzz, load_profile, seed_of
from tests.property.play_loop import CourseLoop

hermetic.begin()
load_profile()
# Its runner makes the tree of all commands for each line that it runs, which takes longer than the line.
pytest.MonkeyPatch().setattr("typer.testing._get_command", cache(get_command))

pytest_plugins = ["tests.kit.browser", "tests.kit.lane", "tests.kit.regions"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``make fuzz`` has no time limits: those of tests are for the examples of ``make test``."""
    if is_fuzz():
        for item in items:
            item.own_markers[:] = [it for it in item.own_markers if it.name != "timeout"]
            for parent in item.listchain():
                parent.own_markers[:] = [it for it in parent.own_markers if it.name != "timeout"]


def pytest_collection_finish() -> None:
    """What is imported by now stays: going through it again and again was a tenth of the unit tests' time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


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

    in_course = pyfuncitem.get_closest_marker("course") is not None
    with asyncio.Runner(loop_factory=CourseLoop if in_course else None) as runner:
        runner.run(run())
    return True


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a test with a random course of its own starts from; printed, so that a failure can be repeated."""
    number = seed_of(request.node.nodeid)
    print(f"seed {number}")  # noqa: T201 - shown when the test fails
    return number
