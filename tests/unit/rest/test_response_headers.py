import asyncio

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.config.rest_settings import RestSettings
from mm2py.rest.credentials import Credentials
from mm2py.rest.security import gate_for
from mm2py.testing.clock import FakeClock

ORIGIN = "https://ui.example"
CORS = {"access.control.allow.origin": ORIGIN}
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "DELETE"}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    status = 404 if scope["path"] == "/nowhere" else 200
    headers = {"X-Frame-Options": "SAMEORIGIN", "X-Own": "1", "Vary": "Accept"}
    await Response(b"body", status, headers)(scope, receive, send)


def gate_of(props: dict[str, str], users: dict[str, str] | None = None) -> ASGIApp:
    settings = RestSettings.of_worker(props)
    return gate_for(settings, Credentials(users or {}, {}), clock=FakeClock())(app)


def ask(
    gate: ASGIApp, method: str, headers: dict[str, str], path: str = "/connectors"
) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8083") as http:
            return await http.request(method, path, headers=headers)

    return asyncio.run(main())


def cors(answer: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.startswith("access-control")}


def test_without_the_key_no_page_of_another_origin_is_answered_to() -> None:
    answer = ask(gate_of({}), "OPTIONS", PREFLIGHT)
    assert cors(answer) == {}
    assert answer.headers["vary"] == "Accept"


def test_the_origin_is_echoed_and_every_answer_varies_by_it() -> None:
    for allowed in (ORIGIN, "*"):
        gate = gate_of({"access.control.allow.origin": allowed})
        answer = ask(gate, "GET", {"Origin": ORIGIN})
        assert cors(answer) == {"access-control-allow-origin": ORIGIN}
        assert answer.headers["vary"] == "Accept, Origin"
        assert ask(gate, "GET", {}).headers["vary"] == "Accept, Origin"
        assert cors(ask(gate, "GET", {})) == {}


def test_a_foreign_origin_gets_the_plain_answer() -> None:
    for headers in ({"Origin": "https://evil"}, {**PREFLIGHT, "Origin": "https://evil"}):
        answer = ask(gate_of(CORS), "OPTIONS", headers)
        assert (answer.status_code, cors(answer)) == (200, {})


def test_a_preflight_is_answered_on_any_path_with_the_status_of_the_request_itself() -> None:
    gate = gate_of({**CORS, "access.control.allow.methods": "GET,PUT"})
    for path, status in (("/connectors", 200), ("/nowhere", 404)):
        answer = ask(gate, "OPTIONS", PREFLIGHT, path)
        assert answer.status_code == status
        assert cors(answer) == {
            "access-control-allow-origin": ORIGIN,
            "access-control-allow-methods": "GET,PUT",
            "access-control-allow-headers": "Content-Type",
            "access-control-max-age": "60",
        }


def test_a_preflight_of_an_allowed_origin_needs_no_credentials_and_permits_to_send_them() -> None:
    gate = gate_of(CORS, {"ann": "a"})
    answer = ask(gate, "OPTIONS", PREFLIGHT)
    assert answer.status_code == 200
    assert cors(answer)["access-control-allow-origin"] == ORIGIN
    assert cors(answer)["access-control-allow-headers"] == "Content-Type, Authorization"
    for headers in ({**PREFLIGHT, "Origin": "https://evil"}, {"Origin": ORIGIN}, {}):
        assert ask(gate, "OPTIONS", headers).status_code == 401
    assert ask(gate, "GET", PREFLIGHT).status_code == 401


def test_rules_put_headers_on_every_answer_refusals_included() -> None:
    rules = "set X-Frame-Options: DENY, add X-Own: 2, setDate Expires: 1000, add X-New: a"
    gate = gate_of({"response.http.headers.config": rules}, {"ann": "a"})
    refused = ask(gate, "GET", {})
    assert refused.status_code == 401
    assert refused.headers["x-new"] == "a"
    answer = ask(gate, "GET", {"Authorization": "Basic YW5uOmE="})
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers.get_list("x-own") == ["1", "2"]
    assert answer.headers["expires"].endswith(" GMT")
