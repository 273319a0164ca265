"""Exactly once without the needed grants: refused at start, or the task fails, and the grant is named."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cluster_changes import forbid_transactions, permit_transactions
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.mirror_process import Mirror, run_to_end, write_flow
from tests.integration.traffic import Sent, write
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION, CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(200)]

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Region]:
    with Region("guarded", properties={**ANY_SESSION, "super.users": "User:admin"}) as region:
        yield region


def test_a_leader_that_may_not_use_its_id_refuses_the_flow(
    region_a: KafkaAddress, guarded: Region, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, guarded, "nothing", ENABLED)
    name = f"connect-cluster-{flow.source_alias}-mm2"
    forbid_transactions(guarded, name)
    ended = run_to_end(flow.file)
    assert ended.returncode == 1, ended.stderr
    text = ended.stdout + ended.stderr
    assert f"--transactional-id {name}" in text
    assert "grant the mirror's user Write and Describe" in text


def test_a_task_that_may_not_use_its_id_names_the_grant_and_starts_once_it_is_given(
    region_a: KafkaAddress,
    guarded: Region,
    tmp_path: Path,
    unique: Unique,
    create_topic: CreateTopic,
) -> None:
    topic = unique("granted")
    create_topic(region_a, topic, 1)
    write(region_a, topic, [Sent(0, b"%d" % number) for number in range(10)])
    flow = write_flow(tmp_path, region_a, guarded, topic, ENABLED)
    name = f"{flow.source_alias}-mm2-MirrorSourceConnector-0"
    forbid_transactions(guarded, name)
    with Mirror(flow.file, name="asks") as mirror:
        mirror.wait_for_log(f"--transactional-id {name}")
        permit_transactions(guarded, name)
        assert assert_each_once(mirror, flow, topic) == 10
        assert mirror.stop() == 0
