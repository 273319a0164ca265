"""``mm2py doctor``: each check is broken on a real broker, and named with the command that mends it."""

import json
import os
import re
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._acl import AclOperation
from typer.testing import CliRunner

from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.connect.wire import Buffer
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py_cli.app import app
from mm2py_jobs.doctor.examine import CHECKS, PER_S, Result, Shared, examine_plan
from mm2py_jobs.open_flow import flow_plan
from mm2py_workers.flow_parts import FlowPlan
from tests.integration.cluster_changes import (
    allow,
    create_led_by,
    create_topics,
    forbid_cluster,
    forbid_configuring,
    forbid_creating,
    forbid_group,
    forbid_reading_configs,
    forbid_writing,
    in_sync,
    set_quota,
)
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import MM2PY, Flow, Mirror, running, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.secured import SecuredRegion
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, small_disk
from tests.integration.traffic import Load, Sent, commit, member, write
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.region import ForeignRegion, Region
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Rows = list[dict[str, str]]
SYNCED: Final = {"sync.group.offsets.enabled": "true"}


def examined(flow: Flow) -> tuple[int, Rows]:
    """Run the command, without the pace that it keeps with brokers that others use; return its exit code and rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mm2py_jobs.doctor.examine.PER_S", 1_000)
        ended = CliRunner().invoke(app, ["doctor", str(flow.file), "-o", "json"])
    assert ended.exit_code in (0, 3), ended.output
    return ended.exit_code, json.loads(ended.stdout)


async def examine(plan: FlowPlan, clock: Clock = SYSTEM_CLOCK) -> list[Result]:
    async with AsyncExitStack() as stack:
        return await examine_plan(plan, clock, Shared(clock, stack))


def said(rows: Rows, check: str, level: str) -> str:
    """Return findings and remedies of a check at a level."""
    return "\n".join(
        f"{it['finding']} | {it['remedy']}"
        for it in rows
        if (it["check"], it["level"]) == (check, level)
    )


def test_a_flow_that_will_work_has_no_warning_before_and_while_it_runs(setup: Setup) -> None:
    flow = setup.flow(setup.topic("well", 3))
    code, rows = examined(flow)
    assert (code, {it["level"] for it in rows}) == (0, {"ok"}), rows
    assert {it["check"] for it in rows} == {check.name for check in CHECKS}
    assert "1 topics with 3 partitions" in said(rows, "topics", "ok")
    assert "transaction.version=2" in said(rows, "versions", "ok")
    with running(flow.file) as mirror:
        code, rows = examined(flow)
        assert (code, {it["level"] for it in rows}) == (0, {"ok"}), rows
        assert "8 internal topics" in said(rows, "internal topics", "ok")
        served = Asked(mirror).done("GET", f"{path_of(flow)}/doctor")
        # Numbers of the cluster, such as free bytes, change between the two.
        assert [it | {"finding": ""} for it in served] == [it | {"finding": ""} for it in rows]
    shown = subprocess.run([MM2PY, "doctor", str(flow.file)], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "nothing is wrong\n")


@pytest.mark.parametrize("change", ["delete", "disable", "pause", "stop", "topic"])
def test_a_flow_that_a_change_over_rest_took_away_is_not_well(setup: Setup, change: str) -> None:
    topic = setup.topic("away")
    flow, words = setup.flow(topic), "nothing is copied | mm2py flow history"
    with running(flow.file) as mirror:
        if change == "delete":
            Asked(mirror).done("DELETE", path_of(flow))
        elif change == "disable":
            Asked(mirror).done("PATCH", path_of(flow), {"config": {"enabled": "false"}})
        elif change == "topic":
            Asked(mirror).done("POST", f"{path_of(flow)}/pause", topic=topic)
            words = (
                f"paused, and not copied: {topic} | mm2py flow resume '{flow.name}' --all-topics"
            )
        else:
            Asked(mirror).done("POST", f"{path_of(flow)}/{change}")
        _, rows = examined(flow)
    assert words in said(rows, "clusters", "warning"), rows


def test_how_much_the_source_is_written_now_and_what_a_worker_needs_for_it(setup: Setup) -> None:
    topic = setup.topic("busy", 3)
    with Load(setup.a, topic, 2) as traffic:
        traffic.wait_acked(100)
        _, rows = examined(setup.flow(topic))
    text = said(rows, "load", "ok")
    assert re.match(
        r"3 partitions, 2 of them written to now with [1-9]\d* records/s and [\d.]+ [KM]B/s:"
        r" a worker that has all of them needs about [1-9]\d*% of a core and [\d.]+ MB \|",
        text,
    ), text


def narrow(setup: Setup) -> Flow:
    """A copy that takes less, keeps less, is compacted and has more partitions."""
    topic = setup.topic("narrow", 1)
    flow = setup.flow(topic)
    config = {
        "max.message.bytes": "5000",
        "retention.ms": "1000",
        "cleanup.policy": "compact,delete",
    }
    setup.create_topic(setup.b, flow.remote(topic), 3, config=config)
    return flow


def strict(setup: Setup) -> Flow:
    """A compacted topic with a record of yesterday; its copy deletes by time, and takes neither its times nor its compression as they are."""
    topic = setup.topic("strict", config={"cleanup.policy": "compact", "retention.ms": "604800000"})
    write(setup.a, topic, [Sent(0, b"old", key=b"k", timestamp_ms=SYSTEM_CLOCK.now_ms() - 86_400_000)])  # fmt: skip
    flow = setup.flow(topic)
    config = {
        "retention.ms": "7200000",
        "message.timestamp.before.max.ms": "7200000",
        "compression.type": "gzip",
    }
    setup.create_topic(setup.b, flow.remote(topic), config=config)
    return flow


def gone(setup: Setup) -> Flow:
    """A pattern chose two topics, one of them is no longer on the source."""
    prefix = setup.unique("gone")
    flow = setup.flow(f"{prefix}.*")
    setup.create_topic(setup.a, f"{prefix}-kept")
    for topic in (f"{prefix}-kept", f"{prefix}-away"):
        setup.create_topic(setup.b, flow.remote(topic))
    return flow


def never(setup: Setup) -> Flow:
    """A name of topics is a mirror's own."""
    return setup.flow(f"{setup.topic('fine')},mm2-offsets.elsewhere.internal")


