"""Routes that jobs add to the dedicated mode, by entry points: the core imports no job.

Flow: ``mm2py.routes`` -> a function of ``RouteHost`` -> ``JobRoutes`` -> the public application. An
entry point that is broken is named in the log and left out: the mirror runs without it.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, cast

from fastapi import APIRouter
from starlette.types import ASGIApp

from mm2py.clock import Clock
from mm2py.config.rest_settings import RestSettings
from mm2py.flows.service import FlowService
from mm2py.observability.logging import SecretMask, cause_text

log = logging.getLogger(__name__)

ROUTES: Final = "mm2py.routes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteHost:
    """The worker that serves the routes of a job.

    ``file`` has the properties of the worker, ``flows`` are those it runs; ``application`` is REST
    without authentication, once it is open.
    """

    file: Path
    flows: FlowService
    settings: RestSettings
    mask: SecretMask
    clock: Clock
    application: Callable[[], ASGIApp]


@dataclass(frozen=True, slots=True)
class JobRoutes:
    """Routes of a job; ``close`` ends what they have started in this process."""

    router: APIRouter
    close: Callable[[], Awaitable[None]]


OpenRoutes = Callable[[RouteHost], JobRoutes]


def open_job_routes(host: RouteHost, points: Iterable[EntryPoint] | None = None) -> list[JobRoutes]:
    """Return the routes of all jobs that are installed and can be opened.

    Args:
        host: the worker.
        points: entry points to open; None: those of this Python environment.
    """
    opened: list[JobRoutes] = []
    for point in entry_points(group=ROUTES) if points is None else points:
        try:
            opened.append(_opened(point, host))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the package's own code runs
            log.warning(
                "routes of a job left out name=%s value=%s cause=%s",
                point.name,
                point.value,
                cause_text(error),
            )
    return opened


def _opened(point: EntryPoint, host: RouteHost) -> JobRoutes:
    open_routes: OpenRoutes = point.load()
    routes = cast("object", open_routes(host))
    if not isinstance(routes, JobRoutes) or not isinstance(
        cast("object", routes.router), APIRouter
    ):
        raise TypeError(f"it returns {type(routes).__name__}, and has to return JobRoutes")
    return routes
