"""One socket, plain or TLS, read and written as it becomes ready.

Flow: ``Wire.write`` -> kernel; kernel -> ``FrameReceiver`` -> ``Peer.received`` per frame. Plain
parts are sent as an iovec, uncopied; large responses arrive in pooled buffers. Under TLS OpenSSL
reads and writes the socket itself, a record at a time, from and to the caller's buffers: asyncio's
TLS goes through two memory BIOs and copies each byte several times.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from struct import Struct
from typing import Final, Protocol, TypeAlias, final

from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.protocol.buffers import BufferPool, PooledBuffer
from mm2py.protocol.record_batch import BufferLease

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
Receive: TypeAlias = Callable[[int, memoryview, BufferLease | None], None]
"""Takes a frame: correlation id (its first int32), the bytes after it, and the lease of its pooled
buffer; without one the view is valid only during the call."""

HEAD_BYTES: Final = 16 * 1024
"""Frames that fit here are delivered without a pooled buffer."""

_MAX_FRAME_BYTES: Final = 512 * 1024 * 1024
"""Longer frames are nonsense or an attack; brokers limit Fetch responses to fetch.max.bytes."""

_SIZE: Final = Struct(">i")

_RCVLOWAT_CAP_BYTES: Final = 512 * 1024
"""Waiting for more than this would idle the CPU while the kernel's receive window fills."""

_TLS_RECORD_BYTES: Final = 17 * 1024

_IOVEC_PARTS: Final = 512
"""Buffers per ``sendmsg``; Linux refuses more than 1024 (``IOV_MAX``)."""

_RECORD_BYTES: Final = 16 * 1024
"""Content of one TLS record; shorter parts are joined, since each would become a record of its
own."""

_READ_BYTES: Final = 1024 * 1024
"""Limit of what is read under TLS per wake-up, so that other sockets get their turn."""

_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Peer(Protocol):
    """The owner of a wire."""

    closed: bool
    """Set with the end of the socket; ``connection_lost`` may still be to come."""

    def began(self, first_bytes: bytes) -> None:
        """Inspect the first bytes of the stream (at most two) before they are taken for a frame."""
        ...

    def received(self, correlation_id: int, body: memoryview, lease: BufferLease | None) -> None:
        """Take one frame, as ``Receive``."""
        ...

    def abort(self, reason: str) -> None:
        """Close the wire, because ``received`` raised or a frame is impossible."""
        ...

    def connection_lost(self, cause: Exception | None) -> None:
        """Handle the end of the wire (None: closed by the broker or ``close``); called once, in a
        separate loop iteration."""
        ...


@final
class FrameReceiver:
    """Cuts the stream of one connection into length-prefixed frames; no I/O.

    Short frames are in one fixed head buffer, long ones in a pooled buffer of their own, so that
    record data is never copied again. The receiver holds one reference of it during the call of
    ``Receive``: who keeps the view must retain the lease.
    """

    def __init__(self, pool: BufferPool) -> None:
        self.missing_bytes = 0
        """Bytes still missing of the frame being received, 0 between frames."""
        self._pool = pool
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._filled = 0  # bytes in the buffer that is being filled
        self._long: PooledBuffer | None = None
        self._long_view = self._head[:0]  # exactly one frame, without its length

    def get_buffer(self) -> memoryview:
        """Return where the next bytes of the stream go; never empty."""
        whole = self._head if self._long is None else self._long_view
        return whole[self._filled :] if self._filled else whole

    def take(self, nbytes: int, received: Receive) -> None:
        """Account for ``nbytes`` that were written to the buffer, and pass on the complete frames.

        Raises:
            ProtocolError: the length of a frame is impossible; close the connection.
        """
        filled = self._filled + nbytes
        if self._long is not None:
            self._take_long(self._long, filled, received)
            return
        head, position, size = self._head, 0, 0
        while filled - position >= 4:
            size = _SIZE.unpack_from(head, position)[0]
            # At least a correlation id.
            if not 4 <= size <= _MAX_FRAME_BYTES:
                raise _impossible(size)
            if filled - position - 4 < size:
                break
            body = position + 8
            position += 4 + size
            received(_SIZE.unpack_from(head, body - 4)[0], head[body:position], None)
            size = 0
        rest = filled - position
        if size + 4 > HEAD_BYTES:
            self._start_long(position + 4, filled, size)
            return
        # ``bytes`` first: source and destination overlap.
        if position and rest:
            head[:rest] = bytes(head[position:filled])
        self._filled = rest
        self.missing_bytes = size + 4 - rest if size else 0

    def close(self) -> None:
        """Give back the buffer of an unfinished frame."""
        long, self._long, self._filled = self._long, None, 0
        self._long_view = self._head[:0]
        if long is not None:
            long.release()

    def _take_long(self, long: PooledBuffer, filled: int, received: Receive) -> None:
        view, self._filled = self._long_view, filled
        self.missing_bytes = len(view) - filled
        if self.missing_bytes == 0:
            self._long, self._long_view, self._filled = None, self._head[:0], 0
            try:
                received(_SIZE.unpack_from(view)[0], view[4:], long)
            finally:
                long.release()

    def _start_long(self, position: int, filled: int, size: int) -> None:
        self._filled = filled - position
        self._long = self._pool.acquire(size)
        self._long_view = memoryview(self._long.data)[:size]
        self._long_view[: self._filled] = self._head[position:filled]
        self.missing_bytes = size - self._filled


