"""What can be said of the Docker files without a container engine."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mm2py.config.findings import Severity
from mm2py.config.lint import load_checked
from mm2py_connectors.config import CONNECTORS
from tests.docker.compose_file import ROOT, SERVICE_KEYS, TOP_KEYS, load, mapping, texts

SERVICES = mapping(load()["services"])
WORKERS = sorted(name for name in SERVICES if name.startswith("worker"))
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_every_key_of_the_compose_file_is_one_of_the_specification() -> None:
    unknown = {key for key in load() if key not in TOP_KEYS and not key.startswith("x-")}
    assert not unknown
    for name, service in SERVICES.items():
        assert not set(mapping(service)) - SERVICE_KEYS, name


def test_there_are_two_clusters_and_three_workers_on_one_file() -> None:
    assert WORKERS == ["worker-1", "worker-2", "worker-3"]
    assert sorted(set(SERVICES) - set(WORKERS)) == ["kafka-a", "kafka-b"]
    mounts = {tuple(texts(mapping(SERVICES[name])["volumes"])) for name in WORKERS}
    assert mounts == {("./docker/mm2.properties:/etc/mm2py/mm2.properties:ro",)}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_a_health_check_and_a_pinned_image(name: str) -> None:
    service = mapping(SERVICES[name])
    assert texts(mapping(service["healthcheck"])["test"])[0] == "CMD"
    _, _, tag = str(service["image"]).rpartition(":")
    assert tag
    assert tag != "latest"


@pytest.mark.parametrize("name", WORKERS)
def test_workers_need_no_rights_and_write_nowhere(name: str) -> None:
    service = mapping(SERVICES[name])
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert texts(service["cap_drop"]) == ["ALL"]
    assert "ports" not in service, "without authentication nothing is served beyond loopback"
    for needed in mapping(service["depends_on"]).values():
        assert mapping(needed)["condition"] == "service_healthy"


def test_only_loopback_is_published() -> None:
    for service in SERVICES.values():
        for port in texts(mapping(service).get("ports", [])):
            assert port.startswith("127.0.0.1:")


def test_brokers_advertise_what_the_workers_file_names() -> None:
    config = (ROOT / "docker/mm2.properties").read_text()
    for name in ("kafka-a", "kafka-b"):
        settings = mapping(mapping(SERVICES[name])["environment"])
        inside = re.search(r"INSIDE://([^,]+)", str(settings["KAFKA_ADVERTISED_LISTENERS"]))
        assert inside
        assert f"bootstrap.servers = {inside[1]}" in config


def test_the_workers_file_has_no_finding() -> None:
    _, findings = load_checked(ROOT / "docker/mm2.properties", CONNECTORS)
    assert [f for f in findings if f.severity is not Severity.INFO] == []


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_the_image_ends_as_nobody_in_particular_with_a_health_check() -> None:
    last = DOCKERFILE.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert 'ENTRYPOINT ["connect-mirror-maker-py"]' in last
    assert "gcc" not in last


def test_the_image_installs_what_is_pinned_for_the_tests_and_nothing_of_them() -> None:
    pins = pinned(ROOT / "docker/requirements.txt")
    tested = pinned(ROOT / "requirements/dev.txt")
    assert {name: tested.get(name) for name in pins} == pins
    assert not {"pytest", "confluent-kafka", "jgo", "aiokafka"} & pins.keys()
    declared = re.search(
        r"^dependencies = \[(.*?)^\]",
        (ROOT / "pyproject.toml").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert declared
    for name in re.findall(r'"([a-z0-9-]+)', declared[1]):
        assert name in pins


def pinned(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==([^\s;\\]+)", path.read_text(), re.MULTILINE))


# ---- the health check itself ----


@pytest.fixture
def health() -> Iterator[tuple[str, list[int]]]:
    """A server whose ``/health`` answers the status in the list."""
    status = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"status":"starting","message":"waits"}'
            self.send_response(status[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/health", status
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_check(url: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docker/healthcheck.py")],
        env={**os.environ, "MM2PY_HEALTH_URL": url},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr.strip()


def test_the_health_check_passes_only_a_healthy_worker(health: tuple[str, list[int]]) -> None:
    url, status = health
    assert run_check(url) == (0, "")
    status[0] = 503
    assert run_check(url) == (1, f'{url} answered 503: {{"status":"starting","message":"waits"}}')


def test_a_worker_that_asks_who_is_there_is_healthy(health: tuple[str, list[int]]) -> None:
    url, status = health
    status[0] = 401
    assert run_check(url) == (0, "")


def test_the_health_check_fails_where_nobody_listens() -> None:
    code, said = run_check("http://127.0.0.1:1/health")
    assert (code, "does not answer" in said) == (1, True)
