"""Nodes on one file with their real membership, in a group in memory whose links can be cut."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.runtime.group.connect_membership import ConnectMembership
from mm2py.runtime.herder.herder import Herder
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node

FILE = {"c": CONFIG | {"name": "c", "work": "0 1 2 3 4 5", "tasks.max": "6"}}
ALL = {f"c-{n}" for n in range(6)}
STEP_S = 0.25


class Stage:
    """Nodes on one file and one group."""

    def __init__(self, group: MemoryGroup, cluster: Cluster) -> None:
        self.group, self.cluster = group, cluster
        self.links: dict[str, MemoryCoordinator] = {}

    def node(
        self,
        name: str,
        *,
        effective: Mapping[str, Mapping[str, str]] | None = FILE,
        protocol: str = "sessioned",
    ) -> Node:
        node = self.cluster.node(name, effective=effective, connect_protocol=protocol)
        link = self.links[name] = MemoryCoordinator(self.group, name)
        member = GroupMember(
            link,
            Permit(self.cluster.clock),
            session_timeout_ms=6_000,
            heartbeat_interval_ms=2_000,
            rebalance_timeout_ms=60_000,
            clock=self.cluster.clock,
        )
        membership = ConnectMembership(
            member,
            node.config,
            url=f"http://{name}/",
            connect_protocol=protocol,
            max_delay_ms=3_000,
            clock=self.cluster.clock,
        )
        node.parts = replace(node.parts, membership=membership)
        node.herder = Herder(node.parts, clock=self.cluster.clock)
        return node.start()

    async def until(self, condition: Callable[[], bool], *, within_s: float) -> float:
        """Let time pass until ``condition`` holds; return how much passed."""
        for step in range(int(within_s / STEP_S)):
            if condition():
                return step * STEP_S
            await self.cluster.clock.advance(STEP_S)
        raise AssertionError(f"not within {within_s} s; running: {self.shares()}")

    def shares(self) -> dict[str, list[str]]:
        return {name: _tasks(node) for name, node in self.cluster.nodes.items()}

    def everything_runs_once(self, *names: str) -> bool:
        tasks = [task for name in names for task in _tasks(self.cluster.nodes[name])]
        return sorted(tasks) == sorted(ALL)

    async def stop(self) -> None:
        stopping = [asyncio.ensure_future(node.stop()) for node in self.cluster.nodes.values()]
        while not all(each.done() for each in stopping):
            await self.cluster.clock.advance(STEP_S)
        await asyncio.gather(*stopping)


def _tasks(node: Node) -> list[str]:
    return sorted(map(str, node.host.running))