async def start_tls(
    sock: socket.socket, context: ssl.SSLContext, server_hostname: str
) -> ssl.SSLSocket:
    """Do the TLS handshake over a connected socket, which belongs to the result.

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
                # Also when cancelled: the loop would keep the closed
                # socket's number, which the next socket gets.
                loop.remove_reader(secured)
                loop.remove_writer(secured)
    except BaseException:
        secured.close()
        raise


@final
class Wire:
    """Reads and writes one socket until it is closed, by either side."""

    def __init__(self, sock: socket.socket, peer: Peer, pool: BufferPool) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket = sock
        self._peer = peer
        self._receiver = FrameReceiver(pool)
        self._began = False
        self._rcvlowat = 1
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._unsent: deque[Buffer] = deque()
        # By number: the loop may still have an event of a
        # socket that was closed after its wait for events.
        self._fd = sock.fileno()
        self._loop.add_reader(self._fd, self._read)

    @property
    def pending_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self._unsent)) if self._unsent else 0

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write; the parts must stay unchanged until the request is answered."""
        waiting = bool(self._unsent)
        self._unsent.extend(parts)
        if not waiting and not self._peer.closed:
            self._flush()
            if self._unsent:
                self._loop.add_writer(self._fd, self._flush_rest)

    def close(self, cause: Exception | None = None) -> None:
        """Close the socket and drop what waits; ``connection_lost`` follows. Safe twice."""
        # ``began`` may have closed it.
        if self._peer.closed:
            return
        self._peer.closed = True
        self._unsent.clear()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        # Later, so that a caller in the middle of ``write`` or ``received`` is not called back.
        self._loop.call_soon(self._end, cause)

    def _end(self, cause: Exception | None) -> None:
        self._receiver.close()
        self._peer.connection_lost(cause)

    # ---- reading

    def _read(self) -> None:
        try:
            if self._tls is None:
                buffer = self._receiver.get_buffer()
                if count := self._sock.recv_into(buffer):
                    self._take(buffer, count)
                else:
                    self.close()
            else:
                self._read_records(self._tls)
        except _NOT_NOW:
            return
        except OSError as error:
            self.close(error)
        except Exception as error:
            log.exception("what came from a broker could not be processed")
            self.close(error)

    def _take(self, buffer: memoryview, count: int) -> None:
        """Pass on the frames that ``count`` more bytes complete."""
        peer, receiver = self._peer, self._receiver
        if not self._began:
            self._began = True
            peer.began(bytes(buffer[: min(count, 2)]))
            if self._peer.closed:
                return
        try:
            receiver.take(count, peer.received)
        except Mm2pyError as error:
            peer.abort(str(error))
            return
        # With a fixed SO_RCVLOWAT the last bytes of the stream
        # would never wake the loop, so it follows each frame.
        if not (missing := receiver.missing_bytes) and self._rcvlowat == 1:
            return
        if self._tls is not None:
            missing -= (
                _TLS_RECORD_BYTES  # OpenSSL may have taken the first part of a record already
            )
        low_water = max(1, min(missing, _RCVLOWAT_CAP_BYTES))
        if low_water != self._rcvlowat and not self._peer.closed:
            self._rcvlowat = low_water
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def _read_records(self, tls: ssl.SSLSocket) -> None:
        """Read until OpenSSL has nothing more: the loop gets no event for bytes that stay inside of
        it."""
        left = _READ_BYTES
        while left > 0:
            if self._peer.closed:
                return
            buffer = self._receiver.get_buffer()[:left]
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
                    self._take(buffer, count)
            if count < size:  # the end of the stream
                self.close()
                return
        self._loop.call_soon(self._read)  # checks whether it was closed meanwhile

    # ---- writing

    def _flush_rest(self) -> None:
        self._flush()
        if not self._unsent and not self._peer.closed:
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
        """Return the next bytes to send, a full record if possible; the same bytes until they are
        sent (OpenSSL's rule)."""
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
        # Empty parts are never sent, and would keep the deque from becoming empty.
        while unsent and not len(unsent[0]):
            unsent.popleft()


def _resolve(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _impossible(size: int) -> ProtocolError:
    return ProtocolError(
        f"a frame announces {size} bytes",
        remedy="check that the port is a Kafka listener of the configured security.protocol",
    )
