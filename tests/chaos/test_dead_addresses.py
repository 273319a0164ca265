"""A bootstrap name whose first address is dead, while its cluster restarts under load: every address is tried."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest

from tests.integration.far_regions import Rig
from tests.integration.mirror_process import COMMAND, running
from tests.integration.setups import Setup
from tests.integration.traffic import Load, assert_equal, wait_for_copy, wait_for_progress
from tests.kit.kafka.region import Region
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.black_hole import BlackHole

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

DEAD: Final = "127.0.0.1"
"""The address of the two that the system's resolver puts first: it is the nearer one to where we call from."""
LIVING: Final = "127.0.0.2"
NAME: Final = "brokers.test"
LISTENER: Final = "NAMED"
PARTITIONS: Final = 4
RATE: Final = 500
RESTARTS: Final = 3
ASK: Final = (
    f"import socket; print([each[4][0] for each in socket.getaddrinfo({NAME!r}, 9092, type=1)])"
)


@pytest.fixture
def inside(tmp_path: Path) -> tuple[str, ...]:
    """What a command begins with so that its host file, and no other process's, has the name."""
    if not sys.platform.startswith("linux") or os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a host file of its own for one process needs Linux, root and unshare")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{DEAD} {NAME}\n{LIVING} {NAME}\n", encoding="ascii")
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ("unshare", "--mount", "--", "sh", "-c", script, str(hosts))


@pytest.fixture(scope="module")
def target() -> Iterator[Region]:
    """A cluster that has a listener at the living address, and none at the dead one."""
    with Region("named", listeners=[Listener(LISTENER, "PLAINTEXT", host=LIVING)]) as region:
        yield region


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_cluster_is_found_at_the_second_address_of_its_name_whenever_it_comes_back(
    setup: Setup, rig: Rig, target: Region, inside: tuple[str, ...], how: str
) -> None:
    found = subprocess.run(
        [*inside, sys.executable, "-c", ASK], capture_output=True, text=True, check=True
    ).stdout
    if found.strip() != str([DEAD, LIVING]):
        pytest.skip(f"the resolver of this machine has another order: {found}")
    topic, source = setup.unique("named"), rig.source.region
    setup.create_topic(source, topic, PARTITIONS)
    port = int(target.listener_servers(LISTENER).rpartition(":")[2])
    properties = {"{target}.bootstrap.servers": f"{NAME}:{port}"}
    flow = setup.flow(topic, properties, source=source, target=target)
    # The hole keeps the address silent: packets to it are dropped, as at a host that is off.
    with (
        BlackHole(DEAD, port) if how == "silent" else nullcontext(),
        running(flow.file, program=(*inside, COMMAND)) as mirror,
    ):
        with Load(source, topic, PARTITIONS, rate=RATE) as load:
            for _ in range(RESTARTS):
                wait_for_progress(mirror, flow, topic, RATE)
                target.kill()
                load.wait_acked(RATE)
                target.start()
            wait_for_progress(mirror, flow, topic, RATE)
        assert_equal(*wait_for_copy(mirror, flow, topic))
