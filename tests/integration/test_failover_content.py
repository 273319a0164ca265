"""Failovers and failbacks of flows whose content is not plain: open transactions, transforms, topics that were recreated.

Open transactions are waited for by name, or passed and kept. What a chain drops or routes elsewhere counts as copied, groups inside of it
lose nothing, and none of it comes back. Nothing of a recreated topic counts as copied, even where it has as many records.
"""

import threading
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import (
    allow,
    delete_records,
    delete_topic,
    set_config,
    take_write,
)
from tests.integration.failovers import (
    EXACTLY_ONCE,
    PARTITIONS,
    Drivers,
    Ended,
    Sides,
    Stage,
    as_mirror,
    secured_pair,
    secured_region,
)
from tests.integration.flow_questions import Asked
from tests.integration.ledger_scenes import entries
from tests.integration.mirror_process import until, until_equal
from tests.integration.rest_asking import ask
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import (
    Sent,
    commit,
    committed,
    committed_positions,
    ends,
    producer,
    read,
    wait_for_markers,
    write,
)
from tests.integration.transactions import abandon, take_over
from tests.kit.kafka.region import Region
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(600)]

LONG_MS: Final = 600_000
COMMITTED: Final = {
    "{source}.consumer.isolation.level": "read_committed",
    "{target}.consumer.isolation.level": "read_committed",
}
EXACTLY_ONCE_ALONE: Final = {
    "{source}.exactly.once.source.support": "enabled",
    "{target}.exactly.once.source.support": "enabled",
}
SLOW: Final = {
    "sync.topic.configs.enabled": "false",
    "{source}->{target}.flow.max.bytes.per.second": "20000",
    "{target}->{source}.flow.max.bytes.per.second": "20000",
}
COMPACT: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.001",
}
ROLL_MS: Final = 90_000
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
BEFORE_SWITCH: Final = ("FENCE", "DRAIN", "GROUPS", "VERIFY")


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with secured_pair("fc") as pair:
        yield pair


@pytest.fixture
def stage(setup: Setup, sides: Sides) -> Stage:
    return Stage(*sides, setup.unique, setup.create_topic, setup.folder)


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
        wanted = values(self.here, topic)
        until_equal(lambda: values(self.there, topic), wanted, alive=self.drivers.mirror)

    def check_kept(self, topic: str, were_open: set[bytes]) -> None:
        """Every record that is committed here is there or kept, and what was open when it was kept is marked."""
        wait_for_markers(self.here, topic)
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
def prepared(kind: str, stage: Stage, topic: str, properties: Mapping[str, str]) -> Generator[Way]:
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


def keyed(turn: int, number: int, at_ms: int) -> Sent:
    """One of a turn's records of 400 bytes; each turn has more keys, so that the turns before it keep some."""
    key = b"%d" % (number % (20 + 7 * turn))
    return Sent(number % PARTITIONS, b"%d-%d-" % (turn, number) + bytes(400), key, (), at_ms)


def newest(region: Region, topic: str) -> dict[bytes, bytes | None]:
    """Return the newest value of each key."""
    logs = read(region, topic)
    return {it.key: it.value for log in logs.values() for it in log.records if it.key}


def names(record: Any) -> set[str]:
    return set() if record is None else {it["transactional_id"] for it in record["transactions"]}


