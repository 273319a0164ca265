"""A bad line between clients and a server: TCP with delay, rate limit, stalls and resets, in a thread of its own.

Flow: ``DelayProxy.front(port)`` -> clients connect there -> bytes wait in a delay line per direction -> server.
The line is the same for every connection, but each has its own queue. It never looks into the bytes, and
does not model lost packets: a line that loses everything for a while is ``stall``, then ``heal`` or ``reset``.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Final, Self, TypeVar, cast, final

from tests.kit.kafka.ports import HOST
from tests.kit.lines.listening import stop_listening

QUEUE_BYTES: Final = 32 * 1024 * 1024
"""What one direction of a connection holds before it stops reading; above rate x delay of any test."""

UNSENT_BYTES: Final = 4 * 1024 * 1024
CALL_TIMEOUT_S: Final = 90.0

T = TypeVar("T")


class Way(StrEnum):
    """A direction, seen from the client."""

    REQUESTS = "requests"
    REPLIES = "replies"


@final
class _Line:
    """What all connections have in common; only the loop's thread changes it."""

    def __init__(self, one_way_s: float, rate_bytes_s: float) -> None:
        self.one_way_s = one_way_s
        self.rate_bytes_s = rate_bytes_s
        self.stalled: set[Way] = set()
        self.refusing = False
        self.passed = dict.fromkeys(Way, 0)
        self.links: set[_Link] = set()
        self.open: set[asyncio.Transport] = set()


