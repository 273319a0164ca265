"""What goes wrong with one topic, partition or record stays there, is named, and continues when it is cured."""

import os
import re
from typing import NamedTuple

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import (
    delete_records,
    delete_topic,
    forbid_creating,
    forbid_writing,
    permit_creating,
    permit_writing,
    set_config,
    topics_of,
)
from tests.integration.flow_questions import path_of
from tests.integration.ledger_scenes import entries
from tests.integration.mirror_process import Mirror, running, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import (
    YEAR_MS,
    Sent,
    assert_equal,
    committed_positions,
    ends,
    numbered,
    read,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.matrix import matrix
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]


def lag_of(mirror: Mirror, topic: str) -> tuple[int | None, bool]:
    """Return the lag that ``/lag`` shows of a topic, and whether it has an age."""
    shown = {it["topic"]: it for it in ask(public_url(mirror) + "lag")[1]}
    lag = shown.get(topic, {"lag_records": None, "lag_ms": None})
    return lag["lag_records"], bool(lag["lag_ms"])


def test_a_too_large_record_fails_its_partition_alone_until_it_is_cured(setup: Setup) -> None:
    topic = setup.topic("too-large", 3)
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    setup.create_topic(setup.b, remote, 3, config={"max.message.bytes": "5000"})
    write(setup.a, topic, numbered(0, 300, 3))
    # In one batch with small ones, which have to be cut out.
    poisoned = [Sent(1, b"before"), Sent(1, os.urandom(20_000)), Sent(1, b"behind")]
    write(setup.a, topic, poisoned, linger_ms=200)
    with Mirror(flow.file) as mirror:
        said = mirror.wait_for_log("ERROR .*partition failed")
        assert f"partition={topic}-1" in said
        assert f"{topic}-1 at offset 101" in said
        assert "MESSAGE_TOO_LARGE" in said or "max.message.bytes" in said
        write(setup.a, topic, numbered(300, 300, 3))
        until_equal(
            lambda: [ends(setup.b, remote).get(p, 0) for p in (0, 2)], [200, 200], alive=mirror
        )
        # Of partition 1 there are 100, the three of the batch, and 100 more.
        behind = 203 - ends(setup.b, remote).get(1, 0)
        until_equal(lambda: lag_of(mirror, topic), (behind, True))

        def traces() -> str:
            states = ask(public_url(mirror) + "connectors?expand=status")[1]
            return "".join(
                it.get("trace", "") for each in states.values() for it in each["status"]["tasks"]
            )

        cause = f"{topic}-1 is FAILED: {topic}-1 at offset 101"
        until(lambda: cause in traces(), 90, traces, alive=mirror)
        assert mirror.stop() == 0
        assert len(mirror.lines("ERROR")) == 1
    # The record before it came in the same batch and may have been kept back with it.
    copied = ends(setup.b, remote)[1]
    assert copied in (100, 101)
    assert committed_positions(flow, topic) == {0: 199, 1: copied - 1, 2: 199}
    set_config(setup.b, remote, "max.message.bytes", "100000")
    with Mirror(flow.file, name="cured") as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
        assert not mirror.complaints()


@pytest.mark.parametrize("partitions", [3, 1], ids=["one-of-three", "the-task-as-a-whole"])
def test_a_partition_that_failed_for_a_large_record_continues_when_the_limit_is_raised(
    setup: Setup, partitions: int
) -> None:
    topic = setup.topic("outgrown", partitions)
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    setup.create_topic(setup.b, remote, partitions, config={"max.message.bytes": "5000"})
    records = [Sent(0, b"before"), Sent(0, os.urandom(20_000)), Sent(0, b"behind")]
    write(setup.a, topic, [*records, *numbered(0, 30, partitions)])
    with Mirror(flow.file) as mirror:
        said = mirror.wait_for_log("ERROR .*partition failed")
        assert "within 20 s of that its task is started again" in said
        set_config(setup.b, remote, "max.message.bytes", "10000")  # not enough: nothing is tried
        set_config(setup.b, remote, "max.message.bytes", "100000")
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert len(mirror.lines("the target takes larger records")) == 1
        path = public_url(mirror) + path_of(flow).removeprefix("/")
        until(lambda: ask(path)[1]["state"] == "RUNNING", 90, lambda: str(ask(path)), alive=mirror)
        assert mirror.stop() == 0


def take_nothing(how: str, target: KafkaAddress, copy: str) -> None:
    """Let a cluster refuse what comes for a copy."""
    if how == "forbidden":
        forbid_writing(target, copy)
    elif how == "deleted":
        forbid_creating(target, copy)
        delete_topic(target, copy)
        until(lambda: copy not in topics_of(target), 90, "the deletion")
    else:
        set_config(target, copy, "max.message.bytes", "5000")


