"""A Kafka cluster of one or three real brokers on this machine, for the demo, tests and benches.

Flow: ``Region.start`` -> format the data folders -> start the nodes -> wait until each serves requests.
Stop, kill, freeze and restart work on the whole region or on one node; data and ports stay until ``close``.
Synchronous; not for use by several threads at once.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, final

from mm2py.errors import ConfigError
from mm2py_jobs.spark.java import Java, find_java
from tests.kit.kafka.broker import Broker, StartFailedError
from tests.kit.kafka.formatted import random_id
from tests.kit.kafka.jars import fetch_jars
from tests.kit.kafka.java import LIGHT_JVM
from tests.kit.kafka.java_process import JavaProcess
from tests.kit.kafka.ports import HOST, free_ports
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.server_properties import Listener, NodePorts, server_properties

MIN_FREE_BYTES: Final = 2 << 30
READY_TIMEOUT_S: Final = 120.0
_TRIES: Final = 4
_KAFKA_JAR: Final = re.compile(r"kafka_2\.\d+-(\d+)\.(\d+)\.")
_FIRST_KRAFT: Final = (3, 3)
"""The first release whose controllers are for production; brokers before it get a ZooKeeper."""


class KafkaAddress(Protocol):
    """A cluster as its clients see it."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def bootstrap_servers(self) -> str:
        """Addresses in Kafka's form ``host:port,host:port``."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignRegion:
    """A cluster that someone else runs."""

    name: str
    bootstrap_servers: str


@final
class Region:
    """One embedded cluster; as a context manager it is started and, at the end, removed.

    ``properties`` go into every node's server.properties and win over ours. ``listeners`` are opened
    beside the plain one, which nodes use among themselves. ``format_options`` go to kafka-storage
    (``--add-scram``). ``folder`` is where the data goes, default the system's temporary folder.
    """

    def __init__(
        self,
        name: str = "region",
        *,
        nodes: int = 1,
        properties: Mapping[str, str] | None = None,
        heap_mb: int | None = None,
        folder: Path | None = None,
        min_free_bytes: int = MIN_FREE_BYTES,
        listeners: Sequence[Listener] = (),
        format_options: Sequence[str] = (),
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"region {name}: {nodes} nodes asked for", remedy="use 1 or 3")
        self.name = name
        self._properties = dict(properties or {})
        self._listeners, self._format_options = tuple(listeners), tuple(format_options)
        self._heap_mb = heap_mb or (256 if nodes == 1 else 192)
        self._parent = folder or Path(tempfile.gettempdir())
        self._min_free_bytes = min_free_bytes
        self._count = nodes
        self.jars: Sequence[Path] = ()
        """Those of another release than the pinned one, set before the start; before 3.3 a ZooKeeper runs, too."""
        self._zookeeper: JavaProcess | None = None
        self._zookeeper_address = ""
        self._home: Path | None = None
        self._ports: list[NodePorts] = []
        self._brokers: list[Broker] = []
        self._cluster_id = ""

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all nodes; known once the region was launched."""
        return ",".join(f"{HOST}:{ports.broker}" for ports in self._ports)

    def listener_servers(self, name: str) -> str:
        """Return the addresses of one of the added listeners."""
        index = [listener.name for listener in self._listeners].index(name)
        host = self._listeners[index].host
        return ",".join(f"{host}:{ports.more[index]}" for ports in self._ports)

    @property
    def nodes(self) -> list[Broker]:
        """The nodes; node id 1 is the first."""
        return list(self._brokers)

    def node(self, node_id: int) -> Broker:
        """Return the node with that id (1, 2, 3)."""
        return self._brokers[node_id - 1]

    def start(self) -> None:
        """Start every node that does not run and wait until all serve requests."""
        start_regions(self)

    def launch(self) -> None:
        """Start the nodes that do not run, without waiting; ``format_data`` must have been finished."""
        for broker in self._brokers:
            broker.launch()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node answers requests and lists all nodes."""
        deadline = time.monotonic() + timeout_s
        for broker in self._brokers:
            broker.wait_ready(brokers=self._count, timeout_s=max(deadline - time.monotonic(), 0.0))

    def stop(self) -> None:
        """End every node in order, keeping data and ports."""
        for broker in self._brokers:
            broker.terminate()
        for broker in self._brokers:
            broker.stop()

    def kill(self) -> None:
        """End every node at once, as a power cut would."""
        for broker in self._brokers:
            broker.kill()

    def restart(self) -> None:
        """Stop in order and start on the same data and ports."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Hold every node: connections stay open and nothing answers, as when a network goes dark."""
        for broker in self._brokers:
            broker.freeze()

    def thaw(self) -> None:
        """Let frozen nodes go on."""
        for broker in self._brokers:
            broker.thaw()

    def close(self) -> None:
        """End the nodes and remove their data; safe twice, and before ``start``."""
        self.thaw()
        for broker in self._brokers:
            broker.close()
        if self._zookeeper is not None:
            self._zookeeper.kill()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            REAPER.forget_folder(self._home)
        self._home, self._zookeeper, self._brokers, self._ports = None, None, [], []

    def prepare(self) -> None:
        """Choose ports, write the nodes' properties and begin to format, once per region."""
        if self._brokers:
            return
        free_bytes = shutil.disk_usage(self._parent).free
        if free_bytes < self._min_free_bytes:
            raise ConfigError(
                f"region {self.name}: only {free_bytes >> 20} MiB are free in {self._parent}",
                remedy="free 2 GiB there, or set TMPDIR to a larger disk",
            )
        jars, java = self.jars or fetch_jars("broker"), find_java()
        self._home = Path(tempfile.mkdtemp(prefix=f"mm2py-{self.name}-", dir=self._parent))
        REAPER.watch_folder(self._home)
        self._brokers = [
            Broker(
                f"{self.name}-{node_id}",
                folder=self._home / f"node-{node_id}",
                java=java,
                jars=jars,
                heap_mb=self._heap_mb,
            )
            for node_id in range(1, self._count + 1)
        ]
        if _needs_zookeeper(jars):
            self._launch_zookeeper(self._home / "zookeeper", jars, java)
        self._choose_ports()
        if self._zookeeper is not None:
            return  # it gives the cluster its id, and nothing is formatted
        # 16 random bytes as Kafka's Uuid; one that begins with "-" reads as an option.
        self._cluster_id = random_id()
        for broker in self._brokers:
            broker.begin_format(self._cluster_id, self._format_options)

    def finish_format(self) -> None:
        """Wait until the data folders are formatted; nothing to do on a later start."""
        for broker in self._brokers:
            broker.finish_format()

    def wipe(self, *, keeps_id: bool = False) -> None:
        """Make the stopped nodes a new, empty cluster at the same addresses; an image with a fixed id keeps it."""
        cluster_id = self._cluster_id if keeps_id else random_id()
        for broker in self._brokers:
            shutil.rmtree(broker.data_dir)
            broker.begin_format(cluster_id, self._format_options)
        self.finish_format()

    def clone(self, other: "Region") -> None:
        """Become what a copied disk makes of another cluster, with its id; neither runs."""
        self._cluster_id = other._cluster_id
        for broker, original in zip(self._brokers, other.nodes, strict=True):
            broker.clone(original)

    def take_new_id(self) -> None:
        """Give the stopped cluster another id, which keeps its data."""
        self._cluster_id = random_id()
        for broker in self._brokers:
            broker.take_id(self._cluster_id)

    def retry_on_other_ports(self) -> None:
        """Start again on other ports: someone took one between our look and the broker's bind."""
        for broker in self._brokers:
            broker.kill()
        self._choose_ports()
        self.launch()

    def _choose_ports(self) -> None:
        each = 2 + len(self._listeners)
        ports = free_ports(each * self._count)
        self._ports = [
            NodePorts(index + 1, own[0], own[1], tuple(own[2:]))
            for index in range(self._count)
            for own in (ports[each * index : each * (index + 1)],)
        ]
        for broker, own in zip(self._brokers, self._ports, strict=True):
            text = server_properties(
                own,
                self._ports,
                broker.data_dir,
                self._properties,
                self._listeners,
                self._zookeeper_address,
            )
            broker.configure(text, own.broker)

    def _launch_zookeeper(self, folder: Path, jars: Sequence[Path], java: Java) -> None:
        (port,) = free_ports(1)
        folder.mkdir()
        config = folder / "zoo.cfg"
        config.write_text(
            f"dataDir={folder}\nclientPort={port}\nclientPortAddress={HOST}\ntickTime=500\n"
            "admin.enableServer=false\n"
        )
        classpath = os.pathsep.join(map(str, jars))
        main = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        self._zookeeper = JavaProcess(
            [str(java.executable), "-Xmx64m", *LIGHT_JVM, "-cp", classpath, *main],
            folder / "zookeeper.log",
        )
        self._zookeeper_address = f"{HOST}:{port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def start_regions(*regions: Region, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Start regions side by side and wait until all of them are ready.

    Raises:
        FatalError: A node ended or was not ready in time; a note has the end of its output.
        ConfigError: No Java, no jars or no disk space.
    """
    for region in regions:
        region.prepare()
    for region in regions:
        region.finish_format()
    for region in regions:
        region.launch()
    for region in regions:
        _wait_ready(region, timeout_s)


@contextmanager
def started(*regions: Region) -> Generator[None]:
    """Start regions side by side, and close them at the end."""
    try:
        start_regions(*regions)
        yield
    finally:
        for region in regions:
            region.close()


def _wait_ready(region: Region, timeout_s: float) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            region.wait_ready(timeout_s)
        except StartFailedError as error:
            if error.still_registered and attempt < _TRIES:
                region.launch()
                continue
            # Clients know the ports of a region that has served before, so those stay.
            if not error.address_in_use or attempt == _TRIES or _has_served(region):
                raise
            region.retry_on_other_ports()
        else:
            return


def _needs_zookeeper(jars: Sequence[Path]) -> bool:
    found = [it for jar in jars if (it := _KAFKA_JAR.match(jar.name))]
    return bool(found) and (int(found[0][1]), int(found[0][2])) < _FIRST_KRAFT


def _has_served(region: Region) -> bool:
    return any(broker.has_served for broker in region.nodes)
