"""The dedicated mode: a dialect per flow, all flows at the root, secrets hidden."""

import httpx
import pytest
from starlette.types import ASGIApp

from mm2py.errors import FatalError
from mm2py.flows.states import read_flow
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.forwarding import http_client
from mm2py.runtime.errors import ForwardError
from mm2py.runtime.herder.api import Health
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.types import FlowName, TaskId
from tests.unit.rest.rest_fakes import BASE, KEY, SOURCE, FakeHerder, ask, flow, parts_of, state

AB, SPACED, RESERVED = flow("A", "B"), flow("a b", "c/d"), flow("connectors", "B")
NAME = "MirrorSourceConnector"
LONG = f"A->B.{NAME}"
AT_ROOT = f"/connectors/A-%3EB.{NAME}"
STORED: dict[str, str | None] = {
    "connector.class": SOURCE,
    "source.pw": "s3cret",
    "db.password": "p4ss",
    "topics": "x canary-value",
    "name": NAME,
}
SHOWN = STORED | {"source.pw": "[hidden]", "db.password": "[hidden]", "topics": "x [hidden]"}


def herder(name: FlowName = AB) -> FakeHerder:
    return FakeHerder(
        flow=name, configs={NAME: dict(STORED)}, states={NAME: state(NAME)}, cluster_id=f"id-{name}"
    )


def app_of(*herders: FakeHerder) -> ASGIApp:
    found: dict[FlowName | None, Herder] = {each.flow: each for each in herders}
    return public_app(parts_of(found, dedicated=True))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [(AB, "/A/B"), (AB, "/pairs/A/B"), (SPACED, "/a%20b/c%2Fd"), (RESERVED, "/pairs/connectors/B")],
)
def test_a_flow_has_its_dialect_under_its_pair(name: FlowName, prefix: str) -> None:
    app = app_of(herder(name))
    assert ask(app, "GET", f"{prefix}/connectors").json == [NAME]
    assert ask(app, "GET", prefix).json["kafka_cluster_id"] == f"id-{name}"
    assert ask(app, "GET", f"{prefix}/health").status == 200
    assert ask(app, "GET", f"{prefix}/connectors/{NAME}/status").json["name"] == NAME
    created = ask(app, "POST", f"{prefix}/connectors", body={"name": "n", "config": {}})
    assert created.headers["location"] == f"{BASE}{prefix}/connectors/n"


def test_an_unknown_pair_is_a_404_that_names_both() -> None:
    reply = ask(app_of(herder()), "GET", "/x%20y/B/connectors")
    text = "No replication flow found for source 'x y' and target 'B'"
    assert (reply.status, reply.message) == (404, text)


@pytest.mark.parametrize("word", ["connectors", "admin", "metrics", "ui"])
def test_an_alias_that_is_a_word_of_the_api_is_found_under_pairs_only(word: str) -> None:
    app = app_of(herder(flow(word, "B")))
    assert ask(app, "GET", f"/{word}/B/health").status == 404
    assert ask(app, "GET", f"/pairs/{word}/B/connectors").json == [NAME]


def test_a_reserved_alias_is_said_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    public_app(parts_of({flow("admin", "B"): FakeHerder(), flow("A", "B"): FakeHerder()}))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "alias is a word of the API, rest has the flow under /pairs/admin/B only flow=admin->B"
    ]


def test_secrets_are_hidden_in_every_config() -> None:
    app = app_of(herder())
    assert ask(app, "GET", f"/A/B/connectors/{NAME}/config").json == SHOWN
    listed = ask(app, "GET", "/A/B/connectors?expand=info").json
    assert listed[NAME]["info"]["config"] == SHOWN
    assert ask(app, "GET", f"{AT_ROOT}/config").json == SHOWN | {"name": LONG}


@pytest.mark.parametrize("target", [f"/A/B/connectors/{NAME}", AT_ROOT])
def test_a_config_that_was_read_can_be_put_back_without_losing_secrets(target: str) -> None:
    one = herder()
    app = app_of(one)
    read = ask(app, "GET", f"{target}/config").json
    assert ask(app, "PUT", f"{target}/config", body=read | {"tasks.max": "2"}).status == 200
    assert one.configs[NAME] == STORED | {"tasks.max": "2"}
    assert ask(app, "PATCH", f"{target}/config", body={"source.pw": "[hidden]"}).status == 200
    assert one.configs[NAME]["source.pw"] == "s3cret"


