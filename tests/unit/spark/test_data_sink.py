"""What a task of ``df.write.format("mm2py")`` waits for, over a sender in memory."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.errors import FatalError
from mm2py_connectors.record_sender import SentRecord
from mm2py_jobs.spark.data_sink import WriteOptions, write_rows

SCHEMA = StructType([StructField("value", BinaryType())])


class Sender:
    """Takes a second for each flush, or takes nothing at all."""

    now_s = 0.0
    stuck = False
    sent: ClassVar[list[SentRecord]] = []

    def __init__(self, *_: object) -> None:
        self._waiting = 0

    @property
    def waiting(self) -> tuple[int, str]:
        return self._waiting, ""

    @contextmanager
    def hold(self, _idle: Callable[[], None]) -> Generator[None]:
        yield

    def send(self, sent: SentRecord, _idle: Callable[[], None]) -> None:
        self._waiting += 1
        self.sent.append(sent)

    def serve(self, idle: Callable[[], None]) -> None: ...

    def flush(self, idle: Callable[[], None]) -> None:
        while self._waiting:
            Sender.now_s += 1
            idle()
            self._waiting = self._waiting if self.stuck else 0

    def close(self) -> None: ...


@pytest.mark.parametrize("stuck", [False, True])
def test_the_time_that_rows_take_to_come_is_no_time_that_the_target_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, *, stuck: bool
) -> None:
    monkeypatch.setattr("mm2py_connectors.record_sender.RecordSender", Sender)
    monkeypatch.setattr("mm2py_jobs.spark.data_sink.time.monotonic", lambda: Sender.now_s)
    monkeypatch.setattr(Sender, "stuck", stuck)
    options = WriteOptions({"kafka.bootstrap.servers": "a:1", "topic": "t"}, SCHEMA)

    def slow() -> Iterator[pa.RecordBatch]:
        Sender.now_s += 200  # longer than delivery.timeout.ms
        yield pa.RecordBatch.from_pydict({"value": [b"v"]})

    if not stuck:
        assert write_rows(options, slow()).records == 1
        return
    begun_s = Sender.now_s
    with pytest.raises(FatalError, match="the target has taken nothing for 120 s"):
        write_rows(options, slow())
    assert Sender.now_s - begun_s > 300


HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ALL = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)


@pytest.mark.parametrize("types", [(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())])  # fmt: skip
def test_rows_are_records_in_their_order_whatever_types_their_columns_have(
    monkeypatch: pytest.MonkeyPatch, types: tuple[pa.DataType, pa.DataType]
) -> None:
    text, binary = types
    monkeypatch.setattr("mm2py_connectors.record_sender.RecordSender", Sender)
    monkeypatch.setattr(Sender, "sent", [])
    options = WriteOptions({"kafka.bootstrap.servers": "a:1"}, ALL)
    columns = {
        "other": pa.array([1, 2, 3]),
        "key": pa.array(["\u00e9", None, ""], text),
        "value": pa.array([b"\xff", b"", None], binary),
        "topic": pa.array(["t", "u", "t"], text),
        "partition": pa.array([None, 0, 2], pa.int32()),
        "headers": pa.array([None, [], [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]], HEADERS),
    }  # fmt: skip
    batch = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
    assert write_rows(options, iter([batch])).records == 3
    assert [(it.place, it.record._replace(headers=[*it.record.headers])) for it in Sender.sent] == [
        (("t", -1, 0), OutgoingRecord("t", "\u00e9".encode(), b"\xff", [], None, None)),
        (("u", 0, 1), OutgoingRecord("u", None, b"", [], None, 0)),
        (("t", 2, 2), OutgoingRecord("t", b"", None, [("h", b"1"), ("n", None)], None, 2)),
    ]
