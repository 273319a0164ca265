"""The main job and the failover of a worker as on jars, on containers: only ``make test-docker`` runs it.

It needs a container engine and the images of docker-compose.yml; without an engine it is skipped with one line.
The machine that this was written on has no engine: what is proven there is that it loads, that it is skipped, and
that both tests pass on processes and jars (``tests/integration/test_replication_content.py`` and
``test_faults_process.py`` run the same functions).
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    pytest.mark.usefixtures("engine"),
]


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


def test_every_kind_of_record_and_codec_arrives_unchanged(
    clusters: Clusters, start: Start, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = f"kinds-{secrets.token_hex(4)}"
    create_topic(clusters.source, topic, PARTITIONS)
    flow = flow_of(clusters, tmp_path, topic)
    every_kind_of_record_and_codec_is_copied(flow, topic, start)


def test_the_tasks_of_a_killed_worker_run_in_the_other(
    clusters: Clusters, start: Start, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = f"shared-{secrets.token_hex(4)}"
    create_topic(clusters.source, topic, 4)
    flow = flow_of(clusters, tmp_path, topic, tasks_max="2", emit_checkpoints_enabled="false")
    the_tasks_of_a_killed_worker_run_in_the_other(flow, topic, start)
