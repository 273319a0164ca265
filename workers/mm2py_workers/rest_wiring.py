"""Builds REST's two applications and opens their listeners; loaded after the flows have started.

Flow: settings, herders, ``NodeParts`` -> ``RestParts`` -> public application behind the gate, internal one
behind signatures -> ``RestServer``s.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import httpx
from fastapi import APIRouter

from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.config.rest_settings import ListenAddress, RestSettings
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.credentials import Credentials
from mm2py.rest.forwarding import Forwarder, http_client
from mm2py.rest.listener_tls import peer_context, server_context
from mm2py.rest.parts import RestParts
from mm2py.rest.peer_client import HttpPeerClient
from mm2py.rest.security import BodyLimit, gate_for
from mm2py.rest.server import Listener, RestServer
from mm2py.runtime.herder_api import Herder, PeerClient
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName
from mm2py_workers.flow_wiring import NodeParts
from mm2py_workers.secret_names import names_a_secret

__all__ = ["OpenRest", "open_rest"]

log = logging.getLogger(__name__)

INTERNAL_BODY_BYTES: Final = 16 * 1024 * 1024
"""Task configs of a thousand topics are far below; a stranger cannot fill the memory."""


@final
@dataclass(frozen=True, slots=True)
class OpenRest:
    """Both listeners; implements ``rest_node.RunningRest``."""

    public_urls: tuple[str, ...]
    servers: tuple[RestServer, ...]
    client: httpx.AsyncClient

    def peer_client(self, flow: FlowName | None) -> PeerClient:
        """Return what a flow's herder asks other workers with."""
        return HttpPeerClient(self.client, flow)

    async def stop(self, timeout_s: float) -> None:
        """Close the listeners; running requests get ``timeout_s``."""
        for server in self.servers:
            await server.stop(timeout_s)
        await self.client.aclose()


async def open_rest(
    settings: RestSettings,
    internal: socket.socket,
    herders: Callable[[], Mapping[FlowName | None, Herder]],
    node: NodeParts,
    *,
    dedicated: bool,
    flows: APIRouter | None = None,
) -> OpenRest:
    """Open the internal listener on its bound socket, then the public ones.

    Raises:
        ConfigError: an address, key store or password file cannot be used.
    """
    credentials = Credentials.read(settings)
    node.mask.add(credentials.secrets)
    client = http_client(peer_context(settings.tls))
    parts = RestParts(
        herders=herders,
        dedicated=dedicated,
        catalog=node.catalog,
        validator=node.validator,
        loggers=node.loggers,
        mask=node.mask,
        clock=node.clock,
        forward=Forwarder(client, node.clock),
        flows=flows,
        remote_refusal=_refusal(settings, node, dedicated=dedicated),
        names_a_secret=names_a_secret,
    )
    private = BodyLimit(internal_app(parts), INTERNAL_BODY_BYTES)
    public = gate_for(settings, credentials)(public_app(parts))
    open_listeners = [_listener(a, settings) for a in settings.listeners if not a.signed_only]
    signed_listeners = [_listener(a, settings) for a in settings.listeners if a.signed_only]
    own = _listener(settings.internal, settings, bound=internal)
    inside = RestServer([own, *signed_listeners], private)
    outside = RestServer(open_listeners, public)
    try:
        await inside.start()
        urls = await outside.start()
    except BaseException:
        await inside.stop(0)
        await client.aclose()
        raise
    return OpenRest(urls, (outside, inside), client)


def _refusal(
    settings: RestSettings, node: NodeParts, *, dedicated: bool
) -> Callable[[FlowName | None, str, ConnectorConfig], str | None]:
    def refused(flow: FlowName | None, name: str, config: ConnectorConfig) -> str | None:
        problems = remote_problems(
            config,
            dedicated=dedicated,
            file_texts=node.file_texts(flow, name),
            providers=settings.providers_allowed,
        )
        return refusal_text(problems)

    return refused


def _listener(
    address: ListenAddress, settings: RestSettings, bound: socket.socket | None = None
) -> Listener:
    context = None
    if address.scheme == "https" and settings.tls is not None:
        context = server_context(settings.tls)
    return Listener(
        address.host, address.port, context, may_move=address.or_free_port, bound=bound
    )
