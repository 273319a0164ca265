"""One rate for the lanes that run now, where no topic has their leases: those of verify and
archive.

Flow: ``opened_desk`` on the driver -> a lane connects (``part_of_rate``) and shows the token of the
job -> whenever a lane comes or ends, each gets its part as a line -> ``ByteRate.change``. A lane
that cannot reach the driver keeps the part that it was given with its work.
"""

import asyncio
import hmac
import logging
import secrets
import socketserver
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from io import BufferedIOBase
from typing import Final, cast, final

from mm2py.client.pacing import ByteRate
from mm2py.clock import cancelled
from mm2py_jobs.spark.session import OpenSession

log = logging.getLogger(__name__)

BEAT_S: Final = 2.0
SILENT_S: Final = 20.0
"""A lane that says nothing for so long has no part: its host is gone without a word. One that ends
says so by its socket."""

REACH_S: Final = 5.0
_RETRY_S: Final = 1.0

Desk = tuple[str, int, str]
"""Host and port of the driver, and the token."""


@contextmanager
def opened_desk(opened: OpenSession, bytes_per_s: int) -> Generator[Desk | None]:
    """Open a desk for the lanes of a job; None where there is no rate, or no address that executors
    know."""
    address = opened.driver_address if bytes_per_s > 0 else None
    if address is None:
        yield None
        return
    bound, announced = address
    try:
        server = _DeskServer((bound, 0), _Conversation)
    except OSError as error:
        log.warning(
            "lanes get equal parts of the rate, the driver cannot listen on %s cause=%s",
            bound,
            error,
        )
        yield None
        return
    with server:
        server.bytes_per_s, server.token = bytes_per_s, secrets.token_hex(16)
        threading.Thread(target=server.serve_forever, name="rate desk", daemon=True).start()
        try:
            yield announced, server.server_address[1], server.token
        finally:
            server.shutdown()


@final
class _DeskServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    bytes_per_s = 0
    token = ""

    def __init__(self, *arguments: object) -> None:
        self._turn = threading.Lock()
        self._lanes: list[BufferedIOBase] = []
        super().__init__(*arguments)  # type: ignore[arg-type] # as its base

    def come(self, lane: BufferedIOBase) -> None:
        """Give a lane its part, after the others have less."""
        with self._turn:
            self._lanes.append(lane)
            self._tell()

    def go(self, lane: BufferedIOBase) -> None:
        with self._turn:
            self._lanes.remove(lane)
            self._tell()

    def _tell(self) -> None:
        for lane in self._lanes:
            with suppress(OSError):  # it ends, which its own thread sees
                lane.write(b"%f\n" % (self.bytes_per_s / len(self._lanes)))


class _Conversation(socketserver.StreamRequestHandler):
    timeout = SILENT_S

    def handle(self) -> None:
        server = cast("_DeskServer", self.server)
        with suppress(OSError):
            token = self.rfile.readline(100).strip()
            if not hmac.compare_digest(token, server.token.encode()):
                return
            server.come(self.wfile)
            try:
                while self.rfile.readline(10):
                    pass  # it lives
            finally:
                server.go(self.wfile)


# ---- in a task


@asynccontextmanager
async def part_of_rate(
    lane: Mapping[str, object], rates: Sequence[ByteRate | None]
) -> AsyncGenerator[None]:
    """Have ``rates`` follow the lane's part of the limit while the lane runs."""
    desk = cast("Desk | None", lane.get("desk"))
    if desk is None:
        yield
        return
    following = asyncio.create_task(_follow(desk, [it for it in rates if it is not None]))
    try:
        yield
    finally:
        await cancelled(following)


async def _follow(desk: Desk, rates: Sequence[ByteRate]) -> None:
    said = False
    while True:
        try:
            await _listen(desk, rates)
        except (OSError, TimeoutError) as error:
            if not said:
                log.warning("the driver cannot be asked for a part of the rate cause=%s", error)
            said = True
        await asyncio.sleep(_RETRY_S)


async def _listen(desk: Desk, rates: Sequence[ByteRate]) -> None:
    host, port, token = desk
    async with asyncio.timeout(REACH_S):
        reader, writer = await asyncio.open_connection(host, port)
    beating = asyncio.create_task(_beat(writer, token))
    try:
        while line := await reader.readline():
            for rate in rates:
                rate.change(float(line))
    finally:
        beating.cancel()
        writer.close()


async def _beat(writer: asyncio.StreamWriter, token: str) -> None:
    writer.write(f"{token}\n".encode())
    while True:
        await asyncio.sleep(BEAT_S)
        writer.write(b"\n")
