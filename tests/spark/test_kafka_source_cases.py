"""Each row of the table of docs/reference/jobs.md: programs for Spark's own Kafka source, with ``kafka`` replaced by ``mm2py``."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from mm2py.errors import ConfigError, PartitionError
from mm2py_jobs.spark import Mm2pyDataSource, read_options
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, write

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

PAGE: Final = Path(__file__).parents[2] / "docs/reference/jobs.md"
ROW: Final = re.compile(r"\| ((?:`[^`]*=[^`]*` ?)+) \| (yes|refused) \| (yes|refused) \| ([^|]*)\|")
FIRST_MS: Final = 1_700_000_000_000
BEGINS: Final = {"startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"}
FROM_START: Final = {"startingOffsets": "earliest"}
OPTION: Final = re.compile(r"([A-Za-z.]+)=")

ZERO, ONE = range(10), range(10, 20)
"""The records of both partitions, by their values."""

FOUND: Final[Mapping[str, tuple[range, ...]]] = {
    'assign={"T":[1]}': (ONE,),
    'startingOffsets={"T":{"0":4,"1":-2}}': (range(4, 20),),
    'startingOffsets={"T":{"0":4}}': (range(4, 20),),
    "startingTimestamp=1700000000005": (range(5, 10), range(15, 20)),
    'startingOffsetsByTimestamp={"T":{"0":1700000000005,"1":1700000000000}}': (range(5, 20),),
    "startingTimestamp=1800000000000 startingOffsetsByTimestampStrategy=latest": (),
    'endingOffsets={"T":{"0":4,"1":-1}}': (range(4), ONE),
    "endingTimestamp=1700000000005": (range(5), range(10, 15)),
    'endingOffsetsByTimestamp={"T":{"0":1700000000005,"1":1700000000005}}': (range(5), range(10, 15)),
    'startingOffsets={"T":{"0":99,"1":0}} failOnDataLoss=false': (ONE,),
}  # fmt: skip
"""What is read where it is not everything."""

FOUND_BY_STREAM: Final[Mapping[str, tuple[range, ...]]] = {
    "startingOffsets=latest": (),
    'startingOffsets={"T":{"0":4,"1":-1}}': (range(4, 10),),
    # What a stream is not told of it begins at its end.
    'startingOffsets={"T":{"0":4}}': (range(4, 10),),
}

TASKS: Final[Mapping[str, int]] = {"minPartitions=8": 8, "maxRecordsPerPartition=3": 8}


class Case(NamedTuple):
    """A row: its options, and whether each way of reading takes them."""

    text: str
    batch: bool
    stream: bool

    @property
    def names(self) -> list[str]:
        return OPTION.findall(self.text)

    def source(self, topic: str, servers: str, more: Mapping[str, str]) -> Mm2pyDataSource:
        """Return what is read with them; ``more`` are defaults."""
        text = re.sub(r"\bT\b", topic, self.text).replace(" U ", f" {topic}u ")
        given = dict(re.findall(r"([A-Za-z.]+)=(.*?)(?= [A-Za-z.]+=|$)", text))
        chosen = {"subscribe", "subscribePattern", "assign", "topics"} & given.keys()
        choice = {} if chosen else {"subscribe": topic}
        return Mm2pyDataSource({"kafka.bootstrap.servers": servers, **choice, **more, **given})

    def found(self, *, stream: bool) -> list[int]:
        by_stream = FOUND_BY_STREAM if stream else {}
        return [*chain(*by_stream.get(self.text, FOUND.get(self.text, (ZERO, ONE))))]


def cases() -> list[Case]:
    rows = map(ROW.fullmatch, PAGE.read_text().splitlines())
    return [
        Case(" ".join(re.findall(r"`([^`]*)`", row[1])), row[2] == "yes", row[3] == "yes")
        for row in rows
        if row is not None
    ]


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(bytes(cast("bytes", it))) for each in batches for it in each.column("value").to_pylist()]  # fmt: skip


def read_batch(source: Mm2pyDataSource) -> tuple[list[int], int]:
    """Return the values, and the number of tasks."""
    reader = source.reader(StructType())
    parts = reader.partitions()
    return sorted(chain(*(values(reader.read(it)) for it in parts))), len(parts)


def read_stream(source: Mm2pyDataSource) -> tuple[list[int], int]:
    """Return the values, and the tasks of the largest micro-batch."""
    reader = source.streamReader(StructType())
    reader.prepareForTriggerAvailableNow()
    at, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    found, most = list[int](), 0
    while (end := reader.latestOffset(at, limit)) != at:
        parts = reader.partitions(at, end)
        found += chain(*(values(reader.read(it)) for it in parts))
        at, most = end, max(most, len(parts))
    return sorted(found), most


def test_each_row_of_the_table_is_as_it_says(setup: Setup) -> None:
    topic = setup.topic("T", 2, config={"retention.ms": "-1"})
    setup.create_topic(setup.a, f"{topic}u")
    records = ((0, ZERO), (1, ONE))
    for at, numbers in records:
        write(setup.a, topic, [Sent(at, b"%d" % n, timestamp_ms=FIRST_MS + n % 10) for n in numbers])  # fmt: skip
    rows = cases()
    assert {it for row in rows for it in row.names} >= {*read_options.NAMES}
    wrong: list[str] = []
    for row in rows:
        for name, takes, read, more in (
            ("read", row.batch, read_batch, {}),
            ("readStream", row.stream, read_stream, {} if BEGINS & {*row.names} else FROM_START),
        ):
            source = row.source(topic, setup.a.bootstrap_servers, more)
            try:
                source.schema()
                found, tasks = read(source)
            except (ConfigError, PartitionError) as error:
                if takes or not any(it in str(error) for it in row.names):
                    wrong.append(f"{row.text}: {name}: {error}")
                continue
            if not takes or found != row.found(stream=name != "read"):
                wrong.append(f"{row.text}: {name}: {found}")
            if tasks != TASKS.get(row.text, tasks):
                wrong.append(f"{row.text}: {name}: {tasks} tasks")
    assert wrong == []
