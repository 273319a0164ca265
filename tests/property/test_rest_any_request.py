"""Whatever arrives, REST answers in its one shape and never with a 500 of its own."""

import asyncio
import json
from urllib.parse import quote, quote_from_bytes

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Scope

from mm2py.rest.app import public_app
from tests.property.effort import examples
from tests.unit.rest.rest_fakes import FakeHerder, flow, parts_of, state

METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
WORDS = st.sampled_from(
    [
        "connectors",
        "c",
        "config",
        "status",
        "tasks",
        "0",
        "restart",
        "pause",
        "resume",
        "stop",
        "offsets",
        "topics",
        "reset",
        "pairs",
        "A",
        "B",
        "connector-plugins",
        "MirrorSource",
        "validate",
        "admin",
        "loggers",
        "root",
        "health",
    ]
)
SEGMENTS = st.one_of(
    WORDS,
    st.text(max_size=8).map(lambda text: quote(text, safe=";=:")),
    st.binary(max_size=4).map(lambda data: quote_from_bytes(data, safe="")),
)
PATHS = st.lists(SEGMENTS, max_size=6).map(lambda segments: "/" + "/".join(segments))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "config", "initial_state", "offsets", "partition", "offset", "level", "k"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
BODIES = st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.binary(max_size=16))
TYPES = st.sampled_from([b"application/json", b"text/plain", b""])


async def answer(
    dedicated: bool, method: str, path: str, body: bytes, declared: bytes
) -> tuple[int, bytes]:
    name = flow("A", "B") if dedicated else None
    herder = FakeHerder(flow=name, configs={"c": {"name": "c"}}, states={"c": state("c")})
    app = public_app(parts_of({name: herder}, dedicated=dedicated))
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": "/",
        "raw_path": path.encode("ascii"),
        "query_string": b"",
        "headers": [(b"host", b"w:1"), (b"content-type", declared)],
    }
    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return int(sent[0]["status"]), content


@settings(max_examples=examples(150))
@given(st.booleans(), METHODS, PATHS, BODIES, TYPES)
def test_any_request_is_answered_in_shape(
    dedicated: bool, method: str, path: str, body: bytes, declared: bytes
) -> None:
    status, content = asyncio.run(answer(dedicated, method, path, body, declared))
    if method in {"HEAD", "OPTIONS"} or not content:
        assert status < 500
        return
    said = json.loads(content)
    if status >= 400:
        assert set(said) == {"error_code", "message"}
        assert said["error_code"] == status
    assert status < 500
