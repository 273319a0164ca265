"""Sums per flow and what lag in time means; windows of ages, latencies of checkpoints, and what a process and those below it use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mm2py.observability import checkpoint_ages
from mm2py.observability.ages import Ages, AgeWindow
from mm2py.observability.checkpoint_ages import CheckpointKey, CheckpointMeter
from mm2py.observability.metrics import KEPT_OUT, MOST_GONE, Metrics
from mm2py.observability.processes import ProcessWatch
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
ORDERS = TopicPartition("orders", 0)
NOW = 1_700_000_000_000


def test_of_topics_without_a_partition_here_the_counts_of_the_newest_are_kept() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)

    def forgotten(topic: str, number: int = 0) -> None:
        meter.partition(TopicPartition(topic, number)).records = 1
        meter.forget(TopicPartition(topic, number))

    def counted(topic: str) -> int:
        meter.partition(TopicPartition(topic, 9))
        gone = meter.node_snapshot("w").gone
        return gone[topic].records if topic in gone else 0

    forgotten("stays")
    meter.partition(TopicPartition("stays", 1))
    for number in range(3 * MOST_GONE):
        forgotten(f"goes-{number}")
    assert set(meter.node_snapshot("w").gone) == {"stays"}, "no other topic is shown"
    forgotten("stays", 2)
    newest, first = f"goes-{3 * MOST_GONE - 1}", "goes-0"
    assert (counted("stays"), counted(newest), counted(first)) == (2, 1, 0)


class Counted(str):
    """A name that counts how often something is looked up by it."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


def test_what_a_partition_costs_that_leaves_does_not_grow_with_the_topics_that_stay() -> None:
    meter, topics = Metrics(FakeClock(NOW)).flow(FLOW), 3 * MOST_GONE
    for number in range(topics):
        for partition in (0, 1):
            meter.partition(TopicPartition(Counted(number), partition))
    Counted.looks = 0
    for number in range(topics):
        meter.forget(TopicPartition(Counted(number), 0))
    assert Counted.looks < 40 * topics


def test_lag_in_time_is_bounded_by_the_moment_the_partition_was_caught_up() -> None:
    clock = FakeClock(NOW)
    partition = Metrics(clock).flow(FLOW).partition(ORDERS)
    partition.report_lag(0, 1_000, NOW - 2_000)
    partition.report_lag(9, 1_000, NOW - 1_000)
    assert partition.lag_ms(NOW) == 2_000
    partition.report_lag(9, NOW - 500, NOW)
    assert partition.lag_ms(NOW) == 500


def test_a_time_of_the_future_is_no_age_it_hid_any_lag_for_good() -> None:
    clock = EagerClock()
    meter = Metrics(clock).flow(FLOW)
    partition = meter.partition(ORDERS)
    future = clock.now_ms() + 3_600_000

    def age_ms(lag: int) -> int | None:
        partition.report_lag(lag, future, clock.now_ms())
        partition.note_copied(future, clock.now_ms())
        return meter.node_snapshot("x").partitions[0].age_ms

    assert age_ms(9) is None
    assert age_ms(0) == 0
    clock.seconds += 30
    assert (age_ms(9), meter.sample().lag_ms) == (30_000, 30_000)


def test_a_clock_that_is_set_back_hides_no_lag() -> None:
    partition = Metrics(FakeClock(NOW)).flow(FLOW).partition(ORDERS)
    partition.report_lag(0, NOW, NOW)
    for second in (0, 30):
        now_ms = NOW - 3_600_000 + 1_000 * second
        partition.report_lag(9, NOW, now_ms)
        assert partition.lag_ms(now_ms) == 1_000 * second


def test_lag_in_time_is_bounded_by_when_the_log_had_no_more_than_is_copied_by_now() -> None:
    partition = Metrics(FakeClock(NOW)).flow(FLOW).partition(ORDERS)
    made_up = 1_000
    for second, end, lag, expected in (
        (0, 100, 40, NOW - made_up),  # nothing else is known of when they were written
        (1, 200, 101, NOW + 1_000 - made_up),
        (2, 300, 200, 2_000),  # what was there at the first look is copied
        (3, 400, 150, 3_000),
        (4, 500, 150, 2_000),
        (6, 500, 150, 4_000),  # a standstill
        (7, 50, 10, 5_000),  # another log
        (8, 60, 5, 1_000),
    ):
        now_ms = NOW + 1_000 * second
        partition.report_lag(lag, made_up, now_ms, end)
        assert partition.lag_ms(now_ms) == expected, second


