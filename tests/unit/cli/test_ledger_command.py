"""``mm2py ledger`` against a broker that holds a ledger."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mm2py.api.context import EventKind, LossEvent
from mm2py.clock import SYSTEM_CLOCK
from mm2py.flows.flow_ledger import KeptLedger
from mm2py.flows.flow_offsets import side_cluster
from mm2py.flows.view_models import LedgerView
from mm2py.mirror.ledger import LedgerRecord, encode_ledger_record
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_cli.app import app
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to

TOPIC = "mm2py-ledger.A.internal"


def a_record(
    kind: EventKind, topic: str, first: int, last: int, *, flow: str = "A->B"
) -> NewRecord:
    event = LossEvent(
        kind=kind,
        partition=TopicPartition(topic, 2),
        first_offset=first,
        last_offset=last,
        policy="gap.policy=continue",
        cause="deleted [before] it was copied",
        task="MirrorSourceConnector-0",
    )
    return NewRecord(
        *encode_ledger_record(LedgerRecord(event=event, flow=flow, time_ms=1_700_000_000_000)),
        timestamp=1,
    )


RECORDS = [
    a_record(EventKind.RETENTION, "orders", 10, 19),
    a_record(EventKind.RETENTION, "orders", 30, 39),
    a_record(EventKind.TOO_LARGE, "orders", 50, 50),
    a_record(EventKind.MAY_BE_DOUBLED, "bills", 0, 4),
    a_record(EventKind.TRUNCATION, "bills", 7, 9),
    a_record(EventKind.RECREATED, "bills", 7, 6),
    a_record(EventKind.RETENTION, "other", 0, 99, flow="A->C"),
    NewRecord(b"later-0", b"\x02later", timestamp=1),
]


@contextmanager
def a_broker(records: list[NewRecord] | None) -> Generator[int]:
    """Run a fake broker on a loop of its own; the command runs its own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def fill(data: bytes) -> None:
        broker.append(TopicPartition(TOPIC, 0), data)

    broker = FakeBroker(topics={TOPIC: 1} if records is not None else {"t": 1})
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(90)
    try:
        if records:
            data = bytes(encode_batch(records))
            asyncio.run_coroutine_threadsafe(fill(data), loop).result(90)
        yield broker.port
    finally:
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(90)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(90)
        loop.close()


