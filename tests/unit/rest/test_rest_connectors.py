"""Connectors over REST: listing, create, read, change, delete, and what a body may be."""

from collections.abc import Mapping

import pytest

from mm2py.rest.app import public_app
from mm2py.runtime.errors import RebalanceExpectedError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName, TargetState
from tests.unit.rest.rest_fakes import BASE, SOURCE, FakeHerder, Reply, ask, parts_of, state


def request(herder: Herder, method: str, target: str, **sent: object) -> Reply:
    herders: Mapping[FlowName | None, Herder] = {None: herder}
    return ask(public_app(parts_of(herders)), method, target, **sent)  # type: ignore[arg-type] # test table


def filled() -> FakeHerder:
    config: dict[str, str | None] = {"connector.class": SOURCE, "db.password": "open", "name": "c"}
    return FakeHerder(configs={"c": config, "d": {"name": "d"}}, states={"c": state("c")})


def test_a_plain_listing_is_an_array_of_names() -> None:
    reply = request(filled(), "GET", "/connectors")
    assert reply.json == ["c", "d"]
    assert reply.headers["content-type"] == "application/json"


def test_an_expanded_listing_leaves_out_a_connector_without_a_status() -> None:
    reply = request(filled(), "GET", "/connectors?expand=status&expand=info")
    assert list(reply.json) == ["c"]
    assert set(reply.json["c"]) == {"status", "info"}


def test_an_expanded_listing_with_unknown_words_has_empty_entries() -> None:
    assert request(filled(), "GET", "/connectors?expand=info,status").json == {"c": {}, "d": {}}
    assert request(filled(), "GET", "/connectors?expand=").json == {"c": {}, "d": {}}


def test_create_answers_201_with_an_absolute_location_and_the_config_as_put() -> None:
    herder = FakeHerder()
    body = {"name": " a b>ü% ", "config": {"connector.class": SOURCE, "tasks.max": 1, "on": True}}
    reply = request(herder, "POST", "/connectors", body=body)
    config = {"connector.class": SOURCE, "tasks.max": "1", "on": "true", "name": "a b>ü%"}
    assert reply.status == 201
    assert reply.headers["location"] == f"{BASE}/connectors/a%20b%3E%C3%BC%25"
    assert reply.json == {"name": "a b>ü%", "config": config, "tasks": [], "type": "source"}
    assert herder.calls == [("create", "a b>ü%", config, None, "anonymous")]


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


@pytest.mark.parametrize("name", ["  ", None, ""])
def test_a_blank_name_reaches_validation_as_the_empty_text(name: str | None) -> None:
    herder = FakeHerder()
    request(herder, "POST", "/connectors", body={"name": name, "config": {}})
    assert herder.calls[0][1] == ""


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
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"name":"c"}',
        b'{"name":"c","config":null}',
        b'{"name":"c","config":[]}',
        b'{"name":"c","config":{"k":{}}}',
        b'{"name":"c","config":{"k":[1]}}',
        b'{"name":"c","config":{},"more":1}',
        b'{"name":"c","config":{},"initial_state":"GONE"}',
        b'{"name":"c","config":{"k":"\\ud800"}}',
        b'{"name":"c","config":{"k":NaN}}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_create_request_is_a_400_and_reaches_nobody(content: bytes) -> None:
    herder = FakeHerder()
    json_type = {"Content-Type": "application/json"}
    reply = request(herder, "POST", "/connectors", content=content, headers=json_type)
    assert reply.status == 400
    assert reply.message
    assert herder.calls == []


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/connectors", {"name": "c", "config": {"name": "other"}}),
        ("PUT", "/connectors/c/config", {"name": "other"}),
        ("PATCH", "/connectors/c/config", {"name": "other"}),
    ],
)
def test_another_name_inside_the_config_is_refused(method: str, target: str, body: object) -> None:
    herder = filled()
    reply = request(herder, method, target, body=body)
    assert reply.status == 400
    assert reply.message == (
        "Connector name configuration (other) doesn't match connector name in the URL (c)"
    )
    assert herder.calls == []


def test_create_of_an_existing_name_is_a_409() -> None:
    reply = request(filled(), "POST", "/connectors", body={"name": "c", "config": {}})
    assert (reply.status, reply.message) == (409, "Connector c already exists")


def test_reads_show_the_config_of_an_ordinary_worker_as_it_was_put() -> None:
    config = {"connector.class": SOURCE, "db.password": "open", "name": "c"}
    assert request(filled(), "GET", "/connectors/c/config").json == config
    assert request(filled(), "GET", "/connectors/c").json == {
        "name": "c",
        "config": config,
        "tasks": [{"connector": "c", "task": 0}],
        "type": "source",
    }


def test_an_unknown_connector_is_a_404_everywhere() -> None:
    for method, target in [
        ("GET", "/connectors/x"),
        ("GET", "/connectors/x/config"),
        ("DELETE", "/connectors/x"),
    ]:
        reply = request(filled(), method, target)
        assert (reply.status, reply.message) == (404, "Connector x not found")


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


def test_patch_sets_and_removes_single_keys() -> None:
    herder = FakeHerder(configs={"c": {"a": "1", "b": "2"}})
    reply = request(herder, "PATCH", "/connectors/c/config", body={"a": None, "x": 3})
    assert reply.status == 200
    assert herder.configs["c"] == {"b": "2", "x": "3"}


def test_delete_answers_204_without_a_body() -> None:
    reply = request(filled(), "DELETE", "/connectors/c")
    assert (reply.status, reply.content) == (204, b"")


def test_tasks_are_listed_with_their_configs() -> None:
    reply = request(filled(), "GET", "/connectors/c/tasks")
    assert reply.json == [{"id": {"connector": "c", "task": 0}, "config": {"x": "1"}}]


def test_a_config_that_may_not_come_from_outside_is_a_400_before_the_herder() -> None:
    herder = filled()
    parts = parts_of({None: herder}, remote_refusal=lambda flow, name, config: f"not {name}")
    some: dict[str, object] = {"k": "v"}
    for method, target, body in [
        ("POST", "/connectors", {"name": "c", "config": some}),
        ("PUT", "/connectors/c/config", some),
        ("PATCH", "/connectors/c/config", some),
    ]:
        reply = ask(public_app(parts), method, target, body=body)
        assert (reply.status, reply.message) == (400, "not c")
    assert herder.calls == []


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


@pytest.mark.parametrize("number", [b"1e999", b"-1e999"])
def test_an_offset_that_no_json_number_can_hold_is_refused(number: bytes) -> None:
    body = b'{"offsets":[{"partition":{"a":1},"offset":{"p":' + number + b"}}]}"
    herder = FakeHerder()
    reply = ask(
        public_app(parts_of({None: herder})), "PATCH", "/connectors/c/offsets", content=body,
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert (reply.status, reply.message) == (
        400,
        "Field p of `offset` holds a number that is too large",
    )
    assert herder.calls == []
