"""Records of Connect's config and status topics, byte for byte as Java's JsonConverter writes them.

Flow: ``ConfigRecord`` <-> (key, value); ``StoredStatus`` and ``TopicUse`` <-> (key, value). Compact
UTF-8 JSON, members in schema order, unset ones as ``null``; a ``None`` value is a tombstone.
Unknown members are skipped, a record that is not in form is a ``ProtocolError``. It knows no topic
and no state.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from mm2py.errors import ProtocolError
from mm2py.mirror.versioned_json import loaded
from mm2py.storage.config_state import ConnectorConfig, RestartRequest, SessionKey
from mm2py.types import TargetState, TaskId

TARGET: Final = "target-state-"
CONNECTOR: Final = "connector-"
TASK: Final = "task-"
COMMIT: Final = "commit-"
# KIP-745 (Kafka 3.0), KIP-618 (3.3), KIP-507 (2.4) and KIP-976
# (3.7); older workers ignore keys that they do not know.
RESTART: Final = "restart-connector-"
FENCING: Final = "tasks-fencing-"
SESSION_KEY: Final = "session-key"
LOGGER: Final = "logger-cluster-"

_STATES: Final = tuple(
    it.encode() for it in (TARGET, CONNECTOR, TASK, COMMIT, FENCING, SESSION_KEY)
)

INT32: Final = range(-(2**31), 2**31)
COUNT: Final = range(2**31)
TASK_DIGITS: Final = 9
SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ConnectorPut:
    """``connector-<name>``; no config removes the connector."""

    name: str
    config: ConnectorConfig | None


@dataclass(frozen=True, slots=True)
class TaskPut:
    """``task-<name>-<n>``; counts only after a ``Commit``."""

    task: TaskId
    config: ConnectorConfig


@dataclass(frozen=True, slots=True)
class Commit:
    """``commit-<name>``; makes the task configs before it valid.

    ``beside``, by task: further properties for our tasks, as member ``beside`` of the value. Java
    ignores it; if they were in the task config, Java's connector would find it changed, and restart
    the task.
    """

    name: str
    tasks: int
    beside: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class TargetPut:
    """``target-state-<name>``; no state is a tombstone."""

    name: str
    state: TargetState | None


@dataclass(frozen=True, slots=True)
class Fenced:
    """``tasks-fencing-<name>``; a round of fencing is over."""

    name: str
    task_count: int


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """``logger-cluster-<namespace>``; a level for every worker."""

    namespace: str
    level: str


ConfigRecord = (
    ConnectorPut | TaskPut | Commit | TargetPut | RestartRequest | Fenced | SessionKey | LoggerLevel
)
"""One record of the config topic."""


def encode_config_record(record: ConfigRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of a record of the config topic."""
    key, value = _config_texts(record)
    # A lone surrogate has no UTF-8; Java writes a question mark, too.
    return key.encode(errors="replace"), None if value is None else compact_json(value)


def _config_texts(record: ConfigRecord) -> tuple[str, Mapping[str, object] | None]:
    key: str = SESSION_KEY
    value: Mapping[str, object] | None
    match record:
        case ConnectorPut(name, config):
            key, value = CONNECTOR + name, None if config is None else {"properties": dict(config)}
        case TaskPut(task, config):
            key, value = f"{TASK}{task}", {"properties": dict(config)}
        case Commit(name, tasks, beside):
            told: dict[str, object] = {"beside": [*beside]} if any(beside) else {}
            key, value = COMMIT + name, {"tasks": tasks} | told
        case TargetPut(name, None):
            key, value = TARGET + name, None
        case TargetPut(name, state):
            # KIP-875: a worker older than 3.5 does not know STOPPED and pauses instead.
            old = TargetState.PAUSED if state is TargetState.STOPPED else state
            key, value = TARGET + name, {"state": old, "state.v2": state}
        case RestartRequest(name, only_failed, include_tasks):
            key = RESTART + name
            value = {"include-tasks": include_tasks, "only-failed": only_failed}
        case Fenced(name, task_count):
            key, value = FENCING + name, {"task-count": task_count}
        case SessionKey(secret, algorithm, created_ms, first):
            text = base64.b64encode(secret).decode()
            value = {"key": text, "algorithm": algorithm, "creation-timestamp": created_ms}
            # Java ignores it, and drops it where it rotates the key.
            value |= {"first": base64.b64encode(first).decode()} if first else {}
        case LoggerLevel(namespace, level):
            key, value = LOGGER + namespace, {"level": level}
    return key, value


def decode_config_record(key: bytes | None, value: bytes | None) -> ConfigRecord:
    """Read a record of the config topic, in Java's order of prefixes; ``ProtocolError``: the key is
    unknown, or the value is not what the key promises."""
    text = key_text(key)
    if text == SESSION_KEY:
        return _session_key(value)
    # No prefix is the beginning of another, so the order only matters for speed.
    for prefix, decode in _DECODERS:
        if text.startswith(prefix):
            return decode(text.removeprefix(prefix), value)
    raise ProtocolError(f"key {_shown(text)} is none of Connect's")


def is_state(key: bytes | None) -> bool:
    """Whether a record of this key is configuration or state, not a request or a foreign record."""
    return key is not None and key.startswith(_STATES)


def _connector(name: str, value: bytes | None) -> ConnectorPut:
    return ConnectorPut(name, None if value is None else _properties(value))


