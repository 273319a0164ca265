"""A target that is away for longer than a session timeout: the flow is suspended, not torn down.

Flow: load -> kill the target -> wait for the suspension -> start it -> everything once, by the same tasks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import Load, assert_equal, ends, wait_for_copy
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION, CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_000


@pytest.fixture(scope="module")
def own_region() -> Iterator[Region]:
    with Region("suspend", properties=ANY_SESSION) as region:
        yield region


@pytest.fixture
def target(own_region: Region) -> Region:
    """A cluster that tests stop and kill, one after the other; it runs at the begin of each."""
    own_region.start()
    return own_region


def _wait_for_progress(mirror: Mirror, flow: Flow, topic: str) -> None:
    before = sum(ends(flow.target, flow.remote(topic)).values())
    until(
        lambda: sum(ends(flow.target, flow.remote(topic)).values()) > before,
        90,
        "the copy to go on",
        alive=mirror,
    )


def _wait_for_lines(mirror: Mirror, text: str, count: int) -> None:
    until(lambda: len(mirror.lines(text)) == count, 90, f"{count} times {text!r}", alive=mirror)


def test_a_target_away_for_longer_than_a_session_gets_everything_once_from_the_same_tasks(
    region_a: KafkaAddress,
    target: Region,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("suspend")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, target, topic, SHORT_SESSION)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, PARTITIONS, rate=RATE):
            _wait_for_progress(mirror, flow, topic)
            for outage, end in enumerate((target.kill, target.stop), start=1):
                end()
                _wait_for_lines(mirror, "flow is suspended", outage)
                target.start()
                _wait_for_lines(mirror, "the flow continues", outage)
                _wait_for_progress(mirror, flow, topic)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.lines("membership lost") == []
        assert len(mirror.lines("source task started")) == 1
        assert mirror.stop() == 0


def test_a_stop_while_suspended_is_quick(
    region_a: KafkaAddress,
    target: Region,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("suspend-stop")
    create_topic(region_a, topic)
    flow = write_flow(tmp_path, region_a, target, topic, SHORT_SESSION)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(region_a, topic, 1, rate=100):
            _wait_for_progress(mirror, flow, topic)
            target.kill()
            mirror.wait_for_log("flow is suspended")
            assert mirror.stop() == 0
            assert mirror.lines("cut off") == []