@pytest.mark.parametrize(
    ("kind", "properties"),
    matrix([("failover", EXACTLY_ONCE_ALONE), ("failback", COMMITTED)], [("failover", COMMITTED)]),
    ids=["exactly-once", "failback", "committed"],
)
def test_a_drain_waits_for_producers_that_write_on_hang_or_are_fenced_and_names_them(
    stage: Stage, kind: str, properties: dict[str, str]
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
            until(lambda: names(way.status()) == {till, gone}, 120, lambda: f"{drivers.said}")
            take_over(here, gone)
            client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        assert (ended[0].document["tail"], ended[0].document["transactions"]) == ([], [])
        assert len(values(here, topic)) == before + 20 + 11
        assert values(here, topic) == values(way.there, topic)


@pytest.mark.parametrize(
    ("kind", "step", "properties"),
    matrix(
        [
            ("failover", "DRAIN", EXACTLY_ONCE_ALONE),
            ("failback", "GROUPS", COMMITTED),
            ("failback", "VERIFY", EXACTLY_ONCE_ALONE),
            ("failover", "SWITCH", COMMITTED),
        ],
        [
            ("failover", "FENCE", COMMITTED),
            ("failback", "FENCE", EXACTLY_ONCE_ALONE),
            ("failback", "DRAIN", COMMITTED),
            ("failover", "GROUPS", EXACTLY_ONCE_ALONE),
            ("failover", "VERIFY", COMMITTED),
            ("failback", "SWITCH", EXACTLY_ONCE_ALONE),
            ("failover", "TAIL", COMMITTED),
            ("failback", "TAIL", EXACTLY_ONCE_ALONE),
        ],
    ),
)
def test_what_a_transaction_writes_after_a_step_is_copied_or_kept(
    stage: Stage, kind: str, step: str, properties: Mapping[str, str]
) -> None:
    """By a producer that no ACL blocks, which commits after the failover is done where clients have moved already.

    What it begins once TAIL is over, in REVERSE, is as what it writes after the end: the flow back has it as another writer's.
    """
    topic, till = stage.unique("orders"), stage.unique("till")
    with prepared(kind, stage, topic, properties) as way:
        drivers = way.drivers
        way.copy(topic)
        client = opened(way.here, till)
        way.run("--execute", "--settle", "1", kill_at=step)
        # It may have gone on before it died.
        has_switched = step not in BEFORE_SWITCH or way.status()["step"] not in BEFORE_SWITCH
        write_in(client, topic, b"late", b"later")
        write(way.here, topic, [Sent(0, b"above")])
        with way.executing() as ended:
            if not has_switched:
                until(lambda: names(way.status()) == {till}, 120, lambda: f"{drivers.said}")
                client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(drivers.said)
        if has_switched:
            assert names(ended[0].document) == {till}
            client.commit_transaction(60)
        way.check_kept(topic, {b"late", b"later"} if has_switched else set())


@pytest.mark.parametrize("kind", matrix([("failback",)], [("failover",)]))
def test_what_retention_takes_while_a_drain_waits_is_in_the_ledger_and_no_group_waits_for_it(
    stage: Stage, kind: str
) -> None:
    """Records above an open transaction, which the flow may not read yet: the drain ends without them, and names them."""
    topic, till, group = stage.unique("orders"), stage.unique("till"), stage.unique("billing")
    with prepared(kind, stage, topic, COMMITTED) as way:
        way.copy(topic)
        here, there, flow = way.here, way.there, way.drivers.flow
        copied, start = values(here, topic), ends(here, topic)[0]
        commit(here, group, topic, {0: start, 1: ends(here, topic)[1]})
        client = opened(here, till)
        write_in(client, topic, b"open")
        write(here, topic, [Sent(n % PARTITIONS, b"above %d" % n) for n in range(20)])
        with way.executing() as ended:
            until(lambda: names(way.status()) == {till}, 120, lambda: f"{way.drivers.said}")
            gone = ends(here, topic)[0]
            delete_records(here, topic, 0, gone)
            client.commit_transaction(60)
        assert ended[0].code == 0, "\n".join(way.drivers.said)
        assert ended[0].document["tail"] == []
        assert values(there, topic) == copied | {b"above %d" % n for n in range(1, 20, 2)}
        lost = [(it.kind, it.partition, it.first) for it in entries(flow) if it.topic == topic]
        assert lost == [("retention", 0, start)]
        assert committed(there, group, topic)[0] == ends(there, topic)[0]


@pytest.mark.parametrize("kind", matrix([("failover",)], [("failback",)]))
def test_what_the_cleaner_takes_while_a_drain_copies_is_no_loss_and_no_group_skips_what_is_left(
    stage: Stage, kind: str
) -> None:
    """A flow that is slower than the cleaner: the drain ends although much of what it waited for is gone."""
    topic, group = stage.unique("orders"), stage.unique("billing")
    with prepared(kind, stage, topic, SLOW) as way:
        here, there, flow = way.here, way.there, way.drivers.flow
        way.copy(topic)
        for name, value in COMPACT.items():
            set_config(here, topic, name, value)
        start = ends(here, topic)
        begin_ms = SYSTEM_CLOCK.now_ms()
        turns = range(6)
        for turn in turns:  # segments roll by the time in the records
            at = begin_ms + turn * ROLL_MS
            write(here, topic, [keyed(turn, n, at) for n in range(200)], linger_ms=5)
        at_hole = {partition: first + 120 for partition, first in start.items()}
        commit(here, group, topic, at_hole)
        ended = way.drivers.execute(kind)
        assert ended.document["tail"] == []
        written = 200 * len(turns)
        assert len(values(there, topic)) < written, "nothing was compacted before it was copied"
        assert newest(there, topic) == newest(here, topic)
        assert [it for it in entries(flow) if it.topic == topic] == []
        positions = committed(there, group, topic)
        for partition, log in read(here, topic).items():
            copy = read(there, topic)[partition]
            left, seen = (
                set(it.records[bisect_left(it.offsets, at) :])
                for it, at in ((log, at_hole[partition]), (copy, positions[partition]))
            )
            assert {it.value for it in left} <= {it.value for it in seen}


def test_a_drain_waits_for_the_right_to_write_that_is_taken_away_from_the_mirror(
    stage: Stage,
) -> None:
    topic, till = stage.unique("orders"), stage.unique("till")
    allow(stage.b, topic, "mirror")
    properties = {**COMMITTED, **as_mirror(stage.b, "{target}")}
    with prepared("failover", stage, topic, properties) as way:
        way.copy(topic)
        client = opened(way.here, till)
        write_in(client, topic, b"open")
        with way.executing() as ended:
            until(lambda: names(way.status()) == {till}, 120, lambda: f"{way.drivers.said}")
            take_write(way.there, topic, "mirror")
            client.commit_transaction(60)
            way.drivers.mirror.wait_for_log(f"{way.drivers.name}.*target refuses partitions.*Write")
            allow(way.there, topic, "mirror")
        assert ended[0].code == 0, "\n".join(way.drivers.said)
        assert ended[0].document["tail"] == []
        assert values(way.here, topic) == values(way.there, topic)


def test_a_target_whose_disk_is_full_amid_a_drain_has_everything_when_it_has_room_again(
    setup: Setup, sides: Sides
) -> None:
    """Its broker ends: the driver waits for it, and continues what it had begun."""
    with (
        small_disk(setup.folder) as disk,
        secured_region("fc-full", FEW_INDEXES, disk=disk) as there,
    ):
        stage = Stage(sides[0], there, setup.unique, setup.create_topic, setup.folder)
        topic, till = setup.unique("orders"), setup.unique("till")
        with prepared("failover", stage, topic, COMMITTED) as way:
            way.copy(topic)
            client = opened(way.here, till)
            write_in(client, topic, b"open")
            with way.executing() as ended:
                until(lambda: names(way.status()) == {till}, 120, lambda: f"{way.drivers.said}")
                ballast = disk / "ballast"
                fill(ballast)
                write(way.here, topic, [Sent(1, bytes(50_000)) for _ in range(100)])
                until(lambda: not there.node(1).is_running, 90, "the broker to give up")
                client.commit_transaction(60)
                ballast.unlink()
                there.start()
            assert ended[0].code == 0, "\n".join(way.drivers.said)
            assert ended[0].document["tail"] == []
            assert values(way.here, topic) == values(there, topic)


@pytest.mark.parametrize("kind", matrix([("failback",)], [("failover",)]))
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


@pytest.mark.parametrize(
    "properties", matrix([(EXACTLY_ONCE,)], [({},)]), ids=["exactly-once", "plain"]
)
def test_what_a_chain_drops_or_routes_is_copied_and_groups_inside_of_it_skip_nothing(
    stage: Stage, properties: Mapping[str, str]
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
        # Counted in records: a transaction may have ended between any two of them.
        copied = read(b, topic, committed=True)[0].offsets
        for group, (at, there) in groups.items():
            moved = committed(b, group, topic)
            assert (bisect_left(copied, moved[0]), moved[1]) == (there, 0), f"{group} at {at}"
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


def test_what_a_paused_topic_leaves_behind_is_kept_and_no_group_that_comes_home_has_passed_it(
    stage: Stage,
) -> None:
    """It is accepted as a loss. A group that has read nothing where clients were finds it unread at home; one that has goes on behind it."""
    a, b = stage.a, stage.b
    topic = stage.unique("orders")
    left, read_on = f"left-{topic}", f"read-on-{topic}"
    with stage.home(topic) as drivers:
        mirror = drivers.mirror
        write(a, topic, [Sent(0, b"%d" % n) for n in range(10)])
        stored = committed_positions
        until(lambda: stored(drivers.flow, topic).get(0) == 9, 90, "the copy", alive=mirror)
        Asked(mirror).pause(drivers.flow, topic=topic)
        write(a, topic, [Sent(0, b"%d" % n) for n in range(10, 30)])
        for group in (left, read_on):
            commit(a, group, topic, {0: 20})
        refused = drivers.run("failover", "--execute", "--settle", "1")
        assert refused.code == 3
        assert "20 offsets would not be copied" in refused.said
        (tail,) = drivers.execute("failover", "--accept-loss", "20").document["tail"]
        assert (tail["start"], tail["end"], tail["records"]) == (10, 30, 20)
        write(b, topic, [Sent(0, b"%d" % n) for n in range(30, 40)])
        until(lambda: ends(a, topic)[0] == 40, 90, "the way back", alive=mirror)
        commit(b, read_on, topic, {0: 15})
        drivers.execute("failback")
        places = {group: committed(a, group, topic)[0] for group in (left, read_on)}
        assert places == {left: 20, read_on: 35}
        # What was kept is not copied late: it would come behind what clients wrote since.
        assert ask(f"{drivers.url}/resume?topic={topic}", "POST")[0] == 200
        write(a, topic, [Sent(0, b"%d" % n) for n in range(40, 45)])
        until(lambda: ends(b, topic)[0] == 25, 90, "the flow", alive=mirror)
        values = [int(it.value or b"") for it in read(b, topic)[0].records]
        assert values == [*range(10), *range(30, 45)]


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
        create_again(stage, a, topic)
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


def moved_away(stage: Stage, drivers: Drivers, topic: str) -> None:
    """Write on A, move clients to B, write there, and wait until that is on A."""
    write(stage.a, topic, [Sent(n % PARTITIONS, b"old %d" % n) for n in range(RECORDS)])
    drivers.execute("failover")
    write(stage.b, topic, [Sent(n % PARTITIONS, b"away %d" % n) for n in range(RECORDS)])
    there = dict.fromkeys(range(PARTITIONS), 2 * RECORDS // PARTITIONS)
    until_equal(lambda: ends(stage.a, topic), there, alive=drivers.mirror)


def create_again(stage: Stage, region: Region, topic: str) -> None:
    delete_topic(region, topic)
    stage.create_topic(region, topic, PARTITIONS)
    allow(region, topic)


def check_home(stage: Stage, drivers: Drivers, topic: str) -> None:
    """What is written on A comes to B, which had three times the records, and nothing of B came back to it."""
    write(stage.a, topic, [Sent(0, b"home")])
    half = 3 * RECORDS // PARTITIONS
    wanted = {0: half + 1, 1: half}
    until_equal(lambda: ends(stage.b, topic), wanted, "home on B", alive=drivers.mirror)
    assert read(stage.b, topic)[0].records[-1].value == b"home"


def test_a_topic_that_is_created_again_where_clients_are_away_comes_home_whole(
    stage: Stage,
) -> None:
    """The topic of B, while clients are there; the flow back copies the new one, and clients return with a group."""
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    with stage.home(topic) as drivers:
        mirror = drivers.mirror
        moved_away(stage, drivers, topic)
        create_again(stage, b, topic)
        write(b, topic, [Sent(n % PARTITIONS, b"new %d" % n) for n in range(3 * RECORDS)])
        commit(b, group, topic, dict.fromkeys(range(PARTITIONS), 1))

        def lost() -> object:
            return drivers.run("failback", "--plan", "-o", "json").document["would_lose"]

        # Until the flow back reads the new topic its partitions are FAILED, and a failback refuses to leave them.
        until(lambda: lost() == 0, 90, lambda: f"{lost()}", alive=mirror)
        done = drivers.execute("failback").document
        assert (done["missing"], done["tail"]) == (0, [])
        half = RECORDS // PARTITIONS
        for partition, log in read(a, topic).items():
            numbers = range(partition, RECORDS, PARTITIONS)
            more = range(partition, 3 * RECORDS, PARTITIONS)
            assert [it.value for it in log.records] == [
                *(b"old %d" % n for n in numbers),
                *(b"away %d" % n for n in numbers),
                *(b"new %d" % n for n in more),
            ]
        place = committed(a, group, topic)
        assert place == dict.fromkeys(range(PARTITIONS), 2 * half + 1)
        check_home(stage, drivers, topic)


def test_a_topic_that_is_created_again_where_clients_return_to_is_named_and_clients_go_on_in_it(
    stage: Stage,
) -> None:
    """The topic of A, while clients are on B: what A had is on B alone, which the plan says, and nothing of B comes back to it."""
    a, b = stage.a, stage.b
    topic, group = stage.unique("orders"), stage.unique("billing")
    with stage.home(topic) as drivers:
        mirror, flow = drivers.mirror, drivers.flow
        moved_away(stage, drivers, topic)
        create_again(stage, a, topic)
        write(b, topic, [Sent(n % PARTITIONS, b"new %d" % n) for n in range(RECORDS)])
        until(lambda: sum(ends(a, topic).values()) == RECORDS, 90, "the rest", alive=mirror)
        half = RECORDS // PARTITIONS
        commit(b, group, topic, dict.fromkeys(range(PARTITIONS), 2 * half + 1))

        def problems() -> str:
            plan = drivers.run("failback", "--plan", "-o", "json")
            return " ".join(plan.document["topics"][0]["problems"])

        # The map is written with the positions.
        lost = f"{half} offsets of partition 0 were copied and then lost"
        until(lambda: lost in problems(), 90, problems, alive=mirror)
        assert f"topic {topic} was created again on {flow.source_alias}" in problems()
        timed = drivers.run("failback", "--plan", "--timed")
        assert (timed.code, f"not ready: {topic}: {lost}" in timed.said) == (3, True), timed.said
        done = drivers.execute("failback").document
        assert (done["missing"], done["tail"]) == (0, [])
        for partition, log in read(a, topic).items():
            numbers = range(partition, RECORDS, PARTITIONS)
            assert [it.value for it in log.records] == [b"new %d" % n for n in numbers]
        assert committed(a, group, topic) == dict.fromkeys(range(PARTITIONS), 1)
        check_home(stage, drivers, topic)
