"""Records that the target takes from nobody: their partition stops exactly there, named, until it is cured."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import set_config
from tests.integration.ledger_scenes import entries
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import (
    YEAR_MS,
    Sent,
    assert_equal,
    committed_positions,
    ends,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]

AHEAD_MS = 2 * 3_600_000
ANY_TIME = {"message.timestamp.after.max.ms": "9223372036854775807"}


class Case(NamedTuple):
    """One kind of refusal and its cure."""

    target: dict[str, str]
    key: bytes | None
    shift_ms: int
    says: tuple[str, ...]
    cure: tuple[str, str]


CASES = {
    "two hours ahead": Case(
        {},
        b"k",
        AHEAD_MS,
        ("INVALID_TIMESTAMP", "message.timestamp.after.max.ms (1 hour by default"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ),
    "a year old": Case(
        {"message.timestamp.before.max.ms": str(YEAR_MS // 2)},
        b"k",
        -YEAR_MS,
        ("INVALID_TIMESTAMP", "message.timestamp.before.max.ms"),
        ("message.timestamp.type", "LogAppendTime"),
    ),
    "no key on a compacted topic": Case(
        {"cleanup.policy": "compact"},
        None,
        0,
        ("INVALID_RECORD", "takes no record without a key"),
        ("cleanup.policy", "delete"),
    ),
}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_refused_record_stops_its_partition_at_its_offset_until_the_topic_takes_it(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    case: Case,
    codec: str,
) -> None:
    topic = unique("refused")
    create_topic(region_a, topic, 2, config=ANY_TIME)
    flow = write_flow(tmp_path, region_a, region_b, topic, {"sync.topic.configs.enabled": "false"})
    remote = flow.remote(topic)
    create_topic(region_b, remote, 2, config=case.target)
    now_ms = SYSTEM_CLOCK.now_ms()
    records = [Sent(1, b"%d" % number, b"%d" % number, (), now_ms) for number in range(60)]
    records[41] = Sent(1, b"refused", case.key, (), now_ms + case.shift_ms)
    write(region_a, topic, [Sent(0, b"%d" % n, b"%d" % n, (), now_ms) for n in range(50)])
    write(region_a, topic, records, linger_ms=300, compression_type=codec)
    with Mirror(flow.file) as mirror:
        said = mirror.wait_for_log("ERROR .*partition failed")
        assert f"{topic}-1 at offset 41" in said
        assert remote in said
        for text in case.says:
            assert text in said
        until(
            lambda: ends(region_b, remote) == {0: 50, 1: 41},
            90,
            lambda: f"what is good, {ends(region_b, remote)}",
            alive=mirror,
        )
        assert mirror.stop() == 0
        assert len(mirror.lines("ERROR")) == 1
    assert committed_positions(flow, topic) == {0: 49, 1: 40}
    (event,) = entries(flow)
    assert (event.kind, event.partition, event.first, event.last) == ("refused", 1, 41, 41)
    set_config(region_b, remote, *case.cure)
    with Mirror(flow.file, name="cured") as mirror:
        if case.cure[1] == "LogAppendTime":
            until(lambda: ends(region_b, remote) == {0: 50, 1: 60}, 90, "the rest", alive=mirror)
        else:
            assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.stop() == 0
