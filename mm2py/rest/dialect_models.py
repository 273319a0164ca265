"""Answers of a herder as Connect's JSON (``ConnectorInfo``, ``ConnectorStateInfo``,
``ConfigInfos``).

Pure. Member names and what is left out are Connect's: ``trace`` without a text is, ``version``
never.
"""

from collections.abc import Mapping, Sequence

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, OffsetEntry, WorkState
from mm2py.runtime.plugins.catalog import PluginInfo
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import TaskId


def task_id_json(task: TaskId) -> dict[str, object]:
    """Return ``{"connector", "task"}``."""
    return {"connector": task.connector, "task": task.number}


def to_info_json(info: ConnectorInfo, config: ConnectorConfig) -> dict[str, object]:
    """Return a ``ConnectorInfo`` that shows ``config``."""
    return {
        "name": info.name,
        "config": dict(config),
        "tasks": [task_id_json(task) for task in info.tasks],
        "type": info.type,
    }


def work_json(work: WorkState, mask: SecretMask) -> dict[str, object]:
    """Return the state of one connector or task."""
    members: dict[str, object] = {
        "state": str(work.state),
        "worker_id": work.worker_id,
        "version": work.version,
    }
    if work.trace:
        members["trace"] = mask.apply(work.trace)
    return members


def status_json(state: ConnectorState, mask: SecretMask) -> dict[str, object]:
    """Return a ``ConnectorStateInfo``, its tasks by number."""
    return {
        "name": state.name,
        "connector": work_json(state.connector, mask),
        "tasks": [
            {"id": number, **work_json(work, mask)} for number, work in sorted(state.tasks.items())
        ],
        "type": state.type,
    }


def task_configs_json(configs: Sequence[tuple[TaskId, ConnectorConfig]]) -> list[dict[str, object]]:
    """Return what ``GET .../tasks`` shows."""
    return [{"id": task_id_json(task), "config": dict(config)} for task, config in configs]


def offsets_json(entries: Sequence[OffsetEntry]) -> dict[str, object]:
    """Return a ``ConnectorOffsets``."""
    return {
        "offsets": [
            {"partition": _maybe(entry.partition), "offset": _maybe(entry.offset)}
            for entry in entries
        ]
    }


def _maybe(values: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if values is None else dict(values)


def plugin_json(plugin: PluginInfo) -> dict[str, str]:
    """Return one entry of ``/connector-plugins``; an unknown version is left out.

    ``error`` is ours: only an entry of a package that cannot be imported has it.
    """
    entry = {"class": plugin.java_class, "type": plugin.type}
    if plugin.version is not None:
        entry["version"] = plugin.version
    if plugin.error:
        entry["error"] = plugin.error
    return entry


def key_json(key: ConfigKey) -> dict[str, object]:
    """Return a ``ConfigKeyInfo``."""
    return {
        "name": key.name,
        "type": key.type,
        "required": key.required,
        "default_value": _hidden(key, key.default_value),
        "importance": key.importance,
        "documentation": key.documentation,
        "group": key.group,
        "order_in_group": key.order_in_group,
        "width": key.width,
        "display_name": key.display_name,
        "dependents": list(key.dependents),
    }


def _hidden(key: ConfigKey | None, text: str | None) -> str | None:
    return HIDDEN if text is not None and key is not None and key.type == "PASSWORD" else text


def _value_json(key: ConfigKey | None, value: ConfigValue, mask: SecretMask) -> dict[str, object]:
    text = _hidden(key, value.value)
    return {
        "name": value.name,
        "value": None if text is None else mask.apply(text),
        "recommended_values": list(value.recommended_values),
        "errors": [mask.apply(error) for error in value.errors],
        "visible": value.visible,
    }


def infos_json(infos: ConfigInfos, mask: SecretMask) -> dict[str, object]:
    """Return a ``ConfigInfos`` without secrets."""
    return {
        "name": infos.name,
        "error_count": infos.error_count,
        "groups": list(infos.groups),
        "configs": [
            {
                "definition": None if key is None else key_json(key),
                "value": None if value is None else _value_json(key, value, mask),
            }
            for key, value in infos.configs
        ],
    }
