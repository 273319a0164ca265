"""What arrives: codecs, compaction, new topics, topics of a policy of one's own."""

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2py.client.connect.admin import Admin, ConfigOp
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import IDENTITY_REPLICATION_POLICY
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from tests.integration.clients import connected
from tests.integration.cluster_changes import configs_of, grow, set_config
from tests.integration.main_job import (
    CODECS,
    PARTITIONS,
    every_kind_of_record_and_codec_is_copied,
    kinds,
    processes,
)
from tests.integration.mirror_process import Mirror, running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    commit,
    committed,
    ends,
    producer,
    read,
    wait_for_copy,
    wait_for_markers,
    wait_for_progress,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_every_kind_of_record_and_codec_arrives_unchanged(setup: Setup) -> None:
    topic = setup.topic("kinds", PARTITIONS)
    flow = setup.flow(topic)
    every_kind_of_record_and_codec_is_copied(flow, topic, processes)


@pytest.mark.parametrize("isolation", ["", "read_committed"])
def test_transactions_are_copied_as_the_isolation_level_says(setup: Setup, isolation: str) -> None:
    topic = setup.topic("transactions", 2)
    properties = {"{source}.consumer.isolation.level": isolation} if isolation else {}
    flow = setup.flow(topic, properties)
    client = producer(setup.a, transactional_id=secrets.token_hex(4))
    client.init_transactions(60)
    for turn in range(12):
        client.begin_transaction()
        for number in range(20):
            value = b"%d-%d" % (turn, number)
            client.produce(topic, value=value, partition=number % 2)
        if turn % 3 == 1:
            client.flush(60)
            client.abort_transaction(60)
        else:
            client.commit_transaction(60)
    wait_for_markers(setup.a, topic)
    with running(flow.file, ready=False) as mirror:
        committed = isolation == "read_committed"
        truth, copy = wait_for_copy(mirror, flow, topic, committed=committed)
        assert_equal(truth, copy)
        # Aborted records are copied only by default; the copy is not transactional in any case.
        assert sum(len(log.records) for log in copy.values()) == (160 if committed else 240)
        assert all(log.offsets == list(range(len(log.offsets))) for log in copy.values())


@pytest.mark.faults
def test_a_registry_finds_the_same_schemas_under_the_same_ids(setup: Setup) -> None:
    topic = setup.unique("_schemas")
    setup.create_topic(setup.a, topic, 1, config={"cleanup.policy": "compact"})

    def registered(subject: str, version: int, number: int) -> Sent:
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        value = {"subject": subject, "version": version, "id": number, "schema": '"string"'}
        return Sent(0, json.dumps(value).encode(), json.dumps(key).encode())

    noop = Sent(0, None, b'{"keytype":"NOOP","magic":0}')
    first, second = registered("orders-value", 1, 1), registered("orders-value", 2, 2)
    write(setup.a, topic, [noop, first, second, registered("gone", 1, 3), noop])
    flow = setup.flow(topic, {"replication.policy.class": IDENTITY_REPLICATION_POLICY})
    with running(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic, remote=topic))
        write(setup.a, topic, [registered("gone", 1, 3)._replace(value=None), noop])
        truth, copy = wait_for_copy(mirror, flow, topic, remote=topic)
    assert_equal(truth, copy)
    assert len(copy) == 1
    assert configs_of(setup.b, topic)["cleanup.policy"] == "compact"


