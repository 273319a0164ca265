"""Paths, methods and media types of the dialect."""

from dataclasses import replace

import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.types import ASGIApp

from mm2py.rest.app import public_app
from mm2py.rest.raw_path import plain_segment
from mm2py.runtime.errors import ForwardError
from tests.unit.rest.rest_fakes import BASE, FakeHerder, Reply, ask, parts_of, state

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


def request(method: str, target: str, **sent: object) -> Reply:
    return ask(public_app(parts_of({None: herder()})), method, target, **sent)  # type: ignore[arg-type] # test table


@pytest.mark.parametrize("target", GETS)
def test_every_get_is_json_and_head_has_its_headers_and_no_body(target: str) -> None:
    full, head = request("GET", target), request("HEAD", target)
    assert full.status == 200
    assert full.headers["content-type"] == "application/json"
    assert (head.status, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(full.content))


@pytest.mark.parametrize("target", [get for get in GETS if "?" not in get])
def test_a_trailing_slash_means_nothing_and_nothing_redirects(target: str) -> None:
    assert request("GET", f"{target}/").content == request("GET", target).content
    assert request("GET", f"{BASE}/{target}").status == 200


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


@pytest.mark.parametrize("target", ["/connectors/c/pause", "/connectors/c/config"])
@pytest.mark.parametrize("declared", ["text/plain", "application/merge-patch+json", ""])
def test_another_media_type_is_a_415_also_where_no_body_is_read(target: str, declared: str) -> None:
    reply = request("PUT", target, content=b"{}", headers={"Content-Type": declared})
    assert (reply.status, reply.message) == (415, "HTTP 415 Unsupported Media Type")


def test_a_body_without_a_media_type_is_a_415_and_no_body_needs_none() -> None:
    assert request("PUT", "/connectors/c/pause", content=b"{}").status == 415
    assert request("PUT", "/connectors/c/pause").status == 202


def test_an_unread_body_may_hold_anything() -> None:
    json_type = {"Content-Type": "application/json"}
    assert request("PUT", "/connectors/c/pause", content=b"{[", headers=json_type).status == 202


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "text/plain, image/*"])
def test_an_accept_without_json_is_a_406(accept: str) -> None:
    reply = request("GET", "/connectors", headers={"Accept": accept})
    assert (reply.status, reply.message) == (406, "HTTP 406 Not Acceptable")


@pytest.mark.parametrize(
    "accept", ["*/*", "text/html, application/*;q=0.1", "application/json", ""]
)
def test_an_accept_with_json_is_served(accept: str) -> None:
    assert request("GET", "/connectors", headers={"Accept": accept}).status == 200


def test_a_path_that_is_unknown_comes_before_a_wrong_media_type() -> None:
    text = {"Content-Type": "text/plain"}
    assert request("PUT", "/nothing", content=b"x", headers=text).status == 404


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
