"""mm2py in the bench: a fresh process and a fresh source alias for every copy.

Flow: ``copy`` -> start on a file that names one topic -> measured until its last record -> SIGTERM. The alias
gives each copy target names, positions and a group of its own, so a copy never continues an earlier one.
"""

from pathlib import Path
from typing import Final, final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyCost, CopyFailedError, ProcessTree, measure_copy
from bench.mm2py_worker import start_mm2py
from bench.topics import Topics
from bench.workloads import Workload

__all__ = ["Mm2pyContender"]

TARGET_ALIAS: Final = "B"
COPY_DEADLINE_S: Final = 180.0


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
            topics=topic.replace(".", r"\."),
        )
        name = f"{alias}.{topic}"
        log = self._folder / f"{alias}.log"
        with start_mm2py(file, log, clusters=[TARGET_ALIAS], profile_to=profile_to) as process:
            counted = process.counting(lambda: self._at_target.count(name, workload.partitions))
            cost = measure_copy(
                ProcessTree(process.pid), counted, records, deadline_s=COPY_DEADLINE_S
            )
            code = process.stop()
            if code != 0:
                tail = process.log()[-2_000:]
                raise CopyFailedError(f"mm2py ended with {code} after the copy:\n{tail}")
        self._at_target.empty(name, workload.partitions)
        return cost
