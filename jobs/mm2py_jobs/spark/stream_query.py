"""A flow as one Structured Streaming query: terms are planned by a Python data source, and each
lane of one is a task.

Flow: ``latestOffset`` (what waits, at most ``maxBytesPerTrigger``) -> ``partitions``: a lane each
-> ``read`` in a task copies for a term and returns one row per partition -> metrics in
StreamingQueryProgress. No record passes the JVM, so the sink has nothing to do: positions were
written on the target before the task answered. The offsets in Spark's checkpoint count terms and
show log ends; with a lost or old checkpoint terms are counted anew, and nothing else changes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast, final

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from mm2py.errors import FatalError
from mm2py_jobs.copy.lanes import TermPart
from mm2py_jobs.copy.stream import PlannedTerm, TermPlanner
from mm2py_jobs.spark.session import (
    BUILD,
    LaneFunction,
    OpenSession,
    cause_of,
    most_attempts,
    tried,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

METRICS: Final = "mm2py"
"""Name of our metrics in a query's progress."""

_SCHEMA: Final = (
    "topic string, partition int, start long, end long, records long, bytes long, "
    "lag long, cause string, failed boolean"
)
_COLUMNS: Final = tuple(it.split()[0] for it in _SCHEMA.split(", "))

Document = dict[str, object]


class _Lane(InputPartition):
    """One task."""

    def __init__(self, lane: Mapping[str, object]) -> None:
        super().__init__(None)
        self.lane = lane


class TermReader(DataSourceStreamReader):
    """Plans terms in a process of its own beside the driver; ``read`` runs in tasks."""

    def __init__(
        self, plan: TermPlanner, run_lane: LaneFunction, most_bytes: int, *, attempts: int
    ) -> None:
        self._plan, self._run_lane, self._most_bytes = plan, run_lane, most_bytes
        self._attempts, self._build = attempts, BUILD
        self._planned: tuple[int, PlannedTerm] | None = None

    def initialOffset(self) -> Document:  # noqa: N802 - Spark's name
        """Return where terms are counted from."""
        return {"term": 0, "ends": {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxBytes(self._most_bytes) if self._most_bytes else ReadAllAvailable()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802 - Spark's name
        """Plan the next term; ``start`` itself where nothing can be copied now."""
        term = int(str(start["term"])) + 1
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        planned = self._plan(term, most)
        self._planned = term, planned
        # The same offset again: Spark runs no batch, and asks again.
        return {"term": term, "ends": _plain(planned.ends)} if planned.lanes else start

    def reportLatestOffset(self) -> Document | None:  # noqa: N802 - Spark's name
        """Return the log ends that the last plan was made with."""
        if self._planned is None:
            return None
        term, planned = self._planned
        return {"term": term, "ends": _plain(planned.ends)}

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """Return a task per lane; a term that Spark has from its checkpoint is planned as of
        now."""
        term = int(str(end["term"]))
        if self._planned is None or self._planned[0] != term:
            # A batch of the checkpoint's offset log that is not in its commit log is run again
            # after a restart, with the ends that were written then: latestOffset is not asked
            # before.
            self._planned = term, self._plan(term, self._most_bytes)
        return [_Lane(lane) for lane in self._planned[1].lanes]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """Copy for a term; runs in a task."""
        assert isinstance(partition, _Lane)
        answer, cause = tried(self._run_lane, partition.lane, self._attempts, self._build)
        parts = _failed(partition.lane, cause) if cause else answer["parts"]
        for part in cast("Sequence[Mapping[str, object]]", parts):
            yield tuple(part[name] for name in _COLUMNS)


def _failed(lane: Mapping[str, object], cause: str) -> list[dict[str, object]]:
    """Return the rows of a lane without an answer: the others copy on, and its partitions are dealt
    again with theirs."""
    given = cast("Sequence[tuple[str, int]]", lane["partitions"])
    return [asdict(TermPart(*it, -1, -1, 0, 0, -1, cause, failed=True)) for it in given]


def _plain(ends: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {topic: dict(offsets) for topic, offsets in ends.items()}


def _data_source(
    format_name: str, plan: TermPlanner, run_lane: LaneFunction, most_bytes: int, *, attempts: int
) -> type[DataSource]:
    """Return a data source of one flow: made here, it travels with its configs inside, which
    options would show in Spark's UI."""

    class FlowSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return _SCHEMA

        def streamReader(self, schema: "StructType") -> TermReader:  # noqa: N802 - Spark's name
            return TermReader(plan, run_lane, most_bytes, attempts=attempts)

    return FlowSource


@final
class StreamQuery:
    """One run of the query of a flow.

    Args:
        opened: the session.
        name: ``mm2py A->B``, as Spark's UI shows it.
        checkpoint: folder of Spark's checkpoint; empty for one that is removed at the end.
    """

    def __init__(self, opened: OpenSession, name: str, checkpoint: str) -> None:
        self._spark, self._name, self._checkpoint = opened.spark, name, checkpoint
        self._query: StreamingQuery | None = None
        self._seen = -1

    def start(self, plan: TermPlanner, run_lane: LaneFunction, *, most_bytes: int) -> None:
        """Start it; blocks for a second or two.

        Raises:
            FatalError: Spark refuses it.
        """
        format_name = "mm2py-flow"
        attempts = most_attempts(self._spark)
        source = _data_source(format_name, plan, run_lane, most_bytes, attempts=attempts)
        try:
            self._spark.dataSource.register(source)
            rows = self._spark.readStream.format(format_name).load()
            observed = rows.observe(
                METRICS,
                F.sum("records").alias("records"),
                F.sum("bytes").alias("bytes"),
                F.sum(F.greatest("lag", F.lit(0))).alias("lag_records"),
                F.count_if(F.col("topic") != "").alias("partitions"),
                F.count_if(F.col("cause") != "").alias("stopped_partitions"),
                F.count_if("failed").alias("failed_partitions"),
                F.max(F.when(F.col("failed"), F.col("cause"))).alias("failure"),
            )
            writer = observed.writeStream.format("noop").queryName(self._name)
            if self._checkpoint:
                writer = writer.option("checkpointLocation", self._checkpoint)
            self._query = writer.start()
        except Exception as error:
            raise FatalError(f"Spark cannot start the query: {cause_of(error)}") from error

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended within ``timeout_s``.

        Raises:
            FatalError: it has failed.
        """
        assert self._query is not None
        try:
            return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type] # seconds
        except Exception as error:
            raise FatalError(f"the query failed: {cause_of(error)}") from error

    def has_run(self) -> bool:
        """Return whether a batch of it has ended: its processes are started, and have imported what
        lanes need."""
        progress = () if self._query is None else self._query.recentProgress
        return any("addBatch" in it.durationMs for it in progress)

    def new_progress(self) -> Sequence[Mapping[str, object]]:
        """Return the metrics of terms that ended since the last call, oldest first."""
        if self._query is None:
            return ()
        batches: list[Mapping[str, object]] = []
        for progress in self._query.recentProgress:
            observed = progress.observedMetrics.get(METRICS)
            if progress.batchId > self._seen and observed is not None and observed["partitions"]:
                self._seen = progress.batchId
                batches.append({"term": progress.batchId, **observed.asDict()})
        return batches

    def stop(self) -> None:
        """Stop it: tasks that still run are killed two seconds later; a JVM that has ended already
        has stopped it."""
        if self._query is None:
            return
        try:
            self._query.stop()
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes
            log.warning("query is not stopped in order cause=%s", cause_of(error))
