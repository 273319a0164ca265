"""``mm2py verify --repair`` on real brokers: what can be made equal is, and nothing is deleted without the option for it."""

import asyncio
import json
import math
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import pytest

from mm2py.mirror.offset_map_pages import Segment, offset_map_topic
from mm2py.storage.offset_map_store import page_entries
from mm2py.types import ClusterAlias, TopicPartition
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.known_maps import known_maps
from mm2py_jobs.open_flow import flow_plan
from mm2py_jobs.spark.data_source import ask_cluster
from mm2py_jobs.verify.repair_run import repair
from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.exactly_once import ENABLED, assert_each_once, wait_for_committed
from tests.integration.flow_questions import Asked, path_of
from tests.integration.members import READ_OF_60, place_of, read_next
from tests.integration.mirror_process import GROUPS, MM2PY, Flow, running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.test_quotas import throttled
from tests.integration.traffic import Sent, ends, numbered, producer, read, wait_for_copy, write
from tests.integration.transactions import abandon, kept, take_over, write_mixed
from tests.kit.kafka.reaper import REAPER
from tests.spark.backfill_process import command as backfill
from tests.spark.backfill_process import here
from tests.spark.test_verify import delete

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("lanes_session"),
]

SLOW_FLOW: Final = "flow.max.bytes.per.second = 20000\n"
"""A repair has this limit too: one of 2,000 records takes 20 s, so that it can be killed."""
OLD_MS: Final = 1_600_000_000_000
"""Older than any retention: a copy that is made again must not be deleted by it."""


def verify(flow: Flow, *options: str) -> tuple[int, dict[str, object], str]:
    ended = here(flow, ("verify",), "--master", "local[2]", *options)
    report: object = json.loads(ended.out or "{}")
    return ended.code, cast("dict[str, object]", report), ended.err


def rows(report: Mapping[str, object], member: str) -> Sequence[Mapping[str, object]]:
    return cast("Sequence[Mapping[str, object]]", report[member])


def records(count: int, first: int = 0, partition: int = 0) -> list[Sent]:
    return [
        Sent(partition, b"v%d" % n + bytes(200), b"k%d" % n, (), OLD_MS + n)
        for n in range(first, first + count)
    ]


@pytest.fixture
def copied(setup: Setup) -> tuple[Flow, str]:
    """A flow that has copied 2,000 old records of each of two partitions, and was stopped."""
    topic = setup.unique("repaired")
    flow = setup.flow(topic)
    for region, name in ((setup.a, topic), (setup.b, flow.remote(topic))):
        setup.create_topic(region, name, 2, config={"retention.ms": "-1"})
    history = [*records(2_000), *records(2_000, partition=1)]
    write(setup.a, topic, history, batch_num_messages=50)
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
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
        async with BackfillSession(flow_plan(flow.file, flow.name)) as session:
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
    with running(flow.file) as mirror:
        write(flow.source, topic, records(100, 2_500))
        wait_for_copy(mirror, flow, topic)
        assert read(flow.target, flow.remote(topic))[0] == read(flow.source, topic)[0]


def test_copies_of_a_topic_that_was_deleted_on_the_target_are_missing_and_made_again(
    copied: tuple[Flow, str],
) -> None:
    """The flow copies what follows, and the ledger names the lost ones: no tier may report that both sides are equal."""
    flow, topic = copied
    copy = flow.remote(topic)
    with running(flow.file) as mirror:
        delete_topic(flow.target, copy)
        write(flow.source, topic, records(100, 2_000))
        until(
            lambda: copy in topics_of(flow.target) and ends(flow.target, copy).get(0) == 100,
            alive=mirror,
        )
    for tier in "0", "1", "2":
        code, report, errors = verify(flow, "--tier", tier)
        assert code == 4, (tier, errors, report)
        missing = [it for it in rows(report, "differences") if it["partition"] == 0]
        assert {it["kind"] for it in missing} == {"missing"}
        assert missing[0]["source_offset"] == 0
    code, report, errors = verify(flow, "--repair", "--delete-copies")
    there, here_ = read(flow.source, topic)[0], read(flow.target, copy)[0]
    assert [it.value for it in here_.records] == [it.value for it in there.records]
    named = " ".join(map(str, rows(report, "not_compared")))
    assert (code, topic in named) in ((0, False), (3, True)), (errors, report)


