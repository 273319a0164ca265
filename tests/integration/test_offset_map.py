"""The exact offset map on real brokers: every offset translates right after kills, and a kill doubles nothing."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.mirror.offset_lookup import Place
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.types import TopicPartition
from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    Logs,
    Sent,
    assert_equal,
    ends,
    producer,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(900)]

PARTITIONS: Final = 4
RATE: Final = 1_500
TWO_WORKERS: Final = {"tasks.max": str(PARTITIONS), **SHORT_SESSION}
"""Each of two workers has a source task: with two tasks one worker may have both, and the other the checkpoints."""
ROUNDS: Final = int(os.environ.get("MM2PY_KILL_ROUNDS", "3"))
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("mapped")
    create_topic(region_a, name, PARTITIONS)
    return name


async def wrong_translations(flow: Flow, topic: str, truth: Logs, copy: Logs) -> list[str]:
    """Ask for every source and target offset, and return the answers that are not right."""
    settings = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(flow.target.bootstrap_servers)
    )
    cluster = Cluster(settings, alias="target")
    reader = OffsetMapReader(cluster, flow.source_alias, clock=SYSTEM_CLOCK)
    wrong: list[str] = []
    try:
        await cluster.connect()
        await reader.read_to_end()
        for partition, log in truth.items():
            tp = TopicPartition(topic, partition)
            place = dict(zip(copy[partition].records, copy[partition].offsets, strict=True))
            expected = [place[record] for record in log.records]
            end = copy[partition].offsets[-1] + 1
            for source, target, following in zip(
                log.offsets, expected, [*expected[1:], end], strict=True
            ):
                found = await reader.to_target(tp, source)
                back = await reader.to_source(tp, target)
                behind = await reader.to_target(tp, source + 1)
                if found != (Place.COPIED, target):
                    wrong.append(f"{tp} source {source} is at {target}: {found}")
                if back != (Place.COPIED, source):
                    wrong.append(f"{tp} target {target} is of {source}: {back}")
                if behind is None or behind.offset != following:
                    wrong.append(f"{tp} source {source + 1} continues at {following}: {behind}")
    finally:
        await reader.close()
        await cluster.close()
    return wrong


async def assert_exact(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Both sides hold the same records, each once, and the map says where."""
    truth, copy = await asyncio.to_thread(wait_for_copy, mirror, flow, topic)
    assert_equal(truth, copy)
    assert {p: log.offsets for p, log in copy.items()} == {
        p: log.offsets for p, log in truth.items()
    }
    assert await asyncio.to_thread(mirror.stop) == 0  # the last runs are durable then
    wrong = await wrong_translations(flow, topic, truth, copy)
    assert not wrong, f"{len(wrong)} wrong, first {wrong[:5]}"


async def test_kills_under_load_double_nothing_and_every_offset_translates(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, topic)
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(ROUNDS):
            with Mirror(flow.file, name=f"round-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                if turn % 3 == 2:
                    mirror.send(signal.SIGTERM)
                    assert mirror.wait() == 0
                else:
                    mirror.kill()
    with Mirror(flow.file, name="last") as mirror:
        await assert_exact(mirror, flow, topic)


async def test_kills_of_either_of_two_workers_double_nothing(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, topic, TWO_WORKERS)
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(ROUNDS):
            with (
                Mirror(flow.file, name=f"one-{turn}") as one,
                Mirror(flow.file, name=f"two-{turn}") as two,
            ):
                until(
                    lambda one=one, two=two: (
                        one.lines("source task started")  # type: ignore[misc]
                        and two.lines("source task started")
                    ),
                    90,
                    "both workers to copy",
                    alive=one,
                )
                wait_for_progress(one, flow, topic)
                load.wait_acked(RATE)
                one.kill()
                wait_for_progress(two, flow, topic)
                two.kill()
    with Mirror(flow.file, name="last") as mirror:
        await assert_exact(mirror, flow, topic)


async def test_frozen_workers_that_come_back_double_nothing(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, topic, TWO_WORKERS)
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="steady") as steady,
    ):
        steady.wait_ready()
        for turn in range(ROUNDS):
            with Mirror(flow.file, name=f"frozen-{turn}") as frozen:
                frozen.wait_ready()
                wait_for_progress(frozen, flow, topic)
                load.wait_acked(RATE)
                begun = len(steady.lines("source task started"))
                frozen.send(signal.SIGSTOP)
                until(
                    lambda begun=begun: len(steady.lines("source task started")) > begun,  # type: ignore[misc]
                    90,
                    "the tasks of the frozen worker to run in the other",
                    alive=steady,
                )
                frozen.send(signal.SIGCONT)
                load.wait_acked(RATE)
        load.stop()
        await assert_exact(steady, flow, topic)


async def test_another_writer_is_named_and_what_requires_identical_offsets_stops(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(
        tmp_path, region_a, region_b, topic, {"offsets.identical": "require", "tasks.max": "1"}
    )
    with Mirror(flow.file, name="required") as mirror:
        mirror.wait_ready()
        write(flow.source, topic, [Sent(partition, b"a") for partition in range(PARTITIONS)])
        wait_for_copy(mirror, flow, topic)
        write(flow.target, flow.remote(topic), [Sent(0, b"foreign")])
        write(flow.source, topic, [Sent(0, b"b"), Sent(1, b"b")])
        until(
            lambda: mirror.lines(r"another program with producer id -?\d+ wrote offsets 1 to 1"),
            60,
            "the foreign writer to be named",
            alive=mirror,
        )
        until(lambda: ends(flow.target, flow.remote(topic))[1] == 2, 60, "partition 1 to go on")
        assert mirror.stop() == 0


async def test_a_partition_that_cannot_have_the_same_offsets_is_not_begun(
    region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, topic, {"offsets.identical": "require"})
    client = producer(region_a, transactional_id=f"{topic}-holes")
    client.init_transactions(60)
    for _ in range(2):
        client.begin_transaction()
        client.produce(topic, b"x", partition=0)
        client.commit_transaction()
    with Mirror(flow.file, name="refused") as mirror:
        mirror.wait_ready()
        until(
            lambda: mirror.lines("source offset 1 has no record to copy"),
            60,
            "the hole",
            alive=mirror,
        )
        assert mirror.stop() == 0
