"""``python -m bench.run``: two one-node regions, Java MirrorMaker 2 and mm2py one after the other, measured.

Flow: regions -> ``copying`` (CPU per record, records/s), ``steady`` (start, memory, latency, new topic, idle),
``many_topics`` -> tables, JSON and Markdown in bench/results. Removes its regions and data.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from rich.console import Console

from bench.clusters import Clusters
from bench.copying import CopyPlan, measure_copies
from bench.flow_file import set_exactly_once
from bench.group_moves import GroupMoves, measure_moves
from bench.many_groups import ManyGroups, measure_groups
from bench.many_topics import ManyTopics, create_many, measure_many
from bench.measure import CopyCost
from bench.mirror_maker_1 import measure_mirror_maker_1
from bench.outcomes import (
    Outcome,
    group_figures,
    many_figures,
    mirror_maker_1_figures,
    steady_figures,
)
from bench.report import Results
from bench.steady import JAVA, MM2PY, Steady, Tool, measure_steady
from bench.steady import MEASURES as STEADY_MEASURES
from bench.workloads import WORKLOADS
from bench.workspace import RESULTS, bench_folder, room_and_load
from mm2py.errors import Mm2pyError

MIN_FREE_BYTES: Final = 5 << 30
MEASURES: Final = ("cpu", *STEADY_MEASURES, "mm1", "groups", "topics")
DEFAULT_MEASURES: Final = MEASURES[
    :-3
]  # MirrorMaker 1, 10,000 groups and 1,000 topics take minutes
_console = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measures asked for; return the exit code."""
    options = _parser().parse_args(arguments)
    load = room_and_load(_console, MIN_FREE_BYTES)
    if load is None:
        return 1
    if options.exactly_once:
        set_exactly_once()
    begun = time.monotonic()
    try:
        results = _run(options, load)
    except (Mm2pyError, KafkaException, RuntimeError) as error:
        _console.print(f"bench: {error}", style="red", markup=False)
        return 1
    results.show()
    name = options.name or ("quick" if options.quick else "latest")
    results.write(RESULTS, name)
    took_s = time.monotonic() - begun
    _console.print(f"written: bench/results/{name}.md and .json, after {took_s:.0f} s")
    return 0


def _run(options: argparse.Namespace, load: float) -> Results:
    outcomes: list[Outcome] = []
    steady: dict[str, Steady] = {}
    many: dict[str, ManyTopics] = {}
    tools = [tool for tool in (JAVA, MM2PY) if options.only in (None, tool.name)]
    with bench_folder(_console) as folder, Clusters(folder) as clusters:
        if "cpu" in options.measures:
            workloads = [WORKLOADS[name] for name in options.workloads]
            outcomes = measure_copies(clusters, folder, workloads, _plan(options))
        wanted = [measure for measure in options.measures if measure in STEADY_MEASURES]
        for tool in tools if wanted else ():
            steady[tool.name] = measure_steady(tool, clusters, folder, wanted, quick=options.quick)
            _say(f"{tool.name}: measured {', '.join(wanted)}")
        mm1 = _mirror_maker_1(tools, clusters, folder, options)
        if "topics" in options.measures:
            many = _many(tools, clusters, folder, 100 if options.quick else 1_000)
        groups = _groups(tools, clusters, folder, options)
    figures = [
        *steady_figures(steady),
        *mirror_maker_1_figures(mm1),
        *group_figures(*groups),
        *many_figures(many),
    ]
    return Results(outcomes, figures, load, options.quick)


def _plan(options: argparse.Namespace) -> CopyPlan:
    return CopyPlan(
        is_quick=options.quick,
        repeats=options.repeats,
        has_java=options.only != "mm2py",
        has_mm2py=options.only != "java",
        profiles=RESULTS if options.profile else None,
        say=_say,
    )


def _groups(
    tools: Sequence[Tool], clusters: Clusters, folder: Path, options: argparse.Namespace
) -> tuple[dict[str, GroupMoves], ManyGroups | None]:
    """Move a group with each tool, and let many commit with mm2py: Java takes minutes for so many."""
    moves: dict[str, GroupMoves] = {}
    if "groups" not in options.measures:
        return moves, None
    for tool in tools:
        moves[tool.name] = measure_moves(tool, clusters, folder, 3 if options.quick else 10)
        _say(f"{tool.name}: moved a group, read again {moves[tool.name].read_again}")
    if options.only == "java":
        return moves, None
    count = 1_000 if options.quick else 10_000
    return moves, measure_groups(MM2PY, clusters, folder, groups=count, per_s=100, seconds=20)


def _mirror_maker_1(
    tools: Sequence[Tool], clusters: Clusters, folder: Path, options: argparse.Namespace
) -> dict[str, CopyCost]:
    found: dict[str, CopyCost] = {}
    for tool in tools if "mm1" in options.measures else ():
        cost, warm = measure_mirror_maker_1(tool.name, clusters, folder, quick=options.quick)
        found[tool.name] = cost
        rounds = ", ".join(f"{us:.1f}" for us in warm)
        _say(
            f"MirrorMaker 1, {tool.name}: warm {rounds} us/record; {cost.cpu_us_per_record:.2f} us/record,"
            f" {cost.records_per_s:,.0f} records/s"
        )
    return found


def _many(
    tools: Sequence[Tool], clusters: Clusters, folder: Path, count: int
) -> dict[str, ManyTopics]:
    topics = create_many(clusters, count)
    found: dict[str, ManyTopics] = {}
    for tool in tools:
        found[tool.name] = measure_many(tool, clusters, folder, topics)
        _say(f"{tool.name}: {count} topics in {found[tool.name].wall_s:.1f} s")
    return found


def _say(text: str) -> None:
    _console.print(text, highlight=False, markup=False)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the reader of a list with commas."""

    def read(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}"
            )
        return found

    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the data, less warm-up")
    parser.add_argument(
        "--measures",
        type=_names(MEASURES),
        default=list(DEFAULT_MEASURES),
        metavar="A,B",
        help=f"which of {', '.join(MEASURES)}; by default all but mm1, groups and topics",
    )
    parser.add_argument(
        "--workloads",
        type=_names(list(WORKLOADS)),
        default=list(WORKLOADS),
        metavar="A,B",
        help=f"of measure cpu: which of {', '.join(WORKLOADS)}; all by default",
    )
    parser.add_argument("--only", choices=("java", "mm2py"), help="leave the other one out")
    parser.add_argument("--repeats", type=int, default=3, help="copies by mm2py; the median counts")
    parser.add_argument("--name", default="", help="of the result files, default latest or quick")
    parser.add_argument(
        "--exactly-once",
        action="store_true",
        help="both copy in transactions (exactly.once.source.support=enabled)",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="copy with mm2py under the sampling profiler: bench/results/profile-NAME.tmp, .folded",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