def returned(setup: Setup) -> Flow:
    """A topic says by its name that it came from the source."""
    flow = setup.flow(".*back-again")
    setup.create_topic(setup.a, f"{flow.source_alias}.back-again")
    return flow


def circle(setup: Setup) -> Flow:
    topic = setup.topic("circle")
    both_ways = {
        "{target}->{source}.enabled": "true",
        "{target}->{source}.topics": topic,
        "replication.policy.class": "IdentityReplicationPolicy",
        "loop.suppression": "off",
    }
    return setup.flow(topic, both_ways)


def twins(setup: Setup) -> Flow:
    """A second flow has the source under another alias."""
    flow = setup.flow(setup.topic("twins"))
    text = flow.file.read_text().replace("clusters = ", "clusters = twin, ")
    flow.file.write_text(
        f"{text}twin.bootstrap.servers = {setup.a.bootstrap_servers}\ntwin->{flow.target_alias}.enabled = true\n"
        f"twin->{flow.target_alias}.topics = {setup.topic('twin')}\n"
    )
    return flow


def untranslated(setup: Setup) -> Flow:
    """The flow has run, and a group of it has no place on the target."""
    topic = setup.topic("untranslated")
    flow = setup.flow(topic, SYNCED)
    commit(setup.a, f"of-{topic}", topic, {0: 0})
    setup.create_topic(setup.b, flow.remote(topic))
    compacted = {"cleanup.policy": "compact"}
    setup.create_topic(setup.b, f"{flow.source_alias}.checkpoints.internal", config=compacted)
    return flow


def unruled(setup: Setup) -> Flow:
    """Who may read a topic may not read its copy."""
    topic = setup.topic("unruled")
    flow = setup.flow(topic)
    allow(setup.a, topic)
    setup.create_topic(setup.b, flow.remote(topic))
    return flow


def meets_another(setup: Setup) -> Flow:
    """Kafka takes no two topics whose names differ in dots and underscores alone: their metrics would be one."""
    topic = setup.topic("meets")
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic).replace(".", "_"))
    return flow


