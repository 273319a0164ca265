"""What a run shows: rows of results -> tables on the terminal, JSON and Markdown files.

Nothing in the files names this machine, a path or an address. Measures nothing.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from rich import box
from rich.console import Console
from rich.table import Table

from bench.java_contender import QUICK_ROUNDS, ROUNDS
from bench.measure import CopyCost
from bench.outcomes import Figure, Outcome
from tests.kit.kafka.jars import KAFKA_VERSION

COPY_COLUMNS: Final = (
    "workload",
    "records",
    "batch",
    "Java us/record",
    "mm2py us/record",
    "ratio",
    "goal",
    "mm2py us/batch",
    "Java records/s",
    "mm2py records/s",
    "Java PSS",
    "mm2py PSS",
)
FIGURE_COLUMNS: Final = ("measure", "Java", "mm2py", "ratio", "goal")
_TERMINAL_COLUMNS: Final = (0, 3, 4, 5, 6, 8, 9, 10, 11)  # 80 characters are enough
_MACHINE: Final = """\
Kafka {kafka}, Python {python}, {cpus} cores, brokers included; load average before the run: {load:.1f}{size}.
Other load moves the absolute figures; compare ratios (Java / mm2py). Goals: design.md 7.
"""
_COPY_METHOD: Final = """\
A copy: both mirrors copy the same full topic, one after the other, between the same two single-node brokers. CPU is
user and system time of all processes of a mirror per record behind the first fifth. Java MirrorMaker 2 has its
defaults, the JVM flags of its own start script, and is warm: it copied rounds of the same records until its CPU per
record settled or the limit of {limit} rounds was reached ({rounds} rounds). mm2py was started for each copy
and given the topic over REST once it was idle, the median of {repeats} counts. {partitions} partitions.
"""
_FIGURE_METHOD: Final = """\
A mirror that runs: defaults, one flow. Start: from process start to the first record on the target, with
group.initial.rebalance.delay.ms=0 (Java once, mm2py median of three). New topic: from its creation, median of three.
Latency: from the due time of a 1 KB record to its reader on the target, warm, producer linger 5 ms included.
"""


@final
@dataclass(frozen=True, slots=True)
class Results:
    """One run; ``load`` is the load average before it."""

    outcomes: Sequence[Outcome]
    figures: Sequence[Figure]
    load: float
    is_quick: bool

    def show(self) -> None:
        """Print the tables."""
        console = Console()
        if self.outcomes:
            table = Table(title="Copies, side by side", box=box.SIMPLE, padding=(0, 1, 0, 0))
            for column in _TERMINAL_COLUMNS:
                heading = COPY_COLUMNS[column].replace(" us/", "\nus/")
                heading = heading.replace(" records", "\nrecords").replace("record", "rec")
                table.add_column(heading, justify="right" if column else "left")
            for outcome in self.outcomes:
                cells = _copy_cells(outcome)
                table.add_row(*(cells[column] for column in _TERMINAL_COLUMNS))
            console.print(table)
        if self.figures:
            table = Table(title="A mirror that runs", box=box.SIMPLE, padding=(0, 1, 0, 0))
            for index, heading in enumerate(FIGURE_COLUMNS):
                table.add_column(heading, justify="right" if index else "left")
            for figure in self.figures:
                table.add_row(*_figure_cells(figure))
            console.print(table)

    def write(self, folder: Path, name: str) -> None:
        """Write ``name``.json and ``name``.md."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "kafka": KAFKA_VERSION,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load_average_before": round(self.load, 2),
            "quick": self.is_quick,
            "copies": [_outcome_json(outcome) for outcome in self.outcomes],
            "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in self.figures],
        }
        text = json.dumps(document, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        (folder / f"{name}.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """Return the tables and how they were measured."""
        parts = ["# Side by side with Java MirrorMaker 2\n"]
        if self.outcomes:
            parts.append(_table(COPY_COLUMNS, [_copy_cells(each) for each in self.outcomes]))
        if self.figures:
            parts.append(_table(FIGURE_COLUMNS, [_figure_cells(each) for each in self.figures]))
        if self.outcomes:
            rounds = [len(o.java_warm_up_us) for o in self.outcomes if o.java_warm_up_us]
            parts.append(
                _COPY_METHOD.format(
                    limit=QUICK_ROUNDS.stop if self.is_quick else ROUNDS.stop,
                    rounds=" + ".join(map(str, rounds)) or "no",
                    repeats=max(len(outcome.mm2py_runs) for outcome in self.outcomes),
                    partitions=max(outcome.workload.partitions for outcome in self.outcomes),
                )
            )
        if self.figures:
            parts.append(_FIGURE_METHOD)
        parts.append(
            _MACHINE.format(
                kafka=KAFKA_VERSION,
                python=platform.python_version(),
                cpus=os.cpu_count(),
                load=self.load,
                size="; quick sizes" if self.is_quick else "",
            )
        )
        return "\n".join(parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def _copy_cells(outcome: Outcome) -> list[str]:
    java, ours, ratio = outcome.java, outcome.mm2py, outcome.ratio
    per_batch = ours.cpu_us_per_record * outcome.shape.mean_records if ours else None
    size = outcome.shape.mean_bytes
    return [
        outcome.workload.title,
        f"{outcome.shape.records:,}",
        f"{size / 1024:.1f} KiB" if size >= 1024 else f"{size:.0f} B",
        _number(java.cpu_us_per_record if java else None, ".2f"),
        _number(ours.cpu_us_per_record if ours else None, ".2f"),
        _number(ratio, ".1f", "x"),
        _number(outcome.workload.goal_ratio, "d", "x"),
        _number(per_batch, ".1f"),
        _number(java.records_per_s if java else None, ",.0f"),
        _number(ours.records_per_s if ours else None, ",.0f"),
        _number(java.pss_bytes / 1e6 if java else None, ",.0f", " MB"),
        _number(ours.pss_bytes / 1e6 if ours else None, ",.0f", " MB"),
    ]


def _figure_cells(figure: Figure) -> list[str]:
    form = ",.0f" if figure.unit == "MB" else ",.2f" if figure.unit in ("s", "%") else ",.1f"
    unit = f" {figure.unit}"
    return [
        figure.name,
        _number(figure.java, form, unit),
        _number(figure.mm2py, form, unit),
        _number(figure.ratio, ".1f", "x"),
        _number(figure.goal, ",.0f", unit),
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _outcome_json(outcome: Outcome) -> dict[str, object]:
    return {
        "workload": outcome.workload.name,
        "records": outcome.shape.records,
        "mean_batch_bytes": round(outcome.shape.mean_bytes),
        "mean_batch_records": round(outcome.shape.mean_records, 1),
        "java": _cost(outcome.java),
        "java_warm_up_us_per_record": [round(us, 2) for us in outcome.java_warm_up_us],
        "mm2py": _cost(outcome.mm2py),
        "mm2py_runs": [_cost(cost) for cost in outcome.mm2py_runs],
        "ratio": None if outcome.ratio is None else round(outcome.ratio, 2),
        "goal_ratio": outcome.workload.goal_ratio,
    }


def _cost(cost: CopyCost | None) -> dict[str, float] | None:
    if cost is None:
        return None
    derived = {
        "cpu_us_per_record": round(cost.cpu_us_per_record, 3),
        "records_per_s": round(cost.records_per_s),
    }
    measured = {key: round(value, 4) for key, value in asdict(cost).items()}
    return {**measured, **derived}
