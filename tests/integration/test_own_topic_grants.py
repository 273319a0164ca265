"""Rights on our own topics that are missing: the offset map's and the producer ids' are named, and what runs without them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import (
    delete_topic,
    forbid_creating,
    forbid_reading,
    forbid_writing,
    permit_creating,
    permit_reading,
    permit_writing,
    topics_of,
)
from tests.integration.flow_questions import path_of
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.rest_asking import ask, public_url
from tests.integration.traffic import Sent, copied, ends, write
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION, CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(200)]

Unique = Callable[[str], str]
PRODUCERS = "mm2py-producers.internal"
COMPACT = {"cleanup.policy": "compact"}
SUPPRESSION = "{source}->{target}.loop.suppression"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Region]:
    with Region("guarded", properties={**ANY_SESSION, "super.users": "User:admin"}) as region:
        yield region


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("granted")
    create_topic(region_a, name, 1)
    write(region_a, name, [Sent(0, b"%d" % number) for number in range(10)])
    return name


def errors(mirror: Mirror, flow: Flow) -> str:
    """Return what ``/flows`` calls wrong."""
    status, found = ask(f"{public_url(mirror).rstrip('/')}{path_of(flow)}")
    return " ".join(each["message"] for each in found["errors"]) if status == 200 else ""


@pytest.mark.parametrize("right", ["Write", "Create"])
def test_an_offset_map_that_may_not_be_kept_is_named_and_kept_once_it_may(
    region_a: KafkaAddress,
    guarded: Region,
    topic: str,
    create_topic: CreateTopic,
    tmp_path: Path,
    right: str,
) -> None:
    flow = write_flow(tmp_path, region_a, guarded, topic)
    name = f"mm2py-offset-map.{flow.source_alias}.internal"
    if right == "Write":
        create_topic(guarded, name, 1, config=COMPACT)
        forbid_writing(guarded, name)
    else:
        forbid_creating(guarded, name)
    with Mirror(flow.file) as mirror:
        until(lambda: copied(flow, topic) == 10, 90, "the copy without a map", alive=mirror)
        until(lambda: name in errors(mirror, flow), 90, lambda: errors(mirror, flow), alive=mirror)
        (permit_writing if right == "Write" else permit_creating)(guarded, name)
        write(region_a, topic, [Sent(0, b"behind")])
        until(lambda: sum(ends(guarded, name).values()), 90, "the map to be kept", alive=mirror)
        until(lambda: not errors(mirror, flow), 90, lambda: errors(mirror, flow), alive=mirror)
        assert mirror.stop() == 0


def test_a_flow_whose_backfill_topic_may_not_be_created_copies_and_names_the_right(
    region_a: KafkaAddress, guarded: Region, topic: str, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, guarded, topic)
    name = f"mm2py-backfill.{flow.source_alias}.internal"
    forbid_creating(guarded, name)
    with Mirror(flow.file) as mirror:
        until(lambda: copied(flow, topic) == 10, 90, "the copy", alive=mirror)
        assert name in mirror.wait_for_log("history of this flow cannot be copied by a backfill")
        assert mirror.stop() == 0
    permit_creating(guarded, name)


@pytest.mark.parametrize("suppression", ["auto", "on", "all"])
def test_a_source_whose_producer_ids_may_not_be_read(
    region_b: KafkaAddress,
    guarded: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    suppression: str,
) -> None:
    """Another mirror writes there: nothing is copied, and the grant is named, until it is given."""
    topic = unique("granted")
    create_topic(guarded, topic, 1)
    create_topic(region_b, topic, 1)
    write(guarded, topic, [Sent(0, b"%d" % number) for number in range(10)])
    properties = {
        SUPPRESSION: suppression,
        "replication.policy.class": IDENTITY,
    }
    flow = write_flow(tmp_path, guarded, region_b, topic, properties)
    if PRODUCERS not in topics_of(guarded):
        create_topic(guarded, PRODUCERS, 1, config=COMPACT)
    write(guarded, PRODUCERS, [Sent(0, None, b"deleted")])  # an empty topic is not read
    forbid_reading(guarded, PRODUCERS)
    try:
        with Mirror(flow.file) as mirror:
            until(
                lambda: PRODUCERS in errors(mirror, flow) and "grant" in errors(mirror, flow),
                90,
                lambda: errors(mirror, flow),
                alive=mirror,
            )
            assert sum(ends(region_b, topic).values()) == 0
            permit_reading(guarded, PRODUCERS)
            until(lambda: sum(ends(region_b, topic).values()) == 10, 90, "the copy", alive=mirror)
            assert mirror.stop() == 0
    finally:
        permit_reading(guarded, PRODUCERS)


def test_auto_copies_everything_from_a_source_where_the_topic_of_ids_may_not_be_created(
    region_b: KafkaAddress,
    guarded: Region,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("granted")
    for region in (guarded, region_b):
        create_topic(region, topic, 1)
    write(guarded, topic, [Sent(0, b"%d" % number) for number in range(10)])
    flow = write_flow(tmp_path, guarded, region_b, topic, {"replication.policy.class": IDENTITY})
    if PRODUCERS in topics_of(guarded):
        delete_topic(guarded, PRODUCERS)
        until(lambda: PRODUCERS not in topics_of(guarded), 30, "the topic to be gone")
    forbid_creating(guarded, PRODUCERS)
    try:
        with Mirror(flow.file) as mirror:
            until(lambda: sum(ends(region_b, topic).values()) == 10, 90, "the copy", alive=mirror)
            until(
                lambda: "loops are not suppressed" in errors(mirror, flow),
                90,
                lambda: errors(mirror, flow),
                alive=mirror,
            )
            assert "grant Create" in errors(mirror, flow)
            assert mirror.stop() == 0
    finally:
        permit_creating(guarded, PRODUCERS)


def test_a_target_where_producer_ids_may_not_be_written_gets_nothing_until_they_may(
    region_a: KafkaAddress, guarded: Region, topic: str, create_topic: CreateTopic, tmp_path: Path
) -> None:
    flow = write_flow(tmp_path, region_a, guarded, topic, {"replication.policy.class": IDENTITY})
    if PRODUCERS not in topics_of(guarded):
        create_topic(guarded, PRODUCERS, 1, config=COMPACT)
    forbid_writing(guarded, PRODUCERS)
    try:
        with Mirror(flow.file) as mirror:
            until(
                lambda: PRODUCERS in errors(mirror, flow),
                90,
                lambda: errors(mirror, flow),
                alive=mirror,
            )
            assert sum(ends(guarded, topic).values()) == 0
            permit_writing(guarded, PRODUCERS)
            until(lambda: sum(ends(guarded, topic).values()) == 10, 90, "the copy", alive=mirror)
            assert mirror.stop() == 0
    finally:
        permit_writing(guarded, PRODUCERS)
