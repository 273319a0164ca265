"""One contender of ``bench.spark_run`` in a process of its own: session, a small job to warm up, then the measured one.

Flow: ``python -m bench.spark_job KIND JSON`` -> session on two cores -> warm-up -> ``ready`` on standard output -> a line on standard
input -> the job -> ``done`` and what it answered. The parent counts records and CPU; what lanes took is read from their log line.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, cast, final

from typer.testing import CliRunner

from bench.spark_jars import fetch_connector
from bench.spark_lane import copy_lane
from mm2py_cli.app import app
from mm2py_jobs.spark import session
from mm2py_jobs.spark.session import LanesCost, OpenSession, open_session, run_lanes

READY: Final = "ready"
DONE: Final = "done "
MASTER: Final = "local[2]"
LANES: Final = 2
_OF_A_DEFAULT_SESSION: Final = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-Xshare:auto",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.ui.enabled": "false",
}
"""Records pass the JVM of Spark's own connector: it gets the compiler and the code generation that Spark has by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """What is copied, and the same in small to warm up; ``commands`` are those of ours."""

    source: str
    target: str
    topic: str
    copy: str
    ends: list[int]
    command: list[str]
    warm_up: "SparkJob | None" = None

    @classmethod
    def of(cls, members: Mapping[str, object]) -> "SparkJob":
        """Read what ``text`` wrote."""
        known = dict(members)
        inner = known.pop("warm_up")
        job = cast("Mapping[str, object] | None", inner)
        return cls(**known, warm_up=None if job is None else cls.of(job))  # type: ignore[arg-type]

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


@dataclass(slots=True, kw_only=True)
class JobEnd:
    """What a job has done, and what the functions of its lanes took; 0 where nothing runs in lanes."""

    records: int = 0
    lane_seconds: float = 0.0
    lane_cpu_seconds: float = 0.0


@final
class _LaneCosts(logging.Handler):
    """Adds up what jobs of lanes log at their end."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._costs: list[LanesCost] = []
        logger = logging.getLogger(session.__name__)
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the cost that is an argument of the line."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self._costs += (it for it in arguments if isinstance(it, LanesCost))

    def end(self, records: int) -> JobEnd:
        """Return the sum, and begin anew."""
        costs, self._costs = self._costs, []
        return JobEnd(
            records=records,
            lane_seconds=sum(it.seconds for it in costs),
            lane_cpu_seconds=sum(it.cpu_seconds for it in costs),
        )


def main() -> None:
    """Run one contender."""
    kind, job = sys.argv[1], SparkJob.of(json.loads(sys.argv[2]))
    settings = {"spark.ui.enabled": "false"}
    if kind == "connector":
        jars = ",".join(str(jar) for jar in fetch_connector())
        settings = {**_OF_A_DEFAULT_SESSION, "spark.jars": jars}
    run, costs = _RUNS[kind], _LaneCosts()
    with open_session(MASTER, name=f"bench {kind}", settings=settings) as opened:
        if job.warm_up is not None:
            costs.end(run(opened, job.warm_up))
        _say(READY)
        sys.stdin.readline()
        _say(DONE + json.dumps(asdict(costs.end(run(opened, job)))))
        sys.stdin.readline()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---- mm2py


def _command(_opened: OpenSession, job: SparkJob) -> int:
    """Run a command of ours in this process, with its session; return the records of its report."""
    done = CliRunner().invoke(app, [*job.command, "-o", "json"], catch_exceptions=False)
    if done.exit_code != 0:
        raise RuntimeError(f"{' '.join(job.command)} ended with {done.exit_code}: {done.stderr}")
    report: Mapping[str, int] = json.loads(done.stdout)
    return report.get("checked_records", report.get("records", 0))


# ---- Spark's own connector


def _connector(opened: OpenSession, job: SparkJob) -> int:
    partitions = {str(number): end for number, end in enumerate(job.ends)}
    (
        opened.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job.source)
        .option("assign", json.dumps({job.topic: list(range(len(job.ends)))}))
        .option("startingOffsets", json.dumps({job.topic: dict.fromkeys(partitions, 0)}))
        .option("endingOffsets", json.dumps({job.topic: partitions}))
        .option("includeHeaders", "true")
        .load()
        .select("key", "value", "headers", "partition")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", job.target)
        .option("topic", job.copy)
        .save()
    )
    return sum(job.ends)


# ---- confluent-kafka in the tasks


def _confluent(opened: OpenSession, job: SparkJob) -> int:
    lanes = [
        {
            "source": job.source,
            "target": job.target,
            "topic": job.topic,
            "copy": job.copy,
            "ends": {p: end for p, end in enumerate(job.ends) if p % LANES == lane},
        }
        for lane in range(LANES)
    ]
    run_lanes(opened, copy_lane, lanes, tag="confluent", description="confluent-kafka")
    return sum(job.ends)


_RUNS: Final[Mapping[str, Callable[[OpenSession, SparkJob], int]]] = {
    "mm2py": _command,
    "connector": _connector,
    "confluent": _confluent,
}

if __name__ == "__main__":
    main()
