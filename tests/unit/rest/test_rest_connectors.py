"""Connect's dialect: connectors and tasks, status, restart, offsets, plugins, loggers, root and health."""

from collections.abc import Mapping

import pytest

from mm2py.errors import ConfigError, RetriableError
from mm2py.rest.app import public_app
from mm2py.runtime.errors import ForbiddenError, NotFoundError, RebalanceExpectedError
from mm2py.runtime.herder.api import Health, OffsetEntry, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName, State, TargetState, TaskId
from tests.unit.rest.rest_fakes import BASE, SOURCE, FakeHerder, Reply, ask, parts_of, state

JSON = {"Content-Type": "application/json"}


def request(herder: Herder, method: str, target: str, **sent: object) -> Reply:
    herders: Mapping[FlowName | None, Herder] = {None: herder}
    return ask(public_app(parts_of(herders)), method, target, **sent)  # type: ignore[arg-type] # test table


def filled() -> FakeHerder:
    config: dict[str, str | None] = {"connector.class": SOURCE, "db.password": "open", "name": "c"}
    return FakeHerder(configs={"c": config, "d": {"name": "d"}}, states={"c": state("c")})


def test_an_expanded_listing_leaves_out_a_connector_without_a_status() -> None:
    reply = request(filled(), "GET", "/connectors?expand=status&expand=info")
    assert list(reply.json) == ["c"]
    assert set(reply.json["c"]) == {"status", "info"}


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("RUNNING", TargetState.STARTED),
        ("paused", TargetState.PAUSED),
        ("Stopped", TargetState.STOPPED),
    ],
)
def test_create_takes_an_initial_state_in_any_letter_case(word: str, target: TargetState) -> None:
    herder = FakeHerder()
    request(herder, "POST", "/connectors", body={"name": "c", "config": {}, "initial_state": word})
    assert herder.calls[0][3] == target


@pytest.mark.parametrize(
    ("text", "stored"),
    [("1.50", "1.50"), ("1e3", "1e3"), ("5", "5"), ("true", "true"), ("false", "false")],
)
def test_scalars_of_a_config_become_texts_as_they_were_written(text: str, stored: str) -> None:
    herder = FakeHerder()
    json_type = {"Content-Type": "application/json; charset=utf-8"}
    content = f'{{"k": {text}}}'.encode()
    request(herder, "PUT", "/connectors/c/config", content=content, headers=json_type)
    assert herder.configs["c"] == {"k": stored, "name": "c"}


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"name":"c","config":{"k":[1]}}',
        b'{"name":"c","config":{"k":"\\ud800"}}',
        b'{"name":"c","config":{"k":NaN}}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_create_request_is_a_400_and_reaches_nobody(content: bytes) -> None:
    herder = FakeHerder()
    reply = request(herder, "POST", "/connectors", content=content, headers=JSON)
    assert (reply.status, bool(reply.message), herder.calls) == (400, True, [])


def test_a_read_during_a_rebalance_is_the_500_that_clients_retry_on() -> None:
    herder = FakeHerder(refusal=RebalanceExpectedError())
    reply = request(herder, "GET", "/connectors/c")
    assert reply.status == 500
    assert reply.message == "Request cannot be completed because a rebalance is expected"


def test_put_answers_201_with_a_location_for_a_new_connector_and_200_for_a_known_one() -> None:
    herder = FakeHerder()
    first = request(herder, "PUT", "/connectors/c/config", body={"a": "1"})
    again = request(herder, "PUT", "/connectors/c/config", body={"a": "1"})
    assert (first.status, first.headers["location"]) == (201, f"{BASE}/connectors/c")
    assert again.status == 200
    assert "location" not in again.headers
    assert again.json == first.json


def test_a_secret_in_a_refusal_is_masked() -> None:
    herder = FakeHerder(refusal=ValueError("pw canary-value"))
    reply = request(herder, "GET", "/connectors/c")
    assert (reply.status, reply.message) == (500, "ValueError: pw [hidden]")


def test_a_null_name_in_a_config_means_the_name_of_the_path() -> None:
    herder = filled()
    request(herder, "PUT", "/connectors/d/config", body={"name": None})
    request(herder, "PATCH", "/connectors/c/config", body={"name": None, "x": "1"})
    assert herder.configs["d"] == {"name": "d"}
    assert herder.configs["c"]["name"] == "c"
    assert request(herder, "PATCH", "/connectors/c/config", body={"name": "x"}).status == 400


TOO_LARGE = "Field p of `offset` holds a number that is too large"
NO_MAP = "Offsets may only contain primitive types as values, but field p contains MAP"