@final
class _Direction:
    """One direction of one connection: a queue of (due time, bytes)."""

    def __init__(
        self,
        way: Way,
        line: _Line,
        loop: asyncio.AbstractEventLoop,
        on_finished: Callable[[], None],
    ) -> None:
        self._way, self._line, self._loop, self._on_finished = way, line, loop, on_finished
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._blocked = False
        self._ended = False
        self.finished = False
        self.reader: asyncio.Transport | None = None
        self.writer: asyncio.Transport | None = None

    @property
    def held_bytes(self) -> int:
        return self._queued_bytes

    def take(self, data: bytes) -> None:
        line = self._line
        sent = self._loop.time()
        if line.rate_bytes_s:
            sent = max(sent, self._free_at) + len(data) / line.rate_bytes_s
        self._free_at = sent
        self._queue.append((sent + line.one_way_s, data))
        self._queued_bytes += len(data)
        if self._queued_bytes > QUEUE_BYTES and self.reader is not None:
            self.reader.pause_reading()
        if self._timer is None:
            self._give()

    def end(self) -> None:
        """The sender has nothing more to say: tell the receiver behind what is queued."""
        self._ended = True
        self._give()

    def block(self, *, blocked: bool) -> None:
        """The receiver takes no more for now, or takes again."""
        self._blocked = blocked
        self._give()

    def wake(self) -> None:
        """The line is healed, or the receiver is connected."""
        self._give()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give(self) -> None:
        """Pass on what is due, and come back when the next is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        writer, queue = self.writer, self._queue
        if writer is None or self._blocked or self._way in self._line.stalled:
            return
        if writer.is_closing():
            queue.clear()
        now = self._loop.time()
        while queue and queue[0][0] <= now and not self._blocked:
            _, data = queue.popleft()
            self._queued_bytes -= len(data)
            self._line.passed[self._way] += len(data)
            writer.write(data)
        if self._queued_bytes <= QUEUE_BYTES and self.reader is not None and not self._ended:
            self.reader.resume_reading()
        if queue:
            self._timer = self._loop.call_at(queue[0][0], self._give)
        elif self._ended and not self.finished:
            self.finished = True
            if not writer.is_closing():
                # Else the receiver has reset the connection, and it is about to be reported lost.
                with contextlib.suppress(OSError):
                    writer.write_eof()
            self._on_finished()


@final
class _Side(asyncio.Protocol):
    """One socket: what it receives goes into ``incoming``, what it sends comes from ``outgoing``."""

    def __init__(self, link: "_Link", incoming: _Direction, outgoing: _Direction) -> None:
        self._link, self._incoming, self._outgoing = link, incoming, outgoing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        made.set_write_buffer_limits(high=UNSENT_BYTES)
        self._incoming.reader, self._outgoing.writer = made, made
        self._link.made(made)
        self._outgoing.wake()

    def data_received(self, data: bytes) -> None:
        self._incoming.take(data)

    def eof_received(self) -> bool:
        self._incoming.end()
        return True  # the other direction may still have something to say

    def pause_writing(self) -> None:
        self._outgoing.block(blocked=True)

    def resume_writing(self) -> None:
        self._outgoing.block(blocked=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._outgoing.writer is not None:
            self._link.lost(self._outgoing.writer)
        if exc is not None:
            self._link.reset()


@final
class _Link:
    """A client's connection and ours to the server."""

    def __init__(self, line: _Line, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._line, self._port, self._loop = line, port, loop
        self._requests = _Direction(Way.REQUESTS, line, loop, self._finish)
        self._replies = _Direction(Way.REPLIES, line, loop, self._finish)
        self._transports: list[asyncio.Transport] = []
        self._connecting: asyncio.Task[None] | None = None
        self._ended = False

    def client_side(self) -> _Side:
        return _Side(self, self._requests, self._replies)

    def made(self, transport: asyncio.Transport) -> None:
        self._transports.append(transport)
        self._line.open.add(transport)
        if self._ended:  # while it was connected to the server
            reset(transport)
            return
        if len(self._transports) > 1:
            return
        if self._line.refusing:
            reset(transport)
            return
        self._line.links.add(self)
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(
                lambda: _Side(self, self._replies, self._requests), HOST, self._port
            )
        except OSError:
            self.reset()

    def wake(self) -> None:
        self._requests.wake()
        self._replies.wake()

    def held_bytes(self, way: Way) -> int:
        return (self._requests if way is Way.REQUESTS else self._replies).held_bytes

    def lost(self, transport: asyncio.Transport) -> None:
        self._line.open.discard(transport)

    def _finish(self) -> None:
        if self._requests.finished and self._replies.finished:
            self._line.links.discard(self)
            for transport in self._transports:
                transport.close()

    def reset(self) -> None:
        """End both with a reset."""
        self._ended = True
        self._line.links.discard(self)
        self._requests.cancel()
        self._replies.cancel()
        for transport in self._transports:
            reset(transport)


def reset(transport: asyncio.Transport) -> None:
    """Close so that the peer sees a reset and not an end in order."""
    connection = cast("socket.socket", transport.get_extra_info("socket"))
    if not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


@final
class DelayProxy:
    """The line to one cluster; as a context manager it lives in a thread. Methods may be called from any.

    ``front`` fits ``Listener.advertise``: brokers then tell clients the proxy's ports.
    """

    def __init__(self, *, round_trip_s: float = 0.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._line = _Line(round_trip_s / 2, 0.0)
        self._servers: list[asyncio.Server] = []
        self._fronts: dict[int, int] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        """The proxy's addresses in Kafka's form."""
        return ",".join(f"{HOST}:{port}" for port in self._fronts.values())

    def front(self, port: int) -> int:
        """Listen on a free port that leads to ``port`` on this machine, and return it."""
        if port not in self._fronts:
            self._fronts[port] = self._run(lambda: self._listen(port))
        return self._fronts[port]

    def passed_bytes(self, way: Way) -> int:
        """Return how much went through so far."""
        return self._line.passed[way]

    def held_bytes(self, way: Way) -> int:
        """Return how much waits in the line now."""
        found = [0]

        def count() -> None:
            found[0] = sum(link.held_bytes(way) for link in self._line.links)

        self._call(count)
        return found[0]

    def set_round_trip(self, seconds: float, rate_bytes_s: float = 0.0) -> None:
        """Delay every byte by half of that in each direction, and let no more than the rate through (0: all)."""

        def change() -> None:
            self._line.one_way_s, self._line.rate_bytes_s = seconds / 2, rate_bytes_s

        self._call(change)

    def stall(self, *ways: Way) -> None:
        """Pass nothing on, in these directions or in both; connections stay open, new ones too."""
        self._call(lambda: self._line.stalled.update(ways or Way))

    def reset(self) -> None:
        """End every connection with a reset; what is in the line is lost. New ones are served."""
        self._call(self._reset)

    def refuse(self) -> None:
        """Reset every connection, and every new one, until ``heal``."""

        def refuse() -> None:
            self._line.refusing = True
            self._reset()

        self._call(refuse)

    def heal(self) -> None:
        """Pass everything on again; what waited in a stalled direction goes first."""

        def heal() -> None:
            self._line.stalled.clear()
            self._line.refusing = False
            for link in list(self._line.links):
                link.wake()

        self._call(heal)

    def close(self) -> None:
        """End everything."""
        self._run(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    async def _listen(self, port: int) -> int:
        server = await self._loop.create_server(
            lambda: _Link(self._line, port, self._loop).client_side(), HOST, 0
        )
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def _reset(self) -> None:
        for link in list(self._line.links):
            link.reset()

    async def _close(self) -> None:
        for server in self._servers:
            await stop_listening(server)
        closing = asyncio.current_task()
        while on_their_way := asyncio.all_tasks() - {closing}:  # accepted, or not yet at the server
            await asyncio.gather(*on_their_way, return_exceptions=True)
        self._reset()
        for transport in self._line.open:  # one that ends in order may have bytes that nobody takes
            transport.abort()

    def _call(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        self._run(run)

    def _run(self, start: Callable[[], Coroutine[None, None, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(start(), self._loop).result(CALL_TIMEOUT_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
