import asyncio
import base64
import json
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mm2py.client.connect.oauth_tokens import TokenSource
from mm2py.config.security import OAuthSettings
from mm2py.errors import AuthenticationError, ConnectionFailedError
from mm2py.testing.clock import FakeClock

NOW_MS = 1_700_000_000_000
WORD = "s3cret:"


class Endpoint:
    """Answers what it is told to; the last answer stays."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def next_answer(self) -> tuple[int, bytes]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving() -> Generator[Endpoint, None, None]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.requests.append((self.headers["Authorization"], body))
            code, content = endpoint.next_answer()
            self.send_response(code)
            if code == 302:
                self.send_header("Location", endpoint.url)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as declared there
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/token?tenant=hidden"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def jwt(lifetime_s: int, name: str = "mirror") -> str:
    claims = json.dumps({"sub": name, "exp": NOW_MS / 1000 + lifetime_s}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.c2ln"


def answer(token: object, **more: object) -> bytes:
    return json.dumps({"access_token": token, **more}).encode()


@asynccontextmanager
async def token_source(
    **settings: object,
) -> AsyncGenerator[tuple[Endpoint, TokenSource, FakeClock]]:
    with serving() as endpoint:
        clock = FakeClock(now_ms=NOW_MS)
        given: dict[str, object] = {
            "token_endpoint_url": endpoint.url, "client_id": "c d", "client_secret": WORD,
            "retry_backoff_max_ms": 1, **settings,
        }  # fmt: skip
        yield endpoint, TokenSource(OAuthSettings(**given), clock), clock  # type: ignore[arg-type]  # from a dict


async def test_a_token_is_kept_until_most_of_its_life_is_over() -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(1_000, "one"))), (200, answer(jwt(9_000, "two")))]
        first, again = await asyncio.gather(source.token(), source.token())
        assert first is again
        assert first.expires_ms == NOW_MS + 1_000_000
        # 80 % of its life would leave less than the buffer of 300 s.
        assert first.renew_ms == NOW_MS + 700_000
        await clock.advance(699)
        assert await source.token() is first
        await clock.advance(2)
        assert (await source.token()).value == jwt(9_000, "two")
        assert len(endpoint.requests) == 2
        assert first.value not in repr(first)


async def test_the_request_is_the_client_credentials_grant() -> None:
    async with token_source(scope="a b", header_urlencode=True) as (endpoint, source, _):
        endpoint.answers = [(200, answer("opaque", expires_in=100))]
        token = await source.token()
        assert (token.value, token.expires_ms) == ("opaque", NOW_MS + 100_000)
        (authorization, sent) = endpoint.requests[0]
        assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "c+d:s3cret%3A"
        assert sent == "grant_type=client_credentials&scope=a+b"


async def test_a_token_of_unknown_life_serves_one_login() -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(200, answer("opaque"))]
        await source.token()
        await source.token()
        assert len(endpoint.requests) == 2


async def test_the_last_token_serves_while_it_is_valid_and_no_new_one_comes() -> None:
    async with token_source() as (endpoint, source, clock):
        endpoint.answers = [(200, answer(jwt(1_000))), (503, b"")]
        first = await source.token()
        await clock.advance(800)
        assert await source.token() is first
        await clock.advance(300)
        with pytest.raises(ConnectionFailedError, match="HTTP 503"):
            await source.token()


@pytest.mark.parametrize(
    ("code", "content", "said"),
    [
        (401, b'{"error": "invalid_client"}', "HTTP 401: invalid_client; check clientId"),
        (400, b'{"error": "x", "error_description": "no\\nscope"}', "HTTP 400: no scope"),
        (404, b"<html>", "HTTP 404; check sasl.oauthbearer.token.endpoint.url"),
        (302, b"", "HTTP 302"),
        (200, b"<html>", "without an access_token"),
        (200, b"[1]", "without an access_token"),
        (200, answer(5), "without an access_token"),
        (200, answer("a\nb"), "without an access_token"),
    ],
)
async def test_an_answer_without_a_token_is_an_error_that_names_the_cause(
    code: int, content: bytes, said: str
) -> None:
    async with token_source() as (endpoint, source, _):
        endpoint.answers = [(code, content)]
        with pytest.raises(AuthenticationError, match=said) as refusal:
            await source.token()
        assert len(endpoint.requests) == 1
        assert "hidden" not in str(refusal.value)
        assert WORD not in str(refusal.value)


async def test_an_endpoint_that_comes_back_is_asked_again() -> None:
    async with token_source(retry_backoff_max_ms=60_000) as (endpoint, source, clock):
        endpoint.answers = [(503, b""), (200, answer("late"))]
        asking = asyncio.create_task(source.token())
        while not endpoint.requests or not clock.sleepers:
            await clock.settle()  # the request runs in a thread
        await clock.advance(10)
        assert (await asking).value == "late"


async def test_claims_without_signature_need_no_endpoint() -> None:
    settings = OAuthSettings(claims=(("sub", "bob"),), lifetime_s=60)
    token = await TokenSource(settings, FakeClock(now_ms=NOW_MS)).token()
    head, claims, signature = token.value.split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == {
        "sub": "bob", "iat": NOW_MS // 1000, "exp": NOW_MS // 1000 + 60,
    }  # fmt: skip
    assert signature == ""
