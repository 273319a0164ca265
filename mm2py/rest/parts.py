"""The parts that both REST applications are built from, and one request as a handler sees it.

Flow: request -> ``endpoint`` (media types, which herders) -> handler(``RestCall``) -> its connector
-> response.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mm2py.clock import Clock
from mm2py.observability.loggers import LoggerRegistry
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter
from mm2py.rest.bodies import check_media_types, refuse_dry_run
from mm2py.rest.connector_names import NamedConnector, locate, locate_new
from mm2py.rest.credentials import ANONYMOUS, Caller
from mm2py.rest.etags import check_config_tag, config_tag
from mm2py.rest.raw_path import plain_segment
from mm2py.runtime.errors import BadRequestError, ForwardError, HerderError, NotFoundError
from mm2py.runtime.herder.api import ConnectorInfo, Validator
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.plugins.catalog import PluginCatalog
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName

RESERVED_ALIASES: Final = frozenset((
    "connectors", "connector-plugins", "flows", "jobs", "backfills", "admin", "health", "metrics",
    "pairs", "mm2py", "ui",
))  # fmt: skip
"""First segments with a meaning: a source cluster of this name is under ``/pairs/`` only."""

TASK_DIGITS: Final = 10
_UNKNOWN: Final = secrets.token_bytes(32)
"""In place of a session key that was not read yet: a tag of an empty one could be guessed."""

CALLER: Final = "mm2py.caller"
"""Scope key of the ``Caller``; set by the gate or from a signed request."""

SIGNED_FLOW: Final = "mm2py.signed_flow"
"""Scope key of the flow whose session key signed the request; set on the internal listener only."""


class Forwarding(Protocol):
    """Sends a request on to the worker that may answer it."""

    async def send(self, error: ForwardError, request: Request, herder: Herder) -> Response:
        """Return what that worker answers, or why it was not asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RestParts:
    """Everything the two applications need.

    ``herders`` is asked at each request: herders come after the listeners.
    ``remote_refusal(flow, name, config)`` returns why a config is refused over REST, None if it is
    accepted. ``address`` is host and port of the internal listener as other workers know it;
    ``started_ms``, by ``clock``: it has not seen what other workers sent before. ``gate`` wraps the
    public application (authentication); None admits every caller. ``meters`` count what an ordinary
    worker's tasks copy; herders of flows have their own.
    """

    herders: Callable[[], Mapping[FlowName | None, Herder]]
    dedicated: bool
    catalog: PluginCatalog
    validator: Validator
    loggers: LoggerRegistry
    mask: SecretMask
    clock: Clock
    forward: Forwarding
    gate: Callable[[ASGIApp], ASGIApp] | None = None
    flows: APIRouter | None = None
    meters: Callable[[], Collection[FlowMeter]] = tuple
    remote_refusal: Callable[[FlowName | None, str, ConnectorConfig], str | None]
    address: str = ""
    started_ms: int
    version: str = "4.3.1"
    commit: str = ""
    changing: dict[FlowName | None, asyncio.Lock] = field(
        default_factory=dict[FlowName | None, asyncio.Lock]
    )
    """Held by changes of connectors' configs, ``/flows`` included: what is compared or merged must
    stay until it is replaced."""


HerderPick = Callable[[Request], Mapping[FlowName | None, Herder]]
"""Which herders a request is about: one, or at the root of the dedicated mode all;
``NotFoundError``."""


def caller_of(request: Request) -> Caller:
    """Return the caller; the anonymous operator where authentication is off."""
    caller: Caller = request.scope.get(CALLER, ANONYMOUS)
    return caller


def signed_in(request: Request) -> str:
    """Return the caller's name, for the history."""
    return caller_of(request).name


