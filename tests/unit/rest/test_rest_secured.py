"""The public application behind its gate: every endpoint, every role, what a body may not bring in."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mm2py.config.remote_allow_list import refusal_text, remote_problems
from mm2py.config.rest_settings import RestSettings
from mm2py.rest.app import DIALECT, public_app
from mm2py.rest.credentials import Credentials
from mm2py.rest.security import gate_for
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName
from tests.unit.rest.rest_fakes import SOURCE, FakeHerder, Reply, ask, flow, parts_of, state

FLOW = flow("A", "B")
FILE = {"source.cluster.bootstrap.servers": "a:9092", "topics": "${env:TOPICS}"}
READS = [(method, path) for method, path, _ in DIALECT if method == "GET"]
CHANGES = [(method, path) for method, path, _ in DIALECT if method != "GET"]
JSON = {"Content-Type": "application/json"}


def refusal(which: FlowName | None, name: str, config: ConnectorConfig) -> str | None:
    del name
    problems = remote_problems(
        config, dedicated=which is not None, file_texts=FILE, providers=("allowed",)
    )
    return refusal_text(problems)


@pytest.fixture
def settings(tmp_path: Path) -> RestSettings:
    (tmp_path / "users").write_text("ann=canary-ann\nbob=canary-bob\n")
    return RestSettings.of_worker(
        {
            "rest.basic.auth.file": str(tmp_path / "users"),
            "rest.read.only.users": "bob",
            "rest.max.body.bytes": "2000",
        }
    )


@pytest.fixture
def herder() -> FakeHerder:
    config: dict[str, str | None] = {
        "connector.class": SOURCE, "db.password": "canary-stored", "name": "c",
    }  # fmt: skip
    return FakeHerder(configs={"c": config}, states={"c": state("c")})


def request(
    settings: RestSettings, herder: FakeHerder, user: str, method: str, target: str, **sent: object
) -> Reply:
    """Send one request as ``user`` ("" for nobody)."""
    dedicated = target.startswith("/A/B")
    herders: Mapping[FlowName | None, Herder] = {FLOW if dedicated else None: herder}
    herder.of = FLOW if dedicated else None
    gate = gate_for(settings, Credentials.read(settings))
    parts = parts_of(herders, dedicated=dedicated, remote_refusal=refusal)
    token = base64.b64encode(f"{user}:canary-{user}".encode()).decode()
    headers = {"Authorization": f"Basic {token}"} if user else {}
    given: Mapping[str, str] = sent.pop("headers", {})  # type: ignore[assignment] # test table
    app = public_app(replace(parts, gate=gate))
    return ask(app, method, target, headers={**headers, **given}, **sent)  # type: ignore[arg-type] # test table


def filled(path: str) -> str:
    return path.replace("{connector}", "c").replace("{task:int}", "0").replace("{plugin}", SOURCE)


@pytest.mark.parametrize(("method", "path"), [*READS, *CHANGES])
def test_no_endpoint_answers_a_stranger(
    settings: RestSettings, herder: FakeHerder, method: str, path: str
) -> None:
    for target in (filled(path), "/A/B" + filled(path), filled(path) + "/"):
        reply = request(settings, herder, "", method, target, content=b"{}", headers=JSON)
        assert reply.status == 401
        assert reply.message == "User cannot access the resource."


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_no_endpoint_changes_anything_for_a_reader(
    settings: RestSettings, herder: FakeHerder, method: str, path: str
) -> None:
    reply = request(settings, herder, "bob", method, filled(path), content=b"{}", headers=JSON)
    assert reply.status == 403
    assert "bob may only read" in reply.message


@pytest.mark.parametrize(("method", "path"), READS)
def test_a_reader_sees_no_secret_anywhere(
    settings: RestSettings, herder: FakeHerder, method: str, path: str
) -> None:
    for query in ("", "?expand=info&expand=status"):
        reply = request(settings, herder, "bob", method, filled(path) + query)
        assert reply.status in (200, 404)
        assert b"canary" not in reply.content


def test_an_operator_of_an_ordinary_worker_reads_back_what_was_put(
    settings: RestSettings, herder: FakeHerder
) -> None:
    reply = request(settings, herder, "ann", "GET", "/connectors/c/config")
    assert reply.json["db.password"] == "canary-stored"
    hidden = request(settings, herder, "ann", "GET", "/A/B/connectors/c/config")
    assert hidden.json["db.password"] == "[hidden]"


@pytest.mark.parametrize(
    "more",
    [
        {"topics": "${env:AWS_SECRET_ACCESS_KEY}"},
        {"source.cluster.plugin.library.paths": "/opt/canary.so"},
        {"producer.override.sasl.oauthbearer.token.endpoint.url": "file:///canary"},
        {"config.providers": "env"},
        {"admin.override.sasl.jaas.config": "canary.Module required;"},
    ],
)
@pytest.mark.parametrize("prefix", ["", "/A/B"])
def test_a_config_of_a_request_is_judged_before_the_herder_sees_it(
    settings: RestSettings, herder: FakeHerder, prefix: str, more: dict[str, str]
) -> None:
    config = {"connector.class": SOURCE, "name": "c", **more}
    for method, path, body in (
        ("POST", "/connectors", {"name": "c", "config": config}),
        ("PUT", "/connectors/c/config", config),
        ("PATCH", "/connectors/c/config", more),
    ):
        reply = request(settings, herder, "ann", method, prefix + path, body=body)
        assert reply.status == 400
        assert reply.message.startswith(
            "Configuration may not be set over REST: " + next(iter(more))
        )
        assert b"canary" not in reply.content


def test_a_flow_is_led_to_no_other_cluster(settings: RestSettings, herder: FakeHerder) -> None:
    patch = {"source.cluster.bootstrap.servers": "evil:9092"}
    reply = request(settings, herder, "ann", "PATCH", "/A/B/connectors/c/config", body=patch)
    assert reply.status == 400
    assert "the mirror maker file, which alone says where clusters are" in reply.message


def test_a_long_body_is_a_413_with_connects_shape(
    settings: RestSettings, herder: FakeHerder
) -> None:
    config = {"connector.class": SOURCE, "topics": "t" * 2000}
    reply = request(settings, herder, "ann", "PUT", "/connectors/c/config", body=config)
    assert reply.status == 413
    assert "2000 bytes" in reply.message


def test_a_head_request_needs_credentials_too(settings: RestSettings, herder: FakeHerder) -> None:
    assert request(settings, herder, "", "HEAD", "/connectors").status == 401
    assert request(settings, herder, "bob", "HEAD", "/connectors").status == 200
