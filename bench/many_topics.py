"""1,000 topics of a few records each: start -> every topic created and copied -> cost and memory -> restart.

Both tools start fresh on the same topics, with their defaults. A topic counts once its first record is there;
at the restart, once a record is there that was written while nobody ran.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import ProcessTree
from bench.mirror_process import MirrorProcess
from bench.steady import TARGET_ALIAS, Tool, wait_until
from bench.topics import Topics

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
    restart_first_s: float
    restart_all_s: float


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
        _wait(tool, process, at_target, copies, len(copies), records=1)
        wall_s, cpu_s = time.monotonic() - begun, tree.cpu_s()
        _, pss_bytes = tree.memory()
    last = at_target.end_offsets(copies[0], PARTITIONS)[0]
    Topics(clusters.source.bootstrap_servers).append(*topics)
    begun = time.monotonic()
    with tool.start(file, file.with_suffix(".restart.log")) as process:
        _wait(tool, process, at_target, copies, 1, records=last + 1)
        first_s = time.monotonic() - begun
        _wait(tool, process, at_target, copies, len(copies), records=last + 1)
        all_s = time.monotonic() - begun
    return ManyTopics(len(topics), wall_s, cpu_s, pss_bytes, first_s, all_s)


def _wait(
    tool: Tool,
    process: MirrorProcess,
    at_target: Topics,
    copies: list[str],
    count: int,
    *,
    records: int,
) -> None:
    counted = process.counting(lambda: at_target.filled(copies, records=records))
    wait_until(lambda: counted() >= count, f"{count} topics of {tool.name}", poll_s=_POLL_S)
