"""The copies of a bench: per workload Java is warmed up, the topic filled, then copied by Java and by mm2py.

Flow: ``measure_copies`` -> a Java mirror for the plain workloads, another for those over TLS -> ``Outcome`` each.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bench.clusters import Clusters
from bench.java_contender import JavaContender
from bench.measure import CopyCost, CopyFailedError
from bench.mm2py_contender import Mm2pyContender
from bench.outcomes import Outcome
from bench.topics import Topics
from bench.workloads import Workload, batch_shape, fill


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How to measure."""

    is_quick: bool
    repeats: int
    has_java: bool
    has_mm2py: bool
    profiles: Path | None
    say: Callable[[str], None]


def measure_copies(
    clusters: Clusters, folder: Path, workloads: Sequence[Workload], plan: CopyPlan
) -> list[Outcome]:
    """Measure each workload; those over TLS come last."""
    outcomes: list[Outcome] = []
    ours = Mm2pyContender(clusters, folder) if plan.has_mm2py else None
    for tls in (False, True):
        chosen = [workload for workload in workloads if workload.is_tls == tls]
        if not chosen:
            continue
        with ExitStack() as stack:
            java = None
            if plan.has_java:
                contender = JavaContender(clusters, folder, quick=plan.is_quick, tls=tls)
                java = stack.enter_context(contender)
            run = _CopyRun(clusters, java, ours, plan)
            for workload in chosen:
                try:
                    outcomes.append(run.measure(workload))
                except CopyFailedError as error:  # the others count all the same
                    plan.say(f"{workload.name}: not measured: {error}")
    return outcomes


@final
class _CopyRun:
    def __init__(
        self,
        clusters: Clusters,
        java: JavaContender | None,
        ours: Mm2pyContender | None,
        plan: CopyPlan,
    ) -> None:
        self._source, self._java, self._ours, self._plan = clusters.source, java, ours, plan

    def measure(self, workload: Workload) -> Outcome:
        say = self._plan.say
        topics = Topics(self._source.bootstrap_servers)
        records = workload.quick_records if self._plan.is_quick else workload.records
        trail: list[float] = []
        if self._java is not None:
            trail = self._java.warm_up(workload)
            rounds = ", ".join(f"{us:.1f}" for us in trail)
            say(f"{workload.name}: Java warm: {rounds} us/record")
            self._java.wait_for_a_refresh()
        topics.create(workload.topic, workload.partitions)
        fill(self._source.bootstrap_servers, workload.topic, workload, records)
        shape = batch_shape(self._source.nodes[0].data_dir, workload.topic)
        say(
            f"{workload.name}: filled: {shape.records} records, {shape.mean_bytes:.0f} bytes per batch"
        )
        java_cost = None
        if self._java is not None:
            java_cost = self._java.copy(workload.topic, workload, records)
            say(f"{workload.name}: Java: {java_cost.cpu_us_per_record:.2f} us/record")
        runs = self._ours_runs(workload, records)
        topics.empty(workload.topic, workload.partitions)
        return Outcome(workload, shape, java_cost, trail, runs)

    def _ours_runs(self, workload: Workload, records: int) -> list[CopyCost]:
        if self._ours is None:
            return []
        runs: list[CopyCost] = []
        profiles = self._plan.profiles
        profile = profiles / f"profile-{workload.name}.tmp" if profiles is not None else None
        for number in range(self._plan.repeats):
            cost = self._ours.copy(workload.topic, workload, records, profile_to=profile)
            runs.append(cost)
            took = f"{cost.cpu_us_per_record:.3f} us/record"
            self._plan.say(f"{workload.name}: mm2py run {number + 1}: {took}")
        return runs
