"""Transforms on real brokers: what is changed, dropped and routed, how groups follow, and faults."""

from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from mm2py.clock import closing
from tests.integration.cluster_changes import grow
from tests.integration.connect_process import DISTRIBUTED, mirror_config, rest_of, write_worker
from tests.integration.exactly_once import ENABLED
from tests.integration.flow_questions import SOURCE, Asked, path_of
from tests.integration.java_connect import JavaConnect
from tests.integration.ledger_scenes import entries
from tests.integration.mirror_process import (
    GROUPS,
    PROMPT,
    SHORT_SESSION,
    Flow,
    Mirror,
    Running,
    command_here,
    run_to_end,
    running,
    until,
    until_equal,
)
from tests.integration.offset_census import take_census
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Log,
    Logs,
    Record,
    Sent,
    assert_equal,
    assert_resumed,
    commit,
    committed,
    committed_positions,
    ends,
    numbered,
    read,
    wait_covered,
    write,
)
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS: Final = 2
RATE: Final = 1_000
APACHE: Final = "org.apache.kafka.connect.transforms."
FILTERED: Final = {
    "transforms": "drop,clean,mark",
    "transforms.drop.type": APACHE + "Filter",
    "transforms.drop.predicate": "gone",
    "transforms.clean.type": APACHE + "DropHeaders",
    "transforms.clean.headers": "secret",
    "transforms.mark.type": APACHE + "InsertHeader",
    "transforms.mark.header": "copied",
    "transforms.mark.value.literal": "yes",
    "predicates": "gone",
    "predicates.gone.type": APACHE + "predicates.RecordIsTombstone",
}
"""Drops tombstones, one header out, one in."""


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("changed", PARTITIONS)


def a_flow(
    setup: Setup, topics: str, transforms: Mapping[str, str], more: Mapping[str, str] | None = None
) -> Flow:
    own = {"{source}->{target}." + name: text for name, text in transforms.items()}
    return setup.flow(topics, {**own, **(more or {})})


def merging(pattern: str, name: str) -> dict[str, str]:
    return {
        "transforms": "merge",
        "transforms.merge.type": APACHE + "RegexRouter",
        "transforms.merge.regex": pattern,
        "transforms.merge.replacement": name,
    }


def kinds(first: int, count: int) -> list[Sent]:
    """Different values; every third is a tombstone, every second has the header that nobody may see."""
    return [
        Sent(
            number % PARTITIONS,
            None if number % 3 == 0 else b"value %d" % number,
            b"key %d" % number,
            (("secret", b"x"), ("open", None)) if number % 2 else (),
            1_600_000_000_000 + number,
        )
        for number in range(first, first + count)
    ]


def expected(truth: Logs) -> Logs:
    """Return what ``FILTERED`` leaves of logs, under the source's offsets."""
    left: Logs = {}
    for partition, log in truth.items():
        kept = [
            (offset, record._replace(headers=(*_open(record), ("copied", b"yes"))))
            for offset, record in zip(log.offsets, log.records, strict=True)
            if record.value is not None
        ]
        left[partition] = Log([offset for offset, _ in kept], [record for _, record in kept])
    return left


def _open(record: Record) -> Sequence[tuple[str, bytes | None]]:
    return [header for header in record.headers if header[0] != "secret"]


async def test_dropped_records_are_holes_and_every_offset_translates_right(
    setup: Setup, topic: str
) -> None:
    own = {**SHORT_SESSION, "{source}.consumer.isolation.level": "read_committed"}
    flow = a_flow(setup, topic, FILTERED, own)
    first = 0
    for turn, codec in enumerate(("none", "lz4", "gzip", "zstd")):
        with Mirror(flow.file, name=f"turn-{turn}") as mirror:
            mirror.wait_ready()
            write(setup.a, topic, kinds(first, 600), compression_type=codec, linger_ms=20)
            write_mixed(setup.a, topic, 10, 20, turn=turn)
            # A long stretch of which nothing is left: position, lag and groups go past it.
            write(setup.a, topic, [Sent(n % PARTITIONS, None, b"gone") for n in range(500)])
            first += 600
            if turn == 1:
                until(lambda: ends(setup.b, flow.remote(topic)), 90, "the copy", alive=mirror)
                mirror.kill()
                continue
            wait_covered(mirror, flow, topic)
            assert mirror.stop() == 0
            assert mirror.complaints() == []
    truth, copy = (
        expected(read(setup.a, topic, committed=True)),
        read(setup.b, flow.remote(topic)),
    )
    assert_equal(truth, copy)  # not even the kill doubles a record
    census = await take_census(flow, topic, truth, copy)
    assert census.asked > 2_000
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"


