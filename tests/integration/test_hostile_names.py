"""Groups of a real cluster with names that no tool would give: mirrored, listed, planned for failover, or named with the reason."""

import asyncio
import json
import random
import string
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.protocol.call import Call
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.schema import consumer_schema, schema_call
from mm2py.protocol.topics import NewTopic
from tests.integration.failovers import Drivers
from tests.integration.mirror_process import Flow, command_here, running, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, producer, write
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMED: Final = (
    "billing",
    "a/b",
    "..",
    "%2e",
    ".",
    "two\nlines",
    "\x1b[2J",
    "\u202eé",
    " ",
    "x" * 20_000,
)
SYNC: Final = {
    "{source}->{target}.groups": "(?s).*",  # a dot leaves out line breaks, as in Java
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.refresh.groups.interval.seconds": "1",
}


def nameless_commit(topic: str, offset: int) -> Call[int]:
    """Return the commit of a Java client before 2.2 without group.id."""
    kind = consumer_schema.OffsetCommitRequest

    def request() -> consumer_schema.OffsetCommitRequest:
        part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        parts = [part(partition_index=0, committed_offset=offset, committed_metadata="")]
        topics = [kind.OffsetCommitRequestTopic(name=topic, partitions=parts)]
        return kind(group_id="", member_id="", topics=topics)

    def code(answer: consumer_schema.OffsetCommitResponse) -> int:
        return answer.topics[0].partitions[0].error_code

    return schema_call(request, consumer_schema.OffsetCommitResponse, code, (2, 7))


MANY: Final = 500
LEGAL: Final = string.ascii_letters + string.digits + "._-"
ODD_TOPICS: Final = (
    "-", "--help", "-0", "0", "a-0", "a.0-1", "...", "_", "None", "null", "true", "NaN", "con", "x.replica.y", "heartbeats.mine",
    "internal", ".internal", "x" * 249, "y" * 248, "z" * 200,
)  # fmt: skip
ODD_SIGNS: Final = "aZ09 ./%\\\"'`$;&|<>?*#\t\n\r\x00\x1b\x7f\u00e9\u202e\u2028\ufeff\U0001f4a9"


def many_topics(chance: random.Random) -> set[str]:
    names = {*ODD_TOPICS}
    while len(names) < MANY:
        name = "".join(chance.choices(LEGAL, k=chance.randint(1, 60)))
        # A broker refuses a topic whose metrics would have the name of another one's.
        if name[0] not in "._" and name.replace(".", "_") not in {
            it.replace(".", "_") for it in names
        }:
            names.add(name)
    return names - {".", ".."}


def many_groups(chance: random.Random) -> list[str]:
    return sorted(
        {"".join(chance.choices(ODD_SIGNS, k=chance.randint(1, 40))) for _ in range(MANY)}
    )


async def fill(address: str, topics: Sequence[str], groups: Sequence[str]) -> None:
    async with Cluster.of({"bootstrap.servers": address}, alias="A") as cluster:
        made = await Admin(cluster).create_topics([NewTopic(it, 1, 1, {}) for it in topics])
        assert {it: error for it, error in made.items() if error is not None} == {}
        await Admin(cluster).describe_group(groups[0])  # waits for the coordinators
        committing = GroupAdmin(cluster)
        for number, group in enumerate(groups):
            place = OffsetToCommit(topics[number % len(topics)], 0, 1)
            (refused,) = (await committing.commit(group, [place])).values()
            assert refused is None, group


