"""Grants that are missing on our own topics and for exactly once: each is named, and what can run without it does."""

import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import pytest
from confluent_kafka.admin._acl import AclOperation

from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.types import TopicPartition
from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import (
    delete_topic,
    forbid_cluster,
    forbid_creating,
    forbid_reading,
    forbid_transactions,
    forbid_writing,
    permit_cluster,
    permit_creating,
    permit_reading,
    permit_transactions,
    permit_writing,
    topics_of,
)
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.flow_questions import path_of
from tests.integration.mirror_process import (
    GROUPS,
    PROMPT,
    Flow,
    Mirror,
    command_here,
    run_to_end,
    running,
    until,
    until_equal,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.test_night import Teller
from tests.integration.traffic import (
    Sent,
    commit,
    committed,
    copied,
    ends,
    numbered,
    read,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

PRODUCERS = "mm2py-producers.internal"
COMPACT = {"cleanup.policy": "compact"}
SUPPRESSION = "{source}->{target}.loop.suppression"


@pytest.fixture
def topic(setup: Setup) -> str:
    name = setup.topic("granted", 1)
    write(setup.a, name, numbered(0, 10))
    return name


def errors(mirror: Mirror, flow: Flow) -> str:
    """Return what ``/flows`` calls wrong."""
    status, found = ask(f"{public_url(mirror).rstrip('/')}{path_of(flow)}")
    return " ".join(each["message"] for each in found["errors"]) if status == 200 else ""


def wait_for_errors(mirror: Mirror, flow: Flow, *texts: str) -> None:
    """Wait until these are wrong; without any, until nothing is."""

    def is_told() -> bool:
        found = errors(mirror, flow)
        return all(it in found for it in texts) if texts else not found

    until(is_told, 90, lambda: errors(mirror, flow), alive=mirror)


def wait_for_copies(mirror: Mirror, target: KafkaAddress, topic: str) -> None:
    """Wait until a topic with the same name has ten records."""
    until(lambda: sum(ends(target, topic).values()) == 10, 90, "the copy", alive=mirror)


@pytest.mark.parametrize("right", ["Write", "Create"])
def test_an_offset_map_that_may_not_be_kept_is_named_and_kept_once_it_may(
    setup: Setup, guarded: Region, topic: str, right: str
) -> None:
    flow = setup.flow(topic, target=guarded)
    name = f"mm2py-offset-map.{flow.source_alias}.internal"
    if right == "Write":
        setup.create_topic(guarded, name, 1, config=COMPACT)
        forbid_writing(guarded, name)
    else:
        forbid_creating(guarded, name)
    with running(flow.file, ready=False) as mirror:
        until(lambda: copied(flow, topic) == 10, 90, "the copy without a map", alive=mirror)
        wait_for_errors(mirror, flow, name)
        (permit_writing if right == "Write" else permit_creating)(guarded, name)
        write(setup.a, topic, [Sent(0, b"behind")])
        until(lambda: sum(ends(guarded, name).values()), 90, "the map to be kept", alive=mirror)
        wait_for_errors(mirror, flow)


@pytest.mark.parametrize("what", ["positions", "checkpoints", "copies"])
def test_a_take_over_from_java_without_a_right_doubles_nothing_and_names_it(
    setup: Setup, guarded: Region, topic: str, what: str
) -> None:
    """What Java's MirrorMaker 2 leaves behind: copies, the last position, a checkpoint; no map."""
    group = setup.unique("billing")
    flow = setup.flow(topic, {**GROUPS, **PROMPT, "groups": group}, target=guarded)
    copy, checkpoints = flow.remote(topic), f"{flow.source_alias}.checkpoints.internal"
    for name in (copy, checkpoints, flow.offsets_topic):
        setup.create_topic(guarded, name, 1, config={} if name == copy else COMPACT)
    write(guarded, copy, numbered(0, 10))
    source = {"cluster": flow.source_alias, "partition": 0, "topic": topic}
    key = json.dumps(["MirrorSourceConnector", source], separators=(",", ":")).encode()
    write(guarded, flow.offsets_topic, [Sent(0, b'{"offset":9}', key)])
    of_group = Checkpoint(group, TopicPartition(copy, 0), 4, 4, "")
    key, value = encode_checkpoint(of_group)
    write(guarded, checkpoints, [Sent(0, value, key)])
    commit(setup.a, group, topic, {0: 12})
    write(setup.a, topic, numbered(10, 5))
    named = {"positions": flow.offsets_topic, "checkpoints": checkpoints, "copies": copy}[what]
    forbid_reading(guarded, named)
    with running(flow.file, ready=False) as mirror:
        mirror.wait_for_log(f"(?i)authoriz.*{named}|{named}.*authoriz")
        permit_reading(guarded, named)
        until(lambda: ends(guarded, copy).get(0) == 15, 90, "the copy", alive=mirror)
        until_equal(lambda: committed(guarded, group, copy), {0: 12}, alive=mirror)
    values = [it.value for it in read(guarded, copy)[0].records]
    assert values == [it.value for it in numbered(0, 15)]


def test_a_flow_whose_backfill_topic_may_not_be_created_copies_and_names_the_right(
    setup: Setup, guarded: Region, topic: str
) -> None:
    flow = setup.flow(topic, target=guarded)
    name = f"mm2py-backfill.{flow.source_alias}.internal"
    forbid_creating(guarded, name)
    with running(flow.file, ready=False) as mirror:
        until(lambda: copied(flow, topic) == 10, 90, "the copy", alive=mirror)
        assert name in mirror.wait_for_log("history of this flow cannot be copied by a backfill")
    permit_creating(guarded, name)


@pytest.mark.parametrize("suppression", ["auto", "on", "all"])
def test_a_source_whose_producer_ids_may_not_be_read(
    setup: Setup, guarded: Region, suppression: str
) -> None:
    """Another mirror writes there: nothing is copied, and the grant is named, until it is given."""
    topic = setup.topic("granted", 1, on=guarded)
    setup.create_topic(setup.b, topic, 1)
    write(guarded, topic, numbered(0, 10))
    properties = {SUPPRESSION: suppression, "replication.policy.class": IDENTITY}
    flow = setup.flow(topic, properties, source=guarded)
    if PRODUCERS not in topics_of(guarded):
        setup.create_topic(guarded, PRODUCERS, 1, config=COMPACT)
    write(guarded, PRODUCERS, [Sent(0, None, b"deleted")])  # an empty topic is not read
    forbid_reading(guarded, PRODUCERS)
    try:
        with running(flow.file, ready=False) as mirror:
            wait_for_errors(mirror, flow, PRODUCERS, "grant")
            assert sum(ends(setup.b, topic).values()) == 0
            permit_reading(guarded, PRODUCERS)
            wait_for_copies(mirror, setup.b, topic)
    finally:
        permit_reading(guarded, PRODUCERS)


def test_auto_copies_everything_from_a_source_where_the_topic_of_ids_may_not_be_created(
    setup: Setup, guarded: Region
) -> None:
    topic = setup.unique("granted")
    for region in (guarded, setup.b):
        setup.create_topic(region, topic, 1)
    write(guarded, topic, numbered(0, 10))
    flow = setup.flow(topic, {"replication.policy.class": IDENTITY}, source=guarded)
    if PRODUCERS in topics_of(guarded):
        delete_topic(guarded, PRODUCERS)
        until(lambda: PRODUCERS not in topics_of(guarded), 90, "the topic to be gone")
    forbid_creating(guarded, PRODUCERS)
    try:
        with running(flow.file, ready=False) as mirror:
            wait_for_copies(mirror, setup.b, topic)
            wait_for_errors(mirror, flow, "loops are not suppressed", "grant Create")
    finally:
        permit_creating(guarded, PRODUCERS)


def test_a_target_where_producer_ids_may_not_be_written_gets_nothing_until_they_may(
    setup: Setup, guarded: Region, topic: str
) -> None:
    flow = setup.flow(topic, {"replication.policy.class": IDENTITY}, target=guarded)
    if PRODUCERS not in topics_of(guarded):
        setup.create_topic(guarded, PRODUCERS, 1, config=COMPACT)
    forbid_writing(guarded, PRODUCERS)
    try:
        with running(flow.file, ready=False) as mirror:
            wait_for_errors(mirror, flow, PRODUCERS)
            assert sum(ends(guarded, topic).values()) == 0
            permit_writing(guarded, PRODUCERS)
            wait_for_copies(mirror, guarded, topic)
    finally:
        permit_writing(guarded, PRODUCERS)


def test_a_leader_that_may_not_use_its_id_refuses_the_flow(setup: Setup, guarded: Region) -> None:
    flow = setup.flow("nothing", ENABLED, target=guarded)
    name = f"connect-cluster-{flow.source_alias}-mm2"
    forbid_transactions(guarded, name)
    ended = run_to_end(flow.file)
    assert ended.returncode == 1, ended.stderr
    text = ended.stdout + ended.stderr
    assert f"--transactional-id {name}" in text
    assert "grant the mirror's user Write and Describe" in text


def test_a_task_that_may_not_use_its_id_names_the_grant_and_starts_once_it_is_given(
    setup: Setup, guarded: Region
) -> None:
    topic = setup.topic("granted", 1)
    write(setup.a, topic, numbered(0, 10))
    flow = setup.flow(topic, ENABLED, target=guarded)
    name = f"{flow.source_alias}-mm2-MirrorSourceConnector-0"
    forbid_transactions(guarded, name)
    with running(flow.file, name="asks", ready=False) as mirror:
        mirror.wait_for_log(f"--transactional-id {name}")
        permit_transactions(guarded, name)
        assert assert_each_once(mirror, flow, topic) == 10


def test_a_source_that_may_only_be_read_leaves_health_and_exit_codes_to_the_flow_that_copies(
    setup: Setup, guarded: Region
) -> None:
    """The flow back is not enabled, but would write heartbeats to it, as in Java."""
    topic = setup.topic("granted", 1, on=guarded)
    write(guarded, topic, numbered(0, 10))
    forbid_creating(guarded, "*")
    properties = {"emit.heartbeats.enabled": "true", "offset-syncs.topic.location": "target"}
    flow = setup.flow(topic, properties, source=guarded)
    remedy = f"{flow.target_alias}->{flow.source_alias}.emit.heartbeats.enabled = false"
    try:
        with running(flow.file, ready=False) as mirror:
            url = public_url(mirror)
            back = f"{url}flows/{quote(f'{flow.target_alias}->{flow.source_alias}')}"
            until(
                lambda: any(remedy in it for it in ask(back)[1].get("notes", ())),
                90,
                lambda: str(ask(back)),
                alive=mirror,
            )
            until(lambda: copied(flow, topic) == 10, 90, "the copy", alive=mirror)
            assert (ask(back)[1]["state"], ask(back)[1]["errors"]) == ("DISABLED", [])
            until_equal(lambda: [ask(url + it)[0] for it in ("health", "readyz")], [200, 200])
            assert command_here("flow", "list", environ={"MM2PY_URL": url}).exit_code == 0
    finally:
        permit_creating(guarded, "*")


@pytest.mark.parametrize("right", ["Create", "Write", "IdempotentWrite"])
def test_offset_syncs_that_may_not_be_written_are_named_until_they_may(
    setup: Setup, guarded: Region, right: str
) -> None:
    """They are before the first record, where nobody else is kept from writing that."""
    topic = setup.topic("granted", 1, on=guarded)
    records = numbered(0, 10)
    flow = setup.flow(topic, PROMPT, source=guarded)
    name = f"mm2-offset-syncs.{flow.target_alias}.internal"
    if right != "Create":
        setup.create_topic(guarded, name, 1, config=COMPACT)
    if is_first := right == "IdempotentWrite":
        write(guarded, topic, records)
    take, give = TAKEN_OR_GIVEN[right]
    take(guarded, name)
    try:
        with running(flow.file, ready=False) as mirror:
            teller = Teller(mirror, flow)
            resource = "--cluster" if right == "IdempotentWrite" else f"--topic {name}"
            server = f"kafka-acls.sh --bootstrap-server {guarded.bootstrap_servers} --add"
            teller.wait(
                (name, server, f"--operation {right} {resource}", "offset-syncs.topic.location=target"),
                "FlowNotWell",
            )  # fmt: skip
            if not is_first:
                write(guarded, topic, records)
            until(lambda: copied(flow, topic) == 10, 90, "the copy without syncs", alive=mirror)
            assert name in errors(mirror, flow)
            give(guarded, name)
            wait_for_errors(mirror, flow)
            until(lambda: sum(ends(guarded, name).values()), 90, "a sync", alive=mirror)
    finally:
        give(guarded, name)


def _no_producer(region: Region, _topic: str) -> None:
    """A principal without Write on any topic gets no producer id."""
    forbid_writing(region, "*")
    forbid_cluster(region, AclOperation.IDEMPOTENT_WRITE)


def _a_producer(region: Region, _topic: str) -> None:
    permit_cluster(region, AclOperation.IDEMPOTENT_WRITE)
    permit_writing(region, "*")


TAKEN_OR_GIVEN: Final[Mapping[str, tuple[Callable[[Region, str], None], ...]]] = {
    "Create": (forbid_creating, permit_creating),
    "Write": (forbid_writing, permit_writing),
    "IdempotentWrite": (_no_producer, _a_producer),
}
