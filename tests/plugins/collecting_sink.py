"""A third party's sink and transform, as the product's users write them: records become lines of a file.

Installed for a test by entry points in a folder on PYTHONPATH (``tests/integration/connect_process.py``).
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TextIO

from mm2py.api.context import ConnectorContext
from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTaskContext
from mm2py.errors import FatalError
from mm2py.types import TopicPartition

__all__ = ["CollectingSinkConnector", "UpperCase"]


class CollectingTask:
    """Appends one JSON line per record; ``poison`` is a value that it cannot take."""

    def __init__(self, config: Mapping[str, str], context: SinkTaskContext) -> None:
        self._path = Path(config["file"])
        self._poison = config.get("poison", "").encode()
        self._context = context
        self._file: TextIO | None = None

    def start(self) -> None:
        self._file = self._path.open("a", encoding="utf-8")

    def open(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def put(self, records: Sequence[SinkRecord]) -> None:
        assert self._file is not None
        for record in records:
            assert isinstance(record.value, bytes)
            if self._poison and record.value == self._poison:
                self._context.report(record, FatalError("poison"))
                continue
            line = [record.topic, record.partition, record.offset, record.value.decode()]
            self._file.write(json.dumps(line) + "\n")

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return offsets

    def close(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def stop(self) -> None:
        if self._file is not None:
            self._file.close()


class CollectingSinkConnector:
    """As many tasks as there may be, a file for each."""

    java_class: ClassVar[str] = "com.example.CollectingSinkConnector"
    plugin_type: ClassVar[str] = "sink"
    plugin_version: ClassVar[str] = "2.0"

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config

    async def start(self, context: ConnectorContext) -> None:
        pass

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [
            {"file": f"{self._config['file']}.{task}", "poison": self._config.get("poison", "")}
            for task in range(max_tasks)
        ]

    def open_sink_task(self, config: Mapping[str, str], context: SinkTaskContext) -> CollectingTask:
        return CollectingTask(config, context)

    async def stop(self) -> None:
        pass


class UpperCase:
    """A transform: values in capitals."""

    java_class: ClassVar[str] = "com.example.UpperCase"

    def __init__(self, config: Mapping[str, str]) -> None:
        pass

    def apply(self, record: SinkRecord) -> SinkRecord:
        assert isinstance(record.value, bytes)
        return record._replace(value=record.value.upper())

    def close(self) -> None:
        pass
