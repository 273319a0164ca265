"""Where other workers reach this process, bound before the flows start; what is served there is loaded after.

Flow: ``RestNode.bind`` -> URL for the groups -> flows run -> ``serve`` -> ``rest_wiring`` (FastAPI, uvicorn, httpx)
-> both listeners. Loading them takes most of a second, which the first record need not wait for.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, Protocol, cast, final
from urllib.parse import urlsplit

from mm2py.config.rest_settings import RestSettings
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder_api import Herder, PeerClient
from mm2py.storage.config_state import SessionKey
from mm2py.types import FlowName
from mm2py_workers.flow_wiring import NodeParts

__all__ = ["RestNode", "RunningRest", "local_address"]

log = logging.getLogger(__name__)

BACKLOG: Final = 128
LOOPBACK: Final = "127.0.0.1"
Herders = Callable[[], Mapping[FlowName | None, Herder]]


class RunningRest(Protocol):
    """Both listeners, open."""

    @property
    def public_urls(self) -> tuple[str, ...]:
        """Where users reach it."""
        ...

    def peer_client(self, flow: FlowName | None) -> PeerClient:
        """Return what a flow's herder asks other workers with."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Close the listeners; running requests get ``timeout_s``."""
        ...


class _RestWiring(Protocol):
    """``mm2py_workers.rest_wiring``, loaded late."""

    async def open_rest(
        self,
        settings: RestSettings,
        internal: socket.socket,
        herders: Herders,
        node: NodeParts,
        *,
        dedicated: bool,
    ) -> RunningRest:
        """Open both listeners."""
        ...


@final
class RestNode:
    """REST of one process; ``url`` is what the groups' metadata carry."""

    def __init__(self, settings: RestSettings, internal: socket.socket, url: str) -> None:
        self.settings = settings
        self.url = url
        self._internal = internal
        self._running: RunningRest | None = None
        self._opened = asyncio.Event()

    @classmethod
    def bind(cls, settings: RestSettings, targets: Sequence[tuple[str, int]]) -> "RestNode":
        """Bind the internal listener; ``targets`` are addresses that this machine must reach.

        Raises:
            ConfigError: its address cannot be used.
        """
        address = settings.internal
        try:
            internal = socket.create_server(
                (address.host, address.port), backlog=BACKLOG, reuse_port=False
            )
        except OSError as error:
            raise ConfigError(
                f"internal.listener={address} cannot be used: {error.strerror or error}",
                remedy="choose another address in internal.listener; port 0 takes a free one",
            ) from error
        internal.setblocking(False)  # noqa: FBT003 - the signature of socket
        host = settings.options.rest_advertised_host_name.strip() or address.host
        port: int = internal.getsockname()[1]
        url = f"{address.scheme}://{host or local_address(targets)}:{port}/"
        return cls(settings, internal, url)

    @property
    def worker_id(self) -> str:
        """``host:port``: this process in statuses."""
        return urlsplit(self.url).netloc

    def peers(self, flow: FlowName | None) -> PeerClient:
        """Return a client that waits until REST is loaded."""
        return _LatePeers(self._client, flow)

    async def serve(self, herders: Herders, node: NodeParts, *, dedicated: bool) -> None:
        """Load REST and open both listeners; what cannot be opened is logged, the flows go on."""
        module: object = await asyncio.to_thread(import_module, "mm2py_workers.rest_wiring")
        wiring = cast("_RestWiring", module)
        try:
            self._running = await wiring.open_rest(
                self.settings, self._internal, herders, node, dedicated=dedicated
            )
        except Mm2pyError as error:
            log.error("REST is not served, the flows run without it cause=%s", error)  # noqa: TRY400 - one line
            return
        for notice in self.settings.notices:
            log.warning("%s", notice)
        log.info(
            "rest listens public=%s internal=%s", ",".join(self._running.public_urls), self.url
        )
        self._opened.set()

    async def stop(self, timeout_s: float) -> None:
        """Close what is open."""
        running, self._running = self._running, None
        if running is not None:
            await running.stop(timeout_s)
        self._internal.close()

    async def _client(self, flow: FlowName | None) -> PeerClient:
        await self._opened.wait()
        if self._running is None:
            raise Mm2pyError("this worker is ending")
        return self._running.peer_client(flow)


@final
class _LatePeers:
    """``PeerClient`` before its library is loaded."""

    def __init__(
        self,
        client: Callable[[FlowName | None], Awaitable[PeerClient]],
        flow: FlowName | None,
    ) -> None:
        self._client = client
        self._flow = flow

    async def post_tasks(
        self, url: str, connector: str, configs: Sequence[Mapping[str, str]], key: SessionKey
    ) -> None:
        """Hand a connector's task configs to the leader."""
        client = await self._client(self._flow)
        await client.post_tasks(url, connector, configs, key)

    async def node_snapshot(self, url: str, key: SessionKey) -> NodeSnapshot:
        """Return what the member at ``url`` copies."""
        client = await self._client(self._flow)
        return await client.node_snapshot(url, key)


def local_address(targets: Sequence[tuple[str, int]]) -> str:
    """Return the address of this machine on the way to the first target that has a route."""
    for host, port in targets:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # a datagram socket sends nothing here
                found: str = probe.getsockname()[0]
                return f"[{found}]" if ":" in found else found
        except OSError:
            continue
    return LOOPBACK
