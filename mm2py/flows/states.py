"""Connectors and tasks of one flow and their states: the one reading that views, changes and the
fleet share.

Flow: ``Herder`` -> ``FlowWork``; with the ``NodeSnapshot`` of members -> one word for the flow and
what is wrong with it. Reads only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from mm2py.config.class_names import COPY_CONNECTORS, canonical_class
from mm2py.mirror.backfills import NO_DRIVER, Job, JobState, Lease
from mm2py.mirror.flow_state import FlowPicture, FlowState, enabled, engine
from mm2py.observability.metrics import KEPT_OUT, NodeSnapshot, PartitionSnapshot
from mm2py.runtime.errors import HerderError, NotFoundError
from mm2py.runtime.herder.api import ConnectorInfo, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.backfill_store import BackfillStore
from mm2py.types import FlowName, State, TaskId, TopicPartition

DEGRADED: Final = "DEGRADED"
"""The flow works, but not all of it does."""
DISABLED: Final = "DISABLED"
"""Only heartbeats run: the flow copies nothing, and is not to."""

_NOT_AT_WORK: Final = ("SUSPENDED", "WAITING")
"""States of a node that are more exact than those of its tasks."""
_RESTING: Final = (State.PAUSED.value, State.STOPPED.value)
_WHILE_DISABLED: Final = (*_NOT_AT_WORK, *_RESTING)
"""States that a flow that is not to copy may be in: what its configs are by now is not known while
it waits."""
_BAD: Final = (State.FAILED.value, State.RESTARTING.value, State.UNASSIGNED.value)
_STUCK: Final = frozenset({"FAILED", "HELD"})
_ASSIGNED: Final = "task.assigned.partitions"
_GONE: Final = (
    "its worker {} has left the group, its work waits for its return: for "
    "scheduled.rebalance.max.delay.ms at most, then another worker takes over"
)

LANE_SILENT_S: Final = 90.0
"""How long a job may copy nothing of a partition that it has: lanes start, and Spark tries those
that failed again."""
TAKE_OVER_S: Final = 10.0
"""How long the flow's workers may take to go on behind a job."""
_NO_MORE: Final = "nothing copies what is left"
_NO_LANE: Final = (
    f"and no lane has copied it for {LANE_SILENT_S:.0f} s: see the log of its driver and whether "
    "Spark has executors; to begin again end the driver and run the same command, or cancel it"
)
_NOT_TAKEN: Final = (
    "no job has it any more, and the flow's workers do not copy it: mm2py flow "
    "restart '{}' begins it again"
)


def picture_at(flow: FlowName, state: FlowState, revision: int) -> FlowPicture:
    """Return what was in force after a revision; ``NotFoundError``: the history is shorter."""
    then = state.at(revision)
    if then is None:
        first = f" and {state.oldest}" if state.oldest > 1 else ""
        raise NotFoundError(
            f"Flow {flow} has no revision {revision} that is known; known are 0 (the file){first} "
            f"to {state.revision}"
        )
    return then


def unfinished_job(herder: Herder) -> Job | None:
    """Return the backfill or stream that has partitions of a flow, as shown; None for none."""
    store = herder.backfills
    job = None if store is None or not store.live else store.shown_job
    return None if job is None or job.state.is_over else job


def _says_itself(_partition: TopicPartition) -> str:
    return ""


def _not_copied(herder: Herder, partition: TopicPartition) -> str:
    """Return why a partition that a job has reserved is not copied; empty while its lane renews."""
    store = herder.backfills
    job = None if store is None or not store.live else store.shown_job
    if store is None or job is None:
        return KEPT_OUT
    lease = store.lease_of(partition)
    if lease is None or job.state.is_over or not lease.state.keeps_live_out:
        # Its task takes it over between two polls.
        taking = lease is not None and store.silent_s(lease) < TAKE_OVER_S
        return "" if taking else _NOT_TAKEN.format(herder.flow)
    cause = _why_idle(store, job, lease, str(herder.flow))
    return cause and f"{job.kind.lower()} {job.id} has it{cause}"


