"""Groups of a flow that takes over from the real Java MirrorMaker 2: no record that they have not read is skipped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Where

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from mm2py.embedded.region import KafkaAddress
from mm2py.mirror.offset_lookup import Place
from mm2py.mirror_client import translate_offset, translate_offsets
from mm2py.types import TopicPartition
from tests.integration.cluster_changes import delete_topic
from tests.integration.java_mm2 import JAVA_STOPPED, eventually
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.test_group_commands import commit_at, offset_of
from tests.integration.test_share_groups import Shares, produce, start_offsets
from tests.integration.traffic import ends
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(580)]

SYNC: Final = {
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.sync.group.offsets.interval.seconds": "1",
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}
SIZES: Final = {"small": 120, "large": 3_400}


@dataclass
class Scene:
    """Topics of two sizes that Java has copied, and where groups are on the source; offsets are the same on both sides."""

    flow: Flow
    topics: dict[str, int]
    unique: Callable[[str], str]
    committed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    shares: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def commit(self, kind: str, topic: str, offset: int) -> str:
        group = f"{kind}-{topic}"
        commit_at(self.flow.source, topic, group, offset)
        self.committed[group, topic] = offset
        return group

    def read_some(self, kind: str, topic: str, records: int, **settings: str) -> None:
        """Let a member read and commit that many records, then leave."""
        group = f"{kind}-{topic}"
        member = Consumer(
            {
                "bootstrap.servers": self.flow.source.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 2,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        member.subscribe([topic])
        found = 0
        while found < records:
            found += len(member.consume(records - found, 1.0))
        member.commit(offsets=[Where(topic, 0, records)], asynchronous=False)
        member.close()
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

        eventually(stored, f"{group} has a start offset")
        self.shares[group, topic] = found[topic, 0]

    def check(self, mirror: Mirror, turn: int) -> None:
        """Wait until a new group at the end is there, hence the map was used; then no group is too far."""
        flow = self.flow
        for topic in self.topics:
            end = ends(flow.source, topic)[0]
            self.commit(f"new-{turn}", topic, end - 1)
        for (group, topic), at in self.committed.items():
            if at >= self.topics[topic]:
                until(
                    lambda g=group, t=topic, at=at: offset_of(flow.target, flow.remote(t), g) == at,  # type: ignore[misc]
                    90,
                    f"{group} is exact at {at}",
                    alive=mirror,
                )
        for (group, topic), at in self.committed.items():
            there = offset_of(flow.target, flow.remote(topic), group)
            # An offset that was right when it was written does not go back with its group; its checkpoint does.
            is_right = there <= at or group.startswith("rewound")
            assert is_right, f"turn {turn}: {group} at {at} skips {there - at} records"
            copy = TopicPartition(flow.remote(topic), 0)
            properties = {"bootstrap.servers": flow.target.bootstrap_servers}
            checkpoint = translate_offsets(properties, flow.source_alias, group).get(copy)
            assert checkpoint is None or checkpoint.offset <= at, f"turn {turn}: {group}"
        for (group, topic), at in self.shares.items():
            there = start_offsets(flow.target, group).get((flow.remote(topic), 0), -1)
            assert there <= at, f"turn {turn}: {group} at {at} skips {there - at} records"


def grow(mirror: Mirror, scene: Scene, records: int) -> None:
    flow = scene.flow
    for topic in scene.topics:
        produce(flow.source, topic, ends(flow.source, topic)[0], records)
        end = ends(flow.source, topic)[0]
        until(
            lambda t=topic, end=end: ends(flow.target, flow.remote(t))[0] == end,  # type: ignore[misc]
            90,
            f"all of {topic} is copied",
            alive=mirror,
        )


def copied_by_java(scene: Scene, folder: Path) -> None:
    """Let Java copy the topics in pieces while groups read them, so that it has offset syncs and checkpoints of all."""
    flow = scene.flow
    with start_java(flow.file, folder / "java.log", jvm_flags=QUICK_START_FLAGS) as java:
        for piece in range(1, 5):
            for topic, size in scene.topics.items():
                end = size * piece // 4
                first = size * (piece - 1) // 4
                produce(flow.source, topic, first, end - first)
                eventually(
                    lambda t=topic, end=end: ends(flow.target, flow.remote(t)).get(0) == end,  # type: ignore[misc]
                    f"Java copies {topic}",
                )
                if piece == 1:
                    scene.commit("lags", topic, end - 7)
                    scene.read_some("kip848", topic, end - 9, group_protocol="consumer")
                    scene.read_some("member", topic, end - 11)
                    scene.share_some(topic, 5)
        for topic, size in scene.topics.items():
            scene.commit("all-read", topic, size)
            group = scene.commit("rewound", topic, size - 1)
            eventually(
                lambda g=group, t=topic: offset_of(flow.target, flow.remote(t), g) >= 0,  # type: ignore[misc]
                "Java syncs groups",
            )
            scene.commit("rewound", topic, 10)
        assert java.stop() == JAVA_STOPPED


def test_no_group_skips_a_record_when_a_flow_takes_over_from_java(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topics = {unique(name): size for name, size in SIZES.items()}
    for topic in topics:
        create_topic(region_a, topic, 1)
    flow = write_flow(tmp_path, region_a, region_b, ",".join(topics), SYNC)
    scene = Scene(flow, topics, unique)
    copied_by_java(scene, tmp_path)
    before = {
        (group, topic): offset_of(region_b, flow.remote(topic), group)
        for group, topic in scene.committed
        if not group.startswith("rewound")
    }
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        grow(mirror, scene, 50)
        scene.check(mirror, 1)
        assert mirror.stop() == 0
    for (group, topic), at in before.items():
        assert offset_of(region_b, flow.remote(topic), group) >= at, "it does not go back"
    both_ways(flow, topics)
    # What an earlier version did to groups that lag, and only their offsets show it.
    moved = {f"lags-{topic}": topic for topic in topics}
    for group, topic in moved.items():
        commit_at(region_b, flow.remote(topic), group, topics[topic])
    with Mirror(flow.file) as mirror:
        for group, topic in moved.items():
            mirror.wait_for_log(f"was set back on the target.*group={group} .*from={topics[topic]}")
        scene.check(mirror, 2)
        assert mirror.stop() == 0
    # The map is lost between two runs.
    delete_topic(region_b, f"mm2py-offset-map.{flow.source_alias}.internal")
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        grow(mirror, scene, 50)
        scene.check(mirror, 3)
        assert mirror.stop() == 0


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
