"""Image, compose file, and the main job on containers: only ``make test-docker`` runs it.

The image's steps need a registry, the rest a container engine; without one it is skipped with one line. The main job
is that of ``tests/integration/test_replication_content.py`` and ``test_faults_brokers.py``, which run it on jars.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.compose_file import ROOT
from tests.docker.containers import Clusters, in_containers, two_clusters
from tests.integration.main_job import (
    PARTITIONS,
    Start,
    every_kind_of_record_and_codec_is_copied,
    the_tasks_of_a_killed_worker_run_in_the_other,
)
from tests.integration.mirror_process import Flow, write_flow
from tests.kit.regions import CreateTopic

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        os.environ.get("MM2PY_TEST_DOCKER") != "1", reason="run by make test-docker only"
    ),
]


def run(*command: str, cwd: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environ}
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


def test_the_steps_of_the_image_give_a_worker_in_a_clean_environment(tmp_path: Path) -> None:
    """What the build stage does, with a folder of ours in place of /opt/mm2py and the tree for /src."""
    home, tree = tmp_path / "opt", tmp_path / "src"
    dockerfile = (ROOT / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE):
        *sources, target = line.split()
        if target.startswith("/"):
            continue
        for source in sources:
            to = tree / (Path(source).name if target == "./" else target)
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__", "*.so")
                )
            else:
                shutil.copy(ROOT / source, to)
    run(sys.executable, "-m", "venv", str(home))
    steps = re.findall(r"^RUN (/opt/mm2py/bin/python .*)$", dockerfile, re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        run(*step.replace("/opt/mm2py", str(home)).split(), cwd=tree)
    shutil.rmtree(tree)
    nowhere = tmp_path / "tmp"
    nowhere.mkdir()
    environ = {"HOME": str(nowhere), "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    assert "mm2py" in run(str(home / "bin/mm2py"), "version", cwd=nowhere, **environ)
    run(str(home / "bin/connect-mirror-maker-py"), "--help", cwd=nowhere, **environ)
    config = ROOT / "docker/mm2.properties"
    run(str(home / "bin/mm2py"), "lint", str(config), cwd=nowhere, **environ)
    installed = run(str(home / "bin/python"), "-m", "pip", "list", "--format", "json")
    names = {entry["name"] for entry in json.loads(installed)}
    assert {"mm2py", "uvicorn"} <= names
    assert not {"pytest", "confluent-kafka"} & names
    assert list(nowhere.iterdir()) == [], "it writes nothing"


@pytest.fixture
def compose() -> Iterator[tuple[str, ...]]:
    command = ("docker", "compose", "--project-name", "mm2py-test")
    try:
        yield command
    finally:
        run(*command, "down", "--volumes", "--remove-orphans")


def kafka(compose: tuple[str, ...], service: str, script: str, *words: str) -> str:
    tool = f"/opt/kafka/bin/{script}.sh"
    server = ("--bootstrap-server", "localhost:19092")
    return run(*compose, "exec", "-T", service, tool, *server, *words)


@pytest.mark.usefixtures("engine")
def test_the_compose_file_mirrors_on_without_a_killed_worker(compose: tuple[str, ...]) -> None:
    run(*compose, "up", "--build", "--detach", "--wait", "--wait-timeout", "600")
    assert "a->b" in run(*compose, "exec", "-T", "worker-1", "mm2py", "flow", "list")
    for topic in ("before", "after"):
        if topic == "after":
            run(*compose, "kill", "worker-1")
        kafka(compose, "kafka-a", "kafka-topics", "--create", "--topic", topic)
        end = time.monotonic() + 120
        while f"a.{topic}" not in kafka(compose, "kafka-b", "kafka-topics", "--list"):
            assert time.monotonic() < end, f"topic a.{topic} does not appear"


# -- the main job on containers


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with two_clusters() as clusters:
        yield clusters


@pytest.fixture(scope="module")
def start(clusters: Clusters) -> Iterator[Start]:
    with in_containers(clusters.network) as start:
        yield start


def flow_of(clusters: Clusters, folder: Path, topic: str, **properties: str) -> Flow:
    given = {name.replace("_", "."): text for name, text in properties.items()}
    flow = write_flow(folder, clusters.source, clusters.target, topic, clusters.inside | given)
    folder.chmod(0o755)  # the worker is another user
    return flow


@pytest.mark.usefixtures("engine")
def test_every_kind_of_record_and_codec_arrives_unchanged(
    clusters: Clusters, start: Start, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = f"kinds-{secrets.token_hex(4)}"
    create_topic(clusters.source, topic, PARTITIONS)
    flow = flow_of(clusters, tmp_path, topic)
    every_kind_of_record_and_codec_is_copied(flow, topic, start)


@pytest.mark.usefixtures("engine")
def test_the_tasks_of_a_killed_worker_run_in_the_other(
    clusters: Clusters, start: Start, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = f"shared-{secrets.token_hex(4)}"
    create_topic(clusters.source, topic, 4)
    flow = flow_of(clusters, tmp_path, topic, tasks_max="2", emit_checkpoints_enabled="false")
    the_tasks_of_a_killed_worker_run_in_the_other(flow, topic, start)
