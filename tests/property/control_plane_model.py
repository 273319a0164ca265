"""Workers of one flow in a world where any of them may crash, freeze or be cut off between any two awaits.

Their group's coordinator may move, and forgets the rounds that it has not stored.

Flow: ``World`` holds the group, the config and the status topic -> ``Worker`` is a real herder with its real membership
on them, its tasks on paper -> ``Play`` makes changes and faults by a seed, ends the faults, and looks at the invariants:

1. Never two owners of a partition that write.
2. An acknowledged change of a connector is never overwritten by an older one of a worker that led before.
3. STARTED leads to tasks, and STOPPED to none, within bounded time after the faults ended.
4. Every flow runs when the faults have ended.
5. With exactly-once support never two producers of a partition that are not fenced, whatever became of their process.

6. A task runs with what ours are told besides, whichever form its config was published in.
7. No task starts with what another file says than the one that its worker and the leader of its round have (``FilePlay``),
   but where the leader's connector has published nothing for ``LONGEST_WAIT_S``, or its file cannot be written. Where their
   files differ, the leader's counts.
8. A round of fencing that ended, by an error of one id too, fences nothing more.

Workers of this world cannot ask each other anything: there is no HTTP between them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

from mm2py.client.fetch.log_reader import Reread
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.client.send.transactions import FENCED_AT_ONCE
from mm2py.clock import each_of
from mm2py.errors import ConnectionFailedError, Mm2pyError, RequestTimedOutError, RetriableError
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.groups import GroupProtocol, JoinResult
from mm2py.protocol.records import Record
from mm2py.runtime.errors import NotFoundError
from mm2py.runtime.group.connect_membership import ConnectMembership
from mm2py.runtime.herder.assigned_work import LONGEST_WAIT_S
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.tasks.task_host import TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_fold import ConfigFold
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.storage.connect_json import ConnectorPut, decode_config_record
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.table import Entry, Handler
from mm2py.testing.clock import FakeClock
from mm2py.types import State, TargetState, TaskId
from tests.kit.fakes.group_coordinator import MemoryCoordinator, MemoryGroup
from tests.property.play_loop import PROCESS, PlayClock, PlayLoop
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, ObedientHost

SESSION_S: Final = 6.0
DELAY_MS: Final = 3_000
GROUP_AUTHORIZATION_FAILED: Final = 30
REFUSED: Final = 0.1
"""How many of the ids that are fenced are refused for now."""
MARKERS_S: Final = 0.5
"""How long a coordinator may take to abort what a producer left open."""
SETTLE_S: Final = 150.0
"""A worker that failed pauses for up to a minute, a write that was cut off waits for 30 s, a request for 90 s."""

CONNECTORS: Final = ("a", "b")
CHANGES: Final = ("put", "put", "put", "pause", "resume", "stop", "delete")
FAULTS: Final = (
    *("crash", "leave", "leave", "freeze", "freeze"),
    *("cut", "cut", "refuse", "join", "move", "move"),
)


@dataclass
class Topic:
    """One compacted partition; every follower hears of a record in its own process."""

    name: str
    loop: PlayLoop
    records: list[Record] = field(default_factory=list[Record])
    followers: list["Log"] = field(default_factory=list["Log"])
    on_append: Callable[[str, Record], None] = lambda _name, _record: None

    def append(self, writer: str, key: bytes, value: bytes | None) -> int:
        record = Record(len(self.records), -1, key, value)
        self.records.append(record)
        self.on_append(writer, record)
        for follower in self.followers:
            follower.wake()
        return record.offset


class Log:
    """Implements ``Table`` for one worker; a post needs the worker's line to the cluster and its permit."""

    def __init__(self, topic: Topic, worker: "Worker") -> None:
        self._topic, self._worker = topic, worker
        self._handle: Handler = lambda _partition, _record: None
        self._position = 0
        self._context = copy_context()
        self._arrived = asyncio.Event()

    @property
    def topic(self) -> str:
        return self._topic.name

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        del again
        await self.stop()
        self._reach()
        self._position, self._context, self._handle = 0, copy_context(), handle
        self._topic.followers.append(self)
        await asyncio.sleep(0.001)
        self._catch_up()

    async def stop(self) -> None:
        if self in self._topic.followers:
            self._topic.followers.remove(self)

    async def read_to_end(self, timeout_s: float) -> None:
        end = len(self._topic.records)
        deadline = self._topic.loop.time() + timeout_s
        while self._position < end or self._worker.cut:
            if self._topic.loop.time() >= deadline:
                raise RequestTimedOutError(f"{self.topic} was not read to its end")
            self._arrived.clear()
            await asyncio.sleep(0.01 if not self._worker.cut else 0.5)
            self._catch_up()

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = self._topic.loop.create_future()
        answer.add_done_callback(_retrieve)
        if self._worker.world.denies and entries[0][0].startswith(b"connector-"):
            answer.set_exception(RetriableError("connector configs cannot be written"))
            return answer
        self._send(answer, entries, self._worker.permit.term)
        return answer

    def _send(self, answer: "asyncio.Future[int]", entries: Sequence[Entry], term: int) -> None:
        permit = self._worker.permit
        if answer.done():
            return  # its caller has taken it back
        if permit.term != term:
            answer.set_exception(RetriableError("the membership was lost"))
        elif self._worker.cut or not permit.allows(term):
            self._topic.loop.call_later(0.25, self._send, answer, entries, term)
        else:
            offsets = [self._topic.append(self._worker.name, *entry) for entry in entries]
            # The acknowledgement is under way while others act.
            self._topic.loop.call_later(0.002, _answered, answer, offsets[0])

    def wake(self) -> None:
        self._topic.loop.call_later(0.001, self._catch_up, context=self._context)

    def _reach(self) -> None:
        if self._worker.cut:
            raise ConnectionFailedError(f"{self._worker.name} is cut off")

    def _catch_up(self) -> None:
        if self._worker.cut and self in self._topic.followers:
            self._topic.loop.call_later(0.5, self._catch_up, context=self._context)
        while (
            not self._worker.cut
            and self in self._topic.followers
            and self._position < len(self._topic.records)
        ):
            record = self._topic.records[self._position]
            self._position += 1
            self._handle(0, record)
        self._arrived.set()


