"""The real Java MirrorMaker 2 takes over from mm2py on one file, and mm2py from it: one start a task, each record once.

Flow: mm2py copies, and again, with topics that appear while it runs -> it stops in order, a backlog is written -> Java -> more
records -> mm2py. The starts of tasks are counted in the logs of the two that took over.
"""

import re
from pathlib import Path
from secrets import token_hex
from typing import Final

import pytest

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import start_mm2py
from bench.topics import Topics
from tests.integration.java_mm2 import DEADLINE_S, JAVA_STOPPED, PARTITIONS, read_values, write_file
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, commit, records_of, write
from tests.kit.kafka.region import KafkaAddress

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(500),
]

IDENTITY: Final = (
    "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
)
OWN_TOPIC: Final = "positions-in-a-topic-of-their-own"
FILES: Final = {
    "prefixes": ("{flow}.emit.checkpoints.interval.seconds = 1",),
    "same-names-both-ways": (IDENTITY, "{back}.enabled = true", "{back}.topics = none-{unique}"),
    OWN_TOPIC: ("{flow}.offsets.storage.topic = offsets-{unique}",),
    "exactly-once-and-a-rate": (
        "{target}.exactly.once.source.support = enabled",
        "{flow}.flow.max.bytes.per.second = 4000000",
        "{flow}.auto.offset.reset = latest",
    ),
}


class TakeOver:
    """One flow of one file, with the records that were written to each of its topics."""

    def __init__(self, regions: tuple[KafkaAddress, KafkaAddress], folder: Path, kind: str) -> None:
        self.unique = token_hex(3)
        self.source, self.target = regions
        self.folder, self.own_names = folder, IDENTITY in FILES[kind]
        self.a, self.b = f"a{self.unique}", f"b{self.unique}"
        self.written: dict[str, list[int]] = {}
        self.logs = 0
        flow, back = f"{self.a}->{self.b}", f"{self.b}->{self.a}"
        names = {"flow": flow, "back": back, "target": self.b, "unique": self.unique}
        lines = [it.format(**names) for it in FILES[kind]]
        self.file = folder / "mm2.properties"
        write_file(
            self.file,
            {self.a: self.source, self.b: self.target},
            f"{flow}.topics = .*-{self.unique}",
            f"{flow}.tasks.max = 2",
            *([] if "{back}.enabled = true" in FILES[kind] else [f"{back}.enabled = false"]),
            *lines,
        )

    def create(self, *names: str) -> None:
        for name in names:
            topic = f"{name}-{self.unique}"
            Topics(self.source.bootstrap_servers).create(topic, PARTITIONS)
            self.written[topic] = [0] * PARTITIONS

    def produce(self, per_partition: int) -> None:
        for topic, counts in self.written.items():
            for partition, count in enumerate(counts):
                more = range(count, count + per_partition)
                write(self.source, topic, [Sent(partition, b"%d" % it, b"key") for it in more])
                counts[partition] += per_partition

    def commit(self, *groups: str) -> None:
        topic = next(iter(self.written))
        for group in groups:
            commit(self.source, group, topic, {0: 5})

    def copied(self, topic: str) -> list[list[bytes]]:
        remote = topic if self.own_names else f"{self.a}.{topic}"
        return list(read_values(self.target, remote).values())

    def wait_until_copied(self) -> None:
        """Wait for the last record of each partition: what was copied twice lies before it."""

        def last() -> bool:
            return all(
                copied[partition][-1:] == [b"%d" % (count - 1)]
                for topic, counts in self.written.items()
                for copied in [self.copied(topic)]
                for partition, count in enumerate(counts)
            )

        until(last, DEADLINE_S, "the last record of each partition")

    def assert_each_once(self) -> None:
        for topic, counts in self.written.items():
            assert self.copied(topic) == [[b"%d" % it for it in range(n)] for n in counts], topic

    def beats(self) -> int:
        own = self.a.encode()
        return sum(own in (it.key or b"") for it in records_of(self.target, "heartbeats"))

    def log(self, who: str) -> Path:
        self.logs += 1
        return self.folder / f"{who}-{self.logs}.log"

    def ours(self) -> MirrorProcess:
        return start_mm2py(self.file, self.log("mm2py"))

    def java(self) -> MirrorProcess:
        return start_java(self.file, self.log("java"), jvm_flags=QUICK_START_FLAGS)


@pytest.mark.parametrize("kind", [it for it in FILES if it != OWN_TOPIC])
def test_a_take_over_starts_each_task_once_and_doubles_no_record(
    region_a: KafkaAddress, region_b: KafkaAddress, tmp_path: Path, kind: str
) -> None:
    flow = TakeOver((region_a, region_b), tmp_path, kind)
    flow.create("orders", "clicks")
    if kind == "prefixes":
        flow.commit("billing-" + flow.unique)
    for names in ((), ("in", "za", "jp", "eu")):
        with flow.ours() as ours:
            until(lambda: "source task started" in ours.log(), DEADLINE_S, "tasks run")
            flow.produce(100)
            flow.wait_until_copied()
            flow.create(*names)
            flow.produce(100)
            flow.wait_until_copied()
            assert ours.stop() == 0
    flow.produce(2_000)  # the backlog
    with flow.java() as java:
        flow.wait_until_copied()
        # Its connectors have computed their task configs long before its sixth heartbeat.
        until(lambda: "Started MirrorSourceConnector" in java.log(), DEADLINE_S)
        beats = flow.beats()
        until(lambda: flow.beats() > beats + 5, DEADLINE_S, "six heartbeats of Java's")
        flow.produce(100)
        flow.wait_until_copied()
        flow.assert_each_once()
        assert java.stop() == JAVA_STOPPED
        own = rf"-{flow.a}->{flow.b}-.* Creating task Mirror(\w+)Connector-(\d)"
        starts = re.findall(own, java.log())
    assert starts.count(("Source", "0")) == starts.count(("Source", "1")) == 1, starts
    assert len(starts) == len(set(starts)), starts
    flow.produce(500)
    with flow.ours() as ours:
        flow.wait_until_copied()
        flow.assert_each_once()
        assert ours.stop() == 0
        own = rf"{flow.a}->{flow.b}.*MirrorSourceConnector\|(task-\d)\] source task started"
        starts = re.findall(own, ours.log())
    assert sorted(starts) == ["task-0", "task-1"]


def test_positions_in_a_topic_of_their_own_are_continued_by_either(
    region_a: KafkaAddress, region_b: KafkaAddress, tmp_path: Path
) -> None:
    """Java asks that topic first: what we stored elsewhere alone, it would copy again."""
    flow = TakeOver((region_a, region_b), tmp_path, OWN_TOPIC)
    flow.create("orders")
    for start, code in ((flow.java, JAVA_STOPPED), (flow.ours, 0), (flow.java, JAVA_STOPPED)):
        flow.produce(200)
        with start() as mirror:
            flow.wait_until_copied()
            assert mirror.stop() == code
    flow.assert_each_once()
