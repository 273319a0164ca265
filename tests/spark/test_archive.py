"""Archive and restore on real brokers: what is restored equals what was archived, byte for byte and in order, also after kills."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pytest
from typer.testing import CliRunner

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError, FatalError
from mm2py.mirror.backfills import BackfillRecord, Job, JobState, Lease, LeaseState
from mm2py_jobs.archive.archive import archive_flow
from mm2py_jobs.archive.archive_format import FileManifest, Shape
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.restore import Rename
from mm2py_jobs.copy.backfill_lane import LaneConnections
from mm2py_jobs.copy.restored_flows import renamed_flow
from mm2py_jobs.spark.session import OpenSession
from mm2py_workers.bulk_flow import flow_plan, flow_sides
from mm2py_workers.cli import app
from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.small_disk import fill, small_disk
from tests.integration.traffic import (
    YEAR_MS,
    Sent,
    assert_equal,
    copied,
    ends,
    read,
    wait_for_copy,
    write,
)
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import RestoreProcess
from tests.spark.test_verify import differences_of, report_of

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(400)]

Unique = Callable[[str], str]
OLD_MS: Final = 1_700_000_000_000 - YEAR_MS


def old_records(count: int, partition: int, turn: int = 0) -> list[Sent]:
    return [
        Sent(
            partition,
            None if n % 11 == 0 else b"%d %d %d" % (turn, partition, n) + b"." * 80,
            None if n % 7 == 0 else b"k%d" % (n % 50),
            [("h", b"%d" % n)] if n % 3 else (),
            OLD_MS + n,
        )
        for n in range(count)
    ]


def archived(
    session: OpenSession, flow: Flow, topics: str, folder: Path, shape: Shape = Shape.BATCHES
) -> dict[str, object]:
    name = f"{flow.source_alias}->{flow.target_alias}"
    sides = flow_sides(flow.file, name, topics)
    return archive_flow(sides, str(folder), shape, lambda: OpenSession(session.spark, owned=False))


def restored(
    flow: Flow,
    folder: Path,
    *,
    topics: str = "",
    rename: str = "",
    options: Sequence[str] = (),
    code: int = 0,
) -> dict[str, object]:
    """Run ``mm2py restore`` in this process; return its report."""
    name = f"{flow.source_alias}->{flow.target_alias}"
    arguments = ["restore", str(flow.file), "--flow", name, "--from", str(folder), "-o", "json"]
    arguments += ["--topics", topics] if topics else []
    arguments += ["--rename", rename] if rename else []
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == code, done.output
    return (
        cast("dict[str, object]", json.loads(done.stdout))
        if done.stdout
        else {"error": done.stderr}
    )


def test_a_restored_topic_verifies_equal_and_further_runs_add_what_is_new(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("kept")
    flow = write_flow(
        tmp_path, region_a, region_b, topic, {"{source}.consumer.isolation.level": "read_committed"}
    )
    create_topic(region_a, topic, 3, config={"retention.ms": "-1"})
    for turn in range(2):
        write(region_a, topic, [*old_records(4_000, 0, turn), *old_records(500, 1, turn)])
        write_mixed(region_a, topic, 10, 10, turn=turn)
        report = archived(lanes_session, flow, topic, tmp_path / "archive")
        assert report["records"] == 4_570
        assert archived(lanes_session, flow, topic, tmp_path / "archive")["records"] == 0
        back = restored(flow, tmp_path / "archive")
        assert back["restored_records"] == 4_570
        assert back["records"] == 4_570 * (turn + 1)
        assert restored(flow, tmp_path / "archive")["restored_records"] == 0
        proof = report_of(lanes_session, flow, topic, 2)
        assert differences_of(proof) == []
        assert proof["checked_records"] == 4_570 * (turn + 1)
    assert_equal(read(region_a, topic, committed=True), read(region_b, flow.remote(topic)))
    other = unique("again")
    rename = f"({topic})={other}.$1"
    assert restored(flow, tmp_path / "archive", rename=rename)["records"] == 9_140
    assert_equal(read(region_a, topic, committed=True), read(region_b, f"{other}.{topic}"))


@pytest.mark.faults
@pytest.mark.parametrize("records", [30, 500])
def test_nothing_of_a_topic_that_was_created_again_gets_into_the_archive_of_the_former_one(
    records: int,
    lanes_session: OpenSession,
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
) -> None:
    """Between the plan and its lanes, with fewer and with more records than were planned."""
    topic = unique("again")
    create_topic(region_a, topic, 1, config={"retention.ms": "-1"})
    write(region_a, topic, old_records(200, 0))
    flow = write_flow(tmp_path, region_a, region_b, topic)

    def open_late() -> OpenSession:
        delete_topic(region_a, topic)
        until(lambda: topic not in topics_of(region_a), 90, "the end of the topic")
        create_topic(region_a, topic, 1, config={"retention.ms": "-1"})
        write(region_a, topic, old_records(records, 0, turn=1))
        return OpenSession(lanes_session.spark, owned=False)

    sides = flow_sides(flow.file, f"{flow.source_alias}->{flow.target_alias}", topic)
    report = archive_flow(sides, str(tmp_path / "archive"), Shape.BATCHES, open_late)
    (found,) = cast("list[dict[str, object]]", report["partitions"])
    assert found["records"] == 0
    assert found["cause"]
    with pytest.raises(ConfigError, match="archive to another folder"):
        archived(lanes_session, flow, topic, tmp_path / "archive")


def test_a_flow_that_is_started_behind_a_restore_continues_with_the_next_record(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("chained")
    flow = write_flow(
        tmp_path, region_a, region_b, topic, {"{source}.consumer.isolation.level": "read_committed"}
    )
    create_topic(region_a, topic, 3, config={"retention.ms": "-1"})  # the last one stays empty
    write_mixed(region_a, topic, 20, 10)
    archived(lanes_session, flow, topic, tmp_path / "archive")
    restored(flow, tmp_path / "archive")
    write_mixed(region_a, topic, 20, 10, turn=1)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        truth, copy = wait_for_copy(mirror, flow, topic, committed=True)
        assert mirror.stop() == 0
    assert_equal(truth, copy)
    proof = report_of(lanes_session, flow, topic)
    assert differences_of(proof) == []
    assert proof["checked_records"] == sum(len(log.records) for log in truth.values())


def test_records_that_an_existing_topic_would_delete_are_refused_unless_that_is_accepted(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic, short = unique("expiring"), unique("short")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic, 2, config={"retention.ms": "-1"})
    create_topic(region_b, short, 2, config={"retention.ms": "3600000"})
    # Three files, the last one with records of now; the other partition has no old ones.
    write(region_a, topic, old_records(300, 0))
    archived(lanes_session, flow, topic, tmp_path / "archive")
    write(region_a, topic, [*old_records(200, 0, 1), Sent(1, b"new")])
    archived(lanes_session, flow, topic, tmp_path / "archive")
    write(region_a, topic, [Sent(0, b"new %d" % n) for n in range(50)])
    archived(lanes_session, flow, topic, tmp_path / "archive")
    rename = f"{topic}={short}"
    (refused,) = cast(
        "list[dict[str, object]]",
        restored(flow, tmp_path / "archive", rename=rename, code=3)["refused"],
    )
    assert (refused["topic"], refused["partition"]) == (short, 0)
    assert f"about 500 records are more than retention.ms=3600000 of {short}" in str(
        refused["reason"]
    )
    assert "--accept-expiry" in str(refused["reason"])
    assert ends(region_b, short) == {0: 0, 1: 0}
    accepted = restored(flow, tmp_path / "archive", rename=rename, options=["--accept-expiry"])
    assert accepted["restored_records"] == 551
    # A topic that is made keeps them all.
    made = restored(flow, tmp_path / "archive")
    assert made["restored_records"] == 551
    assert_equal(read(region_a, topic), read(region_b, flow.remote(topic)))


SLOW = "100000"
"""Bytes per second: a restore is at work while the test acts on it."""


def restore_command(flow: Flow, folder: Path) -> list[str]:
    name = f"{flow.source_alias}->{flow.target_alias}"
    program = str(Path(sys.executable).parent / "mm2py")
    arguments = ["restore", str(flow.file), "--flow", name, "--from", str(folder)]
    return [program, *arguments, "--master", "local[2]", "-o", "json"]


@pytest.mark.faults
def test_a_restore_that_is_killed_continues_while_the_flow_runs_and_nothing_is_there_twice(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("killed")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic, config={"retention.ms": "-1"})
    write(region_a, topic, old_records(150_000, 0), batch_size=1_000)
    archived(lanes_session, flow, topic, tmp_path / "archive")
    slow = [*restore_command(flow, tmp_path / "archive"), "--rate-limit", SLOW]
    with RestoreProcess(slow) as first:
        until(lambda: copied(flow, topic) > 0, 120, "the first restored records")
        first.kill()
        stopped_at = copied(flow, topic)
        write(region_a, topic, old_records(500, 0, turn=1))
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            beside = CliRunner().invoke(
                app, [*restore_command(flow, tmp_path / "archive")[1:-4], "-o", "json"]
            )
            assert beside.exit_code == 0, beside.output
            truth, copy = wait_for_copy(mirror, flow, topic)
            assert_equal(truth, copy)
            assert mirror.stop() == 0
    assert stopped_at < 150_000
    assert_equal(read(region_a, topic), read(region_b, flow.remote(topic)))


def test_a_target_with_other_records_is_refused_with_the_numbers(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("foreign")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic)
    create_topic(region_b, flow.remote(topic))
    write(region_a, topic, [Sent(0, b"%d" % n) for n in range(100)])
    archived(lanes_session, flow, topic, tmp_path)
    write(region_b, flow.remote(topic), [Sent(0, b"foreign")])
    (refused,) = cast("list[dict[str, object]]", restored(flow, tmp_path, code=3)["refused"])
    assert (refused["topic"], refused["partition"]) == (topic, 0)
    assert "is not empty (its log ends at 1)" in str(refused["reason"])
    assert ends(region_b, flow.remote(topic)) == {0: 1}
    assert "has none of the topics" in str(restored(flow, tmp_path, topics="other", code=1))


def test_a_topic_that_another_flows_restore_has_reserved_is_refused_until_that_has_ended(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic, into = unique("shared"), unique("into")
    (tmp_path / "first").mkdir()
    first = write_flow(tmp_path / "first", region_a, region_b, topic)
    second = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic, 1, config={"retention.ms": "-1"})
    write(region_a, topic, old_records(200, 0))
    archived(lanes_session, second, topic, tmp_path / "archive")
    job = Job(id="j", state=JobState.RUNNING, run=1, lanes=1, archive="/backup")
    reserved = LeaseState.RESERVED
    lease = Lease(
        topic=into, partition=0, job="j", run=1, state=reserved, start=0, end=9, position=0
    )

    async def write_job(*records: BackfillRecord) -> None:
        plan = flow_plan(first.file, f"{first.source_alias}->{first.target_alias}")
        connections = LaneConnections(renamed_flow(plan.name), plan.props, SYSTEM_CLOCK)
        try:
            await connections.open()
            await connections.store.post(records)
        finally:
            await connections.close()

    asyncio.run(write_job(job, lease))
    rename = f"{topic}={into}"
    report = restored(second, tmp_path / "archive", rename=rename, code=3)
    assert f"topic {into} is written by restore j of /backup" in str(report["error"])
    assert sum(ends(region_b, into).values()) == 0
    asyncio.run(write_job(replace(job, state=JobState.CANCELLED)))
    assert restored(second, tmp_path / "archive", rename=rename)["restored_records"] == 200


@pytest.mark.parametrize("damage", ["flip", "cut", "chain"])
def test_a_file_or_manifest_that_does_not_match_sends_nothing(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
    damage: str,
) -> None:
    topic = unique("damaged")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic)
    for turn in range(3):
        write(region_a, topic, [Sent(0, b"%d %d" % (turn, n)) for n in range(100)])
        archived(lanes_session, flow, topic, tmp_path)
    folder = (
        tmp_path / f"{flow.source_alias}-{flow.target_alias}" / f"topic={topic}" / "partition=0"
    )
    first, second, _ = sorted(folder.glob("*.json"))
    file = folder / FileManifest.parse(first.read_bytes(), "").file
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        del data[-100:]
    else:
        second.unlink()
    file.write_bytes(data)
    cause = "expected 100" if damage == "chain" else "with digest"
    ended = str(restored(flow, tmp_path, code=1))
    assert cause in ended
    assert f"{topic}-0" in ended or f"'{topic}'" in ended
    assert ends(region_b, flow.remote(topic)) in ({}, {0: 0})


def test_records_are_rows_that_any_parquet_reader_has_and_cannot_be_restored(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("rows")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic)
    write(
        region_a, topic, [Sent(0, b"%d" % n, b"k", [("h", b"x")], OLD_MS + n) for n in range(1_000)]
    )
    report = archived(lanes_session, flow, topic, tmp_path, Shape.RECORDS)
    rows = lanes_session.spark.read.parquet(f"{report['path']}/topic={topic}/partition=0/*.parquet")
    assert rows.count() == 1_000
    assert [row["value"] for row in rows.where("offset = 7").collect()] == [b"7"]
    assert "shape records" in str(restored(flow, tmp_path, code=1))
    with pytest.raises(ConfigError, match="shape=records"):
        archived(lanes_session, flow, topic, tmp_path)


def test_a_full_disk_stops_with_what_was_published_and_the_next_run_continues(
    lanes_session: OpenSession,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Unique,
    tmp_path: Path,
) -> None:
    topic = unique("full")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    create_topic(region_a, topic)
    with small_disk(tmp_path) as disk:
        write(region_a, topic, [Sent(0, b"%d" % n) for n in range(1_000)])
        assert archived(lanes_session, flow, topic, disk)["records"] == 1_000
        write(region_a, topic, [Sent(0, os.urandom(2_000)) for _ in range(1_000)])
        fill(disk / "ballast")
        with pytest.raises(FatalError, match="cannot be written"):
            archived(lanes_session, flow, topic, disk)
        (disk / "ballast").unlink()
        assert archived(lanes_session, flow, topic, disk)["records"] == 1_000
        assert restored(flow, disk)["records"] == 2_000
    assert_equal(read(region_a, topic), read(region_b, flow.remote(topic)))


def test_one_of_two_writers_of_a_manifest_wins(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path / "a"))
    assert store.put_if_absent("x/1.json", b"one")
    assert not store.put_if_absent("x/1.json", b"two")
    assert store.read("x/1.json") == b"one"
    assert store.names("x") == ["1.json"]


def test_a_path_of_another_file_system_is_written_and_read_the_same(tmp_path: Path) -> None:
    store = ArchiveStore(f"file://{tmp_path}/b")
    store.write("t/f.parquet", b"data")
    assert store.read("t/f.parquet") == b"data"
    with pytest.raises(ConfigError, match="nosuch"):
        ArchiveStore("nosuch://bucket/x")
    with pytest.raises(FatalError, match="absent"):
        store.read("absent")


@pytest.mark.parametrize("text", ["a", "(=b", "a=", "a=$1"])
def test_a_wrong_rename_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--rename"):
        Rename(text)
