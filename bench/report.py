"""What a run shows: measured costs -> a table on the terminal, JSON and Markdown files.

Nothing in the files names this machine, a path or an address. Measures nothing.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import CopyCost
from bench.workloads import BatchShape, Workload
from mm2py.embedded.jars import KAFKA_VERSION

__all__ = ["Outcome", "show", "write_files"]

COLUMNS: Final = (
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
_TERMINAL_COLUMNS: Final = (0, 3, 4, 5, 6, 8, 9, 10, 11)  # 80 characters are enough
_METHOD: Final = """\
CPU is user and system time of all processes of a mirror, from the last look at the target that saw no record of
the topic to the one that saw the last; both mirrors copied the same source topic, one after the other, between the
same two single-node brokers on the same machine, {cpus} cores, brokers included. Java MirrorMaker 2 ran with its
defaults and the JVM flags of its own start script, and was warm: it had copied rounds of the same kind of records
until its CPU per record settled ({rounds} rounds of CPU us/record: {trail}).
mm2py was started for each topic; the figure is the median of {repeats}. Memory is taken after the last record; PSS
counts a page shared by n processes as 1/n. Kafka {kafka}, Python {python}, {partitions} partitions, producer
batches of 16 KiB. Load average of the machine before the run: {load:.1f}. Other load moves the absolute figures;
compare ratios.
"""


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
        """The run with the median CPU."""
        ordered = sorted(self.mm2py_runs, key=lambda cost: cost.cpu_s)
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    @property
    def ratio(self) -> float | None:
        """How many times the CPU of mm2py Java takes."""
        if self.java is None or self.mm2py is None:
            return None
        return self.java.cpu_s / self.mm2py.cpu_s


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table."""
    table = Table(title="CPU per record, side by side", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in _TERMINAL_COLUMNS:
        heading = COLUMNS[column].replace(" us/", "\nus/").replace(" records", "\nrecords")
        table.add_column(heading.replace("record", "rec"), justify="right" if column else "left")
    for outcome in outcomes:
        cells = _cells(outcome)
        table.add_row(*(cells[column] for column in _TERMINAL_COLUMNS))
    Console().print(table)


def write_files(outcomes: Sequence[Outcome], folder: Path, name: str, *, load: float) -> None:
    """Write ``name``.json and ``name``.md; ``load`` is the load average before the run."""
    folder.mkdir(parents=True, exist_ok=True)
    document = [_as_json(outcome) for outcome in outcomes]
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(_markdown(outcomes, load), encoding="utf-8")


def _cells(outcome: Outcome) -> list[str]:
    java, ours, ratio = outcome.java, outcome.mm2py, outcome.ratio
    per_batch = ours.cpu_us_per_record * outcome.shape.mean_records if ours else None
    return [
        outcome.workload.title,
        f"{outcome.shape.records:,}",
        f"{outcome.shape.mean_bytes / 1024:.1f} KiB",
        _number(java.cpu_us_per_record if java else None, ".2f"),
        _number(ours.cpu_us_per_record if ours else None, ".2f"),
        _number(ratio, ".1f", "x"),
        f"{outcome.workload.goal_ratio}x",
        _number(per_batch, ".1f"),
        _number(java.records_per_s if java else None, ",.0f"),
        _number(ours.records_per_s if ours else None, ",.0f"),
        _number(java.pss_bytes / 1e6 if java else None, ",.0f", " MB"),
        _number(ours.pss_bytes / 1e6 if ours else None, ",.0f", " MB"),
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _markdown(outcomes: Sequence[Outcome], load: float) -> str:
    lines = ["# Side by side with Java MirrorMaker 2", ""]
    lines.append("| " + " | ".join(COLUMNS) + " |")
    lines.append("|---|" + "---:|" * (len(COLUMNS) - 1))
    lines += ["| " + " | ".join(_cells(outcome)) + " |" for outcome in outcomes]
    trails = [outcome.java_warm_up_us for outcome in outcomes if outcome.java_warm_up_us]
    method = _METHOD.format(
        cpus=os.cpu_count(),
        load=load,
        rounds=" + ".join(str(len(trail)) for trail in trails) or "no",
        trail="; ".join(", ".join(f"{us:.1f}" for us in trail) for trail in trails) or "-",
        repeats=max((len(outcome.mm2py_runs) for outcome in outcomes), default=0),
        kafka=KAFKA_VERSION,
        python=platform.python_version(),
        partitions=max((outcome.workload.partitions for outcome in outcomes), default=0),
    )
    return "\n".join([*lines, "", method])


def _as_json(outcome: Outcome) -> dict[str, object]:
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
