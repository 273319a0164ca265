"""Connect's dialect beside its recorded exchanges: status, offsets, levels, paths, media types, health and probes."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.types import ASGIApp

from mm2py.config.rest_settings import RestSettings
from mm2py.errors import ConfigError, FatalError, RetriableError
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.raw_path import plain_segment
from mm2py.rest.security import gate_for
from mm2py.runtime.errors import ForwardError, HerderError, NotFoundError, RebalanceExpectedError
from mm2py.runtime.herder.api import Health, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName, State, TargetState
from tests.unit.rest.rest_fakes import (
    BASE,
    SOURCE,
    FakeHerder,
    FakeValidator,
    Reply,
    ask,
    flow,
    parts_of,
    state,
)

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
    ("value", "said"),
    [
        ("1e999", TOO_LARGE),
        ("-1e999", TOO_LARGE),
        (f"{2**63}", TOO_LARGE),
        (f"-{2**63 + 1}", TOO_LARGE),
        ('{"deep":1}', NO_MAP),
    ],
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


def test_what_was_read_with_its_secrets_hidden_is_validated_as_it_would_be_stored() -> None:
    config = {"name": "c", "connector.class": SOURCE, "db.password": "open"}
    name, validator = flow("A", "B"), FakeValidator()
    herder = FakeHerder(name, configs={"c": {**config}})
    parts = replace(parts_of({name: herder}, dedicated=True), validator=validator)
    app = public_app(parts)
    read = ask(app, "GET", "/A/B/connectors/c/config").json
    assert read == config | {"db.password": "[hidden]"}
    path = "/A/B/connector-plugins/X/config/validate"
    reply = ask(app, "PUT", path, body=read | {"other.password": "[hidden]"})
    assert validator.asked == [(config, "X")]
    (problem,) = reply.json["configs"][-1]["value"]["errors"]
    assert "no such secret is stored under this key" in problem


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


def test_the_root_names_a_kafka_version_first_and_ours_beside_it() -> None:
    assert request(FakeHerder(), "GET", "/").json == {
        "version": "4.3.1",
        "commit": "mm2py-0.1.0",
        "kafka_cluster_id": "cluster-id",
    }


@pytest.mark.parametrize(
    ("word", "status"), [("healthy", 200), ("starting", 503), ("unhealthy", 500)]
)
def test_health_has_its_own_body_and_a_worker_without_a_herder_is_still_starting(
    word: str, status: int
) -> None:
    reply = request(FakeHerder(said_health=Health(word, "text")), "GET", "/health")
    assert (reply.status, reply.json) == (status, {"status": word, "message": "text"})
    reply = ask(public_app(parts_of({})), "GET", "/health")
    assert (reply.status, reply.message) == (503, "Worker is still starting up.")


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (NotFoundError("Unknown connector c"), 404, "Unknown connector c"),
        (ConfigError("bad", remedy="mend it"), 400, "bad; mend it"),
        (RetriableError("away"), 503, "away"),
        (HerderError("it waits for the target", status=503), 503, "it waits for the target"),
        (
            RebalanceExpectedError(),
            500,
            "Request cannot be completed because a rebalance is expected",
        ),
        (RuntimeError("defect"), 500, "RuntimeError: defect"),
        (ValueError("pw canary-value"), 500, "ValueError: pw [hidden]"),
    ],
)
def test_failures_of_the_herder_have_their_status_and_no_secret(
    failure: Exception, status: int, text: str
) -> None:
    reply = request(FakeHerder(refusal=failure), "PUT", "/connectors/c/pause")
    assert (reply.status, reply.message) == (status, text)
    assert reply.headers.get("retry-after") == ("1" if status == 503 else None)


def test_only_the_version_of_a_plugin_that_is_there_has_definitions() -> None:
    path = "/connector-plugins/MirrorSource/config?version="
    assert request(FakeHerder(), "GET", f"{path}4.3.1").json[0]["name"] == "topics"
    assert request(FakeHerder(), "GET", f"{path}9.9").status == 400


# -- Paths, methods and media types of the dialect


NAME = "a/b%>ü+c d;e"
ENCODED = "a%2Fb%25%3E%C3%BC+c%20d%3Be"

GETS = [
    "/",
    "/health",
    "/connectors",
    "/connectors?expand=info",
    "/connectors/c",
    "/connectors/c/config",
    "/connectors/c/status",
    "/connectors/c/tasks",
    "/connectors/c/tasks/0/status",
    "/connectors/c/topics",
    "/connectors/c/offsets",
    "/connector-plugins",
    "/connector-plugins/MirrorSource/config",
    "/admin/loggers",
    "/admin/loggers/root",
]


def herder() -> FakeHerder:
    return FakeHerder(configs={"c": {"name": "c"}}, states={"c": state("c")})


def sent(method: str, target: str, **more: object) -> Reply:
    return request(herder(), method, target, **more)


@pytest.mark.parametrize("target", GETS)
def test_every_get_is_json_head_has_its_headers_and_a_slash_more_means_nothing(target: str) -> None:
    full, head = sent("GET", target), sent("HEAD", target)
    assert full.status == 200
    assert full.headers["content-type"] == "application/json"
    assert (head.status, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(full.content))
    if "?" not in target:
        assert sent("GET", f"{target}/").content == full.content
        assert sent("GET", f"{BASE}/{target}").status == 200


@pytest.mark.parametrize(
    "spelling", [ENCODED, "%61%2fb%25>%c3%bc%2Bc%20d%3be", f"{ENCODED};matrix=1"]
)
def test_names_are_decoded_once_however_they_are_encoded(spelling: str) -> None:
    named = FakeHerder(configs={NAME: {"name": NAME}})
    reply = ask(public_app(parts_of({None: named})), "GET", f"/connectors/{spelling}/config")
    assert reply.json == {"name": NAME}


def test_the_location_of_a_created_connector_leads_to_it() -> None:
    app = public_app(parts_of({None: FakeHerder()}))
    created = ask(app, "POST", "/connectors", body={"name": NAME, "config": {}})
    assert ask(app, "GET", created.headers["location"]).json == created.json | {
        "tasks": [{"connector": NAME, "task": 0}]
    }


PATCHED = {"Content-Type": "application/merge-patch+json"}
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("method", "target", "headers", "content", "status"),
    [
        ("PUT", "/connectors/c/pause", TEXT, b"{}", 415),
        ("PUT", "/connectors/c/pause", {"Content-Type": ""}, b"{}", 415),
        ("PUT", "/connectors/c/pause", {}, b"{}", 415),
        ("PUT", "/connectors/c/config", PATCHED, b"{}", 415),
        ("PUT", "/connectors/c/pause", {}, None, 202),
        ("PUT", "/connectors/c/pause", JSON, b"{[", 202),
        ("PUT", "/nothing", TEXT, b"x", 404),
        ("GET", "/connectors", {"Accept": "application/json;q=0"}, None, 406),
        ("GET", "/connectors", {"Accept": "text/plain, image/*"}, None, 406),
        ("GET", "/connectors", {"Accept": "text/html, application/*;q=0.1"}, None, 200),
        ("GET", "/connectors", {"Accept": ""}, None, 200),
    ],
)
def test_media_types_are_judged_as_jersey_does(
    method: str, target: str, headers: dict[str, str], content: bytes | None, status: int
) -> None:
    """Beside those of the recorded exchanges; an unread body may hold anything."""
    assert sent(method, target, headers=headers, content=content).status == status


def with_flows() -> ASGIApp:
    """Return an application with a router of somebody else's."""
    router = APIRouter()

    class Body(BaseModel):
        count: int

    async def shown(flow: str) -> dict[str, str]:
        return {"flow": plain_segment(flow)}

    async def changed(flow: str, body: Body, request: Request) -> None:
        request.state.herder = FakeHerder()
        raise ForwardError(None)

    router.add_api_route("/flows/{flow}", shown, methods=["GET"])
    router.add_api_route("/flows/{flow}", changed, methods=["PATCH"])
    return public_app(replace(parts_of(dedicated=True), flows=router))