def test_hundreds_of_odd_topics_and_groups_are_mirrored_listed_and_planned_or_named(
    setup: Setup, new_region: NewRegion, seed: int
) -> None:
    chance = random.Random(seed)
    source, target = new_region("source"), new_region("target")
    topics, groups = sorted(many_topics(chance)), many_groups(chance)
    asyncio.run(fill(source.bootstrap_servers, topics, groups))
    client = producer(source)
    for topic in topics:
        client.produce(topic, b"1", partition=0)
    assert client.flush(60) == 0
    flow = setup.flow(".*", SYNC, source=source, target=target)
    impossible = {it for it in topics if len(flow.remote(it)) > 249}
    assert impossible >= {"x" * 249, "y" * 248}
    alike = {it for it in topics if it.startswith((".", "__"))}
    with running(flow.file, ready=False) as worker:
        url = public_url(worker)
        path = f"{url}flows/{quote(flow.name)}"

        def rows() -> dict[str, dict[str, Any]]:
            return {it["topic"]: it for it in get(f"{path}/topics")}

        def missing() -> set[str]:
            copied = {it for it, row in rows().items() if row["lag_records"] == 0}
            return {*topics} - copied - impossible - alike

        until(
            lambda: not missing(),
            90,
            lambda: f"copies of {len(missing())}: {sorted(missing())}",
            alive=worker,
        )
        shown = get(path)
        notes = json.dumps(shown["notes"])
        assert {it for it in alike if f"{it} (a name that begins" not in notes} == set()
        named = " ".join(it["where"] for it in shown["errors"])
        assert {it for it in impossible if f"topic {it} waits" not in named} == set()
        assert {rows()[it]["lag_records"] for it in impossible} <= {1, None}
        assert {*rows()} == {*topics} - alike
        copied = {*rows()} - impossible
        assert {it["target_topic"] for it in get(f"{path}/topics") if it["topic"] in copied} == {
            flow.remote(it) for it in copied
        }
        assert (shown["partitions"], shown["held_partitions"]) == (len(rows()), len(impossible))
        places = {it: topics[number % len(topics)] for number, it in enumerate(groups)}
        expected = {it: committed_at(at, flow, copied) for it, at in places.items()}
        until(
            lambda: views(path) == expected,
            90,
            lambda: f"what the groups have: {differences(views(path), expected)}",
            alive=worker,
        )
        environ = {"MM2PY_URL": url, "NO_COLOR": "1"}
        name = f"{flow.source_alias}/{flow.target_alias}"
        for words in (
            ("flow", "describe", name, "-o", "wide"),
            ("topics",),
            ("lag", "--top", "1000"),
            ("group", "list", name, "--top", "10000"),
        ):
            ended = command_here(*words, environ=environ)
            assert ended.exit_code in {0, 3}, ended.output
            assert not {*ended.output} & {*"\x00\x1b\r\u202e\u2028"}, words
        table = command_here("group", "list", name, "--top", "10000", "-o", "json", environ=environ)
        assert {it["group"] for it in json.loads(table.stdout)} == {*groups}
        table = command_here("topics", "-o", "json", environ=environ)
        assert {it["topic"] for it in json.loads(table.stdout)} == {*rows()}
        plan = Drivers(flow, worker).run("failover", "--plan", "-o", "json")
        assert plan.code in {0, 3}, plan.said
        planned = plan.document
        assert {
            it["topic"]: it["copied_to"] for it in planned["topics"] if it["topic"] in copied
        } == {it: {"0": 1} for it in copied}
        assert {it["topic"] for it in planned["topics"]} == {*rows()}
        assert {it["group"] for it in planned["groups"]} == {*groups}
        assert "Traceback" not in plan.said


Rows = dict[str, list[tuple[object, ...]]]


def views(path: str) -> Rows:
    """Return what is shown of each group: its topic, the copy, and its offsets on both sides."""
    members = ("topic", "partition", "target_topic", "committed", "committed_there")
    return {
        it["group"]: [tuple(part[member] for member in members) for part in it["partitions"]]
        for it in get(f"{path}/groups?top=10000")
    }


def differences(there: Rows, expected: Rows) -> Sequence[object]:
    """Return the first groups that are shown otherwise."""
    names = sorted(there.keys() | expected.keys())
    return [
        (it, there.get(it), expected.get(it)) for it in names if there.get(it) != expected.get(it)
    ][:5]