def _task(name: str, value: bytes | None) -> TaskPut:
    return TaskPut(task_id(name), _properties(value))


def _commit(name: str, value: bytes | None) -> Commit:
    members = json_object(value)
    return Commit(name, integer_member(members, "tasks", COUNT), _beside(members))


def _beside(members: Mapping[str, object]) -> Sequence[Mapping[str, str]]:
    """Read the tasks' further properties; none if malformed, so that the commit still counts."""
    told = members.get("beside")
    if not isinstance(told, list):
        return ()
    found: list[Mapping[str, str]] = []
    for each in cast("list[object]", told):
        if not isinstance(each, dict):
            return ()
        pairs = cast("dict[str, object]", each).items()
        found.append({name: text for name, text in pairs if isinstance(text, str)})
    return tuple(found)


def _fenced(name: str, value: bytes | None) -> Fenced:
    return Fenced(name, integer_member(json_object(value), "task-count", COUNT))


def _logger(namespace: str, value: bytes | None) -> LoggerLevel:
    return LoggerLevel(namespace, text_member(json_object(value), "level"))


def _target_put(name: str, value: bytes | None) -> TargetPut:
    return TargetPut(name, None if value is None else _target(value))


def _target(value: bytes) -> TargetState:
    members = json_object(value)
    # KIP-875: its workers read the new member first.
    word = members.get("state.v2")
    if not isinstance(word, str):
        word = text_member(members, "state")
    try:
        return TargetState(word)
    except ValueError:
        raise ProtocolError(f"target state {_shown(word)} is unknown") from None


def _properties(value: bytes | None) -> ConnectorConfig:
    properties = json_object(value).get("properties")
    if not isinstance(properties, dict):
        raise ProtocolError("value has no map 'properties'")
    config: dict[str, str | None] = {}
    for name, text in cast("dict[str, object]", properties).items():
        if text is not None and not isinstance(text, str):
            raise ProtocolError(f"property {_shown(name)} is no text")
        config[name] = text
    return config


def _restart(name: str, value: bytes | None) -> RestartRequest:
    members = json_object(value)
    # Java takes anything but a boolean for false.
    only_failed, include_tasks = (
        members.get(member) is True for member in ("only-failed", "include-tasks")
    )
    return RestartRequest(name, only_failed, include_tasks)


_DECODERS: Final[Sequence[tuple[str, Callable[[str, bytes | None], ConfigRecord]]]] = (
    (TARGET, _target_put),
    (CONNECTOR, _connector),
    (TASK, _task),
    (COMMIT, _commit),
    (RESTART, _restart),
    (FENCING, _fenced),
    (LOGGER, _logger),
)


def _session_key(value: bytes | None) -> SessionKey:
    members = json_object(value)
    algorithm = text_member(members, "algorithm")
    created_ms = integer_member(members, "creation-timestamp")
    key = _base64_member(members, "key")
    if not key:
        raise ProtocolError("member 'key' is empty: an empty key protects nothing")
    first = _base64_member(members, "first") if "first" in members else b""
    return SessionKey(key, algorithm, created_ms, first)


def _base64_member(members: Mapping[str, object], name: str) -> bytes:
    try:
        return base64.b64decode(text_member(members, name), validate=True)
    except (binascii.Error, ValueError):
        # Without the cause: it could quote the key.
        raise ProtocolError(f"member '{name}' is no Base64") from None


def compact_json(value: object) -> bytes:
    """Return JSON without blanks, text as UTF-8, members in the order given."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")


def key_text(key: bytes | None) -> str:
    """Return a record key as text; ``ProtocolError`` where there is none."""
    if key is None:
        raise ProtocolError("record has no key")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ProtocolError("key is not UTF-8") from None


def task_id(text: str) -> TaskId:
    """Read ``<connector>-<n>``, split at the last dash; ``ProtocolError`` where it is not that."""
    # A connector's name may have dashes, the number none.
    connector, dash, number = text.rpartition("-")
    if not (dash and number.isascii() and number.isdigit() and len(number) <= TASK_DIGITS):
        raise ProtocolError(f"{_shown(text)} names no task")
    return TaskId(connector, int(number))


def json_object(value: bytes | None) -> Mapping[str, object]:
    """Read a value that must be a JSON object; ``ProtocolError`` also for a tombstone."""
    if value is None:
        raise ProtocolError("value is missing")
    try:
        parsed = loaded(value)
    except (ValueError, RecursionError):
        raise ProtocolError("value is not JSON") from None
    if not isinstance(parsed, dict):
        raise ProtocolError("value is no object")
    return cast("dict[str, object]", parsed)


def text_member(members: Mapping[str, object], name: str) -> str:
    """Return a member that must be text."""
    value = members.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"member '{name}' is no text")
    return value


def optional_text_member(members: Mapping[str, object], name: str) -> str | None:
    """Return a member that is text, null or missing."""
    return None if members.get(name) is None else text_member(members, name)


def integer_member(
    members: Mapping[str, object], name: str, within: range = range(-(2**63), 2**63)
) -> int:
    """Return a member that must be an integer ``within`` a range."""
    value = members.get(name)
    # JSON's true is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int) or value not in within:
        raise ProtocolError(f"member '{name}' is no integer")
    return value


def _shown(text: str) -> str:
    return repr(text[:SHOWN_CHARS])
