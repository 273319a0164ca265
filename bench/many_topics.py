"""1,000 topics of a few records each: a mirror's start -> every topic created and copied -> cost and memory.

Both tools start fresh on the same topics, with their defaults. A topic counts once its first record is there.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import ProcessTree
from bench.steady import TARGET_ALIAS, Tool, wait_until
from bench.topics import Topics

__all__ = ["PARTITIONS", "ManyTopics", "create_many", "measure_many"]

PARTITIONS: Final = 3
_RECORDS: Final = 3
_CHUNK: Final = 100
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ManyTopics:
    """What it took."""

    topics: int
    wall_s: float
    cpu_s: float
    pss_bytes: int


def create_many(clusters: Clusters, count: int) -> list[str]:
    """Create the topics on the source, with a few records each."""
    at_source = Topics(clusters.source.bootstrap_servers)
    names = [f"many.topic-{number:04d}" for number in range(count)]
    for begin in range(0, count, _CHUNK):
        at_source.create_all(names[begin : begin + _CHUNK], PARTITIONS)
    at_source.append(*names, records=_RECORDS)
    return names


def measure_many(tool: Tool, clusters: Clusters, folder: Path, topics: list[str]) -> ManyTopics:
    """Start the tool and measure until all of ``topics`` are on the target."""
    alias = f"{tool.name}-many"
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=(TARGET_ALIAS, clusters.target_endpoint()),
        topics=r"many\..*",
    )
    copies = [f"{alias}.{topic}" for topic in topics]
    at_target = Topics(clusters.target.bootstrap_servers)
    begun = time.monotonic()
    with tool.start(file, file.with_suffix(".log")) as process:
        tree = ProcessTree(process.pid)
        counted = process.counting(lambda: at_target.filled(copies))
        wait_until(
            lambda: counted() == len(copies), f"{len(copies)} topics of {tool.name}", poll_s=_POLL_S
        )
        wall_s, cpu_s = time.monotonic() - begun, tree.cpu_s()
        return ManyTopics(len(topics), wall_s, cpu_s, tree.memory()[1])
