"""Connector configs in files of a standalone worker's command line (``ConnectStandalone``).

Flow: file -> JSON (a config, or the body of ``POST /connectors``) or properties -> ``ConnectorFile``. Placeholders
stay as they are written.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py.types import TargetState

_BODY = frozenset({"name", "config", "initial_state"})
_STATES = {"RUNNING": TargetState.STARTED, **{it.value: it for it in TargetState}}


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """One connector; ``target`` is None where the file does not say in which state it begins."""

    path: Path
    name: str
    config: Mapping[str, str]
    target: TargetState | None


def load_connector_file(path: Path | str) -> ConnectorFile:
    """Read a connector's config.

    Raises:
        ConfigError: the file cannot be read, or is neither form of JSON nor properties with a name.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"connector file {file} cannot be read: {error.strerror}", remedy="check the path"
        ) from None
    content = _json(data)
    if content is None:
        config = dict(parse(data, path=str(file)).values)
        return ConnectorFile(file, _name(file, config), config, None)
    target: TargetState | None = None
    if isinstance(content.get("config"), dict) and content.keys() <= _BODY:
        target = _target(file, content.get("initial_state"))
        config = _texts(file, cast("dict[str, object]", content["config"]))
        given = content.get("name")
        config = {"name": str(given), **config} if given is not None else config
        if given is not None and config["name"] != given:
            raise ConfigError(
                f"{file}: name is {given}, but config has name={config['name']}",
                remedy="write the same name in both places, or leave it out of config",
            )
    else:
        config = _texts(file, content)
    return ConnectorFile(file, _name(file, config), config, target)


def _json(data: bytes) -> dict[str, object] | None:
    try:
        content = cast("object", json.loads(data))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", content) if isinstance(content, dict) else None


def _texts(file: Path, content: Mapping[str, object]) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, bool):
            config[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            config[key] = str(value)
        else:
            raise ConfigError(
                f"{file}: {key} is no text, number or boolean", remedy="write it as a text"
            )
    return config


def _name(file: Path, config: Mapping[str, str]) -> str:
    name = config.get("name", "").strip()
    if not name:
        raise ConfigError(f"{file}: name is missing", remedy="set name to the connector's name")
    return name


def _target(file: Path, state: object) -> TargetState | None:
    if state is None:
        return None
    found = _STATES.get(str(state).upper())
    if found is None:
        raise ConfigError(
            f"{file}: initial_state={state} is no state", remedy="use RUNNING, PAUSED or STOPPED"
        )
    return found
