"""Which copies more than one flow writes into: there no group is placed.

Flow: the other maps of the target (``mm2py-offset-map.<source>.internal``) -> ``SharedCopies`` ->
``OffsetMapReader.sharers``. A group has an offset for each source; the copies of both lie between
each other, and behind the place of one source are records of the other that the group has not read.
Where it is on the other source is known to that flow alone. So such a partition has no place.

Invariants, tests of the same names (tests/property/test_positions.py):

1. Behind the place of a group lies no record of any flow that the group has not read.
2. A copy whose name carries its source is never shared.
3. Two maps of one source topic, as after another alias was chosen, share nothing: each is right by
   itself.

Not seen: what writes without a map (Java's MirrorMaker, MirrorSink, MirrorMaker 1, clients), and
the first records of another flow until its map is written and read here, seconds later.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.errors import FatalServerError
from mm2py.mirror.offset_lookup import MapIndex
from mm2py.observability.logging import some_of
from mm2py.protocol.records import Record
from mm2py.protocol.topics import NO_TOPIC_ID, named_id
from mm2py.types import TopicPartition

MOST_AT_ONCE: Final = 10
"""Maps read per look: a hub has hundreds, and each of its flows looks."""

_UNKNOWN: Final = frozenset({b"", NO_TOPIC_ID})

_PREFIX: Final = "mm2py-offset-map."
_SUFFIX: Final = ".internal"


def map_source(topic: str) -> str:
    """Return the alias of the source whose offset map a topic is, empty for any other topic."""
    is_map = topic.startswith(_PREFIX) and topic.endswith(_SUFFIX)
    return topic[len(_PREFIX) : -len(_SUFFIX)] if is_map else ""


def shared_reason(copies: str, others: Sequence[str]) -> str:
    """Return why groups have no place in ``copies``, and what to do; ``others`` are the sources of
    the other flows."""
    return (
        f"flows from {some_of(others, 3)} write into {copies} too: no group is placed there, it "
        "would skip or read again what it has not read of the other source; use a replication "
        "policy that renames topics or other topics, and reset such groups by hand. Where the "
        "other flow is gone for good, delete its topic mm2py-offset-map.<source>.internal"
    )


@final
class SharedCopies:
    """Copies on one target by the maps of other flows."""

    def __init__(self) -> None:
        self.maps: dict[str, MapIndex] = {}
        """By the alias of their source."""
        self._ids: Mapping[str, bytes] = {}
        self._writers: dict[tuple[bytes, int], list[tuple[str, bytes]]] = {}
        """Target topic id and partition -> aliases with the ids of their source topics."""

    def learn(self, topic_ids: Mapping[str, bytes]) -> None:
        """Take in what was read into ``maps``; ``topic_ids`` are those of the target's topics."""
        self._ids = topic_ids
        self._writers = {}
        for alias, index in sorted(self.maps.items()):
            for source in index.partitions:
                found = index.of(source)
                if found is None or not found.has_segments:
                    continue
                # Ids where there are some: under one name the topic may be another one by now.
                key = named_id(source.topic, found.target_id), source.partition
                self._writers.setdefault(key, []).append((alias, found.source_id))

    def sharers(self, copy: TopicPartition, source_id: bytes = b"") -> Sequence[str]:
        """Return the source aliases of other flows whose records are in ``copy``; ``source_id`` is
        that of the flow's own source topic."""
        # Both forms: another flow's map may have been written before the target's brokers had ids.
        name = copy.topic
        keys = {named_id(name, self._ids.get(name)), named_id(name, None)}
        return sorted(
            {
                alias
                for key in keys
                for alias, other in self._writers.get((key, copy.partition), ())
                # The same source topic under two aliases (invariant 3): its records are one flow's,
                # each map right by itself.
                if other != source_id or other in _UNKNOWN
            }
        )


@final
class OtherMaps:
    """Reads the maps of other flows on a target; its owner connects and closes the cluster.

    Args:
        own: name of the flow's own map.
    """

    def __init__(self, cluster: Cluster, own: str, *, clock: Clock) -> None:
        self._admin, self._own, self._clock = Admin(cluster), own, clock
        self._readers: dict[str, LogReader] = {}
        self._whole: set[str] = set()
        """Maps that were read to their end at least once."""
        self.unreadable: dict[str, str] = {}
        """Maps of which nothing is known, with the cause: whether their flows write into the same
        copies is not known either."""
        self.shared = SharedCopies()

    async def read(self) -> None:
        """Read maps that are new, and some of the others in turn; ``RetriableError``: not now; a
        later call continues."""
        listed = await self._admin.list_topics()
        topics = [it for it in listed if map_source(it) and it != self._own]
        # A map that was deleted, as the remedy says for a flow that is gone, frees its copies.
        for gone in self._readers.keys() - set(topics):
            await self._readers.pop(gone).close()
            self.shared.maps.pop(map_source(gone), None)
        self._whole.intersection_update(topics)
        self.unreadable = {it: why for it, why in self.unreadable.items() if it in topics}
        # One that was never read to its end, or may not be read, is tried at each look: no group is
        # placed without it.
        new = [it for it in topics if it not in self._whole]
        turn = [it for it in self._readers if it in self._whole][:MOST_AT_ONCE]
        for topic in new:
            if topic not in self._readers:
                self._readers[topic] = LogReader(
                    self._admin.cluster, topic, clock=self._clock, waits_for_topic=False
                )
        for topic in turn:
            self._readers[topic] = self._readers.pop(topic)  # the last in the next turn
        # New maps are all read, however many; the limit holds for what is under way at once.
        for first in range(0, len(new) + len(turn), MOST_AT_ONCE):
            chosen = [*new, *turn][first : first + MOST_AT_ONCE]
            answers = await asyncio.gather(*map(self._read, chosen), return_exceptions=True)
            for answer in answers:
                if answer is not None:
                    raise answer
        self.shared.learn({name: it.topic_id for name, it in listed.items()})

    async def close(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.close()

    async def _read(self, topic: str) -> None:
        # The index outlives its reader: one that is opened again reads the topic from its
        # beginning, which folds to the same.
        index = self.shared.maps.setdefault(map_source(topic), MapIndex())

        def take(_partition: int, record: Record) -> None:
            index.take(record)

        try:
            await self._readers[topic].read_to_end(take)
        # No ACL for another flow's topic must not stop this flow; its copies count as unreadable
        # until then.
        except FatalServerError as error:
            self.unreadable[topic] = str(error)
            self._whole.discard(topic)
            await self._readers.pop(topic).close()
        else:
            self._whole.add(topic)
            self.unreadable.pop(topic, None)
