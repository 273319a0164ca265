"""Log lines: their scope (a context variable), how a line looks, and what it never holds.

Flow: ``log.info(...)`` -> scope of the running asyncio task -> one masked line -> stream or file.
Stack traces appear only in debug mode; otherwise an exception is one line. Metrics are elsewhere.
"""

import json
import logging
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO, final

from mm2py.errors import Mm2pyError

HIDDEN: Final = "[hidden]"
"""The replacement of a secret; the text of Kafka's ``Password.HIDDEN``."""

WHOLE_WORD_BELOW_CHARS: Final = 6
"""Shorter secrets are masked as whole words only, else a password ``a`` would eat every line."""

LEAST_CHARS: Final = 4
"""Lines of secrets, and secrets of requests, that are shorter are not masked."""

_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, changes of direction, and halves of characters."""

_USERINFO: Final = re.compile(
    r"(\b[a-z][\w+.-]*://)"
    r"(?:[^\s/:@]*:\S*|(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^\s/?#]+)@",
    re.IGNORECASE,
)

_scope: ContextVar[tuple[str, ...]] = ContextVar("mm2py_log_scope", default=())


def level_name() -> str:
    """Return the level that this process logs from, by its name: for processes that it starts."""
    return logging.getLevelName(logging.getLogger().getEffectiveLevel())


def current_scope() -> str:
    """Return the scope of the running task as log lines show it, empty outside of any."""
    parts = _scope.get()
    return f"[{'|'.join(parts)}] " if parts else ""


@contextmanager
def log_scope(*parts: str, below: int = 0) -> Generator[None]:
    """Put ``[a|b|c]`` before every line logged inside; asyncio tasks started inside inherit it.

    Java's ``LoggingContext``. ``below`` keeps that many parts of the outer scope: 0 starts afresh,
    1 stays in the flow, 2 in the flow's connector.
    """
    token = _scope.set((*_scope.get()[:below], *parts))
    try:
        yield
    finally:
        _scope.reset(token)


@final
class SecretMask:
    """Replaces secrets by ``[hidden]``; is told every resolved secret before anything is logged."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._outer: SecretMask | None = None
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Hide these values, and each line of those with several; empty ones are ignored."""
        new = {part for secret in secrets for part in _parts(secret)} - self._secrets
        if not new:
            return
        self._secrets |= new
        # Compiled at the next line: secrets come one by one at a start.
        self._pattern = None

    def extended(self, secrets: Iterable[str]) -> "SecretMask":
        """Return a mask that hides these too, for the answer to one request; this one does not
        change.

        Too short ones are left out: a caller could blank out common words of an answer.
        """
        mask = SecretMask(secret for secret in secrets if len(secret) >= LEAST_CHARS)
        mask._outer = self
        return mask

    def apply(self, text: str) -> str:
        """Return a text as it may be shown: without secrets, and halves of surrogate pairs as
        escapes: no answer or frame can hold them."""
        if self._outer is not None:
            text = self._outer.apply(text)
        if self._pattern is None:
            self._pattern = self._compiled()
        # One pass over all: a second could find a secret in the first one's result.
        shown = self._pattern.sub(HIDDEN, text) if self._secrets else text
        return shown if shown.isascii() else shown.encode(errors="backslashreplace").decode()

    def _compiled(self) -> re.Pattern[str]:
        # The longest first: one secret may contain another.
        ordered = sorted(self._secrets, key=len, reverse=True)
        return re.compile("|".join(map(_secret_pattern, ordered)))


def hide_userinfo(text: str) -> str:
    """Return a text without the credentials of its URLs (RFC 3986, 3.2.1), also where a key that is
    not escaped holds ``/`` or ``@``.

    The container of Azure's ``abfss://container@account`` stays.
    """
    return _USERINFO.sub(rf"\1{HIDDEN}@", text)


def _parts(secret: str) -> Iterator[str]:
    """Yield a secret and its lines: a log line or a trace may quote any of them alone."""
    if not secret.strip():
        return
    yield secret
    for line in secret.splitlines():
        part = line.strip()
        if len(part) >= LEAST_CHARS and not part.startswith("-----"):  # a PEM header is none
            yield part


def _secret_pattern(secret: str) -> str:
    escaped = re.escape(secret)
    return rf"(?<!\w){escaped}(?!\w)" if len(secret) < WHOLE_WORD_BELOW_CHARS else escaped


def _escaped(text: str) -> str:
    """Return a text as one line that moves no cursor: brokers and callers may send anything."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def cause_text(error: BaseException) -> str:
    """Return an error of whatever origin as one line, for ``cause=``; never empty."""
    text = " ".join(str(error).split())
    # Our own errors are written to be read; of a foreign one the class is half of the message, or
    # all of it (``TimeoutError`` has no text).
    if isinstance(error, Mm2pyError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def some_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first names and how many more there are: a line stays a line, however many
    partitions it is about."""
    shown = separator.join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@final
class _LineFormatter(logging.Formatter):
    """One line per event: time, level, scope, message; masked."""

    default_msec_format = "%s,%03d"

    def __init__(self, mask: SecretMask, *, debug: bool) -> None:
        super().__init__()
        self._mask = mask
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        message = f"{current_scope()}{record.getMessage()}"
        if self._debug:
            message = f"{message} ({record.name}:{record.lineno})"
        elif error is not None:
            message = f"{message}: {cause_text(error)}"
        # Masked before it is escaped: secrets may hold what is escaped.
        text = _escaped(self._mask.apply(message))
        line = f"{self.formatTime(record)} {record.levelname} {text}"
        if self._debug and record.exc_info and error is not None:
            trace = self._mask.apply(self.formatException(record.exc_info)).split("\n")
            line = "\n".join((line, *(f"  | {_escaped(each)}" for each in trace)))
        return line


@final
class _JsonFormatter(logging.Formatter):
    """One JSON object in a line per event; its fields are in docs/reference/cli.md."""

    def __init__(self, mask: SecretMask, *, debug: bool) -> None:
        super().__init__()
        self._mask = mask
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        at = datetime.fromtimestamp(record.created, UTC)
        event: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            # A task host's line has its whole scope as one part.
            "scope": self._mask.apply("|".join(_scope.get())).split("|"),
            "message": self._mask.apply(record.getMessage()),
        }
        if not _scope.get():
            del event["scope"]
        if error is not None:
            event["error"] = self._mask.apply(cause_text(error))
        if self._debug:
            event["line"] = record.lineno
            if record.exc_info and error is not None:
                event["trace"] = self._mask.apply(self.formatException(record.exc_info))
        # ASCII alone: no new lines or cursor moves, halves of characters stay representable.
        return json.dumps(event, ensure_ascii=True)


def configure_logging(
    stream: TextIO,
    mask: SecretMask,
    *,
    level: str = "INFO",
    debug: bool = False,
    as_json: bool = False,
) -> None:
    """Send every log line of the process to ``stream``; replaces what was configured before.

    Args:
        stream: where lines go; stays open, belongs to the caller.
        mask: what must never appear.
        level: name of the lowest level that is written.
        debug: write stack traces and the place in the code with each line, and level DEBUG.
        as_json: write each event as a JSON object.
    """
    handler = logging.StreamHandler(stream)
    formatter = _JsonFormatter if as_json else _LineFormatter
    handler.setFormatter(formatter(mask, debug=debug))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel("DEBUG" if debug else level)
    # asyncio's own debug lines (selector choice) do not help an operator.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
