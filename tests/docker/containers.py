"""Two Kafka containers and workers of our image in one network, by testcontainers.

Flow: ``two_clusters`` (addresses for the test, names inside the network) -> ``in_containers``,
which is a ``Start`` as ``tests.integration.main_job`` takes it.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, cast, final

from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from tests.docker.compose_file import ROOT, load, mapping
from tests.integration.main_job import Start
from tests.integration.mirror_process import Flow, Running
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.region import ForeignRegion

OUTSIDE: Final = 9092
START_S: Final = 120
STOP_S: Final = 35
CONFIG: Final = "/etc/mm2py/mm2.properties"


class _Container(Protocol):
    """What is used of docker-py, which has no types."""

    status: str

    def reload(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self, *, timeout: int) -> None: ...
    def wait(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Clusters:
    """Source and target as this machine reaches them, and the network of their containers."""

    source: ForeignRegion
    target: ForeignRegion
    network: Network

    @property
    def inside(self) -> dict[str, str]:
        """Properties of a flow whose workers are in the network."""
        return {
            "{source}.bootstrap.servers": "kafka-a:19092",
            "{target}.bootstrap.servers": "kafka-b:19092",
        }


@contextmanager
def _kafka(network: Network, name: str) -> Generator[ForeignRegion]:
    """Run the service ``name`` of docker-compose.yml, advertised at a free port of this machine."""
    service = mapping(mapping(load()["services"])[name])
    (port,) = free_ports(1)
    container = DockerContainer(str(service["image"])).with_network(network)
    container.with_network_aliases(name).with_bind_ports(OUTSIDE, port)
    for key, value in mapping(service["environment"]).items():
        container.with_env(key, str(value))
    container.with_env(
        "KAFKA_LISTENERS", f"INSIDE://:19092,OUTSIDE://:{OUTSIDE},CONTROLLER://localhost:29092"
    )
    container.with_env(
        "KAFKA_ADVERTISED_LISTENERS", f"INSIDE://{name}:19092,OUTSIDE://localhost:{port}"
    )
    started = LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(START_S)
    with container.waiting_for(started):
        yield ForeignRegion(name, f"localhost:{port}")


@contextmanager
def two_clusters() -> Generator[Clusters]:
    """Run both clusters of docker-compose.yml in a network of their own."""
    with (
        Network() as network,
        _kafka(network, "kafka-a") as source,
        _kafka(network, "kafka-b") as target,
    ):
        yield Clusters(source, target, network)


@final
class Worker(Running):
    """A container of our image on the file of a flow, as restricted as in docker-compose.yml."""

    def __init__(self, image: str, flow: Flow, name: str, network: Network) -> None:
        super().__init__(name)
        self._container = DockerContainer(image).with_network(network)
        self._container.with_volume_mapping(flow.file, CONFIG, "ro").with_tmpfs_mount("/tmp")  # noqa: S108 - inside
        self._container.with_kwargs(read_only=True, user="10001:10001", cap_drop=["ALL"])

    @property
    def _engine(self) -> _Container:
        return cast("_Container", self._container.get_wrapped_container())

    def log(self) -> str:
        out, err = self._container.get_logs()
        return (out + err).decode(errors="replace")

    def check_running(self) -> None:
        self._engine.reload()
        assert self._engine.status == "running", f"{self.name} is {self._engine.status}"
        self.check_defects()

    def stop(self) -> int:
        self._engine.stop(timeout=STOP_S)
        return self._engine.wait()["StatusCode"]

    def kill(self) -> None:
        self._engine.kill()

    @contextmanager
    def running(self) -> Generator[Running]:
        """Run it for as long as the block; an error carries the end of its log."""
        with self._container:
            try:
                yield self
            except BaseException as error:
                error.add_note(self.tail())
                raise


@contextmanager
def in_containers(network: Network) -> Generator[Start]:
    """Build the image and start workers of it in the network."""
    with DockerImage(path=ROOT, tag=f"mm2py:test-{int(time.monotonic())}") as image:
        yield lambda flow, name: Worker(str(image), flow, name, network).running()
