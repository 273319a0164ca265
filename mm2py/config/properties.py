"""A Java ``.properties`` file: keys, values and the line each of them stands on.

Flow: bytes -> logical lines as ``java.util.Properties.LineReader`` forms them -> jproperties, one
line at a time -> ``PropertiesFile``. Feeding single lines gives positions and duplicates, which
jproperties does not report, and keeps its reading of ``#:`` comments as metadata out of the way.
Values are Java's: ISO-8859-1, no trailing comments, trailing blanks kept.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from jproperties import ParseError, Properties

from mm2py.errors import ConfigError

_BLANK: Final = " \t\f"
_EOL: Final = "\r\n"
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
# `\u` that is itself escaped (`\\u`) is text; an odd backslash before it makes it an escape.
_BAD_UNICODE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")


@dataclass(frozen=True, slots=True)
class Property:
    """One entry: ``raw`` is the logical line as written, before escapes are resolved."""

    key: str
    value: str
    line: int
    raw: str = ""

    @property
    def raw_value(self) -> str:
        """The value as it stands in the file, its backslashes untouched."""
        return self.raw[_value_start(self.raw) :]


@dataclass(frozen=True, slots=True)
class PropertiesFile:
    """What a properties file says; of a key given twice the last one counts, as in Java."""

    path: str
    entries: tuple[Property, ...]
    duplicates: tuple[Property, ...] = ()
    """Entries that a later line with the same key replaces."""

    @property
    def values(self) -> Mapping[str, str]:
        """Key to value."""
        return {entry.key: entry.value for entry in self.entries}

    def get(self, key: str) -> Property | None:
        """Return the entry of ``key`` that counts."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def where(self, line: int) -> str:
        """Return ``file:line`` for a message."""
        return f"{self.path}:{line}"


class _LogicalLine(NamedTuple):
    text: str
    line: int


def load(path: Path | str) -> PropertiesFile:
    """Read a properties file.

    Raises:
        ConfigError: the file is missing, unreadable, a directory, or no properties file.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"properties file {file} does not exist", remedy="check the path"
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a directory", remedy="name the .properties file inside it"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"properties file {file} cannot be read ({error.strerror})",
            remedy="make it readable for the user this process runs as",
        ) from None
    return parse(data, path=str(file))


def parse(data: bytes, *, path: str = "<memory>") -> PropertiesFile:
    """Read the bytes of a properties file; ``path`` is only used in messages."""
    _refuse_wrong_encoding(data, path)
    counted: dict[str, Property] = {}
    duplicates: list[Property] = []
    for logical in logical_lines(data.decode("iso-8859-1")):
        entry = _entry(logical, path)
        earlier = counted.pop(entry.key, None)
        if earlier is not None:
            duplicates.append(earlier)
        counted[entry.key] = entry
    return PropertiesFile(path, tuple(counted.values()), tuple(duplicates))


def logical_lines(text: str) -> Iterator[_LogicalLine]:
    """Join continuation lines and drop comments and blank lines as Java does."""
    reader = _LineReader(text)
    while (logical := reader.read()) is not None:
        yield logical


class _LineReader:
    """``java.util.Properties.LineReader``, with line numbers."""

    def __init__(self, text: str) -> None:
        # \r\n counts as one line end everywhere, which also keeps the line numbers right.
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._ends_in_crlf = text.endswith("\r\n")
        self._at = 0
        self._line = 1

    def read(self) -> _LogicalLine | None:
        """Return the next logical line, None at the end."""
        joined: list[str] = []
        started = 0
        while self._at < len(self._text):
            line, text, ended = self._natural_line()
            content = text.lstrip(_BLANK)
            if not joined:
                # Java looks at what it has collected so far: behind a lone backslash, blank and
                # comment lines are still skipped.
                if not content or content[0] in "#!":
                    continue
                started = line
            continued = _ends_in_escape(content)
            kept = content[:-1] if continued else content
            if kept:
                joined.append(kept)
            if not continued or not ended or self._at_lone_end():
                return _LogicalLine("".join(joined), started)
        return _LogicalLine("".join(joined), started) if joined else None

    def _at_lone_end(self) -> bool:
        # Java ends the line here, even an empty one, unless the last line end is \r\n.
        return self._at >= len(self._text) and not self._ends_in_crlf

    def _natural_line(self) -> tuple[int, str, bool]:
        line = self._line
        end = self._text.find("\n", self._at)
        ended = end >= 0
        text = self._text[self._at : end if ended else len(self._text)]
        self._at = end + 1 if ended else len(self._text)
        self._line += 1
        return line, text, ended


def _ends_in_escape(content: str) -> bool:
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def _entry(logical: _LogicalLine, path: str) -> Property:
    text, line = logical
    if _BAD_UNICODE.search(text):
        raise ConfigError(
            f"{path}:{line}: \\u is not followed by four hexadecimal digits",
            remedy="double the backslash if it is meant literally",
        )
    parsed = Properties()
    try:
        # The separator in front of a comment sign keeps jproperties from reading a comment here.
        parsed.load((f"\\{text}" if text[:1] in ("#", "!") else text).encode("iso-8859-1"))
    except ParseError:
        raise ConfigError(
            f"{path}:{line}: a \\uD800..\\uDFFF escape without its other half",
            remedy="write both halves of the character or leave it out",
        ) from None
    for key in parsed:
        return Property(key, parsed[key].data, line, text)
    return Property("", "", line, text)


def _value_start(raw: str) -> int:
    at = 0
    while at < len(raw) and raw[at] not in "=: \t\f":
        at += 2 if raw[at] == "\\" else 1
    while at < len(raw) and raw[at] in _BLANK:
        at += 1
    if at < len(raw) and raw[at] in "=:":
        at += 1
    while at < len(raw) and raw[at] in _BLANK:
        at += 1
    return at


def _refuse_wrong_encoding(data: bytes, path: str) -> None:
    if data.startswith(_UTF8_BOM):
        raise ConfigError(
            f"{path}:1: the file starts with a byte order mark, which Java reads as part of the "
            "first key",
            remedy="save the file as plain text without BOM",
        )
    if data.startswith(_UTF16_BOMS) or b"\x00" in data:
        raise ConfigError(
            f"{path}:1: the file is not a text in ISO-8859-1 (UTF-16 or binary data)",
            remedy="save it as plain ASCII or ISO-8859-1 text",
        )
