"""``mm2py verify --repair`` on real brokers: what can be made equal is, and nothing is deleted without the option for it."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pytest

from mm2py.mirror.offset_map import Segment, offset_map_topic
from mm2py.storage.offset_map_store import page_entries
from mm2py.types import ClusterAlias, TopicPartition
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.known_maps import known_maps
from mm2py_jobs.spark.reading import ask_cluster
from mm2py_workers.bulk_flow import flow_plan
from tests.integration.members import READ_OF_60, place_of, read_next
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.test_share_groups import produce
from tests.integration.traffic import Sent, ends, read, wait_for_copy, write
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import command as backfill

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(600),
]

COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
Unique = Callable[[str], str]
SLOW_FLOW: Final = {"flow.max.bytes.per.second": "100000"}
"""A repair has this limit too: one of 2,000 records takes seconds, so that it can be killed."""
OLD_MS: Final = 1_600_000_000_000
"""Older than any retention: a copy that is made again must not be deleted by it."""


def verify(flow: Flow, *options: str) -> tuple[int, dict[str, object], str]:
    name = f"{flow.source_alias}->{flow.target_alias}"
    common = ("--flow", name, "--master", "local[2]", "-o", "json")
    command = [COMMAND, "verify", str(flow.file), *common, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    report: object = json.loads(ended.stdout or "{}")
    return ended.returncode, cast("dict[str, object]", report), ended.stderr


def rows(report: Mapping[str, object], member: str) -> Sequence[Mapping[str, object]]:
    return cast("Sequence[Mapping[str, object]]", report[member])


def records(count: int, first: int = 0, partition: int = 0) -> list[Sent]:
    return [
        Sent(partition, b"v%d" % n + bytes(200), b"k%d" % n, (), OLD_MS + n)
        for n in range(first, first + count)
    ]


@pytest.fixture
def copied(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> tuple[Flow, str]:
    """A flow that has copied 2,000 old records of each of two partitions, and was stopped."""
    topic = unique("repaired")
    flow = write_flow(tmp_path, region_a, region_b, topic, SLOW_FLOW)
    for region, name in ((region_a, topic), (region_b, flow.remote(topic))):
        create_topic(region, name, 2, config={"retention.ms": "-1"})
    history = [*records(2_000), *records(2_000, partition=1)]
    write(region_a, topic, history, batch_num_messages=50)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
    return flow, topic


def test_a_copy_that_lost_its_end_is_copied_again_from_there(copied: tuple[Flow, str]) -> None:
    flow, topic = copied
    # What the map has copied behind the end of the target's log is what a target loses that elects an unclean leader.
    write(flow.source, topic, records(500, 2_000))
    tp = TopicPartition(topic, 0)
    target = {"bootstrap.servers": flow.target.bootstrap_servers}
    page = ask_cluster(target, lambda it: known_maps(it, ClusterAlias(flow.source_alias)))[
        tp
    ].newest
    lying = replace(page, segments=(Segment(0, 2_500, 0),), covered=2_500, position=2_500)
    map_topic = offset_map_topic(flow.source_alias)
    write(
        flow.target, map_topic, [Sent(0, value, key) for key, value in page_entries({tp: [lying]})]
    )

    async def set_position() -> None:
        name = f"{flow.source_alias}->{flow.target_alias}"
        async with BackfillSession(flow_plan(flow.file, name)) as session:
            session.claim.permit.grant(math.inf)
            await session.set_positions({tp: 2_500})

    asyncio.run(set_position())
    code, report, _ = verify(flow)
    assert code == 4
    assert [it["source_offset"] for it in rows(report, "differences")] == list(range(2_000, 2_500))
    advice = cast("Mapping[str, object]", rows(report, "partitions")[0]["repair"])
    assert (advice["action"], advice["source_offset"]) == ("append", 2_000)
    code, report, errors = verify(flow, "--repair")
    assert code == 0, errors
    assert report["equal"] is True
    assert report["checked_records"] == 4_500
    assert [(it["partition"], it["done"]) for it in rows(report, "repairs")] == [(0, True)]
    before = cast("Mapping[str, object]", report["before"])
    assert len(rows(before, "differences")) == 500
    one, other = read(flow.source, topic)[0], read(flow.target, flow.remote(topic))[0]
    assert other == one
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write(flow.source, topic, records(100, 2_500))
        wait_for_copy(mirror, flow, topic)
        assert read(flow.target, flow.remote(topic))[0] == read(flow.source, topic)[0]
        assert mirror.stop() == 0


def test_a_copy_with_foreign_records_is_made_again_beside_a_running_flow_only_with_the_option_for_it(
    copied: tuple[Flow, str],
) -> None:
    flow, topic = copied
    copy = flow.remote(topic)
    write(flow.target, copy, [Sent(0, b"foreign")])
    code, report, errors = verify(flow, "--repair")
    assert code == 4, errors
    (repair,) = rows(report, "repairs")
    assert (repair["action"], repair["done"]) == ("renew", False)
    assert "--delete-copies" in str(repair["cause"])
    assert len(read(flow.target, copy)[0].records) == 2_001, "nothing was deleted"
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write(flow.source, topic, [*records(100, 2_000), *records(100, 2_000, partition=1)])
        until(
            lambda: len(read(flow.target, copy)[1].records) == 2_100,
            90,
            "the flow copies on",
            alive=mirror,
        )
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert code == 0, errors
        assert report["equal"] is True
        write(flow.source, topic, records(100, 2_100))
        until(
            lambda: len(read(flow.target, copy)[0].records) >= 2_200,
            90,
            "the flow continues behind the repair",
            alive=mirror,
        )
        assert mirror.stop() == 0
    truth, made_again = read(flow.source, topic), read(flow.target, copy)
    assert made_again[0].records == truth[0].records
    assert made_again[0].offsets == list(range(2_101, 4_301))
    assert made_again[1] == truth[1], "the other partition was left alone"
    code, report, errors = verify(flow)
    assert (code, report["checked_records"]) == (0, 4_300), errors


def test_a_repair_that_was_killed_is_continued_by_the_next_backfill_and_doubles_nothing(
    copied: tuple[Flow, str],
) -> None:
    flow, topic = copied
    copy = flow.remote(topic)
    write(flow.target, copy, [Sent(0, b"foreign")])
    name = f"{flow.source_alias}->{flow.target_alias}"
    options = ("--flow", name, "--master", "local[2]", "--repair", "--delete-copies", "-o", "json")
    process = subprocess.Popen(
        [COMMAND, "verify", str(flow.file), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    REAPER.watch_process(process.pid)
    try:
        until(
            lambda: ends(flow.target, copy).get(0, 0) > 2_001 + 200 or process.poll() is not None,
            200,
            "records are copied again",
        )
        assert process.poll() is None, "it was faster"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        REAPER.forget_process(process.pid)
    assert ends(flow.target, copy)[0] < 4_001
    code, report, errors = verify(flow)
    assert (code, report["equal"]) == (0, True), errors
    left = rows(report, "partitions")[0]
    assert cast("int", left["not_copied_offsets"]) > 0, "the rest is not copied yet, and shown so"
    ended = backfill(flow, "run", "--master", "local[2]")
    assert ended.code == 0, ended.err
    made_again = read(flow.target, copy)
    assert made_again[0].records == read(flow.source, topic)[0].records
    assert made_again[0].offsets == list(range(2_001, 4_001))
    code, report, errors = verify(flow)
    assert (code, report["equal"]) == (0, True), errors


SYNC: Final = {
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.sync.group.offsets.interval.seconds": "1",
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}


def test_groups_of_each_kind_are_moved_to_the_copies_that_were_made_again(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    """The new copies have other offsets: each group gets its next unread record there, none skipped."""
    topic = unique("moved")
    flow = write_flow(tmp_path, region_a, region_b, topic, SYNC)
    copy = flow.remote(topic)
    create_topic(region_a, topic, 1)
    produce(region_a, topic, 0, 60)
    groups = {kind: unique(kind) for kind in READ_OF_60}

    def is_at(topic: str, group: str, kind: str, offset: int) -> Callable[[], bool]:
        return lambda: place_of(region_b, topic, group, kind) == offset

    for kind, group in groups.items():
        assert read_next(region_a, topic, group, kind, READ_OF_60[kind]) == list(
            range(READ_OF_60[kind])
        )
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        for kind, group in groups.items():
            until(is_at(copy, group, kind, READ_OF_60[kind]), 90, kind, alive=mirror)
        write(region_b, copy, [Sent(0, b"-1")])
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert code == 0, errors
        assert report["equal"] is True
        for kind, group in groups.items():
            until(is_at(copy, group, kind, 61 + READ_OF_60[kind]), 90, kind, alive=mirror)
        produce(region_a, topic, 60, 5)
        for kind, group in groups.items():
            first = READ_OF_60[kind]
            assert read_next(region_b, copy, group, kind, 5) == list(range(first, first + 5)), kind
        assert mirror.stop() == 0
