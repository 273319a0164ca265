"""Real brokers for the integration tests: two one-node regions per session, more on demand.

``MM2PY_TEST_BOOTSTRAP_A`` and ``_B`` replace the pair with clusters that someone else runs.
Topic names must be unique per test (fixture ``unique``), because the pair is shared.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import lru_cache
from typing import Final, Protocol, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_changes import topics_of
from tests.integration.mirror_process import until_equal
from tests.integration.secured import SecuredRegion
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region, started

Pair = tuple[KafkaAddress, KafkaAddress]
ANY_SESSION: Final = {"group.min.session.timeout.ms": "500"}
"""Brokers refuse less than 6 s by default; tests that wait for the end of a session have ``SHORT_SESSION``."""
COMPACTING: Final = {"log.cleaner.backoff.ms": "500"}
"""A topic that is compacted is so at once, not after 15 s; ten looks at all of them a second were half of what a busy broker did."""


class NewRegion(Protocol):
    """Starts a region that the test may break; it is removed after the test."""

    def __call__(
        self, name: str = ..., *, nodes: int = ..., properties: dict[str, str] | None = ...
    ) -> Region: ...


class CreateTopic(Protocol):
    """Creates a topic and waits until the broker has it."""

    def __call__(
        self,
        region: KafkaAddress,
        topic: str,
        partitions: int = ...,
        *,
        replicas: int = ...,
        config: dict[str, str] | None = ...,
    ) -> None: ...


@pytest.fixture(scope="session")
def regions() -> Iterator[Pair]:
    """Two clusters shared by the whole session, which compact at once; never stop or freeze them."""
    addresses = (os.environ.get("MM2PY_TEST_BOOTSTRAP_A"), os.environ.get("MM2PY_TEST_BOOTSTRAP_B"))
    if addresses[0] and addresses[1]:
        yield ForeignRegion("a", addresses[0]), ForeignRegion("b", addresses[1])
        return
    a, b = (Region(name, properties=ANY_SESSION | COMPACTING) for name in "ab")
    with started(a, b):
        yield a, b


@pytest.fixture(scope="session")
def region_a(regions: Pair) -> KafkaAddress:
    return regions[0]


@pytest.fixture(scope="session")
def region_b(regions: Pair) -> KafkaAddress:
    return regions[1]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Region]:
    """A cluster of a module whose rules count: clients that do not log in are no superusers."""
    with Region("guarded", properties={**ANY_SESSION, "super.users": "User:admin"}) as region:
        yield region


@pytest.fixture(scope="module")
def own_regions() -> Iterator[tuple[Region, Region]]:
    """Two clusters of a module, to stand still and go on; the first one creates no topic by itself."""
    source = Region("own-a", properties={**ANY_SESSION, "auto.create.topics.enable": "false"})
    target = Region("own-b", properties=ANY_SESSION)
    with started(source, target):
        yield source, target


@pytest.fixture(scope="session")
def region_three() -> Iterator[Region]:
    """A cluster of three nodes; a test that stops a node starts it again before it ends."""
    with Region("three", nodes=3) as region:
        yield region


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRegion]:
    """A cluster with a listener for every kind of security; a test that stops it starts it again."""
    with SecuredRegion("secured", tmp_path_factory.mktemp("secured")) as region:
        yield region


@pytest.fixture
def new_region() -> Iterator[NewRegion]:
    """Regions of this test alone, to stop, kill, freeze and restart."""
    started: list[Region] = []

    def start(
        name: str = "own", *, nodes: int = 1, properties: dict[str, str] | None = None
    ) -> Region:
        region = Region(name, nodes=nodes, properties={**ANY_SESSION, **(properties or {})})
        started.append(region)
        region.start()
        return region

    yield start
    for region in started:
        region.close()


@pytest.fixture(scope="session")
def unique() -> Callable[[str], str]:
    """Make a topic or group name that no other test uses; the same prefix gives a new name each time."""
    return lambda prefix: f"{prefix}-{secrets.token_hex(4)}"


@lru_cache(maxsize=4)
def _admin(servers: str) -> AdminClient:
    # A broker that was killed comes back; without one there is nothing to tell of it.
    return AdminClient(
        {"bootstrap.servers": servers, "reconnect.backoff.max.ms": 500, "log_level": 0}
    )


@pytest.fixture(scope="session")
def create_topic() -> CreateTopic:
    def create(
        region: KafkaAddress,
        topic: str,
        partitions: int = 1,
        *,
        replicas: int = 1,
        config: dict[str, str] | None = None,
    ) -> None:
        admin = _admin(region.bootstrap_servers)
        new = NewTopic(topic, partitions, replicas, config=config or {})
        # confluent-kafka's annotation leaves the future's result open.
        answers = admin.create_topics([new])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for answer in cast("dict[str, Future[None]]", answers).values():
            answer.result(60)
        # The answer is the controller's: a busy broker lists the topic seconds later.
        until_equal(lambda: topics_of(region).get(topic), partitions, f"partitions of {topic}")

    return create