def assert_left_alone(
    flow: Flow, topic: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], cause: str
) -> None:
    """A copy that is to be made again, whose source changes behind the comparison, keeps its records."""
    copy = flow.remote(topic)
    write(flow.target, copy, [Sent(0, b"foreign")])

    def behind_change(*arguments: object) -> list[dict[str, object]]:
        change()
        return cast("Callable[..., list[dict[str, object]]]", repair)(*arguments)

    monkeypatch.setattr("mm2py_jobs.verify.repair_run.repair", behind_change)
    code, report, errors = verify(flow, "--repair", "--delete-copies")
    assert code == 4, errors
    (left,) = rows(report, "repairs")
    assert (left["action"], left["done"]) == ("renew", False)
    assert cause in str(left["cause"])
    assert len(read(flow.target, copy)[0].records) == 2_001, "nothing was deleted"


def test_copies_are_not_deleted_whose_records_the_source_has_lost_since_they_were_compared(
    copied: tuple[Flow, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, topic = copied

    def retention() -> None:
        delete(flow.source, TopicPartition(topic, 0), 1_000)

    cause = "has deleted its offsets 0 to 1000 since it was compared"
    assert_left_alone(flow, topic, monkeypatch, retention, cause)


def test_copies_of_a_source_topic_that_was_created_again_since_they_were_compared_are_left_alone(
    setup: Setup, copied: tuple[Flow, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, topic = copied

    def deletion() -> None:
        delete_topic(flow.source, topic)
        until(lambda: topic not in topics_of(flow.source), 60, "deletion")
        setup.create_topic(flow.source, topic, 2, config={"retention.ms": "-1"})
        write(flow.source, topic, records(3_000))

    cause = "deleted and created again on the source since it was compared"
    assert_left_alone(flow, topic, monkeypatch, deletion, cause)


def test_records_that_the_source_deletes_while_they_are_copied_again_are_named(
    copied: tuple[Flow, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, topic = copied
    write(flow.target, flow.remote(topic), [Sent(0, b"foreign")])
    delete_below = BackfillSession.delete_below

    async def before_retention(self: BackfillSession, below: Mapping[TopicPartition, int]) -> None:
        await delete_below(self, below)
        await asyncio.to_thread(delete, flow.source, TopicPartition(topic, 0), 1_000)

    monkeypatch.setattr(BackfillSession, "delete_below", before_retention)
    code, report, errors = verify(flow, "--repair", "--delete-copies")
    assert code == 4, errors
    (done,) = rows(report, "repairs")
    assert (done["done"], done["lost"]) == (True, [[0, 1_000]])
    assert report["equal"] is False, "as the exit code: neither side has them"
    assert len(read(flow.target, flow.remote(topic))[0].records) == 1_000


def test_transactions_on_either_side_of_an_exactly_once_flow_are_no_difference_and_repairs_are_right(
    setup: Setup,
) -> None:
    topic = setup.topic("once", 2, config={"retention.ms": "-1"})
    flow = setup.flow(topic, ENABLED)
    copy, hanging, repairing = flow.remote(topic), f"{topic}-hangs", ("--repair", "--delete-copies")
    write_mixed(setup.a, topic, 20, 10)
    abandon(setup.a, topic, hanging, 600_000)
    write(setup.a, topic, records(100))
    with running(flow.file) as mirror:
        wait_for_committed(mirror, flow, topic)
        write(setup.b, copy, [Sent(1, b"foreign")])
        code, report, errors = verify(flow, *repairing)
        assert (code, report["differences"]) == (3, []), errors
        assert [(it["partition"], it["done"]) for it in rows(report, "repairs")] == [(1, True)]
        (above,) = cast("Sequence[str]", report["not_compared"])
        assert above.startswith(f"{topic}-0: source offsets "), above
    take_over(setup.a, hanging)
    write(setup.b, copy, [Sent(0, b"foreign")])
    code, report, errors = verify(flow, *repairing)
    assert (code, report["checked_records"]) == (0, kept(20, 10) + 100), errors
    # A client's transaction on the target, and copies above it, which are there and are not copied again.
    client = producer(setup.b, transactional_id=topic, transaction_timeout_ms=600_000)
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(copy, b"aborted", partition=1)
    assert client.flush(30) == 0
    before = ends(setup.b, copy)[1]
    with running(flow.file) as mirror:
        write(setup.a, topic, records(100, partition=1))
        until(lambda: ends(setup.b, copy)[1] > before + 100, 90, "copies above it", alive=mirror)
    for options in (("--tier", "0"), repairing):
        code, report, errors = verify(flow, *options)
        assert (code, report["differences"]) == (3, []), errors
        assert "have copies above an open transaction on" in str(report["not_compared"])
    client.abort_transaction(30)
    with running(flow.file) as mirror:
        assert assert_each_once(mirror, flow, topic) == kept(20, 10) + 200
    code, report, errors = verify(flow, "--tier", "2")
    assert (code, report["checked_records"]) == (0, kept(20, 10) + 200), errors


def test_large_records_are_compared_and_copied_again(setup: Setup) -> None:
    topic = setup.topic("large", config={"max.message.bytes": "60000000", "retention.ms": "-1"})
    flow = setup.flow(topic)
    copy, large = flow.remote(topic), random.Random(topic).randbytes(20_000_000)
    write(setup.a, topic, [Sent(0, b"v"), Sent(0, large), Sent(0, b"w")], message_max_bytes=60_000_000)  # fmt: skip
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
    write(setup.b, copy, [Sent(0, large)], message_max_bytes=60_000_000)
    code, report, errors = verify(flow, "--repair", "--delete-copies")
    assert (code, report["checked_records"]) == (0, 3), errors
    assert read(setup.b, copy)[0].records == read(setup.a, topic)[0].records


@pytest.mark.chaos
def test_a_repair_waits_for_quotas_and_is_right(copied: tuple[Flow, str]) -> None:
    flow, topic = copied
    copy = flow.remote(topic)
    write(flow.target, copy, [Sent(0, b"foreign")])
    sides = (flow.source, "consumer"), (flow.target, "consumer"), (flow.target, "producer")
    with throttled(*sides, rate=50_000):
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert (code, report["equal"]) == (0, True), errors
    truth, made_again = read(flow.source, topic), read(flow.target, copy)
    assert made_again[0].records == truth[0].records


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
    with running(flow.file) as mirror:
        write(flow.source, topic, [*records(100, 2_000), *records(100, 2_000, partition=1)])
        until_equal(lambda: len(read(flow.target, copy)[1].records), 2_100, alive=mirror)
        asked = Asked(mirror)
        asked.done("POST", f"{path_of(flow)}/pause", topic=topic, partition=0)
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert code == 4, errors
        assert [it["done"] for it in rows(report, "repairs")] == [False]
        assert "paused alone" in str(rows(report, "repairs")[0]["cause"])
        asked.done("POST", f"{path_of(flow)}/resume", all_topics=True)
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert code == 0, errors
        assert report["equal"] is True
        write(flow.source, topic, records(100, 2_100))
        until(lambda: len(read(flow.target, copy)[0].records) >= 2_200, alive=mirror)
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
    with flow.file.open("a", encoding="latin-1") as file:
        file.write(SLOW_FLOW)
    write(flow.target, copy, [Sent(0, b"foreign")])
    options = (
        "--flow",
        flow.name,
        "--master",
        "local[2]",
        "--repair",
        "--delete-copies",
        "-o",
        "json",
    )
    process = subprocess.Popen(
        [MM2PY, "verify", str(flow.file), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    REAPER.watch_process(process.pid)
    try:
        until(
            lambda: ends(flow.target, copy).get(0, 0) > 2_001 + 200 or process.poll() is not None,
            200,
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


def test_groups_of_each_kind_are_moved_to_the_copies_that_were_made_again(setup: Setup) -> None:
    """The new copies have other offsets: each group gets its next unread record there, none skipped."""
    topic = setup.unique("moved")
    flow = setup.flow(topic, GROUPS)
    copy = flow.remote(topic)
    setup.create_topic(setup.a, topic, 1)
    write(setup.a, topic, numbered(0, 60))
    groups = {kind: setup.unique(kind) for kind in READ_OF_60}

    def is_at(topic: str, group: str, kind: str, offset: int) -> Callable[[], bool]:
        return lambda: place_of(setup.b, topic, group, kind) == offset

    for kind, group in groups.items():
        assert read_next(setup.a, topic, group, kind, READ_OF_60[kind]) == list(
            range(READ_OF_60[kind])
        )
    with running(flow.file) as mirror:
        for kind, group in groups.items():
            until(is_at(copy, group, kind, READ_OF_60[kind]), 90, kind, alive=mirror)
        write(setup.b, copy, [Sent(0, b"-1")])
        code, report, errors = verify(flow, "--repair", "--delete-copies")
        assert code == 0, errors
        assert report["equal"] is True
        for kind, group in groups.items():
            until(is_at(copy, group, kind, 61 + READ_OF_60[kind]), 90, kind, alive=mirror)
        write(setup.a, topic, numbered(60, 5))
        for kind, group in groups.items():
            first = READ_OF_60[kind]
            assert read_next(setup.b, copy, group, kind, 5) == list(range(first, first + 5)), kind
