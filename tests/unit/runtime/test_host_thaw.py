"""A process that was frozen knows before it writes anything that its permit is over."""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator

import pytest

from mm2py.client.permit import Permit
from mm2py.runtime.hosts.thaw import thawing_loop
from mm2py.testing.clock import FakeClock


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest finds it
    before = signal.getsignal(signal.SIGCONT)
    yield
    signal.signal(signal.SIGCONT, before)


def play(scenario: Callable[[FakeClock, Permit], Coroutine[None, None, None]]) -> list[bool]:
    """Return what a watcher saw of a permit for 6 s, True for valid."""
    seen: list[bool] = []

    async def run() -> None:
        clock = FakeClock()
        permit = Permit(clock)
        permit.watch(lambda: seen.append(permit.valid))
        permit.grant(clock.monotonic() + 6)
        await scenario(clock, permit)

    with asyncio.Runner(loop_factory=thawing_loop) as runner:
        runner.run(run())
    return seen


def test_a_frozen_process_finds_its_permit_over_before_it_serves_a_socket() -> None:
    seen: list[bool] = []

    async def scenario(clock: FakeClock, permit: Permit) -> None:
        here, there = socket.socketpair()
        with here, there:
            served = asyncio.Event()

            def serve() -> None:
                seen.append(permit.was_valid)
                served.set()

            loop = asyncio.get_running_loop()
            loop.add_reader(here, serve)
            there.send(b"x")
            clock.jump(7.0)
            await served.wait()
            loop.remove_reader(here)

    assert play(scenario) == [True, False]
    assert seen == [False], "watchers were called before"


def test_a_process_that_is_continued_looks_at_once() -> None:
    seen: list[bool] = []

    async def scenario(clock: FakeClock, permit: Permit) -> None:
        signal.raise_signal(signal.SIGCONT)
        seen.append(permit.was_valid)
        clock.jump(7.0)
        signal.raise_signal(signal.SIGCONT)
        seen.append(permit.was_valid)

    assert play(scenario) == [True, False]
    assert seen == [True, False], "without a turn of the loop"