def narrower(setup: Setup) -> Flow:
    """A copy that is to be created does not get how large a batch its source takes."""
    topic = setup.topic("roomy", config={"max.message.bytes": "2000000"})
    return setup.flow(topic, {"config.properties.exclude": "max.message.bytes"})


def slow(setup: Setup) -> Flow:
    """A quota bounds one of its clients."""
    flow = setup.flow(setup.topic("slow"))
    name = f"{flow.name}|MirrorSourceConnector-0|replication-consumer"
    set_quota(setup.a, "consumer", name, rate=10_000)
    return flow


def of_later(setup: Setup) -> Flow:
    topic = setup.topic("later")
    at_ms = SYSTEM_CLOCK.now_ms() + 1_800_000
    write(setup.a, topic, [Sent(0, b"early", timestamp_ms=at_ms)])
    return setup.flow(topic)


def misspelt(setup: Setup) -> Flow:
    return setup.flow("ordes-misspelt")


def partly_there(setup: Setup) -> Flow:
    return setup.flow(f"{setup.topic('there')},not-there")


def too_long(setup: Setup) -> Flow:
    return setup.flow(setup.topic("long" + "g" * 230))


def replicas(setup: Setup) -> Flow:
    return setup.flow(setup.topic("replicas"), {"replication.factor": "3"})


def many_replicas(setup: Setup) -> Flow:
    return setup.flow(setup.topic("many"), {"checkpoints.topic.replication.factor": "3"})


def deleted_state(setup: Setup) -> Flow:
    flow = setup.flow(setup.topic("state"))
    name = f"mm2-configs.{flow.source_alias}.internal"
    setup.create_topic(setup.b, name, 1, config={"cleanup.policy": "compact,delete"})
    name = f"mm2py-ledger.{flow.source_alias}.internal"
    setup.create_topic(setup.b, name, 1, config={"retention.ms": "3600000"})
    return flow


def into_itself(setup: Setup) -> Flow:
    return setup.flow(setup.topic("itself"), target=setup.a)


def by_a_group(setup: Setup) -> Flow:
    return setup.flow(setup.topic("group"), {"copy.connector": "sink"})


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (by_a_group, [("config", "skipped", ["a consumer group copies it"])]),
        (misspelt, [("topics", "error", ["topics=ordes-misspelt matches none", "correct topics"])]),
        (partly_there, [("topics", "warning", ["not-there", "correct topics"])]),
        (too_long, [("names", "error", ["characters, 249 are allowed", "shorten the alias"])]),
        (replicas, [("new copies", "error", ["cannot be created", "set replication.factor (now 3)"])]),
        (many_replicas, [("internal topics", "error", [".checkpoints.internal cannot be created", "| set checkpoints.topic.replication.factor to at most"])]),
        (deleted_state, [("internal topics", "error", ["cleanup.policy=compact,delete", "kafka-configs.sh", "has retention.ms=3600000", "--add-config retention.ms=-1"])]),
        (into_itself, [("clusters", "error", ["are one cluster, ", "correct bootstrap.servers"])]),
        (narrow, [
            ("limits", "error", ["is compacted, its source is not"]),
            ("limits", "warning", ["takes 5000 bytes", "max.message.bytes=", "keeps records for 1000 ms", "retention.ms="]),
            ("drift", "warning", ["max.message.bytes of", "the flow writes it each 600 s"]),
            ("partitions", "warning", ["(3 for 1)", "kafka-topics.sh", "--partitions 3"]),
        ]),
        (strict, [
            ("limits", "error", ["deletes old records (cleanup.policy=delete), its source is compacted alone"]),
            ("limits", "warning", ["its source has some of 24.0 h: these are deleted as they arrive", "message.timestamp.before.max.ms=", "has compression.type=gzip, its source producer"]),
        ]),
        (meets_another, [("new copies", "error", ["cannot be created", "collides with existing topic: src", "or exclude this one"])]),
        (narrower, [("limits", "warning", ["(to be created): takes 1048588 bytes in a batch, its source 2000000", "when it is there: kafka-configs.sh", "--add-config max.message.bytes=2000000"])]),
        (gone, [("gone topics", "warning", ["-away; not copied any more, copies stay: src", "kafka-topics.sh --bootstrap-server", "--delete --topic src"])]),
        (never, [("topics", "warning", ["can never be copied: mm2-offsets.elsewhere.internal (topics.exclude leaves it out)", "take them out of topics"])]),
        (returned, [("topics", "warning", [".back-again of src", "KAFKA-9914", "rename the topics"])]),
        (circle, [("config", "error", ["records would be copied in a circle", "loop.suppression=on"])]),
        (twins, [("clusters", "warning", ["twin", "are one cluster, id", "one alias in all flows"])]),
        (untranslated, [("groups", "warning", ["not synced: of-untranslated", "not copied or not checkpointed yet", "mm2py group describe"])]),
        (unruled, [("rules", "warning", ["ALLOW READ of User:shop on src", "the flow writes them each 600 s", "--operation Alter --cluster"])]),
        (slow, [("quotas", "warning", ["a quota of 10.0 KB/s and broker (consumer_byte_rate of client-id", "raise it: kafka-configs.sh", "--entity-type clients --entity-"])]),
        (of_later, [("clocks", "warning", ["min in the future", "LogAppendTime"])]),
    ],
)  # fmt: skip
def test_what_is_broken_is_named_with_what_mends_it(
    setup: Setup, broken: Callable[[Setup], Flow], found: list[tuple[str, str, list[str]]]
) -> None:
    code, rows = examined(broken(setup))
    for check, level, texts in found:
        text = said(rows, check, level)
        assert [it for it in texts if it not in text] == [], text or json.dumps(rows)
    assert code == (3 if any(it["level"] == "error" for it in rows) else 0)


