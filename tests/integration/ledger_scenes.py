"""The loss ledger beside the truth: source topics with holes or aborts, cuts ahead of a flow, what must be reported.

Flow: ``Scene`` -> write, freeze or stop the mirror, ``cut_ahead`` -> go on -> ``check_round``.
"""

import json
import random
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import delete_records, set_config
from tests.integration.main_job import CODECS
from tests.integration.mirror_process import PROMPT, Flow, Mirror, command_here, until, write_flow
from tests.integration.traffic import (
    Logs,
    Record,
    Sent,
    ends,
    producer,
    read,
    wait_covered,
    wait_for_copy,
    wait_for_markers,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

PARTITIONS: Final = 5
HOUR_MS: Final = 3_600_000
MOST_ROUNDS: Final = 12


@dataclass(frozen=True)
class Entry:
    """One event as the command prints it."""

    kind: str
    topic: str
    partition: int
    first: int
    last: int
    policy: str


def entries(flow: Flow) -> list[Entry]:
    """Return the ledger as ``mm2py ledger`` prints it."""
    done = command_here("ledger", flow.file, "-o", "json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["unknown"] == []
    names = Entry.__dataclass_fields__
    return [Entry(**{name: event[name] for name in names}) for event in document["events"]]


def wait_for_entries(flow: Flow, count: int, mirror: Mirror) -> list[Entry]:
    until(
        lambda: len(entries(flow)) >= count,
        90,
        lambda: f"{count} events, there are {entries(flow)}",
        alive=mirror,
    )
    return entries(flow)


# -- two kinds of source topic ----------------------------------------------------------------------


def write_compacted(region: KafkaAddress, topic: str, seed: int) -> None:
    """Write many versions of few keys into many segments, and wait for the first holes."""
    first = ends(region, topic)
    # Segments roll by the time in the records, which must be over when the next round begins.
    at = SYSTEM_CLOCK.now_ms() - (7 * (MOST_ROUNDS - seed) - 1) * HOUR_MS
    for turn in range(6):
        write(
            region,
            topic,
            (
                Sent(
                    number % PARTITIONS,
                    b"%d-%d-%d" % (seed, turn, number),
                    b"%d" % (number % (40 + 13 * turn)),
                    (),
                    at + turn * HOUR_MS,
                )
                for number in range(600)
            ),
            compression_type=CODECS[turn % len(CODECS)],
        )

    def has_holes() -> bool:
        now = ends(region, topic)
        return any(
            len([o for o in log.offsets if o >= first.get(p, 0)]) < 0.8 * (now[p] - first.get(p, 0))
            for p, log in read(region, topic).items()
        )

    set_config(region, topic, "cleanup.policy", "compact")
    until(has_holes, 90, "compaction of the source")
    # The truth must stand still from here on, and DeleteRecords needs it too.
    set_config(region, topic, "cleanup.policy", "delete")


def write_transactions(region: KafkaAddress, topic: str, seed: int) -> None:
    """Commit and abort transactions of several sizes; the last one on each partition is aborted."""
    chance = random.Random(seed)
    client = producer(region, transactional_id=secrets.token_hex(4))
    client.init_transactions(60)
    for turn in range(24):
        client.begin_transaction()
        for number in range(chance.randrange(1, 60)):
            value = b"%d-%d-%d" % (seed, turn, number)
            client.produce(topic, value=value, partition=(turn + number) % PARTITIONS)
        if turn % 3 == 2:
            client.flush(60)
            client.abort_transaction(60)
        else:
            client.commit_transaction(60)
    wait_for_markers(region, topic)


Writer = Callable[[KafkaAddress, str, int], None]


@dataclass(frozen=True)
class Scene:
    """A source topic of one kind and a flow that copies it."""

    flow: Flow
    topic: str
    write: Writer
    committed: bool

    def truth(self) -> Logs:
        return read(self.flow.source, self.topic, committed=self.committed)

    def copy(self) -> dict[int, list[Record]]:
        logs = read(self.flow.target, self.flow.remote(self.topic))
        return {p: log.records for p, log in logs.items()}

    def wait_for_copy(self, mirror: Mirror) -> tuple[Logs, Logs]:
        return wait_for_copy(mirror, self.flow, self.topic, committed=self.committed)

    def wait_until_committed(self, mirror: Mirror) -> None:
        """Wait until the stored positions are the log ends, whatever stands there."""
        wait_covered(mirror, self.flow, self.topic)


def build_scene(
    kind: str,
    folder: Path,
    source: KafkaAddress,
    target: KafkaAddress,
    topic: str,
    create_topic: CreateTopic,
) -> Scene:
    """Create the topic of that kind (``compacted`` or ``transactional``) and write the flow's file."""
    compacted = kind == "compacted"
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    create_topic(source, topic, PARTITIONS, config=config if compacted else None)
    # A Fetch that waits at the broker when the flow is frozen must be over before the next record is written.
    properties = {
        **PROMPT,
        "sync.topic.configs.enabled": "false",
        "{source}.consumer.fetch.max.wait.ms": "20",
    }
    if not compacted:
        properties["{source}.consumer.isolation.level"] = "read_committed"
    flow = write_flow(folder, source, target, topic, properties)
    create_topic(target, flow.remote(topic), PARTITIONS, config={"retention.ms": "-1"})
    return Scene(flow, topic, write_compacted if compacted else write_transactions, not compacted)


def cut_ahead(scene: Scene, chance: random.Random, copied: Mapping[int, int]) -> dict[int, int]:
    """Delete records up to a random offset beyond what was copied; return the new log starts."""
    cuts: dict[int, int] = {}
    for partition, end in ends(scene.flow.source, scene.topic).items():
        cuts[partition] = chance.randrange(copied[partition] + 1, end + 1)
        delete_records(scene.flow.source, scene.topic, partition, cuts[partition])
    return cuts


def check_round(
    scene: Scene,
    truth: Logs,
    cuts: Mapping[int, int],
    reported: list[Entry],
    before: Mapping[int, list[Record]],
    copied: Mapping[int, int],
) -> int:
    """The ledger names what is lost, no more and no less; the rest is on the target. Returns the lost."""
    copy, lost_records = scene.copy(), 0
    for partition, cut in cuts.items():
        (entry,) = [e for e in reported if e.partition == partition]
        assert (entry.kind, entry.policy) == ("retention", "gap.policy=continue")
        offsets, records = truth[partition].offsets, truth[partition].records
        lost = [o for o in offsets if copied[partition] <= o < cut]
        assert entry.last == cut - 1
        assert [o for o in offsets if entry.first <= o <= entry.last] == lost
        survivors = [r for o, r in zip(offsets, records, strict=True) if o >= cut]
        assert copy[partition] == before[partition] + survivors
        lost_records += len(lost)
    return lost_records


def frozen_round(scene: Scene, mirror: Mirror, chance: random.Random, turn: int) -> int:
    """Freeze the mirror, which has copied everything, write and cut, let it go on; return the lost records."""
    known = len(entries(scene.flow))
    mirror.send(signal.SIGSTOP)
    copied, before = ends(scene.flow.source, scene.topic), scene.copy()
    scene.write(scene.flow.source, scene.topic, turn)
    truth = scene.truth()
    cuts = cut_ahead(scene, chance, copied)
    mirror.send(signal.SIGCONT)
    scene.wait_for_copy(mirror)
    reported = wait_for_entries(scene.flow, known + PARTITIONS, mirror)[known:]
    scene.wait_until_committed(mirror)
    return check_round(scene, truth, cuts, reported, before, copied)
