"""Connectors: list, create, read, change, delete (``ConnectorsResource``).

Flow: call -> name, config, refusals over REST -> herder -> ``ConnectorInfo``. Validation and
leadership are the herder's. The order of checks is Connect's: name, validation, leader, existence.
"""

from typing import Final

from starlette.responses import Response

from mm2py.flows.views import shown_value
from mm2py.observability.logging import HIDDEN
from mm2py.rest.answers import empty, json_response
from mm2py.rest.bodies import config_map, json_object, offset_entries, read_json, text_of
from mm2py.rest.connector_names import NamedConnector, long_name
from mm2py.rest.dialect_models import (
    offsets_json,
    status_json,
    task_configs_json,
    to_info_json,
    work_json,
)
from mm2py.rest.parts import RestCall, RouteSpec, caller_of
from mm2py.rest.raw_path import encoded_segment, plain_segment
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.runtime.herder.api import ConnectorInfo
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import INITIAL_STATES, TargetState

NAME: Final = "name"


async def list_connectors(call: RestCall) -> Response:
    """``GET /connectors``, with or without ``expand``."""
    words = call.request.query_params.getlist("expand")
    listed = _all(call)
    if not words:
        return json_response([each.shown for each in listed])
    expanded = {each.shown: _expanded(call, each, words) for each in listed}
    return json_response(
        {name: members for name, members in expanded.items() if members is not None}
    )


def _all(call: RestCall) -> list[NamedConnector]:
    if not call.long_names:
        return [NamedConnector(call.herder, name, name) for name in call.herder.connectors()]
    return [
        NamedConnector(herder, name, long_name(flow, name))
        for flow, herder in call.herders.items()
        for name in herder.connectors()
    ]


def _expanded(
    call: RestCall, connector: NamedConnector, words: list[str]
) -> dict[str, object] | None:
    members: dict[str, object] = {}
    if "status" in words:
        try:
            stored = connector.herder.status(connector.own)
        except NotFoundError:
            return None
        state = connector.shown_state(stored)
        members["status"] = status_json(state, call.parts.mask)
    if "info" in words:
        info = connector.herder.info_now(connector.own)
        if info is None:
            return None
        members["info"] = _info_json(call, connector, info)
    return members


def _info_json(call: RestCall, connector: NamedConnector, info: ConnectorInfo) -> dict[str, object]:
    long = connector.shown_info(info)
    return to_info_json(long, shown(call, long.config))


def _named(config: ConnectorConfig, name: str) -> dict[str, str | None]:
    """Return the config with its name in it; ``BadRequestError`` for another name."""
    given = config.get(NAME)
    if given is not None and given != name:
        raise BadRequestError(
            f"Connector name configuration ({given}) doesn't match connector name in the URL "
            f"({name})"
        )
    return {**config, NAME: name}


def stored_config(call: RestCall, name: str) -> ConnectorConfig:
    """Return the config of a connector as the caller names it, empty for none."""
    place = call.find(name)
    info = None if place is None else place.herder.info_now(place.own)
    return {} if place is None or info is None else place.shown_config(info.config)


def _location(call: RestCall, name: str) -> dict[str, str]:
    prefix = call.prefix.format_map(
        {
            key: encoded_segment(plain_segment(str(value)))
            for key, value in call.request.path_params.items()
        }
    )
    base = str(call.request.base_url).rstrip("/")
    return {"Location": f"{base}{prefix}/connectors/{encoded_segment(name)}"}


async def create(call: RestCall) -> Response:
    """``POST /connectors``."""
    body = json_object(await read_json(call.request), "a create connector request")
    for key in body:
        if key not in {NAME, "config", "initial_state"}:
            raise BadRequestError(f'Unrecognized field "{key}" of a create connector request')
    # As `CreateConnectorRequest`: blanks around a name are dropped.
    name = (text_of(body.get(NAME), NAME) or "").strip()
    if body.get("config") is None:
        raise BadRequestError("The create connector request has no config")
    config = restored(call, _named(config_map(body["config"]), name), stored_config(call, name))
    target = _initial_state(text_of(body.get("initial_state"), "initial_state"))
    call.check_remote(name, config)
    connector = call.new(name)
    info = await connector.herder.create(
        connector.own, connector.own_config(config), target, actor=call.actor
    )
    return json_response(_info_json(call, connector, info), 201, _location(call, name))


def _initial_state(word: str | None) -> TargetState | None:
    if word is None:
        return None
    state = INITIAL_STATES.get(word.upper())
    if state is None:
        raise BadRequestError(f"No initial_state {word}; known are {', '.join(INITIAL_STATES)}")
    return state


