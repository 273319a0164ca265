"""Whose producer ids are published: those of tasks that mirror records under names that may loop."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import (
    IDENTITY_REPLICATION_POLICY,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
)
from mm2py.mirror.producer_ids import MirrorProducer, decode_producer
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import ClusterAlias, FlowName, TaskId
from mm2py_workers.target_senders import TargetSenders
from tests.kit.fakes.broker import FakeBroker

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
SAME = {"replication.policy.class": IDENTITY_REPLICATION_POLICY}


def ignore(*_: object) -> None:
    """The test starts a Sender, and sends nothing."""


def spec(connector: str, **config: str) -> TaskSpec:
    props = {"connector.class": connector, "source.cluster.alias": "A", **config}
    return TaskSpec(
        id=TaskId("Some", 3),
        connector_config=props,
        config={**props, "task.source.cluster.id": "id-of-a"},
    )


@asynccontextmanager
async def published(task: TaskSpec) -> AsyncGenerator[list[MirrorProducer]]:
    """Start the Sender of a task; what is in the topic of ids then."""
    topic = MemoryTopic("mm2py-producers.internal")
    async with FakeBroker(topics={"t": 1}) as broker:
        props = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        store = ProducerIdStore(MemoryTable(topic))
        senders = TargetSenders(props, FLOW, store, clock=SYSTEM_CLOCK, permit=UNLIMITED)
        sender = senders.sender(task)(ignore, ignore, ignore, ignore, None)
        await sender.start()
        try:
            yield [decode_producer(it.key, it.value or b"") for it in topic.records]
        finally:
            await sender.close()
            await store.close()


async def test_the_id_of_a_mirror_that_keeps_names_is_published_at_its_start() -> None:
    async with published(spec(MIRROR_SOURCE_CONNECTOR, **SAME)) as (found,):
        assert found.producer_id > 0
        assert (found.flow, found.source, found.source_cluster) == ("A->B", "A", "id-of-a")
        assert (found.task, bool(found.worker)) == ("Some-3", True)


@pytest.mark.parametrize(
    "task",
    [
        spec(MIRROR_SOURCE_CONNECTOR),
        spec(MIRROR_SOURCE_CONNECTOR, **SAME, **{"loop.suppression": "off"}),
        spec(MIRROR_HEARTBEAT_CONNECTOR, **SAME),
        spec("a.third.party.Connector", **SAME),
    ],
)
async def test_other_ids_are_not_published(task: TaskSpec) -> None:
    async with published(task) as found:
        assert found == []


async def test_a_mirror_that_cannot_drop_loops_still_publishes() -> None:
    """The connector's config says what is wanted; the task's what its source allows."""
    task = spec(MIRROR_SOURCE_CONNECTOR, **SAME)
    config = {**task.config, "loop.suppression": "off"}
    allowed = TaskSpec(id=task.id, connector_config=task.connector_config, config=config)
    async with published(allowed) as found:
        assert len(found) == 1
