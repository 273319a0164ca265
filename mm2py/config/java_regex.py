"""A Java pattern as a ``regex`` pattern (V1), or a refusal with its reason.

Flow: pattern text -> ``translate`` -> compiled with a match timeout. Only constructs that mean the
same are written; what Java refuses, or what cannot be expressed, raises ``ConfigError``. Names are
matched whole. The JVM's answers are in tests/data/config.
"""

import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import regex

from mm2py.config.java_regex_scan import Scanner, literal, parse_class, parse_escape_set, refuse
from mm2py.config.java_values import parse_list
from mm2py.errors import ConfigError

MATCH_TIMEOUT_S: Final = 0.1
SLOW_S: Final = 0.005
BUDGET_S: Final = 1.0
WINDOW_S: Final = 10.0
"""Slow matches of a pattern may take ``BUDGET_S`` of CPU together within this time: a thousand
names that each need a little less than the time-out would hold all flows of a process for longer
than a session."""
MAX_PATTERN_CHARS: Final = 65_536
MAX_REGEX_CHARS: Final = 16_384
"""For other than plain names: 65,536 characters of classes or groups take a second to compile."""

MAX_UNFOLDED: Final = 20_000
"""Steps that repetitions may unfold to: `regex` writes `a{n}` and `a+` out, nested ones too."""

MAX_GROUPS: Final = 2_000
"""Compiling takes the square of their number: 0.1 s here, 20 s for 30,000."""

_UNICODE_SET: Final = r"\p{"
_ANCHORS: Final = {
    "A": r"\A",
    "b": r"\b",
    "B": r"\B",
    "G": r"\G",
    # Java's \Z is before a last line end; that of regex is the end alone, as Java's \z.
    "Z": r"(?=\n?\Z)",
    "z": r"\Z",
}
_NAME: Final = re.compile(r"(?:[A-Za-z0-9._-]|\\\.)+")
_ALONE: Final = re.compile(r"(?:[A-Za-z0-9._*+?|-]|\\\.)*")
_NAMED_GROUP: Final = re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}")
_LOOKS: Final = ("?:", "?=", "?!", "?>", "?<=", "?<!")
# d and u change nothing for the ASCII names that Kafka has.
_SHOWN_CHARS: Final = 200
_KNOWN_FLAGS: Final = frozenset("imsdu")


