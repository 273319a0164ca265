"""Archive and restore on real brokers: what is restored equals what was archived, byte for byte and in order, also after kills."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from pyarrow import fs
from typer.testing import CliRunner

from mm2py.clock import SYSTEM_CLOCK, closing
from mm2py.errors import ConfigError, FatalError
from mm2py.mirror.backfills import BackfillRecord, Job, JobState, Lease, LeaseState
from mm2py.types import TopicPartition
from mm2py_cli.app import app
from mm2py_jobs.archive.archive import archive_flow
from mm2py_jobs.archive.archive_format import FileManifest, Shape
from mm2py_jobs.archive.archive_upkeep import Upkeep, keep_up
from mm2py_jobs.archive.restore import Rename
from mm2py_jobs.copy import dealing
from mm2py_jobs.copy.restored_flows import renamed_flow
from mm2py_jobs.open_flow import flow_plan, flow_sides, store_positions
from mm2py_jobs.spark.session import OpenSession
from mm2py_workers.flow_target import FlowTarget
from tests.integration.active_active import write_pair
from tests.integration.cluster_changes import delete_records, delete_topic, topics_of
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.ledger_scenes import PARTITIONS, write_compacted
from tests.integration.mirror_process import GROUPS, Flow, Mirror, running, until, write_flow
from tests.integration.setups import Setup
from tests.integration.small_disk import fill, small_disk
from tests.integration.traffic import (
    YEAR_MS,
    Load,
    Log,
    Logs,
    Record,
    Sent,
    assert_equal,
    copied,
    ends,
    producer,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.integration.transactions import kept, write_mixed, write_one
from tests.spark.backfill_process import BackfillProcess, RestoreProcess, command, taken_over, thaw
from tests.spark.bucket_server import NEEDS_SERVER, Bucket
from tests.spark.test_stream import Readers
from tests.spark.test_verify import differences_of, report_of

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

PAGE: Final = Path(__file__).parents[2] / "docs/reference/jobs.md"
OLD_MS: Final = 1_700_000_000_000 - YEAR_MS
Row = dict[str, object]


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
    session: OpenSession, flow: Flow, topics: str, folder: Path | str, shape: Shape = Shape.BATCHES
) -> dict[str, object]:
    sides = flow_sides(flow.file, flow.name, topics)
    return archive_flow(sides, str(folder), shape, lambda: OpenSession(session.spark, owned=False))


def restored(
    flow: Flow,
    folder: Path | str,
    *,
    topics: str = "",
    rename: str = "",
    options: Sequence[str] = (),
    code: int = 0,
) -> dict[str, object]:
    """Run ``mm2py restore`` in this process; return its report."""
    arguments = [
        "restore",
        str(flow.file),
        "--flow",
        flow.name,
        "--from",
        str(folder),
        "-o",
        "json",
    ]
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
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("kept", 3, config={"retention.ms": "-1"})
    flow = setup.flow(topic, {"{source}.consumer.isolation.level": "read_committed"})
    client = producer(setup.a, transactional_id=f"{topic}-late")
    client.init_transactions(30)
    for turn, records in enumerate((4_570, 4_580)):
        write(setup.a, topic, [*old_records(4_000, 0, turn), *old_records(500, 1, turn)])
        write_mixed(setup.a, topic, 10, 10, turn=turn)
        # At first the last partition has nothing that is restored.
        write_one(client, topic, [b"late"] * 10, commit=turn > 0, partitions=[2])
        report = archived(lanes_session, flow, topic, setup.folder / "archive")
        assert report["records"] == records
        assert archived(lanes_session, flow, topic, setup.folder / "archive")["records"] == 0
        back = restored(flow, setup.folder / "archive")
        assert back["restored_records"] == records
        assert back["records"] == 4_570 * turn + records
        assert restored(flow, setup.folder / "archive")["restored_records"] == 0
        proof = report_of(lanes_session, flow, topic, 2)
        assert differences_of(proof) == []
        assert proof["checked_records"] == 4_570 * turn + records
    assert_equal(read(setup.a, topic, committed=True), read(setup.b, flow.remote(topic)))
    other = setup.unique("again")
    rename = f"({topic})={other}.$1"
    assert restored(flow, setup.folder / "archive", rename=rename)["records"] == 9_150
    assert_equal(read(setup.a, topic, committed=True), read(setup.b, f"{other}.{topic}"))


def parts_of(report: dict[str, object]) -> list[Row]:
    return cast("list[Row]", report["partitions"])


@pytest.mark.parametrize("shape", list(Shape))
def test_a_large_partition_is_archived_in_parts_and_what_a_killed_run_has_of_them_is_kept(
    setup: Setup, lanes_session: OpenSession, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    monkeypatch.setattr(dealing, "PART_OFFSETS", 1_000)
    topic = setup.topic("large", 2, config={"retention.ms": "-1"})
    flow = setup.flow(topic, {"{source}.consumer.isolation.level": "read_committed"})
    path = setup.folder / "archive"
    write(setup.a, topic, old_records(9_000, 0), batch_size=30_000)
    write_mixed(setup.a, topic, 10, 15)
    count = 9_000 + kept(10, 15)
    report = archived(lanes_session, flow, topic, path, shape)
    assert report["records"] == count
    first, second = parts_of(report)
    assert (first["cause"], second["cause"]) == ("", "")
    folder = Path(f"{report['path']}/topic={topic}/partition=0")
    names = sorted(folder.glob("*.json"))
    assert len(names) == first["files"]
    assert len(names) > 2
    assert not list(folder.glob("*.staged"))
    # As a run that was killed leaves it: the first part and two later ones were done.
    hole = FileManifest.parse(names[1].read_bytes(), "")
    (folder / hole.file).unlink()
    names[1].unlink()
    for name in names[2:]:
        name.rename(name.with_suffix(".staged"))
    again = archived(lanes_session, flow, topic, path, shape)
    assert [(it["from"], it["to"], it["records"]) for it in parts_of(again)] == [
        (hole.first, first["to"], hole.records)
    ]
    assert {*names} <= {*folder.glob("*.json")}  # what lay between is cut, too
    assert not list(folder.glob("*.staged"))
    assert archived(lanes_session, flow, topic, path, shape)["records"] == 0
    truth = read(setup.a, topic, committed=True)
    if shape is Shape.BATCHES:
        assert restored(flow, path)["records"] == count
        assert_equal(truth, read(setup.b, flow.remote(topic)))
        return
    rows = lanes_session.spark.read.parquet(f"{folder}/*/*.parquet").select("offset").collect()
    assert sorted(row["offset"] for row in rows) == truth[0].offsets


@pytest.mark.faults
def test_under_the_same_names_both_ways_no_record_of_the_target_itself_is_restored_beside_it(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """The archive has it as the way back copied it; into a topic of its own all is restored."""
    topic, into = (
        setup.topic_on_both("both", 1, config={"retention.ms": "-1"}),
        setup.unique("into"),
    )
    flow = write_pair(setup.folder, setup.a, setup.b, topic)
    folder = setup.folder / "archive"
    write(setup.b, topic, [Sent(0, b"b%d" % n) for n in range(100)])
    with running(flow.file, ready=False) as mirror:
        until(lambda: ends(setup.a, topic) == {0: 100}, 90, "the way back", alive=mirror)
        write(setup.a, topic, [Sent(0, b"a%d" % n) for n in range(100)])
        until(lambda: ends(setup.b, topic) == {0: 200}, 90, "the flow", alive=mirror)
    write(setup.a, topic, [Sent(0, b"more %d" % n) for n in range(100)])
    archived(lanes_session, flow, topic, folder)
    assert restored(flow, folder)["restored_records"] == 100
    write(setup.b, topic, [Sent(0, b"later %d" % n) for n in range(100)])
    text = flow.file.read_text().replace(
        f"{flow.name}.enabled = true", f"{flow.name}.enabled = false"
    )
    back = flow.file.with_suffix(".back.properties")
    back.write_text(text)
    with running(back) as mirror:
        until(lambda: ends(setup.a, topic) == {0: 400}, 90, "the way back", alive=mirror)
    archived(lanes_session, flow, topic, folder)
    (refused,) = cast("list[dict[str, object]]", restored(flow, folder, code=3)["refused"])
    assert "from offset 300 to 399 includes records that a mirror copied" in str(refused["reason"])
    assert ends(setup.b, topic) == {0: 400}
    assert restored(flow, folder, rename=f"{topic}={into}")["records"] == 400
    assert_equal(read(setup.a, topic), read(setup.b, into))


@pytest.mark.chaos
@pytest.mark.parametrize("records", [30, 500])
def test_nothing_of_a_topic_that_was_created_again_gets_into_the_archive_of_the_former_one(
    setup: Setup, records: int, lanes_session: OpenSession
) -> None:
    """Between the plan and its lanes, with fewer and with more records than were planned."""
    topic = setup.topic("again", 1, config={"retention.ms": "-1"})
    write(setup.a, topic, old_records(200, 0))
    flow = setup.flow(topic)

    def open_late() -> OpenSession:
        delete_topic(setup.a, topic)
        until(lambda: topic not in topics_of(setup.a), 90, "the end of the topic")
        setup.create_topic(setup.a, topic, 1, config={"retention.ms": "-1"})
        write(setup.a, topic, old_records(records, 0, turn=1))
        return OpenSession(lanes_session.spark, owned=False)

    sides = flow_sides(flow.file, flow.name, topic)
    report = archive_flow(sides, str(setup.folder / "archive"), Shape.BATCHES, open_late)
    (found,) = cast("list[dict[str, object]]", report["partitions"])
    assert found["records"] == 0
    assert found["cause"]
    (found,) = parts_of(archived(lanes_session, flow, topic, setup.folder / "archive"))
    assert "archive to another folder" in str(found["cause"])


def test_a_flow_that_is_started_behind_a_restore_continues_with_the_next_record(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """Exactly once; a transaction that is open while it is archived ends what is."""
    topic = setup.unique("chained")
    flow = setup.flow(topic, ENABLED)
    setup.create_topic(setup.a, topic, 3, config={"retention.ms": "-1"})  # the last one stays empty
    write_mixed(setup.a, topic, 20, 10)
    client = producer(setup.a, transactional_id=f"{topic}-open")
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    assert client.flush(30) == 0
    write(setup.a, topic, [Sent(partition, b"above") for partition in range(2)])
    archived(lanes_session, flow, topic, setup.folder / "archive")
    assert restored(flow, setup.folder / "archive")["records"] == kept(20, 10) + 1
    client.commit_transaction(30)
    write_mixed(setup.a, topic, 20, 10, turn=1)
    with running(flow.file) as mirror:
        records = assert_each_once(mirror, flow, topic)
    proof = report_of(lanes_session, flow, topic)
    assert differences_of(proof) == []
    assert proof["checked_records"] == records == 2 * kept(20, 10) + 3


@pytest.mark.chaos
def test_a_restore_between_two_workers_is_killed_and_each_record_and_group_is_exact(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """Exactly once; the first worker is killed, and restored is what it has not copied."""
    topic = setup.topic("between", 2, config={"retention.ms": "-1"})
    flow, folder = setup.flow(topic, {**ENABLED, **GROUPS}), setup.folder / "archive"
    readers = Readers(flow, topic)
    with Load(setup.a, topic, 2, rate=500) as load:
        with Mirror(flow.file, name="killed") as mirror:
            wait_for_progress(mirror, flow, topic, 1_000)
            readers.commit()
            mirror.kill()
        load.wait_acked(6_000)
    readers.commit()
    archived(lanes_session, flow, topic, folder)
    options = ("--from", str(folder), "--rate-limit", "60000")
    with BackfillProcess(flow, *options, words=("restore",)) as run:
        run.wait_copying()
        before = copied(flow, topic)
        until(lambda: copied(flow, topic) > before + 300, 120, "progress of the restore")
        run.kill()
    write(setup.a, topic, [Sent(number % 2, b"later %d" % number) for number in range(500)])
    assert restored(flow, folder)["state"] == "DONE"
    readers.commit()
    with running(flow.file, name="behind", ready=False) as mirror:
        assert assert_each_once(mirror, flow, topic) > 6_500
        readers.check(mirror)


def test_records_that_an_existing_topic_would_delete_are_refused_unless_that_is_accepted(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, short = setup.topic("expiring", 2, config={"retention.ms": "-1"}), setup.unique("short")
    flow = setup.flow(topic)
    setup.create_topic(setup.b, short, 2, config={"retention.ms": "3600000"})
    # Three files, the last one with records of now; the other partition has no old ones.
    write(setup.a, topic, old_records(300, 0))
    archived(lanes_session, flow, topic, setup.folder / "archive")
    write(setup.a, topic, [*old_records(200, 0, 1), Sent(1, b"new")])
    archived(lanes_session, flow, topic, setup.folder / "archive")
    write(setup.a, topic, [Sent(0, b"new %d" % n) for n in range(50)])
    archived(lanes_session, flow, topic, setup.folder / "archive")
    rename = f"{topic}={short}"
    (refused,) = cast(
        "list[dict[str, object]]",
        restored(flow, setup.folder / "archive", rename=rename, code=3)["refused"],
    )
    assert (refused["topic"], refused["partition"]) == (short, 0)
    assert f"about 500 records are more than retention.ms=3600000 of {short}" in str(
        refused["reason"]
    )
    assert "--accept-expiry" in str(refused["reason"])
    assert ends(setup.b, short) == {0: 0, 1: 0}
    accepted = restored(flow, setup.folder / "archive", rename=rename, options=["--accept-expiry"])
    assert accepted["restored_records"] == 551
    # A topic that is made keeps them all.
    made = restored(flow, setup.folder / "archive")
    assert made["restored_records"] == 551
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


SLOW = "100000"
"""Bytes per second: a restore is at work while the test acts on it."""


def restore_command(flow: Flow, folder: Path) -> list[str]:
    program = str(Path(sys.executable).parent / "mm2py")
    arguments = ["restore", str(flow.file), "--flow", flow.name, "--from", str(folder)]
    return [program, *arguments, "--master", "local[2]", "-o", "json"]


@pytest.mark.faults
def test_a_restore_that_is_killed_continues_while_the_flow_runs_and_nothing_is_there_twice(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("killed", config={"retention.ms": "-1"})
    flow = setup.flow(topic)
    write(setup.a, topic, old_records(150_000, 0), batch_size=1_000)
    archived(lanes_session, flow, topic, setup.folder / "archive")
    slow = [*restore_command(flow, setup.folder / "archive"), "--rate-limit", SLOW]
    with RestoreProcess(slow) as first:
        until(lambda: copied(flow, topic) > 0, 300, "the first restored records")
        first.kill()
        stopped_at = copied(flow, topic)
        write(setup.a, topic, old_records(500, 0, turn=1))
        with running(flow.file) as mirror:
            beside = CliRunner().invoke(
                app, [*restore_command(flow, setup.folder / "archive")[1:-4], "-o", "json"]
            )
            assert beside.exit_code == 0, beside.output
            assert_equal(*wait_for_copy(mirror, flow, topic))
    assert stopped_at < 150_000
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


@pytest.mark.faults
def test_a_topic_is_restored_as_it_was_at_a_time_through_a_kill_and_later_runs_continue_behind(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """The time lies within a batch, and a record out of order ends the partition before."""
    topic, into = setup.topic("past", 2, config={"retention.ms": "-1"}), setup.unique("past")
    flow, folder = setup.flow(topic, {"{source}.consumer.isolation.level": "read_committed"}), setup.folder  # fmt: skip
    rising, when = old_records(30_000, 0), OLD_MS + 25_000
    late = Sent(0, b"out of order", timestamp_ms=when + 7)
    write(setup.a, topic, [*rising[:20_000], late, *rising[20_000:], *old_records(500, 1)])
    write_mixed(setup.a, topic, 10, 10)
    archived(lanes_session, flow, topic, folder)
    truth, rename = read(setup.a, topic, committed=True), f"{topic}={into}"

    def before(end: Callable[[int, Record], bool]) -> Logs:
        cut: Logs = {}
        for number, log in truth.items():
            pairs = list(zip(log.offsets, log.records, strict=True))
            at = next((at for at, it in enumerate(pairs) if end(*it)), len(pairs))
            cut[number] = Log(log.offsets[:at], log.records[:at])
        return cut

    past = before(lambda _, it: it.timestamp_ms >= when)
    assert [len(past[it].records) for it in (0, 1)] == [20_000, 500]
    slow = ["--rename", rename, "--to", str(when), "--rate-limit", SLOW]
    with RestoreProcess([*restore_command(flow, folder), *slow]) as first:
        until(lambda: sum(ends(setup.b, into).values()) > 0, 300, "the first restored records")
        first.kill()
    assert sum(ends(setup.b, into).values()) < 20_500
    for _ in range(2):
        report = restored(flow, folder, rename=rename, options=["--to", str(when)])
        assert_equal(past, read(setup.b, into))
        left = [len(truth[it].records) - len(past[it].records) for it in (0, 1)]
        assert [row["left_out"] for row in parts_of(report)] == left
        assert [row["source_to"] for row in parts_of(report)] == [20_000, 500]
    options = ["--to", "offset:19000"]
    (refused,) = cast(
        "list[Row]", restored(flow, folder, rename=rename, options=options, code=3)["refused"]
    )
    assert "from offset 19000 on, where --to ends it" in str(refused["reason"])
    restored(flow, folder, rename=rename, options=["--to", "offset:20003"])
    assert_equal(before(lambda offset, _: offset >= 20_003), read(setup.b, into))
    assert restored(flow, folder, rename=rename)["state"] == "DONE"
    assert_equal(truth, read(setup.b, into))


def test_a_flow_continues_behind_the_end_of_a_restore_and_what_its_source_has_lost_is_named(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, folder = setup.topic("ended", config={"retention.ms": "-1"}), setup.folder
    flow = setup.flow(topic)
    write(setup.a, topic, old_records(1_000, 0))
    archived(lanes_session, flow, topic, folder)
    truth = read(setup.a, topic)
    delete_records(setup.a, topic, 0, 600)

    def planned(end: str) -> Row:
        given = ["--flow", flow.name, "--from", str(folder), "--to", end, "-o", "json"]
        done = CliRunner().invoke(app, ["job", "restore", "plan", str(flow.file), *given])
        assert done.exit_code == 0, done.output
        return cast("Row", json.loads(done.stdout))

    early = planned("offset:500")
    (partition,) = parts_of(early)
    assert (partition["to"], partition["left_out"]) == (500, 500)
    assert f"deleted them: {topic}-0 from 500 to 600" in str(early["notes"])
    assert "running flow copies from the source" in str(planned("offset:700")["notes"])
    assert "missing" not in str(planned("offset:700")["notes"])
    assert restored(flow, folder, options=["--to", "offset:700"])["records"] == 700
    assert copied(flow, topic) == 700
    with running(flow.file) as mirror:
        until(lambda: copied(flow, topic) == 1_000, 90, "the rest", alive=mirror)
    assert_equal(truth, read(setup.b, flow.remote(topic)))
    assert restored(flow, folder, options=["--to", "offset:700"])["restored_records"] == 0


def test_a_target_with_other_records_is_refused_with_the_numbers(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("foreign")
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic))
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(100)])
    archived(lanes_session, flow, topic, setup.folder)
    write(setup.b, flow.remote(topic), [Sent(0, b"foreign")])
    (refused,) = cast("list[dict[str, object]]", restored(flow, setup.folder, code=3)["refused"])
    assert (refused["topic"], refused["partition"]) == (topic, 0)
    assert "is not empty (its log ends at 1)" in str(refused["reason"])
    assert ends(setup.b, flow.remote(topic)) == {0: 1}
    assert "has none of the topics" in str(restored(flow, setup.folder, topics="other", code=1))


def test_a_topic_that_another_flows_restore_has_reserved_is_refused_until_that_has_ended(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, into = setup.unique("shared"), setup.unique("into")
    (setup.folder / "first").mkdir()
    first = write_flow(setup.folder / "first", setup.a, setup.b, topic)
    second = setup.flow(topic)
    setup.create_topic(setup.a, topic, 1, config={"retention.ms": "-1"})
    write(setup.a, topic, old_records(200, 0))
    archived(lanes_session, second, topic, setup.folder / "archive")
    job = Job(id="j", state=JobState.RUNNING, run=1, lanes=1, archive="/backup")
    reserved = LeaseState.RESERVED
    lease = Lease(
        topic=into, partition=0, job="j", run=1, state=reserved, start=0, end=9, position=0
    )

    async def write_job(*records: BackfillRecord) -> None:
        plan = flow_plan(first.file, first.name)
        async with closing(FlowTarget(renamed_flow(plan.name), plan.props, SYSTEM_CLOCK)) as target:
            await target.open()
            await target.jobs.post(records)

    asyncio.run(write_job(job, lease))
    rename = f"{topic}={into}"
    report = restored(second, setup.folder / "archive", rename=rename, code=3)
    assert f"topic {into} is written by restore j of /backup" in str(report["error"])
    assert sum(ends(setup.b, into).values()) == 0
    asyncio.run(write_job(replace(job, state=JobState.CANCELLED)))
    assert restored(second, setup.folder / "archive", rename=rename)["restored_records"] == 200


@pytest.mark.faults
@pytest.mark.parametrize("again", [False, True])
def test_behind_a_position_as_of_java_copies_of_a_topic_that_was_created_again_are_refused(
    setup: Setup, lanes_session: OpenSession, *, again: bool
) -> None:
    """It has no topic id: the archive's last records before it are looked for in the copies."""
    topic, folder = setup.topic("java", config={"retention.ms": "-1"}), setup.folder / "archive"
    flow, records = setup.flow(topic), old_records(1_000, 0)
    setup.create_topic(setup.b, flow.remote(topic), 1, config={"retention.ms": "-1"})
    former = [it._replace(timestamp_ms=it.timestamp_ms - YEAR_MS) for it in records]
    write(setup.b, flow.remote(topic), (former if again else records)[:600])
    write(setup.a, topic, records)
    archived(lanes_session, flow, topic, folder)
    asyncio.run(store(flow, topic, 600))
    report = restored(flow, folder, code=3 if again else 0)
    if again:
        assert "none of the records that the archive has before the stored position 600" in str(
            report
        )
        return
    assert report["restored_records"] == 400
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


