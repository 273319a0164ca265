"""Share groups (KIP-932) move to the other cluster: their start offsets are there, exactly translated, and never go back.

The share consumers are those of librdkafka, and Java's kafka-share-groups reads what the target has for them.
"""

import asyncio
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from threading import Event, Thread
from typing import Any, Final, cast
from urllib.parse import quote

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from confluent_kafka.admin._acl import AclOperation
from typer.testing import CliRunner

from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.client.connect.share_positions import SHARE_GROUPS, delivered_behind
from mm2py.config.clients import connection_settings
from mm2py.errors import Mm2pyError
from mm2py.types import TopicPartition as Partition
from mm2py_cli.app import app
from tests.integration.clients import connected
from tests.integration.cluster_changes import forbid_group, permit_group, set_group_config
from tests.integration.mirror_process import Flow, Mirror, running, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import commit, numbered, offset_of, write
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

log = logging.getLogger(__name__)

SYNC: Final = {"{source}->{target}.sync.group.offsets.enabled": "true"}
RECORDS: Final = 100
DELIVERIES: Final = 5
"""``group.share.delivery.count.limit`` of a broker that does not set it."""


class Shares:
    """One member of a share group that acknowledges record by record."""

    def __init__(self, region: KafkaAddress, topic: str, group: str) -> None:
        # A new share group begins behind the last record otherwise.
        set_group_config(region, group, "share.auto.offset.reset", "earliest")
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": region.bootstrap_servers,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])
        self.released = Counter[int]()

    def read(self, wanted: int) -> list[int]:
        """Return the numbers in at least so many records; all are acknowledged, and the broker has stored that."""
        found: list[int] = []
        deadline = time.monotonic() + 120
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} records"
            found += self.take()
            self.commit()
        return found

    def take(self, *, leave: float = 0.0, keep: int = -1) -> list[int]:
        """Return the numbers of the next records, each acknowledged; the broker has that with ``commit``.

        That part of them which ``leave`` says is given back instead, and the number ``keep``.
        """
        found: list[int] = []
        for message in self._consumer.poll(1.0) or ():
            assert message.error() is None
            if int(message.value() or b"-1") == keep or random.random() < leave:
                self.released[int(message.value() or b"-1")] += 1
                self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
                continue
            found.append(int(message.value() or b"-1"))
            self._consumer.acknowledge(message)
        return found

    def commit(self) -> None:
        self._consumer.commit_sync()

    def close(self) -> None:
        self._consumer.close()


def start_offsets(region: KafkaAddress, group: str) -> dict[tuple[str, int], int]:
    """Return the start offsets of a group, as Java's kafka-share-groups has them."""
    done = run_java(
        "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
        *("--bootstrap-server", region.bootstrap_servers),
        *("--describe", "--offsets", "--group", group),
    )
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(group)]
    return {(row[1], int(row[2])): int(row[3]) for row in rows if row[3] != "-"}


@pytest.fixture
def flow(setup: Setup) -> tuple[Flow, str, str]:
    """A flow, its topic with a hundred records, and the name of a group."""
    topic = setup.topic("orders", 1)
    write(setup.a, topic, numbered(0, RECORDS))
    return setup.flow(topic, SYNC), topic, setup.unique("shares")


def until_at(region: KafkaAddress, group: str, topic: str, offset: int, worker: Mirror) -> None:
    until_equal(lambda: start_offsets(region, group).get((topic, 0)), offset, alive=worker)


def test_a_share_group_continues_with_its_next_record(flow: tuple[Flow, str, str]) -> None:
    """It has read everything; the records that come later are the first it gets there, none skipped, none again."""
    mirror, topic, group = flow
    member = Shares(mirror.source, topic, group)
    assert member.read(RECORDS) == list(range(RECORDS))
    member.close()
    with running(mirror.file, ready=False) as worker:
        until_at(mirror.target, group, mirror.remote(topic), RECORDS, worker)
        write(mirror.source, topic, numbered(RECORDS, 20))
        moved = Shares(mirror.target, mirror.remote(topic), group)
        assert moved.read(20) == list(range(RECORDS, RECORDS + 20))
        shown = until(partial(is_in_use, worker, mirror, group), alive=worker)
        assert (shown["type"], shown["state"]) == ("share", "Empty")
        # A member at the target: its offsets are its own.
        write(mirror.source, topic, numbered(RECORDS + 20, 20))
        again = Shares(mirror.source, topic, group)
        assert again.read(40) == list(range(RECORDS, RECORDS + 40))
        again.close()
        until(
            lambda: "in use" in str(flow_view(worker, mirror)["notes"]),
            60,
            lambda: str(flow_view(worker, mirror)),
            alive=worker,
        )
        assert start_offsets(mirror.target, group)[mirror.remote(topic), 0] <= RECORDS + 20
        moved.close()
        until_at(mirror.target, group, mirror.remote(topic), RECORDS + 40, worker)