def test_hidden_where_nothing_is_stored_is_refused() -> None:
    app = app_of(herder())
    for value in ("[hidden]", "y [hidden]"):
        reply = ask(app, "PATCH", f"{AT_ROOT}/config", body={"new.password": value})
        assert reply.status == 400
    partly = ask(app, "PATCH", f"{AT_ROOT}/config", body={"topics": "y [hidden]"})
    assert partly.status == 400


def test_the_root_shows_the_connectors_of_all_flows_by_long_names() -> None:
    app = app_of(herder(), herder(SPACED))
    assert ask(app, "GET", "/connectors").json == [LONG, f"a b->c/d.{NAME}"]
    info = ask(app, "GET", AT_ROOT).json
    assert info["name"] == info["config"]["name"] == info["tasks"][0]["connector"] == LONG
    assert ask(app, "GET", f"{AT_ROOT}/status").json["name"] == LONG
    assert ask(app, "GET", f"{AT_ROOT}/topics").json == {LONG: {"topics": ["t1"]}}
    assert ask(app, "GET", f"{AT_ROOT}/tasks").json[0]["id"] == {"connector": LONG, "task": 0}
    assert ask(app, "GET", "/").json["kafka_cluster_id"] == "id-A->B,id-a b->c/d"
    expanded = ask(app, "GET", "/connectors?expand=status&expand=info").json
    assert expanded[LONG]["status"]["name"] == expanded[LONG]["info"]["name"] == LONG


def test_changes_at_the_root_reach_the_flow_under_the_connectors_own_name() -> None:
    one = herder()
    app = app_of(one)
    ask(app, "PUT", f"{AT_ROOT}/pause")
    ask(app, "POST", f"{AT_ROOT}/tasks/0/restart")
    created = ask(app, "POST", "/connectors", body={"name": "A->B.n", "config": {}})
    assert created.headers["location"] == f"{BASE}/connectors/A-%3EB.n"
    assert created.json["config"] == {"name": "A->B.n"}
    assert one.calls == [
        ("pause", NAME, "anonymous"),
        ("restart_task", TaskId(NAME, 0)),
        ("create", "n", {"name": "n"}, None, "anonymous"),
    ]


@pytest.mark.parametrize("name", ["n", "X->Y.n", "A->B.", "A->B"])
def test_a_connector_created_at_the_root_needs_its_flow_in_the_name(name: str) -> None:
    reply = ask(app_of(herder()), "POST", "/connectors", body={"name": name, "config": {}})
    assert reply.status == 400
    assert "has to begin with the replication flow" in reply.message
    assert "A->B." in reply.message


@pytest.mark.parametrize(
    ("method", "rest", "text"),
    [
        ("GET", "", "Connector x not found"),
        ("GET", "/status", "No status found for connector x"),
        ("GET", "/tasks/0/status", "No status found for task x-0"),
        ("PUT", "/stop", "Unknown connector x"),
    ],
)
def test_an_unknown_long_name_is_a_404(method: str, rest: str, text: str) -> None:
    reply = ask(app_of(herder()), method, f"/connectors/x{rest}")
    assert (reply.status, reply.message) == (404, text)


def test_a_flow_whose_alias_begins_like_another_is_told_apart() -> None:
    short, long = herder(AB), herder(flow("A", "B.C"))
    long.configs = {"n": {}}
    app = app_of(short, long)
    assert ask(app, "PUT", "/connectors/A->B.C.n/pause").status == 202
    assert long.calls == [("pause", "n", "anonymous")]


def test_the_root_is_as_well_as_its_worst_flow() -> None:
    ill = herder(SPACED)
    ill.said_health = Health("unhealthy", "stuck")
    reply = ask(app_of(herder(), ill), "GET", "/health")
    assert (reply.status, reply.json["message"]) == (500, "a b->c/d: stuck")
    assert ask(app_of(herder()), "GET", "/health").json["message"] == "well"
    assert ask(app_of(), "GET", "/health").status == 503


