"""One contender of ``bench.spark_run`` in a process of its own: session, a small job to warm up, then the measured one.

KIND: ``mm2py`` (a command of ours), a copy by ``connector`` or ``confluent``, or ``read``, ``write`` and ``stream`` with
``spark.read.format("mm2py")``, with Spark's ``kafka`` or by ``confluent`` loops in tasks, as in ``read-kafka``.

Flow: ``python -m bench.spark_job KIND JSON`` -> session on two cores -> warm-up -> ``ready`` on standard output -> a line on standard
input -> the job -> ``done`` and what it answered. The parent counts records and CPU; what lanes took is read from their log line.
"""

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast, final

from typer.testing import CliRunner

from bench.spark_jars import fetch_connector
from bench.spark_lane import copy_lane, read_lane, write_lane
from mm2py_cli.app import app
from mm2py_jobs.spark import session
from mm2py_jobs.spark.session import LanesCost, OpenSession, open_session, run_lanes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
"""Rows pass the JVM: they get the compiler and the code generation that Spark has by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """What is copied, and the same in small to warm up; ``commands`` are those of ours."""

    source: str
    target: str
    topic: str
    copy: str
    ends: list[int]
    command: list[str]
    value_bytes: int
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
    if kind not in ("mm2py", "confluent"):
        settings |= _OF_A_DEFAULT_SESSION
    if kind == "connector" or kind.endswith("-kafka"):
        settings["spark.jars"] = ",".join(str(jar) for jar in fetch_connector())
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


# ---- rows through the JVM: Spark's own connector, and ours


def _all_of(opened: OpenSession, job: SparkJob, form: str) -> "DataFrame":
    partitions = {str(number): end for number, end in enumerate(job.ends)}
    return (
        opened.spark.read.format(form)
        .option("kafka.bootstrap.servers", job.source)
        .option("assign", json.dumps({job.topic: list(range(len(job.ends)))}))
        .option("startingOffsets", json.dumps({job.topic: dict.fromkeys(partitions, 0)}))
        .option("endingOffsets", json.dumps({job.topic: partitions}))
        .option("includeHeaders", "true")
        .load()
    )


def _connector(opened: OpenSession, job: SparkJob) -> int:
    _append(
        _all_of(opened, job, "kafka").select("key", "value", "headers", "partition"), job, "kafka"
    )
    return sum(job.ends)


def _append(rows: "DataFrame", job: SparkJob, form: str) -> None:
    writer = rows.write.format(form).option("kafka.bootstrap.servers", job.target)
    writer.option("topic", job.copy).mode("append").save()


def _read(form: str, opened: OpenSession, job: SparkJob) -> int:
    found = _all_of(opened, job, form).selectExpr("count(*)", "sum(length(value))").collect()
    records, size = cast("tuple[int, int]", found[0])
    assert size == records * job.value_bytes
    return records


def _write(form: str, opened: OpenSession, job: SparkJob) -> int:
    rows = opened.spark.range(0, sum(job.ends), numPartitions=len(job.ends))
    value = f"cast(lpad(id, {job.value_bytes}, 'x') as binary) as value"
    _append(rows.selectExpr(value), job, form)
    return sum(job.ends)


def _stream(form: str, opened: OpenSession, job: SparkJob) -> int:
    rows = (
        opened.spark.readStream.format(form)
        .option("kafka.bootstrap.servers", job.source)
        .option("subscribe", job.topic)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    with tempfile.TemporaryDirectory(prefix="mm2py-bench-") as folder:
        query = (
            rows.writeStream.format(form)
            .option("kafka.bootstrap.servers", job.target)
            .option("topic", job.copy)
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return sum(job.ends)


# ---- confluent-kafka in the tasks


def _confluent(
    run: Callable[[Mapping[str, object]], Mapping[str, object]], opened: OpenSession, job: SparkJob
) -> int:
    lanes = [
        {
            "source": job.source,
            "target": job.target,
            "topic": job.topic,
            "copy": job.copy,
            "value_bytes": job.value_bytes,
            "ends": {p: end for p, end in enumerate(job.ends) if p % LANES == lane},
        }
        for lane in range(LANES)
    ]
    run_lanes(opened, run, lanes, tag="confluent", description="confluent-kafka")
    return sum(job.ends)


_RUNS: Final[Mapping[str, Callable[[OpenSession, SparkJob], int]]] = {
    "mm2py": _command,
    "connector": _connector,
    "confluent": partial(_confluent, copy_lane),
    "read-confluent": partial(_confluent, read_lane),
    "write-confluent": partial(_confluent, write_lane),
    **{
        f"{what}-{form}": partial(run, form)
        for what, run in (("read", _read), ("write", _write), ("stream", _stream))
        for form in ("kafka", "mm2py")
    },
}

if __name__ == "__main__":
    main()