def _retrieve(answer: "asyncio.Future[int]") -> None:
    if not answer.cancelled():
        answer.exception()


def _answered(answer: "asyncio.Future[int]", offset: int) -> None:
    if not answer.done():
        answer.set_result(offset)


class Line(MemoryCoordinator):
    """A worker's connection to its group, which may be refused its joins."""

    refuses = False

    async def join(
        self,
        member_id: str,
        offers: Sequence[GroupProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> JoinResult:
        await asyncio.sleep(0.001)
        if self.refuses:
            raise server_error(GROUP_AUTHORIZATION_FAILED, "joining group g")
        return await super().join(member_id, offers, session_timeout_ms, rebalance_timeout_ms)


@dataclass(eq=False)
class Producer:
    """What holds a transactional id: it writes one partition until it is fenced."""

    task: TaskId
    partition: str
    on_fenced: Callable[[], None]
    begun: bool = False
    process: Context = field(default_factory=copy_context)


class PaperHost(ObedientHost):
    """Tasks on paper, which write while the permit allows it in the term they were started in."""

    def __init__(self, watcher: TaskWatcher, worker: "Worker") -> None:
        super().__init__(watcher)
        self._worker = worker
        self.terms: dict[TaskId, int] = {}
        self.producers: dict[TaskId, Producer] = {}
        self._starts: dict[TaskId, asyncio.Task[None]] = {}

    async def start_task(self, spec: TaskSpec) -> None:
        if not spec.config.get("told", "").endswith("('cluster A', 'cluster B')"):
            self._worker.world.broken.append(f"6: {spec.id} is told nothing: {spec.config}")
        self._worker.world.starts(self._worker, spec)
        self.terms[spec.id] = self._worker.permit.term
        if not self._worker.exactly_once:
            await super().start_task(spec)
            return
        self.running[spec.id] = spec
        self._starts[spec.id] = asyncio.create_task(self._begin(spec))

    async def _begin(self, spec: TaskSpec) -> None:
        """A task's producer (``TaskTransactions.open``): fenced before, its id, still the right one."""
        guard, world, task = self._worker.guard, self._worker.world, spec.id
        try:
            await guard.fence(task)
            await self._worker.reach()
            world.fence(str(task))
            producer = Producer(task, spec.config["p"] or "", partial(self._fenced, task))
            world.producers[str(task)] = self.producers[task] = producer
            await asyncio.sleep(0.002)
            await guard.verify(task, spec.configs)
        except Mm2pyError as error:
            self.say(task, State.FAILED, error)
            return
        if world.producers.get(str(task)) is not producer:
            self._fenced(task)
            return
        producer.begun = True
        await super().start_task(self.running[task])
        world.look()

    def _fenced(self, task: TaskId) -> None:
        if task in self.running:
            self.say(task, State.FAILED, RetriableError("the producer was fenced"))

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        # A task writes until the target has acknowledged what is under way.
        await asyncio.sleep(self._worker.world.loop.random.choice((0, 0.01, 1)))
        starting = self._starts.pop(task, None)
        if starting is not None:
            starting.cancel()
            await asyncio.wait({starting})
        producer = self.producers.pop(task, None)
        if producer is not None:
            producer.begun = False  # its transaction is committed
        await super().stop_task(task, timeout_s)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        if task in self.running and task not in self.states:
            self.running[task] = replace(self.running[task], paused=paused)
        await super().pause_task(task, paused=paused)

    def writes(self, task: TaskId) -> bool:
        """Whether a task that runs has begun, and is not fenced."""
        producer = self.producers.get(task)
        world = self._worker.world
        return not world.exactly_once or (
            producer is not None and producer.begun and world.producers.get(str(task)) is producer
        )

    def say(self, task: TaskId, state: State, cause: Exception | None = None) -> None:
        super().say(task, state, cause)
        self._worker.world.look()


class Worker:
    """One process: a herder, its membership, its stores and its paper host."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name, self.file = world, name, world.file
        self.permit = Permit(world.clock)
        self.url = f"http://{name}/"
        self.frozen = False
        self.line = Line(world.group, name)
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, name)
        support = "enabled" if world.exactly_once else "disabled"
        derived = {each: of_file(self.file) for each in CONNECTORS} if self.file else None
        node = Node(world.cluster, name, derived, resolve=None, exactly_once_source_support=support)
        self.exactly_once = world.exactly_once
        self.permit.watch(world.look)
        config = ConfigBackingStore(Log(world.configs, self))
        member = GroupMember(
            self.line,
            self.permit,
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=2_000,
            rebalance_timeout_ms=10_000,
            clock=world.clock,
        )
        self.membership = ConnectMembership(
            member,
            config,
            url=self.url,
            connect_protocol="sessioned",
            max_delay_ms=DELAY_MS,
            clock=world.clock,
            runnable=lambda _: True,
        )
        self._hosts: list[PaperHost] = []
        self.parts = replace(
            node.parts,
            config=config,
            status=StatusBackingStore(Log(world.statuses, self)),
            membership=self.membership,
            hosts=self._host,
            fence_producers=self._fence_producers,
        )
        self.herder = Herder(self.parts, clock=world.clock)
        self.life = self.task(self.herder.run)

    @property
    def cut(self) -> bool:
        return self.line.cut

    @property
    def host(self) -> PaperHost:
        return self._hosts[-1]

    @property
    def leads(self) -> bool:
        return self.membership.is_leader and self.permit.valid

    def writes(self) -> set[str]:
        """Return the partitions that tasks of this process write now."""
        if self.frozen:
            return set()
        return {
            f"{task.connector} {(spec.config['p'] or '').rpartition('.')[2]}"
            for task, spec in self.host.running.items()
            if not spec.paused
            and self.permit.allows(self.host.terms[task])
            and self.host.writes(task)
        }

    def task(self, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Run something in this process, if it ever does anything again."""

        async def run() -> None:
            await work()

        return self.world.loop.create_task(run(), context=self.context)

    async def reach(self) -> None:
        """Ask the target."""
        await asyncio.sleep(0.002)
        if self.cut:
            raise ConnectionFailedError(f"{self.name} is cut off")

    async def _fence_producers(self, transactional_ids: Sequence[str]) -> None:
        """As the real one: each id at its own pace, in any order, and one may be refused for now."""
        random, is_over = self.world.loop.random, asyncio.Event()

        async def fence(transactional_id: str) -> None:
            await self.reach()
            if random.random() < REFUSED:
                raise RetriableError(f"the coordinator of {transactional_id} is loading")
            await asyncio.sleep(random.random() * MARKERS_S)
            await self.reach()
            if is_over.is_set():
                self.world.broken.append(
                    f"8: {self.name} fences {transactional_id} after its round"
                )
            self.world.fence(transactional_id.removeprefix("A-mm2-"))

        try:
            await each_of(transactional_ids, fence, at_once=FENCED_AT_ONCE)
        finally:
            is_over.set()

    def _host(self, watcher: TaskWatcher, guard: StartGuard) -> PaperHost:
        self.guard = guard
        self._hosts.append(PaperHost(watcher, self))
        return self._hosts[-1]


def of_file(file: str) -> Mapping[str, str]:
    """Return what a file says of each connector; its tasks copy the same partitions, each file's under its own names."""
    words = [f"{file}.{n}" for n in range(3)]
    return CONFIG | {"work": " ".join(words), "java": " ".join(reversed(words))}


class World:
    """Group and topics, and the workers on them."""

    def __init__(self, loop: PlayLoop) -> None:
        self.loop = loop
        self.exactly_once = loop.random.random() < 0.5
        self.producers: dict[str, Producer] = {}
        """By transactional id: a later one with the same id fences the one before."""
        self.clock = PlayClock(loop)
        clock = cast("FakeClock", self.clock)
        self.group = MemoryGroup(clock)
        self.cluster = Cluster(clock=clock)
        self.configs, self.statuses = Topic("configs", loop), Topic("statuses", loop)
        self.configs.on_append = self._appended
        self.workers: dict[str, Worker] = {}
        self.all: list[Worker] = []
        self.broken: list[str] = []
        self.submitted = 0
        self.acknowledged: dict[str, tuple[int, str]] = {}
        """Per connector: the newest acknowledged change and the worker that made it."""
        self.file = ""
        """Which file workers are started with; without one there are no configs but those of requests."""
        self.denies = self.has_denied = False
        """Whether no connector config can be written, and whether it was so before."""
        self.written: dict[str, tuple[str, float]] = {}
        """Per connector: the file of its config in force, and since when."""

    def join(self) -> Worker:
        worker = Worker(self, f"n{len(self.all) + 1}")
        self.all.append(worker)
        self.workers[worker.name] = worker
        return worker

    def fence(self, transactional_id: str) -> None:
        """As InitProducerId of another client."""
        producer = self.producers.pop(transactional_id, None)
        if producer is not None and producer.begun:
            self.loop.call_soon(producer.on_fenced, context=producer.process)

    def look(self) -> None:
        """Invariants 1 and 5."""
        begun = [each for each in self.producers.values() if each.begun]
        for each in begun:
            for other in begun:
                where = (each.task.connector, each.partition)
                if each.task < other.task and where == (other.task.connector, other.partition):
                    self.broken.append(f"5: {where} has producers {each.task} and {other.task}")
        owners: dict[str, str] = {}
        for worker in self.workers.values():
            for partition in worker.writes():
                owner = owners.setdefault(partition, worker.name)
                if owner != worker.name:
                    self.broken.append(f"1: {partition} is written by {owner} and {worker.name}")

    def starts(self, worker: Worker, spec: TaskSpec) -> None:
        """Invariant 7."""
        leader = next(w for w in self.all if w.url == worker.membership.leader_url)
        file = (spec.config["p"] or "").rpartition(".")[0]
        if file == worker.file or leader.file != worker.file or self.has_denied:
            return
        stored, since = self.written[spec.id.connector]
        if stored != worker.file or self.loop.time() - since < LONGEST_WAIT_S:
            self.broken.append(
                f"7: {spec.id} of file {file} starts on {worker.name}, {worker.file}"
            )

    def fold(self) -> ConfigSnapshot:
        """Return what the config topic says in the end."""
        fold = ConfigFold()
        for record in self.configs.records:
            fold.advance(record.offset)
            fold.take(decode_config_record(record.key, record.value))
        return fold.snapshot()

    def _appended(self, writer: str, record: Record) -> None:
        """Invariant 2."""
        change = decode_config_record(record.key, record.value)
        if not isinstance(change, ConnectorPut) or change.config is None:
            return
        words = (change.config.get("work") or "").split()
        self.written[change.name] = words[0].rpartition(".")[0] if words else "", self.loop.time()
        number = int(change.config.get("change") or 0)
        newest, by = self.acknowledged.get(change.name, (0, writer))
        # A change whose caller still waits may be made later, by the leader of then.
        led = max(each.membership.generation for each in self.all if each.membership.is_leader)
        stale = next(w for w in self.all if w.name == writer).membership.generation < led
        if number < newest and by != writer and stale:
            self.broken.append(
                f"2: change {number} of {change.name} by {writer} overwrites {newest} by {by}"
            )


class Play:
    """One play by a seed."""

    def __init__(self, seed: int) -> None:
        self.loop = PlayLoop(seed)
        self.random = self.loop.random
        self.world = World(self.loop)
        self.faults_left = self.random.randrange(1, 6)
        self._fault_at = 0
        self._asked: list[tuple[Worker, asyncio.Task[None]]] = []

    def run(self) -> None:
        """Play; ``AssertionError`` where an invariant is broken."""
        try:
            self.loop.run_until_complete(self._play())
        finally:
            self._end()

    # ---- what happens

    async def _play(self) -> None:
        async with self.world.group.running():
            for _ in range(self.random.randrange(1, 4)):
                self.world.join()
            await asyncio.sleep(1)
            self._next_fault()
            self.loop.on_step = self._step
            await self._changes()
            await asyncio.sleep(self.random.choice((0, 1, 10)))
            self.loop.on_step = lambda: None
            self._heal()
            await self._settles()

    async def _changes(self) -> None:
        for _ in range(self.random.randrange(3, 9)):
            await asyncio.sleep(self.random.choice((0, 0.01, 0.5, 3, 8)))
            if self.world.exactly_once:  # partitions go from task to task, beside zombies
                self._ask(self.random.choice(("put", *CHANGES)), CONNECTORS[0])
            else:
                self._ask(self.random.choice(CHANGES), self.random.choice(CONNECTORS))

    def _step(self) -> None:
        if self.faults_left and self.loop.steps >= self._fault_at:
            self.faults_left -= 1
            self._next_fault()
            self._fault(self.random.choice(FAULTS))

    def _next_fault(self) -> None:
        self._fault_at = self.loop.steps + self.random.randrange(1, 400)

    def _fault(self, kind: str) -> None:
        world = self.world
        if kind == "join" or not world.workers:
            if len(world.workers) < 4:
                world.join()
            return
        if kind == "move":
            world.group.reload()
            return
        worker = self.random.choice(list(world.workers.values()))
        lasts_s = self.random.choice((0.5, 4, 9, 20))
        if kind == "crash":
            self.loop.freeze(worker.name)
            worker.line.cut = True
            del world.workers[worker.name]
            if not world.workers:
                world.join()
        elif kind == "leave":
            self._leave(worker)
        elif kind == "freeze":
            worker.frozen = True
            self.loop.freeze(worker.name)
            self.loop.call_later(lasts_s, self._thaw, worker, context=copy_context())
        elif kind == "cut":
            worker.line.cut = True
            self.loop.call_later(
                lasts_s, setattr, worker.line, "cut", worker.name not in world.workers
            )
        else:
            worker.line.refuses = True
            self.loop.call_later(lasts_s, setattr, worker.line, "refuses", False)

    def _leave(self, worker: Worker) -> None:
        worker.herder.stop()
        left = partial(self._left, worker)
        worker.life.add_done_callback(left, context=copy_context())

    def _left(self, worker: Worker, _life: "asyncio.Task[None]") -> None:
        self.world.workers.pop(worker.name, None)
        if not self.world.workers:
            self.world.join()

    def _thaw(self, worker: Worker) -> None:
        if worker.name not in self.world.workers:
            return  # it crashed meanwhile
        worker.frozen = False
        worker.context.run(worker.permit.check)
        self.loop.thaw(worker.name)
        self.world.look()

    def _heal(self) -> None:
        for worker in self.world.workers.values():
            worker.line.cut = worker.line.refuses = False
            self._thaw(worker)

    def _ask(self, what: str, name: str) -> None:
        leaders = [worker for worker in self.world.workers.values() if worker.leads]
        if leaders:
            worker = self.random.choice(leaders)
            self._asked.append((worker, worker.task(partial(self._change, worker, what, name))))

    async def _change(self, worker: Worker, what: str, name: str) -> None:
        world, herder = self.world, worker.herder
        world.submitted += 1
        number = world.submitted
        try:
            if what == "put":
                least = 2 if world.exactly_once else 0
                words = " ".join(self.random.sample("0123", self.random.randrange(least, 5)))
                keeps = self.random.choice(({}, {"keeps": "yes"}))
                config = (
                    CONFIG | keeps | {"work": words, "java": words[::-1], "change": str(number)}
                )
                await herder.put_config(name, config, actor="t")
                if number > world.acknowledged.get(name, (0, ""))[0]:
                    world.acknowledged[name] = number, worker.name
            elif what == "delete":
                await herder.delete(name, actor="t")
            elif what == "stop":
                await herder.stop_connector(name, actor="t")
            elif what == "pause":
                await herder.pause(name, actor="t")
            else:
                await herder.resume(name, actor="t")
        except Mm2pyError:
            return

    # ---- how it ends

    async def _settles(self) -> None:
        """Invariants 3 and 4."""
        deadline = self.loop.time() + SETTLE_S
        while not (self._all_run() and self._all_answered()):
            assert not self.world.broken, self.world.broken
            assert self.loop.time() < deadline, self._picture()
            await asyncio.sleep(0.5)
        assert not self.world.broken, self.world.broken

    def _all_answered(self) -> bool:
        """Whether no change is under way, but for those of workers that crashed."""
        workers = self.world.workers
        return all(task.done() or worker.name not in workers for worker, task in self._asked)

    def _all_run(self) -> bool:
        workers = self.world.workers.values()
        if any(w.herder.failure is not None or not w.permit.valid for w in workers):
            return False
        snapshot = self.world.fold()
        running = sorted(
            (task.connector, spec.config["p"], spec.paused)
            for worker in workers
            for task, spec in worker.host.running.items()
        )
        wanted = sorted(
            (name, word, snapshot.target(name) is TargetState.PAUSED)
            for name, config in snapshot.connectors.items()
            if snapshot.target(name) is not TargetState.STOPPED
            for word in self._words(name, config, snapshot)
        )
        return running == wanted and all(map(self._is_shown, snapshot.connectors))

    def _is_shown(self, name: str) -> bool:
        """Whether every worker shows the state that a connector and its tasks were asked to have."""
        snapshot = self.world.fold()
        wanted, tasks = snapshot.target(name), {task.number for task in snapshot.tasks(name)}
        state = State.RUNNING if wanted is TargetState.STARTED else State(wanted.value)
        try:
            shown = [worker.herder.status(name) for worker in self.world.workers.values()]
        except NotFoundError:
            return False
        return all(
            each.connector.state is state
            and set(each.tasks) == tasks
            and {task.state for task in each.tasks.values()} <= {state}
            for each in shown
        )

    def _words(
        self, name: str, config: Mapping[str, str | None], snapshot: ConfigSnapshot
    ) -> Sequence[str]:
        """What a connector wants; a paused one keeps the tasks that it had."""
        if snapshot.target(name) is TargetState.PAUSED:
            return [snapshot.task_configs[task].get("p") or "" for task in snapshot.tasks(name)]
        return (config.get("work") or "").split()

    def _picture(self) -> str:
        snapshot = self.world.fold()
        lines = [
            f"{w.name}: {sorted(map(str, w.host.running))} {w.parts.meter.state}"
            f" failure={w.herder.failure} leads={w.leads}"
            for w in self.world.workers.values()
        ]
        lines += [
            f"{name}: {snapshot.target(name).value} {config.get('work')!r} {snapshot.tasks(name)}"
            for name, config in snapshot.connectors.items()
        ]
        for worker in list(self.world.workers.values())[:1]:
            lines += [str(worker.parts.status.get(name)) for name in snapshot.connectors]
            lines += [str(worker.parts.status.tasks(name)) for name in snapshot.connectors]
        return "\n".join([*lines, f"inconsistent {set(snapshot.inconsistent)}"])

    def _end(self) -> None:
        loop = self.loop
        loop.on_step = lambda: None
        loop.thaw_all()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=60))
        loop.close()


