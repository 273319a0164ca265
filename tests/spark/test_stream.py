"""``mm2py stream`` on real brokers under load: killed, moved to and from a worker, never a record lost or doubled."""

import json
import os
import shutil
import signal
import threading
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.active_active import check_sides, wait_until_quiet, write_pair
from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.earlier_build import PRESENT, Build
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.flow_questions import Asked, path_of
from tests.integration.ledger_scenes import HOUR_MS, entries
from tests.integration.mirror_process import GROUPS, SHORT_SESSION, Flow, Mirror, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Log,
    Record,
    Sent,
    assert_equal,
    commit,
    committed,
    copied,
    ends,
    producer,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.integration.transactions import write_one
from tests.kit.kafka.region import Region
from tests.spark.backfill_process import (
    CLUSTER,
    attempts,
    freeze_tree,
    impatient,
    kill_all,
    orphan_worker,
    spark_workers,
    taken_over,
    thaw,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(1_500),
]

LATEST = {"{source}->{target}.source.consumer.auto.offset.reset": "latest"}
ON_SPARK = {"{source}->{target}.flow.engine": "spark", "refresh.topics.interval.seconds": "2"}


BEGUN: Final = "copying .* lanes"


def stream_of(
    flow: Flow,
    *options: str,
    name: str = "stream",
    master: str = "local[2]",
    environ: Mapping[str, str] | None = None,
    build: Build = PRESENT,
) -> Mirror:
    """Start ``mm2py stream``."""
    arguments = ("--flow", flow.name, "--master", master, "-o", "json", *options)
    program = (*build.command, "stream")
    environ = environ or build.environ
    return Mirror(flow.file, *arguments, name=name, program=program, environ=environ)


def report_of(stream: Mirror) -> dict[str, object]:
    """Return what a stream printed at its end."""
    log = stream.log()
    found = json.JSONDecoder().raw_decode(log, log.index("\n{") + 1)[0]
    return dict(found)


def paused_alone(asked: Asked, stream: Mirror, flow: Flow, topic: str) -> None:
    """Pause one partition over REST: it waits, also in the next terms, and continues when it is resumed."""
    remote = flow.remote(topic)

    def stays(more: int) -> bool:
        before = ends(flow.target, remote)
        until(lambda: ends(flow.target, remote)[0] >= before[0] + more, 120, "others", alive=stream)
        return ends(flow.target, remote)[1] == before[1]

    asked.done("POST", f"{path_of(flow)}/pause", topic=topic, partition=1)
    until(lambda: stays(100), 180, "the partition to be paused", alive=stream)
    assert stays(4_000)  # longer than a term
    paused = ends(flow.target, remote)[1]
    asked.done("POST", f"{path_of(flow)}/resume", topic=topic, partition=1)
    until(lambda: ends(flow.target, remote)[1] > paused, 180, "it to continue", alive=stream)


@pytest.fixture
def orders(setup: Setup) -> str:
    topic = setup.topic("orders", 3, config={})
    write(setup.a, topic, [Sent(i % 3, b"%d" % i) for i in range(3_000)])
    return topic


def test_a_topic_that_is_created_again_under_a_stream_is_copied_whole_and_holds_up_no_other(
    setup: Setup, orders: str
) -> None:
    flow = setup.flow(f"{orders}.*", ON_SPARK)
    steady = f"{orders}-steady"
    setup.create_topic(setup.a, steady, 2, config={})
    with Load(setup.a, steady, 2, rate=200) as load, stream_of(flow, "--term", "6") as stream:
        until(lambda: copied(flow, orders) == 3_000, 300, "the first topic", alive=stream)
        delete_topic(setup.a, orders)
        until(lambda: orders not in topics_of(setup.a), 60, "deletion")
        setup.create_topic(setup.a, orders, 3, config={})
        write(setup.a, orders, [Sent(i % 3, b"new %d" % i) for i in range(4_200)])
        until(lambda: copied(flow, orders) >= 7_200, 300, "the second topic", alive=stream)
        wait_for_progress(stream, flow, steady, 1_000)
        load.stop()
        assert_equal(*wait_for_copy(stream, flow, steady, timeout_s=120))
        assert stream.stop() == 0, stream.tail()
    for partition, log in read(setup.b, flow.remote(orders)).items():
        old = [b"%d" % i for i in range(3_000) if i % 3 == partition]
        new = [b"new %d" % i for i in range(4_200) if i % 3 == partition]
        assert [it.value for it in log.records] == [*old, *new]
    events = [it for it in entries(flow) if it.topic == orders]
    assert {(it.kind, it.partition) for it in events} == {("recreated", it) for it in range(3)}


