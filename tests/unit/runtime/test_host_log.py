"""Log lines of a task host: what a plug-in logs never fails it."""

import asyncio
import logging
import socket

import pytest

from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.reports import HostReports, PipeLogHandler


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def lines_of(record: logging.LogRecord) -> list[str]:
    """Send a record through the pipe; return the texts that the worker gets."""
    texts: list[str] = []

    class Worker(HostReports):
        def started(self, version: str, pid: int) -> None:
            raise AssertionError(version, pid)

        def lives(self) -> None:
            raise AssertionError

        def log_line(self, level: str, logger: str, scope: str, text: str, trace: str) -> None:
            texts.append(text)

    ends = [await HostPipe.over(end) for end in socket.socketpair()]
    ends[1].channel(0).serve(Worker().log_line)
    listening = asyncio.create_task(ends[1].listen())
    PipeLogHandler(ends[0].channel(0), SecretMask(["canary"])).handle(record)
    await ends[0].close()
    async with asyncio.timeout(10):
        await listening
    await ends[1].close()
    return texts


@pytest.mark.parametrize(
    ("text", "argument", "shown"),
    [
        ("%d rows", "x", "'%d rows' cannot be formatted: TypeError"),
        ("%s", Odd(), "'%s' cannot be formatted: RuntimeError: no text"),
        ("name %s", "\udcff", "name \\udcff"),
        ("%d canary", "x", "'%d [hidden]' cannot be formatted"),
    ],
)
async def test_a_line_that_cannot_be_written_is_named_and_raises_nothing(
    text: str, argument: object, shown: str
) -> None:
    record = logging.LogRecord("plugin", logging.INFO, __file__, 1, text, (argument,), None)
    (line,) = await lines_of(record)
    assert line.startswith(shown)