@pytest.mark.parametrize(
    ("value", "said"), [("1e999", TOO_LARGE), ("-1e999", TOO_LARGE), ('{"deep":1}', NO_MAP)]
)
def test_an_offset_that_holds_no_number_or_text_is_refused(value: str, said: str) -> None:
    body = f'{{"offsets":[{{"partition":{{"a":1}},"offset":{{"p":{value}}}}}]}}'.encode()
    herder = FakeHerder()
    reply = request(herder, "PATCH", "/connectors/c/offsets", content=body, headers=JSON)
    assert (reply.status, reply.message, herder.calls) == (400, said, [])


# -- rest lifecycle ---------------------------------------------------------------------------------


def failed() -> FakeHerder:
    work = {
        10: WorkState(State.RUNNING, "w:1", "", "4.3.1"),
        2: WorkState(State.FAILED, "w:1", "it broke at canary-value", None),
    }
    return FakeHerder(states={"c": state("c", tasks=work)})


def test_a_status_sorts_tasks_omits_empty_traces_and_always_has_a_version() -> None:
    reply = request(failed(), "GET", "/connectors/c/status")
    assert reply.json == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "worker:8083", "version": "4.3.1"},
        "tasks": [
            {
                "id": 2,
                "state": "FAILED",
                "worker_id": "w:1",
                "version": None,
                "trace": "it broke at [hidden]",
            },
            {"id": 10, "state": "RUNNING", "worker_id": "w:1", "version": "4.3.1"},
        ],
        "type": "source",
    }


@pytest.mark.parametrize(
    ("method", "target", "status", "call"),
    [
        ("PUT", "/connectors/c/pause", 202, ("pause", "c", "anonymous")),
        ("PUT", "/connectors/c/resume", 202, ("resume", "c", "anonymous")),
        ("PUT", "/connectors/c/stop", 204, ("stop", "c", "anonymous")),
        ("POST", "/connectors/c/restart", 204, ("restart_connector", "c")),
        ("POST", "/connectors/c/restart?includeTasks=1", 204, ("restart_connector", "c")),
        ("POST", "/connectors/c/tasks/2/restart", 204, ("restart_task", TaskId("c", 2))),
        ("PUT", "/connectors/c/topics/reset", 202, ("reset_topics", "c")),
    ],
)
def test_changes_of_state_answer_without_a_body(
    method: str, target: str, status: int, call: tuple[object, ...]
) -> None:
    herder = failed()
    reply = request(herder, method, target)
    assert (reply.status, reply.content, herder.calls) == (status, b"", [call])
    assert reply.headers.get("content-length") == ("0" if status == 202 else None)


@pytest.mark.parametrize(
    ("query", "only_failed", "include_tasks"),
    [
        ("includeTasks=True", False, True),
        ("onlyFailed=TRUE&includeTasks=yes", True, False),
        ("onlyFailed=true&includeTasks=true", True, True),
    ],
)
def test_a_restart_with_flags_answers_202_with_the_state(
    query: str, only_failed: bool, include_tasks: bool
) -> None:
    herder = failed()
    reply = request(herder, "POST", f"/connectors/c/restart?{query}")
    assert reply.status == 202
    assert reply.json == request(failed(), "GET", "/connectors/c/status").json
    assert herder.calls == [("restart", "c", only_failed, include_tasks)]


def test_altered_offsets_keep_their_number_types_and_answer_a_message() -> None:
    herder = FakeHerder()
    body: object = {"offsets": [{"partition": {"p": 1, "f": 1.5, "s": "x"}, "offset": None}, {}]}
    reply = request(herder, "PATCH", "/connectors/c/offsets", body=body)
    assert reply.json == {"message": "altered"}
    entries = [OffsetEntry({"p": 1, "f": 1.5, "s": "x"}, None), OffsetEntry(None, None)]
    assert herder.calls == [("alter_offsets", "c", entries)]
    assert request(herder, "DELETE", "/connectors/c/offsets").json == {"message": "reset"}


def test_topics_are_keyed_by_the_name_asked_for() -> None:
    assert request(FakeHerder(), "GET", "/connectors/x/topics").json == {"x": {"topics": ["t1"]}}
    off = FakeHerder(refusal=ForbiddenError("Topic tracking is disabled."))
    reply = request(off, "GET", "/connectors/x/topics")
    assert (reply.status, reply.message) == (403, "Topic tracking is disabled.")


def test_plugins_are_connectors_unless_all_are_asked_for() -> None:
    connector = {"class": SOURCE, "type": "source", "version": "4.3.1"}
    converter = {"class": "org.x.SomeConverter", "type": "converter"}
    assert request(FakeHerder(), "GET", "/connector-plugins").json == [connector]
    every = request(FakeHerder(), "GET", "/connector-plugins?connectorsOnly=false")
    assert every.json == [connector, converter]


