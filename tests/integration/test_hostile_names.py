"""Groups of a real cluster with names that no tool would give: mirrored, listed, planned for failover, or named with the reason."""

import asyncio
import json
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from tests.integration.mirror_process import Flow, command_here, running, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import producer
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
NAMELESS: Final = "a request needs a group"
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


MANY: Final = 150
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
    odd = {"".join(chance.choices(ODD_SIGNS, k=chance.randint(1, 40))) for _ in range(MANY)}
    return sorted(odd | {*NAMED})


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
        connection = await cluster.coordinator(groups[0])
        assert await connection.call(nameless_commit(topics[0], 1)) == 0


def test_hundreds_of_odd_topics_and_groups_one_without_a_name_are_mirrored_and_planned_or_named(
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
        expected = {it: committed_at(at, flow, copied) for it, at in places.items()} | {"": []}
        until_equal(lambda: views(path), expected, alive=worker)
        check_groups(path)
        name = f"{flow.source_alias}/{flow.target_alias}"
        environ = {"MM2PY_URL": url, "NO_COLOR": "1"}
        check_commands(environ, name, topics={*rows()}, groups={*groups, ""})
        for document in plans(Drivers(flow, worker), setup.folder / "drill.json"):
            there = {it["topic"]: it["copied_to"] for it in document["topics"]}
            assert {it: there[it] for it in copied} == {it: {"0": 1} for it in copied}
            assert there.keys() == {*rows()}
            not_synced = {it["group"]: it["not_synced"] for it in document["groups"]}
            assert not_synced.keys() == {*groups, ""}
            assert NAMELESS in not_synced[""]


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


def get(url: str) -> Any:
    status, answer = ask(url)
    assert status == 200, answer
    return answer


def check_groups(path: str) -> None:
    """Each group that has a name has an address; the one without is named with the reason, and is no error of the flow."""
    shown = {it["group"]: it["not_synced"] for it in get(f"{path}/groups?top=10000")}
    assert NAMELESS in shown[""]
    assert {shown[it] for it in NAMED} == {""}
    for name in NAMED:
        assert get(f"{path}/groups/{quote(name, safe='')}")["group"] == name
    flow = get(path)
    assert NAMELESS not in json.dumps(flow["errors"])
    assert f"such as '': {NAMELESS}" in json.dumps(flow["notes"])


def check_commands(
    environ: Mapping[str, str], flow: str, *, topics: set[str], groups: set[str]
) -> None:
    """Tables show no sign that a terminal obeys, documents have all names."""
    for words in (
        ("flow", "describe", flow, "-o", "wide"),
        ("topics",),
        ("lag", "--top", "1000"),
        ("group", "list", flow, "--top", "10000"),
        *(("group", "describe", flow, name) for name in NAMED),
    ):
        ended = command_here(*words, environ=environ)
        assert ended.exit_code in ({0} if words[:2] == ("group", "describe") else {0, 3}), (
            ended.output
        )
        assert not {*ended.output} & {*"\x00\x1b\r\u202e\u2028"}, words
    listed = command_here("group", "list", flow, "--top", "10000", environ=environ)
    assert '""' in listed.stdout
    assert f'"" not synced: cannot be read: {NAMELESS}' in listed.stderr
    nameless = command_here("group", "describe", flow, "", environ=environ)
    assert (nameless.exit_code, nameless.stderr.count("\n")) == (2, 1), nameless.output
    for words, key, names in (
        (("group", "list", flow, "--top", "10000"), "group", groups),
        (("topics",), "topic", topics),
    ):
        table = command_here(*words, "-o", "json", environ=environ)
        assert {it[key] for it in json.loads(table.stdout)} == names


def plans(drivers: Drivers, report: Path) -> list[dict[str, Any]]:
    """Return the plan of the command and of a drill; a group without a name is no reason against a failover."""
    plan, dry, drill = (
        drivers.run(*words)
        for words in (
            ("failover", "--plan", "-o", "json"),
            ("failover", "--execute", "--dry-run"),
            ("drill", "--report", str(report)),
        )
    )
    for ended in (plan, dry, drill):
        assert ended.code in {0, 3}, ended.said
        assert "Traceback" not in ended.said
    document = json.loads(report.read_text())
    assert NAMELESS not in json.dumps(document["reasons"])
    return [plan.document, document["plan"]]
