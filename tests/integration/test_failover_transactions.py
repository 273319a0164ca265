"""Failovers and failbacks beside transactions that are open where clients come from: waited for by name, or passed and kept; no committed
record is there alone."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.integration.failovers import PARTITIONS, Drivers, Ended, Sides, home, secured_pair
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, ends, producer, read, write
from tests.integration.transactions import abandon, take_over
from tests.kit.kafka.region import Region
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

Unique = Callable[[str], str]
LONG_MS: Final = 600_000
COMMITTED: Final = {
    "{source}.consumer.isolation.level": "read_committed",
    "{target}.consumer.isolation.level": "read_committed",
}
EXACTLY_ONCE: Final = {
    "{source}.exactly.once.source.support": "enabled",
    "{target}.exactly.once.source.support": "enabled",
}
OPEN: Final = ("mm2py.source.transaction", b"open")


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("ft") as pair:
        yield pair


@dataclass(frozen=True, slots=True)
class Way:
    """A failover, or a failback behind one: clients are to move from ``here`` to ``there``."""

    kind: str
    here: Region
    there: Region
    drivers: Drivers

    def run(self, *words: str, kill_at: str = "") -> Ended:
        return self.drivers.run(self.kind, *words, kill_at=kill_at)

    def status(self) -> Any:
        return self.run("--status", "-o", "json").document

    @contextmanager
    def executing(self) -> Generator[list[Ended]]:
        """Run it beside the block, to its end."""
        found: list[Ended] = []
        given = ("--execute", "--settle", "1", "-o", "json")
        thread = threading.Thread(target=lambda: found.append(self.run(*given)))
        thread.start()
        try:
            yield found
        finally:
            thread.join()

    def copy(self, topic: str) -> None:
        """Write 20 records, and wait for their copies."""
        write(self.here, topic, [Sent(n % PARTITIONS, b"before %d" % n) for n in range(20)])
        until(
            lambda: values(self.there, topic) == values(self.here, topic),
            90,
            "the copy",
            alive=self.drivers.mirror,
        )

    def check_kept(self, topic: str, were_open: set[bytes]) -> None:
        """Every record that is committed here is there or kept, and what was open when it was kept is marked."""
        here, there = values(self.here, topic), values(self.there, topic)
        flow = self.drivers.flow
        alias = flow.source_alias if self.kind == "failover" else flow.target_alias
        kept: dict[bytes, bool] = {}
        if here - there:
            logs = read(self.there, f"mm2py-quarantine.{alias}.{topic}.internal")
            found = [it for log in logs.values() for it in log.records]
            kept = {it.value or b"": OPEN in it.headers for it in found}
        assert here - there == kept.keys()
        assert {value for value, is_open in kept.items() if is_open} == were_open


@contextmanager
def prepared(
    kind: str,
    sides: Sides,
    topic: str,
    create_topic: CreateTopic,
    folder: Path,
    properties: Mapping[str, str],
) -> Generator[Way]:
    """Run a worker, and bring clients to where they are to leave."""
    a, b = sides
    with home(sides, topic, create_topic, folder, properties) as drivers:
        if kind == "failover":
            yield Way(kind, a, b, drivers)
            return
        write(a, topic, [Sent(n % PARTITIONS, b"home %d" % n) for n in range(6)])
        drivers.execute("failover")
        yield Way(kind, b, a, drivers)


def opened(region: Region, name: str) -> Producer:
    client = producer(region, transactional_id=name, transaction_timeout_ms=LONG_MS)
    client.init_transactions(60)
    client.begin_transaction()
    return client


def write_in(client: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        client.produce(topic, value, partition=0)
    assert client.flush(60) == 0


def values(region: Region, topic: str) -> set[bytes]:
    logs = read(region, topic, committed=True)
    return {it.value or b"" for log in logs.values() for it in log.records}


def names(record: Any) -> set[str]:
    return set() if record is None else {it["transactional_id"] for it in record["transactions"]}


@pytest.mark.parametrize(
    ("kind", "properties"),
    [("failover", COMMITTED), ("failover", EXACTLY_ONCE), ("failback", COMMITTED)],
    ids=["committed", "exactly-once", "failback"],
)
def test_a_drain_waits_for_producers_that_write_on_hang_or_are_fenced_and_names_them(
    sides: Sides,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    kind: str,
    properties: dict[str, str],
) -> None:
    topic, till, gone = unique("orders"), unique("till"), unique("gone")
    with prepared(kind, sides, topic, create_topic, tmp_path, properties) as way:
        drivers, here = way.drivers, way.here
        way.copy(topic)
        before = len(values(here, topic))
        abandon(here, topic, gone, LONG_MS)  # in the partition of the other one
        client = opened(here, till)
        write_in(client, topic, b"first")
        write(here, topic, [Sent(n % PARTITIONS, b"above %d" % n) for n in range(20)])
        planned = way.run("--plan", "-o", "json")
        assert planned.code == 0, planned.said
        assert planned.document["would_lose"] >= planned.document["awaited"] > 100
        assert names(planned.document) == {till, gone}
        short = way.run("--execute", "--settle", "1", "--drain-timeout", "2")
        assert short.code == 3, short.said
        assert till in short.said
        assert gone in short.said
        with way.executing() as ended:
            for number in range(10):
                write_in(client, topic, b"next %d" % number)
            until(lambda: names(way.status()) == {till, gone}, 60, lambda: f"{drivers.said}")
            take_over(here, gone)
            client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        assert (ended[0].document["tail"], ended[0].document["transactions"]) == ([], [])
        assert len(values(here, topic)) == before + 20 + 11
        assert values(here, topic) == values(way.there, topic)


@pytest.mark.parametrize("step", ["DRAIN", "GROUPS", "VERIFY", "SWITCH"])
@pytest.mark.parametrize("kind", ["failover", "failback"])
def test_what_a_transaction_writes_after_a_step_is_copied_or_kept(
    sides: Sides, unique: Unique, create_topic: CreateTopic, tmp_path: Path, kind: str, step: str
) -> None:
    """By a producer that no ACL blocks, which commits after the failover is done where clients have moved already."""
    topic, till = unique("orders"), unique("till")
    with prepared(kind, sides, topic, create_topic, tmp_path, COMMITTED) as way:
        drivers = way.drivers
        way.copy(topic)
        client = opened(way.here, till)
        way.run("--execute", "--settle", "1", kill_at=step)
        write_in(client, topic, b"late", b"later")
        write(way.here, topic, [Sent(0, b"above")])
        with way.executing() as ended:
            if step != "SWITCH":
                until(lambda: names(way.status()) == {till}, 60, lambda: f"{drivers.said}")
                client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        if step == "SWITCH":
            assert names(ended[0].document) == {till}
            client.commit_transaction(60)
        way.check_kept(topic, {b"late", b"later"} if step == "SWITCH" else set())


@pytest.mark.parametrize("kind", ["failover", "failback"])
def test_an_accepted_loss_goes_past_a_transaction_that_hangs_and_keeps_what_is_above_it(
    sides: Sides, unique: Unique, create_topic: CreateTopic, tmp_path: Path, kind: str
) -> None:
    topic, till = unique("orders"), unique("till")
    with prepared(kind, sides, topic, create_topic, tmp_path, EXACTLY_ONCE) as way:
        way.copy(topic)
        here, start = way.here, ends(way.here, topic)[0]
        client, other = opened(here, till), opened(here, unique("other"))
        client.produce(topic, b"old", partition=0, timestamp=1)
        write_in(client, topic, b"open")
        write_in(other, topic, b"aborted")
        other.abort_transaction(60)
        other.begin_transaction()
        write_in(other, topic, b"committed")
        other.commit_transaction(60)
        write(here, topic, [Sent(0, b"above")])
        planned = way.run("--plan", "-o", "json")
        assert planned.code == 3, planned.said
        lost = planned.document["would_lose"]
        assert (lost, planned.document["awaited"]) == (ends(here, topic)[0] - start, 0)
        assert f"would be refused: {till}" in planned.said
        refused = way.run("--execute")
        assert refused.code == 3
        assert till in refused.said
        ended = way.drivers.execute(kind, "--accept-loss", str(lost))
        assert names(ended.document) == {till}
        assert [(it["start"], it["end"]) for it in ended.document["tail"]] == [
            (start, start + lost)
        ]
        client.commit_transaction(60)
        way.check_kept(topic, {b"old", b"open"})
