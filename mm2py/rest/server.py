"""An application on its listeners, inside the worker's own event loop.

Flow: ``Listener`` -> bound socket -> uvicorn -> application. No signals, no threads, no log configuration:
those are the process's. A listener that may move takes a free port where its own is taken, and says so.
"""

import asyncio
import logging
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, final

import uvicorn
from starlette.types import ASGIApp

from mm2py.errors import ConfigError

__all__ = ["Listener", "RestServer"]

log = logging.getLogger(__name__)

BACKLOG: Final = 128
DATE_PERIOD_S: Final = 1.0
"""uvicorn's own loop wakes up ten times a second; it only keeps the ``Date`` header."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to listen; an empty host is every address, port 0 a free one.

    ``may_move``: take a free port where this one is taken (a default nobody chose); else that is an error.
    ``bound`` is a socket that listens there already.
    """

    host: str
    port: int
    ssl: SSLContext | None = None
    may_move: bool = False
    bound: socket.socket | None = None


@final
class _Server(uvicorn.Server):
    """uvicorn without signal handlers and with an end that it is told of."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        while not self.ended.is_set():
            await self.on_tick(0)
            try:
                await asyncio.wait_for(self.ended.wait(), DATE_PERIOD_S)
            except TimeoutError:
                continue


@final
class RestServer:
    """One application on one or several listeners."""

    def __init__(
        self, listeners: Sequence[Listener], app: ASGIApp, *, access_log: bool = False
    ) -> None:
        self._listeners = listeners
        self._app = app
        self._access_log = access_log
        self._running: list[tuple[_Server, asyncio.Task[None]]] = []

    async def start(self) -> tuple[str, ...]:
        """Listen; return base URLs (``http://127.0.0.1:8083/``) in the order of the listeners.

        Raises:
            ConfigError: an address cannot be used.
        """
        # uvicorn says at INFO that it starts and waits; what matters is said below.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        sockets: list[socket.socket] = []
        try:
            sockets.extend(_bound(listener) for listener in self._listeners)
            for listener, bound in zip(self._listeners, sockets, strict=True):
                await self._serve(listener, bound)
        except BaseException:
            for bound in sockets:
                bound.close()
            await self.stop(0)
            raise
        urls = tuple(
            _url(listener, bound) for listener, bound in zip(self._listeners, sockets, strict=True)
        )
        log.info("rest listens urls=%s", ",".join(urls))
        return urls

    async def stop(self, timeout_s: float) -> None:
        """Accept nothing more, give running requests ``timeout_s``, then cut them off."""
        running, self._running = self._running, []
        for server, _ in running:
            # uvicorn takes 0 for "at once", and whole seconds in its types.
            server.config.timeout_graceful_shutdown = int(timeout_s)
            server.should_exit = True
            server.ended.set()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _serve(self, listener: Listener, bound: socket.socket) -> None:
        config = uvicorn.Config(
            self._app,
            loop="none",
            http="h11" if listener.ssl is None else _certified(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=self._access_log,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = listener.ssl
        server = _Server(config)
        name = f"rest {listener.host}:{bound.getsockname()[1]}"
        task = asyncio.create_task(server.serve([bound]), name=name)
        self._running.append((server, task))
        while not server.started:
            if task.done():
                await task
                raise ConfigError(f"REST cannot listen at {listener.host}:{listener.port}")
            await asyncio.sleep(0)


def _certified() -> type[asyncio.Protocol]:
    # Only here: it brings the libraries that read key stores.
    from mm2py.rest.listener_tls import CertifiedProtocol

    return CertifiedProtocol


def _bound(listener: Listener) -> socket.socket:
    if listener.bound is not None:
        return listener.bound
    try:
        return _bind(listener, listener.port)
    except OSError as error:
        if not listener.may_move:
            raise ConfigError(
                f"REST cannot listen at {listener.host}:{listener.port}: {error.strerror}",
                remedy="choose another port in `listeners`",
            ) from error
    moved = _bind(listener, 0)
    log.info(
        "rest port taken listener=%s:%d using=%d",
        listener.host,
        listener.port,
        moved.getsockname()[1],
    )
    return moved


def _bind(listener: Listener, port: int) -> socket.socket:
    host = listener.host or "0.0.0.0"  # noqa: S104 - an empty host in `listeners` means every address
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.settimeout(0)
    return bound


def _url(listener: Listener, bound: socket.socket) -> str:
    scheme = "http" if listener.ssl is None else "https"
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}/"
