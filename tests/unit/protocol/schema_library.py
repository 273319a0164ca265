"""Requests and answers through the schema classes of kafka-python: read what we send, send what we read."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from mm2py.protocol.call import Call

if TYPE_CHECKING:  # our schemas load this package, and only in the way that they need
    from kafka.protocol.api_message import ApiMessage

Message = TypeVar("Message", bound="ApiMessage")
Answer = TypeVar("Answer")


def asked(call: Call[object], kind: type[Message], version: int) -> Message:
    """Return the request as a broker reads it."""
    return kind.decode(call.encode(version, 1, "me")[4:], version=version, header=True)


def body(answer: "ApiMessage", version: int) -> memoryview:
    """Return the bytes of an answer as our decoders get them, without size and correlation id."""
    answer.API_VERSION = version
    answer.with_header(7)
    return memoryview(answer.encode(header=True))[4:]


def answered(call: Call[Answer], answer: "ApiMessage", version: int) -> Answer:
    """Return what we read of a broker's answer."""
    return call.decode(version, body(answer, version))


def in_every_version(
    versions: Iterable[int],
) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Make one test of all versions: hundreds of tests cost more than what they do."""

    def made(test: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            for version in versions:
                try:
                    test(version)
                except BaseException as error:
                    error.add_note(f"in version {version}")
                    raise

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return made
