"""The control plane on random courses: the invariants of the model, and changes of a herder."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.errors import Mm2pyError
from mm2py.testing.waiting import until
from mm2py.types import TargetState, TaskId
from tests.kit.fakes.group_coordinator import MemoryGroup
from tests.property.control_plane_model import FilePlay, Play
from tests.property.effort import examples
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, Stage


@pytest.mark.timeout(600)
@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_the_invariants_of_the_control_plane_hold_in_every_play(seed: int) -> None:
    Play(seed).run()


@pytest.mark.timeout(600)
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_no_task_starts_with_what_a_former_file_said_in_any_play(seed: int) -> None:
    FilePlay(seed).run()


NAMES = ("a", "b", "c")
TURNS = 200
OPERATIONS = ("put", "put", "put", "pause", "resume", "stop", "delete", "join", "leave", "lose")


@dataclass
class Model:
    """What the last successful operations asked for."""

    work: dict[str, str] = field(default_factory=dict[str, str])
    target: dict[str, TargetState] = field(default_factory=dict[str, TargetState])

    def tasks(self) -> dict[TaskId, str]:
        return {
            TaskId(name, number): word
            for name, words in self.work.items()
            if self.target[name] is TargetState.STARTED
            for number, word in enumerate(words.split())
        }


class HerderPlay:
    """One play of random operations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.model = Model()
        self.doubled: list[str] = []
        self.born = 0

    async def run(self, steps: int) -> None:
        self.join()
        for _ in range(steps):
            await self.step(self.random.choice(OPERATIONS))
            for _ in range(self.random.choice((0, 1, 3, 10, 50))):
                await asyncio.sleep(0)
        await self.end()

    async def end(self) -> None:
        """Wait until all is as the model says: publications are tried again, delays pass."""
        for _ in range(600):
            if self.settled():
                break
            await self.cluster.clock.advance(0.25)
        assert self.settled(), (self.cluster.running(), self.model)
        assert self.doubled == []
        for node in list(self.cluster.nodes.values()):
            await self.passes(node.stop())

    async def passes(self, work: Coroutine[object, object, None]) -> None:
        """Let time pass until ``work`` is done, where it is not done without."""
        doing = asyncio.ensure_future(work)
        for _ in range(TURNS):
            if doing.done():
                break
            await asyncio.sleep(0)
        while not doing.done():
            await self.cluster.clock.advance(0.25)
        await doing

    def join(self) -> None:
        self.born += 1
        node = self.cluster.node(f"n{self.born}")
        node.host.on_start = lambda task: self.look(node, task)
        node.start()

    def look(self, node: Node, task: TaskId) -> None:
        if not node.permit.valid:
            return
        self.doubled += [
            f"{task} on {node.name} and {other.name}"
            for other in self.cluster.nodes.values()
            if other is not node and other.permit.valid and task in other.host.running
        ]

    async def step(self, operation: str) -> None:
        nodes = list(self.cluster.nodes.values())
        node = self.random.choice(nodes)
        if operation == "join":
            if len(nodes) < 4:
                self.join()
        elif operation == "leave":
            if len(nodes) > 1:
                await self.passes(node.stop())
                del self.cluster.nodes[node.name]
        elif operation == "lose":
            node.membership.lose("expired")
        else:
            await self.change(operation, self.random.choice(NAMES))

    async def change(self, operation: str, name: str) -> None:
        await self.passes(until(lambda: bool(self.leaders())))
        await self.passes(self.ask(self.leaders()[0], operation, name))

    def leaders(self) -> list[Node]:
        nodes = self.cluster.nodes.values()
        return [n for n in nodes if n.parts.membership.is_leader and n.permit.valid]

    async def ask(self, leader: Node, operation: str, name: str) -> None:
        herder, model = leader.herder, self.model
        try:
            if operation == "put":
                words = " ".join(
                    str(self.random.randrange(9)) for _ in range(self.random.randrange(4))
                )
                await herder.put_config(name, CONFIG | {"work": words}, actor="t")
                model.work[name] = words
                model.target.setdefault(name, TargetState.STARTED)
            elif operation == "delete":
                await herder.delete(name, actor="t")
                del model.work[name], model.target[name]
            elif operation == "stop":
                await herder.stop_connector(name, actor="t")
                model.target[name] = TargetState.STOPPED
            elif operation == "pause":
                await herder.pause(name, actor="t")
                model.target[name] = TargetState.PAUSED
            else:
                await herder.resume(name, actor="t")
                model.target[name] = TargetState.STARTED
        except Mm2pyError:
            return  # refused, and nothing was written

    def settled(self) -> bool:
        running = [
            (task, spec.config["p"])
            for node in self.cluster.nodes.values()
            for task, spec in node.host.running.items()
            if not spec.paused
            and node.permit.valid
            and self.model.target.get(task.connector) is TargetState.STARTED
        ]
        leaders = self.leaders()
        if len(leaders) != 1 or sorted(running) != sorted(self.model.tasks().items()):
            return False
        herder = leaders[0].herder
        return set(herder.connectors()) == set(self.model.work) and all(
            self.state_of(leaders[0], name) for name in self.model.work
        )

    def state_of(self, node: Node, name: str) -> bool:
        wanted = {"STARTED": "RUNNING"}.get(self.model.target[name], self.model.target[name].value)
        return node.state(name) == wanted


class GroupPlay(HerderPlay):
    """The same with the real membership: nodes are cut off from the coordinator and come back."""

    def __init__(self, seed: int, group: MemoryGroup, cluster: Cluster) -> None:
        super().__init__(seed)
        self.cluster = cluster
        self.stage = Stage(group, cluster)

    def join(self) -> None:
        self.born += 1
        node = self.stage.node(f"n{self.born}", effective=None)
        node.host.on_start = lambda task: self.look(node, task)

    async def run(self, steps: int) -> None:
        self.join()
        await self.cluster.clock.advance(1)
        for _ in range(steps):
            await self.step(self.random.choice((*OPERATIONS[:-1], "cut", "uncut", "uncut")))
            await self.cluster.clock.advance(self.random.choice((0, 0.25, 1, 3, 8)))
        await self.step("uncut")
        await self.end()

    async def step(self, operation: str) -> None:
        nodes = list(self.cluster.nodes.values())
        if operation == "cut":
            self.stage.links[self.random.choice(nodes).name].cut = True
        elif operation == "uncut":
            for node in nodes:
                self.stage.links[node.name].cut = False
        elif operation in ("join", "leave"):
            await super().step(operation)
        else:
            reachable = [n for n in self.leaders() if not self.stage.links[n.name].cut]
            for leader in reachable[:1]:
                await self.passes(self.ask(leader, operation, self.random.choice(NAMES)))


@settings(max_examples=examples(60, share=0.5))
@given(st.integers(0, 2**32))
@example(399)  # a membership that is lost while the config is read
@example(39_418)
@example(1019)  # both nodes wait a moment before they join again
@example(7028)  # a stop right after a membership was lost
@example(2609)  # a membership that is lost just after its round
def test_random_changes_end_as_the_model_says_and_nothing_runs_twice(seed: int) -> None:
    asyncio.run(HerderPlay(seed).run(steps=14))


@settings(max_examples=examples(40, share=0.5))
@given(st.integers(0, 2**32))
@example(1)  # a connector that starts again on a worker in doubt
def test_nodes_that_are_cut_off_and_come_back_never_share_a_task(seed: int) -> None:
    async def play() -> None:
        cluster = Cluster()
        async with MemoryGroup(cluster.clock).running() as group:
            await GroupPlay(seed, group, cluster).run(steps=14)

    asyncio.run(play())
