"""T9: a topic is deleted and created again under load while workers are replaced."""

import logging
import random
import threading
from functools import partial
from typing import Self, final

import pytest

from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.incarnations import Incarnation, Values
from tests.integration.mirror_process import SHORT_SESSION, Flow, until, until_equal
from tests.integration.setups import Setup
from tests.integration.several_workers import Workers
from tests.integration.traffic import ends, read
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

INCARNATIONS = 12


def copies(flow: Flow, topic: str) -> dict[int, Values]:
    """Return what is on the target, by incarnation and partition, in order; incarnations never mix."""
    found: dict[int, Values] = {}
    for partition, one in read(flow.target, flow.remote(topic)).items():
        last = 0
        for record in one.records:
            value = record.value or b""
            number = int(value.split(b":")[0])
            assert number >= last, f"partition {partition}: {value!r} behind incarnation {last}"
            last = number
            found.setdefault(number, {}).setdefault(partition, []).append(value)
    return found


def is_found(flow: Flow, topic: str, number: int, width: int) -> bool:
    """Whether every partition of an incarnation is copied."""
    return len(copies(flow, topic).get(number, {})) == width


def state(flow: Flow, topic: str, number: int) -> str:
    return f"incarnation {number}, there are {ends(flow.target, flow.remote(topic))}"


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
        until_equal(lambda: copies(flow, topic)[INCARNATIONS - 1], last, alive=workers.running[0])
        workers.stop()
    log.warning("T9: %d workers replaced", replaced.count)
    for number, partitions in copies(flow, topic).items():
        for partition, values in partitions.items():
            once = [b"%d:%d" % (number, partition + width * n) for n in range(len(values))]
            assert values == once, f"incarnation {number}, partition {partition}"
