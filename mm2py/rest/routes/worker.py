"""Version, cluster and health of this worker (``RootResource``).

The version is Kafka's, because clients take features from it; ours is in ``commit``. At the root of
the dedicated mode it is that of all flows: all clusters, and the worst health.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.flows.states import decisive
from mm2py.observability.loggers import UnknownLevelError, known_level
from mm2py.rest.answers import empty, json_response
from mm2py.rest.bodies import config_map, json_object, read_json, text_of
from mm2py.rest.dialect_models import infos_json, key_json, plugin_json
from mm2py.rest.parts import RestCall, RouteSpec
from mm2py.rest.raw_path import plain_segment
from mm2py.rest.routes.connectors import restored_or_refused, stored_config
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.runtime.herder.api import Health
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName

HEALTH_STATUS: Final[Mapping[str, int]] = {"healthy": 200, "starting": 503, "unhealthy": 500}
SEVERITY: Final = tuple(HEALTH_STATUS)


async def root(call: RestCall) -> Response:
    """``GET /``."""
    return json_response(
        {
            "version": call.parts.version,
            "commit": call.parts.commit,
            "kafka_cluster_id": ",".join(sorted({each.cluster_id for each in _asked(call)})),
        }
    )


async def health(call: RestCall) -> Response:
    """``GET /health``."""
    asked = _decisive(call)
    healths = await asyncio.gather(*(herder.health() for herder in asked.values()))
    worst = _worst(call, asked, healths)
    body = {"status": worst.status, "message": call.parts.mask.apply(worst.message)}
    return json_response(body, HEALTH_STATUS[worst.status])


def _asked(call: RestCall) -> Sequence[Herder]:
    return list(call.herders.values()) if call.long_names else [call.herder]


def _decisive(call: RestCall) -> Mapping[FlowName | None, Herder]:
    """Return the herders that decide, where no single flow was asked for."""
    return decisive(call.herders) if call.long_names else {call.herder.flow: call.herder}


def _worst(
    call: RestCall, asked: Mapping[FlowName | None, Herder], healths: Sequence[Health]
) -> Health:
    if not healths:
        return Health("starting", "Worker is still starting up.")
    worst = max((each.status for each in healths), key=SEVERITY.index)
    if not call.long_names or worst == SEVERITY[0]:
        return healths[0]
    texts = [
        f"{flow}: {each.message}"
        for flow, each in zip(asked, healths, strict=True)
        if each.status == worst
    ]
    return Health(worst, " ".join(texts))


def _plugin(call: RestCall) -> str:
    return plain_segment(str(call.request.path_params["plugin"]))


async def list_plugins(call: RestCall) -> Response:
    """``GET /connector-plugins``: connectors only by default."""
    asked = call.request.query_params.getlist("connectorsOnly")
    connectors_only = not asked or call.flag("connectorsOnly")
    plugins = call.parts.catalog.plugins(connectors_only=connectors_only)
    return json_response([plugin_json(plugin) for plugin in plugins])


async def definitions(call: RestCall) -> Response:
    """``GET /connector-plugins/{plugin}/config``."""
    plugin = _plugin(call)
    keys = call.parts.catalog.definitions(plugin)
    version = call.request.query_params.get("version")
    if version is not None:
        _check_version(call, plugin, version)
    return json_response([key_json(key) for key in keys])


def _check_version(call: RestCall, plugin: str, wanted: str) -> None:
    there = {
        it.version
        for it in call.parts.catalog.plugins(connectors_only=False)
        if plugin in {it.java_class, *_short_names(it.java_class)}
    }
    if wanted not in there:
        known = ", ".join(sorted(version for version in there if version)) or "none"
        raise BadRequestError(f"Plugin {plugin} has no version {wanted}, installed: {known}")


def _short_names(java_class: str) -> set[str]:
    simple = java_class.rsplit(".", 1)[-1]
    return {simple, simple.removesuffix("Connector")}


async def validate(call: RestCall) -> Response:
    """``PUT /connector-plugins/{plugin}/config/validate``: 200 also where there are errors."""
    plugin = _plugin(call)
    given = config_map(await read_json(call.request))
    name = given.get("name") or ""
    # What was read with its secrets hidden is what a change takes back.
    config, hidden = restored_or_refused(call, given, stored_config(call, name))
    refused = hidden | {
        key: refusal
        for key, text in config.items()
        if (refusal := call.remote_refusal(name, {key: text})) is not None
    }
    # A property that is refused over REST is not validated: that would load code or read files.
    allowed = {key: text for key, text in config.items() if key not in refused}
    infos = await call.parts.validator.validate(allowed, plugin=plugin)
    return json_response(infos_json(_with_refusals(infos, refused), call.parts.mask))


def _with_refusals(infos: ConfigInfos, refused: Mapping[str, str]) -> ConfigInfos:
    """Return the outcome with each refusal as its key's error, where user interfaces show it."""
    configs: list[tuple[ConfigKey | None, ConfigValue | None]] = []
    count, left = infos.error_count, dict(refused)
    for definition, value in infos.configs:
        refusal = None if value is None else left.pop(value.name, None)
        if value is None or refusal is None:
            configs.append((definition, value))
            continue
        count += 1 - len(value.errors)
        # The value is not shown: what was refused may be a secret that a provider would put in.
        configs.append((definition, replace(value, value=None, errors=(refusal,))))
    configs += [(None, ConfigValue(name=k, value=None, errors=(it,))) for k, it in left.items()]
    return replace(infos, error_count=count + len(left), configs=tuple(configs))


def _namespace(call: RestCall) -> str:
    return plain_segment(str(call.request.path_params["logger"]))


def _level_json(level: tuple[str, int | None]) -> dict[str, object]:
    return {"level": level[0], "last_modified": level[1]}


async def list_loggers(call: RestCall) -> Response:
    """``GET /admin/loggers``, sorted by name."""
    levels = call.parts.loggers.all()
    return json_response({name: _level_json(level) for name, level in sorted(levels.items())})


async def get_logger(call: RestCall) -> Response:
    """``GET /admin/loggers/{l}``."""
    name = _namespace(call)
    level = call.parts.loggers.get(name)
    if level is None:
        raise NotFoundError(f"Logger {name} not found.")
    return json_response(_level_json(level))


async def set_level(call: RestCall) -> Response:
    """``PUT /admin/loggers/{l}``; a bad level is a 404, as in Connect."""
    body = json_object(await read_json(call.request), "a log level request")
    level = text_of(body.get("level"), "level")
    if level is None:
        raise BadRequestError("Desired 'level' parameter was not specified in request.")
    scopes = [word.lower() for word in call.request.query_params.getlist("scope")]
    try:
        level = known_level(level)
    except UnknownLevelError as error:
        raise NotFoundError(error.message) from error
    if scopes[:1] != ["cluster"]:
        return json_response(call.parts.loggers.set(_namespace(call), level))
    for herder in call.herders.values():
        await herder.set_logger_level(_namespace(call), level)
    return empty(204)


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/", root),
    ("GET", "/health", health),
    ("GET", "/connector-plugins", list_plugins),
    ("GET", "/connector-plugins/{plugin}/config", definitions),
    ("PUT", "/connector-plugins/{plugin}/config/validate", validate),
    ("GET", "/admin/loggers", list_loggers),
    ("GET", "/admin/loggers/{logger}", get_logger),
    ("PUT", "/admin/loggers/{logger}", set_level),
)