@pytest.mark.parametrize(
    ("how", "rounds"),
    matrix([("forbidden", 1)], [("forbidden", 3), ("deleted", 1), ("too large", 1)]),
)
def test_ten_partitions_that_the_target_does_not_take_leave_ten_others_flowing(
    setup: Setup, new_region: NewRegion, how: str, rounds: int
) -> None:
    """May not be written again and again, were deleted and may not be created again, or have a record too large."""
    target = new_region("guarded", properties={"super.users": "User:nobody"})
    prefix = setup.unique("full")
    stuck, flowing = f"{prefix}-stuck", f"{prefix}-flowing"
    memory = {"{target}.producer.buffer.memory": str(8 << 20)}
    flow = setup.flow(
        f"{prefix}-.*", {"sync.topic.configs.enabled": "false", **memory}, target=target
    )
    remote = flow.remote(stuck)
    told, kind, first, last = {
        "forbidden": ("TOPIC_AUTHORIZATION_FAILED", "none", 0, 0),
        "deleted": (f"cannot be created.* name={remote} ", "target-lost", 0, 9),
        "too large": ("ERROR .*partition failed", "too-large", 10, 10),
    }[how]
    for topic in (stuck, flowing):
        setup.create_topic(setup.a, topic, 10)
        write(setup.a, topic, numbered(0, 100, 10))
    with running(flow.file) as mirror:
        for topic in (stuck, flowing):
            assert_equal(*wait_for_copy(mirror, flow, topic))
        for turn in range(rounds):
            said, taken = len(mirror.lines(told)), len(mirror.lines("target takes"))
            take_nothing(how, target, remote)
            if how == "too large":
                write(setup.a, stuck, (Sent(n, os.urandom(20_000)) for n in range(10)))
            before = sum(ends(target, remote).values())
            # Each partition has more than its share, all of them more than the memory.
            for topic in (stuck, flowing):
                records = (
                    Sent(n % 10, b"%d-%d:" % (turn, n) + bytes(1_000)) for n in range(20_000)
                )
                write(setup.a, topic, records)
            until(lambda: len(mirror.lines(told)) > said, 90, told, alive=mirror)  # noqa: B023 - called here
            assert_equal(*wait_for_copy(mirror, flow, flowing))
            assert sum(ends(target, remote).values()) == before
            if how == "forbidden":
                line = mirror.lines(told)[said]
                assert f"may not Write topic {remote} of cluster" in line
                assert f"--operation Write --topic {remote}" in line
                permit_writing(target, remote)
                assert_equal(*wait_for_copy(mirror, flow, stuck))
                until(lambda: len(mirror.lines("target takes")) > taken, 90, "an end", alive=mirror)  # noqa: B023 - called here
                assert not mirror.lines("ERROR")
        if how == "deleted":
            permit_creating(target, remote)
            until(lambda: sum(ends(target, remote).values()) >= 20_000, 120, "a copy", alive=mirror)
        elif how == "too large":
            assert len(mirror.lines("ERROR")) == len(mirror.lines(told)) == 10
            set_config(target, remote, "max.message.bytes", "100000")
            assert_equal(*wait_for_copy(mirror, flow, stuck))
            assert len(entries(flow)) == 10
    # What was on a deleted copy is gone with it; from there on nothing is missing or doubled.
    truth, gone = read(setup.a, stuck), 10 if how == "deleted" else 0
    for partition, log in read(target, remote).items():
        assert log.records == truth[partition].records[gone:], f"partition {partition}"
    # A task that was started again meanwhile does not know what the target had acknowledged.
    named = {(it.kind, it.topic, it.first, it.last) for it in entries(flow)}
    assert named <= {(kind, stuck, first, last)}


def test_a_target_that_refuses_a_topic_is_quoted_with_topic_and_property(setup: Setup) -> None:
    prefix = setup.unique("refused")
    for name in ("new", "old"):
        setup.create_topic(setup.a, f"{prefix}-{name}")
        write(setup.a, f"{prefix}-{name}", numbered(0, 100))
    properties = {"replication.factor": "2", "refresh.topics.interval.seconds": "1"}
    flow = setup.flow(f"{prefix}-.*", properties)
    setup.create_topic(setup.b, flow.remote(f"{prefix}-old"))
    with running(flow.file, ready=False) as mirror:
        remote = flow.remote(f"{prefix}-new")
        said = mirror.wait_for_log(re.escape(remote))
        assert "WARNING" in said or "ERROR" in said
        assert "replication.factor (now 2)" in said
        assert_equal(*wait_for_copy(mirror, flow, f"{prefix}-old"))
        new = f"{prefix}-new"
        until(lambda: lag_of(mirror, new) == (100, True), 90, lambda: str(lag_of(mirror, new)))
        # An operator creates it by hand; until then it was said once, not at every refresh.
        setup.create_topic(setup.b, remote)
        assert_equal(*wait_for_copy(mirror, flow, f"{prefix}-new", timeout_s=90))
        assert len(mirror.lines(f"WARNING .*cannot be created.* name={remote} ")) == 1


def test_internal_topics_that_cannot_be_created_are_named_with_their_property(setup: Setup) -> None:
    properties = {"offset.storage.replication.factor": "3"}
    flow = setup.flow(setup.unique("none"), properties)
    with Mirror(flow.file) as mirror:
        # Not the end: brokers that are only away come back.
        said = mirror.wait_for_log("cannot be created")
        assert flow.offsets_topic in said
        assert "offset.storage.replication.factor" in said
        assert mirror.stop() == 0
        assert "Traceback" not in mirror.log()


