"""The offset map on real brokers: every offset translates right; kills and freezes double nothing; Java translates as far with our syncs."""

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Final

import pytest

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from bench.mm2py_worker import start_mm2py
from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.offset_syncs import OffsetSync, OffsetSyncStore, decode_offset_sync
from mm2py.types import TopicPartition as Partition
from tests.integration.cluster_changes import delete_records, set_config
from tests.integration.exactly_once import ENABLED
from tests.integration.java_mm2 import DEADLINE_S
from tests.integration.ledger_scenes import (
    HOUR_MS,
    PARTITIONS,
    entries,
    wait_for_entries,
    write_compacted,
)
from tests.integration.mirror_process import (
    PROMPT,
    SHORT_SESSION,
    SINGLE_REPLICA,
    Flow,
    Mirror,
    running,
    until,
    write_file,
)
from tests.integration.offset_census import take_census
from tests.integration.setups import Setup
from tests.integration.test_checkpoints import checkpoints_in
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    commit,
    committed_positions,
    copied,
    ends,
    producer,
    read,
    records_of,
    wait_covered,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.integration.transactions import write_mixed
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.matrix import matrix
from tests.kit.regions import COMPACTING, NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MAP_PARTITIONS: Final = 4
RATE: Final = 1_500
TWO_WORKERS: Final = {"tasks.max": str(MAP_PARTITIONS), **SHORT_SESSION}
"""Each of two workers has a source task: with two tasks one worker may have both, and the other the checkpoints."""
ROUNDS: Final = int(os.environ.get("MM2PY_KILL_ROUNDS", "3"))


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("mapped", MAP_PARTITIONS)


async def assert_exact(mirror: Mirror, flow: Flow, topic: str) -> None:
    """Both sides hold the same records, each once, and the map says where."""
    truth, copy = await asyncio.to_thread(wait_for_copy, mirror, flow, topic)
    assert_equal(truth, copy)
    assert {p: log.offsets for p, log in copy.items()} == {
        p: log.offsets for p, log in truth.items()
    }
    assert await asyncio.to_thread(mirror.stop) == 0  # the last runs are durable then
    census = await take_census(flow, topic, truth, copy)
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"


@pytest.mark.faults
async def test_kills_under_load_double_nothing_and_every_offset_translates(
    setup: Setup, topic: str
) -> None:
    flow = setup.flow(topic)
    with Load(flow.source, topic, MAP_PARTITIONS, rate=RATE) as load:
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


@pytest.mark.faults
async def test_kills_of_either_of_two_workers_double_nothing(setup: Setup, topic: str) -> None:
    flow = setup.flow(topic, TWO_WORKERS)
    with Load(flow.source, topic, MAP_PARTITIONS, rate=RATE) as load:
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