def test_a_group_with_members_on_both_sides(setup: Setup) -> None:
    topic = setup.topic("both")
    flow = setup.flow(topic, SYNCED)
    setup.create_topic(setup.b, flow.remote(topic), 1)
    group = setup.unique("billing")
    with member(setup.a, group, topic), member(setup.b, group, flow.remote(topic)):
        _, rows = examined(flow)
    assert group in said(rows, "groups", "warning")
    assert "groups.exclude" in said(rows, "groups", "warning")


def no_writing(setup: Setup, guarded: Region, flow: Flow, topic: str) -> str:
    setup.create_topic(guarded, flow.remote(topic), 1)
    forbid_writing(guarded, flow.remote(topic))
    return flow.remote(topic)


def no_creating(_setup: Setup, guarded: Region, flow: Flow, topic: str) -> str:
    forbid_creating(guarded, flow.remote(topic))
    return flow.remote(topic)


def no_state(setup: Setup, guarded: Region, flow: Flow, _topic: str) -> str:
    name = f"mm2-status.{flow.source_alias}.internal"
    setup.create_topic(guarded, name, config={"cleanup.policy": "compact"})
    forbid_writing(guarded, name)
    return name


def no_group(setup: Setup, guarded: Region, flow: Flow, topic: str) -> str:
    group, copy = f"of-{topic}", flow.remote(topic)
    # A cluster's first group waits until the log of groups is created.
    setup.create_topic(guarded, copy, 1)
    commit(guarded, setup.unique("first"), copy, {0: 0})
    commit(setup.a, group, topic, {0: 0})
    forbid_group(guarded, group, AclOperation.READ)
    return group


def no_altering(setup: Setup, guarded: Region, flow: Flow, topic: str) -> str:
    setup.create_topic(guarded, flow.remote(topic), 1)
    forbid_configuring(guarded, flow.remote(topic))
    return flow.remote(topic)


@pytest.mark.parametrize(
    ("take", "check", "level", "grants"),
    [
        (no_writing, "rights", "error", "Write --topic"),
        (no_altering, "rights", "warning", "AlterConfigs --topic"),
        (no_state, "rights", "error", "Write --topic mm2-status"),
        (no_group, "group rights", "error", "Read --group"),
        (no_creating, "new copies", "error", "Create --cluster"),
    ],
)
def test_a_missing_right_has_the_line_that_grants_it(
    setup: Setup,
    guarded: Region,
    take: Callable[[Setup, Region, Flow, str], str],
    check: str,
    level: str,
    grants: str,
) -> None:
    topic = setup.topic("rights")
    # Other tests have groups on the source, too.
    flow = setup.flow(topic, SYNCED | {"groups": f"of-{topic}"}, target=guarded)
    what = take(setup, guarded, flow, topic)
    code, rows = examined(flow)
    assert (code == 3) == (level == "error"), rows
    found = said(rows, check, level)
    assert what in found
    assert f"kafka-acls.sh --bootstrap-server {guarded.bootstrap_servers} --add" in found
    assert f"--operation {grants}" in found


