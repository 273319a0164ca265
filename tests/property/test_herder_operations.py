"""Any order of changes, joins, leaves and losses ends as the model says, and no task ever runs twice."""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.errors import Mm2pyError
from mm2py.types import TargetState, TaskId
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, until

NAMES = ("a", "b", "c")
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


class Play:
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
        for _ in range(400):
            if self.settled():
                break
            await self.cluster.clock.advance(0.25)  # publications are tried again
        assert self.settled(), (self.cluster.running(), self.model)
        assert self.doubled == []
        for node in list(self.cluster.nodes.values()):
            await node.stop()

    def join(self) -> None:
        self.born += 1
        node = self.cluster.node(f"n{self.born}")
        node.host.on_start = lambda task: self.look(node, task)
        node.start()

    def look(self, node: Node, task: TaskId) -> None:
        if node.host.suspended:
            return
        self.doubled += [
            f"{task} on {node.name} and {other.name}"
            for other in self.cluster.nodes.values()
            if other is not node and not other.host.suspended and task in other.host.running
        ]

    async def step(self, operation: str) -> None:
        nodes = list(self.cluster.nodes.values())
        node = self.random.choice(nodes)
        if operation == "join":
            if len(nodes) < 4:
                self.join()
        elif operation == "leave":
            if len(nodes) > 1:
                await node.stop()
                del self.cluster.nodes[node.name]
        elif operation == "lose":
            node.membership.suspend()  # the real one does so before it says that it is lost
            node.membership.lose("expired")
        else:
            await self.change(operation, self.random.choice(NAMES))

    async def change(self, operation: str, name: str) -> None:
        await until(lambda: any(n.membership.is_leader for n in self.cluster.nodes.values()))
        leader = next(n for n in self.cluster.nodes.values() if n.membership.is_leader)
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
            if not spec.paused and self.model.target.get(task.connector) is TargetState.STARTED
        ]
        leaders = [n for n in self.cluster.nodes.values() if n.membership.is_leader]
        if len(leaders) != 1 or sorted(running) != sorted(self.model.tasks().items()):
            return False
        herder = leaders[0].herder
        return set(herder.connectors()) == set(self.model.work) and all(
            self.state_of(leaders[0], name) for name in self.model.work
        )

    def state_of(self, node: Node, name: str) -> bool:
        wanted = {"STARTED": "RUNNING"}.get(self.model.target[name], self.model.target[name].value)
        return node.state(name) == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_random_changes_end_as_the_model_says_and_nothing_runs_twice(seed: int) -> None:
    asyncio.run(Play(seed).run(steps=14))
