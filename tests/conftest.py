"""Tests are coroutines: ``async def test_...`` runs in an event loop of its own."""

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import cast

import pytest


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
