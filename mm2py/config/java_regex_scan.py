"""The characters of a Java pattern: position, look-ahead, and escapes that are one character."""

from collections.abc import Callable
from typing import Final

from mm2py.errors import ConfigError

_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\x07", "e": "\x1b"}
_SHOWN_CHARS: Final = 200
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_OCTAL: Final = frozenset("01234567")


class Scanner:
    """A pattern text and where we are in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.text)

    def peek(self, ahead: int = 0) -> str:
        """Return a coming character, empty behind the end."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def take(self) -> str:
        """Return the next character and step over it."""
        char = self.peek()
        self.at += 1
        return char

    def take_if(self, expected: str) -> bool:
        """Step over ``expected`` if it comes next."""
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def take_while(self, accept: Callable[[str], bool]) -> str:
        """Return the coming characters that are accepted."""
        start = self.at
        while not self.at_end() and self.peek().isascii() and accept(self.peek()):
            self.at += 1
        return self.text[start : self.at]

    def take_until(self, end: str) -> str:
        """Return everything up to ``end`` and step over it; without it, everything."""
        found = self.text.find(end, self.at)
        start, self.at = self.at, len(self.text) if found < 0 else found + len(end)
        return self.text[start : found if found >= 0 else len(self.text)]

    def escaped_character(self) -> str:
        """Return the character that an escape stands for; the backslash is already taken."""
        char = self.take()
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "0":
            return self._octal()
        if char == "x" and self.take_if("{"):
            return self._code_point(self.take_until("}"))
        if char in ("x", "u"):
            width = 2 if char == "x" else 4
            digits = self.text[self.at : self.at + width]
            self.at += width
            if len(digits) != width:
                raise refuse(self, f"\\{char} without {width} hexadecimal digits")
            return self._code_point(digits)
        if char == "c" and not self.at_end():
            return chr(ord(self.take()) ^ 64)
        if char.isascii() and (char.isalpha() or char == ""):
            raise refuse(self, f"\\{char}, an escape that is not known")
        return char

    def _octal(self) -> str:
        digits = ""
        while len(digits) < 3 and self.peek() in _OCTAL and self.peek():
            if len(digits) == 2 and digits[0] > "3":
                break
            digits += self.take()
        if not digits:
            raise refuse(self, "\\0 without octal digits")
        return chr(int(digits, 8))

    def _code_point(self, digits: str) -> str:
        if not digits or not set(digits) <= _HEX or int(digits, 16) > 0x10FFFF:
            raise refuse(self, "a character code that is not hexadecimal")
        return chr(int(digits, 16))


def literal(char: str) -> str:
    """Return a ``regex`` pattern for exactly this character, inside and outside of brackets."""
    if char.isascii() and (char.isalnum() or char == "_"):
        return char
    code = ord(char)
    if char.isascii() and char.isprintable() and char != " ":
        return f"\\{char}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"


def refuse(scan: Scanner, what: str) -> ConfigError:
    """Return the error for a pattern that Java refuses or that cannot be expressed."""
    text = repr(scan.text) if len(scan.text) <= _SHOWN_CHARS else f"{scan.text[:_SHOWN_CHARS]!r}..."
    return ConfigError(
        f"pattern {text} has {what} (at character {min(scan.at, len(scan.text))})",
        remedy="correct the pattern",
    )
