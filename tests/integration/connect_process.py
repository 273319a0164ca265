"""Ordinary Connect workers as their users run them: a worker file, a process, its REST.

Flow: ``write_worker`` -> ``Mirror(file, program=DISTRIBUTED)`` -> ``rest_of`` -> ``Rest.call`` -> status and JSON.
"""

import secrets
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final

from tests.integration.mirror_process import (
    CONNECT_COMMAND,
    Flow,
    Mirror,
    until,
    until_equal,
    write_file,
)
from tests.integration.rest_asking import ask, public_url
from tests.kit.kafka.region import KafkaAddress

DISTRIBUTED: Final = (CONNECT_COMMAND,)
STANDALONE: Final = (sys.executable, "-m", "mm2py_workers.connect_standalone")

PLUGINS: Final = Path(__file__).parents[1] / "plugins"
EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "sink_package"

_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
# Java answers so while its group rebalances, or has no session key yet; clients ask again.
_LATER: Final = ("rebalance", "session key")


@final
@dataclass(frozen=True, slots=True)
class Rest:
    """The public listener of a worker."""

    url: str

    def call(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Ask once; returns the status and the decoded body."""
        return ask(f"{self.url}{path}", method, body)

    def ok(self, method: str, path: str, body: object = None) -> object:
        """Ask until the group is calm; fails for an error."""

        def asked() -> tuple[int, object] | None:
            status, answer = self.call(method, path, body)
            later = status in (409, 500, 503) and any(it in str(answer) for it in _LATER)
            return None if later else (status, answer)

        status, answer = until(asked, 90, f"{method} {path} is answered")
        assert status < 300, (method, path, status, answer)
        return answer

    def states(self, name: str) -> list[str]:
        """Return the state of a connector, then those of its tasks."""
        status, answer = self.call("GET", f"connectors/{name}/status")
        if status != 200:
            return []
        found = cast("dict[str, dict[str, str] | list[dict[str, str]]]", answer)
        connector = cast("dict[str, str]", found["connector"])
        tasks = cast("list[dict[str, str]]", found["tasks"])
        return [connector["state"], *(task["state"] for task in tasks)]

    def wait_states(self, name: str, *states: str) -> None:
        """Wait until connector and tasks have these states."""
        until_equal(lambda: self.states(name), list(states))

    def offsets(self, name: str) -> dict[tuple[str, int], int]:
        """Return the positions of a mirror connector by source partition."""
        answer = self.ok("GET", f"connectors/{name}/offsets")
        found = cast("dict[str, list[dict[str, dict[str, str | int]]]]", answer)["offsets"]
        return {
            (str(it["partition"]["topic"]), int(it["partition"]["partition"])): int(
                it["offset"]["offset"]
            )
            for it in found
        }


def install_plugin(folder: Path) -> dict[str, str]:
    """Install the plug-ins into a folder; returns the environment that finds them."""
    site = folder / "site"
    info = site / "counting_source-1.2.3.dist-info"
    info.mkdir(parents=True)
    for plugin in (*PLUGINS.glob("*.py"), *EXAMPLE.glob("*.py")):
        shutil.copy(plugin, site)
    points = _entry_points()
    points["mm2py.connectors"]["CountingSourceConnector"] = (
        "counting_source:CountingSourceConnector"
    )
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in points.items()
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-source\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text("".join(lines))
    return {"PYTHONPATH": str(site)}


def _entry_points() -> dict[str, dict[str, str]]:
    """Return those of the example package: what its installation makes known."""
    document = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    project = cast("dict[str, dict[str, dict[str, str]]]", document["project"])
    return {group: dict(found) for group, found in project["entry-points"].items()}


def write_standalone(folder: Path, cluster: KafkaAddress) -> Path:
    """Write the file of a standalone worker."""
    file = folder / "standalone.properties"
    lines = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "key.converter": _BYTES,
        "value.converter": _BYTES,
        "listeners": "http://127.0.0.1:0",
        "offset.storage.file.filename": str(folder / "connect.offsets"),
        "offset.flush.interval.ms": "200",
    }
    write_file(file, lines)
    return file


def write_worker(
    folder: Path, cluster: KafkaAddress, properties: Mapping[str, str] | None = None
) -> Path:
    """Write the file of a distributed worker whose group and topics are new."""
    mark = secrets.token_hex(3)
    file = folder / f"worker-{mark}.properties"
    lines = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": f"connect-{mark}",
        "key.converter": _BYTES,
        "value.converter": _BYTES,
        "listeners": "http://127.0.0.1:0",
    }
    for what in ("config", "offset", "status"):
        lines[f"{what}.storage.topic"] = f"connect-{mark}-{what}"
        lines[f"{what}.storage.replication.factor"] = "1"
    write_file(file, lines | dict(properties or {}))
    return file


def rest_of(worker: Mirror, flow: Flow | None = None) -> Rest:
    """Wait until REST is served: a worker's, or where one of MirrorMaker has Connect's of a flow."""
    return Rest(public_url(worker) + (f"{flow.source_alias}/{flow.target_alias}/" if flow else ""))


def mirror_config(
    source: KafkaAddress, target: KafkaAddress, alias: str, topics: str
) -> dict[str, str]:
    """Return a mirror connector as users of Java's Connect post it."""
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "source.cluster.alias": alias,
        "target.cluster.alias": "target",
        "source.cluster.bootstrap.servers": source.bootstrap_servers,
        "target.cluster.bootstrap.servers": target.bootstrap_servers,
        "topics": topics,
        "tasks.max": "2",
        "heartbeats.replication.enabled": "false",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "key.converter": _BYTES,
        "value.converter": _BYTES,
    }
