"""Builds REST's two applications and opens their listeners; loaded after the flows have started.

Flow: settings, herders, ``NodeParts`` -> ``RestParts`` -> public application behind the gate,
internal one behind signatures -> ``RestServer``s.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.types import ASGIApp

from mm2py.client.connect.certificates import REST, Shown, certificates_of, chain_expires_s
from mm2py.clock import Clock
from mm2py.config.key_material import read_identity
from mm2py.config.limits import limit_problem
from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.config.rest_settings import ListenAddress, RestSettings
from mm2py.flows.changes import FlowChanges
from mm2py.flows.service import FlowService, FlowServiceParts
from mm2py.observability.logging import cause_text
from mm2py.rest.app import internal_app, own_app, public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.forwarding import Forwarder
from mm2py.rest.job_routes import JobRoutes, RouteHost, open_job_routes
from mm2py.rest.listener_tls import peer_context, server_context
from mm2py.rest.listening import BoundListener, Listener
from mm2py.rest.parts import RestParts
from mm2py.rest.routes.flows import router
from mm2py.rest.security import gate_for
from mm2py.rest.server import RestServer
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName
from mm2py_workers.served import Served

if TYPE_CHECKING:  # loaded with the first request to another worker
    import httpx

log = logging.getLogger(__name__)

_Refusal = Callable[[FlowName | None, str, ConnectorConfig], str | None]


@final
@dataclass(frozen=True, slots=True)
class OpenRest:
    """Both listeners, open."""

    public_urls: tuple[str, ...]
    servers: tuple[RestServer, ...]
    jobs: tuple[JobRoutes, ...]

    async def close_jobs(self) -> None:
        """End what requests started here: drivers of backfills in order; failovers are left."""
        closing = [job.close() for job in self.jobs]
        for ended in await asyncio.gather(*closing, return_exceptions=True):
            # A package's own code, which must not keep the listeners open.
            if isinstance(ended, Exception):
                log.warning("routes of a job did not close in order cause=%s", cause_text(ended))

    async def stop(self, timeout_s: float) -> None:
        await self.close_jobs()
        for server in self.servers:
            await server.stop(timeout_s)


async def open_rest(
    served: Served,
    settings: RestSettings,
    *,
    url: str,
    internal: BoundListener,
    http: "Callable[[], httpx.AsyncClient]",
    public: Sequence[BoundListener] = (),
) -> OpenRest:
    """Serve the internal listener on its bound socket, then open the public ones, bound or not.
    ``ConfigError``: an address, key store or password file cannot be used."""
    parts = served.parts
    credentials = RestCredentials.read(settings)
    parts.mask.add(credentials.secrets)
    peer_context(settings.tls)  # refused now, not by the first request to another worker
    _note_certificate(settings, parts.clock)
    forward = Forwarder(http, parts.clock)
    refusal = _refusal(settings, served)

    def application() -> ASGIApp:
        return own_app(rest)

    changing: dict[FlowName | None, asyncio.Lock] = {}
    # A third of a second of CPU, which would hold up heartbeats on a busy machine.
    flows, jobs = await asyncio.to_thread(
        _flows, settings, served, forward, refusal, application, changing
    )
    rest: RestParts = RestParts(
        herders=lambda: served.herders,
        dedicated=served.dedicated,
        catalog=parts.catalog,
        validator=parts.validator,
        loggers=parts.loggers,
        mask=parts.mask,
        clock=parts.clock,
        forward=forward,
        gate=gate_for(settings, credentials),
        flows=flows,
        meters=served.meters,
        remote_refusal=refusal,
        address=urlsplit(url).netloc,
        started_ms=parts.clock.now_ms(),
        changing=changing,
        commit=f"mm2py-{version('mm2py')}",
    )
    inside = RestServer(
        [
            replace(internal, ssl=_listener(settings.internal, settings).ssl),
            *(
                _listener(listener, settings)
                for listener in settings.listeners
                if listener.signed_only
            ),
        ],
        internal_app(rest),
    )
    outside = RestServer(_public(public, settings), public_app(rest))
    try:
        await inside.start()
        urls = await outside.start()
    except BaseException:
        await inside.stop(0)
        raise
    return OpenRest(urls, (outside, inside), jobs)


def _note_certificate(settings: RestSettings, clock: Clock) -> None:
    keystore = None if settings.tls is None else settings.tls.stores.keystore
    if keystore is not None:
        certificates_of(clock).note(Shown(REST), chain_expires_s(read_identity(keystore).chain))


def _public(
    public: Sequence[BoundListener], settings: RestSettings
) -> Sequence[Listener | BoundListener]:
    addresses = [
        _listener(listener, settings) for listener in settings.listeners if not listener.signed_only
    ]
    if not public:
        return addresses
    # In the order of the settings, where an ordinary worker has no signed ones.
    return [replace(it, ssl=like.ssl) for it, like in zip(public, addresses, strict=True)]


def _flows(
    settings: RestSettings,
    served: Served,
    forward: Forwarder,
    refusal: _Refusal,
    app: Callable[[], ASGIApp],
    changing: dict[FlowName | None, asyncio.Lock],
) -> tuple[APIRouter | None, tuple[JobRoutes, ...]]:
    """Return the routes of ``/flows`` with those of the jobs, and the jobs."""
    if served.fleet is None or served.file is None:
        return None, ()
    parts = FlowServiceParts(
        fleet=served.fleet,
        validator=served.parts.validator,
        mask=served.parts.mask,
        clock=served.parts.clock,
        remote_refusal=refusal,
        property_problem=served.property_problem,
        readers=served.readers,
        changing=changing,
    )
    flows = FlowService(parts)
    routes = router(flows, FlowChanges(parts), forward)
    host = RouteHost(
        file=served.file,
        flows=flows,
        settings=settings,
        mask=parts.mask,
        clock=parts.clock,
        application=app,
    )
    jobs = tuple(open_job_routes(host))
    for job in jobs:
        routes.routes.extend(job.router.routes)
    return routes, jobs


def _refusal(settings: RestSettings, served: Served) -> _Refusal:
    def refused(flow: FlowName | None, name: str, config: ConnectorConfig) -> str | None:
        too_long = limit_problem(name, config)
        if too_long:
            return too_long
        problems = remote_problems(
            config,
            dedicated=served.dedicated,
            file_texts=served.parts.file_texts(flow, name),
            providers=settings.providers_allowed,
        )
        return refusal_text(problems)

    return refused


def _listener(address: ListenAddress, settings: RestSettings) -> Listener:
    context = None
    if address.scheme == "https" and settings.tls is not None:
        context = server_context(settings.tls)
    return Listener(address.host, address.port, context, may_move=address.or_free_port)
