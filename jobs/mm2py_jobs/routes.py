"""``/jobs/{kind}``: the routes of kinds that are begun over REST (backfill, failover, failback),
and the drivers that they start in this worker. All others are only listed there, from what they
tell.

Flow: request -> a route of ``JobRouter`` -> the service of the kind -> its record in Kafka, which
any worker shows. The verbs have the same paths for all: ``GET /jobs/{kind}`` lists,
``POST /jobs/{kind}`` plans, ``GET .../{job}`` shows, ``POST .../{job}:start``, ``:pause``,
``:resume`` and ``:cancel`` change. The older paths are those of ``mm2py_jobs.aliases.PATHS``, with
the same endpoints.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, Generic, TypeVar, final

from fastapi import APIRouter, Depends

from mm2py.clock import cancelled
from mm2py.rest.bodies import check_media_types, refuse_unknown
from mm2py.rest.routes.flows import RESPONSES
from mm2py_jobs.aliases import PATHS

OK: Final = 200
CREATED: Final = 201
ACCEPTED: Final = 202

K = TypeVar("K")

Endpoint = Callable[..., Coroutine[object, object, object]]


@final
class JobRouter:
    """The routes of one kind; each is served under its older path too, where it has one."""

    def __init__(self, tag: str) -> None:
        self.routes = APIRouter(
            tags=[tag],
            dependencies=[Depends(check_media_types), Depends(refuse_unknown)],
            responses=RESPONSES,
        )

    def add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        status: int = OK,
        responses: Mapping[int | str, dict[str, object]] | None = None,
        body: dict[str, object] | None = None,
        older: bool = True,
    ) -> None:
        """Add a route at a path, and at its ``older`` one if it has one."""
        others = [old for old, new in PATHS.items() if older and new == path]
        for each in (path, *others):
            self.routes.add_api_route(
                each,
                endpoint,
                methods=[method],
                status_code=status,
                responses=None if responses is None else {**responses},
                openapi_extra=body,
            )


@final
class JobRuns(Generic[K]):
    """The drivers that this worker runs, as tasks, at most one for each job."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[None]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._tasks and not self._tasks[key].done()

    def start(self, key: K, work: Coroutine[object, object, None], *, name: str) -> None:
        """Run a driver to its end."""
        self._tasks[key] = asyncio.create_task(work, name=name)

    def __len__(self) -> int:
        return sum(not task.done() for task in self._tasks.values())

    async def cancel(self, key: K) -> None:
        """Cancel a driver, if it runs, and wait until it has ended."""
        await cancelled(self._tasks.get(key))

    async def close(self) -> None:
        """Cancel all of them; their records stay."""
        await cancelled(*self._tasks.values())