class FilePlay(Play):
    """Workers are started again with another file, at once or one after the other, and nothing is asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.exactly_once = False  # a fenced task starts again as it was, whoever leads
        self.world.file = "1"
        self.world.group.gather_s = self.random.choice((0, 3))
        self.faults_left = self.random.randrange(4)
        self.denies = self.random.random() < 0.2

    async def _changes(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            await asyncio.sleep(self.random.choice((0.01, 3, 10)))
            self.world.file = str(int(self.world.file) + 1)
            self.world.denies = self.world.has_denied = self.denies
            leaving = list(self.world.workers.values())
            if self.random.random() < 0.5:
                await self._again(leaving)
            else:
                for worker in leaving:
                    await self._again([worker])
                    await asyncio.sleep(self.random.choice((0, 0.5, 4)))

    async def _again(self, workers: Sequence[Worker]) -> None:
        """Stop workers, and start as many and perhaps one more; one that hangs is waited for no longer than a while."""
        for worker in workers:
            self._leave(worker)
        await asyncio.wait([worker.life for worker in workers], timeout=8)
        for _ in range(self.random.choice((len(workers), len(workers) + 1))):
            if len(self.world.workers) < 4:
                self.world.join()
            await asyncio.sleep(self.random.choice((0, 0, 0.5)))

    async def _settles(self) -> None:
        """Invariants 3 and 4: with what is stored, and with the leader's file as soon as that can be written."""
        await super()._settles()
        self.world.denies = False
        await super()._settles()

    def _all_run(self) -> bool:
        files = {worker.file for worker in self.world.workers.values() if worker.leads}
        stored = {file for file, _ in self.world.written.values()}
        return (self.world.denies or files == stored) and super()._all_run()
