"""Both documents, ``/openapi.json`` and Connect's dialect, against a real worker on paper clusters.

schemathesis makes the requests, good ones and broken ones; every answer has to be one that is described.
"""

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis import checks as every_checks
from schemathesis.config import SanitizationConfig
from schemathesis.specs.openapi import checks
from schemathesis.transport import prepare

from tests.property.effort import examples
from tests.unit.rest.connect_document import connect_document
from tests.unit.rest.paper_worker import NAME, PaperWorker

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(300)]

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


ASK_CLUSTERS: Final = ("/groups", "/groups/{group}", "/translate")
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
    schema: Any = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    # A new plan takes the place of the one that the document names.
    operations.sort(key=lambda it: it.label == "POST /backfills")
    for operation in operations:

        @settings(
            max_examples=examples(8, share=0.01),
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @given(operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            worker.mend(stopped=case.operation.path.endswith("/offsets"))
            response = send(worker, case)
            if response.is_success:
                done.add(case.operation.label)
            checked = CONFORMS[case.operation.path.endswith(ASK_CLUSTERS) :]
            case.validate_response(response, checks=[*checked, *more])

        # Nothing can be wrong about a request that has no parameters.
        with suppress(*[Unsatisfiable] if mode is GenerationMode.NEGATIVE else []):
            one()
    return done


NEEDS_A_RUN: Final = (":pause", ":resume", ":cancel")
"""What ends so is about a backfill that was started: 409 before."""


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
    """Return every operation that one of two tries serves, as schemathesis names it."""
    return {
        f"{method.upper()} {path}"
        for path, by_method in document["paths"].items()
        for method, operation in by_method.items()
        if "requestBody" not in operation
        and "{task}" not in path
        and not path.endswith((*ASK_CLUSTERS, *NEEDS_A_RUN))
    }


def test_flows_answers_as_its_own_document_says() -> None:
    with PaperWorker(dedicated=True) as worker:
        document = flows_document(worker)
        patch = document["paths"]["/flows/{flow}"]["patch"]["requestBody"]["content"]
        patch["application/json"]["schema"] = {
            "enum": [{"config": {"topics": "a.*"}}, {"config": {"tasks.max": "0"}}, {"config": {}}]
        }
        done = ask_everything(worker, document, GenerationMode.POSITIVE)
    assert done >= easy(document)


def test_flows_refuses_what_its_document_does_not_allow() -> None:
    with PaperWorker(dedicated=True) as worker:
        document = flows_document(worker)
        ask_everything(worker, document, GenerationMode.NEGATIVE, OPENAPI.negative_data_rejection)


@pytest.mark.parametrize(
    ("dedicated", "prefix", "name"),
    [(False, "", NAME), (True, "/A/B", NAME), (True, "", f"A->B.{NAME}")],
    ids=["ordinary worker", "flow", "all flows"],
)
def test_the_dialect_answers_as_connects_interface_says(
    dedicated: bool, prefix: str, name: str
) -> None:
    document = connect_document(prefix, name)
    with PaperWorker(dedicated=dedicated) as worker:
        done = ask_everything(worker, document, GenerationMode.POSITIVE)
    assert done >= easy(document)


def test_the_dialect_survives_what_its_interface_does_not_allow() -> None:
    with PaperWorker(dedicated=False) as worker:
        ask_everything(worker, connect_document("", NAME), GenerationMode.NEGATIVE)
