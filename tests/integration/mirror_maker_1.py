"""The legacy MirrorMaker 1 as its user runs it: two properties files and a command line.

Flow: ``write_files`` -> ``start`` -> ``wait_for_records`` -> ``order_by_key`` of both sides. Both sides may have different numbers of partitions,
so records are compared by key, each key in its order.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from tests.integration import traffic
from tests.integration.mirror_process import (
    MIRROR_MAKER_1_COMMAND,
    Mirror,
    Running,
    until,
    write_file,
)
from tests.integration.traffic import Record, ends, read
from tests.kit.kafka.region import KafkaAddress

COMMAND: Final = MIRROR_MAKER_1_COMMAND


@dataclass(frozen=True, slots=True)
class Files:
    """Both files and the group that they name."""

    source: KafkaAddress
    target: KafkaAddress
    group: str
    consumer: Path
    producer: Path


def write_files(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    group: str,
    *,
    consumer: Mapping[str, str] | None = None,
    producer: Mapping[str, str] | None = None,
) -> Files:
    """Write both files; a group whose member is killed has lost it after 6 s."""
    files = Files(
        source, target, group, folder / f"{group}-c.properties", folder / f"{group}-p.properties"
    )
    write_file(
        files.consumer,
        {
            "bootstrap.servers": source.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "metadata.max.age.ms": "1000",
            **(consumer or {}),
        },
    )
    write_file(files.producer, {"bootstrap.servers": target.bootstrap_servers, **(producer or {})})
    return files


def start(
    files: Files, *arguments: str, name: str = "mm1", environ: Mapping[str, str] | None = None
) -> Mirror:
    """Start the command on both files."""
    return Mirror(
        files.consumer,
        "--producer.config",
        str(files.producer),
        *arguments,
        name=name,
        program=(COMMAND, "--consumer.config"),
        environ=environ,
    )


def install_plugins(folder: Path, module: Path, entry_points: str) -> dict[str, str]:
    """Install a module as a package with entry points; return the environment that finds it."""
    info = folder / f"{module.stem}-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(module, folder)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return {"PYTHONPATH": str(folder)}


def wait_for_records(
    region: KafkaAddress, topic: str, count: int, alive: Running, timeout_s: float = 90.0
) -> None:
    """Wait until a topic holds so many records."""
    until(
        lambda: sum(ends(region, topic).values()) >= count,
        timeout_s,
        lambda: f"{count} records of {topic}: {ends(region, topic)}",
        alive=alive,
    )


def order_by_key(region: KafkaAddress, topic: str) -> dict[bytes | None, list[Record]]:
    """Return a topic's records by key, in the order of each partition."""
    found: defaultdict[bytes | None, list[Record]] = defaultdict(list)
    for _, log in sorted(read(region, topic).items()):
        for record in log.records:
            found[record.key].append(record)
    return dict(found)


def committed(files: Files, topic: str) -> dict[int, int]:
    """Return the committed offsets of the group on the source."""
    try:
        found = traffic.committed(files.source, files.group, topic)
    except KafkaException:
        return {}
    return {number: offset for number, offset in found.items() if offset >= 0}
