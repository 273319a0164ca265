"""Transforms on flows of MirrorSource where something is wrong: routes that lead nowhere, poisoned records, circles, commands that move whole batches."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.integration.exactly_once import ENABLED
from tests.integration.flow_questions import SOURCE, Asked, path_of
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    Log,
    Record,
    Sent,
    assert_equal,
    committed_positions,
    ends,
    read,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

PACKAGE: Final = "org.apache.kafka.connect.transforms."
COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
ROUTE: Final = "route"
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("changed")
    create_topic(region_a, name, 2)
    return name


def routed_to(name: str, pattern: str = ".*") -> dict[str, str]:
    own = "{source}->{target}.transforms"
    return {
        own: ROUTE,
        f"{own}.{ROUTE}.type": PACKAGE + "RegexRouter",
        f"{own}.{ROUTE}.regex": pattern,
        f"{own}.{ROUTE}.replacement": name,
        **SHORT_SESSION,
    }


def numbered(first: int, count: int) -> list[Sent]:
    return [Sent(number % 2, b"%d" % number) for number in range(first, first + count)]


def wait_positions(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Wait until all of a topic is behind the stored positions."""
    wanted = {p: end - 1 for p, end in ends(flow.source, topic).items() if end}
    until(
        lambda: committed_positions(flow, topic) == wanted,
        90,
        lambda: f"{wanted}, there is {committed_positions(flow, topic)}",
        alive=mirror,
    )