def _why_idle(store: BackfillStore, job: Job, lease: Lease, flow: str) -> str:
    """Return what keeps a job from copying a partition, empty while its lane renews."""
    if job.cause == NO_DRIVER:
        return f"; {NO_DRIVER}"
    if job.state is JobState.FAILED:
        return f" and failed ({job.cause}), {_NO_MORE}: run the same command again, or cancel it"
    if job.state is JobState.PAUSED:
        return (
            f" and is paused, {_NO_MORE}: mm2py backfill resume FILE --flow '{flow}', or cancel it"
        )
    if lease.cause:
        return f": {lease.cause}"
    return "" if store.silent_s(lease) < LANE_SILENT_S else f", {_NO_LANE}"


def state_name(work: WorkState | None) -> str:
    """Return the state of a connector or task, UNASSIGNED while it has none."""
    return State.UNASSIGNED.value if work is None else work.state.value


@dataclass(frozen=True, slots=True)
class ConnectorWork:
    """A connector with its state and those of the tasks that it is configured to have."""

    info: ConnectorInfo
    state: WorkState | None
    tasks: Mapping[TaskId, WorkState | None]

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def copies(self) -> bool:
        return canonical_class(self.info.config.get("connector.class") or "") in COPY_CONNECTORS

    def works(self) -> Iterator[tuple[str, WorkState | None]]:
        yield self.name, self.state
        for task, state in self.tasks.items():
            yield str(task), state


