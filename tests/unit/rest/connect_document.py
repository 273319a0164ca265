"""Connect's dialect as an OpenAPI document: what clients may rely on, and nothing that they may not.

Written from the interface that Kafka's documentation gives; status codes per endpoint, bodies with all their
members. Path parameters name what exists as often as not.
"""

from collections.abc import Mapping, Sequence
from typing import Final

Schema = dict[str, object]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
STATES: Final = ("UNASSIGNED", "RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING")


def _all(**members: Schema) -> Schema:
    """Return an object with exactly these members."""
    return {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }


def _some(needed: Schema, **more: Schema) -> Schema:
    """Return ``needed`` with members that may be absent."""
    properties = needed["properties"]
    assert isinstance(properties, dict)
    return {**needed, "properties": {**properties, **more}}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _work(**more: Schema) -> Schema:
    state: Schema = {"enum": list(STATES)}
    return _some(
        _all(**more, state=state, worker_id=TEXT, version=TEXT_OR_NULL),
        trace={"type": "string", "minLength": 1},
    )


_WORK: Final = _work()
_TASK: Final = _work(id=NUMBER)
_TYPE: Final[Schema] = {"enum": ["source", "sink", "unknown"]}
_STATUS: Final = _all(name=TEXT, connector=_WORK, tasks=_list(_TASK), type=_TYPE)
_INFO: Final = _all(
    name=TEXT, config=_map(TEXT_OR_NULL), tasks=_list(_all(connector=TEXT, task=NUMBER)), type=_TYPE
)
_TASK_ID: Final = _all(connector=TEXT, task=NUMBER)
_LEVEL: Final = _all(level=TEXT, last_modified={"type": ["integer", "null"]})
_MESSAGE: Final = _all(message=TEXT)
_SCALAR: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
_GOOD: Final = {
    "connector.class": "MirrorSource",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "tasks.max": 4,
}
_CONFIG: Final[Schema] = {
    "type": "object",
    "additionalProperties": _SCALAR,
    "enum": [
        _GOOD,
        {**_GOOD, "tasks.max": "0", "transforms": "x"},
        {**_GOOD, "sasl.password": "p", "producer.override.linger.ms": "z", "name": "another"},
        {"tasks.max": 1.5, "connector.class": "Other"},
        {},
    ],
}
_POSITION: Final = {"cluster": "A", "topic": "t", "partition": 0}
_OFFSETS: Final[Schema] = {
    "type": "object",
    "properties": {"offsets": {"type": "array"}},
    "enum": [
        {"offsets": [{"partition": _POSITION, "offset": {"offset": 5}}]},
        {"offsets": [{"partition": _POSITION, "offset": None}]},
        {"offsets": [{"partition": {**_POSITION, "partition": "0"}, "offset": {"offset": -1}}]},
        {"offsets": [{}]},
        {"offsets": []},
    ],
}
_KEY: Final = _all(
    name=TEXT,
    type={
        "enum": ["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"]
    },
    required={"type": "boolean"},
    default_value=TEXT_OR_NULL,
    importance={"enum": ["HIGH", "MEDIUM", "LOW"]},
    documentation=TEXT,
    group=TEXT_OR_NULL,
    order_in_group=NUMBER,
    width={"enum": ["NONE", "SHORT", "MEDIUM", "LONG"]},
    display_name=TEXT,
    dependents=_list(TEXT),
)
_VALUE: Final = _all(
    name=TEXT,
    value=TEXT_OR_NULL,
    recommended_values=_list(TEXT),
    errors=_list(TEXT),
    visible={"type": "boolean"},
)
_INFOS: Final = _all(
    name=TEXT,
    error_count=NUMBER,
    groups=_list(TEXT),
    configs=_list(
        _all(
            definition={"anyOf": [_KEY, {"type": "null"}]},
            value={"anyOf": [_VALUE, {"type": "null"}]},
        )
    ),
)
_PLUGIN: Final = _some(_all(**{"class": TEXT, "type": TEXT}), version=TEXT)
_OFFSETS_SHOWN: Final = _all(offsets=_list(_all(partition=_map(_SCALAR), offset=_map(_SCALAR))))
_ERROR: Final = _all(error_code=NUMBER, message=TEXT)


def _query(name: str, *words: str) -> Schema:
    return {"name": name, "in": "query", "schema": {"enum": list(words)}}


_FLAGS: Final = ("true", "TRUE", "false", "1", "")
_CREATE: Final[Schema] = {
    "type": "object",
    "enum": [
        {"name": " new ", "config": _GOOD, "initial_state": "paused"},
        {"name": "MirrorSourceConnector", "config": _GOOD},
        {"name": "new", "config": _GOOD, "initial_state": "OTHER"},
        {"name": None, "config": {}},
    ],
}
_C: Final = "/connectors/{connector}"
_P: Final = "/connector-plugins/{plugin}/config"
_Row = tuple[str, str, Mapping[int, Schema | None], Sequence[int], Schema | None, Sequence[Schema]]


