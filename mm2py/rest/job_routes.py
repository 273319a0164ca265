"""Routes that jobs add to the dedicated mode, by entry points: the core imports no job.

Flow: ``mm2py.routes`` -> a function of ``RouteHost`` -> ``JobRoutes`` -> the public application.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.types import ASGIApp

from mm2py.clock import Clock
from mm2py.config.rest_settings import RestSettings
from mm2py.flows.service import FlowService
from mm2py.observability.logging import SecretMask

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


def open_job_routes(host: RouteHost) -> list[JobRoutes]:
    """Return the routes of all jobs that are installed."""
    opened: list[OpenRoutes] = [point.load() for point in entry_points(group=ROUTES)]
    return [routes(host) for routes in opened]
