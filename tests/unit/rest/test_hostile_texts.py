"""Hostile texts of a mebibyte: answered, and the event loop is soon free; and Java's recorded answers to requests that need no cluster."""

import json
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, cast
from urllib.parse import quote, urlencode

import httpx
import pytest

from tests.integration.connect_dialogue import Exchange, exchanges, plain
from tests.property.effort import is_fuzz
from tests.unit.rest.paper_worker import CONFIG, NAME, PaperWorker

# -- hostile texts ----------------------------------------------------------------------------------

pytestmark = pytest.mark.timeout(120)

MIB: Final = 1024 * 1024
UNITS: Final = 10
"""Of `unit_s`: about 0.3 s where nothing else runs. Heartbeats are due every 2 s."""

BASE: Final = {key: text for key, text in CONFIG.items() if key != "name"}

TEXTS: Final[Mapping[str, str]] = {
    "letters": "a" * MIB,
    "nested quantifiers": "(" * 40 + "a" + ")+" * 40,
    "many quantifiers": "(a+)+" * (MIB // 5),
    "counted quantifiers": "((((a{999}){999}){999}){999}){999}",
    "a count of billions": "a{2147483647}",
    "classes": "[" * (MIB // 2) + "]" * (MIB // 2),
    "classes that fit": "[a-z&&[^b]]" * 1_400,
    "names": ",".join(f"orders-{number:06d}.eu" for number in range(3_200)),
    "alternatives": "(a|b|c)*" * 1_900,
    "commas": "," * MIB,
    "placeholders": "${" + ":" * MIB,
    "dots": "../" * (MIB // 3),
    "percents": "%" * MIB,
    "unicode": "\U0001f600\u2028\u202e" * (MIB // 10),
    "controls": "\x00\x1b[2K\r\n" * (MIB // 8),
    "digits": "9" * MIB,
    "quotes": "\"'\\" * (MIB // 3),
    "equals": "a=b;" * (MIB // 4),
    "hidden": "[hidden]" * (MIB // 8),
}


def _requests(text: str) -> Iterator[tuple[str, str, object]]:
    """Yield every place where REST takes a text: method, path, body."""
    # A request's head has 64 KiB at most.
    part, query = quote(text[:2_500], safe=""), urlencode({"x": text[:5_000]})[2:]
    config = {**BASE, "topics": text}
    for path in (
        f"/connectors/{part}", f"/connectors/{part}/status", f"/connectors/{NAME}/tasks/{part}/status",
        f"/connector-plugins/{part}/config", f"/admin/loggers/{part}", f"/flows/{part}",
        f"/flows/A-%3EB/topics?{query}=1", f"/connectors?expand={query}", f"/{part}/{part}/connectors",
        f"/flows/A-%3EB/partitions?topic={query}", f"/pairs/{part}/B/connectors", f"/{part}",
    ):  # fmt: skip
        yield "GET", path, None
    for path in (
        f"/flows/A-%3EB/pause?topic={query}", f"/flows/A-%3EB/pause?topic=t&partition={query}",
        f"/flows/A-%3EB/rollback?revision={query}", f"/flows/A-%3EB/pause?{query}=1",
        f"/flows/A-%3EB/restart?topic={query}",
    ):  # fmt: skip
        yield "POST", path, None
    yield "DELETE", f"/flows/A-%3EB?topic={query}", None
    yield "PUT", f"/connectors/{part}/pause", None
    yield "PUT", f"/admin/loggers/{part}", {"level": text}
    yield "POST", "/connectors", {"name": text, "config": BASE}
    yield "POST", "/connectors", {"name": "A->B.c", "config": BASE, "initial_state": text}
    yield "POST", "/flows", {"source": text, "target": text}
    yield "POST", "/flows", {"source": "A", "target": "B", "config": {text: text}}
    for key in (
        "topics", "topics.exclude", "config.properties.exclude", "connector.class", "tasks.max",
        "source.cluster.alias", "replication.policy.class", "replication.policy.separator",
        "topic.filter.class", "key.converter", "producer.override.acks", "sasl.jaas.config",
        "source.cluster.sasl.jaas.config", "consumer.bootstrap.servers", "x.password", "x.note",
    ):  # fmt: skip
        yield "PATCH", "/flows/A-%3EB?dry_run=true", {"config": {key: text}}
        yield "PUT", f"/connector-plugins/{NAME}/config/validate", {**BASE, key: text}
    yield "PATCH", "/flows/A-%3EB", {"config": {text: "x"}}
    yield "PATCH", "/flows/A-%3EB", {"connectors": {text: {"topics": "x"}}}
    yield "PUT", f"/A/B/connectors/{NAME}/config", config
    yield "PATCH", f"/A/B/connectors/{NAME}/config", {text: "x"}
    position = {"partition": {"cluster": text, "topic": text, "partition": 0}, "offset": {text: 1}}
    yield "PATCH", f"/A/B/connectors/{NAME}/offsets", {"offsets": [position]}
    yield "PUT", f"/connector-plugins/{part}/config/validate", config


BODIES: Final[Mapping[str, str]] = {
    "deep lists": "[" * MIB,
    "deep objects": '{"a":' * (MIB // 5),
    "a key that is there twice at the end": "{"
    + ",".join(f'"k{number}":1' for number in range(90_000))
    + ',"k89999":1}',
    "many keys": json.dumps({"config": {f"topiks{number}": "x" for number in range(60_000)}}),
    "long unknown keys": json.dumps(
        {"config": {f"{n:04}{'topics.' * 35}": "x" for n in range(1_999)}}
    ),
    "passwords": json.dumps(
        {"config": {**BASE, **{f"x{n}.password": f"canary-{n}" for n in range(1_900)}}}
    ),
    "hostile passwords": json.dumps(
        {"config": {**BASE, **{f"x{n}.password": "a" * (n % 400) + "b" for n in range(1_900)}}}
    ),
    "numbers": "[" + "9" * (MIB - 2) + "]",
    "a number": "9" * MIB,
    "exponents": "[" + ",".join(["1e999"] * 100_000) + "]",
    "escapes": '"' + "\\ud800" * (MIB // 6) + '"',
    "blanks": " " * MIB,
    "offsets": json.dumps(
        {"offsets": [{"partition": {"a": n}, "offset": {"b": n}} for n in range(20_000)]}
    ),
    "many overrides": json.dumps(
        {"config": {**BASE, **{f"producer.override.x{n}": "1" for n in range(1_900)}}}
    ),
}


def _bodies(text: str) -> Iterator[tuple[str, str, object]]:
    for method, path in (
        ("POST", "/connectors"),
        ("POST", "/flows"),
        ("PATCH", "/flows/A-%3EB?dry_run=true"),
        ("PATCH", f"/A/B/connectors/{NAME}/offsets"),
        ("PUT", "/admin/loggers/x"),
        ("POST", "/flows/A-%3EB/pause"),
    ):
        yield method, path, text
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(whole, dict) and "config" in whole:
        yield "PUT", f"/connector-plugins/{NAME}/config/validate", json.dumps(whole["config"])


@pytest.fixture(scope="module")
def unit_s() -> float:
    """CPU seconds of a fixed piece of work."""
    started = time.thread_time()
    number = 0
    for step in range(500_000):
        number = (number * 31 + step) % 1_000_003
    return time.thread_time() - started


@pytest.fixture(scope="module")
def worker() -> Iterator[PaperWorker]:
    with PaperWorker(dedicated=True) as worker:
        yield worker


def _problems(
    worker: PaperWorker, requests: Iterator[tuple[str, str, object]], unit_s: float
) -> list[str]:
    problems: list[str] = []
    for method, path, body in requests:
        content = body if isinstance(body, str) or body is None else json.dumps(body)
        request = httpx.Request(method, "http://worker/", content=content)
        request.url = request.url.copy_with(raw_path=path.encode())
        for name in ("content-type", "x-any", "if-match"):
            request.headers[name] = "application/json" if name == "content-type" else "x" * 60_000
        answer, held_s = worker.send_measured(request)
        if answer.status_code >= 500 or held_s > UNITS * unit_s:
            problems.append(
                f"{method} {path[:60]} {str(content)[:60]}: {answer.status_code}"
                f" {answer.text[:200]} held {held_s / unit_s:.1f} units"
            )
    return problems


@pytest.mark.fuzz
@pytest.mark.parametrize(("number", "name"), list(enumerate(TEXTS)), ids=list(TEXTS))
def test_every_text_that_rest_takes_may_be_hostile(
    worker: PaperWorker, unit_s: float, number: int, name: str
) -> None:
    """``make test`` brings each text but the mask to a third of the places, and to each place a third of the texts."""
    requests = _requests(TEXTS[name])
    whole = is_fuzz() or name == "hidden"
    some = requests if whole else islice(requests, number % 3, None, 3)
    problems = _problems(worker, some, unit_s)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES.keys())
def test_every_body_may_be_hostile(worker: PaperWorker, unit_s: float, text: str) -> None:
    problems = _problems(worker, _bodies(text), unit_s)
    assert not problems, "\n".join(problems)


# -- recorded answers -------------------------------------------------------------------------------

_OTHERS: Final = (
    "MirrorHeartbeat",
    '"source.cluster.alias": null',
    "/admin",
    "PluginDesc",
    "available",
)
"""What the paper worker has not: another connector, the connector itself, loggers."""


def _offline() -> Iterator[Exchange]:
    for asked in exchanges():
        if asked["ask"] == "POST /connectors" and '"name": "m"' in json.dumps(asked):
            return
        listing = str(asked["ask"]).partition("?")[0] in ("GET /connectors", "GET /connectors/")
        shared = str(asked["ask"]) in ("GET /", "GET /health", "GET /connector-plugins")
        if not listing and not shared and not any(it in json.dumps(asked) for it in _OTHERS):
            yield asked


@pytest.fixture(scope="module")
def standalone() -> Iterator[PaperWorker]:
    with PaperWorker(dedicated=False) as standalone:
        yield standalone


def test_what_needs_no_cluster_is_answered_as_recorded(standalone: PaperWorker) -> None:
    differences: list[str] = []
    asked = list(_offline())
    for each in asked:
        method, path = str(each["ask"]).split(" ", 1)
        content = json.dumps(each["body"]) if "body" in each else str(each.get("text", ""))
        request = httpx.Request(method, f"http://worker{path}", content=content or None)
        given = cast("dict[str, str]", each.get("headers", {}))
        request.headers.update({"Content-Type": "application/json", **given})
        answer, expected = plain(standalone.send(request), {}), each.get("ours", each["java"])
        if answer != expected:
            differences.append(f"{each['ask']} {content}\n  expected {expected}\n  got {answer}")
    assert not differences, "\n".join(differences)
    assert len(asked) > 150
