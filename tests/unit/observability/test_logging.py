"""Lines carry their scope, hide secrets, and show traces only in debug mode."""

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from mm2py.errors import ConfigError, FatalError
from mm2py.observability.logging import (
    SecretMask,
    cause_text,
    configure_logging,
    current_scope,
    log_scope,
    some_of,
)

log = logging.getLogger("test")


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def _raised(error: Exception) -> Exception:
    """Give an error the trace of having been raised."""
    with pytest.raises(type(error)):
        raise error
    return error


async def test_scope_stands_before_the_message_and_is_inherited_by_tasks() -> None:
    async def speak() -> None:
        log.info("started partitions=%d", 3)

    stream = io.StringIO()
    configure_logging(stream, SecretMask())
    with (
        log_scope("A->B"),
        log_scope("MirrorSourceConnector", below=1),
        log_scope("MirrorSourceConnector", "task-0", below=1),
    ):
        task = asyncio.create_task(speak())
    assert current_scope() == ""
    await task
    (line,) = _lines(stream)
    assert line.endswith("INFO [A->B|MirrorSourceConnector|task-0] started partitions=3")


@pytest.mark.parametrize("debug", [False, True])
def test_secrets_never_appear_not_even_in_traces(*, debug: bool) -> None:
    stream = io.StringIO()
    mask = SecretMask(["hunter2-long", "s3c", "", "  "])
    configure_logging(stream, mask, debug=debug)
    error = _raised(ConfigError("password hunter2-long is wrong"))
    log.error("cannot start with=%s", "hunter2-long", exc_info=error)
    log.info("short s3c stays a word in s3cond")
    text = stream.getvalue()
    assert "hunter2-long" not in text
    assert "short [hidden] stays a word in s3cond" in text
    assert ("Traceback" in text) is debug


def test_an_error_is_one_line_without_debug() -> None:
    stream = io.StringIO()
    configure_logging(stream, SecretMask())
    log.error("flow failed", exc_info=_raised(ValueError("first\nsecond")))
    (line,) = _lines(stream)
    assert line.endswith("ERROR flow failed: ValueError: first second")


def test_a_message_cannot_fake_a_second_line() -> None:
    stream = io.StringIO()
    configure_logging(stream, SecretMask())
    log.info("topic=%s", "x\n2026 ERROR all is lost")
    assert len(_lines(stream)) == 1


def test_a_longer_secret_is_hidden_whole() -> None:
    assert SecretMask(["abcdef", "abcdefgh"]).apply("x=abcdefgh") == "x=[hidden]"


def _logged(text: str, *secrets: str, debug: bool = False, error: Exception | None = None) -> str:
    stream = io.StringIO()
    configure_logging(stream, SecretMask(secrets), debug=debug)
    log.info("%s", text, exc_info=None if error is None else _raised(error))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2K\x1b[1A", r"\x1b[2K\x1b[1A"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("a\tb\rc\x00d\x7fe\x9bf", r"a\tb\rc\x00d\x7fe\x9bf"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("half \udcff", r"half \udcff"),
        ("Zürich 東京 \U0001f600", "Zürich 東京 \U0001f600"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_no_text_moves_the_cursor_or_begins_another_line(
    text: str, shown: str, *, debug: bool
) -> None:
    for written in (_logged(text, debug=debug), _logged("x", error=ValueError(text))):
        assert text not in written or text == shown
        assert all(char.isprintable() or char == "\n" for char in written)
        assert len(written.splitlines()) == 1
    assert shown in _logged(text, debug=debug)


def test_a_trace_cannot_fake_a_line_of_the_log() -> None:
    written = _logged("x", debug=True, error=ValueError("a\n2026 ERROR all is lost\x1b[2K"))
    first, *trace = written.rstrip("\n").split("\n")
    assert "INFO" in first
    assert all(line.startswith("  | ") for line in trace)
    assert "\x1b" not in written


def test_a_secret_of_several_lines_is_hidden_whole_and_by_line() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nTHISISTHEKEY\nab\n-----END PRIVATE KEY-----\n"
    written = _logged(f"cause={pem} and THISISTHEKEY", pem, "s3cretpw\n")
    assert "THISISTHEKEY" not in written
    assert "[hidden] and [hidden]" in written
    assert "is [hidden] here" in _logged("is s3cretpw here", "s3cretpw\n")
    assert "-----BEGIN" in _logged("-----BEGIN PRIVATE KEY-----", pem)
    # As repr writes it.
    assert "THISISTHEKEY" not in _logged(repr(pem), pem)


def test_secrets_of_one_answer_are_hidden_in_no_other_text() -> None:
    mask = SecretMask(["permanent"])
    one = mask.extended(["rest change caller=", "of"])
    assert one.apply("permanent rest change caller=ann of") == "[hidden] [hidden]ann of"
    assert mask.apply("permanent rest change caller=ann") == "[hidden] rest change caller=ann"


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    assert cause_text(TimeoutError()) == "TimeoutError"
    assert cause_text(ValueError("first\nsecond")) == "ValueError: first second"
    assert cause_text(FatalError("unauthorised")) == "unauthorised"


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_names_beyond_the_first_are_counted(names: list[str], text: str) -> None:
    assert some_of(names, 2) == text


def test_names_are_joined_by_what_the_line_needs() -> None:
    assert some_of(["a-0", "a-1", "a-2"], 2, ",") == "a-0,a-1 and 1 more"
