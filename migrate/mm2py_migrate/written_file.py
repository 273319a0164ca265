"""A properties file in the making: what ``mm2py migrate`` and ``mm2py import`` print.

Flow: ``comment`` and ``put`` in the order of the file -> ``text``, which ``java.util.Properties``
and ``mm2py.config.properties`` read back as it was put; ``remark`` for what has to be known beside
it. Secrets stay where they are: ``${file:...}``.
"""

import re
from dataclasses import dataclass
from typing import Final, final

from mm2py.errors import ConfigError

_ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_IN_KEYS: Final = re.compile(r"([=:#! ])")


@dataclass(frozen=True, slots=True)
class TranslatedFile:
    """``text`` of a properties file; ``remarks``: what it lacks or has otherwise, a line each."""

    text: str
    remarks: tuple[str, ...]


@final
class WrittenFile:
    """Collects lines; each key is written once."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._values: dict[str, str] = {}
        self._remarks: list[str] = []

    def comment(self, text: str) -> None:
        if self._lines:
            self._lines.append("")
        self._lines += [f"# {line}" for line in text.splitlines()]

    def put(self, key: str, value: str) -> None:
        """Write a property; the same one again changes nothing. ``ConfigError``: the key is there
        with another value."""
        there = self._values.get(key)
        if there is None:
            self._values[key] = value
            self._lines.append(f"{_key(key)} = {_value(value)}")
        elif there != value:
            raise ConfigError(
                f"{key} would have two values: {there} and {value}",
                remedy="give both sides the same value, or another name to one of them",
            )

    def remark(self, text: str) -> None:
        """Note what has no line of its own."""
        if text not in self._remarks:
            self._remarks.append(text)

    def done(self) -> TranslatedFile:
        return TranslatedFile("\n".join(self._lines) + "\n", tuple(self._remarks))


def _key(text: str) -> str:
    return _IN_KEYS.sub(r"\\\1", _escaped(text))


def _value(text: str) -> str:
    blanks = len(text) - len(text.lstrip(" "))
    return "\\ " * blanks + _escaped(text[blanks:])


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(it) or _ascii(it) for it in text)


def _ascii(character: str) -> str:
    """Return it as ``java.util.Properties.store`` writes it."""
    if character.isascii() and character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