def test_another_router_has_the_same_paths_methods_and_errors() -> None:
    app = with_flows()
    assert ask(app, "GET", "/flows/a%2Fb-%3EB/").json == {"flow": "a/b->B"}
    assert ask(app, "OPTIONS", "/flows/x").content == b"HEAD, GET, PATCH, OPTIONS"
    assert ask(app, "HEAD", "/flows/x").status == 200
    assert ask(app, "DELETE", "/flows/x").message == "HTTP 405 Method Not Allowed"
    invalid = ask(app, "PATCH", "/flows/x", body={"count": "many"})
    assert (invalid.status, "body.count" in invalid.message) == (422, True)
    assert ask(app, "PATCH", "/flows/x", body={"count": 1}).status == 409
    assert set(ask(app, "GET", "/openapi.json").json["paths"]) == {"/flows/{flow}"}


# -- probes


AB, BA = flow("A", "B"), flow("B", "A")


def failed_flow() -> FakeHerder:
    herder = FakeHerder(BA)
    herder.broken = FatalError("canary-value")
    return herder


def waiting() -> FakeHerder:
    herder = FakeHerder(BA, said_health=Health("unhealthy", "canary-value"))
    herder.waits = "waits for target cluster A: canary-value"
    return herder


@pytest.mark.parametrize(
    ("herders", "ready"),
    [
        ([FakeHerder(AB)], 200),
        ([FakeHerder(AB), waiting()], 503),
        ([FakeHerder(AB), failed_flow()], 503),
        ([], 503),
    ],
    ids=["all run", "one waits for a cluster", "one has failed", "none is there yet"],
)
def test_a_worker_lives_whatever_its_flows_do_and_is_ready_once_all_take_part(
    herders: list[FakeHerder], ready: int
) -> None:
    app = public_app(parts_of({it.flow: it for it in herders}, dedicated=True))
    assert ask(app, "GET", "/livez").json == {"status": "alive"}
    reply = ask(app, "GET", "/readyz")
    assert reply.status == ready
    assert b"canary" not in reply.content


