"""How long names, keys, values and whole connector configs may be; pure.

Flow: config of a request, or what a change makes of a connector -> ``limit_problem`` -> 400 before
anything is written. Kafka's default ``max.message.bytes`` is 1,048,588; a connector's config is one
record in the config topic, and task configs repeat it with their partitions.
"""

import json
from collections.abc import Mapping
from typing import Final

MAX_NAME_CHARS: Final = 255
MAX_KEY_CHARS: Final = 255
MAX_VALUE_BYTES: Final = 512 * 1024
"""2,000 topic names of the longest kind."""

MAX_KEYS: Final = 2_000
MAX_CONFIG_BYTES: Final = 900_000
"""Size of a connector's config as JSON."""

_SHOWN_CHARS: Final = 40


def limit_problem(name: str, config: Mapping[str, str | None]) -> str:
    """Return what of a connector's config is too long, with size and limit; empty for none."""
    if len(name) > MAX_NAME_CHARS:
        return (
            f"The name of a connector has {len(name)} characters, at most {MAX_NAME_CHARS} are"
            f" allowed: {_start(name)}"
        )
    if len(config) > MAX_KEYS:
        return f"A configuration has {len(config)} keys, at most {MAX_KEYS} are allowed"
    for key, value in config.items():
        if len(key) > MAX_KEY_CHARS:
            return (
                f"A configuration key has {len(key)} characters, at most {MAX_KEY_CHARS} are"
                f" allowed: {_start(key)}"
            )
        # A text of n characters has n bytes or more: short ones need not be encoded.
        size_bytes = _size_bytes(value) if value and len(value) * 4 > MAX_VALUE_BYTES else 0
        if size_bytes > MAX_VALUE_BYTES:
            return (
                f"The value of {key} has {size_bytes} bytes, at most {MAX_VALUE_BYTES} are allowed"
            )
    size_bytes = _size_bytes(json.dumps(dict(config), ensure_ascii=False))
    if size_bytes > MAX_CONFIG_BYTES:
        return (
            f"The configuration of connector {name} would have {size_bytes} bytes, at most"
            f" {MAX_CONFIG_BYTES} fit a record of the config topic"
        )
    return ""


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _start(text: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in text[:_SHOWN_CHARS])
    return f"{shown}..."
