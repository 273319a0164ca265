"""One end of the pipe between a worker and a task host.

Flow: ``send`` -> frame -> socket -> ``receive`` of the other end, in order. Sending never waits; who sends
what may be left out (a log line) looks at ``clogged`` first.
"""

import asyncio
import socket
from typing import Final, final

from mm2py.runtime.hosts.frames import (
    HEADER,
    Envelope,
    Message,
    body_size,
    decode_body,
    encode_frame,
)

__all__ = ["HostPipe"]

CLOGGED_ABOVE_BYTES: Final = 4 << 20
"""With more than this not taken by the other side, which must be frozen then."""


@final
class HostPipe:
    """Sends and receives messages over a stream socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "HostPipe":
        """Take a connected socket over."""
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer)

    @property
    def clogged(self) -> bool:
        """Whether the other side does not read."""
        return self._writer.transport.get_write_buffer_size() > CLOGGED_ABOVE_BYTES

    def send(self, channel: int, message: Message) -> None:
        """Post a message; nothing happens when the pipe is closed."""
        if not self._writer.is_closing():
            self._writer.write(encode_frame(channel, message))

    async def receive(self) -> Envelope | None:
        """Return the next message, None when the other side is gone.

        Raises:
            ProtocolError: the bytes are no message.
        """
        try:
            size = body_size(await self._reader.readexactly(HEADER.size))
            return decode_body(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def hang_up(self) -> None:
        """End the pipe at once, as the death of this process would."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Write what was posted as far as the other side takes it, and close; safe twice."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            # The other side is gone: nothing is left to close.
            return
