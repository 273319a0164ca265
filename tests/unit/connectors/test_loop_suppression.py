"""When loops are suppressed, what tasks are handed for it, and what a refusal of the source means."""

import pytest

from mm2py.errors import FatalError
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC
from mm2py.protocol import error_codes as codes
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeConnectorContext
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.mirror_fakes import MirrorTaskContext, Region
from tests.unit.connectors.test_mirror_source_connector import CONFIG

IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
PRODUCERS = NewTopic(PRODUCERS_TOPIC, 1, 1, {"cleanup.policy": "compact"})


async def started(region: Region, **more: str) -> MirrorSourceConnector:
    config = CONFIG | {"replication.policy.class": IDENTITY} | more
    connector = MirrorSourceConnector(
        config, admins=region.open_admin, readers=region.open_reader, writers=region.open_writer
    )
    await connector.start(FakeConnectorContext())
    return connector


async def test_a_flow_that_keeps_names_creates_the_topic_of_ids_and_hands_its_tasks_the_clusters() -> (
    None
):
    region = Region({"t": 1})
    connector = await started(region)
    assert PRODUCERS in region.source.created
    (config,) = connector.task_configs(1)
    assert config["loop.suppression"] == "on"
    assert config["task.source.cluster.id"] == config["task.target.cluster.id"] == "cluster"
    assert connector.problems() == {}
    await connector.stop()


async def test_names_with_provenance_need_none_of_it_and_configs_stay_javas() -> None:
    region = Region({"t": 1})
    connector = await started(
        region,
        **{"replication.policy.class": ""}
        | {"replication.policy.class": "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"},
    )
    assert PRODUCERS not in region.source.created
    (config,) = connector.task_configs(1)
    assert "loop.suppression" not in config
    await connector.stop()


async def test_all_stays_all() -> None:
    connector = await started(Region({"t": 1}), **{"loop.suppression": "all"})
    (config,) = connector.task_configs(1)
    assert config["loop.suppression"] == "all"
    await connector.stop()


async def test_where_the_source_refuses_auto_copies_and_names_the_grant() -> None:
    region = Region({"t": 1})
    region.source.refuse[PRODUCERS_TOPIC] = server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no")
    connector = await started(region)
    (config,) = connector.task_configs(1)
    assert config["loop.suppression"] == "off"
    (problem,) = connector.problems().values()
    assert "grant Create, Describe and Read on topic mm2py-producers.internal" in problem
    await connector.stop()


async def test_a_topic_that_may_be_seen_needs_no_right_to_create_it() -> None:
    region = Region({"t": 1, PRODUCERS_TOPIC: 1})
    region.source.refuse[PRODUCERS_TOPIC] = server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no")
    connector = await started(region)
    (config,) = connector.task_configs(1)
    assert config["loop.suppression"] == "on"
    await connector.stop()


async def test_where_the_source_refuses_on_does_not_start() -> None:
    region = Region({"t": 1})
    region.source.refuse[PRODUCERS_TOPIC] = server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no")
    with pytest.raises(FatalError, match=r"loop\.suppression=on is not possible"):
        await started(region, **{"loop.suppression": "on"})


async def test_a_task_reads_all_ids_before_its_first_batch_and_fails_where_it_may_not() -> None:
    region = GroupRegion()
    config = CONFIG | {
        "task.index": "0",
        "task.assigned.partitions": "t-0",
        "loop.suppression": "on",
    }

    def task() -> MirrorSourceTask:
        return MirrorSourceTask(
            config,
            MirrorTaskContext(),
            readers=region.open_reader,
            writers=region.open_writer,
            logs=region.open_log,
            admins=region.open_admin,
        )

    log = region.log("A", PRODUCERS_TOPIC)
    log.append(b"900", b'\x01{"flow":"B->A","source":"B"}')
    log.append(b"901", b'\x01{"flow":"C->A","source":"C"}')
    log.append(b"902", None)
    first = task()
    await first.start()
    origins = region.readers[-1].events.origins
    assert origins is not None
    assert (origins.known.looping, origins.known.passing) == ({900}, {901})
    await first.stop()
    log.broken.append(server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no"))
    second = task()
    with pytest.raises(FatalError, match="loops cannot be suppressed"):
        await second.start()
    await second.stop()
    assert region.all_closed
