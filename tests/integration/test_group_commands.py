"""Groups and offsets of a flow, and of two flows into one topic, on real brokers: REST, ``mm2py group``, the client library."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import TopicPartition as Where
from typer.testing import CliRunner

from mm2py.mirror.offset_lookup import Place, Translation
from mm2py.mirror_client import exact_offsets, translate_offset, translate_offsets
from mm2py.types import TopicPartition
from mm2py_cli.app import app
from tests.integration.active_active import IDENTITY
from tests.integration.flow_questions import Asked
from tests.integration.mirror_process import Flow, command_here, running, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.test_checkpoints import consumer
from tests.integration.traffic import commit, numbered, offset_of, producer, write
from tests.integration.transactions import ABORTED, write_one
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECORDS: Final = 300
SYNC: Final = {
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
    "{source}.consumer.isolation.level": "read_committed",
}


def command(url: str, *words: str) -> tuple[int, Any]:
    """Run ``mm2py group``; return exit code and JSON."""
    ended = CliRunner().invoke(
        app, ["group", *words, "-o", "json"], env={"MM2PY_URL": url, "NO_COLOR": "1"}
    )
    return ended.exit_code, json.loads(ended.stdout) if ended.stdout else ended.stderr


def get(url: str, path: str, query: Mapping[str, object] | None = None) -> tuple[int, Any]:
    """Ask the REST API."""
    asked = f"?{urlencode(query)}" if query else ""
    return ask(f"{url}{quote(path.removeprefix('/'))}{asked}")


@pytest.fixture
def topic(setup: Setup) -> str:
    """A topic with 300 records, a transaction that was aborted, and 10 records behind it."""
    name = setup.topic("orders", 2)
    write(setup.a, name, numbered(0, RECORDS))
    client = producer(setup.a, transactional_id=name)
    client.init_transactions(60)
    write_one(client, name, [ABORTED] * 10, commit=False)  # five of them in partition 0
    # The coordinator answers before it writes the markers, and the records below could overtake them.
    reader, markers_end = consumer(setup.a, "reads-end"), RECORDS + 5 + 1
    until(lambda: reader.get_watermark_offsets(Where(name, 0))[1] == markers_end, 60, "the marker")
    reader.close()
    write(setup.a, name, numbered(RECORDS, 10))
    return name


def test_groups_and_offsets_are_exact_over_rest_command_client(setup: Setup, topic: str) -> None:
    group, left_out = setup.unique("billing"), setup.unique("left-out")
    commit(setup.a, group, topic, {0: 150})
    commit(setup.a, left_out, topic, {0: 10})
    properties = {"{source}->{target}.groups.exclude": "left-out.*"}
    flow = setup.flow(topic, SYNC | properties)
    with running(flow.file, ready=False) as worker:
        until_equal(lambda: offset_of(setup.b, flow.remote(topic), group), 150, alive=worker)
        url = public_url(worker)
        path = f"/flows/{flow.name}"
        name = f"{flow.source_alias}/{flow.target_alias}"
        look_at_the_group(url, name, group, left_out)
        first = look_at_offsets(url, path, name, topic, flow)
        refuse(url, path, topic)
        # A member at the target: its offsets are its own.
        member = consumer(setup.b, group)
        member.subscribe([flow.remote(topic)])
        until(lambda: member.consume(1, 1.0), 60, "a record for the member")
        commit(setup.a, group, topic, {0: 200})
        until(
            lambda: "in use" in str(get(url, path)[1]["notes"]),
            60,
            lambda: str(get(url, path)[1]),
            alive=worker,
        )
        assert get(url, path)[1]["state"] == "RUNNING"
        _, found = command(url, "describe", name, group)
        assert (found["state_there"] != "Empty", found["members_there"]) == (True, 1)
        assert "members on the target" in found["not_synced"]
        assert offset_of(setup.b, flow.remote(topic), group) == 150
        member.close()
        until_equal(lambda: offset_of(setup.b, flow.remote(topic), group), 200, alive=worker)
    by_client(setup.b, flow, topic, group, first)


def test_a_group_ahead_of_the_copy_shows_what_it_would_read_again_and_why(setup: Setup) -> None:
    topic, group = setup.topic("ahead", 1), setup.unique("billing")
    write(setup.a, topic, numbered(0, 100))
    commit(setup.a, group, topic, {0: 100})
    flow = setup.flow(topic, SYNC)
    with running(flow.file, ready=False) as worker:
        remote = flow.remote(topic)
        until(lambda: offset_of(setup.b, remote, group) == 100, 90, "group sync", alive=worker)
        url, name = public_url(worker), f"{flow.source_alias}/{flow.target_alias}"
        Asked(worker).pause(flow, topic=topic)
        write(setup.a, topic, numbered(100, 60))
        commit(setup.a, group, topic, {0: 140})
        until_equal(lambda: command(url, "describe", name, group)[1]["reads_again"], 40)
        code, found = command(url, "describe", name, group)
        (part,) = found["partitions"]
        assert (code, part["place"], part["exact"]) == (0, "not-yet-copied", None)
        assert (part["reads_again"], part["skips"], found["reads_again"]) == (40, 0, 40)
        assert "40 offsets ahead of the copy, which ends at 100" in part["reason"]
        shown = CliRunner().invoke(
            app, ["group", "describe", name, group], env={"MM2PY_URL": url, "NO_COLOR": "1"}
        )
        assert part["reason"] in " ".join((shown.stdout + shown.stderr).split())


def look_at_the_group(url: str, name: str, group: str, left_out: str) -> None:
    code, found = command(url, "list", name)
    (mine,) = [it for it in found if it["group"] == group]
    assert (code, mine["reads_again"], mine["skips"], mine["not_synced"]) == (0, 0, 0, "")
    assert left_out not in {it["group"] for it in found}
    code, found = command(url, "describe", name, group)
    (part,) = found["partitions"]
    wanted = {"committed": 150, "exact": 150, "committed_there": 150, "place": "copied"}
    assert (code, {key: part[key] for key in wanted}) == (0, wanted)
    _, found = command(url, "describe", name, left_out)
    assert "leave it out" in found["not_synced"]
    code, text = command(url, "describe", name, "no-such-group")
    assert (code, "No group no-such-group" in text) == (1, True)


def numbers(region: KafkaAddress, topic: str) -> dict[int, bytes]:
    """Return the records of partition 0 by offset."""
    client = consumer(region, "reads-alone", **{"isolation.level": "read_committed"})
    client.assign([Where(topic, 0, 0)])
    found: dict[int, bytes] = {}

    def all_there() -> bool:
        polled = client.consume(500, 1.0)
        found.update({it.offset() or 0: it.value() or b"" for it in polled if it.error() is None})
        return len(found) >= RECORDS + 10

    until(all_there, 60, "all records")
    client.close()
    return found


def look_at_offsets(url: str, path: str, name: str, topic: str, flow: Flow) -> int:
    """Return the offset of the first record behind the aborted ones."""
    found: Any = None
    offsets = sorted(numbers(flow.source, topic))
    first, last = offsets[RECORDS], offsets[-1]  # behind the aborted records and their marker
    assert first > RECORDS
    for offset, place, there in (
        (0, "copied", 0),
        (RECORDS - 1, "copied", RECORDS - 1),
        (first - 1, "never-existed", RECORDS),
        (first, "copied", RECORDS),
        (last, "copied", RECORDS + 9),
        (last + 1, "at-end", RECORDS + 10),
        (last + 100, "not-yet-copied", None),
    ):
        asked = {"topic": topic, "partition": 0, "offset": offset}
        status, found = get(url, f"{path}/translate", asked)
        assert (status, found["place"], found["to_offset"]) == (200, place, there), found
    assert f"the log ends at {last + 1}" in found["text"]
    code, found = command(url, "translate", name, topic, "0", str(first))
    assert (code, found["to_topic"], found["to_offset"]) == (0, flow.remote(topic), 300)
    code, found = command(
        url, "translate", name, flow.remote(topic), "0", "300", "--direction", "to-source"
    )
    assert (code, found["to_topic"], found["to_offset"]) == (0, topic, first)
    assert command(url, "translate", name, topic, "0", str(first - 1))[0] == 3
    return first


def refuse(url: str, path: str, topic: str) -> None:
    for status, words, query in (
        (422, "query.offset", {"topic": topic, "partition": 0}),
        (422, "query.offset", {"topic": topic, "partition": 0, "offset": -1}),
        (422, "query.topic", {"topic": "a b", "partition": 0, "offset": 1}),
        (422, "query.direction", {"topic": topic, "partition": 0, "offset": 1, "direction": "x"}),
        (404, "no partition", {"topic": topic, "partition": 7, "offset": 1}),
        (404, "no partition", {"topic": "nothing", "partition": 0, "offset": 1}),
        (
            400,
            "is no copy",
            {"topic": topic, "partition": 0, "offset": 1, "direction": "to-source"},
        ),
    ):
        found, answer = get(url, f"{path}/translate", query)
        assert (found, words in answer["message"]) == (status, True), answer


def by_client(region: KafkaAddress, flow: Flow, topic: str, group: str, first: int) -> None:
    props = {"bootstrap.servers": region.bootstrap_servers}
    there = TopicPartition(flow.remote(topic), 0)
    assert exact_offsets(props, flow.source_alias, group)[there].offset == 200
    assert translate_offsets(props, flow.source_alias, group)[there].offset == 200
    where = TopicPartition(topic, 0)
    found = translate_offset(props, flow.source_alias, where, first)
    assert found == Translation(Place.COPIED, RECORDS)
    back = translate_offset(props, flow.source_alias, there, 300, to_source=True)
    assert back == Translation(Place.COPIED, first)
    assert translate_offset(props, "no-such-cluster", where, 1) is None


KEEPS_NAMES = {"replication.policy.class": IDENTITY}
PROPERTIES = {"{source}->{target}.sync.group.offsets.enabled": "true", **KEEPS_NAMES}
WHY = "write into"


@pytest.mark.faults
def test_a_group_of_two_sources_skips_no_record_of_either(
    setup: Setup, new_region: NewRegion
) -> None:
    third = new_region("third")
    shared, alone = setup.topic_on_both("shared"), setup.topic_on_both("alone")
    setup.create_topic(third, shared)
    flow = setup.flow(f"{shared},{alone}", PROPERTIES)
    other = setup.flow(shared, PROPERTIES, source=third)
    group = setup.unique("billing")
    with running(flow.file, ready=False) as worker, running(other.file, ready=False) as beside:
        for region in setup.a, third:
            write(region, shared, numbered(0, 100))
        write(setup.a, alone, numbered(0, 100))
        until(
            lambda: all(
                WHY in _notes(public_url(it), f) for it, f in ((worker, flow), (beside, other))
            ),
            alive=worker,
        )
        for region in setup.a, third:
            commit(region, group, shared, {0: 50})
        commit(setup.a, group, alone, {0: 50})
        until(lambda: offset_of(setup.b, alone, group) == 50, 90, "the group", alive=worker)
        _look(flow, public_url(worker), group, shared, alone)
        for region in setup.a, third:
            commit(region, group, shared, {0: 60})
        commit(setup.a, group, alone, {0: 60})
        until(lambda: offset_of(setup.b, alone, group) == 60, 90, "the group", alive=worker)
        assert offset_of(setup.b, shared, group) < 0, "50 records of one source would be skipped"

        props = {"bootstrap.servers": setup.b.bootstrap_servers, **KEEPS_NAMES}
        for positions in translate_offsets, exact_offsets:
            found = positions(props, flow.source_alias, group)
            assert {it.topic for it in found} == {alone}
        environ = {"MM2PY_URL": public_url(worker), "NO_COLOR": "1"}
        asked = ("failover", flow.file, "--flow", flow.name, "--plan", "-o", "json")
        plan = command_here(*asked, environ=environ)
        (planned,) = [it for it in json.loads(plan.stdout)["groups"] if it["group"] == group]
        assert f"{WHY} {shared} too" in planned["not_synced"]


def _notes(url: str, flow: Flow) -> str:
    return str(get(url, f"/flows/{flow.name}")[1])


def _look(flow: Flow, url: str, group: str, shared: str, alone: str) -> None:
    name = flow.name.replace("->", "/")
    code, found = command(url, "describe", name, group)
    places = {it["topic"]: (it["place"], it["continues_at"]) for it in found["partitions"]}
    assert (code, places) == (3, {shared: ("shared", None), alone: ("copied", 50)})
    assert f"{WHY} {shared} too" in found["not_synced"]
    _, listed = command(url, "list", name)
    assert WHY in json.dumps([it["not_synced"] for it in listed if it["group"] == group])
    code, found = command(url, "translate", name, shared, "0", "50")
    assert (code, WHY in found["text"]) == (0, True)
