"""What a request of ``/flows`` or ``/jobs`` gets wrong, in our words: which member or parameter,
what was given, what is right.

Flow: pydantic's errors -> one line. A text of a body is never repeated: it may be a secret.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

SHOWN_CHARS: Final = 60
_SHOWN_SOURCES: Final = frozenset({"query", "path"})
"""Where texts are repeated: an address is in logs of proxies, and holds no secret."""
_CONFIGS: Final = frozenset({"config", "connectors"})
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}

_Words = Callable[[Mapping[str, Any]], str]

_WHOLE: Final = "must be a whole number"
_OBJECT: Final = "must be a JSON object"
_BOOLEAN: Final = "must be true or false"


def _of(text: str) -> _Words:
    return lambda _: text


_WORDS: Final[Mapping[str, _Words]] = {
    "missing": _of("is needed"),
    "extra_forbidden": _of("is not known here; see /openapi.json"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _of(_WHOLE)),
    **dict.fromkeys(("bool_type", "bool_parsing"), _of(_BOOLEAN)),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _of(_OBJECT)),
    "string_type": _of("must be a text"),
    "string_too_short": lambda it: _length("at least", it["min_length"]),
    "string_too_long": lambda it: _length("at most", it["max_length"]),
    "string_pattern_mismatch": lambda it: f"must fit {it['pattern']}",
    "greater_than_equal": lambda it: f"must be at least {it['ge']}",
    "less_than_equal": lambda it: f"must be at most {it['le']}",
    "enum": lambda it: f"must be one of {str(it['expected']).replace(' or ', ', ')}",
    "value_error": lambda it: str(it["error"]),
}
"""By the type of pydantic's error, from its context."""
_WITHOUT_GIVEN: Final = frozenset({"missing", "extra_forbidden", "value_error"})


def refusal_text(errors: Iterable[Mapping[str, Any]], source: str = "") -> str:
    """Return what is wrong with a request; ``source``: where all of it is, as ``body``, where the
    errors do not say."""
    return "; ".join(_one(error, source) for error in errors)


def _one(error: Mapping[str, Any], source: str) -> str:
    place: Sequence[object] = (*([source] if source else ()), *error["loc"])
    kind = str(error["type"])
    words = _WORDS.get(kind)
    text = "cannot be used" if words is None else words(error.get("ctx") or {})
    given = "" if kind in _WITHOUT_GIVEN else _given(place, error.get("input"))
    # Pydantic's name for a key of an object, as against its value.
    where = ".".join(str(it) for it in place if it != "[key]")
    return f"{where}: {text}{given and f'; given is {given}'}"


def _given(place: Sequence[object], value: object) -> str:
    if value is None:
        return "null"
    if place[0] in _SHOWN_SOURCES:
        text = str(value)
        return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}...")
    if isinstance(value, int | float) and not _CONFIGS & set(map(str, place)):
        return str(value).lower()
    return next((name for kind, name in _KINDS.items() if isinstance(value, kind)), "another thing")


def _length(bound: str, chars: int) -> str:
    if bound == "at least" and chars == 1:
        return "must not be empty"
    return f"must have {bound} {chars} characters"