def test_a_missing_right_to_read_configs_of_a_source_topic(setup: Setup, guarded: Region) -> None:
    """The limits of the other one are judged all the same."""
    topic, other = (setup.topic(it, on=guarded) for it in ("closed", "open"))
    forbid_reading_configs(guarded, topic)
    flow = setup.flow(f"{topic},{other}", source=guarded)
    setup.create_topic(setup.b, flow.remote(topic), 1, config={"max.message.bytes": "5000"})
    setup.create_topic(setup.b, flow.remote(other), 1, config={"max.message.bytes": "5000"})
    _, rows = examined(flow)
    assert f"{flow.remote(other)}: takes 5000 bytes" in said(rows, "limits", "warning"), rows
    assert f"max.message.bytes of {flow.remote(other)} is not" in said(rows, "drift", "warning")
    found = said(rows, "rights", "warning")
    assert f"no DescribeConfigs on {topic}, needed for sync.topic.configs.enabled" in found
    assert f"--operation DescribeConfigs --topic {topic}" in found


@pytest.fixture(scope="module")
def brief() -> Iterator[Region]:
    """A cluster that keeps records for an hour, and where nobody may give a right back."""
    properties = {"log.retention.ms": "3600000", "super.users": "User:nobody"}
    with Region("brief", properties=properties) as region:
        yield region


def test_copies_are_judged_by_defaults_of_a_target_without_any(setup: Setup, brief: Region) -> None:
    topic = setup.topic("kept")
    write(setup.a, topic, [Sent(0, b"old", timestamp_ms=SYSTEM_CLOCK.now_ms() - 86_400_000)])
    code, rows = examined(setup.flow(topic, target=brief))
    found = said(rows, "limits", "warning")
    assert (code, found.count("(to be created): keeps records for")) == (0, 2), rows
    assert "for 3600000 ms, its source for ever" in found
    assert "for 60.0 min, its source has some of 24.0 h: these are deleted as they arrive" in found
    command = f"--bootstrap-server {setup.a.bootstrap_servers} --alter --topic {topic} --add-config retention.ms=-1"
    assert found.count(command) == 2


def test_a_missing_right_to_write_rules(setup: Setup, brief: Region) -> None:
    flow = setup.flow(setup.topic("rules"), target=brief)
    forbid_cluster(brief, AclOperation.ALTER)
    code, rows = examined(flow)
    found = said(rows, "rights", "warning")
    assert code == 0
    assert "the cluster, needed for sync.topic.acls.enabled" in found
    assert f"{brief.bootstrap_servers} --add" in found
    assert "--operation Alter --cluster" in found


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    "how", ["no one listens", pytest.param("frozen", marks=pytest.mark.faults)]
)
def test_a_cluster_that_does_not_answer_is_named_and_the_other_one_checked(
    setup: Setup, new_region: NewRegion, side: str, how: str
) -> None:
    topic = setup.topic("away")
    region = new_region("away") if how == "frozen" else None
    address = region or ForeignRegion("away", f"127.0.0.1:{free_ports(1)[0]}")
    flow = (
        setup.flow(topic, source=address) if side == "source" else setup.flow(topic, target=address)
    )
    if region is not None:
        region.freeze()
    code, rows = examined(flow)
    if region is not None:
        region.thaw()
    assert code == 3
    assert f"{side} cluster" in said(rows, "clusters", "error")
    (skipped,) = [it["finding"] for it in rows if it["level"] == "skipped"]
    why, checks = skipped.split(": not checked: ")
    assert why == f"{side} does not answer"
    assert "limits" in checks.split(", ")
    assert ("topics" in checks.split(", ")) == (side == "source")
    assert bool(said(rows, "topics", "ok")) == (side == "target"), rows


