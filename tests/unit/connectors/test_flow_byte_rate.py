"""``flow.max.bytes.per.second``: from the file to each task's reader."""

import asyncio
from collections.abc import Mapping

from mm2py.clock import Clock
from mm2py.testing.contexts import FakeConnectorContext
from mm2py_connectors.clients import ReaderEvents, ReaderLimits, ReaderSession
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from tests.unit.connectors.mirror_fakes import MirrorTaskContext, Region

BYTE_RATE = "flow.max.bytes.per.second"
CONFIG = {
    "name": "MirrorSourceConnector",
    "topics": "t.*",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
}


def shares(limit: str, partitions: int) -> list[str | None]:
    async def run() -> list[str | None]:
        region = Region({"t": partitions})
        connector = MirrorSourceConnector(
            CONFIG | {BYTE_RATE: limit},
            admins=region.open_admin,
            readers=region.open_reader,
            writers=region.open_writer,
        )
        context = FakeConnectorContext()
        await connector.start(context)
        await context.clock.settle()
        try:
            return [config.get(BYTE_RATE) for config in connector.task_configs(3)]
        finally:
            await connector.stop()

    return asyncio.run(run())


def test_the_tasks_of_a_flow_share_its_rate() -> None:
    assert shares("3000", 8) == ["1000", "1000", "1000"]
    assert shares("3000", 2) == ["1500", "1500"]
    assert shares("0", 8) == ["0", "0", "0"]


async def test_a_task_gives_its_part_to_its_reader() -> None:
    given: list[int] = []
    region = Region({})

    def readers(
        props: Mapping[str, str],
        alias: str,
        clock: Clock,
        events: ReaderEvents,
        limits: ReaderLimits,
    ) -> ReaderSession:
        given.append(limits.bytes_per_s)
        return region.open_reader(props, alias, clock, events, limits)

    config = CONFIG | {
        BYTE_RATE: "1500",
        "task.index": "0",
        "task.assigned.partitions": "t-0",
    }
    task = MirrorSourceTask(
        config, MirrorTaskContext(None), readers=readers, writers=region.open_writer
    )
    await task.start()
    await task.stop()
    assert given == [1500]
