"""The one codec of our own topics' records: a version byte, then an ASCII JSON object
(docs/reference/formats.md).

Flow: members -> ``encode`` -> value of a record -> ``decode`` -> ``Members``, which check the type
of what is read. Members that a version does not know are ignored by every reader. No I/O.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar, cast, final

from pydantic import TypeAdapter, ValidationError

from mm2py.errors import FatalError, ProtocolError

VERSION: Final = 1
_HALF: Final = "\\ud"
"""How the escape of a surrogate begins, that of one in a pair too."""
_INT64: Final = range(-(1 << 63), 1 << 63)
T = TypeVar("T")


def encode(members: Mapping[str, object], *, in_order: bool = False) -> bytes:
    """Return the value of a record; members are sorted unless they are ``in_order``."""
    text = json.dumps(members, separators=(",", ":"), sort_keys=not in_order)
    # Names from REST and the file may hold half of a surrogate pair; ``json.dumps`` escapes it, and
    # no UTF-8 reader takes it back.
    if _HALF in text:
        text = json.dumps(_whole(members), separators=(",", ":"), sort_keys=not in_order)
    return bytes((VERSION,)) + text.encode("ascii")


def decode(value: bytes | None) -> "Members":
    """Read the value of a record; ``ProtocolError``: it is empty, of another version, or no JSON
    object."""
    if not value:
        raise ProtocolError("empty value")
    if value[0] != VERSION:
        raise ProtocolError(f"version {value[0]}, this program knows {VERSION}")
    try:
        document = loaded(value[1:])
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON behind the version byte") from None
    return _members(document, "not a JSON object behind the version byte")


def decode_as(adapter: TypeAdapter[T], plain: bytes, what: str) -> T:
    """Read the JSON object of a record as a value; ``ProtocolError``: it is none; ``what`` names
    the record."""
    try:
        # pydantic's parser refuses such an escape, Python's accepts it: those few documents take
        # the detour.
        return adapter.validate_json(json.dumps(loaded(plain)) if _has_half(plain) else plain)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise ProtocolError(f"damaged record {what}: {first}") from None
    except (ValueError, RecursionError):
        raise ProtocolError(f"damaged record {what}: no JSON") from None


def loaded(data: bytes) -> object:
    """Return the value of JSON, without halves of surrogate pairs.

    Raises:
        ValueError, RecursionError: it is none.
    """
    document: object = json.loads(data)
    return _whole(document) if _has_half(data) else document


def _has_half(data: bytes) -> bool:
    # JSON allows upper and lower case hexadecimal digits.
    return _HALF.encode() in data.lower()


def _whole(document: object) -> object:
    """Put a question mark for each half of a surrogate pair: JSON can hold it, no answer of REST
    can, nor a text that pydantic reads."""
    whole: object = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    return whole


def unreadable(topic: str, error: ProtocolError) -> FatalError:
    """Return the refusal to act beside a record that this version cannot read: the state that
    counts is in it."""
    return FatalError(
        f"the newest record of {topic} cannot be read: {error}",
        remedy="use the version of mm2py that wrote it, or a newer one",
    )


@final
class Members:
    """A JSON object; every method raises ``ProtocolError`` with the name of a member that is not
    what is asked for."""

    def __init__(self, members: Mapping[str, object]) -> None:
        self._members = members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; one that is absent is ``default``, where that is given."""
        value = self._members.get(name, default)
        if not isinstance(value, str):
            raise ProtocolError(f"member {name} is not a text")
        return value

    def nullable(self, name: str) -> str | None:
        return None if self._members.get(name) is None else self.text(name)

    def number(self, name: str, default: int | None = None) -> int:
        """Return a 64-bit number; one that is absent is ``default``, where that is given."""
        value = self._members.get(name, default)
        # Python's bool is an int, JSON's is not; a number of any length decodes, but no format of
        # Kafka holds it.
        if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
            raise ProtocolError(f"member {name} is not a 64-bit number")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose members are texts."""
        inner = _members(self._members.get(name), f"member {name} is not an object")
        return {key: inner.text(key) for key in inner}

    def objects(self, name: str) -> "Iterator[Members]":
        value = self._members.get(name)
        if not isinstance(value, list):
            raise ProtocolError(f"member {name} is not a list")
        for item in cast("list[object]", value):
            yield _members(item, f"member {name} has an item that is not an object")


def _members(value: object, otherwise: str) -> Members:
    if not isinstance(value, dict):
        raise ProtocolError(otherwise)
    return Members(cast("dict[str, object]", value))