async def get_connector(call: RestCall) -> Response:
    """``GET /connectors/{c}``."""
    connector = call.connector()
    info = await connector.herder.info(connector.own)
    tag = {"ETag": call.tag(connector, info)}
    return json_response(_info_json(call, connector, info), headers=tag)


async def get_config(call: RestCall) -> Response:
    """``GET /connectors/{c}/config``."""
    connector = call.connector()
    info = await connector.herder.info(connector.own)
    tag = {"ETag": call.tag(connector, info)}
    return json_response(shown(call, connector.shown_config(info.config)), headers=tag)


async def put_config(call: RestCall) -> Response:
    """``PUT /connectors/{c}/config``."""
    name = call.name
    config = restored(
        call, _named(config_map(await read_json(call.request)), name), stored_config(call, name)
    )
    call.check_remote(name, config)
    connector = call.new(name)
    async with call.changing(connector):
        created, info = await connector.herder.put_config(
            connector.own, connector.own_config(config), actor=call.actor
        )
    body, tag = _info_json(call, connector, info), {"ETag": call.tag(connector, info)}
    if created:
        return json_response(body, 201, {**tag, **_location(call, name)})
    return json_response(body, headers=tag)


async def patch_config(call: RestCall) -> Response:
    """``PATCH /connectors/{c}/config``: null removes a key."""
    name = call.name
    patch = restored(call, config_map(await read_json(call.request)), stored_config(call, name))
    if NAME in patch:
        # Java stores another name and answers with two; a client cannot mean that.
        patch = _named(patch, name)
    call.check_remote(name, patch)
    connector = call.connector()
    async with call.changing(connector):
        info = await connector.herder.patch_config(
            connector.own, connector.own_config(patch), actor=call.actor
        )
    tag = {"ETag": call.tag(connector, info)}
    return json_response(_info_json(call, connector, info), headers=tag)


async def delete(call: RestCall) -> Response:
    """``DELETE /connectors/{c}``: answered before its tasks have ended."""
    connector = call.connector()
    async with call.changing(connector):
        await connector.herder.delete(connector.own, actor=call.actor)
    return empty(204)


async def get_tasks(call: RestCall) -> Response:
    """``GET /connectors/{c}/tasks``."""
    connector = call.connector()
    configs = await connector.herder.task_configs(connector.own)
    return json_response(
        task_configs_json([(connector.shown_task(task), shown(call, it)) for task, it in configs])
    )


def shown(call: RestCall, config: ConnectorConfig) -> dict[str, str | None]:
    """Return ``config`` as this caller may see it."""
    # As Connect answers: tools put back the config that they got.
    if not call.parts.dedicated and caller_of(call.request).operator:
        return dict(config)
    typed, mask = _password_keys(call, config), call.parts.mask
    return {
        key: HIDDEN if it and key in typed else shown_value(key, it, mask)
        for key, it in config.items()
    }


def _password_keys(call: RestCall, config: ConnectorConfig) -> frozenset[str]:
    plugin = config.get("connector.class")
    if not plugin:
        return frozenset()
    try:
        definitions = call.parts.catalog.definitions(plugin)
    except NotFoundError:
        return frozenset()
    return frozenset(key.name for key in definitions if key.type == "PASSWORD")


def restored(
    call: RestCall, config: ConnectorConfig, stored: ConnectorConfig
) -> dict[str, str | None]:
    """Return ``config`` with the stored texts in place of what ``shown`` hides;
    ``BadRequestError``: ``[hidden]`` where nothing hidden is stored."""
    texts, refused = restored_or_refused(call, config, stored)
    for problem in refused.values():
        raise BadRequestError(problem)
    return texts