def flow_view(worker: Mirror, flow: Flow) -> Mapping[str, Any]:
    name = quote(f"flows/{flow.name}")
    status, answer = ask(f"{public_url(worker)}{name}")
    assert status == 200
    return cast("Mapping[str, Any]", answer)


def describe(worker: Mirror, flow: Flow, group: str) -> Mapping[str, Any]:
    """Return what ``mm2py group describe`` shows."""
    name = f"{flow.source_alias}/{flow.target_alias}"
    ended = CliRunner().invoke(
        app,
        ["group", "describe", name, group, "-o", "json"],
        env={"MM2PY_URL": public_url(worker), "NO_COLOR": "1"},
    )
    return cast("Mapping[str, Any]", json.loads(ended.stdout))


def is_in_use(worker: Mirror, flow: Flow, group: str) -> Mapping[str, Any] | None:
    """Return what is shown of a group once it has members on the target and is not synced for that."""
    shown = describe(worker, flow, group)
    is_told = "members on the target" in str(shown["not_synced"])
    return shown if is_told and shown["state_there"] == "Stable" else None


def test_no_offset_is_ahead_of_what_was_acknowledged(setup: Setup) -> None:
    """The end of a partition counts as a group's offset only where all before it is acknowledged, whatever comes meanwhile."""
    topic, group = setup.topic("busy", 1), setup.unique("shares")
    traffic = Busy(setup.a, topic, group)
    asked, at_ends = asyncio.run(traffic.compare())
    assert (asked > 200, at_ends > 0) == (True, True), (asked, at_ends)


class Busy:
    """Records that come all the time, a member that acknowledges them, and questions for the group's offset."""

    SECONDS: Final = 10.0
    LONGEST_S: Final = 120.0

    def __init__(self, region: KafkaAddress, topic: str, group: str) -> None:
        self._region, self._topic, self._group = region, topic, group
        self._written = self._acknowledged = 0
        self._end = Event()

    async def compare(self) -> tuple[int, int]:
        """Return how many answers there were, and how many of them were the end of the log."""
        threads = [Thread(target=it, daemon=True) for it in (self._write, self._read)]
        for thread in threads:
            thread.start()
        try:
            return await self._ask()
        finally:
            self._end.set()
            for thread in threads:
                thread.join(30)

    async def _ask(self) -> tuple[int, int]:
        props = {"bootstrap.servers": self._region.bootstrap_servers}
        cluster = Cluster(connection_settings(props), alias="A")
        await cluster.connect()
        admin, asked, at_ends = GroupAdmin(cluster, SHARE_GROUPS), 0, 0
        began = time.monotonic()
        while (took_s := time.monotonic() - began) < self.LONGEST_S:
            if took_s > self.SECONDS and asked > 200 and at_ends:
                break
            written = self._written
            answer = (await admin.committed([self._group]))[self._group]
            if isinstance(answer, Mm2pyError):
                continue
            found = answer.get(Partition(self._topic, 0))
            if found is not None:
                acknowledged = self._acknowledged
                assert found.offset <= acknowledged, "records would be skipped"
                asked += 1
                at_ends += found.offset >= written
        await cluster.close()
        return asked, at_ends

    def _write(self) -> None:
        while not self._end.is_set():
            count = random.randint(1, 3)
            write(self._region, self._topic, numbered(self._written, count))
            self._written += count
            self._end.wait(random.random() / 10)

    def _read(self) -> None:
        member = Shares(self._region, self._topic, self._group)
        while not self._end.is_set():
            # Counted before the broker has it.
            for _ in member.take():
                self._acknowledged += 1
            member.commit()
        member.close()


