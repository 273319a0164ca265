"""T9: a topic is deleted and created again ten times under load, with as many partitions, fewer, more."""

import logging
import random
import threading
from functools import partial
from typing import Self, final

import pytest

from tests.chaos.snapshots import snapshot
from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.far_regions import Rig
from tests.integration.incarnations import PER_TICK, Incarnation, Values
from tests.integration.ledger_scenes import Entry, entries
from tests.integration.mirror_process import SHORT_SESSION, Flow, running, until
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.traffic import copied, ends
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

WIDTHS = (3, 3, 2, 4, 4, 1, 3, 5, 2, 4, 5)
"""Partitions of each incarnation; ten of them replace another one. The last has all there ever were: what
became of a partition is known when there is one of its number again."""
INCARNATIONS = 12


def copies(flow: Flow, topic: str) -> dict[int, Values]:
    """Return what is on the target, by incarnation and partition, in order; incarnations never mix."""
    found: dict[int, Values] = {}
    for partition, one in snapshot(flow.target, flow.remote(topic)).items():
        last = 0
        for record in one.records:
            value = record.value or b""
            number = int(value.split(b":")[0])
            assert number >= last, f"partition {partition}: {value!r} behind incarnation {last}"
            last = number
            found.setdefault(number, {}).setdefault(partition, []).append(value)
    return found


def check_lost(old: Incarnation, number: int, got: Values, reported: list[Entry]) -> int:
    """What was copied is the beginning of what was written, and the ledger says where it ends."""
    lost = 0
    for partition, acked in old.acked.items():
        have = got.get(partition, [])
        # The last may have been stored without its answer having come.
        both = min(len(have), len(acked))
        assert have[:both] == acked[:both], f"incarnation {number}, partition {partition}"
        (entry,) = [each for each in reported if each.partition == partition]
        assert (entry.kind, entry.policy) == ("recreated", "recreate.policy=continue")
        assert entry.first == len(have), f"incarnation {number}: {entry}"
        # It reports what it knew of; what was written between its last look and the deletion it cannot know.
        assert entry.first - 1 <= entry.last < max(len(acked), len(have)) + PER_TICK
        lost += max(len(acked) - len(have), 0)
    return lost


def is_found(flow: Flow, topic: str, number: int, width: int) -> bool:
    """Whether every partition of an incarnation is copied."""
    return len(copies(flow, topic).get(number, {})) == width


def state(flow: Flow, topic: str, number: int) -> str:
    return f"incarnation {number}, there are {ends(flow.target, flow.remote(topic))}"


def test_ten_incarnations_under_load_are_never_mixed_and_what_is_lost_is_named(
    setup: Setup, rig: Rig, new_region: NewRegion
) -> None:
    # Else the load would create it again, before the operator.
    source = new_region("again", properties={"auto.create.topics.enable": "false"})
    topic = setup.unique("again")
    flow = setup.flow(topic, source=source, target=rig.target.region)
    incarnations: list[Incarnation] = []
    with running(flow.file, ready=False) as mirror:
        for number, width in enumerate(WIDTHS):
            setup.create_topic(source, topic, width)
            with Incarnation(source, topic, number, width) as written:
                incarnations.append(written)
                until(
                    partial(is_found, flow, topic, number, width),
                    60,
                    partial(state, flow, topic, number),
                    alive=mirror,
                )
                if number + 1 < len(WIDTHS):
                    delete_topic(source, topic)
                    until(lambda: topic not in topics_of(source), 30, "the deletion")
                written.stop(deleted=number + 1 < len(WIDTHS))
            log.warning("T9: incarnation %d, %d records, %d wide", number, written.total, width)
        last = len(WIDTHS) - 1
        until(
            lambda: copies(flow, topic).get(last) == incarnations[-1].acked,
            60,
            lambda: f"{incarnations[-1].total} records, {ends(flow.target, flow.remote(topic))}",
            alive=mirror,
        )
        wanted = sum(WIDTHS[:-1])
        until(
            lambda: len(entries(flow)) >= wanted,
            30,
            lambda: f"{wanted} events: {entries(flow)}",
            alive=mirror,
        )
    left = entries(flow)
    assert len(left) == wanted
    reported = [_first_of_each(left, width) for width in WIDTHS[:-1]]
    got = copies(flow, topic)
    lost = [
        check_lost(old, number, got.get(number, {}), events)
        for number, (old, events) in enumerate(zip(incarnations, reported, strict=False))
    ]
    log.warning("T9: %d records, gone with their incarnation %s", copied(flow, topic), lost)


def _first_of_each(left: list[Entry], width: int) -> list[Entry]:
    """Take the next event of every partition of an incarnation out of the list."""
    found: list[Entry] = []
    for partition in range(width):
        index = next(i for i, entry in enumerate(left) if entry.partition == partition)
        found.append(left.pop(index))
    return found


@final
class Replacements:
    """Kills or stops one worker after the other and starts another one in its place, while the ``with`` block runs."""

    def __init__(self, workers: Workers, chance: random.Random) -> None:
        self._workers, self._chance = workers, chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replacements", daemon=True)
        self._error: BaseException | None = None
        self.count = 0

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._chance.uniform(0, 3)):
                end = self._workers.kill if self._chance.random() < 0.5 else self._workers.stop
                end(self._workers.running[0])
                self.count += 1
                self._workers.start(f"turn-{self.count}")
        except BaseException as error:  # noqa: BLE001 - shown by who waits for it
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(180)
        if self._error is not None:
            raise self._error


def test_no_incarnation_is_copied_twice_while_workers_are_replaced(
    setup: Setup, new_region: NewRegion
) -> None:
    source = new_region("again", properties={"auto.create.topics.enable": "false"})
    topic, width = setup.unique("again"), 4
    chance = random.Random(topic)
    properties = {**SHORT_SESSION, "tasks.max": "2"}
    flow = setup.flow(topic, properties, source=source)
    last: Values = {}
    with Workers(flow) as workers:
        setup.create_topic(source, topic, width)
        workers.start("one", "two")
        with Replacements(workers, chance) as replaced:
            for number in range(INCARNATIONS):
                with Incarnation(source, topic, number, width) as written:
                    until(
                        partial(is_found, flow, topic, number, width),
                        120,
                        partial(state, flow, topic, number),
                    )
                    written.wait_acked(chance.randrange(2_000))
                    if number + 1 < INCARNATIONS:
                        delete_topic(source, topic)
                        until(lambda: topic not in topics_of(source), 30, "the deletion")
                    written.stop(deleted=number + 1 < INCARNATIONS)
                    last = written.acked
                if number + 1 < INCARNATIONS:
                    setup.create_topic(source, topic, width)
        until(
            lambda: copies(flow, topic)[INCARNATIONS - 1] == last,
            120,
            partial(state, flow, topic, INCARNATIONS - 1),
            alive=workers.running[0],
        )
        workers.stop()
    log.warning("T9: %d workers replaced", replaced.count)
    for number, partitions in copies(flow, topic).items():
        for partition, values in partitions.items():
            once = [b"%d:%d" % (number, partition + width * n) for n in range(len(values))]
            assert values == once, f"incarnation {number}, partition {partition}"
