"""One flow, or one ordinary worker, on one node: what REST, ``/flows`` and the process ask of it.

Flow: request -> validation beside the loop -> queue -> leader or owner? -> change recorded for the
history -> config topic -> every worker acts on what it reads. A refused request has written
nothing. Standalone is the same herder with a membership of one; there requests wait for a round
instead of being refused. Methods raise ``HerderError``, ``ConfigError`` (400) or ``RetriableError``
(503), and nothing else.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from mm2py.api.context import PartitionState, WaitingPartition
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError
from mm2py.observability.checkpoint_ages import CheckpointAges
from mm2py.observability.metrics import FlowSample, LifeCounts, NodeSnapshot, PartitionSnapshot
from mm2py.runtime.errors import (
    STALE_CONFIGURATION,
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    ForwardError,
    HerderError,
    HerderFailedError,
    HerderTimeoutError,
    NotFoundError,
    RebalanceExpectedError,
)
from mm2py.runtime.herder.api import (
    ConnectorInfo,
    ConnectorState,
    Health,
    HerderParts,
    OffsetEntry,
    WorkState,
)
from mm2py.runtime.herder.queue import HEALTH_ANSWER_S, HEALTH_TIMEOUT_S, HerderQueue
from mm2py.runtime.herder.supervisor import Supervisor
from mm2py.runtime.herder.work_states import (
    connector_info,
    connector_state,
    plan_restart,
    with_restarting,
    work_state,
)
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.config_state import ConnectorConfig, RestartRequest, SessionKey, texts_of
from mm2py.types import FlowName, State, TargetState, TaskId, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

START_WAIT_S: Final = 5.0
"""For how long a restart waits for a connector that fails to start."""

CHANGE_S: Final = 10.0
"""How long a flow that does not run may be written for after a look at its empty group."""


class Herder:
    """Connectors as seen from one node; ``actor`` is the caller's name, for the history.

    "Leader only" and "owner only" methods raise ``ForwardError`` on every other worker. While the
    herder waits for its next start (``failure``) everything but what is answered at once raises
    ``HerderFailedError``.
    """

    def __init__(self, parts: HerderParts, *, clock: Clock) -> None:
        self._parts, self._clock = parts, clock
        self._queue = HerderQueue(clock)
        self._life = Supervisor(parts, self._queue, clock=clock)

    # ---- life

    async def run(self) -> None:
        """Run; returns after ``stop``, or where the first start was refused (``failure``)."""
        await self._life.run()

    def stop(self) -> None:
        self._life.stop()

    @property
    def failure(self) -> Mm2pyError | None:
        """Why it does not run; None while it does, and after an orderly stop."""
        return self._life.failure

    def problems(self) -> Sequence[str]:
        """What is wrong on this node now, one line each."""
        return self._life.problems()

    @property
    def not_ready(self) -> str:
        """What it waits for before it is in its group, with the cause; empty once it is."""
        return self._life.not_ready()

    @property
    def idles(self) -> str:
        """Why it does nothing now though it has not failed, its group's silence too; else empty."""
        return self._life.idles()

    async def accept_changes(self) -> None:
        """Let overrides be written for a moment while the herder does not run.

        Nothing leads the flow then, and no other worker may: its group has to be empty.
        ``HerderFailedError``: other workers are in the group, or it cannot be seen.
        """
        if self.failure is None:
            return
        membership = self._parts.membership
        # A worker stopped for its failure may be in the group on another node, and lead.
        try:
            empty = await membership.is_empty()
        except Mm2pyError:
            empty = False
        if not empty:
            raise HerderFailedError(self.failure)
        # A permit for the writers of the overrides alone: nothing else runs here.
        membership.permit.grant(self._clock.monotonic() + CHANGE_S)

    # ---- at once, from what this node has read, also during a rebalance

    @property
    def worker_id(self) -> str:
        return self._parts.node.worker_id

    @property
    def cluster_id(self) -> str:
        return self._parts.cluster_id()

    @property
    def flow(self) -> FlowName | None:
        """The flow; None on an ordinary worker."""
        return self._parts.flow

    @property
    def pending(self) -> bool:
        """Whether a change was read that connectors or tasks have not taken yet; the leader knows
        it."""
        return self._life.loop.pending

    @property
    def leads(self) -> bool:
        return self.failure is None and self._parts.membership.is_leader

    @property
    def backfills(self) -> BackfillStore | None:
        """Backfills of the flow; None on an ordinary worker."""
        return self._parts.backfills

    @property
    def configured(self) -> Mapping[str, Mapping[str, str]]:
        """Connectors' configs by file and changes, as read so far; none on an ordinary worker."""
        overrides = self._parts.overrides
        return {} if overrides is None else overrides.effective()

    def connectors(self) -> tuple[str, ...]:
        return tuple(sorted(self._parts.config.snapshot().connectors))

    def info_now(self, name: str) -> ConnectorInfo | None:
        """Return a connector as this node knows it, None where it knows none."""
        return connector_info(name, self._parts)

    def wanted_config(self, info: ConnectorInfo) -> ConnectorConfig:
        """Return a connector's config with changes that the config topic does not have yet."""
        return self.configured.get(info.name, info.config)

    def resolved_config(self, name: str) -> dict[str, str]:
        """Return a connector's config as its connector gets it, with secrets: for clients, never to
        be shown.

        Raises:
            NotFoundError: there is no such connector.
            ConfigError: a placeholder cannot be resolved now.
        """
        return self.resolved(self._configured(name))

    def resolved(self, config: ConnectorConfig) -> dict[str, str]:
        """Return a connector's config with the values of its placeholders; ``ConfigError`` where
        one has none now."""
        return self._parts.resolve(config)

    def task_config_now(self, task: TaskId) -> ConnectorConfig:
        """Return a task's config as this node knows it, empty where it knows none."""
        return self._parts.config.snapshot().task_configs.get(task, {})

    def target_now(self, name: str) -> TargetState:
        """Return the target state of a connector, as this node knows it."""
        return self._parts.config.snapshot().target(name)

    def status(self, name: str) -> ConnectorState:
        """Return a connector's states; ``NotFoundError``: ``No status found for connector c``."""
        state = connector_state(name, self._parts)
        if state is None:
            raise NotFoundError(f"No status found for connector {name}")
        return state

    def task_status(self, task: TaskId) -> WorkState:
        """Return the state of a task; ``NotFoundError``: ``No status found for task c-0``."""
        stored = self._parts.status.get(task)
        if stored is None:
            raise NotFoundError(f"No status found for task {task}")
        return work_state(stored)

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics a connector uses; ``ForbiddenError`` when tracking is off."""
        self._need_tracking()
        return tuple(sorted(self._parts.status.topics(name)))

    async def reset_topics(self, name: str) -> None:
        """Forget which topics a connector uses; ``ForbiddenError`` when that is off."""
        self._need_tracking()
        if not self._parts.settings.topic_tracking_allow_reset:
            raise ForbiddenError("Topic tracking reset is disabled.")
        self._parts.status.delete_topics(name)

    def session_key(self) -> SessionKey | None:
        """Return the key that verifies requests between workers, None while none was read."""
        return self._parts.config.snapshot().session_key

    def node_snapshot(self) -> NodeSnapshot:
        """Return lag and rates of this node's partitions, and what connectors report."""
        snapshot = self._parts.meter.node_snapshot(self._parts.node.worker_id)
        findings = (*snapshot.findings, *self._life.work.notes())
        # No task has them, so no meter of a task shows them.
        partitions = (*snapshot.partitions, *self._waiting(snapshot.at_ms))
        return replace(
            snapshot, partitions=partitions, problems=self._life.reported(), findings=findings
        )

    def sample(self) -> FlowSample:
        """Return what this node copies now, in sums."""
        return self._parts.meter.sample(self._waiting(self._clock.now_ms()))

    def _waiting(self, now_ms: int) -> Sequence[PartitionSnapshot]:
        """Return the partitions that no task has, because their copy does not exist."""
        backlog = self._life.work.backlog()
        # In the moment of a hand-over both may know a partition; the task's figures count.
        measured = {it.source for it in self._parts.meter.partitions}
        return [_waiting(tp, it, now_ms) for tp, it in backlog.items() if tp not in measured]

    @property
    def checkpoint_ages(self) -> tuple[CheckpointAges, ...]:
        """How long checkpoints of this node's tasks took."""
        return self._parts.meter.checkpoints.all()

    @property
    def life_counts(self) -> LifeCounts:
        """Rebalances, lost memberships and restarts on this node since the process started."""
        return self._parts.meter.life

    def member_urls(self) -> tuple[str, ...]:
        """Return where all members listen; leader only. ``HerderError``: no leader is known, with
        the reason."""
        self._need_running()
        membership = self._parts.membership
        if not membership.is_leader:
            url = membership.leader_url
            if url is None and self.not_ready:
                raise HerderError(f"{self.flow} {self.not_ready}", status=503)
            raise ForwardError(url)
        return membership.member_urls()

    def has_no_owner(self, task: TaskId) -> bool:
        """Whether no member has a task by the last round; False where another worker leads."""
        return self.leads and self._parts.membership.owner_url(task) is None

    async def apply_holds(self) -> None:
        """Read paused topics and partitions again and hand them to the hosts."""
        overrides = self._parts.overrides
        # Pauses need no round: they are handed to the running tasks.
        if overrides is not None:
            self._life.work.hold(overrides.held())

    async def wait_for_configs(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition`` is true, evaluated at every change of the config topic; False
        after the timeout."""
        return await self._parts.config.wait_until(condition, timeout_s)

    # ---- through the queue: 90 s, health 0.8 s, then HerderTimeoutError

    async def health(self) -> Health:
        """Return within a second whether the loop answers; at once while it waits for a cluster or
        its group.

        A loop that is busy for less than ``HEALTH_TIMEOUT_S`` is healthy: it starts or stops work
        in a rebalance.
        """
        # A cluster that is down is not this worker's fault: an unhealthy answer would have an
        # orchestrator kill it.
        if self.idles:
            return Health("starting", f"Worker {self.idles}")
        try:
            await self._queue.submit(_nothing, timeout_s=HEALTH_ANSWER_S)
        except HerderFailedError as error:
            return Health("unhealthy", error.message)
        except HerderTimeoutError:
            return self._busy()
        failed = self._life.loop.duties.problems()
        if failed and not self._parts.config.snapshot().connectors:
            return Health("unhealthy", "; ".join(f"{it}: {cause}" for it, cause in failed.items()))
        return Health("healthy", "Worker has completed startup and is ready to handle requests.")

    def _busy(self) -> Health:
        stage = self._queue.stage_summary
        if not self._life.loop.started:
            return Health("starting", f"Worker is still starting up. {stage}")
        if self._queue.waits_s < HEALTH_TIMEOUT_S:
            return Health("healthy", f"Worker is busy. {stage}")
        return Health(
            "unhealthy",
            "Worker was unable to handle this request and may be unable to handle other requests."
            f" {stage}",
        )

    async def info(self, name: str) -> ConnectorInfo:
        """Return a connector; ``NotFoundError``: ``Connector c not found``."""

        async def read() -> ConnectorInfo:
            self._need_no_rebalance()
            return self._known(name)

        return await self._queue.submit(read)

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        async def read() -> Sequence[tuple[TaskId, ConnectorConfig]]:
            self._need_no_rebalance()
            configs = self._parts.config.snapshot().task_configs
            return [(task, configs[task]) for task in self._known(name).tasks]

        return await self._queue.submit(read)

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        async def configured() -> dict[str, str]:
            self._known(name)
            return self._parts.resolve(self._configured(name))

        config = await self._queue.submit(configured)
        return await self._parts.editor(config).read(name, config)

    # ---- configs, leader only

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector; ``AlreadyExistsError``: ``Connector c already exists``."""
        # Beside the loop, as on Java's executor: a plug-in's own validation may take long.
        checked = await self._validated(name, config)

        async def change() -> ConnectorInfo:
            # In the queue, not before: leadership may change while the request waits for its turn.
            self._need_leader()
            # Of two requests for one name at once the second is refused.
            if name in self._connectors:
                raise AlreadyExistsError(f"Connector {name} already exists")
            return await self._write(name, checked, target, actor=actor)

        return await self._queue.submit(change)

    async def put_config(
        self, name: str, config: ConnectorConfig, *, actor: str
    ) -> tuple[bool, ConnectorInfo]:
        """Create a connector or replace its config, an equal one too; return whether it is new, and
        what it is now."""
        checked = await self._validated(name, config)

        async def change() -> tuple[bool, ConnectorInfo]:
            self._need_leader()
            created = name not in self._connectors
            return created, await self._write(name, checked, None, actor=actor)

        return await self._queue.submit(change)

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys of a config; None removes one."""

        async def current() -> ConnectorConfig:
            self._need_leader()
            return self.wanted_config(self._known(name))

        # KIP-477's PATCH, validated outside of the queue: merged again after a change.
        before = await self._queue.submit(current)
        while True:
            merged = texts_of({**before, **patch})
            checked = await self._validated(name, merged)

            async def change(
                before: ConnectorConfig = before, checked: ConnectorConfig = checked
            ) -> ConnectorInfo | ConnectorConfig:
                self._need_leader()
                now = self.wanted_config(self._known(name))
                return await self._write(name, checked, None, actor=actor) if now == before else now

            outcome = await self._queue.submit(change)
            if isinstance(outcome, ConnectorInfo):
                return outcome
            before = outcome  # it was changed meanwhile: merge again

    async def delete(
        self, name: str, *, actor: str, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        """Remove a connector; its positions stay. ``only_if`` is asked when its turn has come."""

        async def change() -> None:
            self._need_leader()
            if not only_if():
                return
            before = self._configured(name)
            with self._queue.stage(
                f"removing the config for connector {name} from the config topic"
            ):
                # The override first: in the other order a crash between the two would let the file
                # bring the connector back.
                if self._parts.overrides is not None:
                    await self._parts.overrides.record(name, texts_of(before), None, actor=actor)
                await self._parts.config.remove_connector(name)
            log.info("connector deleted connector=%s actor=%s", name, actor)

        await self._queue.submit(change)

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED: the target state, then a commit of no tasks.

        In this order a stop that is cut short is completed by the next leader; the other way round,
        the connector would stay STARTED without tasks.
        """

        async def change() -> None:
            self._need_known(name, "Unknown connector")
            self._need_leader()
            with self._queue.stage(f"writing 0 task configs for connector {name}"):
                # Java's order in ``stopConnector`` (KIP-875).
                await self._parts.config.put_target(name, TargetState.STOPPED)
                await self._parts.config.put_tasks(name, ())
            log.info("connector is to stop connector=%s actor=%s", name, actor)

        await self._queue.submit(change)

    # ---- target states and levels, any worker

    async def pause(self, name: str, *, actor: str) -> None:
        await self._set_target(name, TargetState.PAUSED, actor=actor)

    async def resume(self, name: str, *, actor: str) -> None:
        await self._set_target(name, TargetState.STARTED, actor=actor)

    async def set_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker."""
        self._need_running()
        await self._parts.config.put_logger_level(namespace, level)

    async def _set_target(self, name: str, target: TargetState, *, actor: str) -> None:
        self._need_running()
        self._need_known(name, "Unknown connector")
        await self._parts.config.put_target(name, target)
        log.info("connector target=%s connector=%s actor=%s", target.value, name, actor)

    # ---- restarts, of a connector's parts by the leader, of one piece of work by its owner

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Ask every worker for a restart; returns the states that the plan leads to."""

        async def change() -> ConnectorState:
            # Java's ``checkRebalanceNeeded``: 409 until the round that a change needs is over.
            self._need_current_configs()
            self._need_known(name, "Unknown connector:")
            self._need_leader()
            state = connector_state(name, self._parts)
            if state is None:
                raise NotFoundError(f"Status for connector {name} not found")
            request = RestartRequest(name, only_failed, include_tasks)
            plan = plan_restart(request, state)
            with self._queue.stage(f"writing a restart request for connector {name}"):
                await self._parts.config.put_restart(request)
            return with_restarting(state, plan)

        return await self._queue.submit(change)

    async def restart_connector(self, name: str) -> None:
        """Restart the connector instance; owner only."""

        async def change() -> None:
            self._need_current_configs()
            self._need_known(name, "Unknown connector:")
            if name not in self._life.work.running.connectors:
                raise self._owner_of(name)
            await self._life.work.restart_connector(name, self._parts.config.snapshot())

        await self._queue.submit(change)
        # Outside of the queue: a connector that starts slowly must not hold up other requests.
        if not await self._life.work.comes_up(name, START_WAIT_S):
            raise HerderError(f"Failed to start connector: {name}")

    async def restart_task(self, task: TaskId) -> None:
        """Restart one task; owner only."""

        async def change() -> None:
            self._need_current_configs()
            self._need_known(task.connector, "Unknown connector:")
            snapshot = self._parts.config.snapshot()
            if task not in snapshot.tasks(task.connector):
                raise NotFoundError(f"Unknown task: {task}")
            if task not in self._life.work.running.tasks:
                raise self._owner_of(task)
            await self._life.work.restart_tasks([task], snapshot)
            # Only what fails at once, such as a bad config; later failures are states.
            now = self._life.work.task_status().get(task)
            if now is not None and now.state is State.FAILED:
                raise HerderError(f"Failed to start task: {task}")

        await self._queue.submit(change)

    # ---- positions, leader only

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector; returns the answer's message."""

        async def change() -> str:
            config = await self._stopped(name)
            with self._queue.stage(f"modifying offsets for connector {name}"):
                return await self._parts.editor(config).alter(name, config, entries)

        return await self._queue.submit(change)

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector; returns the answer's message."""

        async def change() -> str:
            config = await self._stopped(name)
            with self._queue.stage(f"modifying offsets for connector {name}"):
                return await self._parts.editor(config).reset(name, config)

        return await self._queue.submit(change)

    async def _stopped(self, name: str) -> dict[str, str]:
        """Return the resolved config of a connector whose positions may be changed now."""
        self._need_current_configs()
        self._need_leader()
        # KIP-875: a resume that was just written must be seen before positions are changed.
        await self._parts.config.refresh(self._parts.settings.worker_sync_timeout_ms / 1000)
        config, snapshot = self._configured(name), self._parts.config.snapshot()
        # Without tasks too: STOPPED is written before the empty list of tasks.
        if snapshot.target(name) is not TargetState.STOPPED or snapshot.task_counts.get(name, 0):
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. "
                "This can be done for the specified connector by issuing a 'PUT' request to the "
                f"'/connectors/{name}/stop' endpoint"
            )
        if self._parts.settings.exactly_once:
            # A task that still runs somewhere must not commit after the change.
            count = snapshot.task_count_records.get(name, 0)
            await self._life.fencing.fence_tasks(name, count)
        return self._parts.resolve(config)

    # ---- what all of them need

    @property
    def _connectors(self) -> Mapping[str, ConnectorConfig]:
        return self._parts.config.snapshot().connectors

    async def _validated(self, name: str, config: ConnectorConfig) -> ConnectorConfig:
        # Java's ``ConnectorsResource.checkAndPutConnectorConfigName``.
        written = config.get("name", name)
        if written != name:
            raise BadRequestError(
                f"Connector name configuration ({written}) doesn't match connector name in the URL"
                f" ({name})"
            )
        named = {**config, "name": name}
        refusal = (await self._parts.node.validator.validate(named)).refusal()
        if refusal is not None:
            raise BadRequestError(refusal)
        return named

    async def _write(
        self, name: str, wanted: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        before = self._connectors.get(name)
        if self._parts.guard is not None:
            # Circles are refused before anything is written (invariant 9).
            self._parts.guard(self._connectors, {**self._connectors, name: wanted})
        with self._queue.stage(f"writing a config for connector {name} to the config topic"):
            # First, as in ``delete``: what the next leader derives is the new config.
            if self._parts.overrides is not None:
                await self._parts.overrides.record(
                    name,
                    None if before is None else texts_of(before),
                    texts_of(wanted),
                    actor=actor,
                )
            await self._parts.config.put_connector(name, wanted, target)
        log.info("config written connector=%s new=%s actor=%s", name, before is None, actor)
        info = connector_info(name, self._parts)
        assert info is not None, "it was read back"
        return info

    def _need_leader(self) -> None:
        # Without a URL the caller answers 409 (rebalance), as Java does while no leader is known.
        if not self._parts.membership.permit.valid:
            raise ForwardError(None)  # another worker may lead by now
        if not self._parts.membership.is_leader:
            raise ForwardError(self._parts.membership.leader_url)

    def _need_running(self) -> None:
        if self.failure is not None:
            raise HerderFailedError(self.failure)

    def _need_no_rebalance(self) -> None:
        if self._life.loop.rebalance_expected:
            raise RebalanceExpectedError

    def _need_current_configs(self) -> None:
        if self._life.loop.rebalance_expected:
            raise ConflictError(STALE_CONFIGURATION)

    def _need_known(self, name: str, refusal: str) -> None:
        if name not in self._connectors:
            raise NotFoundError(f"{refusal} {name}")

    def _configured(self, name: str) -> ConnectorConfig:
        config = self._connectors.get(name)
        if config is None:
            raise NotFoundError(f"Connector {name} not found")
        return config

    def _owner_of(self, work: str | TaskId) -> ForwardError:
        """Return where a request for work of another worker goes: the leader knows its owner."""
        membership = self._parts.membership
        # In two steps as in Java: to the leader, which alone knows the owner, then there.
        url = membership.owner_url(work) if membership.is_leader else membership.leader_url
        return ForwardError(url)

    def _known(self, name: str) -> ConnectorInfo:
        info = connector_info(name, self._parts)
        if info is None:
            raise NotFoundError(f"Connector {name} not found")
        return info

    def _need_tracking(self) -> None:
        if not self._parts.settings.topic_tracking_enable:
            raise ForbiddenError("Topic tracking is disabled.")


async def _nothing() -> None:
    return


def _waiting(source: TopicPartition, waiting: WaitingPartition, now_ms: int) -> PartitionSnapshot:
    return PartitionSnapshot.unmeasured(
        source,
        state=PartitionState.HELD,
        cause=waiting.cause,
        lag_records=waiting.lag_records,
        lag_ms=max(0, now_ms - waiting.oldest_ms) if waiting.oldest_ms >= 0 else 0,
    )