async def store(flow: Flow, topic: str, position: int) -> None:
    """Set the position of partition 0 as PATCH does."""
    plan = flow_plan(flow.file, flow.name)
    async with closing(FlowTarget(plan.name, plan.props, SYSTEM_CLOCK)) as target:
        await target.open()
        await store_positions(target.tables, plan, {TopicPartition(topic, 0): position})


def test_behind_a_position_that_was_set_past_the_copies_of_a_flow_nothing_is_restored(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, folder = setup.topic("passed", config={"retention.ms": "-1"}), setup.folder / "archive"
    flow = setup.flow(topic)
    write(setup.a, topic, old_records(600, 0))
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
    write(setup.a, topic, old_records(1_400, 0, turn=1))
    archived(lanes_session, flow, topic, folder)
    asyncio.run(store(flow, topic, 2_000))
    (refused,) = cast("list[dict[str, object]]", restored(flow, folder, code=3)["refused"])
    assert "set past records from offset 600 on" in str(refused["reason"])
    asyncio.run(store(flow, topic, 600))
    assert restored(flow, folder)["restored_records"] == 1_400
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


@pytest.mark.faults
def test_an_archive_keeps_what_compaction_and_retention_take_from_the_source_later(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """Holes within batches, and a beginning that is gone before the second run."""
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    topic, folder = setup.topic("thinned", PARTITIONS, config=config), setup.folder / "archive"
    flow = setup.flow(topic)
    write_compacted(setup.a, topic, 0)
    kept, first = read(setup.a, topic), ends(setup.a, topic)
    report = archived(lanes_session, flow, topic, folder)
    assert report["records"] == sum(len(log.records) for log in kept.values())
    write_compacted(setup.a, topic, 1)
    delete_records(setup.a, topic, 0, first[0] + 200)
    rows = parts_of(archived(lanes_session, flow, topic, folder))
    lost = [(it["lost_from"], it["lost_to"]) for it in rows if it["partition"] == 0]
    assert lost == [(first[0], first[0] + 200)]
    restored(flow, folder)
    write(setup.a, topic, [Sent(it, b"behind") for it in range(PARTITIONS)])
    with running(flow.file) as mirror:
        _, copy = wait_for_copy(mirror, flow, topic)
    for partition, log in read(setup.a, topic).items():
        newer = [
            it for it, at in zip(log.records, log.offsets, strict=True) if at >= first[partition]
        ]
        assert copy[partition].records == [*kept[partition].records, *newer]


@pytest.mark.parametrize("damage", ["flip", "cut", "chain"])
def test_a_file_or_manifest_that_does_not_match_stops_its_partition_alone(
    setup: Setup, lanes_session: OpenSession, damage: str
) -> None:
    topic = setup.topic("damaged", 2)
    flow = setup.flow(topic)
    for turn in range(3):
        write(setup.a, topic, [Sent(n % 2, b"%d %d" % (turn, n)) for n in range(200)])
        archived(lanes_session, flow, topic, setup.folder)
    folder = (
        setup.folder / f"{flow.source_alias}-{flow.target_alias}" / f"topic={topic}" / "partition=0"
    )
    first, second, _ = sorted(folder.glob("*.json"))
    file = folder / FileManifest.parse(first.read_bytes(), "").file
    whole = {it: it.read_bytes() for it in (file, second)}
    data = bytearray(whole[file])
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        del data[-100:]
    else:
        second.unlink()
    file.write_bytes(data)
    cause = "expected 100" if damage == "chain" else "with digest"
    ended = str(restored(flow, setup.folder, code=1))
    assert cause in ended
    assert f"{topic}-0" in ended or f"'{topic}'" in ended
    assert ends(setup.b, flow.remote(topic)) == {0: 0, 1: 300}
    for path, content in whole.items():
        path.write_bytes(content)
    restored(flow, setup.folder)
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


def test_records_are_rows_that_any_parquet_reader_has_and_cannot_be_restored(
    setup: Setup, lanes_session: OpenSession, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = setup.topic("rows")
    flow = setup.flow(topic)
    write(
        setup.a, topic, [Sent(0, b"%d" % n, b"k", [("h", b"x")], OLD_MS + n) for n in range(1_000)]
    )
    write(setup.a, topic, [Sent(0, b"next day", b"k", (), OLD_MS + 86_400_000)])
    report = archived(lanes_session, flow, topic, setup.folder, Shape.RECORDS)
    # What a run that was killed, or that runs now, has of a file is hidden.
    date = next(Path(str(report["path"])).rglob("date=*"))
    (date / ".0-9.ab.parquet.cd.tmp").write_bytes(b"PAR1")
    layout = lanes_session.spark.read.option("basePath", str(report["path"]))
    rows = layout.parquet(f"{report['path']}/topic={topic}/partition=*/date=*")
    assert rows.count() == 1_001
    days = rows.groupBy("topic", "partition", "date").count().orderBy("date").collect()
    first, last = (datetime.fromtimestamp(it / 1_000, UTC).date() for it in (OLD_MS, OLD_MS + 86_400_000))  # fmt: skip
    assert [tuple(it) for it in days] == [(topic, 0, first, 1_000), (topic, 0, last, 1)]
    of_last = rows.where(rows.date == last)
    assert of_last.count() == 1
    of_last.explain()
    assert "PartitionFilters: [isnotnull(date" in capsys.readouterr().out
    assert [row["value"] for row in rows.where("offset = 7").collect()] == [b"7"]
    assert "shape records" in str(restored(flow, setup.folder, code=1))
    with pytest.raises(ConfigError, match="shape=records"):
        archived(lanes_session, flow, topic, setup.folder)


@pytest.mark.parametrize("place", ["disk", pytest.param("bucket", marks=NEEDS_SERVER)])
def test_the_program_of_the_page_makes_an_iceberg_table_of_an_archive_and_adds_what_is_new(
    setup: Setup, lanes_session: OpenSession, place: str
) -> None:
    """A file that a killed run has left, which no manifest names, stays out of it; those that were joined are replaced."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'pyiceberg[pyarrow,sql-sqlite]'")  # fmt: skip
    topic, home = setup.topic("lake", 3), setup.folder
    flow = setup.flow(topic, {"{source}.consumer.isolation.level": "read_committed"})
    where = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"{home}/tables"}
    (home / "tables").mkdir()
    section = PAGE.read_text("utf-8").partition("### An archive as an Iceberg table")[2]
    program = section.partition("```python\n")[2].partition("```")[0]
    with ExitStack() as servers:
        archive = str(home)
        if place == "bucket":
            bucket = servers.enter_context(Bucket(home))
            archive, name = bucket.url("s3", setup.unique("lake")), setup.unique("tables")
            where |= {"warehouse": f"s3://lake/{name}", **bucket.iceberg}
        (home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lake": where}}))
        for turn in range(3):
            write(setup.a, topic, [*old_records(900, 0, turn), *old_records(100, 1, turn)])
            write_mixed(setup.a, topic, 10, 10, turn=turn)
            path, *options = str(
                archived(lanes_session, flow, topic, archive, Shape.RECORDS)["path"]
            ).split("?")
            folder = "?".join((f"{path}/topic={topic}", *options))
            if turn == 2:
                sides, joins = flow_sides(flow.file, flow.name, topic), Upkeep(joins=True)
                rows = keep_up(sides, archive, joins, lambda: OpenSession(lanes_session.spark, owned=False))  # fmt: skip
                assert all(int(str(it["joined"])) > 2 for it in rows)
                assert len(rows) == 2
            system, root = fs.FileSystem.from_uri(folder)
            files = system.get_file_info(fs.FileSelector(f"{root}/partition=0", recursive=True))
            left = next(it.path for it in files if it.path.endswith(".parquet"))
            with (
                system.open_input_stream(left) as whole,
                system.open_output_stream(left.replace(".parquet", ".left.parquet")) as copy,
            ):
                copy.write(whole.read())
            for _ in range(2):
                done = subprocess.run(
                    [sys.executable, "-c", program.replace("/backup/A-B/topic=orders", folder)],
                    check=False,
                    capture_output=True,
                    text=True,
                    env={
                        **os.environ,
                        "PYICEBERG_HOME": str(home),
                        "PYTHONPATH": os.pathsep.join(sys.path),
                    },
                )
                assert done.returncode == 0, done.stderr
            table = catalogs.load_catalog("lake", **where).load_table("kafka.orders")
            assert sorted(map(archived_row, table.scan().to_arrow().to_pylist())) == [
                (number, offset, it.timestamp_ms / 1_000, it.key, it.value, it.headers)
                for number, log in sorted(read(setup.a, topic, committed=True).items())
                for offset, it in zip(log.offsets, log.records, strict=True)
            ]


def archived_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    headers = tuple((it["key"], it["value"]) for it in row["headers"])
    stamp = row["timestamp"].timestamp()
    return row["partition"], row["offset"], stamp, row["key"], row["value"], headers


def test_a_full_disk_stops_with_what_was_published_and_the_next_run_continues(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("full")
    flow = setup.flow(topic)
    with small_disk(setup.folder) as disk:
        write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(1_000)])
        assert archived(lanes_session, flow, topic, disk)["records"] == 1_000
        write(setup.a, topic, [Sent(0, os.urandom(2_000)) for _ in range(1_000)])
        fill(disk / "ballast")
        with pytest.raises(FatalError, match="cannot be written"):
            archived(lanes_session, flow, topic, disk)
        (disk / "ballast").unlink()
        assert archived(lanes_session, flow, topic, disk)["records"] == 1_000
        assert restored(flow, disk)["records"] == 2_000
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


@pytest.mark.parametrize("text", ["a", "(=b", "a=", "a=$1"])
def test_a_wrong_rename_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--rename"):
        Rename(text)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_restore_that_is_killed_and_frozen_has_everything_once_and_a_running_flow_continues_behind_it(
    setup: Setup, lanes_session: OpenSession
) -> None:
    """The flow runs all the time, and would copy the topic from its start if the restore did not hold its partitions."""
    topic = setup.topic("killed", 2, config={"retention.ms": "-1"})
    flow = setup.flow(topic, {"flow.max.bytes.per.second": "100000"})
    write(setup.a, topic, [*old_records(30_000, 0), *old_records(30_000, 1)], batch_size=500)
    archived(lanes_session, flow, topic, setup.folder / "archive")
    options = ("--from", str(setup.folder / "archive"), "--rate-limit")

    def moved() -> None:
        before = copied(flow, topic)
        until(lambda: copied(flow, topic) > before + 500, 120, "progress of the restore")

    with BackfillProcess(flow, *options, "100000", words=("restore",)) as first:
        first.wait_copying()
        with running(flow.file) as mirror:
            moved()
            killed = first.signal_worker(signal.SIGKILL)
            assert killed
            taken_over(flow, killed)
            moved()
            zombie = first.orphan()
            taken_over(flow, zombie)
            moved()
            thaw(zombie)
            moved()
            refused = command(flow, "run")
            assert refused.code == 3
            assert "is running" in refused.err
            first.kill()
            refused = command(flow, "run")
            assert refused.code == 3
            assert "is unfinished" in refused.err
            assert copied(flow, topic) < 60_000
            write(setup.a, topic, old_records(300, 1, turn=1))
            report = restored(flow, setup.folder / "archive")
            assert (report["state"], report["records"]) == ("DONE", 60_000)
            truth, copy = wait_for_copy(mirror, flow, topic)
            assert not mirror.lines("Traceback")
    assert_equal(truth, copy)
    assert sum(len(it.records) for it in truth.values()) == 60_300
