"""Groups of a flow that takes over from the real Java MirrorMaker 2: no record that they have not read is skipped."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.offset_lookup import Place
from mm2py.mirror_client import translate_offset, translate_offsets
from mm2py.types import TopicPartition
from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import delete_records, delete_topic
from tests.integration.failovers import Drivers
from tests.integration.java_mm2 import DEADLINE_S, JAVA_STOPPED
from tests.integration.ledger_scenes import entries
from tests.integration.members import KIP_848, read_some
from tests.integration.mirror_process import GROUPS, Flow, Mirror, command_here, running, until
from tests.integration.rest_asking import ask
from tests.integration.setups import Setup
from tests.integration.test_share_groups import Shares, start_offsets
from tests.integration.traffic import Sent, commit, ends, numbered, offset_of, producer, read, write

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(580),
]

SIZES: Final = {"small": 120, "large": 3_400}


def copied(flow: Flow, topic: str, end: int) -> Callable[[], bool]:
    return lambda: ends(flow.target, flow.remote(topic)).get(0) == end


def checkpoint_of(flow: Flow, topic: str, group: str) -> int:
    """Return where the group would continue, -1 where nothing is known."""
    copy = TopicPartition(flow.remote(topic), 0)
    properties = {"bootstrap.servers": flow.target.bootstrap_servers}
    found = translate_offsets(properties, flow.source_alias, group).get(copy)
    return -1 if found is None else found.offset


@dataclass
class Scene:
    """Topics of two sizes that Java has copied, and where groups are on the source; offsets are the same on both sides."""

    flow: Flow
    topics: dict[str, int]
    syncs: bool = True
    committed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    shares: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def there(self, group: str, topic: str) -> int:
        """Return where the group continues on the target: at its offset, or its checkpoint where offsets are not synced."""
        flow = self.flow
        if self.syncs:
            return offset_of(flow.target, flow.remote(topic), group)
        return checkpoint_of(flow, topic, group)

    def is_at(self, group: str, topic: str, offset: int) -> Callable[[], bool]:
        return lambda: self.there(group, topic) == offset

    def commit(self, kind: str, topic: str, offset: int) -> str:
        group = f"{kind}-{topic}"
        commit(self.flow.source, group, topic, {0: offset})
        self.committed[group, topic] = offset
        return group

    def read_some(self, kind: str, topic: str, records: int, **settings: str) -> None:
        """Let a member read and commit that many records, then leave."""
        group = f"{kind}-{topic}"
        read_some(self.flow.source, topic, group, records, **settings)
        self.committed[group, topic] = records

    def share_some(self, topic: str, records: int) -> None:
        group = f"share-{topic}"
        member = Shares(self.flow.source, topic, group)
        member.read(records)
        member.close()
        found: dict[tuple[str, int], int] = {}

        def stored() -> bool:
            found.update(start_offsets(self.flow.source, group))
            return (topic, 0) in found

        until(stored, DEADLINE_S, f"{group} has a start offset")
        self.shares[group, topic] = found[topic, 0]

    def check(self, mirror: Mirror, turn: int) -> None:
        """Wait until a new group at the end is there, hence the map was used; then no group is too far."""
        flow = self.flow
        for topic in self.topics:
            end = ends(flow.source, topic)[0]
            self.commit(f"new-{turn}", topic, end - 1)
        for (group, topic), at in self.committed.items():
            if at >= self.topics[topic]:
                until(self.is_at(group, topic, at), 90, f"{group} is exact at {at}", alive=mirror)
        for (group, topic), at in self.committed.items():
            there = self.there(group, topic)
            # An offset that was right when it was written does not go back with its group; its checkpoint does.
            is_right = there <= at or group.startswith("rewound")
            assert is_right, f"turn {turn}: {group} at {at} skips {there - at} records"
            assert checkpoint_of(flow, topic, group) <= at, f"turn {turn}: {group}"
        for (group, topic), at in self.shares.items():
            there = start_offsets(flow.target, group).get((flow.remote(topic), 0), -1)
            assert there <= at, f"turn {turn}: {group} at {at} skips {there - at} records"


def grow(mirror: Mirror, scene: Scene, records: int) -> None:
    flow = scene.flow
    for topic in scene.topics:
        write(flow.source, topic, numbered(ends(flow.source, topic)[0], records))
        end = ends(flow.source, topic)[0]
        until(copied(flow, topic, end), 90, f"all of {topic} is copied", alive=mirror)


def copied_by_java(scene: Scene, folder: Path) -> None:
    """Let Java copy the topics in pieces while groups read them, so that it has offset syncs and checkpoints of all."""
    flow = scene.flow
    with start_java(flow.file, folder / "java.log", jvm_flags=QUICK_START_FLAGS) as java:
        for piece in range(1, 5):
            for topic, size in scene.topics.items():
                end = size * piece // 4
                first = size * (piece - 1) // 4
                write(flow.source, topic, numbered(first, end - first))
                until(copied(flow, topic, end), DEADLINE_S, f"Java copies {topic}")
                if piece == 1:
                    scene.commit("lags", topic, end - 7)
                    scene.read_some("kip848", topic, end - 9, **KIP_848)
                    scene.read_some("member", topic, end - 11)
                    scene.share_some(topic, 5)
        for topic, size in scene.topics.items():
            scene.commit("all-read", topic, size)
            group = scene.commit("rewound", topic, size - 1)
            until(lambda: scene.there(group, topic) >= 0, DEADLINE_S, "Java places groups")  # noqa: B023 - called here
            scene.commit("rewound", topic, 10)
        assert java.stop() == JAVA_STOPPED


def test_no_group_skips_a_record_when_a_flow_takes_over_from_java(setup: Setup) -> None:
    topics = {setup.unique(name): size for name, size in SIZES.items()}
    for topic in topics:
        setup.create_topic(setup.a, topic, 1)
    flow = setup.flow(",".join(topics), GROUPS)
    scene = Scene(flow, topics)
    copied_by_java(scene, setup.folder)
    before = {
        (group, topic): offset_of(setup.b, flow.remote(topic), group)
        for group, topic in scene.committed
        if not group.startswith("rewound")
    }
    with running(flow.file) as mirror:
        grow(mirror, scene, 50)
        scene.check(mirror, 1)
    for (group, topic), at in before.items():
        assert offset_of(setup.b, flow.remote(topic), group) >= at, "it does not go back"
    both_ways(flow, topics)
    # What an earlier version did to groups that lag: their checkpoints show it.
    moved = {f"lags-{topic}": topic for topic in topics}
    for group, topic in moved.items():
        commit(setup.b, group, flow.remote(topic), {0: topics[topic]})
        copy, read_to = TopicPartition(flow.remote(topic), 0), scene.committed[group, topic]
        key, value = encode_checkpoint(Checkpoint(group, copy, read_to, topics[topic], ""))
        client = producer(setup.b)
        client.produce(f"{flow.source_alias}.checkpoints.internal", value, key, 0)
        assert client.flush(60) == 0
    with running(flow.file, ready=False) as mirror:
        for group, topic in moved.items():
            mirror.wait_for_log(f"was set back on the target.*group={group} .*from={topics[topic]}")
        scene.check(mirror, 2)
    # The map is lost between two runs.
    delete_topic(setup.b, f"mm2py-offset-map.{flow.source_alias}.internal")
    with running(flow.file) as mirror:
        grow(mirror, scene, 50)
        scene.check(mirror, 3)


def test_checkpoints_of_each_kind_of_group_skip_nothing_without_syncs(setup: Setup) -> None:
    topic = setup.unique("not-synced")
    setup.create_topic(setup.b, topic, 1)
    off = {"{source}->{target}.sync.group.offsets.enabled": "false"}
    flow = setup.flow(topic, GROUPS | off, source=setup.b, target=setup.a)
    scene = Scene(flow, {topic: SIZES["small"]}, syncs=False)
    copied_by_java(scene, setup.folder)
    with running(flow.file) as mirror:
        grow(mirror, scene, 50)
        scene.check(mirror, 1)
    for group, _ in scene.committed:
        assert offset_of(flow.target, flow.remote(topic), group) < 0, "nothing is synced"


def both_ways(flow: Flow, topics: dict[str, int]) -> None:
    """What Java copied is unknown in both directions; what is behind it is exact."""
    properties = {"bootstrap.servers": flow.target.bootstrap_servers}
    for topic, size in topics.items():
        source, copy = TopicPartition(topic, 0), TopicPartition(flow.remote(topic), 0)
        for offset in (0, 5, size - 1, size, size + 49):
            for partition, to_source in ((source, False), (copy, True)):
                found = translate_offset(
                    properties, flow.source_alias, partition, offset, to_source=to_source
                )
                assert found is not None
                wanted = (Place.UNKNOWN, -1) if offset < size else (Place.COPIED, offset)
                assert found == wanted, f"{partition} {offset}"


BIG: Final = 50 << 20
LONG: Final = {
    "{source}.consumer.isolation.level": "read_committed",
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
    "{target}.producer.max.request.size": str(BIG + (1 << 20)),
    "{target}.producer.buffer.memory": str(3 * BIG),
}
"""Group offsets are not synced: checkpoints alone say where groups continue."""


@dataclass
class Turns:
    """Java, we, Java, we: topics to which something happens between Java's stop and our start, and groups with checkpoints alone."""

    flow: Flow
    at: dict[tuple[str, str], tuple[int, int]] = field(
        default_factory=dict[tuple[str, str], tuple[int, int]]
    )
    """By group and topic: its offset on the source, and how many records of the copy it has not passed at most."""

    def commit(self, group: str, topic: str, offset: int, most: int | None = None) -> None:
        commit(self.flow.source, f"{group}-{topic}", topic, {0: offset})
        self.at[f"{group}-{topic}", topic] = offset, offset if most is None else most

    def checkpoint(self, group: str, topic: str) -> int:
        return checkpoint_of(self.flow, topic, group)

    def check(self, turn: str, topic: str, end: int, at: int, *, exact: bool) -> None:
        """Wait until a new group at the end has its checkpoint, hence more was translated; then none is too far."""
        group = f"end-{turn}"
        self.commit(group, topic, end, at)

        def is_there() -> bool:
            found = self.checkpoint(f"{group}-{topic}", topic)
            return found == at if exact else found >= 0

        until(is_there, DEADLINE_S, f"{turn}: a checkpoint at the end of {topic}")
        for (name, of), (offset, most) in self.at.items():
            found = self.checkpoint(name, of)
            assert found <= most, f"{turn}: {name} at {offset} skips {found - most} records"

    def values(self, topic: str) -> list[bytes | None]:
        return [it.value for it in read(self.flow.target, self.flow.remote(topic))[0].records]


