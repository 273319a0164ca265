"""A message handler and a rebalance listener of a third party for ``mirror-maker-py``.

Installed for a test by entry points in a folder on PYTHONPATH (``tests/integration/mirror_maker_1.py``).
"""

from collections.abc import Sequence
from pathlib import Path

from mm2py.api import MirrorRecord, OutgoingRecord, TopicPartition


class Marker:
    """Leaves out tombstones, and sends each other record twice: as it is, and to a second topic with a mark in its key."""

    def __init__(self, second_topic: str = "") -> None:
        self._second_topic = second_topic

    def handle(self, record: MirrorRecord, /) -> Sequence[OutgoingRecord]:
        """Return none or two records."""
        if record.value is None:
            return ()
        same = OutgoingRecord(
            record.topic, record.key, record.value, record.headers, record.timestamp_ms
        )
        place = b"%d-%d" % (record.partition, record.offset)
        return same, same._replace(topic=self._second_topic, key=place, partition=0)


class Notes:
    """Appends a line to a file for each change of a stream's partitions."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def partitions_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        """Write what was assigned."""
        self._write("assigned", partitions)

    def partitions_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        """Write what was revoked."""
        self._write("revoked", partitions)

    def _write(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        names = sorted(f"{it.topic}-{it.partition}" for it in partitions)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{what} {' '.join(names)}\n")
