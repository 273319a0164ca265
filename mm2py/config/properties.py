"""A Java ``.properties`` file: keys, values and the line of each entry.

Flow: bytes -> scan of logical lines, as ``java.util.Properties.LineReader`` forms them ->
jproperties, the whole file in one load -> ``PropertiesFile``. The scan puts each entry's line
number in front of its key: jproperties reports neither positions nor duplicate keys, and reads
``#:`` comments as metadata. Values are Java's: ISO-8859-1 (what ``FileConfigProvider`` reads:
UTF-8), no trailing comments, trailing blanks kept.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from jproperties import ParseError, Properties

from mm2py.errors import ConfigError

LATIN_1: Final = "iso-8859-1"
_BLANK: Final = " \t\f"
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
        return self.raw[_value_start(self.raw) :]


@dataclass(frozen=True, slots=True)
class PropertiesFile:
    """Entries of a properties file; of a key given twice the last one counts, as in Java."""

    path: str
    entries: tuple[Property, ...]
    duplicates: tuple[Property, ...] = ()
    """Entries that a later line with the same key replaces."""

    @property
    def values(self) -> Mapping[str, str]:
        return {entry.key: entry.value for entry in self.entries}

    def get(self, key: str) -> Property | None:
        """Return the entry of ``key`` that counts."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def where(self, line: int) -> str:
        return f"{self.path}:{line}"


class _LogicalLine(NamedTuple):
    text: str
    line: int


def load(path: Path | str, *, encoding: str = LATIN_1) -> PropertiesFile:
    """Read a properties file; ``encoding`` as of ``parse``. ``ConfigError``: the file is missing,
    unreadable, a directory, or no properties file."""
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
    return parse(data, path=str(file), encoding=encoding)


def parse(data: bytes, *, path: str = "<memory>", encoding: str = LATIN_1) -> PropertiesFile:
    """Read the bytes of a properties file; ``path`` is only used in messages.

    ``encoding`` is that of ``Properties.load`` of a stream, or utf-8 where Java gives it a reader.
    """
    _refuse_wrong_encoding(data, path)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: the file is no text in {encoding.upper()}, as which Java reads it",
            remedy=f"save it in {encoding.upper()}",
        ) from None
    current: dict[str, Property] = {}
    duplicates: list[Property] = []
    for entry in _entries(list(_logical_lines(text)), path):
        # Removed first: the order of entries is that of the lines that count.
        earlier = current.pop(entry.key, None)
        if earlier is not None:
            duplicates.append(earlier)
        current[entry.key] = entry
    return PropertiesFile(path, tuple(current.values()), tuple(duplicates))


def _entries(lines: Sequence[_LogicalLine], path: str) -> Iterator[Property]:
    for text, line in lines:
        if _BAD_UNICODE.search(text):
            raise ConfigError(
                f"{path}:{line}: \\u is not followed by four hexadecimal digits",
                remedy="double the backslash if it is meant literally",
            )
    # The number makes each key unique, so that duplicates survive, and keeps ``#:`` off the start.
    numbered = "\n".join(f"{line}.{text}" for text, line in lines)
    properties = Properties()
    try:
        properties.load(numbered.encode(), encoding="utf-8")
    except ParseError as error:
        raise ConfigError(
            f"{path}:{lines[error.line_number - 1].line}: a \\uD800..\\uDFFF escape without its "
            "other half",
            remedy="write both halves of the character or leave it out",
        ) from None
    for (text, line), numbered_key in zip(lines, properties, strict=True):
        key = numbered_key.partition(".")[2]
        yield Property(key, properties[numbered_key].data, line, text)


def _logical_lines(text: str) -> Iterator[_LogicalLine]:
    """Join continuation lines and drop comments and blank lines as Java does."""
    # \r\n counts as one line end everywhere, which also keeps the line numbers right.
    # Not splitlines(): it also breaks at \x0b, \x1c to \x1e and \x85, which Java takes as text.
    natural_lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not natural_lines[-1]:
        natural_lines.pop()
    # Java ends an entry whose last line is continued,
    # even an empty one, unless the file ends in \r\n.
    last = 0 if text.endswith("\r\n") else len(natural_lines)
    joined, started = "", 0
    for number, natural in enumerate(natural_lines, 1):
        content = natural.lstrip(_BLANK)
        if not joined:
            # Java checks what it has collected so far: after a lone backslash, blank and
            # comment lines are still skipped.
            if not content or content[0] in "#!":
                continue
            started = number
        continued = _ends_in_escape(content)
        joined += content[:-1] if continued else content
        if not continued or number == last:
            yield _LogicalLine(joined, started)
            joined = ""
    if joined:
        yield _LogicalLine(joined, started)


def _ends_in_escape(content: str) -> bool:
    # An even number of backslashes are escaped backslashes.
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def _value_start(raw: str) -> int:
    at = 0
    while at < len(raw) and raw[at] not in "=: \t\f":
        # An escaped separator (``\:``, ``\=``, ``\ ``) is a part of the key.
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
