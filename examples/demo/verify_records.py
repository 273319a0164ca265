"""One record as the demo's proofs compare it, read with confluent-kafka."""

from confluent_kafka import Message

Fields = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], tuple[int, int]]
"""Key, value, headers, (timestamp type, timestamp)."""


class Difference(Exception):  # noqa: N818 - it is the answer of a comparison, not a failure of it
    """The first thing that is not equal."""


def fields(message: Message) -> Fields:
    """Return what must be equal of a message."""
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    assert not isinstance(value, str)
    given = message.headers() or []
    pairs = given.items() if isinstance(given, dict) else given
    headers = tuple((name, _bytes(text)) for name, text in pairs)
    return key, value, headers, message.timestamp()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
