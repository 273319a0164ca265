"""What a herder asks other workers on its own: task configs to the leader, snapshots of nodes.

Flow: herder -> signed request -> another worker's internal listener -> nothing, or a ``NodeSnapshot``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, final
from urllib.parse import quote, urlsplit

import httpx

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.errors import ProtocolError
from mm2py.observability.metrics import NodeSnapshot
from mm2py.rest.forwarding import reply_error
from mm2py.rest.internal_gate import FLOW_HEADER, SignedCaller, caller_text, flow_text
from mm2py.rest.parts import RESERVED_ALIASES
from mm2py.rest.routes.internal import NODE_SNAPSHOT
from mm2py.runtime.group.request_signing import sign_body, sign_request
from mm2py.runtime.herder.errors import HerderError
from mm2py.storage.config_state import SessionKey
from mm2py.types import FlowName

__all__ = ["HttpPeerClient", "pair_prefix"]

SNAPSHOT_TIMEOUT_S: Final = 5.0
FENCE_TIMEOUT_S: Final = 90.0
"""As requests of users: a round asks the coordinator of every transactional id."""
WORKER: Final = caller_text(SignedCaller("worker", operator=True))


def pair_prefix(flow: FlowName | None) -> str:
    """Return the path of a flow's dialect, empty on an ordinary worker (Java's percent-encoding)."""
    if flow is None:
        return ""
    reserved = "/pairs" if flow.source in RESERVED_ALIASES else ""
    return f"{reserved}/{quote(flow.source, safe='')}/{quote(flow.target, safe='')}"


@final
class HttpPeerClient:
    """``PeerClient`` of one herder; ``algorithm`` is ``inter.worker.signature.algorithm``."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        flow: FlowName | None,
        *,
        algorithm: str = "HmacSHA256",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._flow = flow
        self._algorithm = algorithm
        self._clock = clock

    async def post_tasks(
        self, url: str, connector: str, configs: Sequence[Mapping[str, str]], key: SessionKey
    ) -> None:
        """Hand a connector's task configs to the leader; signed as Java signs, and as we do.

        Raises:
            HerderError: the leader refused (its status), or could not be reached (500).
        """
        body = json.dumps([dict(config) for config in configs], ensure_ascii=False).encode()
        path = f"{pair_prefix(self._flow)}/connectors/{quote(connector, safe='')}/tasks"
        headers = {**sign_body(key, body, self._algorithm), "Content-Type": "application/json"}
        await self._send(
            self._client.build_request("POST", _at(url, path), content=body, headers=headers),
            url,
            key,
            body,
        )

    async def put_fence(self, url: str, connector: str, key: SessionKey) -> None:
        """Let the leader fence producers of earlier tasks; signed as Java signs, and as we do.

        Raises:
            HerderError: the leader refused (its status), or could not be reached (500).
        """
        path = f"{pair_prefix(self._flow)}/connectors/{quote(connector, safe='')}/fence"
        request = self._client.build_request(
            "PUT",
            _at(url, path),
            headers=sign_body(key, b"", self._algorithm),
            timeout=FENCE_TIMEOUT_S,
        )
        await self._send(request, url, key)

    async def node_snapshot(self, url: str, key: SessionKey) -> NodeSnapshot:
        """Return what the member at ``url`` copies; ``HerderError`` as above."""
        request = self._client.build_request(
            "GET", _at(url, pair_prefix(self._flow) + NODE_SNAPSHOT), timeout=SNAPSHOT_TIMEOUT_S
        )
        reply = await self._send(request, url, key)
        try:
            return NodeSnapshot.from_json(reply.content)
        except ProtocolError as error:
            raise HerderError(f"{url} sent no node snapshot: {error.message}") from error

    async def _send(
        self, request: httpx.Request, url: str, key: SessionKey, body: bytes = b""
    ) -> httpx.Response:
        request.headers.update(
            sign_request(
                key,
                request.method,
                request.url.raw_path.decode("ascii"),
                WORKER,
                body,
                self._clock.now_ms(),
                receiver=urlsplit(url).netloc,
            )
        )
        request.headers[FLOW_HEADER] = flow_text(self._flow)
        try:
            reply = await self._client.send(request)
        except httpx.HTTPError as failure:
            raise HerderError(
                f"Cannot reach {request.url}: {type(failure).__name__}: {failure}"
            ) from failure
        if not reply.is_success:
            raise reply_error(reply)
        return reply


def _at(url: str, path: str) -> str:
    return url.rstrip("/") + path
