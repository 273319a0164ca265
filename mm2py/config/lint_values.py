"""Findings about the text of values: comments, quotes, blanks, backslashes, patterns, classes."""

import re
from typing import Final

from mm2py.config.catalog import Catalog, Scope
from mm2py.config.class_names import canonical_class, is_foreign_java_class
from mm2py.config.findings import Finding, Severity
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, parse_list
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.normalise import is_class_property, is_switch
from mm2py.config.properties import Property
from mm2py.errors import ConfigError

_COMMENT: Final = re.compile(r"(^|\s)#")
_PLACEHOLDER: Final = re.compile(r"\s*<[^<>]+>\s*")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES: Final = frozenset("tnrfu\\ :=#!")
_QUOTES: Final = ('"', "'")
_FREE_TEXT: Final = (None, JavaType.STRING, JavaType.PASSWORD)
# Choosing other topics or names than the user's class would is worse than not starting.
_DECIDING_CLASSES: Final = (
    "replication.policy.class",
    "topic.filter.class",
    "group.filter.class",
    "config.property.filter.class",
)


def value_findings(config: MirrorMakerConfig, catalog: Catalog) -> list[Finding]:
    """Return what is to say about the values of a file."""
    found = [
        Finding(
            Severity.WARNING,
            entry.line,
            entry.key,
            f"line {config.raw[entry.key].line} sets it again, and the last one counts",
            "remove one of the two",
        )
        for entry in config.file.duplicates
    ]
    for entry in config.file.entries:
        scope = catalog.scope(entry.key)
        kind = catalog.java_type(scope)
        comment = _comment(entry, kind)
        found += comment
        if not comment:
            found += _placeholder(entry)
            found += _blanks(entry, kind)
            found += _quotes(entry, kind)
            found += _backslashes(entry, kind)
            found += _patterns(config, scope, entry, kind)
            found += _classes(entry)
        found += _characters(entry)
    return found


def _finding(severity: Severity, entry: Property, message: str, remedy: str = "") -> list[Finding]:
    return [Finding(severity, entry.line, entry.key, message, remedy)]


def _shown(entry: Property, kind: JavaType | None) -> str:
    secret = kind is JavaType.PASSWORD or "password" in entry.key or "jaas" in entry.key
    return "********" if secret else repr(entry.value)


def _comment(entry: Property, kind: JavaType | None) -> list[Finding]:
    if not _COMMENT.search(entry.value):
        return []
    typed = kind not in _FREE_TEXT or is_switch(entry.key)
    return _finding(
        Severity.ERROR if typed else Severity.WARNING,
        entry,
        f"{_shown(entry, kind)} contains what looks like a comment; in a properties file it is a "
        "part of the value",
        "put the comment on a line of its own",
    )


def _placeholder(entry: Property) -> list[Finding]:
    if not _PLACEHOLDER.fullmatch(entry.value) and not re.search(r"<[^<>=]*>", entry.key):
        return []
    return _finding(
        Severity.ERROR,
        entry,
        "contains a placeholder <...> of a guide or template",
        "replace it by the real text",
    )


def _blanks(entry: Property, kind: JavaType | None) -> list[Finding]:
    if entry.value == entry.value.rstrip() or is_switch(entry.key):
        return []
    # What no ConfigDef reads is not trimmed; the replication policy reads its separator itself.
    raw = kind is None or entry.key.endswith("replication.policy.separator")
    if raw and not is_class_property(entry.key):
        return _finding(
            Severity.WARNING,
            entry,
            "ends in a blank, which is a part of the value, as in Java",
            "remove the blank",
        )
    return _finding(Severity.INFO, entry, "ends in a blank, which is left out", "remove the blank")


def _quotes(entry: Property, kind: JavaType | None) -> list[Finding]:
    text = entry.value.strip()
    if len(text) < 2 or text[0] not in _QUOTES or text[-1] != text[0]:
        return []
    if kind is JavaType.PATTERNS:
        items = [f".{it}" if it.startswith("*") else it for it in parse_list(text[1:-1])]
        return _finding(
            Severity.WARNING,
            entry,
            "the patterns begin and end with a quote, as in Java, and match nothing",
            f"write {entry.key} = {', '.join(items)}",
        )
    if kind is JavaType.PASSWORD:
        return []
    return _finding(
        Severity.WARNING,
        entry,
        "the quotes are a part of the value, as in Java",
        "remove the quotes",
    )


def _backslashes(entry: Property, kind: JavaType | None) -> list[Finding]:
    lost = [e for e in _ESCAPE.findall(entry.raw_value) if e not in _KNOWN_ESCAPES]
    if not lost:
        return []
    what = "effective pattern" if kind is JavaType.PATTERNS else "effective value"
    return _finding(
        Severity.WARNING,
        entry,
        f"a single backslash is dropped, as in Java; {what}: {_shown(entry, kind)}",
        "write two backslashes for one",
    )


def _patterns(
    config: MirrorMakerConfig, scope: Scope, entry: Property, kind: JavaType | None
) -> list[Finding]:
    if kind not in (JavaType.LIST, JavaType.PATTERNS):
        return []
    found: list[Finding] = []
    items = parse_list(entry.value)
    if "" in items:
        found += _finding(
            Severity.WARNING, entry, "has an empty item between its commas", "remove the comma"
        )
    if kind is not JavaType.PATTERNS or scope.kind == "cluster":
        return found
    try:
        PatternList.of(config.providers.resolve_text(entry.value))
    except ConfigError as error:
        remedy = error.remedy
        globs = [item for item in items if item.startswith("*")]
        if globs:
            remedy = f"write .{globs[0]} instead of {globs[0]}: these are Java patterns"
        found += _finding(Severity.ERROR, entry, error.message, remedy)
    return found


def _classes(entry: Property) -> list[Finding]:
    if not is_class_property(entry.key) or not is_foreign_java_class(entry.value):
        return []
    name = canonical_class(entry.value)
    if entry.key.endswith(_DECIDING_CLASSES):
        return _finding(
            Severity.ERROR,
            entry,
            f"the Java class {name} cannot be loaded here",
            "use a built-in class, or a Python class as package.module:Class",
        )
    return _finding(
        Severity.WARNING,
        entry,
        f"the Java class {name} has no effect: keys, values and headers are copied as bytes",
        "remove it",
    )


def _characters(entry: Property) -> list[Finding]:
    if entry.value.isascii() and entry.key.isascii():
        return []
    return _finding(
        Severity.WARNING,
        entry,
        "has characters outside of ASCII, which are read as ISO-8859-1, as in Java",
        "write them as \\uXXXX",
    )
