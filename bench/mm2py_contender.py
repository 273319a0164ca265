"""mm2py in the bench: a fresh process and a fresh source alias for every copy.

Flow: ``copy`` -> start on a file whose flow names no topic -> idle -> the topic is added over REST -> measured until
its last record -> SIGTERM. Java is measured in a process that has run for a while; a copy that begins while the worker
still starts its other connectors would count their start, 0.3 s of CPU, as the price of the records. The alias gives
each copy target names, positions and a group of its own, so a copy never continues an earlier one.
"""

import time
from pathlib import Path
from typing import Final, final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyCost, CopyFailedError, ProcessTree, measure_copy
from bench.mm2py_worker import change_flow, public_url, start_mm2py
from bench.topics import Topics
from bench.workloads import Workload

TARGET_ALIAS: Final = "B"
COPY_DEADLINE_S: Final = 180.0
NO_TOPIC: Final = "mm2py-bench-none"
_IDLE_SHARE: Final = 0.05  # of a core
_LOOK_S: Final = 0.5
_IDLE_LOOKS: Final = 3


@final
class Mm2pyContender:
    """Runs mm2py between the two regions, as often as asked."""

    def __init__(self, clusters: Clusters, folder: Path) -> None:
        self._clusters = clusters
        self._folder = folder
        self._at_target = Topics(clusters.target.bootstrap_servers)
        self._runs = 0

    def copy(
        self, topic: str, workload: Workload, records: int, *, profile_to: Path | None = None
    ) -> CopyCost:
        """Measure one copy of ``topic`` from its start."""
        self._runs += 1
        alias = f"P{self._runs}"
        file = self._folder / f"{alias}.properties"
        write_flow_file(
            file,
            source=(alias, self._clusters.source_endpoint(tls=workload.is_tls)),
            target=(TARGET_ALIAS, self._clusters.target_endpoint(tls=workload.is_tls)),
            topics=NO_TOPIC,
        )
        name = f"{alias}.{topic}"
        log = self._folder / f"{alias}.log"
        with start_mm2py(file, log, clusters=[TARGET_ALIAS], profile_to=profile_to) as process:
            counted = process.counting(lambda: self._at_target.count(name, workload.partitions))
            tree = ProcessTree(process.pid)
            url = public_url(process)
            _wait_until_idle(tree)
            topics = {"topics": topic.replace(".", r"\.")}
            cost = measure_copy(
                tree,
                counted,
                records,
                deadline_s=COPY_DEADLINE_S,
                begin=lambda: change_flow(url, alias, TARGET_ALIAS, topics),
            )
            code = process.stop()
            if code != 0:
                tail = process.log()[-2_000:]
                raise CopyFailedError(f"mm2py ended with {code} after the copy:\n{tail}")
        self._at_target.empty(name, workload.partitions)
        return cost


def _wait_until_idle(tree: ProcessTree) -> None:
    give_up_at = time.monotonic() + COPY_DEADLINE_S
    idle = 0
    while idle < _IDLE_LOOKS:
        cpu_s, at = tree.cpu_s(), time.monotonic()
        if at > give_up_at:
            raise CopyFailedError("mm2py is not idle while it has nothing to copy")
        time.sleep(_LOOK_S)
        share = (tree.cpu_s() - cpu_s) / (time.monotonic() - at)
        idle = idle + 1 if share < _IDLE_SHARE else 0
