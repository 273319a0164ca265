"""The loss ledger on real brokers: what was lost is in it, exactly, and nothing else ever is."""

import json
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from mm2py.clock import SYSTEM_CLOCK
from mm2py.embedded.region import KafkaAddress
from tests.integration.cluster_changes import configs_of, delete_records, delete_topic, topics_of
from tests.integration.conftest import CreateTopic, NewRegion
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Logs,
    Record,
    Sent,
    committed_positions,
    ends,
    producer,
    read,
    wait_for_copy,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

PARTITIONS: Final = 5
COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
HOUR_MS: Final = 3_600_000
Unique = Callable[[str], str]


@dataclass(frozen=True)
class Entry:
    """One event as the command prints it."""

    kind: str
    partition: int
    first: int
    last: int
    policy: str


def entries(flow: Flow) -> list[Entry]:
    """Return the ledger as ``mm2py ledger`` prints it."""
    done = subprocess.run(
        [COMMAND, "ledger", str(flow.file), "-o", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["unknown"] == []
    names = Entry.__dataclass_fields__
    return [Entry(**{name: event[name] for name in names}) for event in document["events"]]


def wait_for_entries(flow: Flow, count: int, mirror: Mirror) -> list[Entry]:
    def found() -> list[Entry] | None:
        now = entries(flow)
        return now if len(now) >= count else None

    return until(found, 30, lambda: f"{count} events, there are {entries(flow)}", alive=mirror)


def set_config(region: KafkaAddress, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": region.bootstrap_servers})
    # confluent-kafka's annotation leaves the future's result open.
    answers = admin.incremental_alter_configs([resource])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for answer in cast("dict[object, Future[object]]", answers).values():
        answer.result(20)


# -- two kinds of source topic ----------------------------------------------------------------------


def write_compacted(region: KafkaAddress, topic: str, seed: int) -> None:
    """Write many versions of few keys into many segments, and wait for the first holes."""
    first = ends(region, topic)
    # Segments roll by the time in the records.
    at = SYSTEM_CLOCK.now_ms() - (20 - 7 * seed) * HOUR_MS
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
        )

    def has_holes() -> bool:
        now = ends(region, topic)
        return any(
            len([o for o in log.offsets if o >= first.get(p, 0)]) < 0.8 * (now[p] - first.get(p, 0))
            for p, log in read(region, topic).items()
        )

    set_config(region, topic, "cleanup.policy", "compact")
    until(has_holes, 40, "compaction of the source")
    # The truth must stand still from here on, and DeleteRecords needs it too.
    set_config(region, topic, "cleanup.policy", "delete")


def write_transactions(region: KafkaAddress, topic: str, seed: int) -> None:
    """Commit and abort transactions of several sizes; the last one on each partition is aborted."""
    chance = random.Random(seed)
    client = producer(region, transactional_id=secrets.token_hex(4))
    client.init_transactions(20)
    for turn in range(24):
        client.begin_transaction()
        for number in range(chance.randrange(1, 60)):
            value = b"%d-%d-%d" % (seed, turn, number)
            client.produce(topic, value=value, partition=(turn + number) % PARTITIONS)
        if turn % 3 == 2:
            client.flush(20)
            client.abort_transaction(20)
        else:
            client.commit_transaction(20)


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

    def wait_for_copy(self, mirror: Mirror) -> None:
        wait_for_copy(mirror, self.flow, self.topic, committed=self.committed)

    def wait_until_committed(self, mirror: Mirror) -> None:
        """Wait until the stored positions are the log ends, whatever stands there."""
        wanted = {p: end - 1 for p, end in ends(self.flow.source, self.topic).items()}
        until(
            lambda: committed_positions(self.flow, self.topic) == wanted,
            20,
            lambda: f"{wanted}, there is {committed_positions(self.flow, self.topic)}",
            alive=mirror,
        )


@pytest.fixture(params=["compacted", "transactional"])
def scene(
    request: pytest.FixtureRequest,
    new_region: NewRegion,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> Scene:
    compacted = request.param == "compacted"
    source = new_region("racing", properties={"log.cleaner.backoff.ms": "100"})
    topic = unique("race")
    config = {"segment.ms": "60000", "min.cleanable.dirty.ratio": "0.001", "retention.ms": "-1"}
    create_topic(source, topic, PARTITIONS, config=config if compacted else None)
    properties = {"sync.topic.configs.enabled": "false"}
    if not compacted:
        properties["{source}.consumer.isolation.level"] = "read_committed"
    flow = write_flow(tmp_path, source, region_b, topic, properties)
    create_topic(region_b, flow.remote(topic), PARTITIONS, config={"retention.ms": "-1"})
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


def test_the_ledger_names_exactly_what_retention_took_from_a_slow_flow(scene: Scene) -> None:
    seed = secrets.randbelow(1 << 30)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    scene.write(scene.flow.source, scene.topic, 0)
    with Mirror(scene.flow.file) as mirror:
        scene.wait_for_copy(mirror)
        scene.wait_until_committed(mirror)
        # Round one: the process is frozen while it happens.
        mirror.send(signal.SIGSTOP)
        copied, before = ends(scene.flow.source, scene.topic), scene.copy()
        scene.write(scene.flow.source, scene.topic, 1)
        truth = scene.truth()
        cuts = cut_ahead(scene, chance, copied)
        mirror.send(signal.SIGCONT)
        scene.wait_for_copy(mirror)
        first = wait_for_entries(scene.flow, PARTITIONS, mirror)
        lost = check_round(scene, truth, cuts, first, before, copied)
        scene.wait_until_committed(mirror)
        assert mirror.stop() == 0
    # Round two: it does not run.
    copied, before = ends(scene.flow.source, scene.topic), scene.copy()
    scene.write(scene.flow.source, scene.topic, 2)
    truth = scene.truth()
    cuts = cut_ahead(scene, chance, copied)
    with Mirror(scene.flow.file) as mirror:
        scene.wait_for_copy(mirror)
        second = wait_for_entries(scene.flow, 2 * PARTITIONS, mirror)[PARTITIONS:]
        lost += check_round(scene, truth, cuts, second, before, copied)
        assert mirror.stop() == 0
    assert lost
    assert entries(scene.flow) == first + second
    ledger = configs_of(scene.flow.target, f"mm2py-ledger.{scene.flow.source_alias}.internal")
    assert (ledger["cleanup.policy"], ledger["retention.ms"]) == ("delete", "-1")


def test_holes_markers_and_aborted_data_are_no_losses(scene: Scene) -> None:
    for turn in range(2):
        scene.write(scene.flow.source, scene.topic, turn)
        with Mirror(scene.flow.file) as mirror:
            scene.wait_for_copy(mirror)
            scene.wait_until_committed(mirror)
            assert mirror.stop() == 0
    # Everything was copied: that retention takes it now is no loss, whatever stood at the end.
    for partition, end in ends(scene.flow.source, scene.topic).items():
        delete_records(scene.flow.source, scene.topic, partition, end)
    with Mirror(scene.flow.file) as mirror:
        mirror.wait_ready()
        write(scene.flow.source, scene.topic, (Sent(p, b"after") for p in range(PARTITIONS)))
        scene.wait_for_copy(mirror)
        assert mirror.stop() == 0
        assert not mirror.complaints()
    assert entries(scene.flow) == []


# -- other events -----------------------------------------------------------------------------------


class Turns:
    """A topic that is deleted and created again; every incarnation has more records than the last."""

    def __init__(self, flow: Flow, topic: str, create: CreateTopic) -> None:
        self.flow, self.topic, self._create = flow, topic, create
        self.wanted: dict[int, list[bytes | None]] = {}
        self._turn = 0

    def next(self, partitions: int) -> None:
        source, topic = self.flow.source, self.topic
        if self._turn:
            delete_topic(source, topic)
            until(lambda: topic not in topics_of(source), 20, "deletion")
        self._create(source, topic, partitions)
        self._turn += 1
        records = [
            Sent(n % partitions, b"%d:%d" % (self._turn, n)) for n in range(600 * self._turn)
        ]
        write(source, topic, records)
        for record in records:
            self.wanted.setdefault(record.partition, []).append(record.value)

    def wait_for_copy(self, mirror: Mirror) -> None:
        remote, copy = self.flow.remote(self.topic), dict[int, list[bytes | None]]()

        def arrived() -> bool:
            now = ends(self.flow.target, remote)
            if sum(now.values()) < sum(map(len, self.wanted.values())):
                return False
            logs = read(self.flow.target, remote)
            copy.update({p: [r.value for r in log.records] for p, log in logs.items()})
            return True

        def state() -> str:
            return f"{ends(self.flow.target, remote)}, ledger {entries(self.flow)}"

        until(arrived, 40, state, alive=mirror)
        assert copy == self.wanted


def test_every_incarnation_of_a_topic_is_copied_whole_and_in_order(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("again")
    flow = write_flow(tmp_path, region_a, region_b, topic)
    turns = Turns(flow, topic, create_topic)
    turns.next(3)
    with Mirror(flow.file) as mirror:
        turns.wait_for_copy(mirror)
        # As many partitions, fewer, more: a partition comes back after its topic had none of that number.
        for partitions in (3, 2, 4):
            turns.next(partitions)
            turns.wait_for_copy(mirror)
        wait_for_entries(flow, 3 + 2 + 3, mirror)
        until(lambda: sorted(committed_positions(flow, topic)) == [0, 1, 2, 3], 10, "commit")
        assert mirror.stop() == 0
    # While nobody looks, and to more than the stored position: only its id tells.
    turns.next(4)
    with Mirror(flow.file) as mirror:
        turns.wait_for_copy(mirror)
        found = wait_for_entries(flow, 3 + 2 + 3 + 4, mirror)
        assert mirror.stop() == 0
    assert {(entry.kind, entry.policy) for entry in found} == {
        ("recreated", "recreate.policy=continue")
    }
    assert all(entry.last == entry.first - 1 for entry in found), "all that was there was copied"
    assert sorted(entry.partition for entry in found) == [0] * 4 + [1] * 4 + [2] * 3 + [3]


def test_a_too_large_record_is_one_event_however_often_it_is_met(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("large")
    create_topic(region_a, topic, 3)
    flow = write_flow(tmp_path, region_a, region_b, topic, {"sync.topic.configs.enabled": "false"})
    create_topic(region_b, flow.remote(topic), 3, config={"max.message.bytes": "20000"})
    small = [Sent(n % 3, b"%d" % n) for n in range(90)]
    write(region_a, topic, small)
    write(region_a, topic, [Sent(1, random.Random(1).randbytes(50_000))])
    write(region_a, topic, small)
    expected = [Entry("too-large", 1, 30, 30, "partition.failure.policy=isolate")]
    for _ in range(2):
        with Mirror(flow.file) as mirror:
            assert wait_for_entries(flow, 1, mirror) == expected
            mirror.wait_for_log("partition failed")
            until(
                lambda: ends(region_b, flow.remote(topic)) == {0: 60, 1: 30, 2: 60},
                30,
                lambda: f"the others: {ends(region_b, flow.remote(topic))}",
                alive=mirror,
            )
            assert mirror.stop() == 0
    assert entries(flow) == expected