@pytest.mark.chaos
def test_checkpoints_alone_skip_nothing_whatever_happens_between_java_and_us(setup: Setup) -> None:
    plain, cut, again, held, large = topics = [
        setup.unique(it) for it in ("plain", "cut", "again", "open", "large")
    ]
    for topic in topics[:-1]:
        setup.create_topic(setup.a, topic, 1)
    setup.create_topic(setup.a, large, 1, config={"max.message.bytes": str(BIG + 1024)})
    flow = setup.flow(",".join(topics), LONG)
    turns = Turns(flow)
    big = [bytes([n]) * BIG for n in range(2)]
    write(setup.a, large, [Sent(0, big[0])], message_max_bytes=2 * BIG)
    client = producer(setup.a, transactional_id=held, transaction_timeout_ms=600_000)
    client.init_transactions(60)
    for first in (0, 6):  # the second one stays open over the take-over
        client.begin_transaction()
        for number in range(first, first + 5):
            client.produce(held, b"%d" % number, partition=0)
        assert client.flush(60) == 0
        if not first:
            client.commit_transaction(60)
    write(setup.a, held, numbered(11, 5))
    with start_java(flow.file, setup.folder / "java-1.log", jvm_flags=QUICK_START_FLAGS) as java:
        for topic, count in ((plain, 200), (cut, 40), (again, 30)):
            write(setup.a, topic, numbered(0, count))
            turns.commit("lags", topic, count // 4)
            until(copied(flow, topic, count), DEADLINE_S, f"Java copies {topic}")
            turns.commit("read", topic, count)
        turns.commit("lags", held, 3)
        until(copied(flow, held, 5), DEADLINE_S, "Java copies what is committed")
        until(copied(flow, large, 1), DEADLINE_S, "Java copies 50 MB")
        turns.check("java", plain, 200, 200, exact=False)
        assert java.stop() == JAVA_STOPPED
    # Retention goes past Java's position; a topic is created again; a transaction is open.
    write(setup.a, cut, numbered(40, 40))
    delete_records(setup.a, cut, 0, 60)
    turns.commit("lost", cut, 50, 40)
    turns.commit("behind", cut, 70, 50)
    delete_topic(setup.a, again)
    setup.create_topic(setup.a, again, 1)
    write(setup.a, again, numbered(100, 10))
    del turns.at[f"lags-{again}", again], turns.at[f"read-{again}", again]
    turns.commit("new", again, 4, 34)
    plan = run_plan(flow)
    assert {(it["topic"], it["from"]) for it in plan["partitions"]} >= {(plain, 200), (cut, 60)}
    with running(flow.file, name="ours") as mirror:
        write(setup.a, large, [Sent(0, big[1])], message_max_bytes=2 * BIG)
        write(setup.a, plain, numbered(200, 50))
        for topic, end in ((plain, 250), (cut, 60), (again, 40), (large, 2)):
            until(copied(flow, topic, end), 90, f"we copy {topic}", alive=mirror)
        client.commit_transaction(60)
        until(copied(flow, held, 15), 90, "what was open", alive=mirror)
        turns.commit("inside", held, 9, 8)
        turns.check("ours", plain, 250, 250, exact=True)
        turns.check("ours", cut, 80, 60, exact=True)
        turns.check("ours", again, 10, 40, exact=True)
        turns.check("ours", held, 17, 15, exact=True)
        assert [it for it in entries(flow) if it.topic == cut]
    assert turns.values(large) == big
    assert turns.values(held) == [b"%d" % n for n in (*range(5), *range(6, 16))]
    assert turns.values(cut) == [b"%d" % n for n in (*range(40), *range(60, 80))]
    # Java is second now: our offset syncs place its groups, and its checkpoints continue behind ours.
    with start_java(flow.file, setup.folder / "java-2.log", jvm_flags=QUICK_START_FLAGS) as java:
        write(setup.a, plain, numbered(250, 50))
        until(copied(flow, plain, 300), DEADLINE_S, "Java continues")
        turns.commit("between", plain, 270)
        turns.check("java-second", plain, 300, 300, exact=False)
        assert java.stop() == JAVA_STOPPED
    with running(flow.file, name="ours-again") as mirror:
        write(setup.a, plain, numbered(300, 50))
        until(copied(flow, plain, 350), 90, "we continue", alive=mirror)
        turns.check("ours-again", plain, 350, 350, exact=True)
        fail_over(turns, mirror)
    assert turns.values(plain) == [b"%d" % n for n in range(350)]
    properties = {"bootstrap.servers": flow.target.bootstrap_servers}
    for offset, place in ((100, Place.UNKNOWN), (220, Place.COPIED), (270, Place.UNKNOWN)):
        for name, to_source in ((plain, False), (flow.remote(plain), True)):
            found = translate_offset(
                properties, flow.source_alias, TopicPartition(name, 0), offset, to_source=to_source
            )
            assert found is not None
            assert found == (place, offset if place is Place.COPIED else -1), f"{name} {offset}"


def fail_over(turns: Turns, mirror: Mirror) -> None:
    """Move all groups: in what Java copied by their checkpoints, nothing counts as not copied."""
    flow = turns.flow
    url = Drivers(flow, mirror).url + "/failover"
    status, begun = ask(url, "POST")
    assert status == 202, begun
    done = until(
        lambda: (it := ask(url)[1]["failover"])["step"] == "DONE" and it,
        120,
        lambda: f"{ask(url)}",
        alive=mirror,
    )
    assert done["tail"] == []
    for (group, topic), (offset, most) in turns.at.items():
        moved = offset_of(flow.target, flow.remote(topic), group)
        assert turns.checkpoint(group, topic) <= moved <= most, f"{group} at {offset}: {moved}"


SAME_NAMES: Final = {
    "replication.policy.class": IDENTITY,
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}


def test_clients_go_there_and_back_through_what_java_copied_and_nothing_of_it_comes_back(
    setup: Setup,
) -> None:
    """Java, we, Java, we under the same names, one driver killed each way; the first part of the copy is Java's, and one in the middle."""
    topic, early, between, late = [
        setup.unique(it) for it in ("orders", "early", "between", "late")
    ]
    for region in (setup.a, setup.b):
        setup.create_topic(region, topic, 1)
    flow = setup.flow(topic, SAME_NAMES)

    def copied_to(end: int) -> Callable[[], bool]:
        return lambda: ends(setup.b, topic)[0] == end

    for turn, first in enumerate((0, 60)):
        # Java's are 0-39 and 60-79, ours 40-59 and 80-89.
        log = setup.folder / f"java-{turn}.log"
        with start_java(flow.file, log, jvm_flags=QUICK_START_FLAGS) as java:
            count = 20 if turn else 40
            write(setup.a, topic, numbered(first, count))
            until(copied_to(first + count), DEADLINE_S, "Java copies")
            assert java.stop() == JAVA_STOPPED
        with running(flow.file, name=f"ours-{turn}") as mirror:
            behind, count = first + count, 10 if turn else 20
            write(setup.a, topic, numbered(behind, count))
            until(copied_to(behind + count), 90, "we copy", alive=mirror)
            if not turn:
                continue
            drivers = Drivers(flow, mirror)
            for group, at in ((early, 10), (between, 70), (late, 85)):
                commit(setup.a, group, topic, {0: at})
            done = drivers.execute("failover", kills=["GROUPS"]).document
            assert (done["missing"], done["tail"]) == (0, [])
            assert offset_of(setup.b, topic, late) == 85
            for group, at in ((early, 10), (between, 70)):
                assert offset_of(setup.b, topic, group) <= at, f"{group} at {at}"
            write(setup.b, topic, numbered(90, 10))
            until(lambda: ends(setup.a, topic)[0] >= 100, 90, "the way back", alive=mirror)
            for group, at in ((early, 30), (between, 75), (late, 95)):
                commit(setup.b, group, topic, {0: at})
            done = drivers.execute("failback", kills=["REVERSE"]).document
            assert (done["missing"], done["tail"]) == (0, [])
            assert offset_of(setup.a, topic, late) == 95
            for group, at in ((early, 30), (between, 75)):
                assert offset_of(setup.a, topic, group) <= at, f"{group} at {at}"
            write(setup.a, topic, numbered(100, 5))
            until(lambda: ends(setup.b, topic)[0] >= 105, 90, "home", alive=mirror)
    for region in (setup.a, setup.b):
        values = [it.value for it in read(region, topic)[0].records]
        assert values == [b"%d" % n for n in range(105)], "each once, in order, on both sides"


def test_groups_go_there_and_back_through_the_prefixed_copies_of_java_and_skip_nothing(
    setup: Setup,
) -> None:
    """Java's are 0-39, ours 40-59: on the way back the place of a group in Java's is unknown, and it stays where it left."""
    topic, early, late, new = [setup.unique(it) for it in ("orders", "early", "late", "new")]
    setup.create_topic(setup.a, topic, 1)
    flow = setup.flow(topic, GROUPS)
    copy = flow.remote(topic)
    with start_java(flow.file, setup.folder / "java.log", jvm_flags=QUICK_START_FLAGS) as java:
        write(setup.a, topic, numbered(0, 40))
        until(copied(flow, topic, 40), DEADLINE_S, "Java copies")
        assert java.stop() == JAVA_STOPPED
    with running(flow.file) as mirror:
        write(setup.a, topic, numbered(40, 20))
        until(copied(flow, topic, 60), 90, "we copy", alive=mirror)
        drivers = Drivers(flow, mirror)
        for group, at in ((early, 10), (late, 50)):
            commit(setup.a, group, topic, {0: at})
        done = drivers.execute("failover").document
        assert (done["missing"], done["tail"]) == (0, [])
        assert offset_of(setup.b, copy, late) == 50
        assert offset_of(setup.b, copy, early) <= 10
        for group, at in ((early, 30), (late, 55), (new, 20)):
            commit(setup.b, group, copy, {0: at})
        done = drivers.execute("failback").document
        assert (done["missing"], done["tail"]) == (0, [])
        left = {it["group"]: it["left"] for it in done["groups"]}
        assert left[late] == []
        for group, at in ((early, 30), (new, 20)):
            assert any(f"{copy}-0 {at} has no place there" in it for it in left[group]), left
        assert offset_of(setup.a, topic, late) == 55
        assert offset_of(setup.a, topic, early) == 10
        assert offset_of(setup.a, topic, new) < 0


def run_plan(flow: Flow) -> dict[str, Any]:
    """Return what a backfill would copy."""
    done = command_here("backfill", "plan", flow.file, "--flow", flow.name, "-o", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