async def test_what_is_acknowledged_behind_an_open_record_is_counted(setup: Setup) -> None:
    """Another cluster delivers it again: it knows where the group begins, and no more."""
    topic, group = setup.topic("open", 1), setup.unique("shares")
    write(setup.a, topic, numbered(0, RECORDS))
    member = Shares(setup.a, topic, group)
    taken: set[int] = set()
    while len(taken) < RECORDS - 1:
        taken |= set(await asyncio.to_thread(member.take, keep=0))
        await asyncio.to_thread(member.commit)
    member.close()
    async with connected({"bootstrap.servers": setup.a.bootstrap_servers}) as cluster:
        found = await delivered_behind(cluster, [group, setup.unique("none")])
    assert found == {group: {Partition(topic, 0): RECORDS - 1}}


def test_groups_that_move_under_load_skip_nothing(setup: Setup) -> None:
    """Members stop at any moment, some records acknowledged and some not: what was not is delivered on the target."""
    topic, chance = setup.topic("orders", 1), random.Random(3)
    flow = setup.flow(topic, SYNC)
    with running(flow.file, ready=False) as worker:
        written, reread = 0, list[int]()
        for _ in range(3):
            group, done = setup.unique("shares"), set[int]()
            member = Shares(setup.a, topic, group)
            for _ in range(chance.randint(3, 12)):
                write(setup.a, topic, numbered(written, 40))
                written += 40
                done.update(member.take(leave=chance.random() / 2))
                member.commit()
            # A record that was given back so often is archived by the broker.
            done |= {it for it, times in member.released.items() if times >= DELIVERIES}
            member.close()
            until(partial(start_offsets, setup.b, group), alive=worker)
            moved = Shares(setup.b, flow.remote(topic), group)
            delivered: set[int] = set()
            deadline = time.monotonic() + 120
            while missing := set(range(written)) - done - delivered:
                assert time.monotonic() < deadline, (
                    f"{sorted(missing)} of {written} are skipped; given back: {member.released}, start offsets"
                    f" {start_offsets(setup.a, group)}, {start_offsets(setup.b, group)}, delivered {min(delivered, default=-1)}"
                )
                delivered.update(moved.take())
                moved.commit()
            moved.close()
            reread.append(len(delivered & done))
    log.warning("records delivered again: %s of %d", reread, written)


@pytest.fixture
def without_shares() -> Iterator[Region]:
    options = ("--feature", "share.version=0")
    with Region("no-shares", format_options=options, properties=ANY_SESSION) as region:
        yield region


def test_a_target_without_share_groups_is_logged_and_other_groups_are_synced(
    setup: Setup, without_shares: Region
) -> None:
    topic, group, other = setup.topic("orders", 1), setup.unique("shares"), setup.unique("billing")
    write(setup.a, topic, numbered(0, RECORDS))
    member = Shares(setup.a, topic, group)
    member.read(RECORDS)
    member.close()
    commit(setup.a, other, topic, {0: 10})
    flow = setup.flow(topic, SYNC, target=without_shares)
    with running(flow.file, ready=False) as worker:
        until_equal(lambda: offset_of(without_shares, flow.remote(topic), other), 10, alive=worker)
        worker.wait_for_log("share groups are not synced")
        until(
            lambda: (
                "target has no share groups" in str(describe(worker, flow, group)["not_synced"])
            ),
            90,
            lambda: str(describe(worker, flow, group)),
            alive=worker,
        )
        until_equal(lambda: flow_view(worker, flow)["state"], "RUNNING", alive=worker)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Region]:
    properties = {**ANY_SESSION, "super.users": "User:admin"}
    with Region("guarded", properties=properties) as region:
        yield region


def test_missing_grants_are_named_and_the_group_is_synced_once_they_are_there(
    setup: Setup, guarded: Region
) -> None:
    topic, group = setup.topic("orders", 1), setup.unique("shares")
    write(setup.a, topic, numbered(0, RECORDS))
    member = Shares(setup.a, topic, group)
    member.read(RECORDS)
    member.close()
    forbid_group(guarded, group, AclOperation.READ)
    flow = setup.flow(topic, SYNC, target=guarded)
    with running(flow.file, ready=False) as worker:
        until(
            lambda: "share groups not synced" in str(flow_view(worker, flow)),
            90,
            lambda: str(flow_view(worker, flow)),
            alive=worker,
        )
        assert f"--operation Read --group {group}" in str(flow_view(worker, flow))
        permit_group(guarded, group, AclOperation.READ)
        until_at(guarded, group, flow.remote(topic), RECORDS, worker)
