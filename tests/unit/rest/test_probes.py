"""``/livez`` and ``/readyz``: answered at once, without credentials, whatever clusters and herders do."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from mm2py.config.rest_settings import RestSettings
from mm2py.errors import FatalError, Mm2pyError
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.credentials import Credentials
from mm2py.rest.security import gate_for
from mm2py.runtime.herder.api import Health
from tests.unit.rest.rest_fakes import FakeHerder, ask, flow, parts_of

AB, BA = flow("A", "B"), flow("B", "A")


class FailedHerder(FakeHerder):
    @property
    def failure(self) -> Mm2pyError | None:
        return FatalError("canary-value")


def waiting() -> FakeHerder:
    herder = FakeHerder(BA, said_health=Health("unhealthy", "canary-value"))
    herder.waits = "waits for target cluster A: canary-value"
    return herder


@pytest.mark.parametrize(
    ("herders", "ready"),
    [
        ([FakeHerder(AB)], 200),
        ([FakeHerder(AB), waiting()], 503),
        ([FakeHerder(AB), FailedHerder(BA)], 503),
        ([], 503),
    ],
    ids=["all run", "one waits for a cluster", "one has failed", "none is there yet"],
)
def test_a_worker_lives_whatever_its_flows_do_and_is_ready_once_all_take_part(
    herders: list[FakeHerder], ready: int
) -> None:
    app = public_app(parts_of({it.flow: it for it in herders}, dedicated=True))
    assert ask(app, "GET", "/livez").json == {"status": "alive"}
    reply = ask(app, "GET", "/readyz")
    assert reply.status == ready
    assert b"canary" not in reply.content


def test_probes_need_no_password_and_everything_else_does(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann=canary-ann\n")
    settings = RestSettings.of_worker({"rest.basic.auth.file": str(tmp_path / "users")})
    app = public_app(replace(parts_of(), gate=gate_for(settings, Credentials.read(settings))))
    for path in ("/livez", "/readyz"):
        assert ask(app, "GET", path).status == 200
        assert ask(app, "POST", path).status == 401
    for path in ("/", "/health", "/metrics", "/livez/", "//livez", "/livez/B/connectors"):
        assert ask(app, "GET", path).status == 401, path
    token = base64.b64encode(b"ann:canary-ann").decode()
    headers = {"Authorization": f"Basic {token}"}
    assert ask(app, "GET", "/livez/B/connectors", headers=headers).status == 404


def test_an_ordinary_worker_has_them_too_and_the_internal_listener_not() -> None:
    assert ask(public_app(parts_of()), "GET", "/readyz").json == {"status": "ready"}
    assert ask(internal_app(parts_of()), "GET", "/livez").status == 403
