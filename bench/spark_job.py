"""One contender of ``bench.spark_run`` in a process of its own: session, a small job to warm up, then the measured one.

Flow: ``python -m bench.spark_job KIND JSON`` -> session on two cores -> warm-up -> ``ready`` on standard output -> a line on standard
input -> the job -> ``done`` and what it answered. The parent counts records and CPU; nothing is measured here.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, cast

from typer.testing import CliRunner

from bench.spark_jars import fetch_connector
from bench.spark_lane import copy_lane
from mm2py.spark.session import OpenSession, open_session, run_lanes
from mm2py_workers.cli import app

__all__ = ["DONE", "MASTER", "READY", "SparkJob", "main"]

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


def main() -> None:
    """Run one contender."""
    kind, job = sys.argv[1], SparkJob.of(json.loads(sys.argv[2]))
    settings = {"spark.ui.enabled": "false"}
    if kind == "connector":
        jars = ",".join(str(jar) for jar in fetch_connector())
        settings = {**_OF_A_DEFAULT_SESSION, "spark.jars": jars}
    run = _RUNS[kind]
    with open_session(MASTER, name=f"bench {kind}", settings=settings) as opened:
        if job.warm_up is not None:
            run(opened, job.warm_up)
        _say(READY)
        sys.stdin.readline()
        _say(DONE + run(opened, job))
        sys.stdin.readline()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---- mm2py


def _command(_opened: OpenSession, job: SparkJob) -> str:
    """Run a command of ours in this process, with its session."""
    done = CliRunner().invoke(app, [*job.command, "-o", "json"], catch_exceptions=False)
    if done.exit_code != 0:
        raise RuntimeError(f"{' '.join(job.command)} ended with {done.exit_code}: {done.stderr}")
    report = json.loads(done.stdout)
    members = ("records", "bytes", "checked_records")
    return json.dumps({name: report[name] for name in members if name in report})


# ---- Spark's own connector


def _connector(opened: OpenSession, job: SparkJob) -> str:
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
    return "{}"


# ---- confluent-kafka in the tasks


def _confluent(opened: OpenSession, job: SparkJob) -> str:
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
    run_lanes(opened.spark, copy_lane, lanes, tag="confluent", description="confluent-kafka")
    return "{}"


_RUNS: Final[Mapping[str, Callable[[OpenSession, SparkJob], str]]] = {
    "mm2py": _command,
    "connector": _connector,
    "confluent": _confluent,
}

if __name__ == "__main__":
    main()
