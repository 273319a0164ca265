"""Log lines of a task host: what a plug-in logs never fails it."""

import logging

import pytest
from mm2py.runtime.hosts.frames import encode_frame
from mm2py.runtime.hosts.messages import LogLine

from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.reports import PipeLogHandler


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def handler() -> tuple[PipeLogHandler, list[LogLine]]:
    sent: list[LogLine] = []

    def post(line: LogLine) -> None:
        encode_frame(0, line)
        sent.append(line)

    return PipeLogHandler(post, SecretMask(["canary"])), sent


@pytest.mark.parametrize(
    ("text", "argument", "shown"),
    [
        ("%d rows", "x", "'%d rows' cannot be formatted: TypeError"),
        ("%s", Odd(), "'%s' cannot be formatted: RuntimeError: no text"),
        ("name %s", "\udcff", "name \\udcff"),
        ("%d canary", "x", "'%d [hidden]' cannot be formatted"),
    ],
)
def test_a_line_that_cannot_be_written_is_named_and_raises_nothing(
    text: str, argument: object, shown: str
) -> None:
    one, lines = handler()
    one.handle(logging.LogRecord("plugin", logging.INFO, __file__, 1, text, (argument,), None))
    assert lines[0].text.startswith(shown)
