"""What most tests of a flow begin with: a topic with a new name, a file of a flow between the two regions of the session.

Flow: ``setup.topic`` -> ``setup.flow`` -> ``running(flow.file)``.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import cast, final

import pytest

from tests.integration.mirror_process import Flow, write_flow
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic, Pair


@final
class Setup:
    """Regions, topics and files of one test; the regions of the session start with the first test that asks for one."""

    def __init__(
        self,
        request: pytest.FixtureRequest,
        unique: Callable[[str], str],
        create_topic: CreateTopic,
        folder: Path,
    ) -> None:
        self._request = request
        self.unique, self.create_topic, self.folder = unique, create_topic, folder

    @cached_property
    def regions(self) -> Pair:
        """The two regions of the session."""
        return cast("Pair", self._request.getfixturevalue("regions"))

    @property
    def a(self) -> KafkaAddress:
        """The source, where a test does not say otherwise."""
        return self.regions[0]

    @property
    def b(self) -> KafkaAddress:
        """The target, where a test does not say otherwise."""
        return self.regions[1]

    def topic(
        self,
        prefix: str,
        partitions: int = 1,
        *,
        on: KafkaAddress | None = None,
        replicas: int = 1,
        config: dict[str, str] | None = None,
    ) -> str:
        """Create a topic with a new name, on the source."""
        name = self.unique(prefix)
        self.create_topic(on or self.a, name, partitions, replicas=replicas, config=config)
        return name

    def topic_on_both(
        self, prefix: str, partitions: int = 1, *, config: dict[str, str] | None = None
    ) -> str:
        """Create a topic with a new name on both regions."""
        name = self.topic(prefix, partitions, config=config)
        self.create_topic(self.b, name, partitions, config=config)
        return name

    def flow(
        self,
        topics: str,
        properties: Mapping[str, str] | None = None,
        *,
        source: KafkaAddress | None = None,
        target: KafkaAddress | None = None,
    ) -> Flow:
        """Write the file of a flow between the two regions."""
        return write_flow(self.folder, source or self.a, target or self.b, topics, properties)


@pytest.fixture
def setup(
    request: pytest.FixtureRequest,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> Setup:
    return Setup(request, unique, create_topic, tmp_path)
