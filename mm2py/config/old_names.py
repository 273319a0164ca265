"""Old and mistaken names of connector options that work as what was meant.

``topics.blacklist`` and its kin were names of MirrorMaker 2 until 3.x (the new name won where both
stood); from 4.0 on Java ignores them in silence and copies more than was asked for. Intervals in
milliseconds stand in vendors' guides and never worked in Java.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

RENAMED: Final = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
    "topics.whitelist": "topics",
    "groups.whitelist": "groups",
}
_INTERVAL_MS: Final = re.compile(r"(.+\.interval)\.ms")
_MS_PER_SECOND: Final = 1_000


class Modern(NamedTuple):
    """The current option of an old name; ``value`` is its text there."""

    name: str
    value: str
    why: str


def modern_name(name: str, value: str, options: Collection[str]) -> Modern | None:
    """Return what an old name means, None where ``name`` is not one.

    Milliseconds become whole seconds, rounded up, at least one; a text that is no number is kept,
    so that the check of the option refuses it.
    """
    if name in RENAMED:
        return Modern(
            RENAMED[name], value, f"is the old name of {RENAMED[name]}; Java ignores it since 4.0"
        )
    match = _INTERVAL_MS.fullmatch(name)
    if match is None or name in options or f"{match[1]}.seconds" not in options:
        return None
    seconds = f"{match[1]}.seconds"
    text = value.strip()
    if text.isascii() and text.isdigit():
        text = str(max(1, -(-int(text) // _MS_PER_SECOND)))
    return Modern(seconds, text, f"is taken as {seconds}={text}; Java does not know it")
