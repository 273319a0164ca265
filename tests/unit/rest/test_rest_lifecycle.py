"""Status, restart, offsets, topics, plugins, loggers, root and health over REST."""

import pytest

from mm2py.errors import ConfigError, RetriableError
from mm2py.rest.app import public_app
from mm2py.runtime.errors import ForbiddenError, NotFoundError
from mm2py.runtime.herder.api import Health, OffsetEntry, WorkState
from mm2py.types import State, TaskId
from tests.unit.rest.rest_fakes import SOURCE, FakeHerder, Reply, ask, parts_of, state


def request(herder: FakeHerder, method: str, target: str, **sent: object) -> Reply:
    return ask(public_app(parts_of({None: herder})), method, target, **sent)  # type: ignore[arg-type] # test table


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


def test_the_status_of_one_task_has_its_number() -> None:
    reply = request(failed(), "GET", "/connectors/c/tasks/10/status")
    assert reply.json == {"id": 10, "state": "RUNNING", "worker_id": "w:1", "version": "4.3.1"}
    gone = request(failed(), "GET", "/connectors/x/tasks/0/status")
    assert (gone.status, gone.message) == (404, "No status found for task x-0")


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


def test_offsets_are_shown_as_the_connector_defines_them() -> None:
    entry = OffsetEntry({"cluster": "A", "partition": 0, "topic": "t"}, {"offset": 4711})
    reply = request(
        FakeHerder(entries=[entry, OffsetEntry({"p": "x"}, None)]), "GET", "/connectors/c/offsets"
    )
    assert reply.json == {
        "offsets": [
            {
                "partition": {"cluster": "A", "partition": 0, "topic": "t"},
                "offset": {"offset": 4711},
            },
            {"partition": {"p": "x"}, "offset": None},
        ]
    }


def test_altered_offsets_keep_their_number_types_and_answer_a_message() -> None:
    herder = FakeHerder()
    body: object = {"offsets": [{"partition": {"p": 1, "f": 1.5, "s": "x"}, "offset": None}, {}]}
    reply = request(herder, "PATCH", "/connectors/c/offsets", body=body)
    assert reply.json == {"message": "altered"}
    entries = [OffsetEntry({"p": 1, "f": 1.5, "s": "x"}, None), OffsetEntry(None, None)]
    assert herder.calls == [("alter_offsets", "c", entries)]
    assert request(herder, "DELETE", "/connectors/c/offsets").json == {"message": "reset"}


@pytest.mark.parametrize("body", [{}, {"offsets": []}, {"offsets": None}])
def test_no_offsets_are_a_400_with_the_text_of_connect(body: object) -> None:
    reply = request(FakeHerder(), "PATCH", "/connectors/c/offsets", body=body)
    text = "Partitions / offsets need to be provided for an alter offsets request"
    assert (reply.status, reply.message) == (400, text)


@pytest.mark.parametrize(
    "body", [[], {"offsets": {}}, {"offsets": [123]}, {"key": []}, {"offsets": [{"x": 1}]}]
)
def test_offsets_of_another_shape_are_refused(body: object) -> None:
    assert request(FakeHerder(), "PATCH", "/connectors/c/offsets", body=body).status == 400


def test_a_map_inside_an_offset_is_refused_with_the_text_of_connect() -> None:
    field: dict[str, object] = {"f": {"deep": 1}}
    body: object = {"offsets": [{"partition": {"p": "x"}, "offset": field}]}
    reply = request(FakeHerder(), "PATCH", "/connectors/c/offsets", body=body)
    text = "Offsets may only contain primitive types as values, but field f contains MAP"
    assert (reply.status, reply.message) == (400, text)


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