def test_probes_need_no_password_on_the_public_listener_and_everything_else_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "users").write_text("ann=canary-ann\n")
    settings = RestSettings.of_worker({"rest.basic.auth.file": str(tmp_path / "users")})
    app = public_app(replace(parts_of(), gate=gate_for(settings, RestCredentials.read(settings))))
    for path in ("/livez", "/readyz"):
        assert ask(app, "GET", path).status == 200
        assert ask(app, "POST", path).status == 401
    for path in ("/", "/health", "/metrics", "/livez/", "//livez", "/livez/B/connectors"):
        assert ask(app, "GET", path).status == 401, path
    token = base64.b64encode(b"ann:canary-ann").decode()
    headers = {"Authorization": f"Basic {token}"}
    assert ask(app, "GET", "/livez/B/connectors", headers=headers).status == 404
    assert ask(public_app(parts_of()), "GET", "/readyz").json == {"status": "ready"}
    assert ask(internal_app(parts_of()), "GET", "/livez").status == 403


def test_plugins_are_connectors_unless_all_are_asked_for_and_may_have_no_version() -> None:
    connector = {"class": SOURCE, "type": "source", "version": "4.3.1"}
    converter = {"class": "org.x.SomeConverter", "type": "converter"}
    assert request(FakeHerder(), "GET", "/connector-plugins").json == [connector]
    every = request(FakeHerder(), "GET", "/connector-plugins?connectorsOnly=false")
    assert every.json == [connector, converter]


def test_a_number_that_json_does_not_have_is_refused() -> None:
    content, herder = b'{"name":"c","config":{"k":NaN}}', FakeHerder()
    reply = request(herder, "POST", "/connectors", content=content, headers=JSON)
    assert (reply.status, herder.calls) == (400, [])
