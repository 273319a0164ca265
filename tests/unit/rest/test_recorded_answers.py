"""Java's recorded answers to requests that need no cluster: validation, unknown names, bodies that are wrong.

All of them, with a connector's life, are replayed on real brokers by tests/integration/test_connect_dialogue.py.
"""

import json
from collections.abc import Iterator
from typing import Final, cast

import httpx
import pytest

from tests.integration.connect_dialogue import Exchange, exchanges, plain
from tests.unit.rest.paper_worker import PaperWorker

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
def worker() -> Iterator[PaperWorker]:
    with PaperWorker(dedicated=False) as worker:
        yield worker


def test_what_needs_no_cluster_is_answered_as_recorded(worker: PaperWorker) -> None:
    differences: list[str] = []
    asked = list(_offline())
    for each in asked:
        method, path = str(each["ask"]).split(" ", 1)
        content = json.dumps(each["body"]) if "body" in each else str(each.get("text", ""))
        request = httpx.Request(method, f"http://worker{path}", content=content or None)
        given = cast("dict[str, str]", each.get("headers", {}))
        request.headers.update({"Content-Type": "application/json", **given})
        answer, expected = plain(worker.send(request), {}), each.get("ours", each["java"])
        if answer != expected:
            differences.append(f"{each['ask']} {content}\n  expected {expected}\n  got {answer}")
    assert not differences, "\n".join(differences)
    assert len(asked) > 150
