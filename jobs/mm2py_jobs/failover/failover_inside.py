"""Failovers that a worker drives itself: the same work as of the command, with the worker's own API in place of the network.

Flow: ``FailoverService`` -> ``failovers_inside`` -> ``failover_work.opened`` over the worker's file -> ``OwnApi`` -> the application of this
process, which sends on what another worker leads.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, final

from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.errors import FatalError, ProtocolError, RetriableError
from mm2py.mirror.failovers import FailoverKind
from mm2py.rest.parts import CALLER
from mm2py.types import FlowName
from mm2py_jobs.failover.failovers import FailoverCommands, OpenCommands
from mm2py_workers.answers import Row

if TYPE_CHECKING:
    import httpx

ANSWER_S: Final = 60.0
_NOT_NOW: Final = frozenset({409, 503})


@dataclass(frozen=True, slots=True)
class _Driver:
    """Who asks, in the history of flows."""

    name: str = "failover"
    operator: bool = True


@final
class OwnApi:
    """Asks the application of this process as an operator; implements ``FlowsApi``."""

    def __init__(self, app: Callable[[], ASGIApp]) -> None:
        self._build = app
        self._app: ASGIApp | None = None

    async def rows(self, path: str) -> Sequence[Row]:
        """GET a list of objects."""
        found = await self._ask("GET", path, None)
        if not isinstance(found, list):
            raise ProtocolError(f"the answer to {path} is not a list")
        return cast("list[Row]", found)

    async def post(self, path: str, body: object = None) -> None:
        """POST a change."""
        await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: object) -> object:
        import httpx  # a worker without failovers asks nobody

        transport = httpx.ASGITransport(app=self._as_driver, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=ANSWER_S
        ) as client:
            answer = await client.request(method, path, json=body)
        if answer.is_success:
            found: object = answer.json()
            return found
        raise _refusal(answer)

    async def _as_driver(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = self._app or self._build()
        await self._app({**scope, CALLER: _Driver()}, receive, send)


def _refusal(answer: "httpx.Response") -> FatalError | RetriableError:
    text = f"{answer.status_code}: {answer.text[:500]}"
    return RetriableError(text) if answer.status_code in _NOT_NOW else FatalError(text)


def failovers_inside(file: Path, app: Callable[[], ASGIApp]) -> OpenCommands:
    """Return what connects to the clusters of the flows of a worker's file.

    Args:
        file: of this worker.
        app: the application without the gate of its users, once it is there.
    """
    api = OwnApi(app)

    def opened(flow: FlowName, kind: FailoverKind) -> AbstractAsyncContextManager[FailoverCommands]:
        # A worker without failovers loads none of it.
        from mm2py_jobs.failover import failover_control, failover_work

        return failover_work.opened(file, str(flow), kind, failover_control.RestFlows(api))

    return opened
