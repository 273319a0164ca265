"""A process that was frozen knows before it writes anything that its lease is over."""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator

import pytest

from mm2py.runtime.hosts.lease import Lease
from mm2py.runtime.hosts.thaw import ThawSelector


class FreezingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can jump, as when the process stood still."""

    def __init__(self, selector: ThawSelector) -> None:
        self.stood_still_s = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return super().time() + self.stood_still_s


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest finds it
    before = signal.getsignal(signal.SIGCONT)
    yield
    signal.signal(signal.SIGCONT, before)


def play(scenario: Callable[[FreezingLoop, Lease], Coroutine[None, None, None]]) -> list[bool]:
    """Return what the lease told, True for over."""
    told: list[bool] = []
    selector = ThawSelector()
    loop = FreezingLoop(selector)

    async def run() -> None:
        lease = Lease(lambda: told.append(lease.over))
        selector.watch(lease.look)
        await scenario(loop, lease)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    return told


def test_a_frozen_process_finds_its_lease_over_before_it_serves_a_socket() -> None:
    seen: list[bool] = []

    async def scenario(loop: FreezingLoop, lease: Lease) -> None:
        here, there = socket.socketpair()
        with here, there:
            served = asyncio.Event()

            def serve() -> None:
                seen.append(lease.over)
                served.set()

            loop.add_reader(here, serve)
            lease.renew(6_000)
            there.send(b"x")
            loop.stood_still_s = 7.0
            await served.wait()
            loop.remove_reader(here)

    assert play(scenario) == [True]
    assert seen == [True]


def test_a_process_that_is_continued_looks_at_once() -> None:
    seen: list[bool] = []

    async def scenario(loop: FreezingLoop, lease: Lease) -> None:
        lease.renew(6_000)
        signal.raise_signal(signal.SIGCONT)
        seen.append(lease.over)
        loop.stood_still_s = 7.0
        signal.raise_signal(signal.SIGCONT)
        seen.append(lease.over)

    assert play(scenario) == [True]
    assert seen == [False, True], "without a turn of the loop"


def test_a_lease_without_time_left_neither_lifts_nor_tells_again() -> None:
    async def scenario(_loop: FreezingLoop, lease: Lease) -> None:
        lease.renew(0)
        lease.renew(-5)
        lease.renew(60_000)
        lease.end()

    assert play(scenario) == [True, False]
