"""Requests that another worker must answer: one or two hops, signed, never more.

Flow: ``ForwardError`` and the request -> the other worker's internal listener -> its answer, with
``Location`` on our own base. A request without ``forward`` in its query is sent with
``forward=true``, that one with ``forward=false``, and that one ends in a 409 (Connect's
``HerderRequestHandler``).

httpx is imported by ``http_client``, at the first request: it loads click, pygments and rich, 5 MB
that a worker which leads, or is alone, does not need.
"""

import json
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast, final
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.rest.answers import json_response
from mm2py.rest.internal_gate import FLOW_HEADER, caller_text, flow_text
from mm2py.rest.parts import caller_of
from mm2py.rest.raw_path import canonical_target
from mm2py.runtime.errors import (
    CONFLICTING_OPERATION,
    NO_LEADER,
    ConflictError,
    ForwardError,
    HerderError,
    SignatureError,
    WorkerUnreachableError,
)
from mm2py.runtime.group.request_signing import NO_SESSION_KEY, read_terms, sign_request
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import SessionKey
from mm2py.types import FlowName

if TYPE_CHECKING:
    import httpx

USER_AGENT: Final = "kafka-connect"
REQUEST_TIMEOUT_S: Final = 95.0
"""A little more than the other worker's own 90 s."""

CONNECT_TIMEOUT_S: Final = 5.0
ROTATION_PAUSES_S: Final = (0.25, 0.5, 1.0)
FORBIDDEN: Final = 403
OK: Final = range(200, 300)
REFUSED: Final = range(400, 600)


def http_client(
    context: ssl.SSLContext | None = None, *, transport: "httpx.AsyncBaseTransport | None" = None
) -> "httpx.AsyncClient":
    """Return the client for requests between workers; the caller closes it.

    Args:
        context: for https listeners; None for plain http.
        transport: instead of the network.
    """
    import httpx

    # It logs every request at INFO; a poll each second would fill the log.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.AsyncClient(
        transport=transport,
        verify=context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        follow_redirects=False,
        # A proxy of the environment must not see requests between workers.
        trust_env=False,
        headers={"Accept": "application/json", "User-Agent": USER_AGENT},
    )


@final
class Forwarder:
    """Sends requests to other workers; one for all herders of the process.

    ``client`` returns what sends them; called at the first one.
    """

    def __init__(
        self, client: "Callable[[], httpx.AsyncClient]", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._clock = clock

    async def send(self, error: ForwardError, request: Request, herder: Herder) -> Response:
        """Return the other worker's answer; ``HerderError``: it was not asked (409), refused, or
        could not be reached (500)."""
        # Before the leader's URL is looked at: a loop of forwards ends here in any case.
        hop = _next_hop(request)
        if error.url is None:
            raise ConflictError(NO_LEADER)
        reply = await self._sent(error.url, hop, request, herder)
        # KIP-507: after a key rotation two workers may have different keys for a moment; Java
        # repeats its own requests for this (``isPossibleExpiredKeyException``).
        for pause_s in ROTATION_PAUSES_S:
            if reply.status_code != FORBIDDEN:
                break
            # One of both may not have read the newest key; what was refused was not done.
            await self._clock.sleep(pause_s)
            reply = await self._sent(error.url, hop, request, herder)
        return _answer(reply, request)

    async def _sent(self, url: str, hop: str, request: Request, origin: Herder) -> "httpx.Response":
        from httpx import ConnectError, ConnectTimeout, HTTPError

        key = origin.session_key()
        if key is None:
            raise SignatureError(NO_SESSION_KEY, status=503)
        client = self._client()
        query = [pair for pair in request.query_params.multi_items() if pair[0] != "forward"]
        target = f"{canonical_target(request.scope)}?{urlencode([*query, ('forward', hop)])}"
        body = await request.body()
        built = client.build_request(request.method, url.rstrip("/") + target, content=body or None)
        if body:
            built.headers["Content-Type"] = "application/json"
        if "if-match" in request.headers:
            built.headers["if-match"] = request.headers["if-match"]
        caller = caller_text(caller_of(request))
        try:
            return await send_signed(client, built, url, origin.flow, key, caller, self._clock)
        except HTTPError as failure:
            # Only a connection that was never made proves that nothing was done.
            asked = not isinstance(failure, ConnectError | ConnectTimeout)
            raise WorkerUnreachableError(
                "IO Error trying to forward REST request:"
                f" {type(failure).__name__} at {url}: {failure}"
                + ("; the change may have been made" if asked and request.method != "GET" else "")
            ) from failure


async def send_signed(
    client: "httpx.AsyncClient",
    request: "httpx.Request",
    url: str,
    flow: FlowName | None,
    key: SessionKey,
    caller: str,
    clock: Clock,
) -> "httpx.Response":
    """Send a request to the worker at ``url``, signed with the key of ``flow``; httpx's errors pass
    through.

    The receiver's clock decides how old a signature is. Where it refuses with its own time and
    life, and has signed them, the request is signed once more with those.
    """
    request.headers[FLOW_HEADER] = flow_text(flow)
    body, target = request.content, request.url.raw_path.decode("ascii")

    async def send(now_ms: int, life: str = "") -> "httpx.Response":
        receiver = urlsplit(url).netloc
        request.headers.update(
            sign_request(
                key, request.method, target, caller, body, now_ms, receiver=receiver, life=life
            )
        )
        return await client.send(request)

    reply = await send(clock.now_ms())
    terms = read_terms(reply.headers, request.headers, key)
    return await send(*terms) if reply.status_code == FORBIDDEN and terms else reply


def _next_hop(request: Request) -> str:
    said = request.query_params.getlist("forward")
    if not said:
        return "true"
    if said[0].lower() == "true":
        return "false"
    raise ConflictError(CONFLICTING_OPERATION)


def _answer(reply: "httpx.Response", request: Request) -> Response:
    if reply.status_code not in OK:
        raise reply_error(reply)
    if not reply.content:
        return Response(status_code=reply.status_code)
    headers = {"ETag": reply.headers["etag"]} if "etag" in reply.headers else {}
    if "location" in reply.headers:
        there = urlsplit(reply.headers["location"])
        headers["Location"] = str(request.base_url).rstrip("/") + there.path
    return json_response(_json(reply), reply.status_code, headers)


def reply_error(reply: "httpx.Response") -> HerderError:
    """Return what another worker refused, with its status."""
    try:
        body = _json(reply)
    except HerderError:
        body = None
    if reply.status_code in REFUSED and isinstance(body, dict):
        message = cast("dict[str, object]", body).get("message")
        return HerderError(str(message), status=reply.status_code)
    return HerderError(
        f"IO Error trying to forward REST request: {reply.url.copy_with(query=None)} answered"
        f" {reply.status_code}"
    )


def _json(reply: "httpx.Response") -> object:
    try:
        value: object = json.loads(reply.content)
    except ValueError as error:
        raise HerderError(
            "IO Error trying to forward REST request: the answer is not JSON"
        ) from error
    return value
