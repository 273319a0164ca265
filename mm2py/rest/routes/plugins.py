"""What is installed, its keys, and what is wrong with a config (``ConnectorPluginsResource``).

Flow: call -> catalog or validator -> JSON without secrets.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.rest.answers import json_response
from mm2py.rest.bodies import config_map, read_json
from mm2py.rest.dialect_models import infos_json, key_json, plugin_json
from mm2py.rest.parts import Call, RouteSpec
from mm2py.rest.raw_path import plain_segment
from mm2py.runtime.errors import BadRequestError


def _plugin(call: Call) -> str:
    return plain_segment(str(call.request.path_params["plugin"]))


async def list_plugins(call: Call) -> Response:
    """``GET /connector-plugins``: connectors only, unless told otherwise."""
    asked = call.request.query_params.getlist("connectorsOnly")
    connectors_only = not asked or call.flag("connectorsOnly")
    plugins = call.parts.catalog.plugins(connectors_only=connectors_only)
    return json_response([plugin_json(plugin) for plugin in plugins])


async def definitions(call: Call) -> Response:
    """``GET /connector-plugins/{plugin}/config``."""
    plugin = _plugin(call)
    keys = call.parts.catalog.definitions(plugin)
    wanted = call.request.query_params.get("version")
    if wanted is not None:
        _check_version(call, plugin, wanted)
    return json_response([key_json(key) for key in keys])


def _check_version(call: Call, plugin: str, wanted: str) -> None:
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


async def validate(call: Call) -> Response:
    """``PUT /connector-plugins/{plugin}/config/validate``: 200 also where there are errors."""
    plugin = _plugin(call)
    config = config_map(await read_json(call.request))
    name = config.get("name") or ""
    refused = {
        key: refusal
        for key, text in config.items()
        if (refusal := call.remote_refusal(name, {key: text})) is not None
    }
    # What may not come from outside is not even looked at: that would load code or read files.
    allowed = {key: text for key, text in config.items() if key not in refused}
    infos = await call.parts.validator.validate(allowed, plugin=plugin)
    return json_response(infos_json(_with_refusals(infos, refused), call.parts.mask))


def _with_refusals(infos: ConfigInfos, refused: Mapping[str, str]) -> ConfigInfos:
    """Return the outcome with each refusal as the error of its key, where user interfaces show it."""
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


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/connector-plugins", list_plugins),
    ("GET", "/connector-plugins/{plugin}/config", definitions),
    ("PUT", "/connector-plugins/{plugin}/config/validate", validate),
)