@pytest.mark.faults
@pytest.mark.parametrize("removes", ["retention", "compaction", "everything"])
def test_what_the_target_removed_of_a_killed_workers_last_copies_is_not_copied_again(
    setup: Setup, removes: str
) -> None:
    """Killed before its first position: retention takes the first of its copies, or compaction most of them."""
    topic = setup.topic("removed", config={"retention.ms": "-1"})
    late = {"{target}.offset.flush.interval.ms": "600000", "sync.topic.configs.enabled": "false"}
    flow = setup.flow(topic, {**SHORT_SESSION, **late})
    copy = flow.remote(topic)
    kept = {"retention.ms": "-1", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001"}
    setup.create_topic(setup.b, copy, 1, config=kept)
    began_ms = SYSTEM_CLOCK.now_ms() - 5 * HOUR_MS
    with Mirror(flow.file, name="killed") as mirror:
        for turn in range(4):  # a segment each
            stamp, numbers = began_ms + turn * HOUR_MS, range(turn * 500, turn * 500 + 500)
            history = [Sent(0, b"%d" % n, b"key-%d" % (n % 100), (), stamp) for n in numbers]
            write(setup.a, topic, history)
            until(lambda: ends(setup.b, copy) == ends(setup.a, topic), 90, "a copy", alive=mirror)
        mirror.kill()
    assert not committed_positions(flow, topic)
    if removes != "compaction":
        delete_records(setup.b, copy, 0, 700 if removes == "retention" else 2_000)
    else:
        set_config(setup.b, copy, "cleanup.policy", "compact")
        until(lambda: len(read(setup.b, copy)[0].records) < 1_000, 90, "compaction of the copy")
        set_config(setup.b, copy, "cleanup.policy", "delete")  # what is left must stand still
    left = read(setup.b, copy)[0].records
    with running(flow.file, name="next", ready=False) as mirror:
        write(setup.a, topic, [Sent(0, b"late", b"late")])
        truth, found = wait_for_copy(mirror, flow, topic)
        if not left:  # nothing tells what was there, which is said of all of it
            assert [(it.kind, it.first, it.last) for it in entries(flow)] == [
                ("may-be-doubled", 0, 1_999)
            ]
            return
        assert found[0].records == [*left, truth[0].records[-1]]
        assert not mirror.lines("another program writes")
    assert entries(flow) == []


@pytest.mark.faults
def test_what_the_source_deleted_of_a_killed_workers_last_copies_is_not_lost(setup: Setup) -> None:
    """Its positions were not stored; what it had not copied is lost, and the ledger has that alone."""
    topic = setup.topic("deleted", config={"retention.ms": "-1"})
    flow = setup.flow(topic, {**SHORT_SESSION, "{target}.offset.flush.interval.ms": "600000"})
    copy, numbers = flow.remote(topic), [Sent(0, b"%d" % n) for n in range(250)]

    def copied(first: int, end: int, mirror: Mirror) -> None:
        write(setup.a, topic, numbers[first:end])
        until(lambda: ends(setup.b, copy) == {0: end}, 90, f"{end} copies", alive=mirror)

    with running(flow.file, name="stopped", ready=False) as mirror:
        copied(0, 100, mirror)
    with Mirror(flow.file, name="killed") as mirror:
        copied(100, 150, mirror)
        mirror.kill()
    write(setup.a, topic, numbers[150:])
    delete_records(setup.a, topic, 0, 200)
    with running(flow.file, name="next", ready=False) as mirror:
        until(lambda: ends(setup.b, copy) == {0: 200}, 90, "the rest", alive=mirror)
        (lost,) = wait_for_entries(flow, 1, mirror)
    assert (lost.kind, lost.first, lost.last) == ("retention", 150, 199)
    values = [it.value for it in read(setup.b, copy)[0].records]
    assert values == [it.value for it in (*numbers[:150], *numbers[200:])]


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("kind", [SHORT_SESSION, ENABLED], ids=["plain", "exactly-once"])
def test_equal_records_of_another_writer_are_no_copies(
    setup: Setup, kind: Mapping[str, str], times: str
) -> None:
    stamp = SYSTEM_CLOCK.now_ms()
    topic, same = setup.topic("pings"), [Sent(0, b"ping", None, (), stamp)] * 10
    flow = setup.flow(topic, {**kind, "sync.topic.configs.enabled": "false"})
    copy = flow.remote(topic)
    setup.create_topic(setup.b, copy, 1, config={"message.timestamp.type": times})

    def there() -> int:
        return len(read(setup.b, copy, committed=True)[0].records)

    write(setup.a, topic, same)
    with Mirror(flow.file, name="killed") as mirror:
        until(lambda: there() == 10, 90, "the first copies", alive=mirror)
        write(setup.b, copy, same)  # a client of the target
        mirror.kill()
    write(setup.a, topic, same)
    with running(flow.file, name="next", ready=False) as mirror:
        until(lambda: there() == 30, 60, lambda: f"30 records, {there()} are there", alive=mirror)


@pytest.mark.faults
async def test_frozen_workers_that_come_back_double_nothing(setup: Setup, topic: str) -> None:
    flow = setup.flow(topic, TWO_WORKERS)
    with (
        Load(flow.source, topic, MAP_PARTITIONS, rate=RATE) as load,
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


@pytest.mark.faults
async def test_another_writer_is_named_and_what_requires_identical_offsets_stops(
    setup: Setup, topic: str
) -> None:
    flow = setup.flow(topic, {"offsets.identical": "require", "tasks.max": "1"})
    with running(flow.file, name="required") as mirror:
        write(flow.source, topic, [Sent(partition, b"a") for partition in range(MAP_PARTITIONS)])
        wait_for_copy(mirror, flow, topic)
        write(flow.target, flow.remote(topic), [Sent(0, b"foreign")])
        write(flow.source, topic, [Sent(0, b"b"), Sent(1, b"b")])
        until(
            lambda: mirror.lines(r"another program with producer id -?\d+ wrote offsets 1 to 1"),
            alive=mirror,
        )
        until(lambda: ends(flow.target, flow.remote(topic))[1] == 2, 60, "partition 1 to go on")


@pytest.mark.faults
async def test_a_partition_that_cannot_have_the_same_offsets_is_not_begun(
    setup: Setup, topic: str
) -> None:
    flow = setup.flow(topic, {"offsets.identical": "require"})
    client = producer(setup.a, transactional_id=f"{topic}-holes")
    client.init_transactions(60)
    for _ in range(2):
        client.begin_transaction()
        client.produce(topic, b"x", partition=0)
        client.commit_transaction()
    with running(flow.file, name="refused") as mirror:
        until(lambda: mirror.lines("source offset 1 has no record to copy"), alive=mirror)


PROPERTIES = {
    **PROMPT,
    "{source}.consumer.isolation.level": "read_committed",
    "sync.topic.configs.enabled": "false",
}


@pytest.mark.faults
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("transactions", "each", "least"), matrix([(20, 50, 2_000)], [(800, 320, 1_500_000)])
)
async def test_every_offset_translates_right_in_both_directions(
    setup: Setup, new_region: NewRegion, transactions: int, each: int, least: int
) -> None:
    """In holes and aborted transactions, with a kill; of a million records with everything restarted."""
    own: list[Region] = []
    if least > 1_000_000:
        own = [new_region("source", properties=COMPACTING), new_region("target")]
    source, target = own or setup.regions
    topic = setup.unique("census")
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    setup.create_topic(source, topic, PARTITIONS, config=config)
    write_compacted(source, topic, 0)
    flow = setup.flow(topic, PROPERTIES, source=source, target=target)
    for turn in range(4):
        with Mirror(flow.file) as mirror:
            mirror.wait_ready()
            before = copied(flow, topic)
            write_mixed(source, topic, transactions, each, turn=turn)
            if turn == 2:
                wait_for_progress(mirror, flow, topic, before=before)
                mirror.kill()
                continue
            wait_for_copy(mirror, flow, topic, committed=True, timeout_s=300)
            if turn == 3:
                wait_covered(mirror, flow, topic)
            assert mirror.stop() == 0
        if turn == 1:
            for region in own:
                region.stop()
                region.start()
    truth = read(source, topic, committed=True)
    copy = read(target, flow.remote(topic))
    census = await take_census(flow, topic, truth, copy)
    assert census.asked > least
    assert not census.wrong, f"{census.wrong} of {census.asked}: {census.examples}"


SYNCED_PARTITIONS, RECORDS = 9, 500
STOPPED_AT = (0, 1, 50, 100, 101, 102, 150, 202, 250, 303, 350, 404, 450, 498, 499, 500)
"""Where the groups have got to, each in every partition."""
JAVAS_RULE = [0, 101, 202, 303, 404, 499]
"""One more than ``offset.lag.max`` apart, and the last one at the commit."""
PREFIX = "orders-"
"""Of the topic that is copied."""
TRIES = 3
Offsets = dict[tuple[str, int], int]
"""Translated offset by group and partition."""
Syncs = dict[int, list[int]]
"""Upstream offsets of the syncs by partition, in order."""


def write_flows(
    path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    flows: list[str],
    chosen: Mapping[str, str],
) -> None:
    aliases = [alias for flow in flows for alias in flow.split("->")]
    lines = {"clusters": ", ".join(aliases), "emit.heartbeats.enabled": "false", **chosen}
    for flow in flows:
        source, target = flow.split("->")
        lines |= {
            f"{source}.bootstrap.servers": region_a.bootstrap_servers,
            f"{target}.bootstrap.servers": region_b.bootstrap_servers,
            # No commit falls into the backlog, whose delayed syncs would be beside those of the rule; few records
            # at a time, so that Java's ten permits suffice for all that its rule chooses.
            f"{target}.offset.flush.interval.ms": "5000",
            f"{source}.consumer.max.poll.records": "20",
            f"{flow}.enabled": "true",
        }
    lines |= dict.fromkeys(SINGLE_REPLICA, "1")
    write_file(path, {**lines, "emit.checkpoints.interval.seconds": "1"})


def checkpoints(region: KafkaAddress, source_alias: str) -> Offsets:
    """Read Java's checkpoints; the last one of a group and partition counts."""
    found: Offsets = {}
    for it in checkpoints_in(region, f"{source_alias}.checkpoints.internal"):
        found[it.group, it.partition.partition] = it.downstream
    return found


def is_complete(region: KafkaAddress, source_alias: str, partitions: set[int]) -> bool:
    """Whether every group has a translation in these partitions."""
    found = checkpoints(region, source_alias)
    return sum(key[1] in partitions for key in found) == len(STOPPED_AT) * len(partitions)


def is_synced(region: KafkaAddress, target_alias: str) -> bool:
    """Whether every partition has its last sync."""
    found = syncs(region, target_alias)
    return all(
        found.get(partition, [0])[-1] == RECORDS - 1 for partition in range(SYNCED_PARTITIONS)
    )


def all_syncs(region: KafkaAddress, target_alias: str) -> list[OffsetSync]:
    """Return the syncs of our topic in order: other tests leave heartbeats in the region, also of other clusters."""
    records = records_of(region, f"mm2-offset-syncs.{target_alias}.internal")
    found = [decode_offset_sync(it.key or b"", it.value or b"") for it in records]
    return [sync for sync in found if sync.partition.topic.startswith(PREFIX)]


def syncs(region: KafkaAddress, target_alias: str) -> Syncs:
    """Return the upstream offsets of the syncs of each partition, in order."""
    found: Syncs = {}
    for sync in all_syncs(region, target_alias):
        assert sync.upstream == sync.downstream
        found.setdefault(sync.partition.partition, []).append(sync.upstream)
    return found


def last_pass(offsets: list[int]) -> list[int]:
    """Return the syncs from the last rewind on."""
    begins = [at for at, offset in enumerate(offsets) if not at or offset < offsets[at - 1]]
    return offsets[begins[-1] :]


def until_by_rule(copy: Callable[[str], Syncs], flow: str, least: int) -> tuple[str, set[int]]:
    """Copy until at least so many partitions have the syncs of the rule alone, in a new flow each time.

    A commit that falls into the backlog of a slow machine adds delayed syncs. Returns flow and partitions.
    """
    found: Syncs = {}
    source, target = flow.split("->")
    for number in range(TRIES):
        tried = f"{source}{number}->{target}{number}"
        found = copy(tried)
        complete = {partition for partition, own in found.items() if own == JAVAS_RULE}
        if len(complete) >= least:
            return tried, complete
    raise AssertionError(found)


@pytest.mark.faults
@pytest.mark.java
def test_java_translates_every_group_as_far_with_our_syncs_as_with_its_own(setup: Setup) -> None:
    unique = token_hex(3)
    topic, prefix = f"{PREFIX}{unique}", f"group-{unique}"
    setup.create_topic(setup.a, topic, SYNCED_PARTITIONS)
    for number in range(SYNCED_PARTITIONS):
        write(setup.a, topic, [Sent(number, b"%d" % it, b"key") for it in range(RECORDS)])
    file = setup.folder / "mm2.properties"
    chosen = {"topics": topic, "groups": f"{prefix}.*"}

    def copy_by_us(flow: str) -> Syncs:
        write_flows(file, setup.a, setup.b, [flow], chosen)
        target = flow.split("->")[1]
        with start_mm2py(file, setup.folder / f"{target}.log") as worker:
            until(lambda: is_synced(setup.a, target), DEADLINE_S, lambda: worker.log()[-4000:])
            assert worker.stop() == 0
        # A worker that a busy machine starves for a session copies what was not committed again, from a rewind on.
        return {number: last_pass(found) for number, found in syncs(setup.a, target).items()}

    def copy_by_java(flow: str) -> Syncs:
        write_flows(file, setup.a, setup.b, [flow], chosen)
        target = flow.split("->")[1]
        with start_java(file, setup.folder / f"{target}.log", jvm_flags=QUICK_START_FLAGS) as java:
            until(lambda: is_synced(setup.a, target), DEADLINE_S, lambda: java.log()[-4000:])
            java.stop()
        return syncs(setup.a, target)

    ours, _ = until_by_rule(copy_by_us, f"a{unique}->b{unique}", SYNCED_PARTITIONS)
    # Where a busy machine made Java leave out syncs of its rule, it has no translation for some groups.
    javas, complete = until_by_rule(copy_by_java, f"c{unique}->d{unique}", 1)
    (our_source, our_target), java_source = ours.split("->"), javas.split("->")[0]

    # Only now are there groups: else checkpoints of the time before would stay, which never go back.
    for offset in STOPPED_AT:
        everywhere = dict.fromkeys(range(SYNCED_PARTITIONS), offset)
        commit(setup.a, f"{prefix}-{offset:03d}", topic, everywhere)
    write_flows(file, setup.a, setup.b, [ours, javas], chosen)
    with start_java(file, setup.folder / "java-2.log", jvm_flags=QUICK_START_FLAGS) as java:
        for alias in (our_source, java_source):
            until(
                functools.partial(is_complete, setup.b, alias, complete),
                DEADLINE_S,
                lambda: java.log()[-4000:],
            )
        found, expected = checkpoints(setup.b, our_source), checkpoints(setup.b, java_source)
        java.stop()
    store = OffsetSyncStore(keeps_backlog=True)
    for sync in all_syncs(setup.a, our_target):
        store.add(sync)
    store.read_to_end()
    translated = {
        (f"{prefix}-{offset:03d}", number): store.translate(Partition(topic, number), offset)
        for offset in STOPPED_AT
        for number in range(SYNCED_PARTITIONS)
    }
    assert {key: translated[key] for key in found} == found, "our reader of syncs is not Java's"
    behind = {
        key: (found[key], offset)
        for key, offset in expected.items()
        if key[1] in complete and found[key] < offset
    }
    assert behind == {}, "(ours, Java's)"