def test_partitions_without_a_leader_or_with_too_few_replicas_are_named(
    setup: Setup, region_three: Region
) -> None:
    names = [setup.topic(it) for it in ("well", "few", "none")]
    flow = setup.flow(",".join(names), target=region_three)
    well, few, none = map(flow.remote, names)
    create_led_by(region_three, well, [[1, 2]])
    create_led_by(region_three, few, [[1, 2, 3]], {"min.insync.replicas": "3"})
    create_led_by(region_three, none, [[3]])
    region_three.node(3).stop()
    try:
        until(lambda: in_sync(region_three, few) == 2, 90, "two replicas in sync")
        code, rows = examined(flow)
    finally:
        region_three.node(3).start()
    found = said(rows, "leaders", "error")
    assert code == 3
    assert f"no leader, so neither read nor written: {none}-0 | " in found
    assert f"than min.insync.replicas, so not written: {few}-0 | " in found
    assert well not in found


class Later:
    """The system's clock some days later."""

    def __init__(self, days: int) -> None:
        self._ahead_ms = days * 86_400_000

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self._ahead_ms

    monotonic = staticmethod(SYSTEM_CLOCK.monotonic)
    sleep = staticmethod(SYSTEM_CLOCK.sleep)


async def test_a_transaction_that_hangs(setup: Setup) -> None:
    topic = setup.topic("hangs")
    client = Producer({"bootstrap.servers": setup.a.bootstrap_servers, "transactional.id": topic})
    client.init_transactions(60)
    client.begin_transaction()
    client.produce(topic, b"open")
    client.flush(60)
    flow = setup.flow(topic)
    results = await examine(flow_plan(flow.file, flow.name), Later(1))
    client.abort_transaction(60)
    (row,) = [it.row for it in results if it.check == "transactions"]
    assert f"{topic}-0 has a transaction open since offset 0" in row.text
    assert f"find-hanging --topic {topic} --partition 0" in row.remedy, (
        "records may be older than their writing"
    )


@pytest.mark.parametrize(("days", "where"), [(-1, "ahead of"), (1, "behind")])
async def test_a_clock_that_is_apart_from_those_of_the_brokers(
    setup: Setup, days: int, where: str
) -> None:
    topic = setup.topic("clocks")
    flow = setup.flow(topic)
    commit(setup.a, f"group-of-{topic}", topic, {0: 0})
    results = await examine(flow_plan(flow.file, flow.name), Later(days))
    rows = [it.row for it in results if it.check == "clocks" and flow.source_alias in it.row.text]
    texts = [it.text for it in rows if "NTP" in it.remedy]
    assert any(f"the controller's clock is 86400 s {where} this machine's" in it for it in texts)
    # What a broker stamped long ago does not say that its clock is behind.
    assert any("a broker stamped a commit 86" in it for it in texts) == (days < 0)


@pytest.mark.faults
def test_a_target_whose_disk_is_too_small_for_what_is_to_come(setup: Setup, tmp_path: Path) -> None:
    topic = setup.topic("large")
    write(setup.a, topic, [Sent(0, os.urandom(900_000)) for _ in range(80)])
    with (
        small_disk(tmp_path) as disk,
        Region("small", properties=FEW_INDEXES, folder=disk, min_free_bytes=1) as target,
    ):
        code, rows = examined(setup.flow(topic, target=target))
        found = said(rows, "bytes to copy", "error")
        assert (code, "72.0 MB of 1 topics" in found) == (3, True), rows
        assert "its disks run full | give its brokers disk" in found


async def test_a_certificate_that_ends_soon(setup: Setup, secured: SecuredRegion) -> None:
    topic = setup.topic("tls", on=secured.region)
    flow = setup.flow(
        topic,
        {f"{{source}}.{key}": value for key, value in secured.scram("TLSLOGIN").items()},
        source=secured.region,
    )
    plan = flow_plan(flow.file, flow.name)
    for clock, level in ((SYSTEM_CLOCK, "ok"), (Later(20), "warning")):
        rows = [it.row for it in await examine(plan, clock) if it.check == "certificates"]
        assert [(it.level, "ends in" in it.text) for it in rows] == [(level, True)]


def all_run(mirror: Mirror) -> bool:
    """Tell whether the source's and the checkpoint's task run; heartbeats are off."""
    found = ask(public_url(mirror) + "connectors?expand=status")[1].values()
    return [task["state"] for it in found for task in it["status"]["tasks"]] == ["RUNNING"] * 2