def test_a_log_append_time_topic_keeps_the_times_its_source_gave(setup: Setup) -> None:
    topic = setup.topic("append-time", 2, config={"message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        write(setup.a, topic, kinds_for(2, 200), compression_type=codec)
    flow = setup.flow(topic)
    with running(flow.file, ready=False) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        stamps = {record.timestamp_ms for log in copy.values() for record in log.records}
        assert min(stamps) > SYSTEM_CLOCK.now_ms() - 600_000


def kinds_for(partitions: int, count: int) -> Iterator[Sent]:
    for sent in kinds(count, seed=count):
        yield sent._replace(partition=sent.partition % partitions)


def test_new_partitions_and_new_topics_arrive_from_their_first_record(setup: Setup) -> None:
    prefix = setup.unique("grow")
    old, new = f"{prefix}-old", f"{prefix}-new"
    setup.create_topic(setup.a, old, 2)
    flow = setup.flow(f"{prefix}-.*")
    write(setup.a, old, kinds_for(2, 100))
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        grow(setup.a, old, 5)
        setup.create_topic(
            setup.a, new, 3, config={"retention.ms": "-1", "max.message.bytes": "77777"}
        )
        write(setup.a, old, kinds_for(5, 200))
        write(setup.a, new, kinds_for(3, 200))
        # The refresh is due every 5 s; the rest is for a machine under load.
        for topic in (old, new):
            assert_equal(*wait_for_copy(mirror, flow, topic, timeout_s=90))
        assert configs_of(setup.b, flow.remote(new))["max.message.bytes"] == "77777"
        assert mirror.stop() == 0
        assert not mirror.complaints()


def a_rule(topic: str, operation: AclOperation, permission: AclPermission) -> Acl:
    return Acl(
        AclResourceType.TOPIC, topic, PatternType.LITERAL, "User:app", "*", operation, permission
    )


async def test_configs_follow_the_source_or_the_targets_default_and_rules_become_rights_to_read(
    setup: Setup,
) -> None:
    topic, other = setup.topic("ruled", config={"delete.retention.ms": "1"}), setup.topic("other")
    each_second = {f"sync.topic.{it}.interval.seconds": "1" for it in ("configs", "acls")}
    flow = setup.flow(topic, each_second)
    copy, copy_of_other = flow.remote(topic), flow.remote(other)
    allow, deny = AclPermission.ALLOW, AclPermission.DENY
    given = [
        a_rule(topic, AclOperation.ALL, allow),
        a_rule(topic, AclOperation.WRITE, allow),
        a_rule(topic, AclOperation.DELETE, deny),
        a_rule(other, AclOperation.READ, allow),
    ]
    wanted = {a_rule(copy, AclOperation.READ, allow), a_rule(copy, AclOperation.DELETE, deny)}
    async with connected(setup.a) as source, connected(setup.b) as target:
        assert await Admin(source).create_acls(given) == [None] * 4
        with running(flow.file) as mirror:
            until(lambda: configs_of(setup.b, copy)["delete.retention.ms"] == "1", 90, "configs")
            # The brokers of the source have one in their file, which Java does not follow back to.
            set_config(setup.a, topic, "retention.ms", "3600000")
            until(lambda: configs_of(setup.b, copy)["retention.ms"] == "3600000", 90, "retention")
            changes = [ConfigOp(it, "DELETE") for it in ("delete.retention.ms", "retention.ms")]
            changes.append(ConfigOp("max.message.bytes", "SET", "2000000"))
            await Admin(source).alter_topic_configs({topic: changes})
            by_hand = [ConfigOp("segment.ms", "SET", "77777777")]
            await Admin(target).alter_topic_configs({copy: by_hand})
            followed = {
                "max.message.bytes": "2000000",
                "delete.retention.ms": "86400000",
                "retention.ms": "-1",
                "segment.ms": "604800000",
            }
            until(lambda: followed.items() <= configs_of(setup.b, copy).items(), 90, "changes")
            async with asyncio.timeout(90):
                found: set[Acl] = set()
                while found != wanted:
                    rules = await Admin(target).describe_topic_acls() or ()
                    names = {topic, other, copy, copy_of_other}
                    found = {it for it in rules if it.resource_name in names}
            assert not mirror.complaints()


NEW = 60
NEW_PARTITIONS = 4
TASKS = 2


@pytest.mark.faults
def test_topics_that_appear_one_by_one_are_collected_and_hold_up_no_other(setup: Setup) -> None:
    prefix = setup.unique("many")
    old = f"{prefix}-old"
    setup.create_topic(setup.a, old, NEW_PARTITIONS)
    flow = setup.flow(f"{prefix}.*", {"tasks.max": str(TASKS)})
    names = [f"{prefix}-{number:03}" for number in range(NEW)]
    pauses: list[float] = []

    def watch(over: threading.Event) -> None:
        seen, since = -1, time.monotonic()
        while not over.wait(0.05):
            now, there = time.monotonic(), sum(ends(setup.b, flow.remote(old)).values())
            if there != seen:
                pauses.append(now - since)
                seen, since = there, now

    with running(flow.file, ready=False) as mirror:
        mirror.wait_ready(90)
        with Load(setup.a, old, NEW_PARTITIONS, rate=400):
            wait_for_progress(mirror, flow, old)
            started = len(mirror.lines("source task started"))
            over = threading.Event()
            watcher = threading.Thread(target=watch, args=(over,))
            watcher.start()
            for name in names:
                setup.create_topic(setup.a, name, 1)
                write(setup.a, name, [Sent(0, b"x")])
            for name in reversed(names):
                until(lambda: ends(setup.b, flow.remote(name)) == {0: 1}, 90, name, alive=mirror)  # noqa: B023 - called here
            over.set()
            watcher.join()
        restarts = len(mirror.lines("source task started")) - started
        print(f"restarts={restarts} longest_pause_s={max(pauses):.2f}")  # noqa: T201
        assert restarts <= 8 * TASKS


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "extend.md"
ASK = """\
import sys
from mm2py import mirror_client
props = {"bootstrap.servers": sys.argv[1], "replication.policy.class": "my_names:SuffixPolicy"}
print(*sorted(mirror_client.remote_topics(props, sys.argv[2])))
for tp, found in mirror_client.exact_offsets(props, sys.argv[2], sys.argv[3]).items():
    print(tp.topic, tp.partition, found.offset)
"""


@pytest.mark.parametrize(
    "topic_name", ["orders", pytest.param("orders.from-elsewhere", marks=pytest.mark.faults)]
)
def test_the_page_s_policy_names_copies_groups_and_answers(setup: Setup, topic_name: str) -> None:
    policy = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    (setup.folder / "my_names.py").write_text(policy)
    path = os.pathsep.join([str(setup.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    topic, group = f"{setup.unique('policy')}-{topic_name}", setup.unique("group")
    setup.create_topic(setup.a, topic, 1)
    write(setup.a, topic, [Sent(0, b"%d" % number) for number in range(50)])
    commit(setup.a, group, topic, {0: 20})
    own = {
        "replication.policy.class": "my_names:SuffixPolicy",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "groups": group,
    }
    flow = setup.flow(re.escape(topic), own)
    copy = f"{topic}.from-{flow.source_alias}"
    with running(flow.file, environ={"PYTHONPATH": path}, ready=False) as mirror:
        until_equal(lambda: committed(setup.b, group, copy), {0: 20}, alive=mirror)
    values = [record.value for log in read(setup.b, copy).values() for record in log.records]
    assert values == [b"%d" % number for number in range(50)]
    asked = subprocess.run(
        [sys.executable, "-c", ASK, setup.b.bootstrap_servers, flow.source_alias, group],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.stderr == ""
    assert asked.stdout.split() == [copy, copy, "0", "20"]
