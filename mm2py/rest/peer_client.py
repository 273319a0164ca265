"""What a leader asks the other workers of a flow: what they copy, for displays.

Flow: ``FlowService`` -> signed request -> another worker's internal listener -> ``NodeSnapshot``.
"""

from typing import Final
from urllib.parse import quote

import httpx

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.errors import ProtocolError
from mm2py.observability.metrics import NodeSnapshot
from mm2py.rest.credentials import Caller
from mm2py.rest.forwarding import reply_error, send_signed
from mm2py.rest.internal_gate import NODE_SNAPSHOT, caller_text
from mm2py.rest.parts import RESERVED_ALIASES
from mm2py.runtime.errors import HerderError
from mm2py.storage.config_state import SessionKey
from mm2py.types import FlowName

SNAPSHOT_TIMEOUT_S: Final = 5.0
WORKER: Final = caller_text(Caller("worker", operator=True))


def pair_prefix(flow: FlowName | None) -> str:
    """Return the path of a flow's dialect, empty on an ordinary worker (Java's
    percent-encoding)."""
    if flow is None:
        return ""
    reserved = "/pairs" if flow.source in RESERVED_ALIASES else ""
    return f"{reserved}/{quote(flow.source, safe='')}/{quote(flow.target, safe='')}"


async def node_snapshot(
    client: httpx.AsyncClient,
    flow: FlowName | None,
    url: str,
    key: SessionKey,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> NodeSnapshot:
    """Return what the member of a flow at ``url`` copies; ``HerderError``: it refused (its status),
    or could not be reached (500)."""
    path = pair_prefix(flow) + NODE_SNAPSHOT
    request = client.build_request("GET", url.rstrip("/") + path, timeout=SNAPSHOT_TIMEOUT_S)
    try:
        reply = await send_signed(client, request, url, flow, key, WORKER, clock)
    except httpx.HTTPError as failure:
        raise HerderError(
            f"Cannot reach {request.url}: {type(failure).__name__}: {failure}"
        ) from failure
    if not reply.is_success:
        raise reply_error(reply)
    try:
        return NodeSnapshot.from_json(reply.content)
    except ProtocolError as error:
        raise HerderError(f"{url} sent no node snapshot: {error.message}") from error
