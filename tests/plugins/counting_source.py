"""A third party's connector, as the product's users write them: ordinary records with schemas.

Installed for a test by an entry point in a folder on PYTHONPATH (``tests/integration/connect_process.py``).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from mm2py.api import (
    ConfigError,
    ConnectorContext,
    Field,
    Schema,
    SchemaType,
    SourceRecord,
    TaskContext,
)

PARTITION: Final = {"counter": "one"}
VALUE: Final = Schema(
    type=SchemaType.STRUCT,
    fields=(
        Field("number", Schema(type=SchemaType.INT32)),
        Field("even", Schema(type=SchemaType.BOOLEAN, optional=True)),
    ),
)


class CountingTask:
    """Writes the numbers from the stored position to ``count``."""

    def __init__(self, config: Mapping[str, str], context: TaskContext) -> None:
        self._topic, self._count = config["topic"], int(config["count"])
        self._context = context
        self._next = 1

    async def start(self) -> None:
        (stored,) = await self._context.committed_offsets([PARTITION])
        self._next = 1 if stored is None else int(stored["number"]) + 1

    async def poll(self) -> Sequence[SourceRecord]:
        if self._next > self._count:
            await asyncio.sleep(0.2)
            return ()
        number, self._next = self._next, self._next + 1
        return [
            SourceRecord(
                source_partition=PARTITION,
                source_offset={"number": number},
                topic=self._topic,
                partition=0,
                key=f"k{number}",
                value={"number": number, "even": None if number == 1 else number % 2 == 0},
                value_schema=VALUE,
                headers=(("half", number / 2),),
            )
        ]

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        pass

    async def commit(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class CountingSourceConnector:
    """One task."""

    java_class: ClassVar[str] = "com.example.CountingSourceConnector"
    plugin_version: ClassVar[str] = "1.2.3"

    def __init__(self, config: Mapping[str, str]) -> None:
        if not config.get("count", "").isdigit():
            raise ConfigError("count: is no number")
        self._config = config

    async def start(self, context: ConnectorContext) -> None:
        pass

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [{key: self._config[key] for key in ("topic", "count")}]

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> CountingTask:
        return CountingTask(config, context)

    async def stop(self) -> None:
        pass
