"""Fakes around a herder: a group of several nodes in memory, hosts that obey, plug-ins, a validator.

Flow: ``Cluster`` holds the topics and the group -> ``Cluster.node`` builds a herder on them -> tests run several
side by side on one ``FakeClock``.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from math import inf
from typing import ClassVar, cast

from mm2py.api.connector import BESIDE, ConnectorFactory
from mm2py.api.context import ConnectorContext, PublishedTasks
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.config.limits import limit_problem
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError, FatalError, Mm2pyError, RetriableError
from mm2py.mirror.start_positions import LATE_PARTITIONS
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.runtime.group.assignor import FRESH, MemberView, assign, configured_work
from mm2py.runtime.group.connect_membership import ConnectMembership, missed_commit
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round, Unwritten
from mm2py.runtime.herder.api import HerderNode, HerderParts, OffsetEntry
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.plugins.catalog import PluginInfo
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_host import TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig, texts_of
from mm2py.storage.memory import MemoryTable, MemoryTopic, memory_configs, memory_statuses
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName, State, TargetState, TaskId, TopicPartition, Work
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.unit.runtime.runtime_fakes import FakeConnector, FakeLoggers, FakeStore

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
CONFIG = {"connector.class": "TestConnector", "tasks.max": "4"}


class TestConnector(FakeConnector):
    """A connector that makes one task per word of its property ``work``; with ``java``, as Java's would in the order of that.

    It keeps what is published where it is the same words, and tells its tasks something besides.
    """

    __test__ = False
    java_class = "org.example.TestConnector"
    plugin_version: ClassVar[str] = "9.9"
    made: ClassVar[list["TestConnector"]] = []

    def __init__(self, config: Mapping[str, str]) -> None:
        if config.get("broken"):
            raise ConfigError("broken=yes: must be no", remedy="remove it")
        told = {"told": "yes"} if "java" in config else {}
        super().__init__([{"p": word} | told for word in config.get("work", "0 1").split()])
        self.config = config
        if config.get("late"):
            self.start_errors = [FatalError(config["late"])]
        TestConnector.made.append(self)

    async def start(self, context: ConnectorContext) -> None:
        await super().start(context)
        if "java" in self.config and isinstance(context, PublishedTasks):
            published = [{**config, "told": "yes"} for config in context.published_tasks()]
            if sorted(it["p"] for it in published) == sorted(it["p"] for it in self.configs):
                self.configs = published

    async def java_task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        await asyncio.sleep(0)
        words = self.config["java"].split() if "java" in self.config else ()
        kept = [{BESIDE + "p": it["p"]} if self.config.get("keeps") else {} for it in self.configs]
        late = {BESIDE + LATE_PARTITIONS: "t-0"}
        dealt = [{"p": word} | late | ours for word, ours in zip(words, kept, strict=False)]
        return dealt or self.configs

    @staticmethod
    def java_task_config(
        config: Mapping[str, str], _connector: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        return {name: text for name, text in config.items() if name != "told"}

    @staticmethod
    def task_config_in_force(
        config: Mapping[str, str],
        connector: Mapping[str, str],
        tasks: int,
        clusters: tuple[str, str],
    ) -> Mapping[str, str]:
        return {**config, "told": f"{tasks} {clusters}"} if "java" in connector else config


def a_plugin() -> Plugins:
    """Installed plug-ins: ``TestConnector`` alone."""
    TestConnector.made.clear()
    name = "TestConnector"
    plugins = Plugins([EntryPoint(name, f"{__name__}:{name}", "mm2py.connectors")])
    loaded = plugins._loaded  # pyright: ignore[reportPrivateUsage]  # importlib mode: no such module
    loaded[name] = cast("ConnectorFactory", TestConnector)
    return plugins


class ObedientHost:
    """Runs tasks on paper; the test makes them fail."""

    def __init__(self, watcher: TaskWatcher) -> None:
        self.watcher = watcher
        self.running: dict[TaskId, TaskSpec] = {}
        self.states: dict[TaskId, Status] = {}
        self.events: list[str] = []
        self.fails_at_start: dict[TaskId, Exception] = {}
        self.held: frozenset[TopicPartition] = frozenset()
        self.silent: dict[str, str] = {}
        self.closed = False
        self.on_start: Callable[[TaskId], None] = lambda _: None

    async def start_task(self, spec: TaskSpec) -> None:
        self.on_start(spec.id)
        self.running[spec.id] = spec
        self.events.append(f"start {spec.id} {spec.config.get('p', '')}")
        await asyncio.sleep(0)
        if spec.id in self.fails_at_start:
            self.say(spec.id, State.FAILED, self.fails_at_start[spec.id])
        else:
            self.say(spec.id, State.PAUSED if spec.paused else State.RUNNING)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        self.events.append(f"stop {task}")
        await asyncio.sleep(0)
        state = self.states.get(task)
        if self.running.pop(task, None) is not None and state and state.state is not State.FAILED:
            self.say(task, State.UNASSIGNED)
        self.states.pop(task, None)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        self.events.append(f"{'pause' if paused else 'unpause'} {task}")
        if task in self.states and self.states[task].state is not State.FAILED:
            self.running[task] = replace(self.running[task], paused=paused)
            self.say(task, State.PAUSED if paused else State.RUNNING)

    def status(self, task: TaskId) -> Status | None:
        return self.states.get(task)

    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self.running)

    def problems(self) -> Mapping[str, str]:
        return self.silent

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self.held = partitions

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(f"keep out {len(partitions)}")

    async def close(self) -> None:
        self.closed = True

    def say(self, task: TaskId, state: State, cause: Exception | None = None) -> None:
        self.states[task] = Status(state, cause)
        self.watcher(task, self.states[task])


class FakeGroup:
    """A group whose rounds complete when every member has joined; the real assignor plans them."""

    def __init__(self, clock: FakeClock, *, max_delay_ms: int = 0) -> None:
        self.clock = clock
        self.max_delay_ms = max_delay_ms
        self.signed = True
        self.members: dict[str, FakeMembership] = {}
        self.joining: dict[str, tuple[MemberView, asyncio.Future[Round]]] = {}
        self.generation = 0
        self.rounds: list[Mapping[str, Work]] = []
        self.owners: Mapping[str, Work] = {}
        self.leader = ""
        self.leader_elsewhere = False
        """A worker of an earlier version leads, which gives out connectors as well."""
        self._state = FRESH

    async def join(self, member: "FakeMembership", view: MemberView) -> Round:
        self.members[member.name] = member
        answer: asyncio.Future[Round] = asyncio.get_running_loop().create_future()
        self.joining[member.name] = view, answer
        for name, other in self.members.items():
            if name not in self.joining:
                other.tell(Rejoin("another member joins"))
        self._try()
        try:
            return await answer
        finally:
            if self.joining.get(member.name, (None, None))[1] is answer:
                del self.joining[member.name]

    def drop(self, name: str) -> None:
        self.members.pop(name, None)
        _, answer = self.joining.pop(name, (None, None))
        if answer is not None:
            answer.cancel()
        for other in self.members.values():
            other.tell(Rejoin("a member left"))
        self._try()

    def _try(self) -> None:
        if not self.members or self.joining.keys() != self.members.keys():
            return
        self.generation += 1
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
            self._state = FRESH
        leader = self.members[self.leader]
        snapshot = leader.config.snapshot()
        views = {name: view for name, (view, _) in self.joining.items()}
        needed = max(view.config_offset for view in views.values())
        failed = snapshot.offset < needed or missed_commit(snapshot, views)
        failed = failed or (len(views) > 1 and leader.unwritten(snapshot))
        plan = assign(
            self._state,
            views,
            configured_work(snapshot, lambda _: True),
            leader=self.leader,
            generation=self.generation,
            now_ms=self.clock.now_ms(),
            max_delay_ms=self.max_delay_ms,
        )
        if not failed:
            self._state, self.owners = plan.state, plan.owners
            self.rounds.append(plan.owners)
        waiting, self.joining = self.joining, {}
        for name, (_, answer) in waiting.items():
            outcome = Round(
                member_id=name,
                generation=self.generation,
                leader=name == self.leader and not self.leader_elsewhere,
                leader_url=f"http://{self.leader}/",
                config_offset=max(needed, snapshot.offset, snapshot.commit_offset),
                assigned=Work() if failed else plan.assigned.get(name, Work()),
                revoked=Work() if failed else plan.revoked.get(name, Work()),
                delay_ms=plan.delay_ms,
                failed=failed,
                incremental=True,
                signed=self.signed,
            )
            self.members[name].completed(outcome)
            if not answer.done():
                answer.set_result(outcome)


class FakeMembership:
    """One member of a ``FakeGroup``, with a script of failures."""

    def __init__(self, name: str, group: FakeGroup, config: ConfigBackingStore) -> None:
        self.name, self.group, self.config = name, group, config
        self.rejoin_errors: list[RetriableError] = []
        self.left = 0
        self.ours = asyncio.Event()
        self.ours.set()
        self.solo = False
        self._signals: asyncio.Queue[Rejoin | Lost] = asyncio.Queue()
        self._round: Round | None = None
        self.unwritten: Unwritten = lambda _: False
        self.permit = Permit(group.clock)

    async def rejoin(self, owned: Work, config_offset: int, unwritten: Unwritten) -> Round:
        self.unwritten = unwritten
        if self.rejoin_errors:
            error = self.rejoin_errors.pop(0)
            if isinstance(error, MembershipLostError):
                self.permit.abandon()
            raise error
        while not self._signals.empty():
            signal = self._signals.get_nowait()
            if isinstance(signal, Lost):
                raise MembershipLostError(signal)
        return await self.group.join(self, MemberView(self.name, config_offset, owned))

    async def is_empty(self) -> bool:
        return not self.group.members

    async def is_alone(self) -> bool:
        return [*self.group.members] == [self.name]

    async def until_ours(self) -> None:
        self.group.drop(self.name)
        await self.ours.wait()

    async def signal(self) -> Rejoin | Lost:
        return await self._signals.get()

    def tell(self, signal: Rejoin | Lost) -> None:
        self._signals.put_nowait(signal)

    def lose(self, reason: str) -> None:
        self.permit.abandon()
        lost = Lost(reason)
        _, answer = self.group.joining.pop(self.name, (None, None))
        if answer is not None and not answer.done():
            answer.set_exception(MembershipLostError(lost))
        else:
            self.tell(lost)
        self._round = None
        self.group.drop(self.name)

    def completed(self, outcome: Round) -> None:
        self._round = outcome
        self.permit.grant(inf)

    def request_rejoin(self) -> None:
        self.tell(Rejoin("requested"))

    @property
    def generation(self) -> int:
        return -1 if self._round is None else self._round.generation

    @property
    def is_leader(self) -> bool:
        return self._round is not None and self._round.leader

    @property
    def leader_url(self) -> str | None:
        return None if self._round is None else self._round.leader_url

    def owner_url(self, work: str | TaskId) -> str | None:
        for name, owned in self.group.owners.items():
            if work in owned.connectors or work in owned.tasks:
                return f"http://{name}/"
        return None

    def member_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{name}/" for name in self.group.members)

    async def leave(self) -> None:
        self.left += 1
        self.permit.abandon()
        self.group.drop(self.name)


class FakeCatalog:
    """Knows one source connector."""

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        return [PluginInfo("org.example.TestConnector", "source", "9.9")]

    def definitions(self, plugin: str) -> Sequence[ConfigKey]:
        raise NotFoundError(f"Unknown plugin {plugin}.")

    def connector_type(self, config: ConnectorConfig) -> str:
        return "source" if config.get("connector.class") == "TestConnector" else "unknown"


class FakeValidator:
    """Refuses configs with the property ``invalid``, and too large ones."""

    async def validate(self, config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        too_long = limit_problem("c", config)
        if too_long:
            raise BadRequestError(too_long)
        errors = ("invalid=yes: must not be there",) if "invalid" in config else ()
        value = ConfigValue(name="invalid", value=config.get("invalid"), errors=errors)
        return ConfigInfos(
            name="TestConnector", error_count=len(errors), groups=(), configs=((None, value),)
        )


class FakeOverrides:
    """File and overrides in one map."""

    def __init__(self, effective: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.wanted = dict(effective or {})
        self.records: list[tuple[str, bool, bool, str]] = []
        self.paused: frozenset[TopicPartition] = frozenset()
        self.changed: Callable[[], None] = lambda: None
        self.started = 0
        self.newer = False
        self.late: dict[str, Mapping[str, str]] = {}
        """Changes that are not read yet."""
        self.away = False
        self.restored = 0

    async def restore(self) -> None:
        self.restored += 1

    async def start(self) -> None:
        self.started += 1
        self.check_readable()

    async def refresh(self, timeout_s: float) -> None:
        del timeout_s
        if self.away:
            raise RetriableError("the topic of changes is away")
        self.wanted.update(self.late)

    def effective(self) -> Mapping[str, Mapping[str, str]]:
        return self.wanted

    async def record(
        self,
        name: str,
        before: Mapping[str, str] | None,
        after: Mapping[str, str] | None,
        *,
        actor: str,
    ) -> None:
        self.records.append((name, before is not None, after is not None, actor))
        if after is None:
            self.wanted.pop(name, None)
        else:
            self.wanted[name] = after

    def held(self) -> frozenset[TopicPartition]:
        return self.paused

    def check_readable(self) -> None:
        if self.newer:
            raise RetriableError("a setting of a newer version")

    def problems(self) -> Mapping[str, str]:
        return {}

    def listen(self, changed: Callable[[], None]) -> None:
        self.changed = changed


class FakeEditor:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.altered: list[Sequence[OffsetEntry]] = []

    async def read(self, connector: str, config: Mapping[str, str], /) -> Sequence[OffsetEntry]:
        return [OffsetEntry({"topic": "t"}, {"offset": 7})]

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> str:
        self.altered.append(entries)
        return "altered"

    async def reset(self, connector: str, config: Mapping[str, str]) -> str:
        return "reset"


@dataclass
class Cluster:
    """Topics and group that nodes share."""

    max_delay_ms: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    configs: MemoryTopic = field(default_factory=lambda: MemoryTopic("configs"))
    statuses: MemoryTopic = field(default_factory=lambda: MemoryTopic("statuses"))
    backfills: MemoryTopic | None = None
    nodes: dict[str, "Node"] = field(default_factory=dict[str, "Node"])

    def __post_init__(self) -> None:
        self.group = FakeGroup(self.clock, max_delay_ms=self.max_delay_ms)

    def node(
        self,
        name: str = "n1",
        *,
        effective: Mapping[str, Mapping[str, str]] | None = None,
        resolve: Callable[[ConnectorConfig], dict[str, str]] | None = None,
        **settings: str | int,
    ) -> "Node":
        """Build a node; ``effective`` makes it one of a flow with overrides."""
        node = Node(self, name, effective, resolve=resolve, **settings)
        self.nodes[name] = node
        return node

    async def leader(
        self, *, effective: Mapping[str, Mapping[str, str]] | None = None, **settings: str | int
    ) -> "Node":
        """Start the first node, and wait until it leads."""
        node = self.node("n1", effective=effective, resolve=None, **settings).start()
        await until(lambda: node.membership.is_leader)
        return node

    async def with_tasks(self, **settings: str | int) -> "Node":
        """Start the first node, and let it run the two tasks of a connector ``c``."""
        node = self.node("n1", effective=None, resolve=None, **settings).start()
        await node.put()
        await node.runs("c-0", "c-1")
        await until(lambda: {node.state(TaskId("c", number)) for number in range(2)} == {"RUNNING"})
        return node

    async def on_file(self) -> "Node":
        """The same of a flow whose file has the connector."""
        node = self.node(effective={"c": CONFIG | {"name": "c"}}).start()
        await node.runs("c-0", "c-1")
        return node

    async def pair(self) -> tuple["Node", "Node"]:
        """Start a leader and another node, which share the four tasks of a connector ``c``."""
        first, second = self.node("n1").start(), self.node("n2").start()
        await until(lambda: first.membership.is_leader and len(self.group.members) == 2)
        await first.put(work="0 1 2 3")
        await self.settled(*(f"c-{number}" for number in range(4)))
        return first, second

    async def settled(self, *tasks: str) -> None:
        """Wait until these tasks run, each once and where the group has assigned it."""

        def done() -> bool:
            hosts = [node.host.running for node in self.nodes.values()]
            everywhere = sorted(str(task) for running in hosts for task in running)
            owned = sorted(str(t) for work in self.group.owners.values() for t in work.tasks)
            return everywhere == sorted(tasks) == owned

        await until(done)
        await self.clock.settle()

    async def stop(self) -> None:
        """Stop all nodes; time passes meanwhile."""
        stopping = [asyncio.ensure_future(node.stop()) for node in self.nodes.values()]
        while not all(each.done() for each in stopping):
            await self.clock.advance(STEP_S)
        await asyncio.gather(*stopping)

    def running(self) -> dict[str, str]:
        """Which node runs which task now."""
        return {str(task): name for name, node in self.nodes.items() for task in node.host.running}


class Node:
    """One herder on fakes."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        effective: Mapping[str, Mapping[str, str]] | None,
        *,
        resolve: Callable[[ConnectorConfig], dict[str, str]] | None,
        **settings: str | int,
    ) -> None:
        self.cluster, self.name = cluster, name
        self.hosts: list[ObedientHost] = []
        self.guards: list[StartGuard] = []
        self.fenced: list[tuple[str, ...]] = []
        self.fence_gate: asyncio.Event | None = None
        self.fence_errors: list[Exception] = []
        self.limits: dict[str, int] = {}
        self.limits_asked: list[list[str]] = []
        self.unfit: dict[str, Mm2pyError] = {}
        self.config = memory_configs(cluster.configs)
        self.status = memory_statuses(cluster.statuses)
        self.offsets = FakeStore()
        self.membership = FakeMembership(name, cluster.group, self.config)
        self.overrides = None if effective is None else FakeOverrides(effective)
        self.editor = FakeEditor()
        self.loggers = FakeLoggers(levels={})
        self.meter = FlowMeter(FLOW, cluster.clock)
        self.events: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        keys: dict[str, object] = {
            "bootstrap_servers": ("b:1",),
            "group_id": "A-mm2",
            "config_storage_topic": "c",
            "offset_storage_topic": "o",
            "status_storage_topic": "s",
        }
        self.parts = HerderParts(
            node=HerderNode(
                worker_id=f"{name}:8083",
                plugins=a_plugin(),
                catalog=FakeCatalog(),
                validator=FakeValidator(),
                loggers=self.loggers,
                mask=SecretMask(["geheim-123"]),
            ),
            flow=FLOW,
            cluster_id=lambda: "cluster",
            cluster_ids=lambda: ("cluster A", "cluster B"),
            clusters={
                "target cluster B at b1:9092": lambda: self._step("target"),
                "source cluster A at a1:9092": lambda: self._step("source"),
            },
            prepare=lambda: self._step("prepare"),
            config=self.config,
            status=self.status,
            offsets=self.offsets,
            membership=self.membership,
            hosts=self._host,
            overrides=self.overrides,
            backfills=cluster.backfills and BackfillStore(MemoryTable(cluster.backfills)),
            resolve=resolve or texts_of,
            editor=lambda _: self.editor,
            meter=self.meter,
            settings=WorkerConfig.model_validate(keys | settings),
            close=lambda: self._step("close"),
            fence_producers=self._fence_producers,
            topic_limits=self._topic_limits,
            unfit=self._unfit_now,
        )
        self.herder = Herder(self.parts, clock=cluster.clock)
        self.life: asyncio.Task[None] | None = None

    @property
    def host(self) -> ObedientHost:
        return self.hosts[-1]

    @property
    def permit(self) -> Permit:
        """What the herder and its tasks may write by."""
        return self.parts.membership.permit

    def note_permit(self) -> None:
        """Let the host's events hold the permit's end (``suspend``) and its next grant (``resume``)."""
        self.permit.watch(
            lambda: self.host.events.append("resume" if self.permit.valid else "suspend")
        )

    def start(self) -> "Node":
        self.life = asyncio.create_task(self.herder.run(), name=self.name)
        return self

    async def stop(self) -> None:
        self.herder.stop()
        if self.life is not None:
            await self.life

    async def runs(self, *tasks: str) -> None:
        """Wait until exactly these tasks run here."""
        await until(lambda: sorted(map(str, self.host.running)) == sorted(tasks))

    async def put(self, name: str = "c", target: TargetState | None = None, **config: str) -> None:
        """Create or update a connector through the leader."""
        await self.config.put_connector(name, CONFIG | {"name": name} | config, target)

    def state(self, work: str | TaskId) -> str:
        """State of a connector or task as the status store tells it, empty where it tells none."""
        stored = self.status.get(work)
        return "" if stored is None else stored.state.value

    async def _fence_producers(self, transactional_ids: Sequence[str]) -> None:
        if self.fence_errors:
            raise self.fence_errors.pop()
        self.fenced.append(tuple(transactional_ids))
        if self.fence_gate is not None:
            await self.fence_gate.wait()

    async def _topic_limits(self, topics: Collection[str]) -> Mapping[str, int]:
        self.limits_asked.append(sorted(topics))
        return {name: self.limits[name] for name in topics if name in self.limits}

    async def _unfit_now(self) -> Mapping[str, Mm2pyError]:
        return dict(self.unfit)

    def _host(self, watcher: TaskWatcher, guard: StartGuard) -> ObedientHost:
        self.guards.append(guard)
        self.hosts.append(ObedientHost(watcher))
        return self.hosts[-1]

    async def _step(self, name: str) -> None:
        errors = self.errors.get(name)
        if errors:
            raise errors.pop(0)
        self.events.append(name)


# ---- the stage


FILE = {"c": CONFIG | {"name": "c", "work": "0 1 2 3 4 5", "tasks.max": "6"}}
ALL = {f"c-{n}" for n in range(6)}
STEP_S = 0.25


def a_membership(
    link: MemoryCoordinator,
    config: ConfigBackingStore,
    clock: FakeClock,
    protocol: str = "sessioned",
    runnable: Callable[[str], bool] = lambda _: True,
) -> ConnectMembership:
    """Return the membership of the worker that a link is named after, as the herder has it."""
    member = GroupMember(
        link,
        Permit(clock),
        session_timeout_ms=6_000,
        heartbeat_interval_ms=2_000,
        rebalance_timeout_ms=60_000,
        clock=clock,
    )
    return ConnectMembership(
        member,
        config,
        url=f"http://{link.client}/",
        connect_protocol=protocol,
        max_delay_ms=3_000,
        clock=clock,
        runnable=runnable,
    )


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
        membership = a_membership(link, node.config, self.cluster.clock, protocol)
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


def _tasks(node: Node) -> list[str]:
    return sorted(map(str, node.host.running))