def test_a_group_inside_a_dropped_stretch_continues_at_the_next_record_that_is_left(
    setup: Setup, topic: str
) -> None:
    group = setup.unique("readers")
    flow = a_flow(setup, topic, FILTERED, GROUPS)
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(50)])
    write(setup.a, topic, [Sent(0, None, b"k") for _ in range(400)])
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(50, 60)])
    commit(setup.a, group, topic, {0: 222})
    with running(flow.file) as mirror:
        # The record behind the stretch; before its offset map is written the group is further back, never further ahead.
        until_equal(lambda: committed(setup.b, group, flow.remote(topic)).get(0), 50, alive=mirror)
        commit(setup.a, group, topic, {0: 453})
        until_equal(lambda: committed(setup.b, group, flow.remote(topic)).get(0), 53, alive=mirror)


def wait_more(mirror: Running, region: KafkaAddress, topic: str, records: int) -> None:
    """Wait until there are so many records more on a topic."""
    before = sum(ends(region, topic).values())
    until(lambda: sum(ends(region, topic).values()) >= before + records, 90, "copies", alive=mirror)


@pytest.mark.faults
@pytest.mark.parametrize(
    "exactly_once", matrix([(True,)], [(False,)]), ids=["exactly-once", "at-least-once"]
)
def test_topics_that_are_merged_by_several_tasks_lose_nothing_in_kills_and_stops(
    setup: Setup, exactly_once: bool
) -> None:
    base = setup.unique("merged")
    names, merged = (f"{base}-eu", f"{base}-us"), f"all-{base}"
    for name in names:
        setup.create_topic(setup.a, name, PARTITIONS)
    setup.create_topic(setup.b, merged, PARTITIONS)
    flow = a_flow(
        setup,
        f"{base}.*",
        merging(rf".*\.{base}-.*", merged),
        {"{source}->{target}.tasks.max": "4", **SHORT_SESSION, **(ENABLED if exactly_once else {})},
    )
    loads = [Load(setup.a, name, PARTITIONS, rate=RATE, mark=name.encode()) for name in names]
    with loads[0], loads[1]:
        for turn, ending in enumerate(("stop", "kill", "stop")):
            with Mirror(flow.file, name=f"{ending}-{turn}") as mirror:
                wait_more(mirror, setup.b, merged, RATE)
                for load in loads:
                    load.wait_acked(RATE)
                if ending == "kill":
                    mirror.kill()
                else:
                    assert mirror.stop() == 0, mirror.tail()
        for load in loads:
            load.stop()
    with running(flow.file, name="last") as mirror:
        for name in names:
            wait_covered(mirror, flow, name)
    copy = read(setup.b, merged, committed=exactly_once)
    doubled = 0
    for name in names:
        truth = read(setup.a, name)
        mine = {
            p: Log([], [it for it in log.records if name.encode() in (it.value or b"")])
            for p, log in copy.items()
        }
        doubled += assert_resumed(truth, mine, rewinds=0 if exactly_once else 2)
    assert doubled == 0 or not exactly_once
    assert not any(ends(setup.b, flow.remote(names[0])).values()), "all of it went elsewhere"


