"""What a connector does and shall do: status, topics, pause, resume, stop, restart.

Flow: call -> herder -> state, or an answer without a body (pause and resume 202, stop and restart 204).
"""

from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import empty, json_response
from mm2py.rest.dialect_models import status_json, work_json
from mm2py.rest.parts import Call, RouteSpec
from mm2py.types import TaskId

__all__ = ["ROUTES"]


async def status(call: Call) -> Response:
    """``GET .../status``."""
    return json_response(status_json(call.herder.status(call.connector), call.parts.mask))


async def task_status(call: Call) -> Response:
    """``GET .../tasks/{n}/status``."""
    work = call.herder.task_status(TaskId(call.connector, call.task))
    return json_response({"id": call.task, **work_json(work, call.parts.mask)})


async def topics(call: Call) -> Response:
    """``GET .../topics``: empty for a connector that does not exist."""
    name = call.connector
    return json_response({name: {"topics": list(call.herder.topics(name))}})


async def reset_topics(call: Call) -> Response:
    """``PUT .../topics/reset``."""
    await call.herder.reset_topics(call.connector)
    return empty(202)


async def pause(call: Call) -> Response:
    """``PUT .../pause``."""
    await call.herder.pause(call.connector, actor=call.actor)
    return empty(202)


async def resume(call: Call) -> Response:
    """``PUT .../resume``."""
    await call.herder.resume(call.connector, actor=call.actor)
    return empty(202)


async def stop(call: Call) -> Response:
    """``PUT .../stop``."""
    await call.herder.stop_connector(call.connector, actor=call.actor)
    return empty(204)


async def restart(call: Call) -> Response:
    """``POST .../restart``: without a flag the instance alone, else what the flags select."""
    only_failed, include_tasks = call.flag("onlyFailed"), call.flag("includeTasks")
    if not (only_failed or include_tasks):
        await call.herder.restart_connector(call.connector)
        return empty(204)
    state = await call.herder.restart(
        call.connector, only_failed=only_failed, include_tasks=include_tasks
    )
    return json_response(status_json(state, call.parts.mask), 202)


async def restart_task(call: Call) -> Response:
    """``POST .../tasks/{n}/restart``."""
    await call.herder.restart_task(TaskId(call.connector, call.task))
    return empty(204)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/connectors/{connector}/status", status),
    ("GET", "/connectors/{connector}/tasks/{task}/status", task_status),
    ("GET", "/connectors/{connector}/topics", topics),
    ("PUT", "/connectors/{connector}/topics/reset", reset_topics),
    ("PUT", "/connectors/{connector}/pause", pause),
    ("PUT", "/connectors/{connector}/resume", resume),
    ("PUT", "/connectors/{connector}/stop", stop),
    ("POST", "/connectors/{connector}/restart", restart),
    ("POST", "/connectors/{connector}/tasks/{task}/restart", restart_task),
)