def committed_at(topic: str, flow: Flow, copied: set[str]) -> list[tuple[object, ...]]:
    """Return what is to be shown of a group that has read the one record of a topic; one that is not copied has nothing there."""
    return [(topic, 0, flow.remote(topic), 1, 1 if topic in copied else None)]


async def committed_there(address: str) -> dict[str, list[int]]:
    async with Cluster.of({"bootstrap.servers": address}, alias="B") as cluster:
        answers = await GroupAdmin(cluster).committed(NAMED)
        return {
            group: [it.offset for it in answer.values()]
            for group, answer in answers.items()
            if not isinstance(answer, Exception)
        }


async def commit_all(address: str, topic: str, offset: int) -> None:
    async with Cluster.of({"bootstrap.servers": address}, alias="A") as cluster:
        groups = GroupAdmin(cluster)
        await Admin(cluster).describe_group(NAMED[0])  # waits for the coordinators of a new cluster
        for name in NAMED:
            (refused,) = (await groups.commit(name, [OffsetToCommit(topic, 0, offset)])).values()
            assert refused is None
        connection = await cluster.coordinator(NAMED[0])
        assert await connection.call(nameless_commit(topic, offset)) == 0


def test_a_group_without_a_name_is_named_and_all_others_fail_over(
    setup: Setup, new_region: NewRegion
) -> None:
    source, target = new_region("source"), new_region("target")
    topic = setup.topic("orders", on=source)
    write(source, topic, [Sent(0, b"%d" % number) for number in range(100)])
    asyncio.run(commit_all(source.bootstrap_servers, topic, 40))
    flow = setup.flow(topic, SYNC, source=source, target=target)
    with running(flow.file) as worker:
        until(
            lambda: (
                asyncio.run(committed_there(target.bootstrap_servers))
                == {name: [40] for name in NAMED}
            ),
            90,
            "all groups that have a name",
            alive=worker,
        )
        url = public_url(worker)
        views = {it["group"]: it for it in get(f"{url}flows/{quote(flow.name)}/groups")}
        assert views.keys() == {*NAMED, ""}
        assert "a request needs a group" in views[""]["not_synced"]
        assert {views[it]["not_synced"] for it in NAMED} == {""}
        for name in NAMED:
            path = f"{url}flows/{quote(flow.name)}/groups/{quote(name, safe='')}"
            assert get(path)["group"] == name
        shown = get(f"{url}flows/{quote(flow.name)}")
        assert shown["state"] == "RUNNING"
        assert "such as '': a request needs a group" in json.dumps(shown["notes"])
        commands(url, f"{flow.source_alias}/{flow.target_alias}")
        plan_for_failover(Drivers(flow, worker), setup)


def get(url: str) -> Any:
    status, answer = ask(url)
    assert status == 200, answer
    return answer


def commands(url: str, flow: str) -> None:
    environ = {"MM2PY_URL": url, "NO_COLOR": "1"}
    listed = command_here("group", "list", flow, environ=environ)
    assert listed.exit_code == 0, listed.output
    assert '""' in listed.stdout
    assert '"" not synced: cannot be read: a request needs a group' in listed.stderr
    for name in NAMED:
        assert command_here("group", "describe", flow, name, environ=environ).exit_code == 0
    nameless = command_here("group", "describe", flow, "", environ=environ)
    assert (nameless.exit_code, nameless.stderr.count("\n")) == (2, 1), nameless.output


def plan_for_failover(drivers: Drivers, setup: Setup) -> None:
    report = setup.folder / "drill.json"
    for words in (
        ("failover", "--plan", "-o", "json"),
        ("failover", "--execute", "--dry-run"),
        ("drill", "--report", str(report)),
    ):
        ended = drivers.run(*words)
        assert ended.code in {0, 3}, ended.said
        assert "Traceback" not in ended.said
    drill = json.loads(report.read_text())
    rows = {it["group"]: it["not_synced"] for it in drill["plan"]["groups"]}
    assert rows.keys() == {*NAMED, ""}
    assert "a request needs a group" in rows[""]
    assert (drill["ready"], drill["reasons"]) == (True, [])
