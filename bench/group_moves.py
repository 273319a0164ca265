"""A consumer group moves to the target at random moments: how many records it reads again there, and how many it skips.

Flow: numbered records at a steady rate -> a consumer at the tip that commits -> it stops -> a while later the record at the
group's offset on the target is compared with the last commit. Java syncs groups every second here, its shortest interval;
mm2py has its defaults.
"""

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.mirror_process import MirrorProcess
from bench.steady import JAVA, TARGET_ALIAS, Tool, wait_until
from bench.topics import Topics

RECORDS_PER_S: Final = 2_000
COMMIT_S: Final = 0.5
SETTLE_S: Final = 3.0
"""From the end of the consumer to the look at the target."""
_TICK_S: Final = 0.02
_JAVAS_SHORTEST: Final = (
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.interval.seconds",
    "refresh.groups.interval.seconds",
)


@dataclass(frozen=True, slots=True)
class GroupMoves:
    """Records read again and skipped, one number per moment."""

    read_again: tuple[int, ...]
    skipped: tuple[int, ...]


def measure_moves(tool: Tool, clusters: Clusters, folder: Path, moments: int) -> GroupMoves:
    """Move one group of a tool so many times."""
    alias = f"{tool.name}-moves"
    topic = f"{alias}.orders"
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=(TARGET_ALIAS, clusters.target_endpoint()),
        topics=topic,
    )
    with file.open("a", encoding="latin-1") as lines:
        flow = f"{alias}->{TARGET_ALIAS}"
        lines.write(f"{flow}.groups = {alias}\n{flow}.sync.group.offsets.enabled = true\n")
        for key in _JAVAS_SHORTEST if tool is JAVA else ():
            lines.write(f"{flow}.{key} = 1\n")
    Topics(clusters.source.bootstrap_servers).create_all([topic], 1)
    with tool.start(file, file.with_suffix(".log")) as process:
        return _Moves(clusters, topic, alias, process).run(moments)


@final
class _Moves:
    """One group that is moved again and again; its copy has the name of the alias in front."""

    def __init__(self, clusters: Clusters, topic: str, group: str, process: MirrorProcess) -> None:
        self._source = clusters.source.bootstrap_servers
        self._target = clusters.target.bootstrap_servers
        self._topic, self._copy, self._group = topic, f"{group}.{topic}", group
        self._process, self._end = process, threading.Event()
        self._chance = random.Random(1)

    def run(self, moments: int) -> GroupMoves:
        producing = threading.Thread(target=self._produce, daemon=True)
        producing.start()
        again: list[int] = []
        skipped: list[int] = []
        try:
            for _ in range(moments):
                committed = self._consume(self._chance.uniform(2.0, 4.0))
                time.sleep(SETTLE_S)
                first = self._first_at_target()
                again.append(max(0, committed - first))
                skipped.append(max(0, first - committed))
        finally:
            self._end.set()
            producing.join()
        return GroupMoves(tuple(again), tuple(skipped))

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._source, "linger.ms": 5, "log_level": 2})
        number, due = 0, time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            due += _TICK_S
            for _ in range(int(RECORDS_PER_S * _TICK_S)):
                producer.produce(self._topic, b"%d" % number, partition=0)
                number += 1
            producer.poll(0)
        producer.flush(30)

    def _consume(self, seconds: float) -> int:
        """Read at the tip until the group is known at the target and ``seconds`` have passed; return its last commit."""
        client = self._client(self._source, self._group)
        client.subscribe([self._topic])
        committed, commit_due = 0, time.monotonic()
        end, look_due, leave = time.monotonic() + 120, 0.0, 0.0
        while time.monotonic() < (leave or end):
            self._process.check_running()
            for message in client.consume(1_000, 0.05):
                if message.error() is None:
                    committed = int(message.value() or b"0") + 1
            if time.monotonic() >= commit_due and committed:
                client.commit(asynchronous=False)
                commit_due = time.monotonic() + COMMIT_S
            if not leave and time.monotonic() > look_due:
                look_due = time.monotonic() + 1
                leave = time.monotonic() + seconds if self._offset_at_target() >= 0 else 0.0
        if not leave:
            raise RuntimeError(f"group {self._group} did not come to the target")
        client.commit(asynchronous=False)
        client.close()
        return committed

    def _offset_at_target(self) -> int:
        client = self._client(self._target, self._group)
        try:
            (found,) = client.committed([TopicPartition(self._copy, 0)], timeout=10)
        except KafkaException:
            return -1
        finally:
            client.close()
        return found.offset

    def _first_at_target(self) -> int:
        """Return the number of the record that the group would read first at the target."""
        client = self._client(self._target, "bench-reads-alone")
        client.assign([TopicPartition(self._copy, 0, self._offset_at_target())])
        values: list[int] = []

        def is_there() -> bool:
            found = [it for it in client.consume(1, 0.5) if it.error() is None]
            values.extend(int(it.value() or b"0") for it in found)
            return bool(values)

        wait_until(is_there, "a record at the target")
        client.close()
        return values[0]

    def _client(self, servers: str, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "log_level": 2,
            }
        )