def test_records_deleted_before_they_were_copied_are_named_with_their_range(setup: Setup) -> None:
    topic = setup.topic("deleted", 2)
    flow = setup.flow(topic)
    write(setup.a, topic, numbered(0, 200, 2))
    with running(flow.file, ready=False) as mirror:
        wait_for_copy(mirror, flow, topic)
    write(setup.a, topic, numbered(200, 200, 2))
    delete_records(setup.a, topic, 1, 150)
    with Mirror(flow.file, name="second") as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
        (said,) = mirror.lines("records lost")
        assert f"partition={topic}-1 first_offset=100 last_offset=149 offsets=50" in said
        assert mirror.lines("ERROR") == [said]
    copy = read(setup.b, flow.remote(topic))
    values = [[int(record.value or b"") for record in copy[p].records] for p in (0, 1)]
    assert values == [list(range(0, 400, 2)), [*range(1, 200, 2), *range(301, 400, 2)]]


def test_a_topic_that_is_created_again_and_shorter_is_copied_from_the_start(setup: Setup) -> None:
    topic = setup.topic("recreated")
    flow = setup.flow(topic)
    write(setup.a, topic, numbered(0, 100))
    with running(flow.file, ready=False) as mirror:
        wait_for_copy(mirror, flow, topic)
        delete_topic(setup.a, topic)
        until(lambda: topic not in topics_of(setup.a), 90, "the deletion")
        setup.create_topic(setup.a, topic)
        write(setup.a, topic, numbered(1_000, 50))
        wait_for_copy(mirror, flow, topic)
        mirror.wait_for_log(f"{topic}-0 .*cause=recreated")
    write(setup.a, topic, numbered(1_050, 50))
    with Mirror(flow.file, name="restarted") as mirror:
        wait_for_copy(mirror, flow, topic)
        assert mirror.stop() == 0
        assert not mirror.complaints()
    (log,) = read(setup.b, flow.remote(topic)).values()
    values = [int(record.value or b"") for record in log.records]
    assert values == [*range(100), *range(1_000, 1_100)]


AHEAD_MS = 2 * 3_600_000
ANY_TIME = {"message.timestamp.after.max.ms": "9223372036854775807"}


class Case(NamedTuple):
    """One kind of refusal and its cure."""

    target: dict[str, str]
    key: bytes | None
    shift_ms: int
    says: tuple[str, ...]
    cure: tuple[str, str]


CASES = {
    "two hours ahead": Case(
        {},
        b"k",
        AHEAD_MS,
        ("INVALID_TIMESTAMP", "message.timestamp.after.max.ms (1 hour by default"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ),
    "a year old": Case(
        {"message.timestamp.before.max.ms": str(YEAR_MS // 2)},
        b"k",
        -YEAR_MS,
        ("INVALID_TIMESTAMP", "message.timestamp.before.max.ms"),
        ("message.timestamp.type", "LogAppendTime"),
    ),
    "no key on a compacted topic": Case(
        {"cleanup.policy": "compact"},
        None,
        0,
        ("INVALID_RECORD", "takes no record without a key"),
        ("cleanup.policy", "delete"),
    ),
}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_refused_record_stops_its_partition_at_its_offset_until_the_topic_takes_it(
    setup: Setup, case: Case, codec: str
) -> None:
    topic = setup.topic("refused", 2, config=ANY_TIME)
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    setup.create_topic(setup.b, remote, 2, config=case.target)
    now_ms = SYSTEM_CLOCK.now_ms()
    records = [Sent(1, b"%d" % number, b"%d" % number, (), now_ms) for number in range(60)]
    records[41] = Sent(1, b"refused", case.key, (), now_ms + case.shift_ms)
    write(setup.a, topic, [Sent(0, b"%d" % n, b"%d" % n, (), now_ms) for n in range(50)])
    write(setup.a, topic, records, linger_ms=300, compression_type=codec)
    with Mirror(flow.file) as mirror:
        said = mirror.wait_for_log("ERROR .*partition failed")
        assert f"{topic}-1 at offset 41" in said
        assert remote in said
        for text in case.says:
            assert text in said
        until_equal(lambda: ends(setup.b, remote), {0: 50, 1: 41}, "what is good", alive=mirror)
        assert mirror.stop() == 0
        assert len(mirror.lines("ERROR")) == 1
    assert committed_positions(flow, topic) == {0: 49, 1: 40}
    (event,) = entries(flow)
    assert (event.kind, event.partition, event.first, event.last) == ("refused", 1, 41, 41)
    set_config(setup.b, remote, *case.cure)
    with running(flow.file, name="cured", ready=False) as mirror:
        if case.cure[1] == "LogAppendTime":
            until(lambda: ends(setup.b, remote) == {0: 50, 1: 60}, 90, "the rest", alive=mirror)
        else:
            assert_equal(*wait_for_copy(mirror, flow, topic))
