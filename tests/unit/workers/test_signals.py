"""The first signal asks for a stop, the second ends the process at once."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from mm2py_workers.signals import StopSignal

STUBBORN = """
import asyncio, os, signal, sys
from mm2py_workers.signals import StopSignal

async def main() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.{name})
        await stop.wait()
        os.kill(os.getpid(), signal.{name})
        await asyncio.sleep(20)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_asks_for_a_stop(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await stop.wait()
        assert stop.asked


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_second_signal_ends_the_process_at_once(name: str, code: int) -> None:
    program = STUBBORN.replace("{name}", name)
    done = subprocess.run([sys.executable, "-c", program], timeout=20, capture_output=True)
    assert done.returncode == code, done.stderr


async def test_a_closed_terminal_asks_for_a_stop_however_often_it_says_so() -> None:
    with StopSignal() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(5):
                await stop.wait()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with StopSignal():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_behind_the_stop_the_handlers_of_before_count_again(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopSignal():
            assert signal.getsignal(number) is not signal.default_int_handler
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