@dataclass(frozen=True, slots=True)
class FlowWork:
    """The connectors of a flow whose class is installed: a Java worker may have left others."""

    connectors: Sequence[ConnectorWork]
    failure: str = ""
    """Why the flow's herder does not run here, empty while it does."""
    flow: str = ""
    """Its name, for remedies."""
    not_copied: Callable[[TopicPartition], str] = lambda _: KEPT_OUT
    """Why a partition that is reserved by a job is not copied; empty while it is."""
    disabled: str = ""
    """Name of a flow that is not to copy: only heartbeats run, and what is wrong with them is a
    note. Empty for others."""
    of_worker: bool = False
    """Whether these are the connectors of a Connect worker: they have nothing to do with each
    other, and need not copy."""

    @property
    def source(self) -> ConnectorWork | None:
        """The connector that copies records, None where there is none."""
        return next((connector for connector in self.connectors if connector.copies), None)

    def works(self) -> Iterator[tuple[str, WorkState | None]]:
        for connector in self.connectors:
            yield from connector.works()

    def state(self, nodes: Sequence[NodeSnapshot]) -> str:
        """Return the worst state: a flow runs only when all of it does, and it copies. One that is
        not to copy is never FAILED."""
        state = self._bad(nodes) or self._otherwise(nodes)
        return DISABLED if self.disabled and state not in _WHILE_DISABLED else state

    def _bad(self, nodes: Sequence[NodeSnapshot]) -> str:
        """Return what is worse than all that rests or copies in part, empty where nothing is."""
        if self.failure:
            return State.FAILED.value
        at_nodes = {node.state for node in nodes}
        words = {state_name(state) for _, state in self.works()}
        # The order is the rank: a node that may not write says more than its tasks' last states.
        for word, there in (
            *((word, at_nodes) for word in _NOT_AT_WORK),
            *((word, words) for word in _BAD),
        ):
            if word in there:
                return word
        return ""

    def _otherwise(self, nodes: Sequence[NodeSnapshot]) -> str:
        if self.of_worker:
            return DEGRADED if any(self._problems(nodes)) else State.RUNNING.value
        whole = {state_name(connector.state) for connector in self.connectors}
        if len(whole) == 1 and whole != {State.RUNNING.value}:
            return whole.pop()
        source = None if self.disabled else self.source
        if source is not None and state_name(source.state) in _RESTING:
            return state_name(source.state)  # nothing is copied, in any state of the others
        if any(self._problems(nodes)):
            return DEGRADED if whole else State.FAILED.value
        return State.RUNNING.value if whole else State.UNASSIGNED.value

    def wrongs(self, nodes: Sequence[NodeSnapshot]) -> Iterator[tuple[str, str]]:
        """Return what is wrong with what (a connector, task, partition or topic); nothing of a flow
        that is not to copy."""
        return iter(()) if self.disabled else self._problems(nodes)

    def _problems(self, nodes: Sequence[NodeSnapshot]) -> Iterator[tuple[str, str]]:
        if self.failure:
            yield "flow", self.failure
        for where, work in self.works():
            if work is not None and (
                work.state is State.FAILED or (work.state is State.UNASSIGNED and work.trace)
            ):
                yield where, _plain(work.trace or "")
        if not self.of_worker:
            yield from self._missing()
            yield from self._resting()
        for node in nodes:
            yield from node.problems.items()
            for finding in node.findings:
                if finding.harms:
                    yield f"{finding.task}: {finding.what}", finding.text
            for part in node.partitions:
                cause = self._stuck(part)
                if cause is not None:
                    yield str(part.source), cause

    def _stuck(self, part: PartitionSnapshot) -> str | None:
        """Return why a partition is not copied, None where it is, or something else says so."""
        # What waits for its copy has no task: its connector names it, once for the whole topic.
        if part.state not in _STUCK or not part.task:
            return None
        return part.cause if part.cause != KEPT_OUT else self.not_copied(part.source) or None

    def _missing(self) -> Iterator[tuple[str, str]]:
        """Return that nothing is to copy, where that is so."""
        if self.source is None and self.connectors:
            yield (
                "flow",
                "the flow has no MirrorSourceConnector, nothing is copied: create it again (POST "
                "/connectors on the flow's own path), or roll the flow back with mm2py flow "
                f"rollback '{self.flow}' 0, which is the file",
            )

    def _resting(self) -> Iterator[tuple[str, str]]:
        """Return the connectors that rest beside others that do not: Connect's interface pauses
        each by itself."""
        resting = {it.name: it.state for it in self.connectors if state_name(it.state) in _RESTING}
        if len(resting) == len(self.connectors):
            return
        for name, state in resting.items():
            yield (
                name,
                f"it is {state_name(state)} and does nothing while the flow's other connectors "
                f"run; resume it with PUT /connectors/{self.flow}.{name}/resume,"
                f" or all with mm2py flow resume '{self.flow}'",
            )

    def notes(self, nodes: Sequence[NodeSnapshot]) -> Iterator[str]:
        """Return what is worth knowing of a flow: findings of connectors and tasks that do no harm,
        problems of mere heartbeats."""
        for where, cause in self._problems(nodes) if self.disabled else ():
            yield (
                f"{where}: {cause}; the flow is disabled and only its heartbeats are concerned: "
                f"where they are not wanted, set {self.disabled}.emit.heartbeats.enabled = false"
            )
        for node in nodes:
            for finding in node.findings:
                if not finding.harms:
                    yield f"{finding.task}: {finding.what}: {finding.text}"
        blind = self._blind(nodes)
        if blind:
            yield (
                "nothing is measured of paused tasks that have not run since their worker started "
                f"({blind}): lag, RPO and what retention overtakes are not known, while the source "
                f"deletes as ever; mm2py flow resume '{self.flow}' begins it"
            )

    def _blind(self, nodes: Sequence[NodeSnapshot]) -> int:
        """Return how many tasks that copy were paused before their start, and opened nothing."""
        if self.source is None:
            return 0
        measured = {part.task for node in nodes for part in node.partitions}
        answers = {node.worker for node in nodes}
        return sum(
            work is not None
            and work.state is State.PAUSED
            and work.worker_id in answers
            and str(task) not in measured
            for task, work in self.source.tasks.items()
        )


def read_flow(herder: Herder) -> FlowWork:
    """Return what a herder knows now of its connectors and tasks."""
    infos = (herder.info_now(name) for name in sorted(herder.connectors()))
    members, of_worker = _members(herder), herder.flow is None
    connectors = [
        _read(herder, info, members)
        for info in infos
        # A user created each of a Connect worker's: what is not installed is FAILED there.
        if info is not None and (of_worker or info.type != "unknown")
    ]
    failure = "" if herder.failure is None else str(herder.failure)
    if of_worker:
        return FlowWork(connectors, failure, of_worker=True)
    # What a stream does not copy is a problem of its own (``StreamWatch``).
    on_spark = any(it.copies and engine(it.info.config) == "spark" for it in connectors)
    not_copied = _says_itself if on_spark else partial(_not_copied, herder)
    return FlowWork(
        connectors, failure, str(herder.flow), not_copied, _disabled(herder, connectors)
    )


