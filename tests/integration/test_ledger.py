"""The loss ledger on real brokers: what was lost is in it, exactly, and nothing else ever is."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

import pytest

from tests.integration.cluster_changes import configs_of, delete_records, delete_topic, topics_of
from tests.integration.exactly_once import make_exactly_once
from tests.integration.ledger_scenes import (
    PARTITIONS,
    Entry,
    Scene,
    build_scene,
    check_round,
    cut_ahead,
    entries,
    frozen_round,
    wait_for_entries,
)
from tests.integration.mirror_process import (
    PROMPT,
    Flow,
    Mirror,
    command_here,
    running,
    until,
    until_equal,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM, Workers
from tests.integration.traffic import (
    Sent,
    assert_equal,
    commit,
    committed,
    committed_positions,
    ends,
    read,
    write,
)
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(params=["compacted", pytest.param("transactional", marks=pytest.mark.faults)])
def scene(request: pytest.FixtureRequest, setup: Setup) -> Scene:
    where = setup.folder, setup.a, setup.b
    return build_scene(request.param, *where, setup.unique("race"), setup.create_topic)


@pytest.mark.faults
@pytest.mark.fuzz
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.chaos)])
def test_the_ledger_names_exactly_what_retention_took_from_a_slow_flow(
    scene: Scene, seed: int, rounds: int
) -> None:
    chance = random.Random(seed)
    scene.write(scene.flow.source, scene.topic, 0)
    with running(scene.flow.file, ready=False) as mirror:
        scene.wait_for_copy(mirror)
        scene.wait_until_committed(mirror)
        # The process is frozen while it happens.
        lost = sum(frozen_round(scene, mirror, chance, turn) for turn in range(1, rounds + 1))
        first = entries(scene.flow)
    # The last time it does not run.
    copied, before = ends(scene.flow.source, scene.topic), scene.copy()
    scene.write(scene.flow.source, scene.topic, rounds + 1)
    truth = scene.truth()
    cuts = cut_ahead(scene, chance, copied)
    with running(scene.flow.file, ready=False) as mirror:
        scene.wait_for_copy(mirror)
        second = wait_for_entries(scene.flow, len(first) + PARTITIONS, mirror)[len(first) :]
        lost += check_round(scene, truth, cuts, second, before, copied)
    assert lost
    assert entries(scene.flow) == first + second
    ledger = configs_of(scene.flow.target, f"mm2py-ledger.{scene.flow.source_alias}.internal")
    assert (ledger["cleanup.policy"], ledger["retention.ms"]) == ("delete", "-1")


def test_all_arrives_and_holes_markers_and_aborted_data_are_no_losses(scene: Scene) -> None:
    for turn in range(2):
        scene.write(scene.flow.source, scene.topic, turn)
        with running(scene.flow.file, ready=False) as mirror:
            truth, copy = scene.wait_for_copy(mirror)
            if not turn:  # later the cleaner takes of the source what was copied
                assert_equal(truth, copy)
            scene.wait_until_committed(mirror)
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
            until(lambda: topic not in topics_of(source), 90, "deletion")
        self._create(source, topic, partitions)
        self.more(partitions)

    def more(self, partitions: int) -> None:
        self._turn += 1
        records = [
            Sent(n % partitions, b"%d:%d" % (self._turn, n)) for n in range(600 * self._turn)
        ]
        # Order is the proof, and a topic that was just made refuses its first batches.
        write(self.flow.source, self.topic, records, enable_idempotence=True)
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

        until(arrived, 90, state, alive=mirror)
        assert {p: _first_difference(copy[p], wanted) for p, wanted in self.wanted.items()} == (
            dict.fromkeys(self.wanted)
        )


def _first_difference(copy: Sequence[bytes | None], wanted: Sequence[bytes | None]) -> str | None:
    """Say where a copy leaves what it should be; None where it does not."""
    for at, (found, right) in enumerate(zip_longest(copy, wanted, fillvalue=b"-")):
        if found != right:
            return f"{found!r} for {right!r} at {at} of {len(copy)} for {len(wanted)}: {copy[at : at + 5]}"
    return None


def test_every_incarnation_of_a_topic_is_copied_whole_and_in_order(setup: Setup) -> None:
    topic = setup.unique("again")
    # The connector looks at any moment of it, so that tasks are dealt anew between two incarnations.
    looks = {"refresh.topics.interval.seconds": "1", **PROMPT}
    flow = setup.flow(topic, looks)
    turns = Turns(flow, topic, setup.create_topic)
    turns.next(3)
    with running(flow.file, ready=False) as mirror:
        turns.wait_for_copy(mirror)
        # As many partitions, fewer, more: a partition comes back after its topic had none of that number.
        # The end of the third partition is reported when it is gone; that its number comes back loses nothing.
        for partitions, events in ((3, 3), (2, 3 + 3), (4, 3 + 3 + 2)):
            turns.next(partitions)
            turns.wait_for_copy(mirror)
            wait_for_entries(flow, events, mirror)
        until(lambda: sorted(committed_positions(flow, topic)) == [0, 1, 2, 3], 90, "commit")
    # While nobody looks, and to more than the stored position: only its id tells.
    turns.next(4)
    with running(flow.file, ready=False) as mirror:
        turns.wait_for_copy(mirror)
        # Of the third partition the return is an event of its own where a task has not seen that it was gone.
        wanted = ([4, 4, 3, 1], [4, 4, 4, 1])
        until(lambda: _counts(flow) in wanted, 90, lambda: f"{entries(flow)}", alive=mirror)
        found = entries(flow)
    assert {(entry.kind, entry.policy) for entry in found} == {
        ("recreated", "recreate.policy=continue")
    }
    assert all(entry.last == entry.first - 1 for entry in found), "all that was there was copied"


def _counts(flow: Flow) -> list[int]:
    """Return the number of events by partition."""
    counts = Counter(entry.partition for entry in entries(flow))
    return [counts[partition] for partition in range(max(counts, default=-1) + 1)]


@pytest.mark.faults
def test_a_partition_whose_number_comes_back_is_copied_once_by_this_worker_and_the_next(
    setup: Setup,
) -> None:
    """The task that copied the former topic copies the new one too: no change of the topics starts it anew."""
    topic = setup.unique("returns")
    looks = {"refresh.topics.interval.seconds": "600", **PROMPT}
    flow = setup.flow(topic, looks)
    turns = Turns(flow, topic, setup.create_topic)
    turns.next(2)
    with running(flow.file, ready=False) as mirror:
        turns.wait_for_copy(mirror)
        turns.next(1)
        turns.wait_for_copy(mirror)
        wait_for_entries(flow, 2, mirror)
        turns.next(2)
        turns.wait_for_copy(mirror)
    with running(flow.file, ready=False) as mirror:
        turns.more(2)
        turns.wait_for_copy(mirror)
        found = wait_for_entries(flow, 3, mirror)
    assert sorted(entry.partition for entry in found) == [0, 0, 1]


@pytest.mark.faults
@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_that_takes_over_knows_the_incarnation_that_another_one_copied_since_it_started(
    setup: Setup, killed: bool
) -> None:
    topic = setup.unique("again")
    flow = setup.flow(topic, {**CALM, "tasks.max": "1"})
    turns = Turns(flow, topic, setup.create_topic)
    turns.next(2)
    with Workers(flow) as workers:
        (copies,) = workers.start("one")
        workers.stop_checkpoints(copies)
        turns.wait_for_copy(copies)
        until(lambda: _is_stored(flow, topic), 90, "the positions", alive=copies)
        workers.start("two")
        copies = workers.until_spread(tasks=1, over=1)[0]
        (waits,) = (it for it in workers.running if it is not copies)
        for events in (2, 4):
            turns.next(2)
            turns.wait_for_copy(copies)
            wait_for_entries(flow, events, copies)
        until(lambda: _is_stored(flow, topic), 90, "the positions", alive=copies)
        assert workers.until_spread(tasks=1, over=1)[0] is copies
        if killed:
            workers.kill(copies)
            turns.next(2)
        else:
            workers.stop(copies)
            turns.more(2)
        turns.wait_for_copy(waits)
        until(lambda: _is_stored(flow, topic), 90, "the positions", alive=waits)
        workers.stop()
    assert len(entries(flow)) == (6 if killed else 4)


def _is_stored(flow: Flow, topic: str) -> bool:
    """Whether the stored positions are the ends of the source's logs."""
    wanted = {partition: end - 1 for partition, end in ends(flow.source, topic).items()}
    return committed_positions(flow, topic) == wanted


