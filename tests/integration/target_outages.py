"""Two workers of one file whose target is cut off again and again under load; what is stored and what is doubled.

Flow: ``outages`` -> ``Outcome``: positions that went back, and records that are there more than once. Short in ``make
test``, ten outages of 8 and 15 s in ``make chaos``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.integration.far_regions import Rig
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import Load, committed_positions, ends, read, wait_for_copy

PARTITIONS: Final = 8
RATE: Final = 1_000
PROGRESS_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has left on the target."""

    records: int
    lost: int
    doubled: int
    """Records that are there again."""
    positions: int
    steps_back: list[tuple[int, int, int]]
    """Partition, and the offsets of two positions written one after the other, the later one smaller."""
    memberships_lost: int


def outages(rig: Rig, folder: Path, topic: str, lengths_s: Sequence[float]) -> Outcome:
    """Cut the target off once for each length, with two workers under load."""
    properties = {**rig.bootstrap, "tasks.max": "4"}
    flow = write_flow(folder, rig.source.region, rig.target.region, topic, properties)
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        one.wait_ready()
        two.wait_ready()
        with Load(rig.source.region, topic, PARTITIONS, rate=RATE) as load:
            for length_s in lengths_s:
                _progress(one, flow, topic)
                rig.target.line.stall()
                load.wait_acked(round(RATE * length_s), timeout_s=length_s + 60)
                rig.target.line.heal()
            _progress(one, flow, topic)
        truth, _ = wait_for_copy(one, flow, topic, timeout_s=120)
        lost = [line for worker in (one, two) for line in worker.lines("membership lost")]
        assert (one.stop(), two.stop()) == (0, 0)
    wanted = [record.value for log in truth.values() for record in log.records]
    there = [r.value for log in read(flow.target, flow.remote(topic)).values() for r in log.records]
    positions = _positions(flow, topic)
    return Outcome(
        records=len(wanted),
        lost=len(set(wanted) - set(there)),
        doubled=len(there) - len(set(there)),
        positions=sum(map(len, positions.values())),
        steps_back=[
            (partition, before, after)
            for partition, written in positions.items()
            for before, after in pairwise(written)
            if after < before
        ],
        memberships_lost=len(lost),
    )


def _progress(worker: Mirror, flow: Flow, topic: str) -> None:
    """Wait until what the source has now is copied, and positions behind it are stored."""
    there = ends(flow.source, topic)

    def stored() -> bool:
        positions = committed_positions(flow, topic)
        return all(positions.get(p, -1) >= end - 1 for p, end in there.items() if end)

    until(stored, PROGRESS_S, "the copy and its positions to catch up", alive=worker)


def _positions(flow: Flow, topic: str) -> dict[int, list[int]]:
    """Return every position that was written, in order, by partition; the topic is not compacted yet."""
    written: dict[int, list[int]] = {}
    for log in read(flow.target, flow.offsets_topic).values():
        for record in log.records:
            if record.key is None or record.value is None:
                continue
            _, partition = json.loads(record.key)
            if partition.get("topic") == topic:
                offset = json.loads(record.value)["offset"]
                written.setdefault(partition["partition"], []).append(offset)
    return written
