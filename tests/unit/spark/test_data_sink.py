"""What a task of ``df.write.format("mm2py")`` waits for, over a sender in memory."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from mm2py.errors import FatalError
from mm2py_jobs.spark.data_sink import WriteOptions, write_rows

SCHEMA = StructType([StructField("value", BinaryType())])


class Sender:
    """Takes a second for each flush, or takes nothing at all."""

    now_s = 0.0
    stuck = False

    def __init__(self, *_: object) -> None:
        self._waiting = 0

    @property
    def waiting(self) -> tuple[int, str]:
        return self._waiting, ""

    @contextmanager
    def hold(self, _idle: Callable[[], None]) -> Generator[None]:
        yield

    def send(self, _sent: object, _idle: Callable[[], None]) -> None:
        self._waiting += 1

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
