"""What a lane of a restore is to read, as it travels in its task's config; needs neither pyspark
nor pyarrow.

Flow: ``TaskArchive`` -> text under ``ARCHIVE`` -> ``archive_plugins`` ->
``mm2py_jobs.archive.archive_task``.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Final, NamedTuple, cast

from mm2py.config.class_names import SOURCE_NAME
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.types import TopicPartition

ARCHIVE: Final = "archive"
"""Key of a lane's task config: a ``TaskArchive`` as JSON. No property: users do not write it."""

_CONNECTOR: Final = "mm2py_jobs.archive.archive_task:ArchiveConnector"


class ArchivedCopy(NamedTuple):
    """A topic of the archive: its name and id there, and the topic that it is restored into."""

    name: str
    topic_id: str
    target: str


class TaskArchive(NamedTuple):
    """What a task restores: a path, and by the name that positions are kept under its topics and
    partitions with their ends.

    ``begins``: where the archive's first records of partitions were when it was planned.
    """

    path: str
    topics: Mapping[str, ArchivedCopy]
    ends: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int]

    def to_text(self) -> str:
        document = {
            "path": self.path,
            "topics": self.topics,
            "ends": [[*partition, end] for partition, end in self.ends.items()],
            "begins": [[*partition, first] for partition, first in self.begins.items()],
        }
        return json.dumps(document)

    @classmethod
    def parse(cls, text: str) -> "TaskArchive":
        document = json.loads(text)
        topics = cast("Mapping[str, Sequence[str]]", document["topics"])
        return cls(
            document["path"],
            {name: ArchivedCopy(*topic) for name, topic in topics.items()},
            _by_partition(document["ends"]),
            _by_partition(document["begins"]),
        )


def _by_partition(rows: Sequence[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def archive_plugins() -> Plugins:
    """Return plug-ins among which MirrorSource is
    ``mm2py_jobs.archive.archive_task.ArchiveConnector``: a restored topic counts as copied by
    it."""
    return Plugins([EntryPoint(SOURCE_NAME, _CONNECTOR, "mm2py.connectors")])
