"""REST on generated requests: what the document allows is answered, what it does not is refused, nothing is a defect."""

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, cast
from urllib.parse import quote, quote_from_bytes

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis import checks as every_checks
from schemathesis.config import SanitizationConfig
from schemathesis.specs.openapi import checks
from schemathesis.transport import prepare
from starlette.types import Message, Scope

from mm2py.rest.app import public_app
from mm2py_jobs.aliases import PATHS as OLDER_PATHS
from tests.property.effort import examples
from tests.unit.rest.connect_document import connect_document
from tests.unit.rest.paper_worker import NAME, PaperWorker
from tests.unit.rest.rest_fakes import FakeHerder, flow, parts_of, state

# schemathesis loads it at its first use, and CPython 3.11 may fail to compile it beside the worker's thread.
import_module("schemathesis.specs.openapi.schemas")

BASE: Final = "http://worker:8083"
AS_SENT: Final = SanitizationConfig(enabled=False)
# schemathesis leaves type arguments out.
EVERY_API: Final[Any] = every_checks
OPENAPI: Final[Any] = checks
PREPARE: Final[Any] = prepare
CONFORMS: Final[list[Any]] = [
    EVERY_API.not_a_server_error,
    OPENAPI.status_code_conformance,
    OPENAPI.content_type_conformance,
    OPENAPI.response_schema_conformance,
]
ASK_CLUSTERS: Final = ("/groups", "/groups/{group}", "/ledger", "/translate")
"""What ends so asks the flow's clusters, which a worker on paper does not reach: it answers 503."""


def send(worker: PaperWorker, case: Any) -> httpx.Response:
    """Send what schemathesis made, byte for byte."""
    ready = PREPARE.prepare_request(case, None, config=AS_SENT, base_url=BASE)
    # schemathesis leaves these in a path as they are, where they would cut off the rest of the path.
    url = str(ready.url).replace("#", "%23").replace("?", "%3F", case.formatted_path.count("?"))
    request = httpx.Request(
        str(ready.method), url, headers=dict(ready.headers), content=ready.body or b""
    )
    response = worker.send(request)
    response.elapsed = timedelta(0)
    return response


def ask_everything(
    worker: PaperWorker, document: dict[str, Any], mode: GenerationMode, *more: Any
) -> set[str]:
    """Ask every operation several times; return those that did what they were asked at least once."""
    done: set[str] = set()
    mended: bool | None = None
    schema: Any = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    # A new plan takes the place of the one that the document names.
    operations.sort(key=lambda it: it.label in ("POST /backfills", "POST /jobs/backfill"))
    for operation in operations:

        @settings(
            max_examples=examples(2, share=0.01),
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @given(operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            nonlocal mended
            stopped = case.operation.path.endswith("/offsets")
            if mended is not stopped:
                worker.mend(stopped=stopped)
            response = send(worker, case)
            # Behind one that only reads, the next one finds what this one has found.
            mended = stopped if case.method == "GET" else None
            if response.is_success:
                done.add(case.operation.label)
            checked = CONFORMS[case.operation.path.endswith(ASK_CLUSTERS) :]
            case.validate_response(response, checks=[*checked, *more])

        # Nothing can be wrong about a request that has no parameters.
        with suppress(*[Unsatisfiable] if mode is GenerationMode.NEGATIVE else []):
            one()
    return done


NEEDS_A_RUN: Final = (":pause", ":resume", ":cancel", "/{kind}")
"""What ends so is about a job that was begun: 409 or 404 before."""


def flows_document(worker: PaperWorker) -> dict[str, Any]:
    """Return what the worker says of ``/flows`` and ``/backfills``, with the one flow and backfill that it has in the paths."""
    planned = worker.send(httpx.Request("POST", BASE + "/backfills", json={"flow": "A->B"}))
    text = worker.send(httpx.Request("GET", BASE + "/openapi.json")).text
    document = cast("dict[str, Any]", json.loads(text))
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["name"] == "flow":
                    parameter["schema"] = {"enum": ["A->B", "no/such ä%"]}
                if parameter["name"] == "backfill":
                    parameter["schema"] = {"enum": [planned.json()["id"], "no/such ä%"]}
    return document


def easy(document: dict[str, Any]) -> set[str]:
    """Return every operation that one of two tries serves, as schemathesis names it; what was done under one name is refused under the older one."""
    return {
        f"{method.upper()} {path}"
        for path, by_method in document["paths"].items()
        for method, operation in by_method.items()
        if "requestBody" not in operation
        and "{task}" not in path
        and path not in OLDER_PATHS
        and not path.endswith((*ASK_CLUSTERS, *NEEDS_A_RUN))
    }


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_flows_answers_as_its_own_document_says() -> None:
    with PaperWorker(dedicated=True) as worker:
        document = flows_document(worker)
        patch = document["paths"]["/flows/{flow}"]["patch"]["requestBody"]["content"]
        patch["application/json"]["schema"] = {
            "enum": [{"config": {"topics": "a.*"}}, {"config": {"tasks.max": "0"}}, {"config": {}}]
        }
        done = ask_everything(worker, document, GenerationMode.POSITIVE)
    assert done >= easy(document)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_flows_refuses_what_its_document_does_not_allow() -> None:
    with PaperWorker(dedicated=True) as worker:
        document = flows_document(worker)
        ask_everything(worker, document, GenerationMode.NEGATIVE, OPENAPI.negative_data_rejection)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("dedicated", "prefix", "name"),
    [(False, "", NAME), (True, "/A/B", NAME), (True, "", f"A->B.{NAME}")],
    ids=["ordinary worker", "flow", "all flows"],
)
def test_the_dialect_answers_as_connect_says(dedicated: bool, prefix: str, name: str) -> None:
    document = connect_document(prefix, name)
    with PaperWorker(dedicated=dedicated) as worker:
        done = ask_everything(worker, document, GenerationMode.POSITIVE)
    assert done >= easy(document)


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_the_dialect_survives_what_its_interface_does_not_allow() -> None:
    with PaperWorker(dedicated=False) as worker:
        ask_everything(worker, connect_document("", NAME), GenerationMode.NEGATIVE)


METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
WORDS = """connectors c config status tasks 0 restart pause resume stop offsets topics reset pairs A B
connector-plugins MirrorSource validate admin loggers root health"""
SEGMENTS = st.one_of(
    st.sampled_from(WORDS.split()),
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


@settings(max_examples=examples(20))
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
