"""Memory is flat while the target is frozen half of the time: ``MM2PY_CHAOS_MEMORY_S=600`` for ten minutes."""

import logging
import os
import time
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.census import Census, rise
from tests.chaos.conftest import CreateTopic, Rig, Unique
from tests.chaos.snapshots import snapshot
from tests.chaos.throughput import wait_s
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Load, assert_resumed, copied, ends

DURATION_S: Final = float(os.environ.get("MM2PY_CHAOS_MEMORY_S", "300"))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.timeout(DURATION_S * 2 + 400),
]

log = logging.getLogger(__name__)

PARTITIONS = 4
RATE = 2_000
VALUE_BYTES = 2_000
HALVES_S = (6.0, 15.0)
"""Frozen and not, for as long each: within a session and longer than one. The buffers are full after eight."""
MOST_GROWTH_MB = 20.0


def test_memory_is_flat_while_the_target_is_frozen_half_of_the_time(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("frozen")
    source, target = rig.source.region, rig.target.region
    create_topic(source, topic, PARTITIONS)
    flow = write_flow(tmp_path, source, target, topic)
    turns = 0
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
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
        wanted = ends(source, topic)

        def arrived() -> bool:
            now = ends(target, flow.remote(topic))
            return all(now.get(partition, 0) >= end for partition, end in wanted.items())

        until(arrived, 180, lambda: f"{wanted}, {ends(target, flow.remote(topic))}", alive=mirror)
        assert mirror.stop() == 0
    # A coordinator that was frozen for longer than a session may take us for dead when it wakes.
    truth, copy = (
        snapshot(source, topic, digests=True),
        snapshot(target, flow.remote(topic), digests=True),
    )
    doubled = assert_resumed(truth, copy, rewinds=turns)
    log.warning("memory: %d records on the target, %d doubled", copied(flow, topic), doubled)
    assert growth < MOST_GROWTH_MB
