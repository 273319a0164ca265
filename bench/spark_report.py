"""What ``bench.spark_run`` has measured, as a table, Markdown and JSON.

Each job has two costs: ``whole``, from the command to its end, and ``inside``, without what happens once. Ratios and goals are shown for
both: the first is what people wait for, the second what a larger topic comes to.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from bench.spark_jars import CONNECTOR_VERSION
from bench.spark_job import MASTER
from bench.workloads import WORKLOADS

TITLES: Final = {
    "mm2py": "mm2py backfill",
    "connector": f"Spark's Kafka connector {CONNECTOR_VERSION}",
    "confluent": "confluent-kafka in Spark tasks",
    "verify-1": "mm2py verify, tier 1",
    "verify-2": "mm2py verify, tier 2",
    "archive": "mm2py archive, batches",
    "read-confluent": "read: confluent-kafka in Spark tasks",
    "read-kafka": f"read: Spark's Kafka connector {CONNECTOR_VERSION}",
    "read-mm2py": 'read: format("mm2py")',
    "write-confluent": "write: confluent-kafka in Spark tasks",
    "write-kafka": f"write: Spark's Kafka connector {CONNECTOR_VERSION}",
    "write-mm2py": 'write: format("mm2py")',
    "stream-kafka": f"stream: Spark's Kafka connector {CONNECTOR_VERSION}",
    "stream-mm2py": 'stream: format("mm2py")',
}
ROWS: Final = tuple(kind for kind in TITLES if kind.startswith(("read-", "write-", "stream-")))
COPY_GOALS: Final = {"1k": 3.0, "100b": 5.0}
DIGEST_GOAL: Final = 10.0
_COMPARED_WITH: Final = {
    "connector": "mm2py",
    "confluent": "mm2py",
    "verify-2": "verify-1",
    **{it: f"{it.partition('-')[0]}-mm2py" for it in ROWS if not it.endswith("-mm2py")},
}
"""Ours by the contender: a copy and the backfill, the record digest and tier 1, rows and rows."""

_COLUMNS: Final = (
    "workload", "contender", "records", "records/s", "CPU us", "broker us", "memory", "ratio", "CPU ratio",
    "inside records/s", "MB/s", "CPU us", "ratio", "CPU ratio", "goal",
)  # fmt: skip
_METHOD: Final = """\
One run on {cpus} cores, brokers included; Python {python}, load average before the run {load:.1f}{quick}. 8 partitions, two lanes. Each
contender has a session on {master} of its own and has done the same job on a tenth of the records before.

The first figures are of the whole job, from the command to its end: plan, leases, Spark's job, what is handed over. CPU is user and
system time of the whole process tree (driver, JVM, Python workers) per record, memory its PSS at the end; broker us is CPU of both
brokers meanwhile. The figures under *inside* leave out what happens once: a copy is measured behind its first fifth, until the last record has arrived; of
verify and archive what the lanes measured in their tasks counts, both cores together. Ratios of copies are mm2py to that contender,
those of verify tier 1 to tier 2, the record digest. A read adds up the lengths of all values, a write makes them in Spark, a stream
copies the topic with availableNow; each session is as Spark has it by default. Where a copy is limited by the brokers, which share the two cores, the CPU ratio counts.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What so many records took."""

    records: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU per record."""
        return self.cpu_s * 1e6 / self.records


@dataclass(frozen=True, slots=True)
class Measured:
    """One contender and one workload."""

    workload: str
    contender: str
    value_bytes: int
    whole: Cost
    inside: Cost | None
    broker_cpu_s: float
    memory_bytes: int

    @property
    def text(self) -> str:
        """One line for people."""
        inside = self.inside
        return (
            f"{self.workload}: {TITLES[self.contender]}: {self.whole.rate:,.0f} records/s, {self.whole.cpu_us:.2f} us/record"
            + ("" if inside is None else f"; inside {inside.rate:,.0f}, {inside.cpu_us:.2f}")
        )


def show(measured: Sequence[Measured]) -> None:
    """Print the table."""
    table = Table(title="Bulk work on Spark", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for index, heading in enumerate(_COLUMNS):
        table.add_column(heading, justify="right" if index > 1 else "left")
    for row in _cells(measured):
        table.add_row(*row)
    Console(width=170).print(table)


def write(
    measured: Sequence[Measured], folder: Path, name: str, load: float, *, quick: bool
) -> None:
    """Write Markdown and JSON."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|---|---|" + "---:|" * (len(_COLUMNS) - 2)]
    lines += ["| " + " | ".join(row) + " |" for row in _cells(measured)]
    method = _METHOD.format(
        cpus=os.cpu_count(),
        python=platform.python_version(),
        load=load,
        quick=", quick sizes" if quick else "",
        master=MASTER,
    )
    text = "\n".join(["# Bulk work on Spark, side by side", "", *lines, "", method])
    document = {
        "quick": quick,
        "load_average_before": round(load, 2),
        "rows": [asdict(it) for it in measured],
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _cells(measured: Sequence[Measured]) -> list[list[str]]:
    by_name = {(it.workload, it.contender): it for it in measured}
    return [_row(it, by_name) for it in measured]


def _row(it: Measured, by_name: Mapping[tuple[str, str], Measured]) -> list[str]:
    ours = by_name.get((it.workload, _COMPARED_WITH.get(it.contender, "")))
    goals = {
        "verify-2": DIGEST_GOAL,
        **dict.fromkeys(("connector", "confluent"), COPY_GOALS[it.workload]),
    }
    goal = goals.get(it.contender)
    return [
        WORKLOADS[it.workload].title,
        TITLES[it.contender],
        f"{it.whole.records:,}",
        f"{it.whole.rate:,.0f}",
        f"{it.whole.cpu_us:.2f}",
        f"{it.broker_cpu_s * 1e6 / it.whole.records:.2f}",
        f"{it.memory_bytes >> 20:,} MB",
        *(_ratios(ours.whole, it.whole) if ours is not None else ("", "")),
        *_inside(it, ours),
        f"{goal:.0f}x" if ours is not None and goal is not None else "",
    ]


def _inside(it: Measured, ours: Measured | None) -> Sequence[str]:
    inside = it.inside
    if inside is None:
        return [""] * 5
    return [
        f"{inside.rate:,.0f}",
        f"{inside.rate * it.value_bytes / 1e6:,.0f}",
        f"{inside.cpu_us:.2f}",
        *(
            _ratios(ours.inside, inside)
            if ours is not None and ours.inside is not None
            else ("", "")
        ),
    ]


def _ratios(ours: Cost, other: Cost) -> tuple[str, str]:
    return f"{ours.rate / other.rate:.1f}x", f"{other.cpu_us / ours.cpu_us:.1f}x"
