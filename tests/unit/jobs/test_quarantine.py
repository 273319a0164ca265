"""What a failover keeps of records that were not copied, between two brokers in this process."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.failovers import Tail
from mm2py.mirror.ledger import LedgerRecord, decode_ledger_record
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.storage.table import Entry
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.quarantine import quarantine
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to

ONE = TopicPartition("orders", 0)


async def test_what_retention_took_of_a_tail_before_it_was_kept_is_named_with_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = list[Entry]()

    async def post(_clusters: object, entries: Sequence[Entry]) -> None:
        ledger.extend(entries)

    async def nothing(*_: object) -> Sequence[int]:
        return ()

    async def no_topics() -> dict[str, Sequence[int]]:
        return {}

    part = "mm2py_jobs.failover.quarantine."
    monkeypatch.setattr(part + "post_to_ledger", post)
    monkeypatch.setattr(part + "_create", nothing)
    kept_in = "mm2py-quarantine.A.orders.internal"
    async with (
        FakeBroker(topics={"orders": 1}) as one,
        FakeBroker(topics={kept_in: 1}) as other,
        connected_to(one) as source,
        connected_to(other) as target,
    ):
        for first in (0, 5):
            batch = encode_batch([NewRecord(b"k", b"%d" % it) for it in range(first, first + 5)])
            one.append(ONE, bytes(batch))
        one.partition(ONE).delete_before(5)

        @asynccontextmanager
        async def lent() -> AsyncGenerator[Cluster]:
            yield source

        clusters = SimpleNamespace(
            topics=no_topics,
            target=target,
            source=lent,
            name=FlowName(ClusterAlias("A"), ClusterAlias("B")),
            plan=SimpleNamespace(props={"bootstrap.servers": f"127.0.0.1:{other.port}"}),
            clock=SYSTEM_CLOCK,
            source_ids={},
            source_looping=nothing,
            read_committed=False,
        )
        tail = Tail(topic="orders", partition=0, start=2, end=9)
        (kept,) = await quarantine(cast("FailoverClusters", clusters), [tail])
    assert kept == replace(tail, records=4, gone=((2, 5),))
    ((key, value),) = ledger
    found = decode_ledger_record(key, value)
    assert isinstance(found, LedgerRecord)
    assert (found.event.first_offset, found.event.last_offset) == (2, 4)