def test_a_request_at_the_root_is_sent_on_with_the_key_of_its_flow() -> None:
    key = SessionKey(b"f" * 32, "HmacSHA256", 0)
    leader, follower, other = herder(), herder(), herder(SPACED)
    leader.key = follower.key = key
    follower.refusal = ForwardError("http://leader/")
    assert other.key == KEY
    remote = internal_app(parts_of({AB: leader, SPACED: other}, dedicated=True))
    client = http_client(transport=httpx.ASGITransport(remote))
    app = public_app(parts_of({AB: follower, SPACED: other}, dedicated=True, client=client))
    assert ask(app, "PUT", f"{AT_ROOT}/stop").status == 204
    assert ask(app, "PUT", f"/A/B/connectors/{NAME}/stop").status == 204
    created = ask(app, "POST", "/connectors", body={"name": "A->B.n", "config": {}})
    assert created.headers["location"] == f"{BASE}/connectors/A-%3EB.n"
    assert [call[0] for call in leader.calls] == ["stop", "stop", "create"]


def test_what_may_come_from_outside_is_judged_by_flow_and_own_name_also_at_the_root() -> None:
    asked: list[tuple[object, str, dict[str, str | None]]] = []

    def refuse(name: FlowName | None, connector: str, config: ConnectorConfig) -> str | None:
        asked.append((name, connector, dict(config)))
        return "no"

    one = herder()
    parts = parts_of({AB: one}, dedicated=True, remote_refusal=refuse)
    for target in (AT_ROOT, f"/A/B/connectors/{NAME}"):
        reply = ask(public_app(parts), "PATCH", f"{target}/config", body={"x": None, "y": "1"})
        assert (reply.status, reply.message) == (400, "no")
    assert asked == [(AB, NAME, {"x": None, "y": "1"})] * 2
    assert one.calls == []


def heartbeats_only(*, enabled: str = "false", read: bool = False) -> FakeHerder:
    """Return the herder of B->A, which nobody has enabled: A may only be read, so that it fails."""
    source = {"connector.class": "MirrorSourceConnector", "enabled": enabled}
    known: dict[str, dict[str, str | None]] = {NAME: {**source}} if read else {}
    failed = FakeHerder(
        flow=flow("B", "A"),
        configs=known,
        states={it: state(it) for it in known},
        said_health=Health("unhealthy", "A may only be read"),
    )
    failed.file = {NAME: source}
    failed.broken = FatalError("A may only be read")
    return failed


@pytest.mark.parametrize("read", [False, True])
def test_a_disabled_direction_decides_neither_health_nor_alerts(*, read: bool) -> None:
    app = app_of(herder(), heartbeats_only(read=read))
    assert ask(app, "GET", "/health").status == 200
    assert ask(app, "GET", "/B/A/health").status == 500, "its own health is what it is"
    wanted = app_of(herder(), heartbeats_only(enabled="true", read=read))
    assert ask(wanted, "GET", "/health").status == 500
    assert ask(app_of(heartbeats_only(read=read)), "GET", "/health").status == 500, "it is alone"
    ill = herder()
    ill.said_health = Health("unhealthy", "cause")
    assert ask(app_of(ill, heartbeats_only(read=read)), "GET", "/health").status == 500


@pytest.mark.parametrize("read", [False, True])
def test_what_is_wrong_with_a_disabled_direction_is_a_note_with_a_remedy(*, read: bool) -> None:
    work = read_flow(heartbeats_only(read=read))
    assert (work.state(()), list(work.wrongs(()))) == ("DISABLED", [])
    (note,) = work.notes(())
    assert "A may only be read" in note
    assert "set B->A.emit.heartbeats.enabled = false" in note
    wanted = read_flow(heartbeats_only(enabled="true", read=read))
    assert (wanted.state(()), list(wanted.notes(()))) == ("FAILED", [])
    assert [text for _, text in wanted.wrongs(())] == ["A may only be read"]
