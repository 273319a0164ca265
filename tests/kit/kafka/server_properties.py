"""The properties of an embedded broker: node ids and ports -> the text of a server.properties file.

Tuned for a quick start and a small memory, see the reasons beside the lines. Writes no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.kafka.ports import HOST


@dataclass(frozen=True, slots=True)
class Listener:
    """One more listener of every node; ``properties`` are Kafka's without their ``listener.name.`` prefix."""

    name: str
    protocol: str  # SSL, SASL_PLAINTEXT, SASL_SSL or PLAINTEXT
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    advertise: Callable[[int], int] = int
    """From the port it listens on to the one that clients are told, which is a proxy's in front of it."""
    host: str = HOST


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Where one node listens; ``more`` are the ports of the listeners that a test adds, in their order."""

    node_id: int
    broker: int
    controller: int
    more: tuple[int, ...] = ()


def server_properties(
    node: NodePorts,
    nodes: Sequence[NodePorts],
    data_dir: Path,
    extra: Mapping[str, str],
    listeners: Sequence[Listener] = (),
    zookeeper: str = "",
) -> str:
    """Return the file's text; ``extra`` wins over our values. ``zookeeper`` takes the place of controllers."""
    replicas = str(min(len(nodes), 3))
    more = [
        f",{each.name}://{each.host}:{port}"
        for each, port in zip(listeners, node.more, strict=True)
    ]
    told = [
        f",{each.name}://{each.host}:{each.advertise(port)}"
        for each, port in zip(listeners, node.more, strict=True)
    ]
    protocols = [f",{each.name}:{each.protocol}" for each in listeners]
    own = f"PLAINTEXT://{HOST}:{node.broker}"
    if zookeeper:
        role = {
            "broker.id": str(node.node_id),
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": "4000",
            "listeners": own + "".join(more),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        }
    else:
        role = {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(
                f"{each.node_id}@{HOST}:{each.controller}" for each in nodes
            ),
            "listeners": f"{own},CONTROLLER://{HOST}:{node.controller}" + "".join(more),
            "controller.listener.names": "CONTROLLER",
            # Records that say nothing, two per second: a quarter of what an idle broker does.
            "metadata.max.idle.interval.ms": "0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        }
    properties = {
        **role,
        "advertised.listeners": own + "".join(told),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        + "".join(protocols),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data_dir),
        # Kafka's seven days would delete records with old timestamps as soon as they are mirrored.
        "log.retention.ms": "-1",
        # A test that is about retention deletes records itself, at a moment that it knows.
        "log.retention.check.interval.ms": "86400000",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",  # 50 sparse indexes look like 1 GB
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "num.network.threads": "1",
        "num.io.threads": "2",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "2097152",  # the default of 128 MB does not fit the heap
        "log.cleaner.io.buffer.size": "65536",
        # A killed broker's registration must expire before it is let in again.
        "broker.session.timeout.ms": "2000",
        # Each heartbeat costs a broker that does nothing else more than the rest of what it does.
        "broker.heartbeat.interval.ms": "600",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        **{
            f"listener.name.{each.name.lower()}.{key}": value
            for each in listeners
            for key, value in each.properties.items()
        },
        **extra,
    }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(value: str) -> str:
    """Write a value so that ``java.util.Properties`` reads it back: ISO-8859-1 and backslashes."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n")
    if text.startswith(" "):
        text = "\\" + text
    return "".join(c if " " <= c <= "~" else f"\\u{ord(c):04x}" for c in text)
