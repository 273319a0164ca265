"""``response.http.headers.config`` and ``access.control.*`` as values.

Flow: property texts -> rules and origins -> ``rest.response_headers``. What Java accepts and would
not do as it reads is refused.
"""

import csv
import re
from dataclasses import dataclass
from typing import Final

from mm2py.errors import ConfigError

_ACTIONS: Final = {"set": "set", "add": "add", "setdate": "setDate", "adddate": "addDate"}
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_MILLISECONDS: Final = re.compile(r"-?[0-9]{1,15}")
_ORIGIN: Final = re.compile(r"https?://[^\s/*?#@]+", re.IGNORECASE)
_METHOD: Final = re.compile(r"[A-Z]+")
_FORM: Final = "write [set|add|setDate|addDate] <name>:<value>, rules with commas in double quotes"
_DEFAULT_METHODS: Final = "POST,HEAD,GET"
"""Jetty's default."""


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """One header of every answer; of the two date actions the value is milliseconds from now."""

    action: str
    name: str
    value: str


def header_rules(text: str) -> tuple[HeaderRule, ...]:
    """Read ``response.http.headers.config``; ``ConfigError``: a rule has a bad action, name or
    value; does not name the property."""
    if not text.strip():
        return ()
    if "\n" in text or "\r" in text:
        raise ConfigError("has more than one line", remedy=_FORM)
    try:
        # As Jetty's StringUtil.csvSplit, which Connect's header filter uses.
        items = next(csv.reader([text.strip()], skipinitialspace=True, strict=True))
    except csv.Error:
        raise ConfigError("has quotes that do not match", remedy=_FORM) from None
    return tuple(map(_rule, items))


def _rule(item: str) -> HeaderRule:
    action, _, header = item.strip().partition(" ")
    name, colon, value = header.partition(":")
    known = _ACTIONS.get(action.lower())
    if known is None:
        raise ConfigError(f"has the action {action!r}", remedy=_FORM)
    if not colon or not _NAME.fullmatch(name.strip()):
        raise ConfigError(f"has {header.strip()!r}, which is no name and value", remedy=_FORM)
    text = value.strip()
    if not _VALUE.fullmatch(text):
        raise ConfigError(f"has a value for {name.strip()} that no header can hold", remedy=_FORM)
    if known.endswith("Date") and not _MILLISECONDS.fullmatch(text):
        raise ConfigError(
            f"has {text!r} as a date for {name.strip()}", remedy="write milliseconds from now"
        )
    return HeaderRule(known, name.strip(), text)


def allowed_origins(text: str) -> frozenset[str]:
    """Read ``access.control.allow.origin``: origins in lower case, or ``*``. ``ConfigError``: an
    entry is no origin; does not name the property."""
    origins = [item.strip() for item in text.split(",") if item.strip()]
    for origin in origins:
        # Java takes patterns here; a pattern read otherwise than meant would admit foreign origins.
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"has {origin!r}, which is no origin",
                remedy="write scheme://host[:port] in full, or * for all",
            )
    return frozenset(origin.lower() for origin in origins)


def allowed_methods(text: str) -> str:
    """Read ``access.control.allow.methods``: what a preflight is answered. ``ConfigError``: an
    entry is no method; does not name the property."""
    methods = [item.strip().upper() for item in text.split(",") if item.strip()]
    for method in methods:
        if not _METHOD.fullmatch(method):
            raise ConfigError(f"has {method!r}, which is no method", remedy="write GET,POST,PUT")
    return ",".join(methods) or _DEFAULT_METHODS