def test_while_the_lag_is_not_known_its_age_grows_from_when_it_was_and_is_unknown_without() -> None:
    clock = EagerClock()
    there, here = Metrics(clock).flow(FLOW), Metrics(clock).flow(FLOW)
    partition = there.partition(ORDERS)
    partition.report_lag(-1, -1, clock.now_ms())
    (snapshot,) = there.node_snapshot("x").partitions
    assert snapshot.age_ms is None
    clock.seconds += 60
    partition.report_lag(0, 1_000, clock.now_ms())
    clock.seconds += 30
    assert there.node_snapshot("x").partitions[0].age_ms == 0
    partition.report_lag(-1, 1_000, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    clock.seconds += 15
    for each in (there, here):  # the other process does not hear of what has not changed
        (snapshot,) = each.node_snapshot("x").partitions
        assert (snapshot.lag_records, snapshot.age_ms) == (-1, 45_000)


def test_of_what_a_job_copies_no_age_is_known_though_the_flow_had_caught_up_before() -> None:
    clock = EagerClock()
    there, here = Metrics(clock).flow(FLOW), Metrics(clock).flow(FLOW)
    there.partition(ORDERS).report_lag(0, clock.now_ms(), clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    for meter in (there, here):  # its task is started again without it
        meter.forget(ORDERS)
    clock.seconds += 30
    kept = there.partition(ORDERS)
    kept.state, kept.cause = "HELD", KEPT_OUT
    here.apply(there.node_snapshot("x").partitions)
    clock.seconds += 600
    for meter in (there, here):
        assert meter.node_snapshot("x").partitions[0].age_ms is None
    kept.state, kept.cause = "RUNNING", ""
    assert there.node_snapshot("x").partitions[0].age_ms == 630_000, "until its lag is known again"


def test_rates_are_means_over_the_last_seconds_and_unknown_before() -> None:
    clock = EagerClock()
    meter = Metrics(clock).flow(FLOW)
    partition = meter.partition(ORDERS)
    (first,) = meter.node_snapshot("me").partitions
    assert (first.records_per_s, first.bytes_per_s) == (-1, -1)
    assert meter.rates() == {}
    for second in range(1, 31):
        partition.records += 10 if second <= 15 else 0
        partition.bytes += 1_000 if second <= 15 else 0
        clock.seconds += 1
        partition.report_lag(0, 1, clock.now_ms())
        (now,) = meter.node_snapshot("me").partitions
        if 2 <= second <= 15:
            assert (now.records_per_s, now.bytes_per_s) == (10, 1_000)
            assert meter.rates() == {ORDERS: 1_000}
        elif second >= 26:
            assert now.records_per_s == 0


def test_what_another_process_counted_is_taken_over_and_stays_in_the_sums() -> None:
    clock = EagerClock()
    here, there = Metrics(clock).flow(FLOW), Metrics(clock).flow(FLOW)
    counted = there.partition(ORDERS)
    counted.task, counted.records, counted.bytes = "c-0", 5, 50
    counted.target = TopicPartition("A.orders", 0)
    counted.report_lag(0, 1, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    clock.seconds += 3_600
    counted.report_lag(0, 1, clock.now_ms())
    clock.seconds += 1
    counted.report_lag(1, 1, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    (partition,) = here.node_snapshot("x").partitions
    assert (partition.task, partition.records, partition.lag_records) == ("c-0", 5, 1)
    assert partition.lag_ms == 1_000, "the hour without a change is no lag"
    here.forget_task("c-0")
    sums = here.sample()
    assert (sums.records, sums.size_bytes, here.node_snapshot("x").partitions) == (5, 50, ())


# ---- windows of ages: Java's SampledStat of two samples of 30 s


def test_the_window_forgets_after_a_minute_and_the_last_value_stays() -> None:
    window = AgeWindow()
    assert window.ages(0) is None
    for age_ms, at_ms in ((50, 0), (10, 29_999), (30, 30_000), (-5, 59_999)):
        window.note(age_ms, at_ms)

    def found(now_ms: int) -> tuple[int, int | None, int | None, float | None]:
        ages = window.ages(now_ms)
        assert ages is not None
        return ages.last, ages.least, ages.greatest, ages.mean

    assert found(59_999) == (-5, -5, 50, 85 / 4)
    assert found(60_000) == (-5, -5, 30, 25 / 2)
    assert found(90_000) == (-5, None, None, None)


def test_what_another_process_noted_is_shown_until_its_minute_is_over() -> None:
    window = AgeWindow()
    window.note(7, 0)
    said = Ages(last=3, noted_ms=1_000, least=2, greatest=9, mean=4.5)
    window.take(None)
    window.take(said)
    assert window.ages(60_999) == said
    assert window.ages(61_000) == Ages(3, 1_000, None, None, None)


# ---- latencies of checkpoints: which are kept, and what is told of them


def key(number: int, task: str = "c-0") -> CheckpointKey:
    return CheckpointKey(task, "billing", TopicPartition("A.orders", number))


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many are kept."""
    monkeypatch.setattr(checkpoint_ages, "MOST_CHECKPOINTS", 50)
    return 50


def test_of_more_than_can_be_kept_the_one_longest_without_a_checkpoint_goes(most: int) -> None:
    meter = CheckpointMeter(FakeClock())
    for number in range(most):
        meter.note(key(number), number)
    meter.note(key(0), 7)
    meter.note(key(most), 8)
    kept = {it.key for it in meter.all()}
    assert len(kept) == most
    assert key(0) in kept
    assert key(1) not in kept


def test_news_cost_as_much_as_there_are_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = CheckpointMeter(FakeClock())
    for number in range(100):
        meter.note(key(number), number)
    meter.changed()
    looks: list[AgeWindow] = []
    ages = AgeWindow.ages

    def looked(window: AgeWindow, now_ms: int) -> Ages | None:
        looks.append(window)
        return ages(window, now_ms)

    monkeypatch.setattr(AgeWindow, "ages", looked)
    meter.note(key(7), 1)
    assert [it.key for it in meter.changed()] == [key(7)]
    assert len(looks) == 1


def test_of_those_that_are_dropped_nothing_is_told(most: int) -> None:
    meter = CheckpointMeter(FakeClock())
    meter.note(key(0, "c-1"), 1)
    meter.forget("c-1")
    for number in range(most + 1):
        meter.note(key(number), number)
    told = {it.key for it in meter.changed()}
    assert len(told) == most
    assert key(0) not in told


def test_only_those_with_a_newer_checkpoint_are_told_again_and_an_ended_task_has_none() -> None:
    clock = FakeClock()
    meter = CheckpointMeter(clock)
    meter.note(key(0), 1)
    meter.note(key(1, "c-1"), 2)
    assert [it.key for it in meter.changed()] == [key(0), key(1, "c-1")]
    clock.jump(1.0)
    meter.note(key(0), 3)
    assert [(it.key, it.ages.last) for it in meter.changed()] == [(key(0), 3)]
    assert meter.changed() == ()
    meter.forget("c-0")
    assert [it.key for it in meter.all()] == [key(1, "c-1")]


# ---- ``ProcessWatch`` over a folder that looks like ``/proc``, and over the real one


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def put(proc: Path, pid: int, parent: int, *, cpu_s: int, start: int = 7, pages: int = 10) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["0"] * 40
    fields[1] = str(parent)
    fields[11], fields[12] = str(cpu_s * TICKS_PER_S - 1), "1"
    fields[19], fields[20], fields[21] = str(start), "4096", str(pages)
    (folder / "stat").write_text(f"{pid} (a ) b) S {' '.join(fields[1:])}\n")


def tree(tmp_path: Path) -> Path:
    """This process with a child that has a child, beside a stranger."""
    own = os.getpid()
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    put(tmp_path, own, 1, cpu_s=5, start=3 * TICKS_PER_S)
    put(tmp_path, own + 1, own, cpu_s=2)
    put(tmp_path, own + 2, own + 1, cpu_s=30, pages=20)
    put(tmp_path, own + 3, 1, cpu_s=400)
    fd = tmp_path / str(own) / "fd"
    fd.mkdir()
    for number in "0123":
        (fd / number).touch()
    limits = "Max open files            1024       4096   files\n"
    (tmp_path / str(own) / "limits").write_text(limits)
    return tmp_path


def test_a_process_and_those_below_it_are_read(tmp_path: Path) -> None:
    reading = ProcessWatch(tree(tmp_path)).read()
    assert reading is not None
    assert (reading.cpu_s, reading.resident_bytes, reading.started_s) == (5, 10 * PAGE_BYTES, 1003)
    assert (reading.open_files, reading.most_files, reading.virtual_bytes) == (3, 1024, 4096)
    assert (reading.children, reading.children_cpu_s) == (2, 32)
    assert reading.children_resident_bytes == 30 * PAGE_BYTES


def test_the_cpu_of_children_never_falls_when_one_ends(tmp_path: Path) -> None:
    proc, own = tree(tmp_path), os.getpid()
    watch = ProcessWatch(proc)
    watch.read()
    put(proc, own + 2, own + 1, cpu_s=1, start=99)
    again = watch.read()
    assert again is not None
    assert (again.children, again.children_cpu_s) == (2, 33)
    (proc / str(own + 2) / "stat").unlink()
    ended = watch.read()
    assert ended is not None
    assert (ended.children, ended.children_cpu_s) == (1, 33)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert ProcessWatch(tmp_path / "none").read() is None


def test_a_real_child_is_seen() -> None:
    watch = ProcessWatch()
    before = watch.read()
    assert before is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        during = watch.read()
        child.kill()
    assert during is not None
    assert during.children == before.children + 1
    assert during.children_cpu_s >= before.children_cpu_s
