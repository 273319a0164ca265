"""What a connector does and shall do: status, topics, pause, resume, stop, restart.

Flow: call -> herder -> state, or an answer without a body (pause and resume 202, stop and restart 204).
"""

from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import empty, json_response
from mm2py.rest.dialect_models import status_json, work_json
from mm2py.rest.parts import Call, RouteSpec

UNKNOWN: Final = "Unknown connector {}"


async def status(call: Call) -> Response:
    """``GET .../status``."""
    connector = call.connector("No status found for connector {}")
    state = connector.shown_state(connector.herder.status(connector.own))
    return json_response(status_json(state, call.parts.mask))


async def task_status(call: Call) -> Response:
    """``GET .../tasks/{n}/status``."""
    number = call.task
    connector = call.connector(f"No status found for task {{}}-{number}")
    work = connector.herder.task_status(connector.task(number))
    return json_response({"id": number, **work_json(work, call.parts.mask)})


async def topics(call: Call) -> Response:
    """``GET .../topics``: empty for a connector that does not exist."""
    found = call.find(call.name)
    names = () if found is None else found.herder.topics(found.own)
    return json_response({call.name: {"topics": list(names)}})


async def reset_topics(call: Call) -> Response:
    """``PUT .../topics/reset``."""
    found = call.find(call.name)
    if found is not None:
        await found.herder.reset_topics(found.own)
    return empty(202)


async def pause(call: Call) -> Response:
    """``PUT .../pause``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.pause(connector.own, actor=call.actor)
    return empty(202)


async def resume(call: Call) -> Response:
    """``PUT .../resume``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.resume(connector.own, actor=call.actor)
    return empty(202)


async def stop(call: Call) -> Response:
    """``PUT .../stop``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.stop_connector(connector.own, actor=call.actor)
    return empty(204)


async def restart(call: Call) -> Response:
    """``POST .../restart``: without a flag the instance alone, else what the flags select."""
    only_failed, include_tasks = call.flag("onlyFailed"), call.flag("includeTasks")
    connector = call.connector(UNKNOWN)
    if not (only_failed or include_tasks):
        await connector.herder.restart_connector(connector.own)
        return empty(204)
    state = await connector.herder.restart(
        connector.own, only_failed=only_failed, include_tasks=include_tasks
    )
    return json_response(status_json(connector.shown_state(state), call.parts.mask), 202)


async def restart_task(call: Call) -> Response:
    """``POST .../tasks/{n}/restart``."""
    number = call.task
    connector = call.connector(UNKNOWN)
    await connector.herder.restart_task(connector.task(number))
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
