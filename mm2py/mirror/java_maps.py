"""Maps as a Java worker orders and prints them.

Flow: members -> the order of a ``HashMap`` -> keys of the offset topic, texts of errors. Java's workers look
stored positions up by their bytes, so the order is part of the format.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

V = TypeVar("V")


def hash_map_order(members: Mapping[str, V]) -> dict[str, V]:
    """Return the members in the order in which a ``HashMap`` filled with them is walked."""
    capacity = 16
    while len(members) > capacity * 3 // 4:
        capacity *= 2
    return dict(sorted(members.items(), key=lambda member: _bucket(member[0], capacity)))


def java_text(value: object) -> str:
    """Return a value as ``String.valueOf`` prints it; maps in the order of a ``HashMap``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return _members_text(cast("Mapping[object, object]", value).items())
    return str(value)


def _members_text(members: Iterable[tuple[object, object]]) -> str:
    by_name = hash_map_order({str(name): value for name, value in members})
    return "{" + ", ".join(f"{name}={java_text(value)}" for name, value in by_name.items()) + "}"


def _bucket(text: str, capacity: int) -> int:
    value = 0
    units = text.encode("utf-16-be", errors="surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & (capacity - 1)
