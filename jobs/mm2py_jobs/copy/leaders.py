"""Which brokers lead the partitions of a job's lanes: what ``--max-lanes-per-broker`` counts.

Flow: ``Leaders`` of all partitions of a job -> a group of each for ``deal``: lanes of partitions
with the same brokers -> ``Leaders.gate`` -> asked again before lanes begin. A partition without a
leader, or in a cluster that does not answer, counts where it was last, or nowhere: its lane waits
for it anyway.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, final

from mm2py.client.connect.cluster import Cluster
from mm2py.errors import Mm2pyError
from mm2py.types import TopicPartition
from mm2py_jobs.log.log_ends import LOOK_S
from mm2py_jobs.spark.lane_gate import LaneGate

log = logging.getLogger(__name__)

NEW_S: Final = 5.0
"""How long leaders are asked for that were never known."""

OLD_S: Final = 20.0
"""Leaders are asked for again when they have been known for so long, and a lane is to begin."""


class LedPartition(NamedTuple):
    """A partition that a lane reads or writes; ``side`` is one of the clusters that ``Leaders``
    knows."""

    side: str
    partition: TopicPartition


@final
class Leaders:
    """Asks clusters, over connections of its own, in code without an event loop.

    Args:
        clusters: client properties by side.
        places: all that may be asked for.
    """

    def __init__(
        self, clusters: Mapping[str, Mapping[str, str]], places: Iterable[LedPartition]
    ) -> None:
        self.clusters: Final = clusters
        self._places = list(places)
        self._known: dict[LedPartition, str] = {}
        self._asked_s = -inf

    def brokers(self, places: Collection[LedPartition]) -> frozenset[str]:
        """Return the brokers that lead any of these; two sides of one cluster have the same."""
        if time.monotonic() - self._asked_s >= OLD_S:
            asyncio.run(self._ask())
            self._asked_s = time.monotonic()
        return frozenset(self._known[it] for it in places if it in self._known)

    def gate(self, most: int, lanes: Sequence[Collection[LedPartition]]) -> LaneGate:
        """Return what begins so many of these lanes at one broker."""
        return LaneGate(most, lambda numbers: [self.brokers(lanes[it]) for it in numbers])

    async def _ask(self) -> None:
        for side, properties in self.clusters.items():
            wanted = [it.partition for it in self._places if it.side == side]
            if not wanted:
                continue
            try:
                async with Cluster.of(properties, alias=side) as cluster:
                    await self._ask_one(side, cluster, wanted)
            except Mm2pyError as error:
                log.warning(
                    "leaders are not known now, lanes count where they were cluster=%s cause=%s",
                    side,
                    error,
                )

    async def _ask_one(self, side: str, cluster: Cluster, wanted: Sequence[TopicPartition]) -> None:
        """Ask until each partition has been known once: brokers do not list a topic at once that
        was just created, as by the restore itself, and lanes that count nowhere all begin."""
        give_up_s = time.monotonic() + NEW_S
        while True:
            found = await cluster.leaders(wanted)
            self._known |= {
                LedPartition(side, tp): f"{cluster.cluster_id or side}/{leader.node_id}"
                for tp, leader in found.items()
                if not isinstance(leader, Mm2pyError)
            }
            wanted = [tp for tp in wanted if LedPartition(side, tp) not in self._known]
            if not wanted or time.monotonic() >= give_up_s:
                return
            await asyncio.sleep(LOOK_S)
