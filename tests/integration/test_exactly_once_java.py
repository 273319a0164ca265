"""mm2py and the real Java MirrorMaker 2 take turns under load with exactly-once support, also after SIGKILL."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.test_group_commands import commit_at, offset_of
from tests.integration.traffic import Load, Log, Record, copied, ends, read, wait_for_progress
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(500),
]

PARTITIONS = 3
RATE = 500
JAVA_S = 180.0
COMMITTED = {
    **ENABLED,
    "{source}.consumer.isolation.level": "read_committed",
    # Java asks the leader over REST before a task starts.
    "{target}.session.timeout.ms": "6000",
    "{source}->{target}.tasks.max": "2",
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.sync.group.offsets.interval.seconds": "1",
    "{source}->{target}.emit.checkpoints.interval.seconds": "1",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("turns")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic, COMMITTED)


def test_both_are_killed_in_turns_and_nothing_is_lost_or_doubled(flow: Flow, topic: str) -> None:
    groups: dict[str, int] = {}
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        with Mirror(flow.file, name="ours-killed") as ours:
            ours.wait_ready()
            wait_for_progress(ours, flow, topic, RATE)
            commit_groups(flow, topic, groups)
            ours.kill()
        run_java(flow, topic, load, kills=True)
        commit_groups(flow, topic, groups)
        with Mirror(flow.file, name="ours-stopped") as ours:
            ours.wait_ready()
            wait_for_progress(ours, flow, topic, 2 * RATE)
            commit_groups(flow, topic, groups)
            assert ours.stop() == 0
        run_java(flow, topic, load, kills=False)
        commit_groups(flow, topic, groups)
    with Mirror(flow.file, name="ours-last") as ours:
        assert assert_each_once(ours, flow, topic) > 4 * RATE
        commit_groups(flow, topic, groups)
        newest = list(groups)[-1]
        until(lambda: there(flow, topic, newest) > 0, 90, "the newest group", alive=ours)
        assert ours.stop() == 0
    check_groups(flow, topic, groups)


def commit_groups(flow: Flow, topic: str, groups: dict[str, int]) -> None:
    """Commit for two new groups: in the middle of what the first partition has, and at its end."""
    end = ends(flow.source, topic)[0]
    for offset in (end // 2, end):
        group = f"{topic}-{len(groups)}"
        commit_at(flow.source, topic, group, offset)
        groups[group] = offset


def there(flow: Flow, topic: str, group: str) -> int:
    return offset_of(flow.target, flow.remote(topic), group)


def check_groups(flow: Flow, topic: str, groups: Mapping[str, int]) -> None:
    """Fail if a group has passed a record on the target that it has not read at the source."""
    truth = read(flow.source, topic, committed=True)[0]
    copy = read(flow.target, flow.remote(topic), committed=True)[0]
    for group, offset in groups.items():
        now = there(flow, topic, group)
        have_read = {it.value for it in before(truth, offset)}
        skipped = [it for it in before(copy, now) if it.value not in have_read]
        assert not skipped, f"{group} at {offset} skips {len(skipped)} records at {now}"


def before(log: Log, offset: int) -> list[Record]:
    return [it for place, it in zip(log.offsets, log.records, strict=True) if place < offset]


def run_java(flow: Flow, topic: str, load: Load, *, kills: bool) -> None:
    """Let Java copy for a while, until it is killed or stopped."""
    log = flow.file.with_suffix(".java-killed.log" if kills else ".java-stopped.log")
    with start_java(flow.file, log, jvm_flags=QUICK_START_FLAGS) as java:
        before = copied(flow, topic)

        def progressed() -> bool:
            java.check_running()
            return copied(flow, topic) > before + 2 * RATE

        until(progressed, JAVA_S, lambda: f"Java to copy:\n{java.log()[-3000:]}")
        load.wait_acked(RATE)
        if kills:
            java.kill()
        else:
            java.stop()
