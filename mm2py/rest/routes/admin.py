"""Log levels of this worker, or of all (``LoggingResource``).

Flow: call -> registry of this process; with ``scope=cluster`` -> herder -> config topic -> every worker.
"""

from typing import Final

from starlette.responses import Response

from mm2py.observability.loggers import UnknownLevelError
from mm2py.rest.answers import empty, json_response
from mm2py.rest.bodies import json_object, read_json, text_of
from mm2py.rest.parts import Call, RouteSpec
from mm2py.rest.raw_path import plain_segment
from mm2py.runtime.errors import BadRequestError, NotFoundError

LEVELS: Final = frozenset({"OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"})


def _namespace(call: Call) -> str:
    return plain_segment(str(call.request.path_params["logger"]))


def _level_json(level: tuple[str, int | None]) -> dict[str, object]:
    return {"level": level[0], "last_modified": level[1]}


async def list_loggers(call: Call) -> Response:
    """``GET /admin/loggers``, sorted by name."""
    found = call.parts.loggers.all()
    return json_response({name: _level_json(level) for name, level in sorted(found.items())})


async def get_logger(call: Call) -> Response:
    """``GET /admin/loggers/{l}``."""
    name = _namespace(call)
    level = call.parts.loggers.get(name)
    if level is None:
        raise NotFoundError(f"Logger {name} not found.")
    return json_response(_level_json(level))


async def set_level(call: Call) -> Response:
    """``PUT /admin/loggers/{l}``; a bad level is a 404, as in Connect."""
    body = json_object(await read_json(call.request), "a log level request")
    level = text_of(body.get("level"), "level")
    if level is None:
        raise BadRequestError("Desired 'level' parameter was not specified in request.")
    scopes = [word.lower() for word in call.request.query_params.getlist("scope")]
    try:
        return await _set_level(call, _known(level), everywhere=scopes[:1] == ["cluster"])
    except UnknownLevelError as error:
        raise NotFoundError(error.message) from error


def _known(level: str) -> str:
    if level.upper() not in LEVELS:
        raise UnknownLevelError(level)
    return level.upper()


async def _set_level(call: Call, level: str, *, everywhere: bool) -> Response:
    if everywhere:
        for herder in call.herders.values():
            await herder.set_logger_level(_namespace(call), level)
        return empty(204)
    return json_response(call.parts.loggers.set(_namespace(call), level))


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/admin/loggers", list_loggers),
    ("GET", "/admin/loggers/{logger}", get_logger),
    ("PUT", "/admin/loggers/{logger}", set_level),
)
