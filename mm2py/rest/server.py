"""An application on its listeners, inside the worker's own event loop.

Flow: ``Listener`` or bound socket -> uvicorn -> application. No signals, no threads, no log configuration:
those are the process's.
"""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, final

import uvicorn
from starlette.types import ASGIApp

from mm2py.errors import ConfigError
from mm2py.rest.listening import BACKLOG, BoundListener, Listener, bind

__all__ = ["RestServer"]

DATE_PERIOD_S: Final = 1.0
"""uvicorn's own loop wakes up ten times a second; it only keeps the ``Date`` header."""


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
        self,
        listeners: Sequence[Listener | BoundListener],
        app: ASGIApp,
        *,
        access_log: bool = False,
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
        for server, _ in running:
            # uvicorn takes 0 for "at once", and whole seconds in its types.
            server.config.timeout_graceful_shutdown = int(timeout_s)
            server.should_exit = True
            server.ended.set()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def _serve(self, bound: BoundListener) -> None:
        config = uvicorn.Config(
            self._app,
            loop="none",
            http="h11" if bound.ssl is None else _certified(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=self._access_log,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = bound.ssl
        server = _Server(config)
        task = asyncio.create_task(server.serve([bound.sock]), name=f"rest {bound.url}")
        self._running.append((server, task))
        while not server.started:
            if task.done():
                await task
                raise ConfigError(f"REST cannot listen at {bound.url}")
            await asyncio.sleep(0)


def _certified() -> type[asyncio.Protocol]:
    # Only here: it brings the libraries that read key stores.
    from mm2py.rest.listener_tls import CertifiedProtocol

    return CertifiedProtocol
