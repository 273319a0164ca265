"""Character classes of a Java pattern: ranges, unions, intersections and the named sets.

Flow: ``Scanner`` behind ``[`` or a backslash -> the same class in ``regex``'s V1 syntax. Every
character is written escaped, so that ``--``, ``||`` and ``[:alpha:]``, which mean nothing to Java,
mean nothing to ``regex`` either.
"""

from typing import Final

from mm2py.config.java_regex_scan import Scanner, literal, refuse

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
        if scan.peek() == "]" and (items or operands):
            scan.take()
            break
        if scan.take_if("&&"):
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