@pytest.mark.parametrize("with_worker", [False, True])
def test_what_came_while_no_stream_ran_is_copied_whole_where_copies_begin_at_the_end(
    setup: Setup, orders: str, with_worker: bool
) -> None:
    flow = setup.flow(f"{orders}.*", ON_SPARK | LATEST)
    with ExitStack() as stack:
        first = stack.enter_context(Mirror(flow.file) if with_worker else stream_of(flow))
        # Three partitions begin, behind what is there.
        until(lambda: len(first.lines("partition begins")) >= 3, 300, "a begin", alive=first)
        write(setup.a, orders, [Sent(0, b"new %d" % i) for i in range(10)])
        until(lambda: copied(flow, orders) == 10, 300, "what is new", alive=first)
        assert first.stop() == 0, first.tail()
    late = f"{orders}-late"
    setup.create_topic(setup.a, late, 1, config={})
    write(setup.a, late, [Sent(0, b"%d" % i) for i in range(100)])
    with stream_of(flow, name="next") as stream:
        until(lambda: copied(flow, late) == 100, 120, "the topic that came", alive=stream)
        assert stream.stop() == 0, stream.tail()
    assert copied(flow, orders) == 10


@pytest.mark.chaos
def test_killed_workers_and_drivers_lose_and_double_nothing(setup: Setup, orders: str) -> None:
    flow = setup.flow(f"{orders}.*", ON_SPARK)
    checkpoint = setup.folder / "checkpoint"
    options = ("--checkpoint", str(checkpoint), "--term", "8")
    late = f"{orders}-late"
    with Load(setup.a, orders, 3, rate=800) as load:
        with stream_of(flow, *options, name="first") as stream:
            wait_for_progress(stream, flow, orders, 4_000)
            second = stream_of(flow, name="refused")
            assert second.wait(120) == 3, second.tail()
            assert "mm2py stream copies" in second.log()
            os.kill(spark_workers(stream.pid)[0], signal.SIGKILL)
            setup.create_topic(setup.a, late, 2, config={})
            write(setup.a, late, [Sent(i % 2, b"%d" % i) for i in range(2_000)])
            until(lambda: copied(flow, late) == 2_000, 120, "the late topic", alive=stream)
            wait_for_progress(stream, flow, orders, 3_000)
            # Of the driver alone: its workers notice it later.
            os.kill(stream.pid, signal.SIGKILL)
            stream.wait(30)
        shutil.rmtree(checkpoint)
        with stream_of(flow, *options, name="again") as stream:
            wait_for_progress(stream, flow, orders, 4_000)
            load.stop()
            for topic in (orders, late):
                assert_equal(*wait_for_copy(stream, flow, topic, timeout_s=120))
            assert stream.stop() == 0, stream.tail()
            report = report_of(stream)
            assert report["state"] == "ENDED"
            assert int(str(report["records"])) >= 4_000