class JavaPattern:
    """One compiled pattern; matches whole names."""

    __slots__ = ("_compiled", "_since_s", "_slow_s", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = _compile(text)
        self._since_s = self._slow_s = 0.0

    def matches(self, name: str) -> bool:
        """Whether the whole name matches; ``ConfigError``: the pattern needs too long on this name,
        or on those before it."""
        if self._slow_s > BUDGET_S and time.monotonic() - self._since_s <= WINDOW_S:
            raise self._too_slow(f"{BUDGET_S:g} s on names such as {name!r}")
        # CPU of this thread, not wall time: a busy machine must not make a pattern slow.
        began_s = time.thread_time()
        try:
            matched = self._compiled.fullmatch(name, timeout=MATCH_TIMEOUT_S) is not None
        except TimeoutError:
            raise self._too_slow(f"{MATCH_TIMEOUT_S} s on {name!r}") from None
        spent_s = time.thread_time() - began_s
        if spent_s > SLOW_S:
            now_s = time.monotonic()
            # The window starts over with the first slow match after it.
            if now_s - self._since_s > WINDOW_S:
                self._since_s, self._slow_s = now_s, 0.0
            self._slow_s += spent_s
        return matched

    def _too_slow(self, what: str) -> ConfigError:
        return ConfigError(
            f"pattern {self.text!r} needs more than {what}",
            remedy="write it without nested repetitions such as (a+)+",
        )

    def replaced(self, name: str, replacement: str) -> str | None:
        """Return a name that matches as a whole with its first match replaced
        (``Matcher.replaceFirst``), else None.

        Raises:
            ConfigError: the pattern needs too long on this name, or the replacement names a group
                that is not there.
        """
        if not self.matches(name):
            return None
        try:
            # RegexRouter: the whole name has to match, but replaceFirst replaces the first find.
            match = self._compiled.search(name, timeout=MATCH_TIMEOUT_S)
        except TimeoutError:
            raise self._too_slow(f"{MATCH_TIMEOUT_S} s on {name!r}") from None
        assert match is not None
        return name[: match.start()] + _expanded(match, replacement) + name[match.end() :]


def _expanded(match: "regex.Match[str]", replacement: str) -> str:
    """``Matcher.appendReplacement``: ``$1``, ``${name}``, and a backslash in front of what is meant
    as it is."""
    parts: list[str] = []
    at = 0
    while at < len(replacement):
        char = replacement[at]
        if char == "\\":
            if at + 1 == len(replacement):
                raise _no_group(replacement, "ends in a backslash")
            parts.append(replacement[at + 1])
            at += 2
        elif char != "$":
            parts.append(char)
            at += 1
        else:
            group, at = _group_reference(match, replacement, at + 1)
            # A group that took no part is empty in Java, None here.
            parts.append(match.group(group) or "")
    return "".join(parts)


def _group_reference(match: "regex.Match[str]", replacement: str, at: int) -> tuple[int | str, int]:
    named = _NAMED_GROUP.match(replacement, at)
    if named is not None:
        if named[1] not in match.re.groupindex:
            raise _no_group(replacement, f"names the group {named[1]}, which the pattern has not")
        return named[1], named.end()
    end = at
    # As many digits as a group has; the first one counts in any case.
    while end < len(replacement) and replacement[end] in "0123456789":
        if end > at and int(replacement[at : end + 1]) > match.re.groups:
            break
        end += 1
    if end == at:
        raise _no_group(replacement, "has a $ without a group")
    if int(replacement[at:end]) > match.re.groups:
        raise _no_group(
            replacement, f"names group {replacement[at:end]}, the pattern has {match.re.groups}"
        )
    return int(replacement[at:end]), end


def _no_group(replacement: str, why: str) -> ConfigError:
    return ConfigError(f"replacement {replacement!r} {why}", remedy="write \\$ for a dollar sign")


class PatternList:
    """A LIST of patterns as Java reads it: joined with ``|``, nothing if the list is empty.

    Raises:
        ConfigError: one of them cannot be used, or all together are too long.
    """

    __slots__ = ("_names", "_pattern", "items")

    def __init__(self, items: tuple[str, ...]) -> None:
        self.items = items
        length = sum(map(len, items)) + len(items) - 1
        if length > MAX_PATTERN_CHARS:
            raise ConfigError(
                f"{length} characters together, at most {MAX_PATTERN_CHARS} are allowed"
            )
        # Lists of thousands of names are common; as one pattern they would take seconds to compile.
        names, others = _told_apart(items)
        self._names = _NameSet(names)
        self._pattern = _joined(others) if others else None

    @classmethod
    def of(cls, text: str) -> "PatternList":
        return cls(parse_list(text))

    @property
    def names(self) -> frozenset[str]:
        """Items that are names; of a group that spans items also parts that do not match alone."""
        parts = (part for item in self.items for part in item.split("|"))
        return frozenset(part.replace("\\.", ".") for part in parts if _NAME.fullmatch(part))

    def matches(self, name: str) -> bool:
        if self._names.has(name):
            return True
        return self._pattern is not None and self._pattern.matches(name)


class _NameSet:
    """Patterns that are names, whose dots stand for any character: thousands need no compiler."""

    __slots__ = ("_texts",)

    def __init__(self, names: Iterable[str]) -> None:
        # Length -> places of the dots -> names.
        self._texts: dict[int, dict[tuple[int, ...], set[str]]] = {}
        for name in names:
            text = name.replace("\\.", "\0")
            dots = tuple(at for at, char in enumerate(text) if char == ".")
            of_length = self._texts.setdefault(len(text), {})
            of_length.setdefault(dots, set()).add(text.replace("\0", "."))

    def has(self, name: str) -> bool:
        for dots, texts in self._texts.get(len(name), {}).items():
            chars = list(name)
            for at in dots:
                chars[at] = "."
            if "".join(chars) in texts:
                return True
        return False


def _told_apart(items: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Return the items that are names, and the others; groups, classes and flags may span items."""
    # A group, class or flag may begin in one item and
    # end in another: Java joins before it compiles.
    if not all(map(_ALONE.fullmatch, items)):
        return [], items
    alternatives = [part for item in items for part in item.split("|")]
    names = [alternative for alternative in alternatives if _NAME.fullmatch(alternative)]
    others = tuple(alternative for alternative in alternatives if not _NAME.fullmatch(alternative))
    return names, others


def translate(text: str) -> str:
    """Return the ``regex`` (V1) pattern that means what the Java pattern means; ``ConfigError``:
    Java refuses the pattern, or it cannot be expressed."""
    if len(text) > MAX_REGEX_CHARS:
        raise ConfigError(
            f"pattern of {len(text)} characters is too long, at most {MAX_REGEX_CHARS} are allowed",
            remedy="plain names in a list of their own may have more",
        )
    return _Translator(text).run()


def _joined(items: tuple[str, ...]) -> JavaPattern:
    whole = "|".join(items)
    try:
        return JavaPattern(whole)
    except ConfigError:
        if len(whole) > MAX_REGEX_CHARS:
            raise
        for item in items:
            # Java joins before it compiles; this only finds the item to name in the message.
            try:
                JavaPattern(item)
            except ConfigError as error:
                hint = error.remedy
                if len(items) > 1 and ("{" in item or "(" in item or "[" in item):
                    hint = "a comma separates patterns, so {1,3} or (a,b) cannot be written"
                raise ConfigError(error.message, remedy=hint) from None
        raise


@lru_cache(maxsize=64)  # a list is compiled by the validation and again by its connector
def _compile(text: str) -> "regex.Pattern[str]":
    try:
        translated = translate(text)
        # ASCII keeps (?i) and \b to ASCII, as in Java, but would cut Unicode sets down to it.
        flags = regex.V1 if _UNICODE_SET in translated else regex.V1 | regex.ASCII
        return regex.compile(translated, flags)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"pattern {text[:_SHOWN_CHARS]!r} is no regular expression ({error})",
            remedy="correct the pattern",
        ) from None


class _Translator:
    """One pass over the pattern; ``_group`` is called for each nested group."""

    def __init__(self, text: str) -> None:
        self._scan = Scanner(text)
        self._ignores_case = False
        self._opened = 0
        self._groups = 0
        self._steps = 0
        self._closed: set[int] = set()
        self._names: dict[str, int] = {}

    def run(self) -> str:
        body = self._alternatives(depth=0)
        if not self._scan.at_end():
            raise refuse(self._scan, "an unmatched )")
        # Without ASCII, (?i) would fold all of Unicode, which Java does only with (?u).
        if self._ignores_case and _UNICODE_SET in body:
            raise refuse(self._scan, "a Unicode set together with (?i)")
        return body

    def _alternatives(self, depth: int) -> str:
        out: list[str] = []
        scan = self._scan
        while not scan.at_end() and scan.peek() != ")":
            if scan.peek() == "|":
                out.append(scan.take())
                continue
            before = self._steps
            atom, repeatable = self._atom(depth)
            quantifier, times = self._quantifier(repeatable=repeatable)
            out.append(atom + quantifier)
            self._steps = before + (self._steps - before + 1) * times
            if self._steps > MAX_UNFOLDED + len(scan.text):
                raise refuse(scan, f"repetitions of more than {MAX_UNFOLDED} steps together")
        return "".join(out)

    def _atom(self, depth: int) -> tuple[str, bool]:
        scan = self._scan
        char = scan.take()
        special: dict[str, Callable[[], tuple[str, bool]]] = {
            "(": lambda: self._group(depth + 1),
            "[": lambda: (parse_class(scan), True),
            "\\": self._escape,
            ".": lambda: (".", True),
            "^": lambda: ("^", False),
            "$": lambda: ("$", False),
        }
        if char in special:
            return special[char]()
        if char in "*+?":
            raise refuse(scan, f"{char!r} with nothing to repeat in front of it")
        # Java refuses it; regex would take it as text.
        if char == "{":
            raise refuse(scan, "'{' that is no repetition")
        return literal(char), True

    def _quantifier(self, *, repeatable: bool) -> tuple[str, int]:
        """Return a repetition, and how many times `regex` writes its atom."""
        scan = self._scan
        if scan.at_end() or scan.peek() not in "*+?{":
            return "", 1
        # Java versions differ here (``^*``), and it has no use in a name's pattern.
        if not repeatable:
            raise refuse(scan, "a repetition of an anchor")
        char = scan.take()
        text, times = (char, 2 if char == "+" else 1) if char != "{" else self._counts()
        # Reluctant and possessive forms mean the same in V1.
        if not scan.at_end() and scan.peek() in "?+":
            text += scan.take()
        if not scan.at_end() and scan.peek() in "*+?{":
            raise refuse(scan, "a repetition of a repetition")
        return text, times

    def _counts(self) -> tuple[str, int]:
        scan = self._scan
        low = scan.take_while(str.isdecimal)
        if not low:
            raise refuse(scan, "'{' that is no repetition")
        text, high = low, low
        if scan.take_if(","):
            high = scan.take_while(str.isdecimal)
            text = f"{low},{high}"
        if not scan.take_if("}"):
            raise refuse(scan, "a repetition {n,m} that is not closed")
        if (high and int(high) < int(low)) or int(high or low) > 2**31 - 1:
            raise refuse(scan, "an impossible repetition count")
        return f"{{{text}}}", int(high or low) + 1

    def _group(self, depth: int) -> tuple[str, bool]:
        scan = self._scan
        # The compiler is recursive: a deep pattern would end in RecursionError.
        if depth > 50:
            raise refuse(scan, "groups nested more than 50 deep")
        self._opened += 1
        if self._opened > MAX_GROUPS:
            raise refuse(scan, f"more than {MAX_GROUPS} groups")
        opening, number = self._opening()
        if opening.endswith(")"):
            return opening, False
        body = self._alternatives(depth)
        if not scan.take_if(")"):
            raise refuse(scan, "a group that is not closed")
        if number:
            self._closed.add(number)
        return f"{opening}{body})", True

    def _opening(self) -> tuple[str, int]:
        scan = self._scan
        if scan.at_end() or scan.peek() != "?":
            self._groups += 1
            return "(", self._groups
        for look in _LOOKS:
            if scan.take_if(look):
                return f"({look}", 0
        if scan.take_if("?<"):
            return self._named()
        scan.take()
        return self._inline_flags(), 0

    def _named(self) -> tuple[str, int]:
        scan = self._scan
        name = scan.take_while(lambda c: c.isascii() and c.isalnum())
        if not name or not name[0].isalpha() or not scan.take_if(">"):
            raise refuse(scan, "a group name that is not letters and digits")
        if name in self._names:
            raise refuse(scan, f"two groups named {name}")
        self._groups += 1
        self._names[name] = self._groups
        return f"(?P<{name}>", self._groups

    def _inline_flags(self) -> str:
        scan = self._scan
        on = scan.take_while(str.isalpha)
        off = scan.take_while(str.isalpha) if scan.take_if("-") else ""
        unknown = (set(on) | set(off)) - _KNOWN_FLAGS
        if unknown or scan.at_end() or scan.peek() not in ":)":
            raise refuse(
                scan, f"(?{on}{'-' + off if off else ''}: not a group or flag that is known"
            )
        on, off = (part.replace("d", "").replace("u", "") for part in (on, off))
        self._ignores_case |= "i" in on
        end = scan.take()
        flags = on + (f"-{off}" if off else "")
        if not flags:
            return "(?:" if end == ":" else "(?:)"
        return f"(?{flags}{end}"

    def _escape(self) -> tuple[str, bool]:
        scan = self._scan
        if scan.at_end():
            raise refuse(scan, "a backslash at the end")
        char = scan.peek()
        if char == "Q":
            scan.take()
            return self._quoted()
        if char in _ANCHORS:
            scan.take()
            if char == "b" and not scan.at_end() and scan.peek() == "{":
                raise refuse(scan, r"\b{g}, a boundary of graphemes")
            return _ANCHORS[char], False
        return self._escaped_atom(char), True

    def _escaped_atom(self, char: str) -> str:
        scan = self._scan
        if char in "123456789":
            return self._reference()
        if scan.take_if("k"):
            return self._named_reference()
        if scan.take_if("R"):
            return r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])"
        ranges = parse_escape_set(scan)
        return literal(scan.escaped_character()) if ranges is None else f"[{ranges}]"

    def _quoted(self) -> tuple[str, bool]:
        quoted = self._scan.take_until(r"\E")
        if not quoted:
            return "(?:)", False
        # Java repeats only the last character of a quotation.
        return "".join(literal(c) for c in quoted), True

    def _named_reference(self) -> str:
        scan = self._scan
        name = scan.take_until(">") if scan.take_if("<") else ""
        if name not in self._names:
            raise refuse(scan, r"\k without the name of an earlier group")
        return self._back_reference(self._names[name])

    def _reference(self) -> str:
        scan = self._scan
        number = int(scan.take())
        while not scan.at_end() and scan.peek() in "0123456789":
            # Java takes further digits only while a group of that number exists.
            if number * 10 + int(scan.peek()) > self._groups:
                break
            number = number * 10 + int(scan.take())
        return self._back_reference(number)

    def _back_reference(self, number: int) -> str:
        # Inside or before its group a reference fails in Java, and regex treats it otherwise.
        if number not in self._closed:
            raise refuse(self._scan, f"\\{number} in front of the end of group {number}")
        # In a group of its own, so that a digit behind it is no part of the number.
        return rf"(?:\{number})"