Ledger = Callable[..., Result]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Return the command, for a file whose target has that port."""
    path = tmp_path / "mm2.properties"

    def run(port: int, *words: str) -> Result:
        path.write_text(
            f"clusters = A, B\nA.bootstrap.servers = nowhere:9092\nB.bootstrap.servers = 127.0.0.1:{port}\n"
            "A->B.enabled = true\nemit.heartbeats.enabled = false\n"
        )
        return CliRunner().invoke(app, ["ledger", str(path), *words])

    return run


def test_the_table_has_every_event_and_sums_per_topic(ledger: Ledger) -> None:
    with a_broker(RECORDS) as port:
        result = ledger(port)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    first = next(line for line in lines if "10-19" in line)
    assert first[:7] == ["2023-11-14", "22:13:20", "A->B", "orders-2", "retention", "10-19", "10"]
    assert ["A->B", "orders", "3", "20", "1", "0", "0"] in lines
    assert ["A->B", "bills", "3", "0", "0", "3", "5"] in lines
    assert "deleted [before] it was copied" in result.stdout
    assert "from 7" in result.stdout
    assert "version 2, this program knows 1" in result.stdout
    assert "A->C" not in result.stdout


def test_json_is_one_document(ledger: Ledger) -> None:
    with a_broker(RECORDS) as port:
        result = ledger(port, "A->B", "-o", "json", "--topic", "bills")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [event["kind"] for event in document["events"]] == [
        "may-be-doubled",
        "truncation",
        "recreated",
    ]
    assert document["events"][0]["last"] == 4
    assert [(t["topic"], t["lost"], t["may_be_doubled"]) for t in document["topics"]] == [
        ("bills", 0, 5)
    ]
    assert document["unknown"][0]["value"] == b"\x02later".hex()


def test_rest_shows_the_newest_events_with_sums_of_all_and_no_secret() -> None:
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))

    async def view(port: int) -> LedgerView:
        config = {"target.cluster.bootstrap.servers": f"127.0.0.1:{port}"}
        async with side_cluster(config, "target", flow.target, SYSTEM_CLOCK) as target:
            kept = KeptLedger(flow)
            await kept.read(target)
        return kept.view(4, lambda text: text.replace("[before]", "***"))

    with a_broker(RECORDS) as port:
        shown = asyncio.run(view(port))
    assert [(it.kind, it.first, it.last, it.offsets) for it in shown.events] == [
        ("recreated", 7, None, 0),
        ("truncation", 7, 9, 3),
        ("may-be-doubled", 0, 4, 5),
        ("too-large", 50, 50, 1),
    ]
    assert {it.cause for it in shown.events} == {"deleted *** it was copied"}
    assert (shown.total, shown.unreadable) == (6, 1)
    assert [(it.topic, it.lost, it.refused, it.truncated) for it in shown.topics] == [
        ("bills", 0, 0, 3),
        ("orders", 20, 1, 0),
    ]


@pytest.mark.parametrize("records", [None, []])
def test_no_ledger_and_an_empty_one_are_good_news(
    records: list[NewRecord] | None, ledger: Ledger
) -> None:
    with a_broker(records) as port:
        result = ledger(port)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("the ledger is empty")


def test_a_target_that_is_away_is_one_line_and_exit_code_1(ledger: Ledger) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        result = ledger(port)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "ledger of A->B cannot be read from cluster B" in result.stderr
    assert str(port) in result.stderr


def test_an_unknown_flow_or_output_is_wrong_usage(ledger: Ledger) -> None:
    assert ledger(1, "A->X").exit_code == 2
    assert ledger(1, "-o", "xml").exit_code == 2


# -- the ledger that a worker keeps


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
TP = TopicPartition(TOPIC, 0)
NEW = a_record(EventKind.RETENTION, "orders", 60, 64)
FETCH = 1


def shown(kept: KeptLedger, most: int = 100) -> LedgerView:
    return kept.view(most, str)


async def test_a_look_reads_what_is_new_alone() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        kept = KeptLedger(FLOW)
        broker.append(TP, bytes(encode_batch(RECORDS)))
        await kept.read(target)
        before = shown(kept)
        assert before.total == 6
        asked = broker.count(FETCH)
        await kept.read(target)
        assert (shown(kept), broker.count(FETCH)) == (before, asked)
        # Whoever read it from its start would not see the former events any more.
        broker.partition(TP).batches.clear()
        broker.append(TP, bytes(encode_batch([NEW])))
        await kept.read(target)
        after = shown(kept)
        assert after.events[0].first == 60
        assert after.events[1:] == before.events
        assert (after.total, after.topics[1].lost) == (7, before.topics[1].lost + 5)


async def test_a_ledger_that_is_created_again_is_read_anew() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        kept = KeptLedger(FLOW)
        await kept.read(target)
        assert shown(kept).total == 0
        broker.append(TP, bytes(encode_batch(RECORDS)))
        await kept.read(target)
        broker.create_topic(TOPIC)
        broker.append(TP, bytes(encode_batch([NEW])))
        await kept.read(target)
        assert [it.first for it in shown(kept).events] == [60]


async def test_of_more_events_than_are_kept_the_newest_are_there_and_all_are_in_the_sums() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        broker.append(TP, bytes(encode_batch(RECORDS)))
        whole, kept = KeptLedger(FLOW), KeptLedger(FLOW, most=2)
        for each in (whole, kept):
            await each.read(target)
        assert shown(kept).events == shown(whole).events[:2]
        assert (shown(kept).total, shown(kept).topics) == (6, shown(whole).topics)
        assert [kept.has(2), kept.has(3), whole.has(100)] == [True, False, True]
