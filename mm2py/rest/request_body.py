"""Reads whole bodies within bounds: how long, how slowly, how many at once.

Flow: ASGI ``receive`` -> ``BodyReader.read`` -> bytes, or the refusal to answer with ->
``replayed`` for the application. Its user has decided before that the caller may send a body at
all.
"""

import asyncio
import mmap
from contextlib import nullcontext
from typing import Final, final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from mm2py.rest.answers import error_response, framework_text

CLOSE: Final = {"Connection": "close"}
"""Of an answer to a caller whose body is not read: the connection cannot be used again."""

_DEADLINE_S: Final = 10.0
_SMALL_BYTES: Final = 64 * 1024
"""Bodies of this size wait for no turn, as all connections together can send only so many: slow
senders of large ones keep no change of a flow waiting."""


@final
class BodyReader:
    """Reads at most ``at_once`` large bodies at a time, each of ``max_bytes`` and within
    ``deadline_s``.

    ``limit_name`` is the property that sets ``max_bytes``, for the refusal.
    """

    def __init__(
        self, max_bytes: int, *, at_once: int, deadline_s: float = _DEADLINE_S, limit_name: str = ""
    ) -> None:
        self._max_bytes, self._deadline_s, self._limit_name = max_bytes, deadline_s, limit_name
        self._turns = asyncio.Semaphore(at_once)

    async def read(self, scope: Scope, receive: Receive) -> bytes | Response:
        """Return the body, or the answer to a request whose body was not read."""
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        # Refused before the first byte is read.
        if declared.isdecimal() and int(declared) > self._max_bytes:
            return self._too_long()
        if declared in ("", "0") and "transfer-encoding" not in headers:
            return await self._whole(receive)
        small = declared.isdecimal() and int(declared) <= _SMALL_BYTES
        try:
            async with asyncio.timeout(self._deadline_s), nullcontext() if small else self._turns:
                return await self._whole(receive)
        except TimeoutError:
            return error_response(408, framework_text(408), CLOSE)

    async def _whole(self, receive: Receive) -> bytes | Response:
        # Pages of its own, taken as they are filled: chunks in the heap would leave holes there.
        with mmap.mmap(-1, self._max_bytes) as body:
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return error_response(400, "The client went away in the middle of its request")
                chunk: bytes = message.get("body", b"")
                # Chunked bodies declare no length.
                if body.tell() + len(chunk) > self._max_bytes:
                    return self._too_long()
                body.write(chunk)
                more = message.get("more_body", False)
            return body[: body.tell()]

    def _too_long(self) -> Response:
        where = f" ({self._limit_name})" if self._limit_name else ""
        text = f"Request body is longer than {self._max_bytes} bytes{where}"
        return error_response(413, text, CLOSE)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives a body that was read already."""
    bodies = [body]

    async def receive_again() -> Message:
        if not bodies:
            return await receive()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    return receive_again
