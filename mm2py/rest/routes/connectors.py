"""Connectors: list, create, read, change, delete (``ConnectorsResource``).

Flow: call -> name, config, what may not come from outside -> herder -> ``ConnectorInfo``. Validation and
leadership are the herder's. The order of checks is Connect's: name, validation, leader, existence.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import empty, json_response
from mm2py.rest.bodies import config_map, json_object, read_json, text_of
from mm2py.rest.dialect_models import status_json, task_configs_json, to_info_json
from mm2py.rest.parts import Call, RouteSpec
from mm2py.rest.raw_path import encoded_segment, plain_segment
from mm2py.rest.shown_configs import restored, shown
from mm2py.runtime.herder.api import ConnectorInfo
from mm2py.runtime.herder.errors import BadRequestError, NotFoundError
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import TargetState

__all__ = ["ROUTES"]

INITIAL_STATES: Final[Mapping[str, TargetState]] = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}

NAME: Final = "name"


async def list_connectors(call: Call) -> Response:
    """``GET /connectors``, with or without ``expand``."""
    words = call.request.query_params.getlist("expand")
    names = call.herder.connectors()
    if not words:
        return json_response(list(names))
    found = {name: _expanded(call, name, words) for name in names}
    return json_response({name: members for name, members in found.items() if members is not None})


def _expanded(call: Call, name: str, words: list[str]) -> dict[str, object] | None:
    members: dict[str, object] = {}
    if "status" in words:
        try:
            members["status"] = status_json(call.herder.status(name), call.parts.mask)
        except NotFoundError:
            return None
    if "info" in words:
        info = call.herder.info_now(name)
        if info is None:
            return None
        members["info"] = _info_json(call, info)
    return members


def _info_json(call: Call, info: ConnectorInfo) -> dict[str, object]:
    return to_info_json(info, shown(call, info.config))


def _named(config: ConnectorConfig, name: str) -> dict[str, str | None]:
    """Return the config with its name in it; ``BadRequestError`` for another name."""
    given = config.get(NAME)
    if given is not None and given != name:
        raise BadRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL ({name})"
        )
    return {**config, NAME: name}


def _stored(call: Call, name: str) -> ConnectorConfig:
    info = call.herder.info_now(name)
    return {} if info is None else info.config


def _location(call: Call, name: str) -> dict[str, str]:
    prefix = call.prefix.format_map(
        {
            key: encoded_segment(plain_segment(str(value)))
            for key, value in call.request.path_params.items()
        }
    )
    base = str(call.request.base_url).rstrip("/")
    return {"Location": f"{base}{prefix}/connectors/{encoded_segment(name)}"}


async def create(call: Call) -> Response:
    """``POST /connectors``."""
    body = json_object(await read_json(call.request), "a create connector request")
    for key in body:
        if key not in {NAME, "config", "initial_state"}:
            raise BadRequestError(f'Unrecognized field "{key}" of a create connector request')
    name = (text_of(body.get(NAME), NAME) or "").strip()
    if body.get("config") is None:
        raise BadRequestError("The create connector request has no config")
    config = restored(call, _named(config_map(body["config"]), name), _stored(call, name))
    target = _initial_state(text_of(body.get("initial_state"), "initial_state"))
    call.check_remote(name, config)
    info = await call.herder.create(name, config, target, actor=call.actor)
    return json_response(_info_json(call, info), 201, _location(call, name))


def _initial_state(word: str | None) -> TargetState | None:
    if word is None:
        return None
    state = INITIAL_STATES.get(word.upper())
    if state is None:
        raise BadRequestError(f"No initial_state {word}; known are {', '.join(INITIAL_STATES)}")
    return state


async def get_connector(call: Call) -> Response:
    """``GET /connectors/{c}``."""
    info = await call.herder.info(call.connector)
    return json_response(_info_json(call, info), headers={"ETag": call.tag(info)})


async def get_config(call: Call) -> Response:
    """``GET /connectors/{c}/config``."""
    info = await call.herder.info(call.connector)
    return json_response(shown(call, info.config), headers={"ETag": call.tag(info)})


async def put_config(call: Call) -> Response:
    """``PUT /connectors/{c}/config``."""
    name = call.connector
    config = restored(
        call, _named(config_map(await read_json(call.request)), name), _stored(call, name)
    )
    call.check_remote(name, config)
    async with call.changing(name):
        put = await call.herder.put_config(name, config, actor=call.actor)
    body, tag = _info_json(call, put.info), {"ETag": call.tag(put.info)}
    if put.created:
        return json_response(body, 201, {**tag, **_location(call, name)})
    return json_response(body, headers=tag)


async def patch_config(call: Call) -> Response:
    """``PATCH /connectors/{c}/config``: null removes a key."""
    name = call.connector
    patch = restored(call, config_map(await read_json(call.request)), _stored(call, name))
    if NAME in patch:
        # Java stores another name and answers with two; a client cannot mean that.
        patch = _named(patch, name)
    call.check_remote(name, patch)
    async with call.changing(name):
        info = await call.herder.patch_config(name, patch, actor=call.actor)
    return json_response(_info_json(call, info), headers={"ETag": call.tag(info)})


async def delete(call: Call) -> Response:
    """``DELETE /connectors/{c}``: answered before its tasks have ended."""
    async with call.changing(call.connector):
        await call.herder.delete(call.connector, actor=call.actor)
    return empty(204)


async def get_tasks(call: Call) -> Response:
    """``GET /connectors/{c}/tasks``."""
    configs = await call.herder.task_configs(call.connector)
    return json_response(task_configs_json([(task, shown(call, it)) for task, it in configs]))


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/connectors", list_connectors),
    ("POST", "/connectors", create),
    ("GET", "/connectors/{connector}", get_connector),
    ("DELETE", "/connectors/{connector}", delete),
    ("GET", "/connectors/{connector}/config", get_config),
    ("PUT", "/connectors/{connector}/config", put_config),
    ("PATCH", "/connectors/{connector}/config", patch_config),
    ("GET", "/connectors/{connector}/tasks", get_tasks),
)