def add_partitions(region: KafkaAddress, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    # confluent-kafka's annotation leaves the future's result open.
    answers = admin.create_partitions([NewPartitions(topic, count)])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    cast("dict[str, Future[None]]", answers)[topic].result(60)


def test_a_partition_that_a_router_names_and_that_is_not_there_is_waited_for_and_named(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    other = unique("narrow")
    create_topic(region_b, other, 1)
    write(region_a, topic, numbered(0, 400))
    flow = write_flow(tmp_path, region_a, region_b, topic, routed_to(other))
    with Mirror(flow.file) as mirror:
        ask = Asked(mirror)
        until(lambda: committed_positions(flow, topic) == {0: 199}, 90, "partition 0", alive=mirror)

        def held() -> str:
            found = ask.done("GET", path_of(flow))
            return next(
                (it["message"] for it in found["errors"] if it["where"] == f"{topic}-1"), ""
            )

        until(lambda: f"sends records to {other}-1" in held(), 90, held, alive=mirror)
        assert "add the partition" in held()
        assert ask.done("GET", path_of(flow))["state"] == "DEGRADED"
        write(region_a, topic, numbered(400, 200))
        until(lambda: ends(region_b, other)[0] == 300, 90, "the others go on", alive=mirror)
        add_partitions(region_b, other, 2)
        wait_positions(mirror, flow, topic)
        until(lambda: not ask.done("GET", path_of(flow))["errors"], 90, held, alive=mirror)
        assert mirror.stop() == 0
    assert_equal(read(region_a, topic), read(region_b, other))


@pytest.mark.parametrize("more", [{}, ENABLED], ids=["at-least-once", "exactly-once"])
def test_a_poisoned_record_ends_the_task_behind_those_before_it_and_a_change_over_rest_continues(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    topic: str,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    more: dict[str, str],
) -> None:
    other = unique("routed")
    create_topic(region_b, other, 2)
    write(region_a, topic, numbered(0, 100))
    write(region_a, topic, [Sent(0, b"poison", headers=((ROUTE, b""),))])
    write(region_a, topic, numbered(100, 100))
    own = "{source}->{target}."
    poisoned = {
        own + "transforms": f"{ROUTE},poison",
        own + "transforms.poison.type": PACKAGE + "RegexRouter",
        own + "transforms.poison.regex": ".*",
        own + "transforms.poison.replacement": "no legal name",
        own + "transforms.poison.predicate": "some",
        own + "predicates": "some",
        own + "predicates.some.type": PACKAGE + "predicates.HasHeaderKey",
        own + "predicates.some.name": ROUTE,
    }
    flow = write_flow(tmp_path, region_a, region_b, topic, routed_to(other) | poisoned | more)
    with Mirror(flow.file) as mirror:
        ask = Asked(mirror)
        line = mirror.wait_for_log("task failed")
        assert f"{topic}-0 offset 50" in line
        assert "no legal name" in line
        until(
            lambda: committed_positions(flow, topic).get(0) == 49, 90, "what is before it", alive=mirror
        )  # fmt: skip
        assert len(read(region_b, other, committed=True)[0].records) == 50
        path = f"/{flow.source_alias}/{flow.target_alias}/connectors/{SOURCE}/config"
        config = ask.done("GET", path)
        ask.done("PUT", path, config | {"errors.tolerance": "all"})
        wait_positions(mirror, flow, topic)
        # Routes change under load, and nothing is lost or doubled by that.
        third = unique("third")
        create_topic(region_b, third, 2)
        with Load(region_a, topic, 2, rate=1_000) as load:
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
        wait_positions(mirror, flow, topic)
        assert mirror.stop() == 0
    copies = [read(region_b, it, committed=True) for it in (other, third)]
    assert all(copies[1][p].records for p in (0, 1))
    for partition, log in read(region_a, topic).items():
        there = [it for copy in copies for it in copy[partition].records]
        assert sorted(there, key=_value) == sorted(
            (it for it in log.records if it.value != b"poison"), key=_value
        )


def _value(record: Record) -> bytes:
    return record.value or b""


def test_routers_that_take_the_prefix_away_both_ways_copy_once_also_from_two_files(
    region_a: KafkaAddress, region_b: KafkaAddress, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:  # fmt: skip
    topic = unique("shared")
    for region in (region_a, region_b):
        create_topic(region, topic, 1)
    strip = routed_to("$1", f".*[.]({topic})")
    there = write_flow(tmp_path, region_a, region_b, topic, strip)
    back = write_flow(tmp_path, region_b, region_a, topic, strip)
    with Mirror(there.file, name="there") as one, Mirror(back.file, name="back") as two:
        write(region_a, topic, [Sent(0, b"a%d" % n) for n in range(50)])
        until(lambda: ends(region_b, topic)[0] == 50, 90, "the way there", alive=one)
        write(region_b, topic, [Sent(0, b"b%d" % n) for n in range(50)])
        until(lambda: ends(region_a, topic)[0] == 100, 90, "the way back", alive=two)
        # Nothing is under way any more: what came from the other side is dropped, and its position stored.
        wait_positions(one, there, topic)
        wait_positions(two, back, topic)
        assert [mirror.stop() for mirror in (one, two)] == [0, 0]
    values = [_sorted_values(read(it, topic)[0]) for it in (region_a, region_b)]
    expected = [*(b"a%d" % n for n in range(50)), *(b"b%d" % n for n in range(50))]
    assert values[0] == values[1] == sorted(expected)


def _sorted_values(log: Log) -> list[bytes]:
    return sorted(map(_value, log.records))


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an ``mm2py`` command to its end."""
    return subprocess.run(
        [COMMAND, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )


def test_commands_that_move_records_as_they_are_refuse_a_flow_with_transforms(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, unique: Unique, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, topic, routed_to("x-$0"))
    name = f"{flow.source_alias}->{flow.target_alias}"
    where = [str(flow.file), "--flow", name]
    for command in (
        ("backfill", "plan", *where),
        ("backfill", "run", *where),
        ("verify", *where),
        ("rerun", *where, "--topic", topic, "--into", unique("again")),
        ("restore", *where, "--from", str(tmp_path)),
    ):
        ended = asked(*command)
        assert ended.returncode == 1, (command, ended.stdout, ended.stderr)
        assert f"records of flow {name} pass transforms={ROUTE}" in ended.stderr, command
    with flow.file.open("a") as file:
        file.write(f"{name}.flow.engine = spark\n")
    ended = asked("stream", *where)
    assert ended.returncode != 0
    assert "transforms" in ended.stderr
