"""A sink connector and a transform in one small package: records become lines of files.

Flow: consumer group -> ``LineSinkTask.put`` -> a JSON line per record; ``pre_commit`` returns when they are on the disk.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TextIO

from mm2py.api import (
    ConfigError,
    ConnectorContext,
    SinkRecord,
    SinkTaskContext,
    TopicPartition,
)


class LineSinkTask:
    """Appends one line per record; a value that is no UTF-8 is handed to ``errors.tolerance``."""

    def __init__(self, config: Mapping[str, str], context: SinkTaskContext) -> None:
        self._path = Path(config["file"])
        self._context = context
        self._file: TextIO | None = None

    def start(self) -> None:
        """Open the file of this task."""
        self._file = self._path.open("a", encoding="utf-8")

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is kept per partition."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write lines; they are safe with the next ``pre_commit``."""
        assert self._file is not None
        for record in records:
            assert isinstance(record.value, bytes)
            try:
                text = record.value.decode()
            except UnicodeDecodeError as error:
                self._context.report(record, error)
                continue
            line = [record.topic, record.partition, record.offset, text]
            self._file.write(json.dumps(line) + "\n")

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return when everything that was put is on the disk."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return offsets

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is kept per partition."""

    def stop(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class LineSinkConnector:
    """As many tasks as there may be, a file for each."""

    java_class: ClassVar[str] = "com.example.LineSinkConnector"
    plugin_type: ClassVar[str] = "sink"
    plugin_version: ClassVar[str] = "2.0"

    def __init__(self, config: Mapping[str, str]) -> None:
        if not config.get("file"):
            raise ConfigError("file: is missing", remedy="name the file that the lines go to")
        self._config = config

    async def start(self, context: ConnectorContext) -> None:
        """Nothing runs beside the tasks."""

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return the file of each task."""
        return [{"file": f"{self._config['file']}.{task}"} for task in range(max_tasks)]

    def open_sink_task(self, config: Mapping[str, str], context: SinkTaskContext) -> LineSinkTask:
        """Build one task, in the process that it has for itself."""
        return LineSinkTask(config, context)

    async def stop(self) -> None:
        """Nothing to end."""


class UpperCase:
    """A transform: values in capitals."""

    java_class: ClassVar[str] = "com.example.UpperCase"

    def __init__(self, config: Mapping[str, str]) -> None:
        """Take its own keys, without ``transforms.<alias>.``; it has none."""

    def apply(self, record: SinkRecord) -> SinkRecord:
        """Return the record with its value in capitals."""
        assert isinstance(record.value, bytes)
        return record._replace(value=record.value.upper())

    def close(self) -> None:
        """Nothing is open."""
