"""An application on its listeners, inside the worker's own event loop.

Flow: ``Listener`` or bound socket -> uvicorn -> application. No signals, no threads, no log
configuration: those are the process's.
"""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, final

import uvicorn
from starlette.types import ASGIApp

from mm2py.errors import ConfigError
from mm2py.rest.connections import (
    ConnectionGuard,
    GuardedConfig,
    GuardedProtocol,
    GuardedSocket,
    connection_limit,
)
from mm2py.rest.listening import BACKLOG, BoundListener, Listener, bind

ACCEPT_TURNS: Final = 2
"""Turns of the loop after which an accepted socket is a connection of its server."""
LAST_TURNS: Final = 4


@final
class _UvicornServer(uvicorn.Server):
    """uvicorn without signal handlers and with an end that is an event."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        await self.ended.wait()


@final
class RestServer:
    """One application on one or several listeners.

    Args:
        listeners: where; those that are not bound yet are bound by ``start``.
        app: what answers.
        connections: how many it may hold; None: ``connection_limit``.
    """

    def __init__(
        self,
        listeners: Sequence[Listener | BoundListener],
        app: ASGIApp,
        *,
        connections: int | None = None,
    ) -> None:
        self._listeners, self._app, self._connections = listeners, app, connections
        self._guard: ConnectionGuard | None = None
        self._listening: list[GuardedSocket] = []
        self._running: list[tuple[_UvicornServer, asyncio.Task[None]]] = []

    async def start(self) -> tuple[str, ...]:
        """Listen; return base URLs (``http://127.0.0.1:8083/``) in the order of the listeners.
        ``ConfigError``: an address cannot be used."""
        # Below ERROR it logs its start, and each request that is no HTTP.
        uvicorn_log = logging.getLogger("uvicorn.error")
        uvicorn_log.setLevel(logging.ERROR)
        uvicorn_log.addFilter(_is_worth_a_line)
        self._guard = ConnectionGuard(self._connections or connection_limit())
        bound: list[BoundListener] = []
        try:
            bound.extend(
                each if isinstance(each, BoundListener) else bind(each) for each in self._listeners
            )
            for each in bound:
                await self._serve(each)
        except BaseException:
            for each in bound:
                each.sock.close()
            await self.stop(0)
            raise
        return tuple(each.url for each in bound)

    async def stop(self, timeout_s: float) -> None:
        """Accept nothing more, give running requests ``timeout_s``, then cut them off."""
        running, self._running = self._running, []
        await self._accept_no_more()
        for server, _ in running:
            # uvicorn takes 0 for "at once", and whole seconds in its types.
            server.config.timeout_graceful_shutdown = int(timeout_s)
            server.should_exit = True
            server.ended.set()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        for _ in range(LAST_TURNS):
            # What the system accepted before the close becomes a connection a turn later.
            await asyncio.sleep(0)
            for server, _ in running:
                for connection in [*server.server_state.connections]:
                    connection.transport.abort()
        if self._guard is not None:
            self._guard.close()

    async def _accept_no_more(self) -> None:
        # A socket that is accepted in the turn in which asyncio closes the server fails an
        # assertion in the middle of its transport: it would stay open until the garbage collector
        # finds it, and its client would wait for an answer.
        listening, self._listening = self._listening, []
        for sock in listening:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock)
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)

    async def _serve(self, bound: BoundListener) -> None:
        assert self._guard is not None
        config = GuardedConfig(
            self._app,
            loop="none",
            http=GuardedProtocol if bound.ssl is None else _certified(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,  # the protocol adds it
            proxy_headers=False,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = bound.ssl
        config.guard = self._guard
        sock = GuardedSocket(bound.sock, self._guard)
        server = _UvicornServer(config)
        task = asyncio.create_task(server.serve([sock]), name=f"rest {bound.url}")
        self._listening.append(sock)
        self._running.append((server, task))
        # uvicorn sets it a few turns later; an error before would be lost in the task.
        while not server.started:
            if task.done():
                await task
                raise ConfigError(f"REST cannot listen at {bound.url}")
            await asyncio.sleep(0)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Leave out that no request was cut off at the end, which uvicorn logs as an error."""
    return not (str(record.msg).startswith("Cancel %s running task") and record.args == (0,))


def _certified() -> type[asyncio.Protocol]:
    # Only here: it brings the libraries that read key stores.
    from mm2py.rest.listener_tls import CertifiedProtocol

    return CertifiedProtocol