@pytest.mark.chaos
def test_frozen_workers_and_drivers_that_are_thawed_later_lose_and_double_nothing(
    setup: Setup, orders: str
) -> None:
    flow = setup.flow(orders, ON_SPARK)
    environ = impatient(setup.folder)

    def on_cluster(name: str) -> Mirror:
        return stream_of(flow, "--term", "20", name=name, master=CLUSTER, environ=environ)

    with ExitStack() as left, Load(setup.a, orders, 3, rate=800) as load:
        first = left.enter_context(on_cluster("first"))
        wait_for_progress(first, flow, orders, 4_000)
        zombie = orphan_worker(flow, first.pid)
        left.callback(kill_all, [zombie])
        taken_over(flow, zombie)
        wait_for_progress(first, flow, orders, 2_000)
        thaw(zombie)
        wait_for_progress(first, flow, orders, 2_000)
        frozen = freeze_tree(first.pid)
        left.callback(kill_all, frozen[1:])
        holders = [pid for pid in frozen if attempts(flow, pid)]
        assert holders
        second = left.enter_context(on_cluster("second"))
        for pid in holders:
            taken_over(flow, pid, timeout_s=400)
        wait_for_progress(second, flow, orders, 2_000)
        thaw(*frozen)
        assert first.wait(150) == 3, first.tail()
        assert "another driver has taken" in first.log()
        wait_for_progress(second, flow, orders, 4_000)
        load.stop()
        assert_equal(*wait_for_copy(second, flow, orders, timeout_s=150))
        assert second.stop() == 0, second.tail()


@pytest.mark.chaos
def test_a_frozen_worker_that_spark_waits_for_is_replaced(setup: Setup, orders: str) -> None:
    flow = setup.flow(orders, ON_SPARK)
    with (
        ExitStack() as left,
        Load(setup.a, orders, 3, rate=800) as load,
        stream_of(flow, "--term", "20") as stream,
    ):
        wait_for_progress(stream, flow, orders, 4_000)
        frozen = next(pid for pid in spark_workers(stream.pid) if attempts(flow, pid))
        os.kill(frozen, signal.SIGSTOP)
        left.callback(kill_all, [frozen])
        taken_over(flow, frozen, timeout_s=400)
        assert "has not renewed its lease" in stream.log()
        thaw(frozen)
        wait_for_progress(stream, flow, orders, 3_000)
        load.stop()
        assert_equal(*wait_for_copy(stream, flow, orders, timeout_s=150))
        assert stream.stop() == 0, stream.tail()


def test_a_flow_moves_between_worker_and_stream_without_a_gap(setup: Setup, orders: str) -> None:
    flow = setup.flow(orders)
    with Load(setup.a, orders, 3, rate=800) as load, Mirror(flow.file) as mirror:
        asked = Asked(mirror)
        mirror.wait_ready()
        refused = stream_of(flow, name="refused")
        assert refused.wait(120) == 3, refused.tail()
        assert f"set {flow.name}.flow.engine = spark" in refused.log()

        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "spark"}})
        until(
            lambda: "no mm2py stream" in str(asked.done("GET", path_of(flow))["errors"]),
            alive=mirror,
        )
        wait_for_progress(mirror, flow, orders, 2_000)  # until a stream has its partitions
        with stream_of(flow, "--term", "8") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_for_progress(stream, flow, orders, 6_000)
            until_equal(lambda: asked.done("GET", path_of(flow))["state"], "RUNNING", alive=mirror)
            assert asked.done("GET", path_of(flow))["engine"] == "spark"
            paused_alone(asked, stream, flow, orders)
            asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "worker"}})
            assert stream.wait(120) == 3, stream.tail()
        before = copied(flow, orders)
        until(lambda: copied(flow, orders) > before + 2_000, 240, "the worker", alive=mirror)

        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "spark"}})
        with stream_of(flow, "--term", "8", name="second") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_for_progress(stream, flow, orders, 3_000)
            assert stream.stop() == 0, stream.tail()
            assert int(str(report_of(stream)["records"])) >= 3_000
        wait_for_progress(mirror, flow, orders, 2_000)  # given back in order
        with stream_of(flow, "--term", "8", name="third") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_for_progress(stream, flow, orders, 3_000)
            stream.wait_for_log("term ended", 300)
            stream.kill()
        # Its driver is gone and gives nothing back: the worker does.
        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "worker"}})
        before = copied(flow, orders)
        until(lambda: copied(flow, orders) > before + 2_000, 240, "the worker", alive=mirror)
        load.stop()
        assert_equal(*wait_for_copy(mirror, flow, orders))
        assert not mirror.lines("Traceback")


