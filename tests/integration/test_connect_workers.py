"""``connect-distributed-py`` and ``connect-standalone-py`` on real brokers: what a user of Java's Connect does."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, cast

import httpx
import pytest
from kafka_connect import KafkaConnect

from tests.integration.connect_process import (
    DISTRIBUTED,
    STANDALONE,
    Rest,
    install_plugin,
    mirror_config,
    rest_of,
    write_standalone,
    write_worker,
)
from tests.integration.mirror_process import Mirror, running, until, until_equal, write_file
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, ends, numbered, read, values_of, write
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

T = TypeVar("T")
CANARY: Final = "canary-5c1e"


@pytest.fixture(scope="module")
def rest(region_b: KafkaAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """A worker that several tests ask; each removes its connector."""
    file = write_worker(tmp_path_factory.mktemp("shared"), region_b)
    with Mirror(file, name="worker", program=DISTRIBUTED) as worker:
        yield rest_of(worker)
        assert worker.stop() == 0
        assert CANARY not in worker.log()


def test_a_mirror_posted_to_a_worker_copies_and_obeys(setup: Setup, rest: Rest) -> None:
    topic, alias = setup.topic("posted", 2), setup.unique("src")
    copy = f"{alias}.{topic}"
    write(setup.a, topic, numbered(0, 100, 2))

    def arrived(count: int) -> None:
        until_equal(lambda: sum(ends(setup.b, copy).values()), count)

    assert rest.ok("GET", "connectors") == []
    body = {"name": "m", "config": mirror_config(setup.a, setup.b, alias, topic)}
    rest.ok("POST", "connectors", body)
    rest.wait_states("m", "RUNNING", "RUNNING", "RUNNING")
    until(lambda: copy if ends(setup.b, copy) else None, 90, "the copy is created")
    arrived(100)
    labels = f'partition="0",source="{alias}",target="target",topic="{copy}"'
    counted = f"kafka_connect_mirror_mirrorsourceconnector_record_count{{{labels}}} 50.0"
    until(lambda: counted in httpx.get(f"{rest.url}metrics").text, 90, counted)

    rest.ok("PUT", "connectors/m/pause")
    rest.wait_states("m", "PAUSED", "PAUSED", "PAUSED")
    write(setup.a, topic, numbered(100, 100, 2))
    rest.ok("PUT", "connectors/m/resume")
    arrived(200)

    status, answer = rest.call("DELETE", "connectors/m/offsets")
    assert status == 400, answer
    rest.ok("PUT", "connectors/m/stop")
    rest.wait_states("m", "STOPPED")
    until_equal(lambda: rest.offsets("m"), {(topic, 0): 99, (topic, 1): 99}, "the last positions")
    partition = {"cluster": alias, "partition": 0, "topic": topic}
    change = {"offsets": [{"partition": partition, "offset": {"offset": 89}}]}
    rest.ok("PATCH", "connectors/m/offsets", change)
    assert rest.offsets("m") == {(topic, 0): 89, (topic, 1): 99}
    rest.ok("PUT", "connectors/m/resume")
    arrived(210)

    for times in (1, 2):
        rest.ok("PUT", "connectors/m/stop")
        rest.wait_states("m", "STOPPED")
        rest.ok("DELETE", "connectors/m/offsets")
        assert rest.offsets("m") == {}
        rest.ok("PUT", "connectors/m/resume")
        arrived(210 + 200 * times)
    for number, log in read(setup.b, copy).items():
        whole = [it.value for it in read(setup.a, topic)[number].records]
        ten = [] if number else whole[90:]
        assert [it.value for it in log.records] == [*whole, *ten, *whole, *whole]
    rest.ok("DELETE", "connectors/m")
    assert rest.ok("GET", "connectors") == []
    # As in Java the leader removes its states in the round that takes its work away.
    until(lambda: rest.call("GET", "connectors/m/status")[0] == 404, 90, "its states go")


def _said(call: Callable[[], T]) -> T:
    """Ask, and again where the group rebalances, as clients of Connect have to."""
    for _ in range(200):
        try:
            return call()
        except OSError as error:  # requests' HTTPError
            if not str(error).startswith(("409", "500")):
                raise
    return call()


def test_kafka_connect_py_drives_a_worker(setup: Setup, rest: Rest) -> None:
    topic, alias = setup.topic("client", 2), setup.unique("src")
    write(setup.a, topic, numbered(0, 10, 2))
    secret = {"source.cluster.ssl.truststore.password": CANARY}
    config = mirror_config(setup.a, setup.b, alias, topic) | {"tasks.max": "1"} | secret
    client = KafkaConnect(rest.url.rstrip("/"))
    assert _said(client.get_cluster_info)["version"] == "4.3.1"
    classes = [plugin["class"] for plugin in _said(client.list_connector_plugins)]
    assert config["connector.class"] in classes
    made = _said(lambda: client.create_connector({"name": "c", "config": config}))
    assert made["type"] == "source"
    assert _said(lambda: client.get_connector_config("c")) == config | {"name": "c"}
    rest.wait_states("c", "RUNNING", "RUNNING")
    assert _said(lambda: client.list_connectors(state="RUNNING")) == ["c"]
    expanded = _said(lambda: client.list_connectors(expand="status", state="RUNNING"))
    assert list(expanded) == ["c"]
    assert len(_said(lambda: client.list_connector_tasks("c"))) == 1
    assert _said(lambda: client.get_connector_task_status("c", 0))["state"] == "RUNNING"
    _said(lambda: client.restart_connector_task("c", 0))
    _said(lambda: client.restart_connector("c"))
    rest.wait_states("c", "RUNNING", "RUNNING")
    status = _said(lambda: client.get_connector_status("c"))
    owner = cast("dict[str, str]", status["connector"])["worker_id"]
    assert owner == rest.url.removeprefix("http://").rstrip("/")
    _said(lambda: client.pause_connector("c"))
    rest.wait_states("c", "PAUSED", "PAUSED")
    _said(lambda: client.resume_connector("c"))
    rest.wait_states("c", "RUNNING", "RUNNING")
    _said(lambda: client.restart_connector("c", include_tasks=True))
    rest.wait_states("c", "RUNNING", "RUNNING")
    updated = _said(lambda: client.update_connector("c", config | {"tasks.max": 2}))
    assert cast("dict[str, str]", updated["config"])["tasks.max"] == "2"
    rest.wait_states("c", "RUNNING", "RUNNING", "RUNNING")
    few = config | {"name": "c", "tasks.max": "0"}
    wrong = _said(lambda: client.validate_connector_config("MirrorSource", few))
    assert wrong["error_count"] == 1
    assert CANARY not in str(wrong)
    remote = {"c": {"topics": [f"{alias}.{topic}"]}}
    until_equal(lambda: _said(lambda: client.list_connector_topics("c")), remote)
    _said(lambda: client.reset_connector_topics("c"))
    _said(lambda: client.stop_connector("c"))
    rest.wait_states("c", "STOPPED")
    _said(lambda: client.delete_connector("c"))
    assert _said(client.list_connectors) == []


def said_of_itself(rest: Rest) -> list[str]:
    text = httpx.get(f"{rest.url}metrics", timeout=60).text
    return re.findall(r'mm2py_worker_state{state="(\w+)"} 1.0', text)


def test_what_a_connect_worker_does_not_copy_is_in_its_state(setup: Setup, rest: Rest) -> None:
    topic, alias = setup.topic("uncopied"), setup.unique("src")
    config = mirror_config(setup.a, setup.b, alias, topic)
    until_equal(lambda: said_of_itself(rest), ["RUNNING"], "without connectors it is well")
    rest.ok("POST", "connectors", {"name": "u", "config": config | {"replication.factor": "3"}})
    until_equal(lambda: said_of_itself(rest), ["DEGRADED"], "the copy cannot be created")
    assert rest.states("u")[:1] == ["RUNNING"]
    rest.ok("PUT", "connectors/u/config", config)
    until_equal(lambda: said_of_itself(rest), ["RUNNING"], "it is created")
    rest.ok("DELETE", "connectors/u")


@pytest.mark.parametrize("hosts", [0, 2])
def test_a_third_partys_records_pass_the_converters(setup: Setup, hosts: int) -> None:
    topic = setup.topic("counted", 1, on=setup.b)
    config = {
        "connector.class": "CountingSource",
        "topic": topic,
        "count": "3",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    file = write_worker(setup.folder, setup.b, {"task.host.processes": str(hosts)})
    environ = install_plugin(setup.folder)
    with running(file, name="worker", program=DISTRIBUTED, environ=environ, ready=False) as worker:
        rest = rest_of(worker)
        listed = cast("list[dict[str, str]]", rest.ok("GET", "connector-plugins"))
        mine = [it for it in listed if it["class"] == "com.example.CountingSourceConnector"]
        assert [(it["type"], it["version"]) for it in mine] == [("source", "1.2.3")]
        refused = {"name": "n", "config": config | {"count": "many"}}
        status, answer = rest.call("POST", "connectors", refused)
        assert (status, "count: is no number" in str(answer)) == (400, True), answer
        transformed = config | {"transforms": "a"}
        status, answer = rest.call("POST", "connectors", {"name": "n", "config": transformed})
        assert (status, "transforms.a.type" in str(answer)) == (400, True), answer

        marking = {
            "transforms.a.type": "InsertHeader",
            "transforms.a.header": "from",
            "transforms.a.value.literal": "here",
        }
        rest.ok("POST", "connectors", {"name": "n", "config": transformed | marking})
        rest.wait_states("n", "RUNNING", "RUNNING")
        until(lambda: ends(setup.b, topic) == {0: 3}, 90, lambda: str(ends(setup.b, topic)))
        found = read(setup.b, topic)[0].records
        assert [(it.key, it.value, it.headers) for it in found] == [
            (b"k1", b'{"number":1,"even":null}', (("half", b"0.5"), ("from", b"here"))),
            (b"k2", b'{"number":2,"even":true}', (("half", b"1.0"), ("from", b"here"))),
            (b"k3", b'{"number":3,"even":false}', (("half", b"1.5"), ("from", b"here"))),
        ]
        rest.ok("PUT", "connectors/n/stop")
        rest.wait_states("n", "STOPPED")
        position = {"partition": {"counter": "one"}, "offset": {"number": 3}}
        until_equal(lambda: rest.ok("GET", "connectors/n/offsets"), {"offsets": [position]})


def test_two_workers_share_a_mirror_and_forward_to_each_other(setup: Setup) -> None:
    topic, alias = setup.topic("shared", 2), setup.unique("src")
    copy = f"{alias}.{topic}"
    write(setup.a, topic, numbered(0, 20, 2))
    soon = {
        "scheduled.rebalance.max.delay.ms": "6000",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "task.host.processes": "1",
    }
    file = write_worker(setup.folder, setup.b, soon)
    with (
        Mirror(file, name="first", program=DISTRIBUTED) as first,
        Mirror(file, name="second", program=DISTRIBUTED) as second,
    ):
        one, two = rest_of(first), rest_of(second)
        config = mirror_config(setup.a, setup.b, alias, topic)
        two.ok("PUT", "connectors/m/config", config)
        one.ok("PUT", "connectors/m/config", config)

        def owners(rest: Rest) -> set[str]:
            status, answer = rest.call("GET", "connectors/m/status")
            if status != 200 or rest.states("m") != ["RUNNING"] * 3:
                return set()
            tasks = cast("dict[str, list[dict[str, str]]]", answer)["tasks"]
            return {task["worker_id"] for task in tasks}

        both = {rest.url.removeprefix("http://").rstrip("/") for rest in (one, two)}
        until(
            lambda: owners(one) == owners(two) == both, 120, lambda: f"{owners(one)} {owners(two)}"
        )
        for rest in (one, two):
            rest.ok("POST", "connectors/m/tasks/0/restart")
            rest.ok("POST", "connectors/m/tasks/1/restart")
        until_equal(lambda: sum(ends(setup.b, copy).values()), 20)
        status = cast("dict[str, dict[str, str]]", one.ok("GET", "connectors/m/status"))
        leads, other = first, second
        if status["connector"]["worker_id"] not in one.url:  # connectors run where the group is led
            leads, other, one = second, first, two
        other.kill()
        until_equal(lambda: said_of_itself(one), ["UNASSIGNED"], "its task waits for its return")
        mine = {one.url.removeprefix("http://").rstrip("/")}
        until(lambda: owners(one) == mine, 90, lambda: f"{one.states('m')} {owners(one)}")
        until_equal(lambda: said_of_itself(one), ["RUNNING"], "all runs here")
        write(setup.a, topic, numbered(20, 20, 2))
        until(
            lambda: sum(ends(setup.b, copy).values()) >= 40, 120, lambda: f"{ends(setup.b, copy)}"
        )
        assert {int(it) for it in values_of(setup.b, copy)} == set(range(40)), "nothing is lost"
        assert leads.stop() == 0


def test_a_standalone_worker_continues_from_its_file(setup: Setup) -> None:
    topic, alias, counted = setup.topic("alone", 1), setup.unique("src"), setup.unique("counted")
    copy = f"{alias}.{topic}"
    setup.create_topic(setup.b, counted, 1)
    write(setup.a, topic, [Sent(0, str(number).encode()) for number in range(50)])
    mirror = setup.folder / "mirror.properties"
    # One task, whether or not the shared region holds heartbeats of another test.
    own = {"name": "m", "tasks.max": "1"}
    write_file(mirror, mirror_config(setup.a, setup.b, alias, topic) | own)
    counting = {"connector.class": "CountingSource", "topic": counted, "count": 3}
    text = {"key.converter": "StringConverter", "value.converter": "JsonConverter"}
    body = setup.folder / "counting.json"
    body.write_text(json.dumps({"name": "n", "config": counting | text}))
    arguments = (str(mirror), str(body))
    file, environ = write_standalone(setup.folder, setup.b), install_plugin(setup.folder)

    with Mirror(file, *arguments, name="first", program=STANDALONE, environ=environ) as worker:
        rest = rest_of(worker)
        rest.wait_states("m", "RUNNING", "RUNNING")
        rest.wait_states("n", "RUNNING", "RUNNING")
        until(lambda: copy if ends(setup.b, copy).get(0) == 50 else None, 90, "all is copied")
        until(lambda: ends(setup.b, counted) == {0: 3}, 90, "all is counted")
        rest.ok("PUT", "connectors/m/pause")
        rest.wait_states("m", "PAUSED", "PAUSED")
        rest.ok("PUT", "connectors/m/resume")
        rest.ok("POST", "connectors/m/restart?includeTasks=true")
        rest.wait_states("m", "RUNNING", "RUNNING")
        assert worker.stop() == 0
    write(setup.a, topic, [Sent(0, str(number).encode()) for number in range(50, 70)])
    body.write_text(json.dumps({"name": "n", "config": counting | text | {"count": 5}}))
    with Mirror(file, *arguments, name="second", program=STANDALONE, environ=environ) as worker:
        rest = rest_of(worker)
        until(lambda: ends(setup.b, copy) == {0: 70}, 90, lambda: str(ends(setup.b, copy)))
        until(lambda: ends(setup.b, counted) == {0: 5}, 90, lambda: str(ends(setup.b, counted)))
        rest.ok("DELETE", "connectors/n")
        assert rest.ok("GET", "connectors") == ["m"]
        assert worker.stop() == 0
    copies = [record.value for record in read(setup.b, copy)[0].records]
    assert copies == [str(number).encode() for number in range(70)], "nothing is copied twice"
    keys = [record.key for record in read(setup.b, counted)[0].records]
    assert keys == [b"k1", b"k2", b"k3", b"k4", b"k5"]
