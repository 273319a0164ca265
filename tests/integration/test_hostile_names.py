"""Groups of a real cluster with names that no tool would give: mirrored, listed, planned for failover, or named with the reason."""

import asyncio
import json
from typing import Any, Final
from urllib.parse import quote

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.protocol.call import Call
from mm2py.protocol.groups import OffsetToCommit
from mm2py.protocol.schema import consumer_schema, schema_call
from tests.integration.failovers import Drivers
from tests.integration.mirror_process import command_here, running, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, write
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