def restored_or_refused(
    call: RestCall, config: ConnectorConfig, stored: ConnectorConfig
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return ``restored`` without what it refuses, and that by key."""
    texts, refused = dict(config), dict[str, str]()
    if not call.parts.dedicated:
        return texts, refused
    seen = shown(call, stored)
    for key, value in config.items():
        if value is None or HIDDEN not in value:
            continue
        # Text that was edited around a hidden part cannot be joined with the secret again.
        if stored.get(key) is None or value not in {HIDDEN, seen[key]}:
            del texts[key]
            refused[key] = (
                f"Configuration {key} holds {HIDDEN}, which stands for a stored secret, but no "
                "such secret is stored under this key"
            )
        else:
            texts[key] = stored[key]
    return texts, refused


UNKNOWN: Final = "Unknown connector {}"


async def status(call: RestCall) -> Response:
    """``GET .../status``."""
    connector = call.connector("No status found for connector {}")
    state = connector.shown_state(connector.herder.status(connector.own))
    return json_response(status_json(state, call.parts.mask))


async def task_status(call: RestCall) -> Response:
    """``GET .../tasks/{n}/status``."""
    number = call.task
    connector = call.connector(f"No status found for task {{}}-{number}")
    work = connector.herder.task_status(connector.task(number))
    return json_response({"id": number, **work_json(work, call.parts.mask)})


async def topics(call: RestCall) -> Response:
    """``GET .../topics``: empty for a connector that does not exist."""
    place = call.find(call.name)
    names = () if place is None else place.herder.topics(place.own)
    return json_response({call.name: {"topics": list(names)}})


async def reset_topics(call: RestCall) -> Response:
    """``PUT .../topics/reset``."""
    place = call.find(call.name)
    if place is not None:
        await place.herder.reset_topics(place.own)
    return empty(202)


async def pause(call: RestCall) -> Response:
    """``PUT .../pause``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.pause(connector.own, actor=call.actor)
    return empty(202)


async def resume(call: RestCall) -> Response:
    """``PUT .../resume``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.resume(connector.own, actor=call.actor)
    return empty(202)


async def stop(call: RestCall) -> Response:
    """``PUT .../stop``."""
    connector = call.connector(UNKNOWN)
    await connector.herder.stop_connector(connector.own, actor=call.actor)
    return empty(204)


async def restart(call: RestCall) -> Response:
    """``POST .../restart``: without a flag the instance alone, else what the flags select."""
    only_failed, include_tasks = call.flag("onlyFailed"), call.flag("includeTasks")
    connector = call.connector(UNKNOWN)
    # Before KIP-745 there were no flags: the connector alone, and an answer without a body.
    if not (only_failed or include_tasks):
        await connector.herder.restart_connector(connector.own)
        return empty(204)
    state = await connector.herder.restart(
        connector.own, only_failed=only_failed, include_tasks=include_tasks
    )
    return json_response(status_json(connector.shown_state(state), call.parts.mask), 202)


async def restart_task(call: RestCall) -> Response:
    """``POST .../tasks/{n}/restart``."""
    number = call.task
    connector = call.connector(UNKNOWN)
    await connector.herder.restart_task(connector.task(number))
    return empty(204)


async def get_offsets(call: RestCall) -> Response:
    """``GET .../offsets``."""
    connector = call.connector()
    return json_response(offsets_json(await connector.herder.offsets(connector.own)))


async def alter_offsets(call: RestCall) -> Response:
    """``PATCH .../offsets``: only the named partitions change."""
    # Numbers stay numbers: an offset that became a text would be another one.
    entries = offset_entries(await read_json(call.request, numbers_as_written=False))
    connector = call.connector()
    return json_response({"message": await connector.herder.alter_offsets(connector.own, entries)})


async def reset_offsets(call: RestCall) -> Response:
    """``DELETE .../offsets``."""
    connector = call.connector()
    return json_response({"message": await connector.herder.reset_offsets(connector.own)})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/connectors", list_connectors),
    ("POST", "/connectors", create),
    ("GET", "/connectors/{connector}", get_connector),
    ("DELETE", "/connectors/{connector}", delete),
    ("GET", "/connectors/{connector}/config", get_config),
    ("PUT", "/connectors/{connector}/config", put_config),
    ("PATCH", "/connectors/{connector}/config", patch_config),
    ("GET", "/connectors/{connector}/tasks", get_tasks),
    ("GET", "/connectors/{connector}/status", status),
    ("GET", "/connectors/{connector}/tasks/{task}/status", task_status),
    ("GET", "/connectors/{connector}/topics", topics),
    ("PUT", "/connectors/{connector}/topics/reset", reset_topics),
    ("PUT", "/connectors/{connector}/pause", pause),
    ("PUT", "/connectors/{connector}/resume", resume),
    ("PUT", "/connectors/{connector}/stop", stop),
    ("POST", "/connectors/{connector}/restart", restart),
    ("POST", "/connectors/{connector}/tasks/{task}/restart", restart_task),
    ("GET", "/connectors/{connector}/offsets", get_offsets),
    ("PATCH", "/connectors/{connector}/offsets", alter_offsets),
    ("DELETE", "/connectors/{connector}/offsets", reset_offsets),
)
