"""Deals source partitions to tasks, round robin as Java, and keeps the deal when the set changes.

Flow: wanted partitions -> ``update`` -> slots -> ``deal(n)``: slot k goes to task k mod n. New partitions
take free slots or go to the end, so a partition that stays keeps its task while the number of tasks does.
"""

from collections.abc import Collection, Sequence
from typing import Final, final

from mm2py.errors import ConfigError
from mm2py.types import TopicPartition

__all__ = ["ASSIGNED_PARTITIONS", "PartitionDeal", "format_partitions", "parse_partitions"]

ASSIGNED_PARTITIONS: Final = "task.assigned.partitions"


@final
class PartitionDeal:
    """The known list of partitions, with holes where some were taken out."""

    def __init__(self) -> None:
        self._slots: list[TopicPartition | None] = []

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What is dealt."""
        return frozenset(slot for slot in self._slots if slot is not None)

    def update(self, wanted: Collection[TopicPartition]) -> bool:
        """Make ``wanted`` the dealt set; whether it changed. New ones come in the given order."""
        known = self.partitions
        new = [partition for partition in wanted if partition not in known]
        gone = known.difference(wanted)
        if not new and not gone:
            return False
        self._slots = [None if slot in gone else slot for slot in self._slots]
        free = iter([index for index, slot in enumerate(self._slots) if slot is None])
        for partition in new:
            index = next(free, None)
            if index is None:
                self._slots.append(partition)
            else:
                self._slots[index] = partition
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
        return True

    def deal(self, max_tasks: int) -> list[list[TopicPartition]]:
        """Return the partitions of each task; no task is empty."""
        count = min(max_tasks, len(self.partitions))
        hands = self._hands(count)
        if not all(hands):
            # Holes starved a task: close them. Tasks restart, as with Java after any deletion.
            self._slots = [slot for slot in self._slots if slot is not None]
            hands = self._hands(count)
        return hands

    def _hands(self, count: int) -> list[list[TopicPartition]]:
        hands: list[list[TopicPartition]] = [[] for _ in range(count)]
        for index, slot in enumerate(self._slots):
            if slot is not None:
                hands[index % count].append(slot)
        return hands


def format_partitions(partitions: Sequence[TopicPartition]) -> str:
    """Return the property text of ``task.assigned.partitions``."""
    return ",".join(map(str, partitions))


def parse_partitions(items: Sequence[str]) -> tuple[TopicPartition, ...]:
    """Read ``topic-partition`` items, split at the last dash; doubled ones count once.

    Raises:
        ConfigError: An item is not of that form.
    """
    parsed: dict[TopicPartition, None] = {}
    for item in items:
        topic, dash, number = item.rpartition("-")
        if not dash or not topic or not number.isascii() or not number.isdigit():
            raise ConfigError(
                f"{ASSIGNED_PARTITIONS}: {item!r} is not topic-partition",
                remedy="task configs are written by the connector; restart it",
            )
        parsed[TopicPartition(topic, int(number))] = None
    return tuple(parsed)