class Readers:
    """Groups of the source that have read a half, or everything; moved to the target they find their next record, and no other before it."""

    def __init__(self, flow: Flow, topic: str) -> None:
        self._flow, self._topic = flow, topic
        self._groups: dict[str, dict[int, int]] = {}

    def commit(self) -> None:
        """Let two more groups commit where the source is now."""
        now = ends(self._flow.source, self._topic)
        for part in (1, 2):
            group = f"{self._topic}-{len(self._groups)}"
            self._groups[group] = {number: end // part for number, end in now.items()}
            commit(self._flow.source, group, self._topic, self._groups[group])

    def check(self, mirror: Mirror) -> None:
        """Wait until all are exact."""
        flow = self._flow
        truth = read(flow.source, self._topic, committed=True)
        copy = read(flow.target, flow.remote(self._topic), committed=True)

        def wrong() -> list[str]:
            return [
                f"{group}-{number} at {at}: {there}"
                for group, offsets in self._groups.items()
                for there in [committed(flow.target, group, flow.remote(self._topic))]
                for number, at in offsets.items()
                if there.get(number, -1) < 0
                or _behind(copy[number], there[number]) != _behind(truth[number], at)
            ]

        until(lambda: not wrong(), 120, lambda: f"{wrong()[:5]}", alive=mirror)


def _behind(log: Log, offset: int) -> list[Record]:
    return log.records[bisect_left(log.offsets, offset) :]


@pytest.mark.chaos
@pytest.mark.parametrize(
    "kind",
    [ENABLED, {"{source}.consumer.isolation.level": "read_committed"}],
    ids=["exactly-once", "committed"],
)
def test_transactions_and_groups_are_exact_while_workers_and_killed_streams_take_turns(
    setup: Setup, kind: Mapping[str, str]
) -> None:
    """Some transactions are aborted, and one is open while the stream that reads it is killed."""
    topic = setup.topic("turns", 3, config={})
    flow = setup.flow(topic, {**ON_SPARK, **GROUPS, **SHORT_SESSION, **kind})
    readers = Readers(flow, topic)
    client = producer(setup.a, transactional_id=topic, transaction_timeout_ms=600_000)
    client.init_transactions(60)
    with Load(setup.a, topic, 3, rate=400) as load, Mirror(flow.file) as mirror:
        wait_for_progress(mirror, flow, topic, 600)
        readers.commit()
        write_one(client, topic, [b"aborted"] * 5, commit=False, partitions=range(3))
        with stream_of(flow, "--term", "6", name="first") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_for_progress(stream, flow, topic, 1_000)
            readers.commit()
            client.begin_transaction()
            for partition in range(3):
                client.produce(topic, b"open", partition=partition)
            assert client.flush(60) == 0
            load.wait_acked(1_000)
            tree = freeze_tree(stream.pid)
            kill_all(tree)
        client.commit_transaction(60)
        with stream_of(flow, "--term", "6", name="second") as stream:
            wait_for_progress(stream, flow, topic, 2_000)
            readers.commit()
            write_one(client, topic, [b"aborted"] * 5, commit=False, partitions=range(3))
            assert stream.stop() == 0, stream.tail()
        wait_for_progress(mirror, flow, topic, 500)
        readers.commit()
        load.stop()
        assert assert_each_once(mirror, flow, topic) > 4_000
        readers.check(mirror)


@pytest.mark.chaos
def test_under_the_same_names_both_ways_a_stream_that_is_killed_starts_no_loop(
    setup: Setup,
) -> None:
    """The worker copies the other way all the time."""
    topic, marks = setup.topic_on_both("both-ways", 3, config={}), (b"one", b"two")
    flow = write_pair(setup.folder, setup.a, setup.b, topic, {**SHORT_SESSION, **ON_SPARK})
    with (
        Load(setup.a, topic, 3, rate=300, mark=marks[0]) as one,
        Load(setup.b, topic, 3, rate=300, mark=marks[1]) as two,
        Mirror(flow.file) as mirror,
    ):
        for name in ("killed", "stopped"):
            with stream_of(flow, "--term", "6", name=name) as stream:
                stream.wait_for_log(BEGUN, 300)
                one.wait_acked(2_000)
                if name == "killed":
                    kill_all(freeze_tree(stream.pid))
                else:
                    assert stream.stop() == 0, stream.tail()
        for load in (one, two):
            load.stop()
        written = one.acked, two.acked
        logs = wait_until_quiet(mirror, setup.a, setup.b, topic, sum(written))
        sides = check_sides(*logs, marks, written)
        assert (sides.loops, sides.doubled) == (0, 0)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [ENABLED, ON_SPARK], ids=["exactly-once", "stream"])
