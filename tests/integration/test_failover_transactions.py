"""Failovers beside transactions that are open on the source: waited for by name, or passed and kept; no committed record on A alone."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.integration.failovers import PARTITIONS, Drivers, Ended, Sides, home, secured_pair
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, ends, producer, read, write
from tests.integration.transactions import abandon, take_over
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

Unique = Callable[[str], str]
LONG_MS: Final = 600_000
COMMITTED: Final = {"{source}.consumer.isolation.level": "read_committed"}
EXACTLY_ONCE: Final = {"{target}.exactly.once.source.support": "enabled"}
OPEN: Final = ("mm2py.source.transaction", b"open")


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("ft") as pair:
        yield pair


def opened(sides: Sides, name: str) -> Producer:
    client = producer(sides[0], transactional_id=name, transaction_timeout_ms=LONG_MS)
    client.init_transactions(60)
    client.begin_transaction()
    return client


def write_in(client: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        client.produce(topic, value, partition=0)
    assert client.flush(60) == 0


@contextmanager
def executing(drivers: Drivers, *words: str) -> Generator[list[Ended]]:
    """Run a failover beside the block, to its end."""
    found: list[Ended] = []
    given = ("--execute", "--settle", "1", "-o", "json", *words)
    thread = threading.Thread(target=lambda: found.append(drivers.run("failover", *given)))
    thread.start()
    try:
        yield found
    finally:
        thread.join()


def values(sides: Sides, topic: str, *, of: int) -> set[bytes]:
    logs = read(sides[of], topic, committed=True)
    return {it.value or b"" for log in logs.values() for it in log.records}


def status(drivers: Drivers) -> Any:
    return drivers.run("failover", "--status", "-o", "json").document


def names(record: Any) -> set[str]:
    return set() if record is None else {it["transactional_id"] for it in record["transactions"]}


@pytest.mark.parametrize("properties", [COMMITTED, EXACTLY_ONCE], ids=["committed", "exactly-once"])
def test_a_drain_waits_for_producers_that_write_on_hang_or_are_fenced_and_names_them(
    sides: Sides,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    properties: dict[str, str],
) -> None:
    a, _ = sides
    topic, till, gone = unique("orders"), unique("till"), unique("gone")
    with home(sides, topic, create_topic, tmp_path, properties) as drivers:
        write(a, topic, [Sent(n % PARTITIONS, b"before %d" % n) for n in range(20)])
        until(lambda: len(values(sides, topic, of=1)) == 20, 90, "the copy", alive=drivers.mirror)
        abandon(a, topic, gone, LONG_MS)  # in the partition of the other one
        client = opened(sides, till)
        write_in(client, topic, b"first")
        write(a, topic, [Sent(n % PARTITIONS, b"above %d" % n) for n in range(20)])
        planned = drivers.run("failover", "--plan", "-o", "json")
        assert planned.code == 0, planned.said
        assert planned.document["would_lose"] >= planned.document["awaited"] > 100
        assert names(planned.document) == {till, gone}
        short = drivers.run("failover", "--execute", "--settle", "1", "--drain-timeout", "2")
        assert short.code == 3, short.said
        assert till in short.said
        assert gone in short.said
        with executing(drivers) as ended:
            for number in range(10):
                write_in(client, topic, b"next %d" % number)
            until(lambda: names(status(drivers)) == {till, gone}, 60, lambda: f"{drivers.said}")
            take_over(a, gone)
            client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        assert (ended[0].document["tail"], ended[0].document["transactions"]) == ([], [])
        here = values(sides, topic, of=0)
        assert len(here) == 20 + 20 + 11
        assert here == values(sides, topic, of=1)


@pytest.mark.parametrize("step", ["DRAIN", "GROUPS", "SWITCH"])
def test_what_a_transaction_writes_after_a_step_is_copied_or_kept(
    sides: Sides, unique: Unique, create_topic: CreateTopic, tmp_path: Path, step: str
) -> None:
    """By a producer that no ACL blocks, which commits after the failover is done where clients have moved already."""
    a, _ = sides
    topic, till = unique("orders"), unique("till")
    with home(sides, topic, create_topic, tmp_path, COMMITTED) as drivers:
        write(a, topic, [Sent(n % PARTITIONS, b"before %d" % n) for n in range(20)])
        until(lambda: len(values(sides, topic, of=1)) == 20, 90, "the copy", alive=drivers.mirror)
        client = opened(sides, till)
        drivers.run("failover", "--execute", "--settle", "1", kill_at=step)
        write_in(client, topic, b"late", b"later")
        write(a, topic, [Sent(0, b"above")])
        with executing(drivers) as ended:
            if step != "SWITCH":
                until(lambda: names(status(drivers)) == {till}, 60, lambda: f"{drivers.said}")
                client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        if step == "SWITCH":
            assert names(ended[0].document) == {till}
            client.commit_transaction(60)
        check_kept(sides, drivers, topic, {b"late", b"later"} if step == "SWITCH" else set())


def test_an_accepted_loss_goes_past_a_transaction_that_hangs_and_keeps_what_is_above_it(
    sides: Sides, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    a, _ = sides
    topic, till = unique("orders"), unique("till")
    with home(sides, topic, create_topic, tmp_path, EXACTLY_ONCE) as drivers:
        write(a, topic, [Sent(n % PARTITIONS, b"before %d" % n) for n in range(20)])
        until(lambda: len(values(sides, topic, of=1)) == 20, 90, "the copy", alive=drivers.mirror)
        client, other = opened(sides, till), opened(sides, unique("other"))
        client.produce(topic, b"old", partition=0, timestamp=1)
        write_in(client, topic, b"open")
        write_in(other, topic, b"aborted")
        other.abort_transaction(60)
        other.begin_transaction()
        write_in(other, topic, b"committed")
        other.commit_transaction(60)
        write(a, topic, [Sent(0, b"above")])
        planned = drivers.run("failover", "--plan", "-o", "json")
        assert planned.code == 3, planned.said
        lost = planned.document["would_lose"]
        assert (lost, planned.document["awaited"]) == (ends(a, topic)[0] - 10, 0)
        assert f"would be refused: {till}" in planned.said
        refused = drivers.run("failover", "--execute")
        assert refused.code == 3
        assert till in refused.said
        ended = drivers.execute("failover", "--accept-loss", str(lost))
        assert names(ended.document) == {till}
        assert [(it["start"], it["end"]) for it in ended.document["tail"]] == [(10, 10 + lost)]
        client.commit_transaction(60)
        check_kept(sides, drivers, topic, {b"old", b"open"})


def check_kept(sides: Sides, drivers: Drivers, topic: str, were_open: set[bytes]) -> None:
    """Every record that is committed on A is on B or kept, and what was open when it was kept is marked."""
    _, b = sides
    here, there = values(sides, topic, of=0), values(sides, topic, of=1)
    kept: dict[bytes, bool] = {}
    if here - there:
        logs = read(b, f"mm2py-quarantine.{drivers.flow.source_alias}.{topic}.internal")
        found = [it for log in logs.values() for it in log.records]
        kept = {it.value or b"": OPEN in it.headers for it in found}
    assert here - there == kept.keys()
    assert {value for value, is_open in kept.items() if is_open} == were_open
