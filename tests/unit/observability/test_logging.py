"""Log lines with their masks, and levels of loggers."""

import asyncio
import io
import json
import logging

import pytest

from mm2py.errors import ConfigError, FatalError
from mm2py.observability.loggers import ProcessLoggers, UnknownLevelError
from mm2py.observability.logging import (
    SecretMask,
    cause_text,
    configure_logging,
    current_scope,
    hide_userinfo,
    log_scope,
    some_of,
)
from mm2py.testing.clock import FakeClock

# -- logging ----------------------------------------------------------------------------------------


log = logging.getLogger("test")


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
    (line,) = stream.getvalue().splitlines()
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


def _logged(text: str, *secrets: str, debug: bool = False, error: Exception | None = None) -> str:
    stream = io.StringIO()
    configure_logging(stream, SecretMask(secrets), debug=debug)
    log.info("%s", text, exc_info=None if error is None else _raised(error))
    return stream.getvalue()


def _events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_as_json_each_event_is_one_object_with_its_scope() -> None:
    stream = io.StringIO()
    configure_logging(stream, SecretMask(["canary-value"]), as_json=True)
    log.info("started version=%s", "1")
    with log_scope("A->B", "MirrorSourceConnector", "task-0"):
        log.warning("refused \u202e\ncause=%s \ud800", "canary-value")
    with log_scope("A->B|c|task-1"):  # as a task host's lines come
        log.error("failed", exc_info=_raised(FatalError("no canary-value")))
    first, second, third = _events(stream)
    assert first.pop("time", "").__str__().endswith("Z")
    assert first == {"level": "INFO", "logger": "test", "message": "started version=1"}
    assert second["scope"] == ["A->B", "MirrorSourceConnector", "task-0"]
    assert second["message"] == "refused \u202e\ncause=[hidden] \\ud800"
    assert (third["scope"], third["error"]) == (["A->B", "c", "task-1"], "no [hidden]")
    assert "trace" not in third
    assert stream.getvalue().isascii()


def test_as_json_a_trace_is_a_field_in_debug_mode_and_has_no_secret() -> None:
    stream = io.StringIO()
    configure_logging(stream, SecretMask(["canary-value"]), debug=True, as_json=True)
    log.error("failed", exc_info=_raised(FatalError("canary-value")))
    (event,) = _events(stream)
    assert "Traceback" in str(event["trace"])
    assert isinstance(event["line"], int)
    assert "canary" not in stream.getvalue()


def test_an_error_is_one_line_without_debug() -> None:
    line = _logged("flow failed", error=ValueError("first\nsecond"))
    assert line.endswith("INFO flow failed: ValueError: first second\n")


def test_a_longer_secret_is_hidden_whole() -> None:
    assert SecretMask(["abcdef", "abcdefgh"]).apply("x=abcdefgh") == "x=[hidden]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2K\x1b[1A", r"\x1b[2K\x1b[1A"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("a\tb\rc\x00d\x7fe\x9bf", r"a\tb\rc\x00d\x7fe\x9bf"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("half \udcff", r"half \udcff"),
        ("x\n2026 ERROR all is lost", r"x\n2026 ERROR all is lost"),
        ("Zürich 東京 \U0001f600", "Zürich 東京 \U0001f600"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_no_text_moves_the_cursor_or_begins_a_line(text: str, shown: str, *, debug: bool) -> None:
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
    [([], ""), (["a"], "a"), (["a", "b"], "a,b"), (["a", "b", "c", "d"], "a,b and 2 more")],
)
def test_names_beyond_the_first_are_counted(names: list[str], text: str) -> None:
    assert some_of(names, 2, ",") == text
    assert some_of(names, 2) == text.replace(",", ", ")


# -- loggers ----------------------------------------------------------------------------------------


NOW_MS = 1_700_000_000_000


def process_loggers() -> ProcessLoggers:
    return ProcessLoggers(FakeClock(NOW_MS))


def test_a_namespace_changes_its_logger_and_all_that_begin_with_it() -> None:
    loggers = process_loggers()
    for name in ("t1.x", "t1.x.Y", "t1.xyz", "t1.z"):
        logging.getLogger(name)
    assert loggers.set("t1.x", "debug") == ["t1.x", "t1.x.Y", "t1.xyz"]
    assert logging.getLogger("t1.x.Y").level == logging.DEBUG
    assert loggers.get("t1.xyz") == ("DEBUG", NOW_MS)
    assert loggers.get("t1.z") == (loggers.all()["root"][0], None)


def test_the_same_level_twice_changes_nothing() -> None:
    loggers = process_loggers()
    assert loggers.set("t2", "TRACE") == ["t2"]
    assert loggers.set("t2", "trace") == []
    assert loggers.get("t2") == ("TRACE", NOW_MS)


def test_root_changes_every_known_logger() -> None:
    loggers = process_loggers()
    logging.getLogger("t4.x").setLevel(logging.WARNING)
    changed = loggers.set("root", "FATAL")
    assert "root" in changed
    assert "t4.x" in changed
    assert changed == sorted(changed)
    assert {level for level, _ in loggers.all().values()} == {"FATAL"}


@pytest.mark.parametrize("word", ["OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"])
def test_javas_levels_are_understood_and_shown(word: str) -> None:
    loggers = process_loggers()
    other = "INFO" if word != "INFO" else "WARN"
    loggers.set("t5", other)
    assert loggers.set("t5", word.lower()) == ["t5"]
    assert loggers.get("t5") == (word, NOW_MS)
    assert logging.getLogger("t5").isEnabledFor(logging.CRITICAL) == (word != "OFF")


@pytest.mark.parametrize("word", ["WARNING", "", "7"])
def test_an_unknown_level_is_refused_in_connects_words_before_anything_happens(word: str) -> None:
    loggers = process_loggers()
    with pytest.raises(UnknownLevelError) as caught:
        loggers.set("t6", word)
    assert caught.value.message == f"invalid log level '{word}'."
    assert loggers.get("t6") is None


def test_a_java_package_sets_the_level_of_what_does_its_work_here() -> None:
    told: list[tuple[str, str]] = []
    loggers = ProcessLoggers(FakeClock(NOW_MS), lambda name, level: told.append((name, level)))
    logging.getLogger("mm2py_connectors.t7")
    logging.getLogger("mm2py.runtime.t7")
    changed = loggers.set("org.apache.kafka.connect.mirror", "ERROR")
    assert {"mm2py_connectors.t7", "org.apache.kafka.connect.mirror"} <= set(changed)
    assert not [name for name in changed if name.startswith("mm2py.runtime")]
    assert told == [("org.apache.kafka.connect.mirror", "ERROR")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to s3://KEY:SEC/R@T@bucket/x", "to s3://[hidden]@bucket/x"),
        ("https://token@host/x, S3A://k:s@b", "https://[hidden]@host/x, S3A://[hidden]@b"),
        ("abfss://container:key@account/x", "abfss://[hidden]@account/x"),
        ("abfss://container@account/x", "abfss://container@account/x"),
        ("http://host/a@b and http://host:80/x", "http://host/a@b and http://host:80/x"),
    ],
)
def test_urls_are_shown_without_their_credentials(text: str, shown: str) -> None:
    assert hide_userinfo(text) == shown
