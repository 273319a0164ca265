"""Consumer groups of the demo: where each is on its own side, and where it would continue on the other.

Flow: committed offsets of both regions, twice a second -> ``GroupSeen`` per group -> a table or plain lines. The
positions on the other side are what the flow commits there (``sync.group.offsets.enabled``).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from rich.table import Table

from examples.demo.topics import GROUP_TOPICS, copy_of, group_of
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.clock import Clock
from mm2py.config.clients import connection_settings
from mm2py.errors import Mm2pyError

ASK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """Committed offsets of one group, summed over its partitions."""

    group: str
    home: str
    away: str
    committed: int
    translated: int

    def plain(self) -> str:
        """Return the line for output that is no terminal."""
        return (
            f"group {self.group}  {self.home}: {self.committed:,} committed"
            f"  {self.away}: would continue at {self.translated:,}"
        )


@final
class GroupWatch:
    """Asks both regions for the offsets of both groups.

    Args:
        regions: name and address of each.
    """

    def __init__(self, regions: Sequence[tuple[str, str]], clock: Clock) -> None:
        self._clock = clock
        self._clusters = {
            name: Cluster(
                connection_settings({"bootstrap.servers": servers}), alias=name, clock=clock
            )
            for name, servers in regions
        }
        self._seen: tuple[GroupSeen, ...] = ()
        self._due = 0.0

    async def look(self) -> None:
        """See how things are now; a region that does not answer keeps what was seen last."""
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + ASK_S
        home, away = self._clusters
        try:
            async with asyncio.timeout(ASK_S):
                self._seen = (await self._group(home, away), await self._group(away, home))
        except (Mm2pyError, TimeoutError):
            return

    def plain(self) -> Sequence[str]:
        """Return one line per group."""
        return [seen.plain() for seen in self._seen]

    def render(self) -> Table:
        """Return the table of now."""
        table = Table(min_width=88)
        for name in ("group", "committed", "would continue on the other side at", "behind"):
            table.add_column(name, justify="left" if name == "group" else "right")
        for seen in self._seen:
            table.add_row(
                f"{seen.group} ({seen.home})",
                f"{seen.committed:,}",
                f"{seen.translated:,}",
                f"{max(0, seen.committed - seen.translated):,}",
            )
        return table

    async def close(self) -> None:
        """Close the connections."""
        for cluster in self._clusters.values():
            await cluster.close()

    async def _group(self, home: str, away: str) -> GroupSeen:
        group = group_of(home)
        own = await self._committed(home, group, frozenset(GROUP_TOPICS))
        names = frozenset(copy_of(home, topic) for topic in GROUP_TOPICS)
        copies = await self._committed(away, group, names)
        return GroupSeen(group, home, away, own, copies)

    async def _committed(self, region: str, group: str, topics: frozenset[str]) -> int:
        cluster = self._clusters[region]
        if not cluster.cluster_id:
            await cluster.connect()
        admin = GroupAdmin(cluster)
        listing = (await admin.list_groups()).groups.get(group)
        if listing is None:
            return 0
        found = (await admin.committed({group: listing.node_id}))[group]
        if isinstance(found, Mm2pyError):
            raise found
        return sum(max(0, it.offset) for tp, it in found.items() if tp.topic in topics)
