"""Verify on real brokers: each kind of difference is named by its offsets, and what is equal by right gives no false alarm."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import pytest
from typer.testing import CliRunner, Result

from mm2py.errors import PartitionError
from mm2py.mirror.offset_map_pages import Page, Segment, offset_map_topic
from mm2py.protocol.messages import delete_records
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.storage.offset_map_store import page_entries
from mm2py.types import TopicPartition
from mm2py_cli.app import app
from mm2py_cli.output import NOT_EQUAL, UNHEALTHY
from mm2py_jobs.archive.archive import archive_flow
from mm2py_jobs.archive.archive_format import Shape, chain_of
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.open_flow import flow_sides
from mm2py_jobs.spark.data_source import Mm2pyReader, ask_cluster
from mm2py_jobs.spark.read_options import ReadOptions
from mm2py_jobs.spark.session import LaneFunction, OpenSession, run_lanes
from mm2py_jobs.verify.verify import verify_flow
from mm2py_jobs.verify.verify_runs import exit_code
from tests.integration.cluster_changes import delete_records as remove_records
from tests.integration.mirror_process import MM2PY, Flow, Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import Load, Sent, producer, wait_for_copy, wait_for_progress, write
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress
from tests.spark.backfill_process import BackfillProcess, cpu_s, thaw

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(400)]

START_MS: Final = 1_700_000_000_000


def report_of(session: OpenSession, flow: Flow, topics: str, tier: int = 1) -> dict[str, object]:
    sides = flow_sides(flow.file, flow.name, topics)
    return verify_flow(sides, tier, lambda: OpenSession(session.spark, owned=False))


def differences_of(report: Mapping[str, object]) -> list[tuple[object, ...]]:
    rows = cast("Sequence[Mapping[str, object]]", report["differences"])
    return [
        (row["partition"], row["kind"], row["source_offset"], row["target_offset"]) for row in rows
    ]


def records(count: int, partition: int = 0) -> list[Sent]:
    return [
        Sent(partition, b"v%d" % n, b"k%d" % (n % 97), [("h", b"%d" % n)], START_MS + n)
        for n in range(count)
    ]


@pytest.mark.parametrize("tier", [1, 3])
def test_every_kind_of_difference_is_named_by_its_offsets(
    setup: Setup, lanes_session: OpenSession, tier: int
) -> None:
    topic = setup.topic("altered", 2)
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic), 2)
    truth = records(20_000)
    write(setup.a, topic, [*truth, *records(5_000, 1)])
    copy = list(truth)
    copy[15_000] = copy[15_000]._replace(timestamp_ms=START_MS)
    copy[13_000] = copy[13_000]._replace(headers=[("h", b"other")])
    copy.insert(11_000, Sent(0, b"foreign", b"k", (), START_MS))
    copy[9_000], copy[9_001] = copy[9_001], copy[9_000]
    del copy[5_000]
    copy[1_000] = copy[1_000]._replace(value=b"V1000")
    write(setup.b, flow.remote(topic), [*copy, *records(5_000, 1)])
    report = report_of(lanes_session, flow, topic, tier)
    assert differences_of(report) == [
        (0, "altered", 1_000, 1_000),
        (0, "missing", 5_000, None),
        (0, "reordered", 9_000, 9_000),
        (0, "reordered", 9_001, 8_999),
        (0, "extra", None, 10_999),
        (0, "altered", 13_000, 13_000),
        (0, "altered", 15_000, 15_000),
    ]
    rows = cast("Sequence[Mapping[str, object]]", report["differences"])
    assert [row.get("fields") for row in rows if row["kind"] == "altered"] == [
        ["value"],
        ["headers"],
        ["timestamp"],
    ]
    assert report["equal"] is False
    assert report["checked_records"] == 25_000 - 6
    partitions = cast("Sequence[Mapping[str, object]]", report["partitions"])
    assert partitions[1]["equal"] is True
    if tier > 1:
        one, other = cast("Sequence[Sequence[str]]", [it["digests"] for it in partitions])
        assert one[0] != one[1]
        assert other[0] == other[1]


@pytest.mark.parametrize("deleted", [0, 10])
def test_a_partition_of_which_the_target_has_nothing_is_not_equal(
    setup: Setup, lanes_session: OpenSession, deleted: int
) -> None:
    topic = setup.topic("nothing", 2)
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic), 2)
    write(setup.a, topic, [*records(10), *records(10, 1)])
    write(setup.b, flow.remote(topic), [*records(deleted), *records(10, 1)])
    if deleted:
        delete(flow.target, TopicPartition(flow.remote(topic), 0), deleted)
    report = report_of(lanes_session, flow, topic)
    assert (report["differences"], report["checked_records"]) == ([], 10)
    assert report["not_compared"] == [
        f"{topic}-0: nothing of it is on the target (source offsets 0 to 10)"
    ]
    assert exit_code(report) == UNHEALTHY


@pytest.mark.faults
def test_what_a_mirror_copied_is_equal_under_load_with_transactions_merges_and_other_codecs(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("proved", 2)
    properties = {
        "{source}.consumer.isolation.level": "read_committed",
        "{target}.producer.compression.type": "lz4",
    }
    flow = setup.flow(topic, properties)
    write_mixed(setup.a, topic, 30, 10)
    write(setup.a, topic, records(500), linger_ms=0)  # tiny batches, which are joined
    with Mirror(flow.file) as mirror, Load(flow.source, topic, 2, rate=500) as load:
        mirror.wait_ready()
        wait_for_progress(mirror, flow, topic)
        load.wait_acked(500)
        for tier in (0, 1, 2):
            report = report_of(lanes_session, flow, topic, tier)
            assert report["differences"] == []
            if tier:
                assert int(str(report["checked_records"])) > 500
        load.stop()
        wait_for_copy(mirror, flow, topic, committed=True)
        assert mirror.stop() == 0
    last = report_of(lanes_session, flow, topic)
    assert last["equal"] is True
    assert not any(it["notes"] for it in cast("Sequence[Mapping[str, object]]", last["partitions"]))
    # What lies above an open transaction is named, until it has ended.
    client = producer(setup.a, transactional_id=topic, transaction_timeout_ms=600_000)
    client.init_transactions()
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    client.flush()
    above = report_of(lanes_session, flow, topic)
    assert (above["equal"], above["differences"]) == (False, [])
    assert f"{topic}-0: source offsets " in str(above["not_compared"])
    assert f"{topic}-1" not in str(above["not_compared"])
    client.abort_transaction()
    until(lambda: report_of(lanes_session, flow, topic)["equal"] is True)
    # A record that another program wrote behind the copies.
    write(setup.b, flow.remote(topic), [Sent(1, b"foreign")])
    (found,) = differences_of(report_of(lanes_session, flow, topic))
    assert found[:3] == (1, "extra", None)


@pytest.mark.parametrize("compacted", ["source", "target"])
def test_compaction_of_either_side_is_no_difference_and_a_lost_key_is(
    setup: Setup, lanes_session: OpenSession, compacted: str
) -> None:
    topic = setup.unique("compacted")
    flow = setup.flow(topic)
    everything = [Sent(0, b"%d" % n, b"k%d" % (n % 61), (), START_MS + n) for n in range(3_000)]
    kept = [it for n, it in enumerate(everything) if n >= 2_900 or n % 3 == 0]
    sides = (kept, everything) if compacted == "source" else (everything, kept)
    for region, name, rows in ((setup.a, topic, sides[0]), (setup.b, flow.remote(topic), sides[1])):
        setup.create_topic(region, name, config={"cleanup.policy": "compact"})
        write(region, name, rows)
    assert report_of(lanes_session, flow, topic)["equal"] is True
    # A key that only one side has, and that nothing later excuses.
    last = (flow.source, topic) if compacted == "target" else (flow.target, flow.remote(topic))
    write(*last, [Sent(0, b"only here", b"a key")])
    tail = [Sent(0, b"both %d" % n, b"tail", (), START_MS) for n in range(10)]
    write(setup.a, topic, tail)
    write(setup.b, flow.remote(topic), tail)
    (found,) = differences_of(report_of(lanes_session, flow, topic))
    kind = "missing" if compacted == "target" else "extra"
    assert found[1] == kind
    # A tombstone that only one side has, where the other still has what it deletes.
    for region, name in ((setup.a, topic), (setup.b, flow.remote(topic))):
        write(region, name, [Sent(0, b"v", b"deleted", (), START_MS)])
    write(*last, [Sent(0, None, b"deleted", (), START_MS)])
    write(setup.a, topic, tail)
    write(setup.b, flow.remote(topic), tail)
    for tier in (1, 2, 3):
        both = differences_of(report_of(lanes_session, flow, topic, tier))
        assert [it[1] for it in both] == [kind, kind]


def test_a_partition_in_parts_has_the_report_of_the_whole(
    setup: Setup, lanes_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, count, part = setup.unique("parts"), 100_000, 25_000
    flow = setup.flow(topic)
    copy = flow.remote(topic)
    truth = [Sent(0, b"%d" % n, b"k", (), START_MS + n) for n in range(count)]
    for region, name in ((setup.a, topic), (setup.b, copy)):
        setup.create_topic(region, name, config={"retention.ms": "-1"})
    write(setup.a, topic, truth)
    changed = list(truth)
    for at in (part - 1, part, 60_000):
        changed[at] = changed[at]._replace(value=b"changed")
    changed[2 * part - 1], changed[2 * part] = changed[2 * part], changed[2 * part - 1]
    write(setup.b, copy, [*changed[:-5], Sent(0, b"foreign")])
    pages = {
        TopicPartition(topic, 0): [
            Page(0, NO_TOPIC_ID, NO_TOPIC_ID, count, count, -1, -1, -1, (Segment(0, count - 5, 0),))
        ]
    }
    map_topic = offset_map_topic(flow.source_alias)
    setup.create_topic(setup.b, map_topic, config={"cleanup.policy": "compact"})
    write(setup.b, map_topic, [Sent(0, value, key) for key, value in page_entries(pages)])
    expected = [
        (0, "altered", part - 1, part - 1),
        (0, "altered", part, part),
        (0, "reordered", 2 * part - 1, 2 * part),
        (0, "reordered", 2 * part, 2 * part - 1),
        (0, "altered", 60_000, 60_000),
        *((0, "missing", it, None) for it in range(count - 5, count)),
        (0, "extra", None, count - 5),
    ]
    lanes: list[int] = []

    def counted(
        opened: OpenSession,
        function: LaneFunction,
        given: Sequence[Mapping[str, object]],
        **named: Any,
    ) -> list[dict[str, object]]:
        lanes.append(sum(len(cast("Sequence[object]", it["partitions"])) for it in given))
        return run_lanes(opened, function, given, **named)

    monkeypatch.setattr("mm2py_jobs.copy.dealing.run_lanes", counted)
    for tier in (1, 2):
        found: list[Mapping[str, object]] = []
        for size in (2 * part, 10 * count):  # of both sides
            monkeypatch.setattr("mm2py_jobs.copy.dealing.PART_OFFSETS", size)
            report = report_of(lanes_session, flow, topic, tier)
            assert sorted(differences_of(report), key=str) == sorted(expected, key=str)
            found.append(report)
        assert found[0] == found[1]
        assert found[0]["checked_records"] == count - 10
    assert lanes == [4, 1, 4, 1]


def test_what_retention_deletes_meanwhile_is_left_out(
    setup: Setup, lanes_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = setup.unique("deleted")
    flow = setup.flow(topic)
    for region, name in ((setup.a, topic), (setup.b, flow.remote(topic))):
        setup.create_topic(region, name, 2, config={"retention.ms": "-1"})
        write(
            region,
            name,
            [*records(100), *records(100, 1)],
            batch_num_messages=1,
            enable_idempotence=1,  # or a retry puts a record behind later ones
        )
    copy = TopicPartition(flow.remote(topic), 0)
    runs: list[int] = []

    def run_after_deletion(
        opened: OpenSession,
        function: LaneFunction,
        lanes: Sequence[Mapping[str, object]],
        **named: Any,
    ) -> list[dict[str, object]]:
        delete(setup.b, copy, 40)
        delete(setup.a, TopicPartition(topic, 0), 50 + 20 * len(runs))
        runs.append(len(lanes))
        return run_lanes(opened, function, lanes, **named)

    monkeypatch.setattr("mm2py_jobs.copy.dealing.run_lanes", run_after_deletion)
    report = report_of(lanes_session, flow, topic)
    assert differences_of(report) == []
    assert (report["equal"], len(runs)) == (True, 1)
    assert report["checked_records"] == 150
    archived = archive_flow(
        flow_sides(flow.file, flow.name, topic),
        str(setup.folder / "archive"),
        Shape.RECORDS,
        lambda: OpenSession(lanes_session.spark, owned=False),
    )
    rows = cast("Sequence[Mapping[str, object]]", archived["partitions"])
    assert [(it["lost_from"], it["lost_to"], it["records"], it["cause"]) for it in rows] == [
        (50, 70, 30, ""),
        (-1, -1, 100, ""),
    ]
    assert [it.begins for it in chain_of(ArchiveStore(str(archived["path"])), copy._replace(topic=topic))] == [50]  # fmt: skip
    # The same of a DataFrame from the earliest records on.
    options = {"bootstrap.servers": setup.a.bootstrap_servers, "topics": topic}
    reader = Mm2pyReader(ReadOptions(options))
    ranges = reader.partitions()
    explicit = Mm2pyReader(ReadOptions(options | {"startingOffsets": f'{{"{topic}": {{"0": 70}}}}'})).partitions()  # fmt: skip
    delete(setup.a, TopicPartition(topic, 0), 90)
    assert sum(it.num_rows for one in ranges for it in reader.read(one)) == 110
    with pytest.raises(PartitionError, match="has 90 to 100"):
        list(reader.read(explicit[-1]))


@pytest.mark.parametrize("count", [100, 6_000])
def test_a_copy_without_a_map_is_compared_from_the_first_common_record_or_counts_as_not_compared(
    setup: Setup, lanes_session: OpenSession, count: int
) -> None:
    base = setup.unique("unmapped")
    deleted, other, shorter = f"{base}-deleted", f"{base}-other", f"{base}-shorter"
    flow = setup.flow(f"{base}.*")
    truth = records(count)
    # Behind retention of the source, a copy that began there, and one that goes back further; of retention of the copy too.
    began = count // 2
    copies = {deleted: truth[began:], other: [it._replace(value=b"?", key=b"?") for it in truth], shorter: truth}  # fmt: skip
    for topic, copy in copies.items():
        for region, name, rows in ((setup.a, topic, truth), (setup.b, flow.remote(topic), copy)):
            setup.create_topic(region, name, config={"retention.ms": "-1"})
            write(region, name, rows)
    cut = {it: TopicPartition(it, 0) for it in (deleted, other)}
    for tp in cut.values():
        delete(setup.a, tp, began)
    delete(setup.b, TopicPartition(flow.remote(shorter), 0), began + 7)
    report = report_of(lanes_session, flow, f"{base}.*")
    assert differences_of(report) == []
    by_topic = {str(it["topic"]): it for it in cast("Sequence[Mapping[str, object]]", report["partitions"])}  # fmt: skip
    assert {it: by_topic[it]["checked_records"] for it in by_topic} == {
        deleted: count - began,
        other: 0,
        shorter: count - began - 7,
    }
    assert {it: by_topic[it]["equal"] for it in by_topic} == {
        deleted: True,
        other: False,
        shorter: True,
    }
    (line,) = cast("Sequence[str]", report["not_compared"])
    assert line.startswith(f"{other}-0: no record is known to be on both sides")
    assert (report["equal"], exit_code(report)) == (False, UNHEALTHY)
    unmapped = report_of(lanes_session, flow, f"{base}.*", 0)
    assert exit_code(unmapped) == UNHEALTHY
    # What is missing behind the first common record is named.
    write(setup.a, deleted, [Sent(0, b"lost")])
    for region, name in ((setup.a, deleted), (setup.b, flow.remote(deleted))):
        write(region, name, [Sent(0, b"last %d" % it, b"k", (), START_MS) for it in range(9)])
    found = report_of(lanes_session, flow, deleted)
    assert differences_of(found) == [(0, "missing", count, None)]


def delete(region: KafkaAddress, tp: TopicPartition, before: int) -> None:
    properties = {"bootstrap.servers": region.bootstrap_servers}
    ask_cluster(properties, lambda it: it.call_leader(tp, delete_records({tp: before})))


def test_the_command_prints_a_report_and_ends_with_4_if_not_equal(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = setup.topic("command")
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic))
    write(setup.a, topic, records(100))
    write(setup.b, flow.remote(topic), records(99)[1:])

    verify = ["verify", str(flow.file)]
    options = ["--flow", flow.name, "--master", "local[1]", "-o", "json"]
    ended = subprocess.run([MM2PY, *verify, *options], capture_output=True, text=True, timeout=200)
    assert ended.returncode == NOT_EQUAL, ended.stderr
    report = json.loads(ended.stdout)
    assert differences_of(report) == [(0, "missing", 0, None)]
    assert report["partitions"][0]["not_copied_from"] == 99

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*verify, *arguments], catch_exceptions=False)

    no_flow = run("--flow", f"{flow.name}x")
    assert no_flow.exit_code == 2
    assert "is no flow of" in no_flow.stderr
    nothing = run("--flow", flow.name, "--topics", "no-such-topic")
    assert nothing.exit_code == 1
    assert "has none of the topics" in nothing.stderr


@pytest.mark.faults
def test_a_verify_that_stood_still_names_what_is_missing_and_not_what_was_deleted_meanwhile(
    setup: Setup,
) -> None:
    topic, count = setup.topic("frozen", config={"retention.ms": "-1"}), 20_000
    flow = setup.flow(topic)
    copy = flow.remote(topic)
    setup.create_topic(setup.b, copy, 1, config={"retention.ms": "-1"})
    truth = [Sent(0, b"%d" % n + b"." * 1_000, None, (), START_MS + n) for n in range(count)]
    write(setup.a, topic, truth)
    write(setup.b, copy, [*truth[:-2], truth[-1]])
    with BackfillProcess(flow, "--rate-limit", "4000000", words=("verify",)) as run:
        until(lambda: any(cpu_s(it) > 0.3 for it in run.workers()), 240, "a lane that works")
        frozen = run.freeze()
        for region, name in ((setup.a, topic), (setup.b, copy)):
            remove_records(region, name, 0, count - 1_000)
        thaw(*frozen)
        ended = run.wait()
    assert ended.code == NOT_EQUAL
    (missing,) = differences_of(ended.report)
    assert missing[:3] == (0, "missing", count - 2)