def worker_state(herder: Herder, nodes: Sequence[NodeSnapshot]) -> str:
    """Return the worst state of a Connect worker, the connectors and their tasks; ``nodes`` has a
    snapshot of the worker and one for each source that it copies from."""
    if herder.failure is None and herder.not_ready:
        return "WAITING"
    return read_flow(herder).state(nodes)


def is_disabled(herder: Herder) -> bool:
    """Whether a flow is not to copy, as far as its configs were read; else by the file."""
    return bool(read_flow(herder).disabled)


def decisive(herders: Mapping[FlowName | None, Herder]) -> Mapping[FlowName | None, Herder]:
    """Return the herders that decide for their worker: one that only writes heartbeats of a
    disabled flow does not, unless it is alone."""
    copying = {flow: it for flow, it in herders.items() if not is_disabled(it)}
    return copying or herders


def _disabled(herder: Herder, connectors: Sequence[ConnectorWork]) -> str:
    configs: list[Mapping[str, str | None]] = [it.info.config for it in connectors if it.copies]
    if not connectors:
        configs += [
            it
            for it in herder.configured.values()
            if canonical_class(it.get("connector.class", "")) in COPY_CONNECTORS
        ]
    return str(herder.flow) if configs and not any(map(enabled, configs)) else ""


def _members(herder: Herder) -> Collection[str]:
    """Return the workers in a flow's group, none where only the leader knows them."""
    try:
        urls = () if herder.flow is None else herder.member_urls()
    except HerderError:
        return ()
    return {herder.worker_id, *(urlsplit(url).netloc for url in urls)} if urls else ()


def _read(herder: Herder, info: ConnectorInfo, members: Collection[str]) -> ConnectorWork:
    try:
        state = herder.status(info.name)
    except NotFoundError:
        return ConnectorWork(info, None, dict.fromkeys(info.tasks))

    def now(work: WorkState | None, task: TaskId | None = None) -> WorkState | None:
        """Nothing runs on a worker that is gone, whose work waits for its return; what it wrote
        last stays."""
        if work is None or work.state is not State.RUNNING:
            return work
        # ``scheduled.rebalance.max.delay.ms`` (KIP-415): a killed worker's last state is RUNNING
        # until its tasks are given to another.
        if herder.flow is None:  # members are not known by the names that they write
            gone = task is not None and herder.has_no_owner(task)
        else:
            gone = bool(members) and work.worker_id not in members
        if not gone:
            return work
        return replace(work, state=State.UNASSIGNED, trace=_GONE.format(work.worker_id))

    tasks = {task: now(state.tasks.get(task.number), task) for task in info.tasks}
    return ConnectorWork(info, now(state.connector), tasks)


async def assigned_tasks(herder: Herder, name: str) -> Mapping[TopicPartition, TaskId]:
    """Return which task of a connector has which source partition; ``HerderError``: the tasks are
    not known now."""
    return _assigned(await herder.task_configs(name))


def assigned_now(herder: Herder) -> Mapping[TopicPartition, tuple[TaskId, State]]:
    """Return which task of the flow has which source partition, as far as this node has read it,
    and the state of one that no worker measures: a task that was paused before its start opens
    nothing."""
    source = read_flow(herder).source
    if source is None:
        return {}
    assigned = _assigned((task, herder.task_config_now(task)) for task in source.info.tasks)
    paused = {it for it, work in source.tasks.items() if state_name(work) == State.PAUSED}
    return {
        tp: (task, State.PAUSED if task in paused else State.UNASSIGNED)
        for tp, task in assigned.items()
    }


def _assigned(
    configs: Iterable[tuple[TaskId, Mapping[str, str | None]]],
) -> Mapping[TopicPartition, TaskId]:
    assigned: dict[TopicPartition, TaskId] = {}
    for task, config in configs:
        for item in (config.get(_ASSIGNED) or "").split(","):
            # Topic names may have dashes: the number is after the last one.
            topic, dash, number = item.strip().rpartition("-")
            if dash and number.isdigit():
                assigned[TopicPartition(topic, int(number))] = task
    return assigned


def _plain(trace: str) -> str:
    """Return the first line of a trace without the name of the exception."""
    line = trace.split("\n", 1)[0]
    name, colon, text = line.partition(": ")
    return text if colon and " " not in name else line