def _row(
    ask: str,
    answers: Mapping[int, Schema | None],
    errors: Sequence[int] = (),
    body: Schema | None = None,
    query: Sequence[Schema] = (),
) -> _Row:
    """Return one operation; an answer of ``None`` has no body."""
    method, path = ask.split()
    return method, path, answers, errors, body, query


ROWS: Final[Sequence[_Row]] = (
    _row("get /", {200: _all(version=TEXT, commit=TEXT, kafka_cluster_id=TEXT)}),
    _row("get /health", {200: _all(status=TEXT, message=TEXT)}),
    _row(
        "get /connectors",
        {200: {"anyOf": [_list(TEXT), _map(_some(_all(), status=_STATUS, info=_INFO))]}},
        query=(_query("expand", "status", "info", "other"),),
    ),
    _row("post /connectors", {201: _INFO}, (400, 409), _CREATE),
    _row(f"get {_C}", {200: _INFO}, (404,)),
    _row(f"delete {_C}", {204: None}, (404,)),
    _row(f"get {_C}/config", {200: _map(TEXT_OR_NULL)}, (404,)),
    _row(f"put {_C}/config", {200: _INFO, 201: _INFO}, (400, 404), _CONFIG),
    _row(f"patch {_C}/config", {200: _INFO}, (400, 404), _CONFIG),
    _row(f"get {_C}/tasks", {200: _list(_all(id=_TASK_ID, config=_map(TEXT_OR_NULL)))}, (404,)),
    _row(f"get {_C}/status", {200: _STATUS}, (404,)),
    _row(f"get {_C}/tasks/{{task}}/status", {200: _TASK}, (404,)),
    _row(
        f"post {_C}/restart",
        {204: None, 202: _STATUS},
        (404,),
        query=(_query("includeTasks", *_FLAGS), _query("onlyFailed", *_FLAGS)),
    ),
    _row(f"post {_C}/tasks/{{task}}/restart", {204: None}, (404,)),
    _row(f"put {_C}/pause", {202: None}, (404,)),
    _row(f"put {_C}/resume", {202: None}, (404,)),
    _row(f"put {_C}/stop", {204: None}, (404,)),
    _row(f"get {_C}/offsets", {200: _OFFSETS_SHOWN}, (404,)),
    _row(f"patch {_C}/offsets", {200: _MESSAGE}, (400, 404), _OFFSETS),
    _row(f"delete {_C}/offsets", {200: _MESSAGE}, (400, 404)),
    _row(f"get {_C}/topics", {200: _map(_all(topics=_list(TEXT)))}),
    _row(f"put {_C}/topics/reset", {202: None}),
    _row(
        "get /connector-plugins", {200: _list(_PLUGIN)}, query=(_query("connectorsOnly", *_FLAGS),)
    ),
    _row(f"get {_P}", {200: _list(_KEY)}, (400, 404)),
    _row(f"put {_P}/validate", {200: _INFOS}, (400,), _CONFIG),
    _row("get /admin/loggers", {200: _map(_LEVEL)}),
    _row("get /admin/loggers/{logger}", {200: _LEVEL}, (404,)),
    _row(
        "put /admin/loggers/{logger}",
        {200: _list(TEXT), 204: None},
        (400, 404),
        _all(level={"enum": ["DEBUG", "trace", "LOUD", None]}),
        (_query("scope", "worker", "cluster", "CLUSTER", "other"),),
    ),
)


def connect_document(prefix: str, connector: str) -> dict[str, object]:
    """Return the document of the dialect below ``prefix``, where a connector of that name is."""
    exists: Mapping[str, Schema] = {
        "connector": {"enum": [connector, "no/such ä%"]},
        "task": {"enum": ["0", "1", "77", "x", "-1"]},
        "plugin": {"enum": ["MirrorSource", "MirrorSourceConnector", "Other"]},
        "logger": {"enum": ["root", "a.b", "new.one"]},
    }
    paths: dict[str, dict[str, object]] = {}
    for method, path, answers, errors, body, query in ROWS:
        parameters: list[Schema] = [
            {"name": name, "in": "path", "required": True, "schema": schema}
            for name, schema in exists.items()
            if f"{{{name}}}" in path
        ]
        known = {**answers, **dict.fromkeys((*errors, 404, 405), _ERROR)}
        paths.setdefault(prefix + path, {})[method] = {
            "parameters": [*parameters, *query],
            "responses": {str(status): _answer(schema) for status, schema in known.items()},
        } | ({} if body is None else {"requestBody": {"required": True, "content": _json(body)}})
    return {"openapi": "3.1.0", "info": {"title": "Connect", "version": "4.3.1"}, "paths": paths}


def _answer(schema: Schema | None) -> Schema:
    plain: Schema = {"description": "answer"}
    return plain if schema is None else plain | {"content": _json(schema)}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
