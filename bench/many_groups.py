"""10,000 consumer groups of which 100 commit each second: CPU of a mirror that follows them, delay of their offsets.

Flow: a topic and its copy -> groups with offsets at the source -> mirror -> all groups on the target -> commits at a
steady rate -> CPU of the mirror's processes, and how long a commit takes to be on the target. Nothing else is copied.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import ProcessTree
from bench.mirror_process import MirrorProcess
from bench.steady import TARGET_ALIAS, Tool
from bench.topics import Topics
from bench.workloads import Workload, fill
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.config.clients import connection_settings
from mm2py.errors import Mm2pyError
from mm2py.protocol.groups import OffsetToCommit
from mm2py.types import TopicPartition

PARTITIONS: Final = 50
RECORDS: Final = 400
ORDERS: Final = Workload(
    name="orders",
    title="",
    value_bytes=100,
    codec="none",
    records=0,
    quick_records=0,
    warm_up_records=0,
    partitions=PARTITIONS,
)
AT_ONCE: Final = 100
WATCHED: Final = 5
"""Of the groups that commit in a second, so many are looked for on the target."""
DEADLINE_S: Final = 180.0
SETTLE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ManyGroups:
    """What it took."""

    groups: int
    commits_per_s: int
    first_s: float
    """Until all groups were on the target."""
    cpu_percent: float
    idle_cpu_percent: float
    delays_s: tuple[float, ...]
    """From the answer to a commit at the source to the offset on the target."""


def measure_groups(
    tool: Tool, clusters: Clusters, folder: Path, *, groups: int, per_s: int, seconds: int
) -> ManyGroups:
    """Measure one tool with group sync switched on."""
    alias = f"{tool.name}-groups"
    topic = f"{alias}.orders"
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=(TARGET_ALIAS, clusters.target_endpoint()),
        topics=topic,
    )
    with file.open("a", encoding="latin-1") as lines:
        lines.write(f"{alias}->{TARGET_ALIAS}.groups = {alias}-.*\n")
        lines.write(f"{alias}->{TARGET_ALIAS}.sync.group.offsets.enabled = true\n")
    at_source = Topics(clusters.source.bootstrap_servers)
    at_source.create_all([topic], PARTITIONS)
    fill(clusters.source.bootstrap_servers, topic, ORDERS, PARTITIONS * RECORDS)
    names = [f"{alias}-{number:05d}" for number in range(groups)]
    run = _Run(clusters, topic, f"{alias}.{topic}", names)
    asyncio.run(run.commit_all(1))
    with tool.start(file, file.with_suffix(".log")) as process:
        return asyncio.run(run.measure(process, per_s, seconds))


class _Run:
    """The groups of one run, at both clusters."""

    def __init__(self, clusters: Clusters, topic: str, copy: str, names: Sequence[str]) -> None:
        self._servers = clusters.source.bootstrap_servers, clusters.target.bootstrap_servers
        self._topic, self._copy, self._names = topic, copy, names

    def _admin(self, side: int) -> GroupAdmin:
        props = {"bootstrap.servers": self._servers[side]}
        return GroupAdmin(Cluster(connection_settings(props), alias="bench"))

    async def commit_all(self, offset: int) -> None:
        """Let every group commit once."""
        source = self._admin(0)
        await source.cluster.connect()
        for begin in range(0, len(self._names), AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, len(self._names)))
            await asyncio.gather(*(self._commit(source, number, offset) for number in numbers))
        await source.cluster.close()

    async def measure(self, process: MirrorProcess, per_s: int, seconds: int) -> ManyGroups:
        """Wait for all groups, then measure commits."""
        source, target = self._admin(0), self._admin(1)
        await source.cluster.connect()
        await target.cluster.connect()
        begun, tree = time.monotonic(), ProcessTree(process.pid)
        while await self._missing(target):
            process.check_running()
            if time.monotonic() - begun > DEADLINE_S:
                raise RuntimeError(f"not all groups are on the target after {DEADLINE_S:.0f} s")
            await asyncio.sleep(1)
        first_s = time.monotonic() - begun
        await asyncio.sleep(SETTLE_S)
        cpu_s, at = tree.cpu_s(), time.monotonic()
        await asyncio.sleep(SETTLE_S)
        idle = 100 * (tree.cpu_s() - cpu_s) / (time.monotonic() - at)
        cpu_s, at = tree.cpu_s(), time.monotonic()
        delays = await self._commit_steadily(source, target, per_s, seconds)
        busy = 100 * (tree.cpu_s() - cpu_s) / (time.monotonic() - at)
        await source.cluster.close()
        await target.cluster.close()
        return ManyGroups(len(self._names), per_s, first_s, busy, idle, tuple(sorted(delays)))

    async def _commit_steadily(
        self, source: GroupAdmin, target: GroupAdmin, per_s: int, seconds: int
    ) -> list[float]:
        begun, number, watching = time.monotonic(), 0, list[asyncio.Task[float]]()
        for second in range(seconds):
            offset = 2 + number // len(self._names)
            for shot in range(per_s):
                await asyncio.sleep(max(0.0, begun + second + shot / per_s - time.monotonic()))
                group = number % len(self._names)
                await self._commit(source, group, offset)
                if shot < WATCHED:
                    watching.append(asyncio.create_task(self._arrival(target, group, offset)))
                number += 1
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
        return list(await asyncio.gather(*watching))

    async def _arrival(self, target: GroupAdmin, number: int, offset: int) -> float:
        begun = time.monotonic()
        where = TopicPartition(self._copy, number % PARTITIONS)
        while time.monotonic() - begun < DEADLINE_S:
            found = (await target.committed([self._names[number]]))[self._names[number]]
            at = None if isinstance(found, Mm2pyError) else found.get(where)
            if at is not None and at.offset >= offset:
                break
            await asyncio.sleep(0.02)
        return time.monotonic() - begun

    async def _commit(self, source: GroupAdmin, number: int, offset: int) -> None:
        wanted = [OffsetToCommit(self._topic, number % PARTITIONS, offset)]
        while True:
            try:
                await source.commit(self._names[number], wanted)
            except Mm2pyError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _missing(self, target: GroupAdmin) -> int:
        listed = (await target.list_groups()).groups
        return sum(it not in listed for it in self._names)
