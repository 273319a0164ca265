"""The characters and character classes of a Java pattern, for ``java_regex``.

Flow: ``Scanner`` after ``[`` or a backslash -> the same class in ``regex``'s V1 syntax. Every
character is written escaped, so that ``--``, ``||`` and ``[:alpha:]``, which mean nothing to Java,
mean nothing to ``regex`` either.
"""

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
        return self.at >= len(self.text)

    def peek(self, ahead: int = 0) -> str:
        """Return a coming character, empty after the end."""
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
        place = self.text.find(end, self.at)
        start, self.at = self.at, len(self.text) if place < 0 else place + len(end)
        return self.text[start : place if place >= 0 else len(self.text)]

    def escaped_character(self) -> str:
        """Return the character of an escape; the backslash is already taken."""
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
            # As Java: no check whether it is a letter.
            return chr(ord(self.take()) ^ 64)
        # Java reserves all letters for escapes of later versions.
        if char.isascii() and (char.isalpha() or char == ""):
            raise refuse(self, f"\\{char}, an escape that is not known")
        return char

    def _octal(self) -> str:
        digits = ""
        while len(digits) < 3 and self.peek() in _OCTAL and self.peek():
            # \0377 is the largest: three digits only below \0400.
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


_HORIZONTAL: Final = r"\x20\t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
_VERTICAL: Final = r"\n\x0b\f\r\x85\u2028\u2029"
_PREDEFINED: Final = {
    "d": "0-9",
    "w": "a-zA-Z0-9_",
    "s": r"\x20\t\n\x0b\f\r",
    "h": _HORIZONTAL,
    "v": _VERTICAL,
}
_PUNCTUATION: Final = r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e"
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": _PUNCTUATION,
    "Graph": r"\x21-\x7e",
    "Print": r"\x20-\x7e",
    "Blank": r"\x20\t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r"\x20\t\n\x0b\f\r",
}
# Java's names of Unicode sets; `regex` has the same sets under these.
_UNICODE: Final = {name: rf"\p{{{name}}}" for name in ("L", "Lu", "Ll", "N", "Nd")} | {
    "IsAlphabetic": r"\p{Alphabetic}",
    "IsLetter": r"\p{L}",
    "IsDigit": r"\p{Nd}",
    "IsUppercase": r"\p{Uppercase}",
    "IsLowercase": r"\p{Lowercase}",
    "IsLatin": r"\p{Script=Latin}",
    "IsL": r"\p{L}",
    "IsLu": r"\p{Lu}",
    "IsLl": r"\p{Ll}",
    "IsN": r"\p{N}",
    "IsNd": r"\p{Nd}",
    "javaLowerCase": r"\p{Lowercase}",
    "javaUpperCase": r"\p{Uppercase}",
}


def parse_class(scan: Scanner) -> str:
    """Translate a bracketed class; the opening bracket is already taken."""
    negated = scan.take_if("^")
    operands: list[str] = []
    nested = False
    items: list[str] = []
    while True:
        if scan.at_end():
            raise refuse(scan, "a character class that is not closed")
        # First after the bracket it is text, as in Java.
        if scan.peek() == "]" and (items or operands):
            scan.take()
            break
        if scan.take_if("&&"):
            # Java versions read && without a side differently.
            if not items or scan.peek() == "&":
                raise refuse(scan, "&& without a set on both sides")
            operands.append("".join(items))
            items = []
            continue
        if scan.take_if("["):
            nested = True
            items.append(parse_class(scan))
        else:
            items.extend(_item(scan))
    if operands and not items:
        raise refuse(scan, "&& without a set on its right")
    if negated and nested:
        raise refuse(
            scan, "a class inside of a negated class, which Java versions read differently"
        )
    operands.append("".join(items))
    body = operands[0] if len(operands) == 1 else "&&".join(f"[{part}]" for part in operands)
    return f"[^{body}]" if negated else f"[{body}]"


def _item(scan: Scanner) -> list[str]:
    if scan.take_if(r"\Q"):
        return [literal(char) for char in scan.take_until(r"\E")]
    if scan.take_if(r"\E"):
        return []
    if scan.peek() == "\\":
        scan.take()
        named = parse_escape_set(scan)
        if named is not None:
            return [f"[{named}]" if named.startswith("^") else named]
        low = scan.escaped_character()
    else:
        low = scan.take()
    # A dash before the end or a nested class stands for itself.
    if scan.peek() != "-" or scan.peek(1) in ("]", "[", ""):
        return [literal(low)]
    scan.take()
    high = _range_end(scan)
    if ord(high) < ord(low):
        raise refuse(scan, f"a range {low}-{high} that runs backwards")
    return [f"{literal(low)}-{literal(high)}"]


def _range_end(scan: Scanner) -> str:
    if scan.peek() != "\\":
        return scan.take()
    scan.take()
    if scan.peek() in ("Q", "E") or parse_escape_set(scan) is not None:
        raise refuse(scan, "a range that ends in a set")
    return scan.escaped_character()


def parse_escape_set(scan: Scanner) -> str | None:
    r"""Translate ``\d`` or ``\p{Alpha}`` into the inside of a class, ``^`` in front if negated.

    The backslash is already taken. Returns None, and takes nothing, if no set follows.
    """
    char = scan.peek()
    if char and char.lower() in _PREDEFINED:
        scan.take()
        ranges = _PREDEFINED[char.lower()]
        return f"^{ranges}" if char.isupper() else ranges
    if char not in ("p", "P") or not char:
        return None
    scan.take()
    name = scan.take_until("}") if scan.take_if("{") else scan.take()
    # Blocks, \p{Script=...} and the rest are rare enough to be refused.
    ranges = _POSIX.get(name) or _UNICODE.get(name) or ""
    if not ranges:
        raise refuse(scan, rf"\{char}{{{name}}}, a set that is not known")
    return f"^{ranges}" if char == "P" else ranges
