"""``connect-standalone-py`` on real brokers: connectors from files, offsets in a file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.connect_process import (
    STANDALONE,
    install_plugin,
    mirror_config,
    rest_of,
    write_standalone,
)
from tests.integration.mirror_process import Mirror, until, write_file
from tests.integration.traffic import Sent, ends, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_standalone_worker_continues_from_its_file(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
) -> None:
    topic, alias, counted = unique("alone"), unique("src"), unique("counted")
    copy = f"{alias}.{topic}"
    create_topic(region_a, topic, 1)
    create_topic(region_b, counted, 1)
    write(region_a, topic, [Sent(0, str(number).encode()) for number in range(50)])
    mirror = tmp_path / "mirror.properties"
    # One task, whether or not the shared region holds heartbeats of another test.
    own = {"name": "m", "tasks.max": "1"}
    write_file(mirror, mirror_config(region_a, region_b, alias, topic) | own)
    counting = {"connector.class": "CountingSource", "topic": counted, "count": 3}
    text = {"key.converter": "StringConverter", "value.converter": "JsonConverter"}
    body = tmp_path / "counting.json"
    body.write_text(json.dumps({"name": "n", "config": counting | text}))
    arguments = (str(mirror), str(body))
    file, environ = write_standalone(tmp_path, region_b), install_plugin(tmp_path)

    with Mirror(file, *arguments, name="first", program=STANDALONE, environ=environ) as worker:
        rest = rest_of(worker)
        rest.wait_states("m", "RUNNING", "RUNNING")
        rest.wait_states("n", "RUNNING", "RUNNING")
        until(lambda: copy if ends(region_b, copy).get(0) == 50 else None, 90, "all is copied")
        until(lambda: ends(region_b, counted) == {0: 3}, 90, "all is counted")
        rest.ok("PUT", "connectors/m/pause")
        rest.wait_states("m", "PAUSED", "PAUSED")
        rest.ok("PUT", "connectors/m/resume")
        rest.ok("POST", "connectors/m/restart?includeTasks=true")
        rest.wait_states("m", "RUNNING", "RUNNING")
        assert worker.stop() == 0
    write(region_a, topic, [Sent(0, str(number).encode()) for number in range(50, 70)])
    body.write_text(json.dumps({"name": "n", "config": counting | text | {"count": 5}}))
    with Mirror(file, *arguments, name="second", program=STANDALONE, environ=environ) as worker:
        rest = rest_of(worker)
        until(lambda: ends(region_b, copy) == {0: 70}, 90, lambda: str(ends(region_b, copy)))
        until(lambda: ends(region_b, counted) == {0: 5}, 90, lambda: str(ends(region_b, counted)))
        rest.ok("DELETE", "connectors/n")
        assert rest.ok("GET", "connectors") == ["m"]
        assert worker.stop() == 0
    copies = [record.value for record in read(region_b, copy)[0].records]
    assert copies == [str(number).encode() for number in range(70)], "nothing is copied twice"
    keys = [record.key for record in read(region_b, counted)[0].records]
    assert keys == [b"k1", b"k2", b"k3", b"k4", b"k5"]
