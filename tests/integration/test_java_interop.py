"""mm2py beside the real Java MirrorMaker 2: same bytes, same positions, never both at work."""

import re
import struct
from collections.abc import Iterator
from secrets import token_hex

import pytest

from mm2py.mirror.offset_syncs import decode_offset_sync
from tests.integration.java_mm2 import JAVA_STOPPED, Handover, Step, formatted_by_java
from tests.integration.traffic import records_of
from tests.kit.kafka.region import KafkaAddress

pytestmark = [
    pytest.mark.faults,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def story(
    region_a: KafkaAddress, region_b: KafkaAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handover]:
    handover = Handover(region_a, region_b, tmp_path_factory.mktemp("handover"), token_hex(3))
    yield handover
    handover.close()


def test_a_sigterm_ends_the_worker_with_exit_code_0(story: Handover) -> None:
    story.reach(Step.OURS_COPIED_AND_STOPPED)
    assert story.exit_codes["ours"] == 0
    assert_each_record_once(story, Step.OURS_COPIED_AND_STOPPED)


def test_the_java_formatter_reads_our_offset_syncs(story: Handover) -> None:
    story.reach(Step.OURS_COPIED_AND_STOPPED)
    records = records_of(story.source, story.syncs_topic)
    expected = [sync_line(r.key or b"", r.value or b"") for r in records]
    # Commits add the last offsets of their moment, so only the pairs are certain.
    pairs = set(
        re.findall(
            rf"{story.topic}-(\d), upstreamOffset=(\d+), downstreamOffset=(\d+)}}",
            "".join(expected),
        )
    )
    assert {partition for partition, _, _ in pairs} == {"0", "1", "2"}
    assert all(upstream == downstream for _, upstream, downstream in pairs)
    printed = formatted_by_java(
        story.source, story.syncs_topic, "OffsetSyncFormatter", len(records)
    )
    assert printed == expected


def test_the_java_formatter_reads_our_heartbeats(story: Handover) -> None:
    story.reach(Step.OURS_COPIED_AND_STOPPED)
    records = records_of(story.target, "heartbeats")
    expected = [heartbeat_line(r.key or b"", r.value or b"") for r in records]
    ours = f"Heartbeat{{sourceClusterAlias={story.source_alias}, targetClusterAlias={story.target_alias}, "
    assert any(line.startswith(ours) for line in expected)
    printed = formatted_by_java(story.target, "heartbeats", "HeartbeatFormatter", len(records))
    assert printed == expected


def test_java_continues_on_the_same_file_without_loss_or_recopy(story: Handover) -> None:
    story.reach(Step.JAVA_CONTINUED)
    assert_each_record_once(story, Step.JAVA_CONTINUED)


def test_while_java_runs_mm2py_waits_and_copies_nothing(story: Handover) -> None:
    story.reach(Step.OURS_WAITED)
    assert_each_record_once(story, Step.OURS_WAITED)
    assert "flow starts" not in story.logs[Step.OURS_WAITED]


def test_mm2py_takes_over_after_java_without_loss_or_recopy(story: Handover) -> None:
    story.reach(Step.OURS_TOOK_OVER)
    assert story.exit_codes["java"] == JAVA_STOPPED
    assert_each_record_once(story, Step.OURS_TOOK_OVER)
    assert "flow starts" in story.logs[Step.OURS_TOOK_OVER]


def test_mm2py_commits_and_yields_when_java_joins(story: Handover) -> None:
    story.reach(Step.JAVA_JOINED)
    assert_each_record_once(story, Step.JAVA_JOINED)


def test_a_waiting_worker_ends_with_exit_code_0_too(story: Handover) -> None:
    story.reach(Step.ALL_STOPPED)
    assert story.exit_codes["ours, waiting"] == 0
    assert story.exit_codes["java, at the end"] == JAVA_STOPPED


def test_neither_starts_a_source_task_twice_because_it_deals_otherwise(story: Handover) -> None:
    """A deal that means the same is kept; else Java stops its tasks amid the backlog, and may copy twice."""
    story.reach(Step.ALL_STOPPED)
    for log in story.java_logs:
        started = re.findall(r"Creating task (MirrorSourceConnector-\d)", log)
        assert sorted(started) == ["MirrorSourceConnector-0", "MirrorSourceConnector-1"]
    starts = re.findall(
        r"MirrorSourceConnector\|(task-\d)\] source task started", story.logs[Step.OURS_TOOK_OVER]
    )
    assert sorted(starts) == ["task-0", "task-1"]


def assert_each_record_once(story: Handover, step: Step) -> None:
    assert story.copied[step] == story.expected[step]


def text_at(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def sync_line(key: bytes, value: bytes) -> str:
    found = decode_offset_sync(key, value)
    at = f"upstreamOffset={found.upstream}, downstreamOffset={found.downstream}"
    return f"OffsetSync{{topicPartition={found.partition}, {at}}}"


def heartbeat_line(key: bytes, value: bytes) -> str:
    source, at = text_at(key, 0)
    target, _ = text_at(key, at)
    version, timestamp = struct.unpack(">hq", value)
    assert version == 0
    return (
        f"Heartbeat{{sourceClusterAlias={source}, targetClusterAlias={target}, "
        f"timestamp={timestamp}}}"
    )
