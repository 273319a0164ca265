"""What is broken on purpose at night: files of flows, and what says so with the remedy; the page's tests and the others' share it."""

from typing import Final

from tests.integration.mirror_process import SINGLE_REPLICA, Flow, write_file
from tests.integration.secured import PLAIN, SecuredRegion
from tests.integration.setups import Setup
from tests.kit.kafka.ports import free_ports

WRONG: Final = "no-way"
SOON: Final = {
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
    "refresh.topics.interval.seconds": "1",
    "sync.topic.configs.enabled": "false",
}
AT_START: Final = {
    "login": ("refused the login of user alice by PLAIN", "sasl.jaas.config"),
    "certificate": ("has expired", "renew the brokers' certificate"),
    "plaintext": ("is a TLS listener", "security.protocol"),
    "address": ("Connection refused", "check that the broker runs and that the address is right"),
}
"""Cause and remedy of what keeps a worker from a cluster when it starts."""


def at_start(setup: Setup, secured: SecuredRegion) -> dict[str, Flow]:
    """Write one file with a flow for each mistake that a worker meets when it starts; each has a source alias of its own."""
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    sources = {
        "login": secured.properties("LOGIN", "PLAIN", PLAIN, username="alice", password=WRONG),
        "certificate": secured.properties("EXPIRED"),
        "plaintext": {"bootstrap.servers": secured.region.listener_servers("TLS")},
        "address": {"bootstrap.servers": nobody},
    }
    mark = setup.unique("n").replace("-", "")
    target = f"t{mark}"
    lines = {
        "clusters": ", ".join([*(f"{each}{mark}" for each in sources), target]),
        f"{target}.bootstrap.servers": setup.b.bootstrap_servers,
        "emit.heartbeats.enabled": "false",
        **dict.fromkeys(SINGLE_REPLICA, "1"),
    }
    for each, properties in sources.items():
        lines |= {f"{each}{mark}.{key}": value for key, value in properties.items()}
        lines[f"{each}{mark}->{target}.enabled"] = "true"
    file = setup.folder / "night.properties"
    write_file(file, lines)
    return {each: Flow(secured.region, setup.b, f"{each}{mark}", target, file) for each in sources}