@pytest.mark.faults
def test_clean_stops_double_nothing_of_what_is_routed(setup: Setup, topic: str) -> None:
    other = setup.topic("routed", PARTITIONS, on=setup.b)
    flow = a_flow(setup, topic, merging(rf".*\.{topic}", other))
    with Load(setup.a, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(3):
            with running(flow.file, name=f"turn-{turn}") as mirror:
                wait_more(mirror, setup.b, other, RATE // 2)
                load.wait_acked(RATE // 2)
        load.stop()
    with running(flow.file, name="last") as mirror:
        wait_covered(mirror, flow, topic)
    assert mirror.complaints() == []
    assert_equal(read(setup.a, topic), read(setup.b, other))


def test_topics_that_a_transform_names_are_created_by_the_targets_brokers(setup: Setup) -> None:
    topic = setup.topic("dated", 1)
    days = (1_600_000_000_000, 1_600_086_400_000, 1_600_172_800_000)
    write(setup.a, topic, [Sent(0, b"%d" % n, timestamp_ms=days[n % 3] + n) for n in range(300)])
    dated = {"transforms": "date", "transforms.date.type": APACHE + "TimestampRouter"}
    flow = a_flow(setup, topic, dated)
    names = [f"{flow.remote(topic)}-{day}" for day in ("20200913", "20200914", "20200915")]
    with running(flow.file) as mirror:
        wait_covered(mirror, flow, topic)
    for number, name in enumerate(names):
        (log,) = read(setup.b, name).values()
        assert [it.value for it in log.records] == [b"%d" % n for n in range(number, 300, 3)]


def test_a_flow_that_may_not_have_transforms_is_refused_by_line(setup: Setup, topic: str) -> None:
    flow = a_flow(setup, topic, FILTERED, {"{source}->{target}.offsets.identical": "require"}
    )  # fmt: skip
    ended = run_to_end(flow.file)
    assert ended.returncode == 1
    assert "offsets.identical" in ended.stderr
    assert "not possible with transforms" in ended.stderr
    flow = a_flow(setup, topic, {**FILTERED, "transforms.drop.type": APACHE + "ValueToKey"})  # fmt: skip
    ended = run_to_end(flow.file)
    assert ended.returncode == 1
    assert "transforms.drop.type" in ended.stderr
    assert "structures" in ended.stderr


def wait_for_records(region: KafkaAddress, topics: Sequence[str], records: int) -> None:
    """Wait until topics have so many records together."""

    def there() -> int:
        return sum(sum(ends(region, topic).values()) for topic in topics)

    until(lambda: there() == records, 90, lambda: f"{records} records, there are {there()}")


@pytest.mark.faults
@pytest.mark.java
async def test_the_same_transforms_leave_the_same_as_javas(setup: Setup, topic: str) -> None:
    write(setup.a, topic, kinds(0, 600), linger_ms=20)
    own = {
        "transforms": "drop,clean,route",
        "transforms.drop.type": APACHE + "Filter",
        "transforms.drop.predicate": "gone",
        "transforms.clean.type": APACHE + "DropHeaders",
        "transforms.clean.headers": "secret",
        "transforms.route.type": APACHE + "RegexRouter",
        "transforms.route.regex": "(.*)\\.(.*)",
        "transforms.route.replacement": "$2.from.$1",
        "transforms.route.predicate": "marked",
        "transforms.route.negate": "true",
        "predicates": "gone,marked",
        "predicates.gone.type": APACHE + "predicates.RecordIsTombstone",
        "predicates.marked.type": APACHE + "predicates.HasHeaderKey",
        "predicates.marked.name": "open",
        "header.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    }
    both = {p: len(log.records) for p, log in expected(read(setup.a, topic)).items()}
    logs: list[list[Logs]] = []
    async with closing(
        JavaConnect(setup.b.bootstrap_servers, setup.unique("java"), setup.folder)
    ) as java:
        await java.ready()
        with Mirror(
            write_worker(setup.folder, setup.b), name="ours", program=DISTRIBUTED
        ) as worker:
            ours = rest_of(worker)
            for who in ("java", "ours"):
                alias = setup.unique(who).replace("-", "")
                config = mirror_config(setup.a, setup.b, alias, topic) | own
                names = (f"{alias}.{topic}", f"{topic}.from.{alias}")
                setup.create_topic(setup.b, names[1], PARTITIONS)
                body = {"name": f"m-{alias}", "config": config}
                if who == "java":
                    await java.call("POST", "/connectors", body, expected=201)
                else:
                    ours.ok("POST", "connectors", body)
                wait_for_records(setup.b, names, sum(both.values()))
                logs.append([read(setup.b, name) for name in names])
    for of_java, of_ours in zip(*logs, strict=True):
        assert sum(len(log.records) for log in of_java.values()) > 100
        assert_equal(of_java, of_ours)


ROUTE: Final = "route"


def routed_to(name: str, pattern: str = ".*") -> dict[str, str]:
    own = "{source}->{target}.transforms"
    return {
        own: ROUTE,
        f"{own}.{ROUTE}.type": APACHE + "RegexRouter",
        f"{own}.{ROUTE}.regex": pattern,
        f"{own}.{ROUTE}.replacement": name,
        **SHORT_SESSION,
    }


@pytest.mark.faults
def test_a_partition_that_a_router_names_and_that_is_not_there_is_waited_for_and_named(
    setup: Setup, topic: str
) -> None:
    other = setup.topic("narrow", 1, on=setup.b)
    write(setup.a, topic, numbered(0, 400, 2))
    flow = setup.flow(topic, routed_to(other) | PROMPT)
    with running(flow.file, ready=False) as mirror:
        ask = Asked(mirror)
        until(lambda: committed_positions(flow, topic) == {0: 199}, 90, "partition 0", alive=mirror)

        def held() -> str:
            found = ask.done("GET", path_of(flow))
            return next(
                (it["message"] for it in found["errors"] if it["where"] == f"{topic}-1"), ""
            )

        until(lambda: f"sends records to {other}-1" in held(), 90, held, alive=mirror)
        assert "add the partition" in held()
        until_equal(lambda: ask.done("GET", path_of(flow))["state"], "DEGRADED", alive=mirror)
        write(setup.a, topic, numbered(400, 200, 2))
        until(lambda: ends(setup.b, other)[0] == 300, 90, "the others go on", alive=mirror)
        grow(setup.b, other, 2)
        wait_covered(mirror, flow, topic)
        until(lambda: not ask.done("GET", path_of(flow))["errors"], 90, held, alive=mirror)
    assert_equal(read(setup.a, topic), read(setup.b, other))


@pytest.mark.faults
def test_own_copies_behind_a_router_that_was_removed_are_not_called_another_programs(
    setup: Setup,
) -> None:
    """A router sent the records of two topics into the copy of one."""
    prefix = setup.unique("merged")
    one, two = (setup.topic(f"{prefix}-{it}", 1) for it in ("one", "two"))
    flow = setup.flow(f"{one},{two}", PROMPT)
    copy, plain = flow.remote(one), flow.file.read_text("latin-1")
    alias = {"source": flow.source_alias, "target": flow.target_alias}
    router = "".join(f"{k.format(**alias)} = {v}\n" for k, v in routed_to(copy).items())
    for number, (text, end) in enumerate(((plain, 5), (plain + router, 10), (plain, 12)), 1):
        flow.file.write_text(text, encoding="latin-1")
        write(setup.a, one, numbered(10 * number, 2 if number > 1 else 5))
        if text != plain:
            write(setup.a, two, numbered(20, 3))
        with running(flow.file, name=f"worker-{number}") as mirror:
            until_equal(lambda: ends(setup.b, copy), {0: end}, alive=mirror)
            assert not mirror.lines("another program")
    assert [it for it in entries(flow) if it.topic in (one, two)] == []


@pytest.mark.faults
@pytest.mark.parametrize("more", [{}, ENABLED], ids=["at-least-once", "exactly-once"])
def test_a_poisoned_record_ends_the_task_behind_those_before_it_and_a_change_over_rest_continues(
    setup: Setup, topic: str, more: dict[str, str]
) -> None:
    other = setup.topic("routed", 2, on=setup.b)
    write(setup.a, topic, numbered(0, 100, 2))
    write(setup.a, topic, [Sent(0, b"poison", headers=((ROUTE, b""),))])
    write(setup.a, topic, numbered(100, 100, 2))
    own = "{source}->{target}."
    poisoned = {
        own + "transforms": f"{ROUTE},poison",
        own + "transforms.poison.type": APACHE + "RegexRouter",
        own + "transforms.poison.regex": ".*",
        own + "transforms.poison.replacement": "no legal name",
        own + "transforms.poison.predicate": "some",
        own + "predicates": "some",
        own + "predicates.some.type": APACHE + "predicates.HasHeaderKey",
        own + "predicates.some.name": ROUTE,
    }
    flow = setup.flow(topic, routed_to(other) | poisoned | more | PROMPT)
    with running(flow.file, ready=False) as mirror:
        ask = Asked(mirror)
        line = mirror.wait_for_log("task failed")
        assert f"{topic}-0 offset 50" in line
        assert "no legal name" in line
        until_equal(lambda: committed_positions(flow, topic).get(0), 49, "what is before it", alive=mirror)  # fmt: skip
        assert len(read(setup.b, other, committed=True)[0].records) == 50
        path = f"/{flow.source_alias}/{flow.target_alias}/connectors/{SOURCE}/config"
        config = ask.done("GET", path)
        ask.done("PUT", path, config | {"errors.tolerance": "all"})
        wait_covered(mirror, flow, topic)
        # Routes change under load, and nothing is lost or doubled by that.
        third = setup.topic("third", 2, on=setup.b)
        with Load(setup.a, topic, 2, rate=1_000) as load:
            for name in (third, other, third):
                load.wait_acked(800)
                changed = config | {
                    "transforms": ROUTE,
                    f"transforms.{ROUTE}.replacement": name,
                    "errors.tolerance": "none",
                }
                ask.done("PUT", path, changed)
            load.wait_acked(800)
            load.stop()
        wait_covered(mirror, flow, topic)
    copies = [read(setup.b, it, committed=True) for it in (other, third)]
    assert all(copies[1][p].records for p in (0, 1))
    for partition, log in read(setup.a, topic).items():
        there = [it for copy in copies for it in copy[partition].records]
        assert sorted(there, key=_value) == sorted(
            (it for it in log.records if it.value != b"poison"), key=_value
        )


def _value(record: Record) -> bytes:
    return record.value or b""


@pytest.mark.faults
def test_routers_that_take_the_prefix_away_both_ways_copy_once_also_from_two_files(setup: Setup) -> None:  # fmt: skip
    topic = setup.topic_on_both("shared", 1)
    strip = routed_to("$1", f".*[.]({topic})")
    there = setup.flow(topic, strip | PROMPT)
    back = setup.flow(topic, strip | PROMPT, source=setup.b, target=setup.a)
    with Mirror(there.file, name="there") as one, Mirror(back.file, name="back") as two:
        write(setup.a, topic, [Sent(0, b"a%d" % n) for n in range(50)])
        until(lambda: ends(setup.b, topic)[0] == 50, 90, "the way there", alive=one)
        write(setup.b, topic, [Sent(0, b"b%d" % n) for n in range(50)])
        until(lambda: ends(setup.a, topic)[0] == 100, 90, "the way back", alive=two)
        # Nothing is under way any more: what came from the other side is dropped, and its position stored.
        wait_covered(one, there, topic)
        wait_covered(two, back, topic)
        assert [mirror.stop() for mirror in (one, two)] == [0, 0]
    values = [sorted(map(_value, read(it, topic)[0].records)) for it in (setup.a, setup.b)]
    expected = [*(b"a%d" % n for n in range(50)), *(b"b%d" % n for n in range(50))]
    assert values[0] == values[1] == sorted(expected)


@pytest.mark.faults
def test_commands_that_move_records_as_they_are_refuse_a_flow_with_transforms(
    setup: Setup, topic: str
) -> None:
    flow = setup.flow(topic, routed_to("x-$0"))
    where = [str(flow.file), "--flow", flow.name]
    for command in (
        ("backfill", "plan", *where),
        ("backfill", "run", *where),
        ("verify", *where),
        ("rerun", *where, "--topic", topic, "--into", setup.unique("again")),
        ("restore", *where, "--from", str(setup.folder)),
    ):
        ended = command_here(*command)
        assert ended.exit_code == 1, (command, ended.stdout, ended.stderr)
        assert f"records of flow {flow.name} pass transforms={ROUTE}" in ended.stderr, command
    with flow.file.open("a") as file:
        file.write(f"{flow.name}.flow.engine = spark\n")
    ended = command_here("stream", *where)
    assert ended.exit_code != 0
    assert "transforms" in ended.stderr