def test_what_a_topic_made_again_narrower_had_not_copied_is_in_the_ledger(setup: Setup) -> None:
    topic = setup.topic("fewer", 3)
    limits = {"{source}->{target}.source.consumer.max.partition.fetch.bytes": "20000"}
    flow = setup.flow(topic, limits | {"flow.max.bytes.per.second": "30000"})
    # Far more than the limit lets through before the topic is deleted; one large batch would use it up alone.
    records = (Sent(n % 3, b"%d:" % n + bytes(1_000)) for n in range(3_000))
    write(setup.a, topic, records, batch_size=10_000)
    before = ends(setup.a, topic)
    with running(flow.file) as mirror:
        until(lambda: all(ends(setup.b, flow.remote(topic)).get(p) for p in range(3)), alive=mirror)
        delete_topic(setup.a, topic)
        until(lambda: topic not in topics_of(setup.a), 90, "deletion")
        setup.create_topic(setup.a, topic, 2)
        found = wait_for_entries(flow, 3, mirror)
        until(lambda: committed_positions(flow, topic).get(2) is not None, alive=mirror)
    copied = {p: len(log.records) for p, log in read(setup.b, flow.remote(topic)).items()}
    # Offsets are dense here: what is on the target and what is in the ledger is all there was.
    for entry in found:
        assert entry == Entry(
            "recreated",
            topic,
            entry.partition,
            copied[entry.partition],
            before[entry.partition] - 1,
            "recreate.policy=continue",
        )
    assert sorted(entry.partition for entry in found) == [0, 1, 2]


