"""Memory is flat over outages for minutes, ``MM2PY_CHAOS_MEMORY_S=600`` for ten of them, and bounded at any number of partitions and size of records."""

import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.chaos.throughput import wait_s
from tests.integration.cluster_changes import set_quota
from tests.integration.far_regions import Rig
from tests.integration.memory_census import Census, rise
from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.small_disk import fill, small_disk
from tests.integration.traffic import (
    Load,
    Sent,
    assert_resumed,
    copied,
    ends,
    read,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import Region
from tests.kit.regions import NewRegion

DURATION_S: Final = float(os.environ.get("MM2PY_CHAOS_MEMORY_S", "300"))

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(DURATION_S * 2 + 400)]

log = logging.getLogger(__name__)

PARTITIONS = 4
RATE = 2_000
VALUE_BYTES = 2_000
HALVES_S = (6.0, 15.0)
"""Frozen and not, for as long each: within a session and longer than one. The buffers are full after eight."""
MOST_GROWTH_MB = 20.0
READ_S = 240.0
CUTS_S = (8.0, 15.0)
"""Longer than a session of the dedicated mode (6 s): workers that are cut off from the target lose their membership."""
EVERY_S: Final = 10.0
HELD_SAMPLES: Final = 40
"""Of memory, while nothing can be written: 20 s."""
MOST_KEPT_MB: Final = 60.0
"""By which a worker's least need of the second half may be above that of its first seconds: what two task hosts keep
of a backlog until they collect again. It was 70 and 150 when they did not."""
MOST_OWN_GROWTH_MB: Final = 5.0
"""Of the worker process itself, which moves no records."""


LARGEST: Final = {
    "message.max.bytes": str(64 << 20),
    "replica.fetch.max.bytes": str(64 << 20),
    "quota.window.num": "3",
    "log.index.size.max.bytes": "65536",
    "offsets.topic.num.partitions": "1",
}
DISK_MB: Final = 1_500
MEMORY_MB: Final = 32
SLACK_MB: Final = 40.0
"""What the first records of a process load, and what the allocator keeps."""
PRODUCER: Final = "connector-producer-MirrorSourceConnector-0"


class Backlog(NamedTuple):
    """What the source holds of each partition."""

    partitions: int
    records: int
    value_bytes: int


BACKLOGS: Final = {"many": Backlog(1_000, 1, 250_000), "large": Backlog(8, 1, 50_000_000)}


@contextmanager
def slowed(target: Region, _disk: Path) -> Generator[None]:
    """A producer quota: one record of the largest takes ten seconds."""
    set_quota(target, "producer", PRODUCER, 5_000_000)
    yield
    set_quota(target, "producer", PRODUCER, 0)


@contextmanager
def frozen(target: Region, _disk: Path) -> Generator[None]:
    """Its connections stay open and nothing answers."""
    target.freeze()
    yield
    target.thaw()


@contextmanager
def full(target: Region, disk: Path) -> Generator[None]:
    """Its disk has no room: the broker ends when it is written to, and is started again when there is room."""
    ballast = disk / "ballast"
    fill(ballast)
    yield
    until(lambda: not target.node(1).is_running, 60, "the broker to give up")
    ballast.unlink()
    target.start()


def wait_until_arrived(mirror: Mirror, flow: Flow, topic: str) -> None:
    wanted = ends(flow.source, topic)

    def arrived() -> bool:
        now = ends(flow.target, flow.remote(topic))
        return all(now.get(partition, 0) >= end for partition, end in wanted.items())

    until(arrived, 180, lambda: f"{wanted}, {ends(flow.target, flow.remote(topic))}", alive=mirror)


def assert_content(flow: Flow, topic: str, rewinds: int) -> None:
    truth, copy = (
        read(region, name, digests=True, timeout_s=READ_S)
        for region, name in ((flow.source, topic), (flow.target, flow.remote(topic)))
    )
    doubled = assert_resumed(truth, copy, rewinds=rewinds)
    log.warning("memory: %d records on the target, %d doubled", copied(flow, topic), doubled)


