"""What was measured, as rows of the result tables: copies, and figures of a mirror that runs.

Flow: ``measure`` and ``steady`` results -> ``Outcome``, ``steady_figures``, ``many_figures`` -> ``report``. Goals
are those of design.md 7.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.group_moves import GroupMoves
from bench.latency import BYTES_PER_S
from bench.many_groups import ManyGroups
from bench.many_topics import ManyTopics
from bench.measure import CopyCost
from bench.mirror_maker_1 import RECORD_BYTES, STREAMS
from bench.steady import Steady
from bench.workloads import BatchShape, Workload


@dataclass(frozen=True, slots=True)
class Outcome:
    """One workload, measured; a mirror that was left out is None or empty."""

    workload: Workload
    shape: BatchShape
    java: CopyCost | None
    java_warm_up_us: Sequence[float]
    mm2py_runs: Sequence[CopyCost]

    @property
    def mm2py(self) -> CopyCost | None:
        """The run with the median CPU, of two the dearer."""
        ordered = sorted(self.mm2py_runs, key=lambda cost: cost.cpu_s)
        return ordered[len(ordered) // 2] if ordered else None

    @property
    def ratio(self) -> float | None:
        """How many times the CPU of mm2py Java takes."""
        if self.java is None or self.mm2py is None:
            return None
        return self.java.cpu_s / self.mm2py.cpu_s


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of both tools; less is better."""

    name: str
    unit: str
    java: float | None
    mm2py: float | None
    goal: float | None = None  # at most

    @property
    def ratio(self) -> float | None:
        """How many times mm2py's figure Java's is."""
        return self.java / self.mm2py if self.java is not None and self.mm2py else None


def steady_figures(found: Mapping[str, Steady]) -> list[Figure]:
    """Return the rows of what was measured, by the tool's name."""
    java, ours = found.get("java", Steady()), found.get("mm2py", Steady())
    rate = f"{BYTES_PER_S // 1_000_000} MB/s"
    both = (java, ours)
    p50 = [each.latency.p50_ms if each.latency else None for each in both]
    p99 = [each.latency.p99_ms if each.latency else None for each in both]
    above = [_above_direct(each) for each in both]
    pss = [each.pss_bytes / 1e6 if each.pss_bytes else None for each in both]
    rows = [
        Figure("start to first record", "s", _median(java.starts_s), _median(ours.starts_s), 3),
        Figure(
            "new topic to first record (Java looks every 1 s instead of 600 s)",
            "s",
            _median(java.new_topics_s),
            _median(ours.new_topics_s),
            5,
        ),
        Figure(f"latency at {rate}, p50", "ms", p50[0], p50[1]),
        Figure(f"latency at {rate}, p99", "ms", p99[0], p99[1], 50),
        Figure(
            "the same above a direct producer and consumer, p50", "ms", above[0][0], above[1][0], 3
        ),
        Figure(
            "the same above a direct producer and consumer, p99", "ms", above[0][1], above[1][1], 15
        ),
        Figure(f"CPU at {rate}", "%", java.latency_cpu_percent, ours.latency_cpu_percent),
        *_rates(java, ours),
        Figure("idle CPU", "%", java.idle_cpu_percent, ours.idle_cpu_percent, 1),
        Figure("memory (PSS) after a copy", "MB", pss[0], pss[1], 150),
    ]
    return [row for row in rows if row.java is not None or row.mm2py is not None]


def _rates(java: Steady, ours: Steady) -> Iterator[Figure]:
    for rate in sorted({*java.rates, *ours.rates}):
        found = [each.rates.get(rate) for each in (java, ours)]
        p50 = [it[0].p50_ms if it else None for it in found]
        cpu = [it[1] if it else None for it in found]
        yield Figure(f"latency at {rate / 1e6:g} MB/s, p50", "ms", p50[0], p50[1])
        yield Figure(f"CPU at {rate / 1e6:g} MB/s", "%", cpu[0], cpu[1])


def _above_direct(found: Steady) -> tuple[float | None, float | None]:
    if found.latency is None or found.direct is None:
        return None, None
    return (
        found.latency.p50_ms - found.direct.p50_ms,
        found.latency.p99_ms - found.direct.p99_ms,
    )


def group_figures(moves: Mapping[str, GroupMoves], many: ManyGroups | None) -> list[Figure]:
    """Return the rows of groups that move, by the tool's name, and of many groups."""
    both = (moves.get("java"), moves.get("mm2py"))
    again = [max(each.read_again) if each else None for each in both]
    skipped = [max(each.skipped) if each else None for each in both]
    name = "a group at the tip moves (Java syncs every 1 s instead of 60 s)"
    rows = [
        Figure(f"{name}: most records read again", "", again[0], again[1], 0),
        Figure(f"{name}: most records skipped", "", skipped[0], skipped[1], 0),
    ]
    if many is not None:
        name = f"{many.groups:,} groups, {many.commits_per_s} commits/s"
        delay = many.delays_s[-1] if many.delays_s else None
        rows += [
            Figure(f"{name}: CPU", "%", None, many.cpu_percent, 5),
            Figure(f"{name}: longest delay of group sync", "s", None, delay, 1),
        ]
    return [row for row in rows if row.java is not None or row.mm2py is not None]


def mirror_maker_1_figures(found: Mapping[str, CopyCost]) -> list[Figure]:
    """Return the rows of MirrorMaker 1, by the tool's name; the goal of the second is to be no slower than Java's."""
    if not found:
        return []
    both = (found.get("java"), found.get("mm2py"))
    name = f"MirrorMaker 1, {RECORD_BYTES} B, {STREAMS} streams"
    cpu = [each.cpu_us_per_record if each else None for each in both]
    wall = [1e6 / each.records_per_s if each else None for each in both]
    return [
        Figure(f"{name}: CPU per record", "us", cpu[0], cpu[1], 8),
        Figure(f"{name}: time for a million records", "s", wall[0], wall[1], wall[0]),
    ]


def many_figures(found: Mapping[str, ManyTopics]) -> list[Figure]:
    """Return the rows of many topics, by the tool's name."""
    if not found:
        return []
    both = (found.get("java"), found.get("mm2py"))
    name = f"{next(iter(found.values())).topics:,} topics"
    wall = [each.wall_s if each else None for each in both]
    cpu = [each.cpu_s if each else None for each in both]
    pss = [each.pss_bytes / 1e6 if each else None for each in both]
    first = [each.restart_first_s if each else None for each in both]
    everywhere = [each.restart_all_s if each else None for each in both]
    return [
        Figure(f"{name}: start to the last", "s", wall[0], wall[1], 60),
        Figure(f"{name}: restart to the first new record", "s", first[0], first[1], 30),
        Figure(f"{name}: restart to one in each", "s", everywhere[0], everywhere[1]),
        Figure(f"{name}: CPU", "s", cpu[0], cpu[1]),
        Figure(f"{name}: memory (PSS)", "MB", pss[0], pss[1], 512),
    ]


def _median(values: Collection[float]) -> float | None:
    return statistics.median(values) if values else None
