"""Bytes between a worker and a task host: version 1.

::

    u32 length (of what follows, big endian) | u8 version | UTF-8 JSON {"t": type, "f": flow channel, ...}

Channel 0 is the host itself; every flow on a host has one of its own. Anything else is a ``ProtocolError``,
after which the pipe cannot be used. No I/O.
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mm2py.errors import ProtocolError
from mm2py.runtime.hosts.messages import (
    Bye,
    CloseFlow,
    Done,
    FirstRecord,
    FromHost,
    Hello,
    Hold,
    Incarnation,
    IncarnationsAnswer,
    IncarnationsQuestion,
    LeaseUntil,
    LedgerEntry,
    LedgerOk,
    LogLevel,
    LogLine,
    Meters,
    OpenFlow,
    PauseTask,
    Resume,
    StartTask,
    StopTask,
    Suspend,
    TaskStatus,
    ToHost,
)

__all__ = ["HEADER", "Envelope", "Message", "body_size", "decode_body", "encode_frame"]

HEADER: Final = struct.Struct(">IB")
VERSION: Final = 1
LONGEST_BYTES: Final = 64 << 20
"""The largest is a task's config with its partitions: a few MB at most."""

Message = ToHost | FromHost

_REMEDY: Final = "run the same version of mm2py in every process"

_TYPES: Final[Mapping[str, type[Message]]] = {
    "flow": OpenFlow,
    "start": StartTask,
    "stop": StopTask,
    "pause": PauseTask,
    "hold": Hold,
    "suspend": Suspend,
    "resume": Resume,
    "lease": LeaseUntil,
    "log_level": LogLevel,
    "ledger_ok": LedgerOk,
    "incarnations": IncarnationsAnswer,
    "close": CloseFlow,
    "bye": Bye,
    "hello": Hello,
    "done": Done,
    "status": TaskStatus,
    "meters": Meters,
    "topic": FirstRecord,
    "ledger": LedgerEntry,
    "incarnations?": IncarnationsQuestion,
    "incarnation": Incarnation,
    "log": LogLine,
}
_WORDS: Final = {cls: word for word, cls in _TYPES.items()}


class Envelope(NamedTuple):
    """A message and the channel it belongs to."""

    channel: int
    message: Message


def encode_frame(channel: int, message: Message) -> bytes:
    """Return the frame of a message."""
    word = _WORDS[type(message)]
    fields = _adapter(word).dump_json(message)[1:]
    start = f'{{"t":"{word}","f":{channel}'.encode()
    body = b"".join((start, b"" if fields == b"}" else b",", fields))
    return HEADER.pack(len(body) + 1, VERSION) + body


def body_size(header: bytes) -> int:
    """Return how many bytes follow a header.

    Raises:
        ProtocolError: no frame of this version.
    """
    length, version = HEADER.unpack(header)
    if version != VERSION or not 1 < length <= LONGEST_BYTES:
        raise ProtocolError(
            f"frame of version {version} and {length} bytes between worker and task host",
            remedy=_REMEDY,
        )
    return cast("int", length) - 1


def decode_body(body: bytes) -> Envelope:
    """Read what follows a header.

    Raises:
        ProtocolError: it is no message.
    """
    try:
        parsed: object = from_json(body)
    except ValueError as error:
        raise _damaged(f"{len(body)} bytes that are not JSON") from error
    if not isinstance(parsed, dict):
        raise _damaged("JSON that is not an object")
    fields = cast("dict[str, object]", parsed)
    word, channel = fields.pop("t", None), fields.pop("f", None)
    if not isinstance(word, str) or word not in _TYPES or not isinstance(channel, int):
        raise _damaged(f"type {word!r}, channel {channel!r}")
    try:
        return Envelope(channel, _adapter(word).validate_python(fields))
    except (ValidationError, ValueError, TypeError):
        # Without the cause: it quotes the values, and those may be secrets.
        raise _damaged(f"type {word!r} with fields that are missing or wrong") from None


@cache
def _adapter(word: str) -> TypeAdapter[Message]:
    return TypeAdapter(_TYPES[word])


def _damaged(what: str) -> ProtocolError:
    return ProtocolError(f"damaged message between worker and task host: {what}", remedy=_REMEDY)