def test_definitions_of_a_plugin_have_the_member_names_of_connect() -> None:
    reply = request(FakeHerder(), "GET", "/connector-plugins/MirrorSource/config?version=4.3.1")
    assert reply.json[0] == {
        "name": "topics",
        "type": "STRING",
        "required": True,
        "default_value": None,
        "importance": "HIGH",
        "documentation": "what it is",
        "group": "Common",
        "order_in_group": 1,
        "width": "SHORT",
        "display_name": "topics",
        "dependents": [],
    }
    unknown = request(FakeHerder(), "GET", "/connector-plugins/X/config")
    assert (unknown.status, unknown.message) == (404, "Unknown plugin X.")
    older = request(FakeHerder(), "GET", "/connector-plugins/MirrorSource/config?version=9.9")
    assert older.status == 400


def test_validate_answers_200_with_its_errors_and_without_secrets() -> None:
    reply = request(FakeHerder(), "PUT", "/connector-plugins/X/config/validate", body={"n": 1})
    assert reply.status == 200
    assert reply.json["error_count"] == 1
    value = reply.json["configs"][0]["value"]
    assert value == {
        "name": "topics",
        "value": "[hidden]",
        "recommended_values": [],
        "errors": ["not [hidden]"],
        "visible": True,
    }
    assert reply.json["configs"][1]["value"]["value"] == "[hidden]"
    assert reply.json["configs"][2] == {"definition": None, "value": None}


def test_loggers_are_shown_and_set_on_this_worker() -> None:
    app = public_app(parts_of())
    assert ask(app, "GET", "/admin/loggers").json == {
        "a.b": {"level": "DEBUG", "last_modified": 5},
        "root": {"level": "INFO", "last_modified": None},
    }
    assert ask(app, "PUT", "/admin/loggers/x", body={"level": "warn", "more": 1}).json == ["x"]
    assert ask(app, "GET", "/admin/loggers/x").json == {"level": "WARN", "last_modified": 7}
    unknown = ask(app, "GET", "/admin/loggers/y")
    assert (unknown.status, unknown.message) == (404, "Logger y not found.")


@pytest.mark.parametrize("scope", ["", "?scope=cluster"])
def test_a_level_is_checked_before_its_scope(scope: str) -> None:
    herder = FakeHerder()
    for body in ({}, {"level": None}):
        missing = request(herder, "PUT", f"/admin/loggers/x{scope}", body=body)
        text = "Desired 'level' parameter was not specified in request."
        assert (missing.status, missing.message) == (400, text)
    assert request(herder, "PUT", f"/admin/loggers/x{scope}", body={"level": []}).status == 400
    bad = request(herder, "PUT", f"/admin/loggers/x{scope}", body={"level": "X"})
    assert (bad.status, bad.message) == (404, "invalid log level 'X'.")
    assert herder.calls == []


def test_a_level_for_the_cluster_goes_through_the_herder() -> None:
    herder = FakeHerder()
    reply = request(herder, "PUT", "/admin/loggers/x?scope=CLUSTER", body={"level": "debug"})
    assert (reply.status, reply.content) == (204, b"")
    assert herder.calls == [("set_logger_level", "x", "DEBUG")]


def test_the_root_names_a_kafka_version_first_and_ours_beside_it() -> None:
    assert request(FakeHerder(), "GET", "/").json == {
        "version": "4.3.1",
        "commit": "mm2py-0.1.0",
        "kafka_cluster_id": "cluster-id",
    }


@pytest.mark.parametrize(
    ("word", "status"), [("healthy", 200), ("starting", 503), ("unhealthy", 500)]
)
def test_health_has_its_own_body(word: str, status: int) -> None:
    reply = request(FakeHerder(said_health=Health(word, "text")), "GET", "/health")
    assert (reply.status, reply.json) == (status, {"status": word, "message": "text"})


def test_a_worker_without_a_herder_is_still_starting() -> None:
    reply = ask(public_app(parts_of({})), "GET", "/health")
    assert (reply.status, reply.message) == (503, "Worker is still starting up.")


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (NotFoundError("Unknown connector c"), 404, "Unknown connector c"),
        (ConfigError("bad", remedy="mend it"), 400, "bad; mend it"),
        (RetriableError("away"), 503, "away"),
        (RuntimeError("defect"), 500, "RuntimeError: defect"),
    ],
)
def test_failures_of_the_herder_have_their_status(
    failure: Exception, status: int, text: str
) -> None:
    reply = request(FakeHerder(refusal=failure), "PUT", "/connectors/c/pause")
    assert (reply.status, reply.message) == (status, text)
