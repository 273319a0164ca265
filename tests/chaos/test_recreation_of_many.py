"""T9 with three hundred topics: all are deleted and created again under load, while others keep flowing."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.integration.cluster_changes import create_topics, delete_topics, topics_of
from tests.integration.far_regions import Rig
from tests.integration.incarnations import Incarnation
from tests.integration.ledger_scenes import Entry, entries
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.setups import Setup
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

TOPICS: Final = 300
OTHERS: Final = 50
INCARNATIONS: Final = 3
PER_TICK: Final = 20
FLOW_S: Final = 60.0
"""A loaded machine's; what it took is logged."""
UP_S: Final = 120.0

Values = dict[str, list[bytes]]


class Writer(Incarnation):
    """Writes to partition 0 of all topics in turn, 1,000 records/s together."""

    def __init__(self, region: KafkaAddress, topics: Sequence[str], number: int) -> None:
        super().__init__(region, "", number, 1, per_tick=PER_TICK)
        self._topics = topics
        self.by_topic: Values = {topic: [] for topic in topics}

    @property
    def counts(self) -> dict[str, int]:
        """How many records of each topic were acknowledged."""
        return {topic: len(values) for topic, values in self.by_topic.items()}

    def _place(self, number: int) -> tuple[str, int]:
        return self._topics[number % len(self._topics)], 0

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.by_topic[message.topic() or ""].append(message.value() or b"")


def end_of(consumer: Consumer, name: str) -> int:
    """Return the log end of a copy; 0 while it has no leader."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30)[1]
    except KafkaException:
        return 0


def read_all(flow: Flow, topics: Sequence[str]) -> Values:
    """Return what the copies of topics of one partition hold now, by the topic's name on the source."""
    settings = {"bootstrap.servers": flow.target.bootstrap_servers, "group.id": "many"}
    consumer = Consumer(settings | {"enable.auto.commit": "false", "log_level": "0"})
    names = {flow.remote(topic): topic for topic in topics}
    found: Values = {topic: [] for topic in topics}
    try:
        there = names.keys() & topics_of(flow.target).keys()
        ends = {name: end for name in there if (end := end_of(consumer, name))}
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in ends])
        deadline = time.monotonic() + FLOW_S
        while any(len(found[names[name]]) < end for name, end in ends.items()):
            assert time.monotonic() < deadline, "the copies were not read in time"
            for message in consumer.consume(5_000, timeout=0.2):
                assert message.error() is None, message.error()
                found[names[message.topic() or ""]].append(message.value() or b"")
    finally:
        consumer.close()
    return found


def of(number: int, values: Sequence[bytes]) -> list[bytes]:
    return [value for value in values if value.startswith(b"%d:" % number)]


def wait_until(mirror: Mirror, lacking: Callable[[], list[str]], timeout_s: float) -> float:
    """Wait until no topic is lacking; return the seconds."""
    began = time.monotonic()

    def names() -> str:
        missing = lacking()
        return f"{len(missing)} topics, the first is {missing[:1]}"

    until(lambda: not lacking(), timeout_s, names, alive=mirror)
    return time.monotonic() - began


def check_topic(written: Sequence[Values], topic: str, copy: list[bytes], told: list[Entry]) -> int:
    """Incarnations follow each other, each from its beginning; the ledger says where each but the last ended."""
    assert copy == sorted(copy, key=lambda value: int(value.split(b":")[0])), f"{topic} is mixed"
    assert len(told) == len(written) - 1, f"{topic}: {told}"
    lost = 0
    for number, acked in enumerate(each[topic] for each in written):
        have = of(number, copy)
        # The last may have been stored without its answer having come.
        both = min(len(have), len(acked))
        assert have[:both] == acked[:both], f"{topic}, incarnation {number}"
        if number == len(written) - 1:
            assert have == acked, f"{topic}, incarnation {number}"
            break
        entry = told[number]
        assert (entry.kind, entry.policy) == ("recreated", "recreate.policy=continue")
        assert entry.first == len(have), f"{topic}, incarnation {number}: {entry}"
        assert entry.first - 1 <= entry.last <= max(len(acked), len(have))
        lost += max(len(acked) - len(have), 0)
    return lost


def test_three_hundred_topics_created_again_are_copied_whole_while_others_keep_flowing(
    setup: Setup, rig: Rig, new_region: NewRegion
) -> None:
    # Else the load would create them again, before the operator.
    source = new_region("again", properties={"auto.create.topics.enable": "false"})
    prefix = setup.unique("many")
    topics = [f"{prefix}-{number:03}" for number in range(TOPICS)]
    others = [f"{prefix}-other-{number:02}" for number in range(OTHERS)]
    flow = setup.flow(f"{prefix}-.*", {"tasks.max": "2"}, source=source, target=rig.target.region)
    create_topics(source, others)
    written: list[Writer] = []
    with Mirror(flow.file) as mirror, Writer(source, others, 0) as untouched:

        def behind(counts: dict[str, int]) -> list[str]:
            copies = read_all(flow, others)
            return [topic for topic, count in counts.items() if len(copies[topic]) < count]

        def not_found(number: int) -> list[str]:
            copies = read_all(flow, topics)
            return [topic for topic in topics if not of(number, copies[topic])]

        mirror.wait_ready()
        for number in range(INCARNATIONS):
            create_topics(source, topics)
            with Writer(source, topics, number) as writer:
                written.append(writer)
                counts = untouched.counts
                flowing_s = wait_until(mirror, lambda: behind(counts), FLOW_S)  # noqa: B023 - called here
                found_s = flowing_s + wait_until(mirror, lambda: not_found(number), UP_S)  # noqa: B023
                is_last = number == INCARNATIONS - 1
                if not is_last:
                    delete_topics(source, topics)
                    until(lambda: not set(topics) & topics_of(source).keys(), 60, "the deletions")
                writer.stop(deleted=not is_last)
            log.warning(
                "T9: incarnation %d of %d topics copied after %.1f s, the %d others after %.1f s",
                number,
                TOPICS,
                found_s,
                OTHERS,
                flowing_s,
            )
        untouched.stop(deleted=False)
        last = written[-1].by_topic
        wait_until(
            mirror,
            lambda: [
                t
                for t, copy in read_all(flow, topics).items()
                if of(INCARNATIONS - 1, copy) != last[t]
            ],
            UP_S,
        )
        wait_until(mirror, lambda: behind(untouched.counts), UP_S)
        wanted = TOPICS * (INCARNATIONS - 1)
        until(
            lambda: len(entries(flow)) >= wanted,
            UP_S,
            lambda: f"{len(entries(flow))} of {wanted} events",
            alive=mirror,
        )
        assert mirror.stop() == 0
    assert read_all(flow, others) == untouched.by_topic
    told: dict[str, list[Entry]] = {}
    for entry in entries(flow):
        told.setdefault(entry.topic, []).append(entry)
    assert set(told) == set(topics)
    copies = read_all(flow, topics)
    values = [each.by_topic for each in written]
    lost = [check_topic(values, topic, copies[topic], told[topic]) for topic in topics]
    log.warning(
        "T9: %d records, %d gone with their incarnation", sum(map(len, copies.values())), sum(lost)
    )
