"""A request of ``/flows`` that is misspelt changes nothing: query, body, and what Connect has no word for."""

from typing import Any

import httpx
import pytest

from mm2py.config.class_names import IDENTITY_REPLICATION_POLICY
from mm2py.types import TopicPartition
from tests.unit.rest.flow_fakes import AB, BA, NAME, Rig
from tests.unit.rest.paper_worker import CONFIG, PaperWorker
from tests.unit.rest.rest_fakes import flow

SAME = {
    "replication.policy.class": IDENTITY_REPLICATION_POLICY,
    "topics": ".*",
    "loop.suppression": "off",
}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    return rig


def untouched(rig: Rig) -> bool:
    calls = [call for call in rig.herders[AB].calls if call[0] != "topics"]
    return not calls and not rig.topics[AB].records


@pytest.mark.parametrize(
    ("method", "target", "said"),
    [
        ("DELETE", "/flows/A->B?topics=back-1", "query.topics: unknown parameter; did you mean topic?"),
        ("POST", "/flows/A->B/pause?topics=x", "did you mean topic?"),
        ("POST", "/flows/A->B/pause?Topic=x", "did you mean topic?"),
        ("PATCH", "/flows/A->B?dryrun=true", "did you mean dry_run?"),
        ("POST", "/flows/A->B/rollback?revision=0&dryRun=true", "did you mean dry_run?"),
        ("POST", "/flows?dry-run=true", "did you mean dry_run?"),
        ("POST", "/flows/A->B/pause?topic=a&topic=b", "query.topic: given more than once"),
        ("DELETE", "/flows/A->B?dry_run=true&dry_run=false", "more than once"),
        ("GET", "/flows/A->B/config?revison=3", "did you mean revision?"),
        ("GET", "/flows?x=1", "known: none"),
    ],
)  # fmt: skip
def test_an_unknown_or_repeated_query_parameter_is_refused_and_changes_nothing(
    rig: Rig, method: str, target: str, said: str
) -> None:
    body: dict[str, Any] | None = {"config": {"topics": "x"}} if method == "PATCH" else None
    if target.startswith("/flows?dry"):
        body = {"source": "A", "target": "C"}
        rig.absent(flow("A", "C"))
    reply = rig.ask(method, target, body=body)
    assert (reply.status, said in reply.message) == (422, True), reply.message
    assert (untouched(rig), rig.opened) == (True, [])


@pytest.mark.parametrize("action", ["pause", "resume", "stop", "restart"])
def test_a_body_where_none_is_taken_is_refused_and_changes_nothing(rig: Rig, action: str) -> None:
    reply = rig.ask("POST", f"/flows/A->B/{action}", body={"topic": "x"})
    assert (reply.status, reply.message) == (422, "body: this request takes none")
    assert untouched(rig)
    assert rig.ask("POST", f"/flows/A->B/{action}", body={}).status == 200


@pytest.mark.parametrize(
    ("method", "target", "content"),
    [
        ("PATCH", "/flows/A->B", b'{"config": {"topics": "a", "topics": "b"}}'),
        ("PATCH", "/flows/A->B", b'{"config": {"topics": "a"}, "config": {}}'),
        ("PUT", f"/A/B/connectors/{NAME}/config", b'{"topics": "a", "topics": "b"}'),
    ],
)
def test_a_json_key_that_is_there_twice_is_refused(
    rig: Rig, method: str, target: str, content: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    reply = rig.ask(method, target, content=content, headers=headers)
    assert (reply.status, "is there twice" in reply.message) == (400, True), reply.message
    assert untouched(rig)


@pytest.mark.parametrize("value", [5, 1.5, True, ["a"], {}])
def test_a_property_that_is_no_text_is_refused_with_its_name(rig: Rig, value: object) -> None:
    for key in ("config", "connectors"):
        given = {"topics": value} if key == "config" else {NAME: {"topics": value}}
        reply = rig.ask("PATCH", "/flows/A->B", body={key: given})
        assert (reply.status, "topics: Input should be a valid string" in reply.message) == (
            422,
            True,
        )
    assert untouched(rig)


def test_in_connects_dialect_numbers_and_booleans_are_texts_as_in_java(rig: Rig) -> None:
    path = f"/A/B/connectors/{NAME}/config"
    config = rig.ask("GET", path).json
    body = {**config, "topics": 7, "x": True}
    assert rig.ask("PUT", path, body=body).status == 200
    headers = {"Content-Type": "application/json"}
    assert rig.ask("PATCH", path, content=b'{"y": 1.50}', headers=headers).status == 200
    found = rig.ask("GET", path).json
    assert (found["topics"], found["x"], found["y"]) == ("7", "true", "1.50")


@pytest.mark.parametrize("query", ["dry_run=true", "dryrun=1", "dryRun"])
def test_a_dry_run_in_connects_dialect_is_refused_and_changes_nothing(rig: Rig, query: str) -> None:
    for method, path in (("DELETE", ""), ("PUT", "/pause"), ("POST", "/restart")):
        reply = rig.ask(method, f"/A/B/connectors/{NAME}{path}?{query}")
        assert (reply.status, "no dry run" in reply.message) == (400, True)
    assert untouched(rig)


def test_the_largest_partition_number_is_kept_and_read_again(rig: Rig) -> None:
    part = TopicPartition("t", (1 << 31) - 1)
    reply = rig.ask("POST", f"/flows/A->B/pause?topic={part.topic}&partition={part.partition}")
    assert reply.status == 200, reply.message
    assert rig.stores[AB].held() == {part}


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PATCH", "/flows/A->B", {"config": SAME}),
        ("PATCH", f"/A/B/connectors/{NAME}/config", SAME),
        ("PUT", f"/A/B/connectors/{NAME}/config", {**CONFIG, **SAME}),
        ("PUT", "/A/B/connectors/Mine/config", {**CONFIG, **SAME, "name": "Mine"}),
        ("POST", "/connectors", {"name": "A->B.Mine", "config": {**CONFIG, **SAME, "name": "A->B.Mine"}}),
    ],
)  # fmt: skip
def test_a_circle_is_refused_in_both_dialects(
    method: str, target: str, body: dict[str, object]
) -> None:
    with PaperWorker(dedicated=True, elsewhere={BA: [SAME]}) as worker:
        request = httpx.Request(method, f"http://worker{target}", json=body)
        reply = worker.send(request)
        assert (reply.status_code, "in a circle" in reply.text) == (400, True), reply.text
        assert (
            "replication.policy.class"
            not in worker.send(
                httpx.Request("GET", f"http://worker/A/B/connectors/{NAME}/config")
            ).text
        )
