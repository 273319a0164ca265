"""Where other workers reach this process, bound before the flows start; what is served there is
loaded after.

Flow: ``RestNode.bind`` -> URL for the groups -> flows run -> ``serve`` -> ``rest_wiring`` (FastAPI,
uvicorn) -> both listeners. Loading them takes most of a second, which the first record need not
wait for.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final, final
from urllib.parse import urlsplit

from mm2py.config.rest_settings import RestSettings, advertised_url
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.observability.metrics import NodeSnapshot
from mm2py.rest.listening import BoundListener, Listener, bind
from mm2py.runtime.herder.api import AskPeer
from mm2py.storage.config_state import SessionKey
from mm2py.types import FlowName
from mm2py_workers.served import Served

if TYPE_CHECKING:  # loaded late, or never
    import httpx

    from mm2py_workers.rest_wiring import OpenRest

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
STOP_S: Final = 1.0
_IN_CLEAR: Final = (
    "internal.listener: requests between workers are signed and not encrypted, configs in them "
    "included: the certificate of listeners is not trusted by this worker itself at {}; set "
    "rest.advertised.host.name to a name in it, and a truststore with its authority"
)


@final
class RestNode:
    """REST of one process; ``url`` is what the groups' metadata carry."""

    def __init__(
        self,
        settings: RestSettings,
        internal: BoundListener,
        url: str,
        public: Sequence[BoundListener] = (),
        advertised: str = "",
    ) -> None:
        self.settings = settings
        self.internal = internal
        self.url = url
        self.public = tuple(public)
        """Public listeners that are bound already; none where ``serve`` opens them."""
        self._advertised = advertised
        self._running: OpenRest | None = None

    @classmethod
    def bind(cls, settings: RestSettings, targets: Sequence[tuple[str, int]]) -> "RestNode":
        """Bind the internal listener; ``targets`` are addresses that this machine must reach.
        ``ConfigError``: its address cannot be used."""
        address, named = settings.internal, settings.options.rest_advertised_host_name.strip()
        host = named or address.host or local_address(targets)
        if not settings.internal_given:
            # A name may be another address than the one to the brokers: all are listened on then.
            address = replace(address, host="" if named else host.strip("[]"))
            if _serves_https(settings) and _trusts_itself(settings, host.strip("[]")):
                address = replace(address, scheme="https")
            elif _serves_https(settings):
                notice = _IN_CLEAR.format(host)
                settings = replace(settings, notices=(*settings.notices, notice))
        # Bound before the groups are joined: their metadata name this port.
        internal = bind(Listener(address.host, address.port, key="internal.listener"))
        port: int = internal.sock.getsockname()[1]
        url = f"{address.scheme}://{host}:{port}/"
        return cls(replace(settings, internal=address), internal, url)

    @classmethod
    def bind_worker(cls, settings: RestSettings, targets: Sequence[tuple[str, int]]) -> "RestNode":
        """Bind an ordinary worker's listeners, the public ones too: they are its name in statuses.
        ``ConfigError``: an address cannot be used."""
        node = cls.bind(settings, targets)
        public: list[BoundListener] = []
        try:
            for address in settings.listeners:
                bound = bind(Listener(address.host, address.port, may_move=address.or_free_port))
                # TLS is put on it when it is served.
                url = bound.url.replace("http", address.scheme, 1)
                public.append(replace(bound, url=url))
        except ConfigError:
            for bound in (*public, node.internal):
                bound.sock.close()
            raise
        urls = tuple(bound.url for bound in public)
        advertised = advertised_url(settings, urls, local_address(targets))
        return cls(settings, node.internal, node.url, public, advertised)

    @property
    def worker_id(self) -> str:
        """``host:port``: this process in statuses; an ordinary worker's is where users reach it."""
        return urlsplit(self._advertised or self.url).netloc

    @property
    def public_urls(self) -> tuple[str, ...]:
        """Where users reach it; none while REST is not served."""
        return () if self._running is None else self._running.public_urls

    @cached_property
    def http(self) -> "httpx.AsyncClient":
        """Asks other workers; loads its library."""
        # Only here: a worker that leads, or is alone, asks no other.
        from mm2py.rest.forwarding import http_client
        from mm2py.rest.listener_tls import peer_context

        return http_client(peer_context(self.settings.tls))

    def peers(self, flow: FlowName | None) -> AskPeer:
        """Return what a flow asks other workers with; it is loaded at the first question."""

        async def ask(url: str, key: SessionKey) -> NodeSnapshot:
            # The HTTP libraries take 250 ms, which not each worker has to wait for.
            from mm2py.rest.peer_client import node_snapshot

            return await node_snapshot(self.http, flow, url, key)

        return ask

    async def serve(self, served: Served) -> None:
        """Load REST and open both listeners; a failure is logged, the flows continue."""
        try:
            # Here, beside the flows: FastAPI and uvicorn take most of a second.
            await asyncio.to_thread(import_module, "mm2py_workers.rest_wiring")
            from mm2py_workers.rest_wiring import open_rest

            self._running = await open_rest(
                served,
                self.settings,
                url=self.url,
                internal=self.internal,
                public=self.public,
                http=lambda: self.http,
            )
        # Java ends the worker; here the flows run on: records count more than displays.
        except Mm2pyError as error:
            log.error("REST is not served, the flows run without it cause=%s", error)  # noqa: TRY400 - one line
            return
        except Exception:
            log.exception("REST is not served, the flows run without it")
            return
        for notice in self.settings.notices:
            log.warning("%s", notice)
        public = ",".join(self._running.public_urls)
        log.info("rest listens public=%s internal=%s", public, self.url)

    async def close_jobs(self) -> None:
        if self._running is not None:
            await self._running.close_jobs()

    async def stop(self, *, timeout_s: float = STOP_S) -> None:
        """Close what is open; requests under way get ``timeout_s``."""
        running, self._running = self._running, None
        if running is not None:
            await running.stop(timeout_s)
        for bound in (self.internal, *self.public):
            bound.sock.close()
        if "http" in self.__dict__:
            await self.http.aclose()


def _serves_https(settings: RestSettings) -> bool:
    return any(listener.scheme == "https" for listener in settings.listeners)


def _trusts_itself(settings: RestSettings, host: str) -> bool:
    """Whether other workers can serve and ask with the stores of the users' listeners."""
    assert settings.tls is not None  # there are https listeners
    from mm2py.rest.listener_tls import trusts_itself  # brings the libraries for key stores

    return trusts_itself(settings.tls, host)


def local_address(targets: Sequence[tuple[str, int]]) -> str:
    """Return the address of this machine on the way to the first target that has a route."""
    for host, port in targets:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # a datagram socket sends nothing here
                local: str = probe.getsockname()[0]
                return f"[{local}]" if ":" in local else local
        except OSError:
            continue
    return LOOPBACK
