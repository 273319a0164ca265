"""``mm2py rerun``: a range of one source topic once more, into a topic of its own on the target.

Flow: file -> the flow as its workers run it -> a range of offsets per partition -> a new topic with
the same partitions -> batches in order, cut exactly where the range begins and ends -> report. No
part of the flow: it has no position, no offset map and no ledger, so the copies of the flow and its
groups are not touched. A run that was cut short is begun anew, into an empty topic.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.sender import Sender
from mm2py.clock import SYSTEM_CLOCK, each_of
from mm2py.config.client_properties import framework_producer_properties
from mm2py.config.clients import producer_settings
from mm2py.errors import ConfigError, FatalError
from mm2py.mirror.start_positions import Boundary, parse_boundary
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import NO_TOPIC_ID, NewTopic, is_another_topic
from mm2py.types import LATEST, TopicPartition
from mm2py_cli.output import OK, Column, Printer, say
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.job_options import RerunOptions
from mm2py_jobs.log.log_batches import cut
from mm2py_jobs.log.log_ends import LogEnds, listed_offsets, log_ends
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_jobs.open_flow import flow_sides
from mm2py_jobs.progress import ReportedProgress, reporting
from mm2py_workers.answers import Row

_UNDER_WAY_BYTES: Final = 16 << 20
"""Read and not acknowledged yet, of all partitions; one batch of each may be above."""
_AT_ONCE: Final = 8

_NOTHING: Final = "the range has no partitions"

_COLUMNS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("INTO", "into", wide=True),
    Column.count("FROM", "from"),
    Column.count("TO", "to"),
    Column.count("RECORDS", "records"),
)


def show_rerun_plan(options: RerunOptions, printer: Printer) -> int:
    """Print the range; return the exit code; raises as ``run_rerun``."""
    rows = _copied(options, None)
    printer.rows(rows, rows, _COLUMNS[:-1], _NOTHING)
    return OK


def run_rerun(options: RerunOptions, printer: Printer) -> int:
    """Copy the range, print the report, and return the exit code.

    Raises:
        UsageError: an argument is not understood.
        ConfigError: there is no such topic or partition, or ``into`` is not empty, or is the copy
            of a topic; or the flow has transforms.
        Mm2pyError: a cluster refuses, or does not answer.
    """
    rows = _copied(options, printer)
    printer.rows(rows, rows, _COLUMNS, _NOTHING)
    copied = sum(int(str(row["records"])) for row in rows)
    say(f"copied {copied:,} records of {options.topic} to {options.into}")
    return OK


def _copied(options: RerunOptions, printer: Printer | None) -> list[Row]:
    """Copy the range, or only plan it where no ``printer`` shows how far it is; return its
    partitions."""
    start = parse_boundary(options.start, "--from", "earliest")
    end = parse_boundary(options.end, "--to", "now")
    reason = "they would be copied as they are on the source, with what the transforms drop"
    sides = flow_sides(options.file, options.flow, None, as_they_are=reason)
    if printer is None:
        return asyncio.run(_run(options, sides, start, end, None))
    with reporting(sides, "rerun", options.topic, printer) as reported:
        rows = asyncio.run(_run(options, sides, start, end, reported))
        copied = sum(int(str(row["records"])) for row in rows)
        reported.end(records=copied, result=f"to {options.into}")
    return rows


async def _run(
    options: RerunOptions,
    sides: FlowSides,
    start: Boundary,
    end: Boundary,
    reported: ReportedProgress | None,
) -> list[Row]:
    """Copy, or only plan it where nothing is reported."""
    async with (
        Cluster.of(sides.source, alias=sides.flow.source) as source,
        Cluster.of(sides.target, alias=sides.flow.target) as target,
    ):
        rerun = _Rerun(options, sides, source, target, only_plans=reported is None)
        partitions = await rerun.partitions()
        ranges = await rerun.ranges(partitions, start, end)
        await rerun.make_topic(max(partition.partition for partition in partitions) + 1)
        if reported is None:
            return rerun.rows(ranges)
        reported.plan(sum(log.end - log.start for log in ranges.values()))
        reported.follow(rerun.copied)
        return await rerun.copy(ranges)


@final
class _Rerun:
    """One run; ``source`` and ``target`` are connected, and closed by the caller."""

    def __init__(
        self,
        options: RerunOptions,
        sides: FlowSides,
        source: Cluster,
        target: Cluster,
        *,
        only_plans: bool,
    ) -> None:
        self._options, self._sides, self._only_plans = options, sides, only_plans
        self._source, self._target = source, target
        self._reader = RangeReader(source, read_committed=sides.read_committed)
        self._sender = Sender(
            target,
            producer_settings(framework_producer_properties(sides.target, {})),
            clock=SYSTEM_CLOCK,
            on_delivered=self._delivered,
            on_failed=self._failed,
        )
        self._topic_id = NO_TOPIC_ID
        self._landed = LandedRecords()
        self._records: dict[TopicPartition, int] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._error: Exception | None = None
        self._moved = asyncio.Event()

    async def partitions(self) -> list[TopicPartition]:
        """Return the partitions that are meant; ``ConfigError``: the source has no such topic or
        partition."""
        topic = self._options.topic
        description = (await Admin(self._source).describe_topics([topic])).get(topic)
        if description is None:
            raise ConfigError(f"{self._source} has no topic {topic}", remedy="correct --topic")
        if description.error is not None:
            raise description.error
        self._topic_id = description.topic_id
        numbers = sorted(set(self._options.partitions or ()) or set(description.partitions))
        absent = set(numbers).difference(description.partitions)
        if absent:
            raise ConfigError(
                f"{topic} of {self._source} has no partition {min(absent)}",
                remedy="correct --partition",
            )
        return [TopicPartition(topic, number) for number in numbers]

    async def ranges(
        self, partitions: list[TopicPartition], start: Boundary, end: Boundary
    ) -> dict[TopicPartition, LogEnds]:
        """Return the offsets to copy, as far as the log has them; ``ConfigError``: there are
        none."""
        committed = self._sides.read_committed
        ends = await log_ends(self._source, partitions, read_committed=committed)
        firsts, lasts = [await self._times(partitions, it) for it in (start, end)]
        found: dict[TopicPartition, LogEnds] = {}
        for tp, log in ends.items():
            first = start.placed(firsts[tp], log.start, log.end, log.start)
            last = end.placed(lasts[tp], log.start, log.end, log.end)
            found[tp] = LogEnds(first, max(first, last))
        if all(it.start == it.end for it in found.values()):
            tp, log = min(ends.items())
            number = next(
                (it for it in (self._options.start, self._options.end) if it.isdigit()), ""
            )
            hint = (
                f"; {number} is a time in ms since 1970, offset:{number} is an offset"
                if number
                else ""
            )
            raise ConfigError(
                f"the range from {self._options.start or 'earliest'} to "
                f"{self._options.end or 'now'} of {tp.topic} has no offsets",
                remedy=f"correct --from and --to; {tp} has {log.start} to {log.end}, "
                f"exclusive{hint}",
            )
        return found

    async def _times(
        self, partitions: list[TopicPartition], boundary: Boundary
    ) -> dict[TopicPartition, int]:
        if boundary.timestamp is None:
            return dict.fromkeys(partitions, -1)
        return await Admin(self._source).offsets(
            partitions, boundary.timestamp, read_committed=self._sides.read_committed
        )

    async def make_topic(self, count: int) -> None:
        """Create the topic, or check that the one that is there is empty; ``ConfigError``: it is a
        copy of the flow, is not empty, or has too few partitions."""
        into, admin = self._options.into, Admin(self._target)
        listed = await Admin(self._source).list_topics()
        if original := original_of(into, self._options.topic, self._sides, listed):
            raise ConfigError(
                f"--into {into} is the flow's own copy of {original}",
                remedy="name another topic",
            )
        there = (await admin.describe_topics([into])).get(into)
        if there is None and self._only_plans:
            return
        if there is None:
            # What is old is meant to be read, however long brokers keep records by default.
            new = NewTopic(into, count, configs={"retention.ms": "-1"})
            refusal = (await admin.create_topics([new]))[into]
            if refusal is not None:
                raise refusal
            made = dict.fromkeys((TopicPartition(into, number) for number in range(count)), LATEST)
            for it in (await listed_offsets(admin, SYSTEM_CLOCK, made)).values():
                if it.error is not None:
                    raise it.error
            return
        if there.error is not None:
            raise there.error
        if len(there.partitions) < count:
            raise ConfigError(
                f"topic {into} of {self._target} has {len(there.partitions)} partitions, {count} "
                "are needed",
                remedy="add partitions, or name another topic with --into",
            )
        every = [TopicPartition(into, number) for number in there.partitions]
        ends = await log_ends(self._target, every, read_committed=False)
        if any(end.start < end.end for end in ends.values()):
            raise ConfigError(
                f"topic {into} of {self._target} is not empty",
                remedy="delete it, or name another topic with --into",
            )
        self._landed = LandedRecords({tp: log.end for tp, log in ends.items()})

    def copied(self) -> int:
        return sum(tuple(self._records.values()))

    async def copy(self, ranges: Mapping[TopicPartition, LogEnds]) -> list[Row]:
        try:
            await self._sender.start()
            await each_of(ranges.items(), lambda it: self._copy(*it), at_once=_AT_ONCE)
        finally:
            await self._sender.close()
        topic, into = self._options.topic, self._options.into
        await check_topic(Admin(self._source), topic, self._topic_id, into)
        return self.rows(ranges)

    def rows(self, ranges: Mapping[TopicPartition, LogEnds]) -> list[Row]:
        return [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "into": self._options.into,
                "from": log.start,
                "to": log.end,
                "records": self._records.get(tp, 0),
            }
            for tp, log in ranges.items()
        ]

    async def _copy(self, tp: TopicPartition, log: LogEnds) -> None:
        target = TopicPartition(self._options.into, tp.partition)
        async for batches in self._reader.read(tp, log.start, log.end):
            for batch in batches:
                inside = cut(tp, batch, log.start, log.end)
                self._pending[tp] = self._pending.get(tp, 0) + sum(it.count for it in inside)
                self._sender.enqueue(tp, target, inside)
            await self._until(lambda: self._sender.buffered_bytes < _UNDER_WAY_BYTES)
        await self._until(lambda: not self._pending.get(tp))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._error is not None:
                raise self._error
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error

    def _delivered(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, offset: int
    ) -> None:
        self._error = self._error or self._landed.note(target, offset, batch.count)
        self._records[source] = self._records.get(source, 0) + batch.count
        self._pending[source] -= batch.count
        self._moved.set()

    def _failed(self, _source: TopicPartition, _target: TopicPartition, error: Exception) -> None:
        self._error = self._error or error
        self._moved.set()


@final
class LandedRecords:
    """Finds another writer of a topic that was empty, such as a second run into it: records land
    behind each other, and nothing between.

    Args:
        ends: where logs ended before; 0 for those of a new topic.
    """

    def __init__(self, ends: Mapping[TopicPartition, int] | None = None) -> None:
        self._ends = dict(ends or {})

    def note(self, target: TopicPartition, offset: int, count: int) -> FatalError | None:
        """Take where records have landed, -1 where the broker did not say; return the error."""
        expected = self._ends.get(target, 0)
        self._ends[target] = max(expected, offset) + count
        if offset in (expected, -1):
            return None
        return FatalError(
            f"records were stored at offset {offset} of {target}, expected {expected}: another "
            "program writes to it",
            remedy=f"delete {target.topic}, and run it again while nothing else writes to it",
        )


async def check_topic(source: Admin, topic: str, topic_id: bytes, into: str) -> None:
    """Refuse what was read of two topics of the same name, which offsets alone do not tell apart;
    asked behind the copy. ``FatalError``: the topic is another one by now."""
    now = (await source.describe_topics([topic])).get(topic)
    if now is None or is_another_topic(topic_id, now.topic_id):
        raise FatalError(
            f"{topic} was deleted on the source while it was copied: {into} may have records of "
            "two topics of that name",
            remedy=f"delete {into}, and run it again",
        )


def original_of(into: str, topic: str, sides: FlowSides, listed: Iterable[str]) -> str:
    """Return the source topic that the flow copies to ``into``, empty for none; of ``topic`` also
    where the flow leaves it out.

    An empty copy, or one that is not made yet, would get records that its flow knows nothing of.
    """
    copied = (it for it in sorted(listed) if it == topic or sides.chooses(it))
    return next((it for it in (topic, *copied) if sides.copy_of(it) == into), "")
