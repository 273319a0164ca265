"""Failovers and failbacks of flows whose content is not plain: open transactions, transforms, topics that were recreated.

Open transactions are waited for by name, or passed and kept. What a chain drops or routes elsewhere counts as copied, groups inside of it
lose nothing, and none of it comes back. Nothing of a recreated topic counts as copied, even where it has as many records.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.integration.cluster_changes import delete_topic
from tests.integration.failovers import (
    EXACTLY_ONCE,
    PARTITIONS,
    Drivers,
    Ended,
    Sides,
    Stage,
    allow_shop,
    secured_pair,
)
from tests.integration.mirror_process import until
from tests.integration.traffic import (
    Sent,
    commit,
    committed,
    committed_positions,
    ends,
    producer,
    read,
    write,
)
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
EXACTLY_ONCE_ALONE: Final = {
    "{source}.exactly.once.source.support": "enabled",
    "{target}.exactly.once.source.support": "enabled",
}
OPEN: Final = ("mm2py.source.transaction", b"open")
APACHE: Final = "org.apache.kafka.connect.transforms."
CHAIN: Final = {
    "transforms": "drop,route",
    "transforms.drop.type": APACHE + "Filter",
    "transforms.drop.predicate": "gone",
    "transforms.route.type": APACHE + "RegexRouter",
    "transforms.route.predicate": "marked",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "$1-elsewhere",
    "predicates": "gone,marked",
    "predicates.gone.type": APACHE + "predicates.RecordIsTombstone",
    "predicates.marked.type": APACHE + "predicates.HasHeaderKey",
    "predicates.marked.name": "elsewhere",
}
"""Drops tombstones, and sends what has a header to another topic."""
RECORDS: Final = 20


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("fc") as pair:
        yield pair


@pytest.fixture
def stage(
    sides: Sides, unique: Callable[[str], str], create_topic: CreateTopic, tmp_path: Path
) -> Stage:
    return Stage(*sides, unique, create_topic, tmp_path)


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
    stage: Stage,
    topic: str,
    properties: Mapping[str, str],
) -> Generator[Way]:
    """Run a worker, and bring clients to where they are to leave."""
    a, b = stage.a, stage.b
    with stage.home(topic, properties) as drivers:
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
    [("failover", COMMITTED), ("failover", EXACTLY_ONCE_ALONE), ("failback", COMMITTED)],
    ids=["committed", "exactly-once", "failback"],
)
def test_a_drain_waits_for_producers_that_write_on_hang_or_are_fenced_and_names_them(
    stage: Stage,
    kind: str,
    properties: dict[str, str],
) -> None:
    topic, till, gone = stage.unique("orders"), stage.unique("till"), stage.unique("gone")
    with prepared(kind, stage, topic, properties) as way:
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
    stage: Stage, kind: str, step: str
) -> None:
    """By a producer that no ACL blocks, which commits after the failover is done where clients have moved already."""
    topic, till = stage.unique("orders"), stage.unique("till")
    with prepared(kind, stage, topic, COMMITTED) as way:
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
    stage: Stage, kind: str
) -> None:
    topic, till = stage.unique("orders"), stage.unique("till")
    with prepared(kind, stage, topic, EXACTLY_ONCE_ALONE) as way:
        way.copy(topic)
        here, start = way.here, ends(way.here, topic)[0]
        client, other = opened(here, till), opened(here, stage.unique("other"))
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


# ---- transforms


def plain(word: str, count: int) -> list[Sent]:
    return [Sent(0, b"%s %d" % (word.encode(), n)) for n in range(count)]


def dropped(count: int) -> list[Sent]:
    return [Sent(0, None, b"gone %d" % n) for n in range(count)]


def routed(count: int) -> list[Sent]:
    return [Sent(0, b"routed %d" % n, None, (("elsewhere", b""),)) for n in range(count)]


def values_in_order(region: Region, topic: str) -> list[bytes | None]:
    return [it.value for it in read(region, topic, committed=True)[0].records]


@pytest.mark.parametrize("properties", [{}, EXACTLY_ONCE], ids=["plain", "exactly-once"])
def test_what_a_chain_drops_or_routes_is_copied_and_groups_inside_of_it_skip_nothing(
    stage: Stage,
    properties: Mapping[str, str],
) -> None:
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    elsewhere = f"{topic}-elsewhere"
    stage.create_topic(b, elsewhere, PARTITIONS)
    chain = {f"{{source}}->{{target}}.{key}": value for key, value in CHAIN.items()}
    with stage.home(topic, {**chain, **properties}) as drivers:
        # On A: 0-9 left, 10-39 dropped, 40-44 left, 45-64 routed, 65-69 left, 70-99 dropped or routed up to the end.
        write(a, topic, [*plain("one", 10), *dropped(30), *plain("two", 5), *routed(20)])
        write(a, topic, [*plain("three", 5), *dropped(15), *routed(15)])
        # All of the other partition is dropped.
        write(a, topic, [it._replace(partition=1) for it in dropped(40)])
        until(lambda: ends(b, elsewhere).get(0, 0) >= 35, 90, "the copy", alive=drivers.mirror)
        places = {"left": (5, 5), "dropped": (25, 10), "routed": (50, 15), "tail": (80, 20)}
        groups = {stage.unique(it): at for it, at in places.items()}
        for group, (at, _) in groups.items():
            commit(a, group, topic, {0: at, 1: 17})
        planned = drivers.run("failover", "--plan", "-o", "json")
        assert planned.code == 0, planned.said
        assert planned.document["would_lose"] == 0
        done = drivers.execute("failover").document
        assert (done["missing"], done["tail"]) == (0, [])
        for group, (at, there) in groups.items():
            moved = committed(b, group, topic)
            assert (moved[0], moved[1]) == (there, 0), f"{group} at {at}"
        left = [it.value for it in (*plain("one", 10), *plain("two", 5), *plain("three", 5))]
        assert values_in_order(b, topic) == left
        check_return(stage, drivers, topic, next(iter(groups)))


def check_return(stage: Stage, drivers: Drivers, topic: str, group: str) -> None:
    """Clients write to B: only that comes to A; the group returns behind it, and the chain is at work again."""
    a, b = stage.a, stage.b
    before = ends(a, topic)
    native = [*plain("new", 3), *(it._replace(partition=1) for it in plain("new", 2))]
    write(b, topic, native)
    last = drivers.mirror
    until(lambda: sum(ends(a, topic).values()) >= sum(before.values()) + 5, 90, "back", alive=last)
    # It has read all but the last two, and but the last one; the offsets have holes where transactions ended.
    logs = read(b, topic, committed=True)
    commit(b, group, topic, {0: logs[0].offsets[-2], 1: logs[1].offsets[-1]})
    done = drivers.execute("failback").document
    assert (done["missing"], done["tail"]) == (0, [])
    for partition, count in ((0, 3), (1, 2)):
        found = read(a, topic, committed=True)[partition].records[-count - 1 :]
        assert [it.value for it in found[1:]] == [b"new %d" % n for n in range(count)]
        assert found[0].value is None or found[0].headers, "nothing that came from A came back"
    logs = read(a, topic, committed=True)
    assert committed(a, group, topic) == {0: logs[0].offsets[-2], 1: logs[1].offsets[-1]}
    write(a, topic, [*dropped(3), *plain("home", 1)])
    until(lambda: values_in_order(b, topic)[-1] == b"home 0", 90, "home", alive=last)
    assert values_in_order(b, topic)[-4:] == [b"new 0", b"new 1", b"new 2", b"home 0"]


# ---- recreated topics


@pytest.mark.parametrize("ending", ["copied", "kept"])
def test_records_of_a_topic_that_was_created_again_are_copied_before_clients_move_or_kept(
    stage: Stage, ending: str
) -> None:
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    with stage.home(topic) as drivers:
        flow, mirror = drivers.flow, drivers.mirror
        write(a, topic, [Sent(n % PARTITIONS, b"old %d" % n) for n in range(RECORDS)])
        until(lambda: sum(ends(b, topic).values()) == RECORDS, 90, "the copy", alive=mirror)
        half = RECORDS // PARTITIONS
        stored = dict.fromkeys(range(PARTITIONS), half - 1)
        until(lambda: committed_positions(flow, topic) == stored, 90, "the commit", alive=mirror)
        drivers.change_flow("pause", "PAUSED")
        delete_topic(a, topic)
        stage.create_topic(a, topic, PARTITIONS)
        allow_shop(a, topic)
        write(a, topic, [Sent(n % PARTITIONS, b"new %d" % n) for n in range(RECORDS)])
        commit(a, group, topic, {0: half - 2})

        plan = drivers.run("failover", "--plan", "-o", "json")
        assert plan.document["would_lose"] == RECORDS
        assert plan.code == 3
        refused = drivers.run("failover", "--execute", "--settle", "1")
        assert f"{RECORDS} offsets would not be copied" in refused.said
        if ending == "copied":
            drivers.change_flow("resume", "RUNNING")
            done = drivers.execute("failover")
            assert done.document["tail"] == []
            copies = {record.value for log in read(b, topic).values() for record in log.records}
            assert {b"new %d" % n for n in range(RECORDS)} <= copies
            assert committed(b, group, topic)[0] == half + half - 2
            return
        done = drivers.execute("failover", "--accept-loss", str(RECORDS))
        assert sum(it["records"] for it in done.document["tail"]) == RECORDS
        kept = read(b, f"mm2py-quarantine.{flow.source_alias}.{topic}.internal")
        assert {record.value for log in kept.values() for record in log.records} == {
            b"new %d" % n for n in range(RECORDS)
        }
        # Nothing was copied of what the group knows: it skips no record there.
        assert committed(b, group, topic).get(0, 0) <= half
        write(b, topic, [Sent(0, b"native")])
        until(lambda: ends(a, topic)[0] == half + 1, 90, "the way back", alive=mirror)
        drivers.execute("failback")
        before = sum(ends(b, topic).values())
        write(a, topic, [Sent(1, b"home")])
        until(lambda: sum(ends(b, topic).values()) > before, 90, "the flow", alive=mirror)
        values = [record.value for record in read(b, topic)[1].records]
        assert values.count(b"home") == 1
        assert not [it for it in values if it is not None and it.startswith(b"new")]
