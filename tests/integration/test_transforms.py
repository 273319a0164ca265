"""Transforms on flows of MirrorSource, on real clusters: content, exact offsets, groups, routes, kills, exactly once, beside Java's."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.integration.connect_process import DISTRIBUTED, mirror_config, rest_of, write_worker
from tests.integration.exactly_once import ENABLED
from tests.integration.java_connect import JavaConnect
from tests.integration.mirror_process import (
    SHORT_SESSION,
    Flow,
    Mirror,
    Running,
    run_to_end,
    running,
    until,
    write_flow,
)
from tests.integration.offset_census import take_census
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
    read,
    write,
)
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PARTITIONS: Final = 2
RATE: Final = 1_000
APACHE: Final = "org.apache.kafka.connect.transforms."
Unique = Callable[[str], str]

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
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("changed")
    create_topic(region_a, name, PARTITIONS)
    return name


def a_flow(
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topics: str,
    transforms: Mapping[str, str],
    more: Mapping[str, str] | None = None,
) -> Flow:
    own = {"{source}->{target}." + name: text for name, text in transforms.items()}
    return write_flow(folder, source, target, topics, {**own, **SHORT_SESSION, **(more or {})})


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


def wait_covered(mirror: Running, flow: Flow, topic: str) -> None:
    """Wait until the stored positions are the last source offsets, whatever became of their records."""
    wanted = {p: end - 1 for p, end in ends(flow.source, topic).items() if end}
    until(
        lambda: committed_positions(flow, topic) == wanted,
        90,
        lambda: f"{wanted}, there is {committed_positions(flow, topic)}",
        alive=mirror,
    )


async def test_dropped_records_are_holes_and_every_offset_translates_right(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = a_flow(
        tmp_path, region_a, region_b, topic, FILTERED, {"{source}.consumer.isolation.level": "read_committed"}
    )  # fmt: skip
    first = 0
    for turn, codec in enumerate(("none", "lz4", "gzip", "zstd")):
        with Mirror(flow.file, name=f"turn-{turn}") as mirror:
            mirror.wait_ready()
            write(region_a, topic, kinds(first, 600), compression_type=codec, linger_ms=20)
            write_mixed(region_a, topic, 10, 20, turn=turn)
            # A long stretch of which nothing is left: position, lag and groups go past it.
            write(region_a, topic, [Sent(n % PARTITIONS, None, b"gone") for n in range(500)])
            first += 600
            if turn == 1:
                until(lambda: ends(region_b, flow.remote(topic)), 90, "the copy", alive=mirror)
                mirror.kill()
                continue
            wait_covered(mirror, flow, topic)
            assert mirror.stop() == 0
            assert mirror.complaints() == []
    truth, copy = (
        expected(read(region_a, topic, committed=True)),
        read(region_b, flow.remote(topic)),
    )
    assert_equal(truth, copy)  # not even the kill doubles a record
    census = await take_census(flow, topic, truth, copy)
    assert census.asked > 2_000
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"


def test_a_group_inside_a_dropped_stretch_continues_at_the_next_record_that_is_left(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, unique: Unique, tmp_path: Path
) -> None:
    group = unique("readers")
    syncing = {
        "{source}->{target}.emit.checkpoints.interval.seconds": "1",
        "{source}->{target}.sync.group.offsets.enabled": "true",
        "{source}->{target}.sync.group.offsets.interval.seconds": "1",
    }
    flow = a_flow(tmp_path, region_a, region_b, topic, FILTERED, syncing)
    write(region_a, topic, [Sent(0, b"%d" % n) for n in range(50)])
    write(region_a, topic, [Sent(0, None, b"k") for _ in range(400)])
    write(region_a, topic, [Sent(0, b"%d" % n) for n in range(50, 60)])
    commit(region_a, group, topic, {0: 222})
    with running(flow.file) as mirror:
        # The record behind the stretch; before its offset map is written the group is further back, never further ahead.
        until(
            lambda: committed(region_b, group, flow.remote(topic)).get(0) == 50,
            90,
            "50",
            alive=mirror,
        )
        commit(region_a, group, topic, {0: 453})
        until(
            lambda: committed(region_b, group, flow.remote(topic)).get(0) == 53,
            90,
            "53",
            alive=mirror,
        )


def wait_more(mirror: Running, region: KafkaAddress, topic: str, records: int) -> None:
    """Wait until there are so many records more on a topic."""
    before = sum(ends(region, topic).values())
    until(lambda: sum(ends(region, topic).values()) >= before + records, 90, "copies", alive=mirror)


@pytest.mark.faults
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_topics_that_are_merged_by_several_tasks_lose_nothing_in_kills_and_stops(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    exactly_once: bool,
) -> None:
    base = unique("merged")
    names, merged = (f"{base}-eu", f"{base}-us"), f"all-{base}"
    for name in names:
        create_topic(region_a, name, PARTITIONS)
    create_topic(region_b, merged, PARTITIONS)
    flow = a_flow(
        tmp_path,
        region_a,
        region_b,
        f"{base}.*",
        merging(rf".*\.{base}-.*", merged),
        {"{source}->{target}.tasks.max": "4", **(ENABLED if exactly_once else {})},
    )
    loads = [Load(region_a, name, PARTITIONS, rate=RATE, mark=name.encode()) for name in names]
    with loads[0], loads[1]:
        for turn, ending in enumerate(("stop", "kill", "stop")):
            with Mirror(flow.file, name=f"{ending}-{turn}") as mirror:
                wait_more(mirror, region_b, merged, RATE)
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
    copy = read(region_b, merged, committed=exactly_once)
    doubled = 0
    for name in names:
        truth = read(region_a, name)
        mine = {
            p: Log([], [it for it in log.records if name.encode() in (it.value or b"")])
            for p, log in copy.items()
        }
        doubled += assert_resumed(truth, mine, rewinds=0 if exactly_once else 2)
    assert doubled == 0 or not exactly_once
    assert not any(ends(region_b, flow.remote(names[0])).values()), "all of it went elsewhere"


def test_clean_stops_double_nothing_of_what_is_routed(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    other = unique("routed")
    create_topic(region_b, other, PARTITIONS)
    flow = a_flow(tmp_path, region_a, region_b, topic, merging(rf".*\.{topic}", other))
    with Load(region_a, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(3):
            with running(flow.file, name=f"turn-{turn}") as mirror:
                wait_more(mirror, region_b, other, RATE // 2)
                load.wait_acked(RATE // 2)
        load.stop()
    with running(flow.file, name="last") as mirror:
        wait_covered(mirror, flow, topic)
    assert mirror.complaints() == []
    assert_equal(read(region_a, topic), read(region_b, other))


def test_topics_that_a_transform_names_are_created_by_the_targets_brokers(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("dated")
    create_topic(region_a, topic, 1)
    days = (1_600_000_000_000, 1_600_086_400_000, 1_600_172_800_000)
    write(region_a, topic, [Sent(0, b"%d" % n, timestamp_ms=days[n % 3] + n) for n in range(300)])
    dated = {"transforms": "date", "transforms.date.type": APACHE + "TimestampRouter"}
    flow = a_flow(tmp_path, region_a, region_b, topic, dated)
    names = [f"{flow.remote(topic)}-{day}" for day in ("20200913", "20200914", "20200915")]
    with running(flow.file) as mirror:
        wait_covered(mirror, flow, topic)
    for number, name in enumerate(names):
        (log,) = read(region_b, name).values()
        assert [it.value for it in log.records] == [b"%d" % n for n in range(number, 300, 3)]


def test_a_flow_that_cannot_have_transforms_is_refused_with_its_line(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = a_flow(
        tmp_path, region_a, region_b, topic, FILTERED, {"{source}->{target}.offsets.identical": "require"}
    )  # fmt: skip
    ended = run_to_end(flow.file)
    assert ended.returncode == 1
    assert "offsets.identical" in ended.stderr
    assert "not possible with transforms" in ended.stderr
    flow = a_flow(tmp_path, region_a, region_b, topic, {**FILTERED, "transforms.drop.type": APACHE + "ValueToKey"})  # fmt: skip
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
async def test_the_same_transforms_leave_the_same_as_javas(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    write(region_a, topic, kinds(0, 600), linger_ms=20)
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
    both = {p: len(log.records) for p, log in expected(read(region_a, topic)).items()}
    logs: list[list[Logs]] = []
    java = JavaConnect(region_b.bootstrap_servers, unique("java"), tmp_path)
    try:
        await java.ready()
        with Mirror(write_worker(tmp_path, region_b), name="ours", program=DISTRIBUTED) as worker:
            ours = rest_of(worker)
            for who in ("java", "ours"):
                alias = unique(who).replace("-", "")
                config = mirror_config(region_a, region_b, alias, topic) | own
                body = {"name": f"m-{alias}", "config": config}
                if who == "java":
                    await java.call("POST", "/connectors", body, expected=201)
                else:
                    ours.ok("POST", "connectors", body)
                names = (f"{alias}.{topic}", f"{topic}.from.{alias}")
                create_topic(region_b, names[1], PARTITIONS)
                wait_for_records(region_b, names, sum(both.values()))
                logs.append([read(region_b, name) for name in names])
    finally:
        await java.close()
    for of_java, of_ours in zip(*logs, strict=True):
        assert sum(len(log.records) for log in of_java.values()) > 100
        assert_equal(of_java, of_ours)
