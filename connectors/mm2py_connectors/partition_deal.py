"""Deals source partitions to tasks, round robin as Java, and keeps the deal when the set changes.

Flow: partitions to copy -> ``update`` -> slots -> ``deal(n)``: slot k goes to task k mod n. New
partitions take free slots or go to the end, so a partition that stays keeps its task while the
number of tasks does. Where one task has far more to copy than another, a deal that has to be made
anyway weighs them.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Final, final

from mm2py.errors import ConfigError
from mm2py.types import TopicPartition

ASSIGNED_PARTITIONS: Final = "task.assigned.partitions"
END_OFFSETS: Final = "task.end.offsets"
"""Ours: where the partitions of a backfill end."""

LEAST: Final = 0.1
"""Part of the mean that an idle partition counts for: it costs something, and may wake up."""

UNEVEN: Final = 1.3
"""A task above this many times its fair share is worth moving partitions, which restarts tasks."""

GAIN: Final = 0.9
"""And only for a deal whose heaviest task has at most this part of what it had."""


@final
class PartitionDeal:
    """The known list of partitions, with holes where some were taken out."""

    def __init__(self) -> None:
        self._slots: list[TopicPartition | None] = []

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(slot for slot in self._slots if slot is not None)

    def continue_with(self, hands: Sequence[Sequence[TopicPartition]]) -> None:
        """Take over what tasks have, in their order, where it is the same set: nothing moves,
        nothing restarts.

        Java and an earlier worker may have dealt in another order; a deal that means the same is
        not made again.
        """
        # Compared as sets: a partition that is gone or new makes another deal anyway.
        dealt = [partition for hand in hands for partition in hand]
        if len(dealt) != len(self.partitions) or self.partitions != frozenset(dealt):
            return
        # Row by row, as round robin reads it, with holes where a hand is shorter.
        # ``zip_longest`` fills short hands with None, which are the holes of round robin.
        slots: list[TopicPartition | None] = [it for row in zip_longest(*hands) for it in row]
        while slots and slots[-1] is None:
            slots.pop()
        self._slots = slots

    def update(self, partitions: Collection[TopicPartition], *, anew: bool = False) -> bool:
        """Deal ``partitions`` from now on; return whether the set changed. New ones come in the
        given order.

        With ``anew`` all come in the given order, as Java deals: most of them change their task.
        """
        known = self.partitions
        new = [partition for partition in partitions if partition not in known]
        gone = known.difference(partitions)
        if not new and not gone:
            return False
        if anew:
            self._slots = [*partitions]
            return True
        self._slots = [None if slot in gone else slot for slot in self._slots]
        # Holes first: otherwise one partition would shift all behind it to other tasks.
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

    def deal(
        self, max_tasks: int, rates: Mapping[TopicPartition, float] | None = None
    ) -> list[list[TopicPartition]]:
        """Return the partitions of each task; no task is empty.

        Args:
            max_tasks: most of them.
            rates: bytes per second where they are known; a partition without one counts as the
                mean.
        """
        count = min(max_tasks, len(self.partitions))
        hands = self._hands(count)
        if not all(hands):
            # Holes starved a task: close them. Tasks restart, as with Java after any deletion.
            self._slots = [slot for slot in self._slots if slot is not None]
            hands = self._hands(count)
        return self._weighed(hands, rates) if rates and count > 1 else hands

    def _weighed(
        self, hands: list[list[TopicPartition]], rates: Mapping[TopicPartition, float]
    ) -> list[list[TopicPartition]]:
        measured = [rates[p] for p in self.partitions if p in rates]
        usual = sum(measured) / len(measured) if measured else 0.0
        weight = {p: max(LEAST * usual, rates.get(p, usual)) for p in self.partitions}
        before = max(sum(weight[p] for p in hand) for hand in hands)
        if before <= UNEVEN * sum(weight.values()) / len(hands):
            return hands
        dealt = _largest_first(hands, weight)
        after = max(sum(weight[p] for p in hand) for hand in dealt)
        # Moving restarts tasks: not for a little.
        if after > GAIN * before:
            return hands
        # From now on this is the deal that later changes keep.
        self.continue_with(dealt)
        return dealt

    def _hands(self, count: int) -> list[list[TopicPartition]]:
        hands: list[list[TopicPartition]] = [[] for _ in range(count)]
        for index, slot in enumerate(self._slots):
            if slot is not None:
                hands[index % count].append(slot)
        return hands


def _largest_first(
    hands: list[list[TopicPartition]], weight: Mapping[TopicPartition, float]
) -> list[list[TopicPartition]]:
    """Deal the heaviest to the lightest task; where several are as light, the one that had it."""
    had = {partition: index for index, hand in enumerate(hands) for partition in hand}
    dealt: list[list[TopicPartition]] = [[] for _ in hands]
    loads = [0.0] * len(hands)
    left = len(had)
    # By weight, then name: the same input gives the same deal on any worker.
    for partition in sorted(had, key=lambda p: (-weight[p], p)):
        empty = [index for index, hand in enumerate(dealt) if not hand]
        # The last ones go to who has nothing: no task may be empty.
        choice = empty if empty and left <= len(empty) else range(len(hands))
        task = min(choice, key=lambda i: (loads[i], i != had[partition], len(dealt[i]), i))
        dealt[task].append(partition)
        loads[task] += weight[partition]
        left -= 1
    return dealt


def format_partitions(partitions: Sequence[TopicPartition]) -> str:
    """Return the property text of ``task.assigned.partitions``."""
    return ",".join(map(str, partitions))


def parse_partitions(items: Sequence[str]) -> tuple[TopicPartition, ...]:
    """Read ``topic-partition`` items, split at the last dash; doubled ones count once.
    ``ConfigError``: an item is not of that form."""
    parsed: dict[TopicPartition, None] = {}
    for item in items:
        # Topic names may contain dashes, partition numbers cannot.
        topic, dash, number = item.rpartition("-")
        if not dash or not topic or not number.isascii() or not number.isdigit():
            raise ConfigError(
                f"{ASSIGNED_PARTITIONS}: {item!r} is not topic-partition",
                remedy="task configs are written by the connector; restart it",
            )
        parsed[TopicPartition(topic, int(number))] = None
    return tuple(parsed)


def format_ends(ends: Mapping[TopicPartition, int]) -> str:
    """Return the property text of ``task.end.offsets``."""
    return ",".join(f"{partition}:{end}" for partition, end in ends.items())


def parse_ends(items: Sequence[str]) -> dict[TopicPartition, int]:
    """Read ``topic-partition:offset`` items. ``ConfigError``: an item is not of that form."""
    ends: dict[TopicPartition, int] = {}
    for item in items:
        name, colon, offset = item.rpartition(":")
        if not colon or not offset.isascii() or not offset.isdigit():
            raise ConfigError(f"{END_OFFSETS}: {item!r} is not topic-partition:offset")
        ends[parse_partitions([name])[0]] = int(offset)
    return ends
