"""One socket of ours, plain or TLS, read and written as it becomes ready.

Flow: ``Wire.write`` -> kernel; kernel -> the peer's ``get_buffer`` -> ``buffer_updated``. Plain parts leave as an
iovec, uncopied. Under TLS OpenSSL reads and writes the socket itself, a record at a time, from and to the caller's
buffers: asyncio's TLS goes through two memory BIOs and copies each byte several times.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol, final

__all__ = ["Buffer", "Peer", "Wire", "start_tls"]

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

_IOVEC_PARTS: Final = 512
"""Buffers per ``sendmsg``; Linux refuses more than 1024 (``IOV_MAX``)."""

_RECORD_BYTES: Final = 16 * 1024
"""Content of one TLS record; shorter parts are joined, for each one would become a record of its own."""

_READ_BYTES: Final = 1024 * 1024
"""Read under TLS per wake-up, then others get their turn."""

_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Peer(Protocol):
    """What reads from a wire: ``asyncio.BufferedProtocol`` without the transport."""

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        ...

    def buffer_updated(self, nbytes: int) -> None:
        """Take ``nbytes`` received bytes."""
        ...

    def connection_lost(self, cause: Exception | None) -> None:
        """The wire has ended, None: closed by the broker or by ``close``; called once, in a turn of its own."""
        ...


async def start_tls(
    sock: socket.socket, context: ssl.SSLContext, server_hostname: str
) -> ssl.SSLSocket:
    """Shake hands over a connected socket, which belongs to the result.

    Raises:
        OSError: ``ssl.SSLError``, or the connection was lost.
    """
    loop = asyncio.get_running_loop()
    secured = context.wrap_socket(
        sock, server_hostname=server_hostname, do_handshake_on_connect=False
    )
    try:
        while True:
            ready = loop.create_future()
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                loop.add_reader(secured, _resolve, ready)
            except ssl.SSLWantWriteError:
                loop.add_writer(secured, _resolve, ready)
            else:
                return secured
            try:
                await ready
            finally:
                loop.remove_reader(secured)
                loop.remove_writer(secured)
    except BaseException:
        secured.close()
        raise


@final
class Wire:
    """Reads and writes one socket until it is closed, by either side."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket = sock
        self._peer = peer
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._unsent: deque[Buffer] = deque()
        self._closed = False
        # By number: the loop may still have an event of a socket that was closed behind its wait for events.
        self._fd = sock.fileno()
        self._loop.add_reader(self._fd, self._read)

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self._unsent))

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write; the parts must stay unchanged until the request is answered."""
        waiting = bool(self._unsent)
        self._unsent.extend(parts)
        if not waiting and not self._closed:
            self._flush()
            if self._unsent:
                self._loop.add_writer(self._fd, self._flush_rest)

    def close(self, cause: Exception | None = None) -> None:
        """Close the socket and forget what waits; ``connection_lost`` follows. Safe twice."""
        if self._closed:
            return
        self._closed = True
        self._unsent.clear()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._loop.call_soon(self._peer.connection_lost, cause)

    # ---- reading

    def _read(self) -> None:
        peer = self._peer
        try:
            if self._tls is None:
                if count := self._sock.recv_into(peer.get_buffer()):
                    peer.buffer_updated(count)
                else:
                    self.close()
                return
            self._read_records(self._tls)
        except _NOT_NOW:
            return
        except OSError as error:
            self.close(error)
        except Exception as error:
            log.exception("what came from a broker could not be processed")
            self.close(error)

    def _read_records(self, tls: ssl.SSLSocket) -> None:
        """Take what is there to its end: for what stays inside of OpenSSL the loop gets no event."""
        peer, left = self._peer, _READ_BYTES
        while left > 0:
            if self._closed:
                return
            buffer = peer.get_buffer()[:left]
            size, count = len(buffer), 0
            left -= size
            try:
                while count < size:
                    more = tls.recv_into(buffer[count:])
                    if not more:
                        break
                    count += more
            finally:
                if count:
                    peer.buffer_updated(count)
            if count < size:  # the end of the stream
                self.close()
                return
        self._loop.call_soon(self._read)  # which looks whether it was closed meanwhile

    # ---- writing

    def _flush_rest(self) -> None:
        self._flush()
        if not self._unsent and not self._closed:
            self._loop.remove_writer(self._fd)

    def _flush(self) -> None:
        try:
            if self._tls is None:
                while self._unsent:
                    parts = tuple(islice(self._unsent, _IOVEC_PARTS))
                    sent = self._sock.sendmsg(parts)
                    if sent == sum(map(len, parts)) and len(parts) == len(self._unsent):
                        self._unsent.clear()
                        return
                    self._consume(sent)
            else:
                while self._unsent:
                    self._consume(self._tls.send(self._record()))
        except _NOT_NOW:
            return
        except OSError as error:
            self.close(error)

    def _record(self) -> Buffer:
        """Return what comes next, at least a full record where there is so much; the same bytes until they are sent."""
        first = self._unsent[0]
        if len(first) >= _RECORD_BYTES or len(self._unsent) == 1:
            return first
        joined = bytearray()
        for part in self._unsent:
            joined += part[: _RECORD_BYTES - len(joined)]
            if len(joined) == _RECORD_BYTES:
                break
        return joined

    def _consume(self, sent: int) -> None:
        unsent = self._unsent
        while sent:
            size = len(unsent[0])
            if sent < size:
                unsent[0] = memoryview(unsent[0])[sent:]
                return
            sent -= size
            unsent.popleft()
        while unsent and not len(unsent[0]):
            unsent.popleft()


def _resolve(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