def test_a_too_large_record_is_one_event_however_often_it_is_met(setup: Setup) -> None:
    topic = setup.topic("large", 3)
    flow = setup.flow(topic, {"sync.topic.configs.enabled": "false"})
    setup.create_topic(setup.b, flow.remote(topic), 3, config={"max.message.bytes": "20000"})
    small = [Sent(n % 3, b"%d" % n) for n in range(90)]
    write(setup.a, topic, small)
    write(setup.a, topic, [Sent(1, random.Random(1).randbytes(50_000))])
    write(setup.a, topic, small)
    expected = [Entry("too-large", topic, 1, 30, 30, "partition.failure.policy=isolate")]
    for _ in range(2):
        with running(flow.file, ready=False) as mirror:
            assert wait_for_entries(flow, 1, mirror) == expected
            mirror.wait_for_log("partition failed")
            until_equal(
                lambda: ends(setup.b, flow.remote(topic)), {0: 60, 1: 30, 2: 60}, alive=mirror
            )
    assert entries(flow) == expected


@pytest.mark.faults
def test_records_of_a_copy_that_was_deleted_on_the_target_are_in_the_ledger(setup: Setup) -> None:
    topic = setup.topic("deleted-copy", 1)
    flow = setup.flow(topic)
    remote = flow.remote(topic)
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(10)])
    with running(flow.file, ready=False) as mirror:
        until(lambda: ends(setup.b, remote) == {0: 10}, 90, "the copy", alive=mirror)
        delete_topic(setup.b, remote)
        until(lambda: ends(setup.b, remote) == {0: 0}, 120, "it is made again", alive=mirror)
        write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(10, 13)])
        assert wait_for_entries(flow, 1, mirror) == [Entry("target-lost", topic, 0, 0, 9, "")]
        until(lambda: committed_positions(flow, topic) == {0: 12}, 90, "commit", alive=mirror)
    assert [record.value for record in read(setup.b, remote)[0].records] == [b"10", b"11", b"12"]


@pytest.mark.parametrize("once", [False, True])
def test_what_a_position_is_set_past_is_named_and_moves_no_group_past_unread_records(
    setup: Setup, *, once: bool
) -> None:
    """Over REST, as for a record that cannot be copied: before the flow continues behind it, and since."""
    topic, group = setup.topic("set-past"), setup.unique("billing")
    flow = setup.flow(topic, {**PROMPT, "{source}->{target}.sync.group.offsets.enabled": "true"})
    if once:
        make_exactly_once(flow)
    remote = flow.remote(topic)
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(40)])
    with running(flow.file) as mirror:
        url = public_url(mirror)
        environ = {"MM2PY_URL": url, "NO_COLOR": "1"}
        connector = f"{url}{flow.name.replace('->', '/')}/connectors/MirrorSourceConnector"
        partition = {"cluster": flow.source_alias, "topic": topic, "partition": 0}
        change = {"offsets": [{"partition": partition, "offset": {"offset": 59}}]}

        def copies() -> list[bytes | None]:
            return [it.value for it in read(setup.b, remote)[0].records]

        def problems() -> str:
            words = ("failover", flow.file, "--flow", flow.name, "--plan", "-o", "json")
            return str(json.loads(command_here(*words, environ=environ).stdout)["topics"])

        until(lambda: committed_positions(flow, topic) == {0: 39}, 90, "commit", alive=mirror)
        assert "were not copied" not in problems()
        until_equal(lambda: ask(f"{connector}/stop", "PUT")[0], 204, alive=mirror)
        until_equal(lambda: ask(f"{connector}/offsets", "PATCH", change)[0], 200, alive=mirror)
        write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(40, 60)])
        assert "20 offsets of partition 0 were not copied" in problems()
        until_equal(lambda: ask(f"{connector}/resume", "PUT")[0], 202, alive=mirror)
        write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(60, 65)])
        until(lambda: len(copies()) == 45, 90, "the rest", alive=mirror)
        assert wait_for_entries(flow, 1, mirror) == [Entry("skipped", topic, 0, 40, 59, "")]
        commit(setup.a, group, topic, {0: 50})
        until(lambda: committed(setup.b, group, remote)[0] >= 0, 90, "the group", alive=mirror)
        assert 0 < committed(setup.b, group, remote)[0] <= read(setup.b, remote)[0].offsets[40]
        assert "20 offsets of partition 0 were not copied" in problems()
        until(lambda: committed_positions(flow, topic) == {0: 64}, 90, "commit", alive=mirror)
    words = ("verify", flow.file, "--flow", flow.name, "--tier", "0", "-o", "json")
    report = json.loads(command_here(*words).stdout)
    assert report["equal"] is False
    assert f"{topic}-0: source offsets 40 to 60 were" in str(report["not_compared"])
    assert copies()[40:] == [b"%d" % n for n in range(60, 65)]