def test_a_worker_that_is_not_reached_where_its_group_has_it(setup: Setup) -> None:
    flow = setup.flow(setup.topic("apart"), {"{target}.session.timeout.ms": "60000"})
    with Mirror(flow.file) as mirror:
        line = mirror.wait_for_log(f"group joined group={flow.source_alias}-mm2")
        address = line.partition("leader=http://")[2].partition("/")[0]
        # The group has no addresses while it deals its work, and keeps none of a member that is
        # killed then.
        until(lambda: all_run(mirror), 90, "all tasks to run", alive=mirror)
        mirror.kill()
        until(lambda: "internal.listener" in said(examined(flow)[1], "workers", "warning"))
        code, rows = examined(flow)
    found = said(rows, "workers", "warning")
    assert (code, f"the worker at {address} cannot be reached" in found) == (0, True), rows


@pytest.mark.faults
def test_a_broker_that_is_dark_where_it_is_advertised(setup: Setup, region_three: Region) -> None:
    flow = setup.flow(setup.topic("dark", on=region_three, replicas=3), source=region_three)
    dark = region_three.node(3)
    dark.freeze()
    try:
        code, rows = examined(flow)
    finally:
        dark.thaw()
    found = said(rows, "brokers", "error")
    assert (code, "broker 3 cannot be reached at 127.0.0.1:" in found) == (3, True), rows
    assert "advertised.listeners" in found


FETCH: Final = 1


@pytest.mark.faults
def test_a_broker_of_an_earlier_release_than_the_others(
    setup: Setup, region_three: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = setup.topic("mixed", on=region_three, replicas=3)
    flow = setup.flow(topic, SYNCED, source=region_three)
    negotiate = BrokerConnection._negotiate  # pyright: ignore[reportPrivateUsage] - what a broker tells
    port = region_three.bootstrap_servers.split(",")[2].rpartition(":")[2]

    async def older(self: BrokerConnection) -> None:
        await negotiate(self)
        if self.address.endswith(port):
            self.versions = {**self.versions, FETCH: (4, 12)}
        if self.address in setup.b.bootstrap_servers:
            self.features = {}

    monkeypatch.setattr(BrokerConnection, "_negotiate", older)
    _, rows = examined(flow)
    found = said(rows, "versions", "warning")
    assert "broker 3 are of an earlier one" in found, rows
    assert "finish the upgrade" in found
    assert f"those of {flow.source_alias} are not synced" in found
    assert "upgrade --feature share.version=1" in found


LOGINS: Final = {17, 18, 36}
"""SaslHandshake, ApiVersions, SaslAuthenticate."""


@pytest.mark.faults
async def test_a_thousand_topics_are_examined_by_at_most_five_requests_a_second_to_a_broker(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = setup.unique("thousand")
    flow = setup.flow(rf"{prefix}\..*")
    names = [f"{prefix}.{number}" for number in range(1_000)]
    create_topics(setup.a, names)
    create_topics(setup.b, [flow.remote(name) for name in names])
    asked: dict[str, list[float]] = {}
    send = BrokerConnection.send

    def counted(self: BrokerConnection, parts: Sequence[Buffer], *args: Any, **more: Any) -> None:
        if struct.unpack_from(">4xh", parts[0])[0] not in LOGINS:
            asked.setdefault(self.address, []).append(SYSTEM_CLOCK.monotonic())
        send(self, parts, *args, **more)

    monkeypatch.setattr(BrokerConnection, "send", counted)
    began = SYSTEM_CLOCK.monotonic()
    results = await examine(flow_plan(flow.file, flow.name))
    # On a machine that others use as well a check may run out of its time.
    assert {it.row.level for it in results} <= {"ok", "skipped"}, results
    assert any("1000 topics with 1000 partitions" in it.row.text for it in results)
    assert len(asked) == 2
    for times in asked.values():
        assert PER_S < len(times) < 20 * PER_S, "the pace alone takes less than 20 s"
        # Not between two of them: a request that leaves late is nearer to the next one.
        assert len(times) <= 1 + PER_S * (times[-1] - began)
