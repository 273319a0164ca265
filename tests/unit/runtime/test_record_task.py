"""Ordinary records in the batch loop: grouping, numbering, prefixes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mm2py.api.records import SinkRecord, SourceRecord
from mm2py.api.schema import Schema, SchemaType
from mm2py.api.task import Delivery, Outgoing, Run
from mm2py.config.framework import STRING_CONVERTER, FrameworkConfig
from mm2py.errors import FatalError
from mm2py.protocol.records import decode_batches
from mm2py.runtime.plugins.transforms.chain import Step, TransformChain
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.record_task import BATCH_BYTES, Conversion, RecordTaskAdapter
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock

FILE = {"file": "a.txt"}


class Script:
    """A record task that returns what the test says."""

    def __init__(self, *rounds: Sequence[SourceRecord]) -> None:
        self.rounds = list(rounds)
        self.landed: list[tuple[object, int]] = []
        self.commits = 0

    async def start(self) -> None:
        pass

    async def poll(self) -> Sequence[SourceRecord]:
        return self.rounds.pop(0) if self.rounds else ()

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        self.landed.append((record.value, target_offset))

    async def commit(self) -> None:
        self.commits += 1

    async def stop(self) -> None:
        pass


def _record(line: int, topic: str = "t", *, value: bytes | None = None) -> SourceRecord:
    return SourceRecord(
        source_partition=FILE,
        source_offset={"line": line},
        topic=topic,
        partition=0,
        key=None,
        value=value if value is not None else str(line).encode(),
        headers=((b"h", None), (b"h", b"2")),
        timestamp_ms=-1 if line == 0 else 1_000 + line,
    )


def _adapter(script: Script) -> tuple[RecordTaskAdapter, dict[TopicPartition, int]]:
    committed: dict[TopicPartition, int] = {}
    adapter = RecordTaskAdapter(script, EagerClock())
    adapter.commit_through(committed.__setitem__)
    return adapter, committed


def _acknowledge(adapter: RecordTaskAdapter, item: Outgoing, base: int) -> None:
    (batch,) = item.batches
    adapter.acknowledged(item.source, batch.runs[-1][0] + batch.runs[-1][1] - 1)
    runs: list[Run] = []
    for first, count in batch.runs:
        runs.append(Run(first, count, base))
        base += count
    adapter.delivered(Delivery(item.source, item.target, tuple(runs), batch.size, 0))


async def test_records_become_one_batch_with_their_fields() -> None:
    adapter, _ = _adapter(Script([_record(0), _record(1)]))
    (item,) = await adapter.poll(1 << 20)
    assert item.target == TopicPartition("t", 0)
    (packed,) = item.batches
    (batch,) = decode_batches(packed.data)
    assert [record.value for record in batch.records] == [b"0", b"1"]
    assert [record.timestamp for record in batch.records] == [1_000_000, 1_001], "-1 is stamped"
    assert list(batch.records[0].headers) == [(b"h", None), (b"h", b"2")]


async def test_each_record_is_told_where_it_landed() -> None:
    script = Script([_record(1), _record(2)])
    adapter, committed = _adapter(script)
    (item,) = await adapter.poll(1 << 20)
    _acknowledge(adapter, item, 70)
    assert script.landed == [(b"1", 70), (b"2", 71)]
    ((key, position),) = committed.items()
    assert adapter.source_partition(key) == FILE
    assert adapter.source_offset(key, position) == {"line": 2}


async def test_a_position_waits_for_every_earlier_record_whatever_its_topic() -> None:
    script = Script([_record(1, "t"), _record(2, "u"), _record(3, "t")])
    adapter, committed = _adapter(script)
    to_t, to_u = await adapter.poll(1 << 20)
    assert to_t.batches[0].runs == ((0, 1), (2, 1))
    _acknowledge(adapter, to_t, 0)
    ((key, position),) = committed.items()
    assert adapter.source_offset(key, position) == {"line": 1}
    _acknowledge(adapter, to_u, 0)
    assert adapter.source_offset(key, committed[key]) == {"line": 3}


async def test_source_partitions_that_share_a_target_share_its_batches() -> None:
    records = [replace(_record(n), source_partition={"file": f"{n % 5}.txt"}) for n in range(1, 21)]
    script = Script(records)
    adapter, committed = _adapter(script)
    (item,) = await adapter.poll(1 << 20)
    (batch,) = item.batches
    assert batch.count == 20
    first = batch.runs[0][0]
    adapter.acknowledged(item.source, first + 9)
    adapter.delivered(Delivery(item.source, item.target, (Run(first, 10, 70),), 0, 0))
    assert script.landed == [(str(n).encode(), 69 + n) for n in range(1, 11)]
    lines = {
        str(adapter.source_partition(key)["file"]): adapter.source_offset(key, position)["line"]
        for key, position in committed.items()
    }
    assert lines == {"1.txt": 6, "2.txt": 7, "3.txt": 8, "4.txt": 9, "0.txt": 10}
    adapter.acknowledged(item.source, first + 19)
    assert adapter.source_offset(next(iter(committed)), 0) == {"line": 16}


async def test_large_rounds_are_split_into_batches() -> None:
    big = b"x" * (BATCH_BYTES // 2)
    adapter, _ = _adapter(Script([_record(n, value=big) for n in range(1, 5)]))
    items = await adapter.poll(1 << 20)
    assert [batch.count for item in items for batch in item.batches] == [1, 1, 1, 1]
    assert len({item.source for item in items}) == 1, "one lane, one order"


async def test_a_task_that_does_not_block_does_not_spin() -> None:
    clock = EagerClock()
    adapter = RecordTaskAdapter(Script(), clock)
    assert await adapter.poll(1) == ()
    assert clock.sleeps


def _conversion(**connector: str) -> Conversion:
    return Conversion.of(
        {"value.converter": "LongConverter"}, {"errors.tolerance": "none"} | connector
    )


def _number(line: int, value: object) -> SourceRecord:
    return replace(_record(line), value=value)


async def test_a_record_passes_the_workers_converters() -> None:
    adapter = RecordTaskAdapter(Script([_number(1, 7)]), EagerClock(), _conversion())
    (item,) = await adapter.poll(1 << 20)
    (batch,) = decode_batches(item.batches[0].data)
    assert batch.records[0].value == (7).to_bytes(8, "big")


async def test_a_record_that_cannot_be_converted_fails_the_task() -> None:
    adapter = RecordTaskAdapter(Script([_number(1, "x")]), EagerClock(), _conversion())
    with pytest.raises(
        FatalError, match=r"record for t .*the value cannot be converted.*tolerance"
    ):
        await adapter.poll(1 << 20)


async def test_a_tolerated_record_is_left_out_and_its_position_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committed: dict[TopicPartition, int] = {}
    script = Script([_number(1, 1), _number(2, "x"), _number(3, "y")], [_number(4, "z")])
    adapter = RecordTaskAdapter(script, EagerClock(), _conversion(**{"errors.tolerance": "all"}))
    adapter.commit_through(committed.__setitem__)
    (item,) = await adapter.poll(1 << 20)
    assert committed == {}, "the one before is under way"
    _acknowledge(adapter, item, 0)
    ((key, last),) = committed.items()
    assert adapter.source_offset(key, last) == {"line": 3}
    assert await adapter.poll(1 << 20) == []
    assert adapter.source_offset(key, last) == {"line": 4}
    assert len(script.landed) == 1
    assert len([it for it in caplog.messages if "left out" in it]) == 1, "never per record"


async def test_each_record_that_is_left_out_is_logged_itself_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = {
        "errors.tolerance": "all",
        "errors.log.enable": "true",
        "errors.log.include.messages": "true",
    }
    script = Script([_number(1, "x"), _number(2, "y" * 3_000)])
    adapter = RecordTaskAdapter(script, EagerClock(), _conversion(**asked))
    assert await adapter.poll(1 << 20) == []
    first, second = (it for it in caplog.messages if "left out" in it)
    assert "{'line': 1}" in first
    assert "value='x'" in first
    assert "..." in second
    assert len(second) < 2_500


def _chain(call: Callable[[SinkRecord], SinkRecord | None]) -> TransformChain:
    class Bare:
        def apply(self, record: SinkRecord) -> SinkRecord | None:
            return call(record)

        def close(self) -> None:
            """Nothing is open."""

    errant = ErrantRecords("c", 0, FrameworkConfig(), clock=EagerClock())
    return TransformChain((Step("T", Bare(), None, negate=False),), errant.transformed)


async def test_transforms_drop_and_route_records_and_each_is_told_as_it_was() -> None:
    def change(record: SinkRecord) -> SinkRecord | None:
        if record.value == b"2":
            return None
        return record._replace(topic="u", value=b"new") if record.value == b"3" else record

    script = Script([_record(1), _record(2), _record(3)])
    committed: dict[TopicPartition, int] = {}
    adapter = RecordTaskAdapter(script, EagerClock(), chain=_chain(change))
    adapter.commit_through(committed.__setitem__)
    to_t, to_u = await adapter.poll(1 << 20)
    assert (to_t.target.topic, to_u.target.topic) == ("t", "u")
    (batch,) = decode_batches(to_u.batches[0].data)
    assert [(it.value, list(it.headers)) for it in batch.records] == [
        (b"new", [(b"h", None), (b"h", b"2")])
    ]
    _acknowledge(adapter, to_u, 5)
    assert not committed, "the first one is under way"
    _acknowledge(adapter, to_t, 0)
    ((key, position),) = committed.items()
    assert adapter.source_offset(key, position) == {"line": 3}
    assert script.landed == [(b"3", 5), (b"1", 0)], "as its task knows it"


async def test_a_schema_stays_with_a_part_that_transforms_leave() -> None:
    schema = Schema(type=SchemaType.STRING)
    record = replace(_record(1), key="k", key_schema=schema, value="v", value_schema=schema)
    conversion = Conversion.of({}, {f"{it}.converter": STRING_CONVERTER for it in ("key", "value")})
    adapter = RecordTaskAdapter(
        Script([record]),
        EagerClock(),
        conversion,
        chain=_chain(lambda it: it._replace(value=b"raw")),
    )
    (item,) = await adapter.poll(1 << 20)
    (batch,) = decode_batches(item.batches[0].data)
    assert [(it.key, it.value) for it in batch.records] == [(b"k", b"raw")]