def test_memory_is_flat_while_the_target_is_frozen_half_of_the_time(setup: Setup, rig: Rig) -> None:
    topic = setup.unique("frozen")
    source, target = rig.source.region, rig.target.region
    setup.create_topic(source, topic, PARTITIONS)
    flow = setup.flow(topic, source=source, target=target)
    turns = 0
    with running(flow.file) as mirror:
        with (
            Load(source, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES) as load,
            Census(mirror.pid) as census,
        ):
            end = time.monotonic() + DURATION_S
            while time.monotonic() < end:
                half_s = HALVES_S[turns % len(HALVES_S)]
                turns += 1
                wait_s(load, half_s)
                target.freeze()
                try:
                    wait_s(load, half_s)
                finally:
                    target.thaw()
        growth = census.growth_mb()
        log.warning(
            "memory over %.0f s, frozen %d times: at most %.0f MiB, the line through the last half "
            "rises by %.1f MiB (%.0f MiB per hour), through the last quarter by %.1f MiB; %s",
            DURATION_S,
            turns,
            census.peak_mb,
            growth,
            census.mb_per_hour(),
            rise(census.used_mb[-len(census.used_mb) // 4 :]),
            [round(value) for value in census.used_mb[:: max(len(census.used_mb) // 60, 1)]],
        )
        wait_until_arrived(mirror, flow, topic)
    # A coordinator that was frozen for longer than a session may take us for dead when it wakes.
    assert_content(flow, topic, rewinds=turns)
    assert growth < MOST_GROWTH_MB


def steps_mb(values: list[float]) -> list[int]:
    return [round(value) for value in values]


def kept_mb(name: str, worker: Mirror, census: Census) -> float:
    """Return what a worker needs more than at its start; its own process needs no more at all."""
    used = census.used_mb
    kept = min(used[len(used) // 2 :]) - used[0]
    own = census.by_process[worker.pid]
    grown = rise(own[len(own) // 4 :])
    log.warning(
        "memory of worker %s: keeps %.0f MiB more than at its start, its own process rises by %.1f MiB; %s; %s",
        name,
        kept,
        grown,
        steps_mb(used),
        {pid: steps_mb(each) for pid, each in census.by_process.items()},
    )
    assert grown < MOST_OWN_GROWTH_MB
    return kept


def test_memory_of_two_workers_is_flat_while_target_and_source_are_cut_off_in_turn(
    setup: Setup, rig: Rig
) -> None:
    topic = setup.unique("cut-memory")
    source = rig.source.region
    setup.create_topic(source, topic, PARTITIONS)
    flow = setup.flow(
        topic, {**rig.bootstrap, "tasks.max": "4"}, source=source, target=rig.target.region
    )
    cuts = 0
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        one.wait_ready()
        two.wait_ready()
        with (
            Load(source, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES // 2) as load,
            Census(one.pid, every_s=EVERY_S) as first,
            Census(two.pid, every_s=EVERY_S) as second,
        ):
            end = time.monotonic() + DURATION_S
            while time.monotonic() < end:
                wait_for_progress(one, flow, topic, RATE)
                far = (rig.target, rig.source)[cuts % 2]
                far.line.stall()
                wait_s(load, CUTS_S[cuts // 2 % 2])
                far.line.heal()
                cuts += 1
            wait_for_progress(one, flow, topic, RATE)
        log.warning("memory over %.0f s and %d cuts", DURATION_S, cuts)
        kept = [kept_mb("one", one, first), kept_mb("two", two, second)]
        wait_until_arrived(one, flow, topic)
        assert (one.stop(), two.stop()) == (0, 0)
    assert_content(flow, topic, rewinds=cuts)
    assert max(kept) < MOST_KEPT_MB


@pytest.mark.parametrize("fault", [slowed, frozen, full])
@pytest.mark.parametrize("name", BACKLOGS)
def test_memory_is_bounded_while_no_partition_can_be_written_and_all_arrives_afterwards(
    setup: Setup,
    new_region: NewRegion,
    fault: Callable[[Region, Path], AbstractContextManager[None]],
    name: str,
) -> None:
    backlog, topic = BACKLOGS[name], setup.unique("bounded")
    source = new_region("memory-a", properties=LARGEST)
    with (
        small_disk(setup.folder, DISK_MB) as disk,
        Region("memory-b", properties=LARGEST, folder=disk, min_free_bytes=1) as target,
    ):
        _bounded(setup, source, target, backlog, topic, partial(fault, target, disk))


def _bounded(
    setup: Setup,
    source: Region,
    target: Region,
    backlog: Backlog,
    topic: str,
    fault: Callable[[], AbstractContextManager[None]],
) -> None:
    setup.create_topic(source, topic, backlog.partitions)
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"}, source=source, target=target)
    setup.create_topic(target, flow.remote(topic), backlog.partitions)
    value = os.urandom(backlog.value_bytes)
    records = [Sent(it, value) for _ in range(backlog.records) for it in range(backlog.partitions)]
    with running(flow.file, ready=False) as mirror:
        mirror.wait_ready(90)
        with Census(mirror.pid) as census:
            with fault():
                write(source, topic, records, message_max_bytes=len(value) + 100_000)
                held = len(census.used_mb) + HELD_SAMPLES
                until(lambda: len(census.used_mb) >= held, 90, "samples", alive=mirror)
            wait_until_arrived(mirror, flow, topic)
        assert_content(flow, topic, rewinds=1)
    grown = max(max(used) - used[0] for used in census.by_process.values())
    one = backlog.value_bytes / (1 << 20)
    log.warning("memory of the task grew by %.0f MiB", grown)
    assert grown < MEMORY_MB + one + SLACK_MB
