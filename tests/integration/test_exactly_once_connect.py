"""An ordinary Connect worker with exactly-once support: a mirror and a third party's connector, killed in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.integration.connect_process import (
    DISTRIBUTED,
    install_plugin,
    mirror_config,
    rest_of,
    write_worker,
)
from tests.integration.mirror_process import Mirror, until
from tests.integration.traffic import Sent, assert_equal, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

ENABLED: Final = {
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}
ENDLESS: Final = 1_000_000_000
Unique = Callable[[str], str]


def _lines(first: int, count: int) -> list[Sent]:
    return [Sent(number % 2, str(number).encode()) for number in range(first, first + count)]


@pytest.mark.parametrize("hosts", ["0", "1"])
def test_a_posted_mirror_copies_once_across_a_kill_and_obeys_altered_offsets(
    hosts: str,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    tmp_path: Path,
    unique: Unique,
    create_topic: CreateTopic,
) -> None:
    topic, alias = unique("posted"), unique("src")
    copy = f"{alias}.{topic}"
    create_topic(region_a, topic, 2)
    write(region_a, topic, _lines(0, 100))
    file = write_worker(tmp_path, region_b, ENABLED | {"task.host.processes": hosts})
    config = mirror_config(region_a, region_b, alias, topic) | {"exactly.once.support": "required"}

    def arrived(count: int) -> None:
        until(
            lambda: (
                sum(len(log.records) for log in read(region_b, copy, committed=True).values())
                == count
            ),
            90,
            f"{count} committed records",
        )

    with Mirror(file, name="killed", program=DISTRIBUTED) as worker:
        rest = rest_of(worker)
        status, answer = rest.call("POST", "connectors", {"name": "m", "config": config})
        assert (status, "isolation.level=read_committed" in str(answer)) == (400, True), answer
        config["source.consumer.isolation.level"] = "read_committed"
        rest.ok("POST", "connectors", {"name": "m", "config": config})
        rest.wait_states("m", "RUNNING", "RUNNING", "RUNNING")
        arrived(100)
        write(region_a, topic, _lines(100, 200))
        worker.kill()
    with Mirror(file, name="successor", program=DISTRIBUTED) as worker:
        rest = rest_of(worker)
        arrived(300)
        assert_equal(read(region_a, topic), read(region_b, copy, committed=True))
        rest.ok("PUT", "connectors/m/stop")
        rest.wait_states("m", "STOPPED")
        partition = {"cluster": alias, "partition": 0, "topic": topic}
        change = {"offsets": [{"partition": partition, "offset": {"offset": 139}}]}
        rest.ok("PATCH", "connectors/m/offsets", change)
        assert rest.offsets("m") == {(topic, 0): 139, (topic, 1): 149}
        rest.ok("PUT", "connectors/m/resume")
        arrived(310)
        assert worker.stop() == 0


def test_a_third_partys_records_are_written_once_across_a_kill(
    region_b: KafkaAddress, tmp_path: Path, unique: Unique, create_topic: CreateTopic
) -> None:
    topic = unique("numbers")
    create_topic(region_b, topic, 1)
    config = {
        "connector.class": "CountingSource",
        "topic": topic,
        "count": str(ENDLESS),
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    file = write_worker(tmp_path, region_b, ENABLED)
    environ = install_plugin(tmp_path)

    def keys() -> list[bytes | None]:
        return [record.key for record in read(region_b, topic, committed=True)[0].records]

    with Mirror(file, name="killed", program=DISTRIBUTED, environ=environ) as worker:
        rest_of(worker).ok("POST", "connectors", {"name": "n", "config": config})
        until(lambda: len(keys()) > 100, 90, "some records", alive=worker)
        worker.kill()
    at_kill = len(keys())
    with Mirror(file, name="successor", program=DISTRIBUTED, environ=environ) as worker:
        rest_of(worker).wait_states("n", "RUNNING", "RUNNING")
        until(lambda: len(keys()) > at_kill + 100, 90, "more records", alive=worker)
        assert worker.stop() == 0
    found = keys()
    assert found == [b"k%d" % number for number in range(1, len(found) + 1)]