@final
@dataclass(frozen=True, slots=True)
class RestCall:
    """One request; with ``long_names`` its connectors are named ``A->B.Connector``."""

    request: Request
    herders: Mapping[FlowName | None, Herder]
    parts: RestParts
    prefix: str
    long_names: bool

    @property
    def herder(self) -> Herder:
        """The only herder that this request is about.

        Raises:
            NotFoundError: it is about all flows, and what it asks for belongs to one.
            HerderError: the worker is starting up.
        """
        if self.long_names:
            raise NotFoundError("This belongs to one flow; ask under /{source}/{target}/")
        if not self.herders:
            raise HerderError("Worker is still starting up.", status=503)
        return self._about(next(iter(self.herders.values())))

    def connector(self, refusal: str = "Connector {} not found") -> NamedConnector:
        """Return the connector in the path; ``NotFoundError`` (``refusal``): no flow has it."""
        place = self.find(self.name)
        if place is None:
            raise NotFoundError(refusal.format(self.name))
        return place

    @property
    def name(self) -> str:
        """Name of the connector in the path, as it is written there."""
        return plain_segment(str(self.request.path_params["connector"]))

    def find(self, name: str) -> NamedConnector | None:
        """Return the connector that a name of this request means, None for no flow's."""
        if not self.long_names:
            return NamedConnector(self.herder, name, name)
        place = locate(name, self.herders)
        if place is not None:
            self._about(place.herder)
        return place

    def new(self, name: str) -> NamedConnector:
        """Return where a connector is to be created; ``BadRequestError`` where there is no flow."""
        if not self.long_names:
            return NamedConnector(self.herder, name, name)
        place = locate_new(name, self.herders)
        self._about(place.herder)
        return place

    def _about(self, herder: Herder) -> Herder:
        # A request that another worker has to answer is signed with this herder's key.
        self.request.state.herder = herder
        return herder

    @property
    def task(self) -> int:
        """Number of the task in the path, also below 0; other texts are a path without route."""
        text = str(self.request.path_params["task"])
        digits = text.removeprefix("-")
        # `int` also takes blanks, underscores and digits of other scripts.
        if not (digits.isascii() and digits.isdigit() and len(digits) <= TASK_DIGITS):
            raise HTTPException(404)
        return int(text)

    @property
    def actor(self) -> str:
        return signed_in(self.request)

    @property
    def signed(self) -> bool:
        """Whether another worker's signature was verified: that worker has checked the body."""
        return SIGNED_FLOW in self.request.scope

    def tag(self, connector: NamedConnector, info: ConnectorInfo) -> str:
        """Return the ``ETag`` of a connector's config, the same on all workers of its group."""
        key = connector.herder.session_key()
        return config_tag(info.config, _UNKNOWN if key is None else key.lasting)

    @asynccontextmanager
    async def changing(self, connector: NamedConnector) -> AsyncGenerator[None]:
        """Change a connector's config, one change of a flow at a time, only as ``If-Match`` allows.

        Raises:
            PreconditionFailedError: another config is in force.
            ForwardError: another worker leads, and compares.
        """
        herder = connector.herder
        async with self.parts.changing.setdefault(herder.flow, asyncio.Lock()):
            if_match = self.request.headers.get("if-match")
            if if_match is not None:
                herder.member_urls()  # its leader compares
                info = herder.info_now(connector.own)
                if info is not None:
                    info = replace(info, config=herder.wanted_config(info))
                check_config_tag(if_match, None if info is None else self.tag(connector, info))
            yield

    def remote_refusal(self, name: str, config: ConnectorConfig) -> str | None:
        """Return why a connector's config is refused over REST, None if it is accepted."""
        if self.signed:
            return None
        place = self.find(name)
        flow, own = (None, name) if place is None else (place.herder.flow, place.own)
        return self.parts.remote_refusal(flow, own, config)

    def check_remote(self, name: str, config: ConnectorConfig) -> None:
        """Raise ``BadRequestError`` for properties that a config may not have over REST."""
        problem = self.remote_refusal(name, config)
        if problem is not None:
            raise BadRequestError(problem)

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter: the first counts, ``true`` in any letter case."""
        values = self.request.query_params.getlist(name)
        return bool(values) and values[0].lower() == "true"


Handler = Callable[[RestCall], Awaitable[Response]]
RouteSpec = tuple[str, str, Handler]
"""Method, path below the prefix, handler."""


def endpoint(
    specs: Sequence[RouteSpec],
    prefix: str,
    pick: HerderPick,
    parts: RestParts,
    *,
    long_names: bool = False,
) -> list[Route]:
    """Return routes below ``prefix`` that ask the herders which ``pick`` names."""
    return [
        Route(
            (prefix + path).rstrip("/") or "/",
            _serve(handler, prefix, pick, parts, long_names=long_names),
            methods=[method],
        )
        for method, path, handler in specs
    ]


def _serve(
    handler: Handler, prefix: str, pick: HerderPick, parts: RestParts, *, long_names: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        await check_media_types(request)
        refuse_dry_run(request)
        return await handler(RestCall(request, pick(request), parts, prefix, long_names))

    return serve
