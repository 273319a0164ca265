"""A REST API that answers from a table, for the command line's tests.

Flow: ``FakeApi.answers[(method, path)]`` -> httpx transport -> command -> ``Ended``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx
from typer.testing import CliRunner

from mm2py_cli.app import app
from mm2py_workers.worker_place import STATE_DIR

URL: Final = "http://localhost:8083"
PATH: Final = "/flows/A->B"
FLOW: Final[dict[str, object]] = {
    "flow": "A->B",
    "source": "A",
    "target": "B",
    "enabled": True,
    "engine": "worker",
    "state": "RUNNING",
    "pending": False,
    "since_ms": 0,
    "revision": 3,
    "workers": ["w1:1"],
    "partitions": 2,
    "topics": 1,
    "copied_topics": 1,
    "failed_partitions": 0,
    "held_partitions": 0,
    "paused": [],
    "lag_records": 1234,
    "lag_ms": 5600,
    "records_per_s": 0.5,
    "bytes_per_s": 2500.0,
    "records_looped": 0,
    "conflicts": 0,
    "records_lost": 0,
    "errors": [],
    "notes": [],
    "connectors": [
        {
            "name": "MirrorSourceConnector",
            "state": "RUNNING",
            "worker": "w1:1",
            "tasks": [{"number": 0, "state": "RUNNING", "worker": "w1:1"}],
        }
    ],
    "incomplete": [],
}
TOPIC: Final[dict[str, object]] = {
    "flow": "A->B",
    "topic": "orders",
    "target_topic": "A.orders",
    "partitions": 2,
    "failed_partitions": 0,
    "held_partitions": 0,
    "paused_partitions": 0,
    "state": "RUNNING",
    "lag_records": 1234,
    "lag_ms": 5600,
    "records_per_s": 12.0,
    "bytes_per_s": None,
}
PARTITION: Final[dict[str, object]] = {
    "flow": "A->B",
    "topic": "orders",
    "partition": 0,
    "target_topic": "A.orders",
    "task": "MirrorSourceConnector-0",
    "worker": "w1:1",
    "state": "RUNNING",
    "cause": "",
    "lag_records": 0,
    "lag_ms": 0,
    "records_per_s": None,
    "bytes_per_s": None,
    "records_looped": 0,
    "conflicts": 0,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def refusal(status: int, message: str) -> httpx.Response:
    """Return an error in Connect's shape."""
    return httpx.Response(status, json={"error_code": status, "message": message})


@dataclass(frozen=True, slots=True)
class Turns:
    """Answers in turn; the last one is for good."""

    answers: list[object]

    def next(self) -> object:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass(slots=True)
class FakeApi:
    """Answers by method and path; what is not there is Connect's 404. ``Turns`` answers in turn."""

    answers: dict[tuple[str, str], object] = field(default_factory=dict[tuple[str, str], object])
    requests: list[httpx.Request] = field(default_factory=list[httpx.Request])

    def run(self, *words: str, env: Mapping[str, str] | None = None, typed: str = "") -> Ended:
        """Run one command line against this API."""
        transport = httpx.MockTransport(self._answer)
        # Workers that happen to run on this machine are not asked.
        alone = {STATE_DIR: "/nonexistent", "MM2PY_URL": URL, **(env or {})}
        ended = CliRunner().invoke(app, list(words), obj=transport, env=alone, input=typed)
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Ended(ended.exit_code, ended.stdout, ended.stderr)

    def sent(self) -> list[tuple[str, str, object]]:
        """Return method, path with query, and body of what was asked."""
        return [(it.method, str(it.url).removeprefix(URL), _body(it)) for it in self.requests]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        found = self.answers.get((request.method, request.url.path))
        if isinstance(found, Turns):
            found = found.next()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, httpx.Response):
            return found
        if found is None:
            return refusal(404, "HTTP 404 Not Found")
        return httpx.Response(200, json=found)


def _body(request: httpx.Request) -> object:
    return json.loads(request.content) if request.content else None