def test_what_the_cleaner_leaves_is_copied_once_and_in_order_when_killed(
    setup: Setup, kind: Mapping[str, str]
) -> None:
    """Segments are compacted before they are copied, and while they are; of each key the newest record arrives."""
    topic, keys, of_segment = setup.unique("compacted"), 61, 500
    compact = {"cleanup.policy": "compact", "segment.ms": "60000"}
    setup.create_topic(setup.a, topic, 1, config={**compact, "min.cleanable.dirty.ratio": "0.001"})
    flow = setup.flow(topic, {**SHORT_SESSION, "sync.topic.configs.enabled": "false", **kind})
    setup.create_topic(setup.b, flow.remote(topic), 1)
    written, began_ms = 0, SYSTEM_CLOCK.now_ms() - 40 * HOUR_MS

    def more() -> None:
        nonlocal written
        for _ in range(5):
            # They roll by the time in the records.
            numbers, stamp = (
                range(written, written + of_segment),
                began_ms + written * HOUR_MS // of_segment,
            )
            write(
                setup.a, topic, [Sent(0, b"%d" % n, b"%d" % (n % keys), (), stamp) for n in numbers]
            )
            written += of_segment

    def compacted() -> bool:
        return len(read(setup.a, topic)[0].records) < 3 * of_segment

    def started(stack: ExitStack, name: str) -> Mirror:
        mirror = stack.enter_context(Mirror(flow.file, name=name))
        if kind is not ON_SPARK:
            return mirror
        stream = stack.enter_context(stream_of(flow, "--term", "6", name=f"stream-{name}"))
        stream.wait_for_log(BEGUN, 300)
        return stream

    def newest() -> list[int] | None:
        log = read(setup.b, flow.remote(topic), committed=True)[0]
        values = [int(it.value or b"") for it in log.records]
        return values if values[-1:] == [written - 1] else None

    with ExitStack() as stack:
        more()
        until(compacted, 120, "compaction of the source")
        killed = started(stack, "killed")
        more()
        wait_for_progress(killed, flow, topic, keys, before=0)
        kill_all(freeze_tree(killed.pid))
        more()
        until(compacted, 120, "compaction of what nobody copies")
        following = started(stack, "next")
        more()
        copy = until(newest, 120, "the last record", alive=following)
    assert copy == sorted(set(copy))
    assert {*range(written - keys, written)} <= {*copy}
    assert len(copy) < written - of_segment, "the cleaner was at work"


STILL_S: Final = 45.0
"""Longer than a lease, and than a request waits."""


@pytest.mark.chaos
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_stream_of_which_a_side_stands_still_goes_on_and_doubles_nothing(
    setup: Setup, own_regions: tuple[Region, Region], side: str
) -> None:
    a, b = own_regions
    topic = setup.topic("orders", 3, on=a, config={})
    flow = setup.flow(topic, {**ON_SPARK, **SHORT_SESSION}, source=a, target=b)
    still = a if side == "source" else b
    with (
        Load(a, topic, 3, rate=300) as load,
        Mirror(flow.file),
        stream_of(flow, "--term", "8") as stream,
    ):
        stream.wait_for_log(BEGUN, 300)
        wait_for_progress(stream, flow, topic, 600)
        still.freeze()
        try:
            threading.Event().wait(STILL_S)
        finally:
            still.thaw()
        wait_for_progress(stream, flow, topic, 1_500)
        load.stop()
        assert_equal(*wait_for_copy(stream, flow, topic, timeout_s=150))
        assert stream.stop() == 0, stream.tail()
