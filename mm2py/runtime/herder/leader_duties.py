"""Duties of a group's leader besides assigning work: what it writes to the config topic by itself.

Flow: a round -> ``LeaderDuties.enter`` -> states of deleted work become tombstones; a new leader
first writes the configs that differ from file and overrides, so that no connector starts with an
older one, and ``unwritten`` keeps the group's tasks from that too. Session keys and later changes
run in the queue. A failed write fails no flow: the stored configs stay in force, and ``problems``
names the cause. Connector -> ``TaskPublication.publish`` -> compared with what is stored -> commit
record -> every worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, final

from mm2py.clock import Clock, wait_or_stop
from mm2py.config.class_names import COPY_NAMES
from mm2py.config.providers import placeholders
from mm2py.errors import ConfigError, FatalServerError, Mm2pyError, RetriableError
from mm2py.observability.logging import cause_text
from mm2py.runtime.group.membership import Round
from mm2py.runtime.group.request_signing import new_session_key, rotation_due
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.herder.task_forms import TaskForms, parted
from mm2py.storage.config_state import ConfigSnapshot, ConnectorConfig, SessionKey
from mm2py.storage.status_records import StoredStatus
from mm2py.types import State, TargetState, TaskId

log = logging.getLogger(__name__)


RETRY_S: Final = 1.0
COPIERS: Final = frozenset(COPY_NAMES)
_CLAIM: Final = "the config topic"
SHORTEST_KEY_LIFE_S: Final = 1.0


@final
class LeaderDuties:
    """Duties of one herder; idle while another worker leads."""

    def __init__(self, parts: HerderParts, queue: HerderQueue, *, clock: Clock) -> None:
        self._parts, self._queue, self._clock = parts, queue, clock
        self._leads = False
        self._caught_up = False
        """This leader has read what the former one changed last."""
        self._planned: set[str] = set()
        self._timed: SessionKey | None = None
        self._failed: dict[str, Mm2pyError] = {}

    def problems(self) -> Mapping[str, str]:
        """What this leader could not write, with the cause."""
        return {f"{what} cannot be written": str(cause) for what, cause in self._failed.items()}

    async def enter(self, outcome: Round, snapshot: ConfigSnapshot) -> None:
        """Note which worker leads after a round, and do the leader's duties; this may write to the
        config topic."""
        won = outcome.leader and not self._leads
        self._leads = outcome.leader
        if not outcome.leader:
            self._timed = None
            return
        # A new leader: the config topic may hold less than the former one was about to write.
        if won:
            self._caught_up = False
            # KIP-618: with exactly-once support the config topic is written transactionally, and
            # claiming fences the former leader.
            await self._claim()
        elif not self._may_write():
            self._plan(_CLAIM, self._claim_again)
        self.forget_states(snapshot)
        if not self._parts.membership.solo:
            # With every protocol: Java's older ones sign nothing, our workers do.
            self._plan("session key", self._rotate_key)
        if won:
            log.info("this worker leads the group generation=%d", outcome.generation)
            await self._carry_out("derived configs", self._write_derived)

    def unwritten(self, snapshot: ConfigSnapshot) -> bool:
        """Return whether tasks are stored that file and overrides changed, and this worker has not
        tried to write that.

        It tries once before work is dealt (``enter``): where it may not write, the group works with
        what is stored.
        """
        overrides = self._parts.overrides
        # ``enter`` has written or tried: asking again would refuse rounds without an ACL.
        if self._leads or overrides is None:
            return False
        derived = overrides.effective()
        # Only connectors with tasks: else nothing could start with an older config.
        return any(
            _is_former_copier(name, derived) or dict(derived.get(name, stored)) != dict(stored)
            for name, stored in snapshot.connectors.items()
            if snapshot.tasks(name)
        )

    def _may_write(self) -> bool:
        privileged = self._parts.config.privileged
        return privileged is None or privileged.claimed

    async def _claim(self) -> None:
        """Fence the previous leader; a missing ACL fails the flow, as any wrong configuration."""
        if self._may_write():
            return
        # Java backs off and stays in the group as well (``fencedFromConfigTopic``).
        try:
            await self._claim_again()
        except RetriableError as error:
            self._failed[_CLAIM] = error
            self._plan(_CLAIM, self._claim_again, delay_s=RETRY_S)
        except FatalServerError as error:
            raise ConfigError(error.message, remedy=error.remedy) from error

    async def _claim_again(self) -> None:
        privileged = self._parts.config.privileged
        # Asked again after the wait: a claim without leadership would fence the leader.
        if privileged is not None and not privileged.claimed and self._parts.membership.is_leader:
            with self._queue.stage("claiming the right to write to the config topic"):
                await privileged.claim()

    def compare(self, snapshot: ConfigSnapshot) -> None:
        """As the leader, complete interrupted stops: STOPPED was written, but not the commit of
        zero tasks that follows it."""
        if self._leads and not self._may_write():
            self._plan(_CLAIM, self._claim_again)
        # KIP-875: STOPPED and the empty task list are two records; a crash between them leaves
        # tasks without a connector.
        if self._leads and _unfinished_stops(snapshot):
            self._plan("tasks of stopped connectors", self._finish_stops)

    def resign(self) -> None:
        """The membership is over: the next round decides anew."""
        self._leads = False
        self._timed = None
        self._failed.clear()

    def derive_again(self) -> None:
        """Write what file and overrides define now, where the led topic differs."""
        # Other workers read the change from the config topic.
        if self._leads:
            self._plan("derived configs", self._write_derived)

    def forget_states(self, snapshot: ConfigSnapshot) -> None:
        """As the leader, remove states of connectors and tasks that are not configured."""
        if not self._leads:
            return
        status = self._parts.status
        for name in status.connectors():
            # As Java's leader after a round (``updateDeletedConnectorStatus``,
            # ``updateDeletedTaskStatus``): the worker that ran the work may be gone.
            configured = set(snapshot.tasks(name)) if name in snapshot.connectors else set[TaskId]()
            for number in status.tasks(name):
                task = TaskId(name, number)
                if task not in configured:
                    self._forget(task)
            if name not in snapshot.connectors:
                self._forget(name)

    def _forget(self, work: str | TaskId) -> None:
        parts = self._parts
        gone = StoredStatus(
            state=State.DESTROYED,
            worker_id=parts.node.worker_id,
            generation=parts.membership.generation,
        )
        parts.status.put(work, gone)

    async def _write_derived(self) -> None:
        overrides, config = self._parts.overrides, self._parts.config
        if overrides is None:
            return
        # Overrides that the former leader accepted just before it left: without this read they
        # would be overwritten by the file.
        if not self._caught_up:
            await overrides.refresh(self._parts.settings.worker_sync_timeout_ms / 1000)
            self._caught_up = True
        await overrides.restore()
        for name, derived in overrides.effective().items():
            stored, what = config.snapshot().connectors.get(name), f"config of connector {name}"
            # A record that says the same would restart the connector on every worker.
            if stored is not None and dict(stored) == dict(derived):
                self._failed.pop(what, None)
                continue
            # Each write awaits the broker, and leadership may go meanwhile.
            if not self._parts.membership.is_leader:
                log.info("leadership was lost meanwhile, the stored configs stay as they are")
                return
            try:
                with self._queue.stage(
                    f"writing a config for connector {name} to the config topic"
                ):
                    await config.put_connector(name, derived, self._target_of_former(name))
            # The whole duty is retried: the other connectors' configs are written then as well.
            except RetriableError:
                raise
            except Mm2pyError as error:
                self._refused(what, error)
                continue
            self._failed.pop(what, None)
            log.info(
                "config written as file and overrides define it connector=%s new=%s",
                name,
                stored is None,
            )

        # Last: the one in its place comes first, or the flow would show none.
        await self._remove_former_copier(overrides.effective())

    def _target_of_former(self, name: str) -> TargetState | None:
        """Return that of the connector that another one replaces: a stopped flow stays stopped."""
        snapshot = self._parts.config.snapshot()
        if name not in COPIERS or name in snapshot.connectors:
            return None
        # The target record follows the connector's name, so a new name would start where the former
        # one was paused or stopped.
        former = COPIERS & snapshot.connectors.keys()
        targets = map(snapshot.target, former)
        return next((it for it in targets if it is not TargetState.STARTED), None)

    async def _remove_former_copier(self, derived: Mapping[str, object]) -> None:
        """Remove the former copier after a change of ``copy.connector``: both would copy."""
        config = self._parts.config
        for name in COPIERS & config.snapshot().connectors.keys():
            if not _is_former_copier(name, derived):
                continue
            with self._queue.stage(f"removing connector {name} from the config topic"):
                await config.remove_connector(name)
            log.info("connector removed, another one copies the flow now connector=%s", name)

    async def _finish_stops(self) -> None:
        for name in _unfinished_stops(self._parts.config.snapshot()):
            log.info("a stop is completed, its tasks are removed connector=%s", name)
            await self._parts.config.put_tasks(name, ())

    async def _rotate_key(self) -> None:
        settings, config = self._parts.settings, self._parts.config
        algorithm = settings.inter_worker_key_generation_algorithm
        ttl_ms, now_ms = settings.inter_worker_key_ttl_ms, self._clock.now_ms()
        key = config.snapshot().session_key
        # The timer may ring after leadership has gone.
        if not self._parts.membership.is_leader:
            return
        if key is None or rotation_due(key, now_ms, ttl_ms, algorithm):
            key = new_session_key(now_ms, algorithm, key)
            with self._queue.stage("writing a new session key to the config topic"):
                await config.put_session_key(key)
        if self._timed == key:
            return  # one timer per key, whatever the number of rounds
        self._timed = key
        left_s = (key.created_ms + ttl_ms - self._clock.now_ms()) / 1000
        self._plan("session key", self._rotate_key, delay_s=max(left_s, SHORTEST_KEY_LIFE_S))

    def _plan(self, what: str, duty: Callable[[], Awaitable[None]], *, delay_s: float = 0) -> None:
        """Queue a duty, once however often it is requested."""
        now = delay_s <= 0
        # Delayed ones are not counted: the retry of a failed duty must not keep a new request out.
        if now and what in self._planned:
            return
        if now:
            self._planned.add(what)

        async def run() -> None:
            # Before the duty: what is asked for while it runs is done again.
            self._planned.discard(what)
            if self._leads:
                await self._carry_out(what, duty)

        self._queue.post(run, delay_s=delay_s)

    async def _carry_out(self, what: str, duty: Callable[[], Awaitable[None]]) -> None:
        """Do a duty; retry what cannot be written now, and report what was rejected."""
        try:
            await duty()
        except RetriableError as error:
            self._failed[what] = error
            log.warning("%s cannot be written now, tried again cause=%s", what, error)
            self._plan(what, duty, delay_s=RETRY_S)
        except Mm2pyError as error:
            self._refused(what, error)
        else:
            self._failed.pop(what, None)

    def _refused(self, what: str, error: Mm2pyError) -> None:
        # Each turn tries again; the log gets each cause once.
        if str(self._failed.get(what)) != str(error):
            log.error("%s cannot be written, what is stored stays cause=%s", what, error)
        self._failed[what] = error


def _is_former_copier(name: str, derived: Mapping[str, object]) -> bool:
    return name in COPIERS - derived.keys() and bool(derived.keys() & COPIERS)


def _unfinished_stops(snapshot: ConfigSnapshot) -> Sequence[str]:
    return [
        name
        for name in snapshot.connectors
        if snapshot.target(name) is TargetState.STOPPED and snapshot.task_counts.get(name, 0)
    ]


# ---- task configs of connectors that run on the leader


LEADER_WAIT_S: Final = 10.0
HAND_OVER_S: Final = 5.0
"""How long a group's last writes may take: an unreachable target must not delay a stop."""

TaskConfigs = Sequence[Mapping[str, str]]


@final
class TaskPublication:
    """Publishes the task configs of connectors that run on this node, which leads."""

    def __init__(self, parts: HerderParts, queue: HerderQueue, *, clock: Clock) -> None:
        self._parts = parts
        self._queue = queue
        self._clock = clock
        self._forms = TaskForms(parts.node.plugins, parts.cluster_ids)
        self._leader_changed = asyncio.Event()
        self._published: dict[str, tuple[ConnectorConfig, Sequence[Mapping[str, str]]]] = {}
        """Per connector: its raw config, and the task configs that are in force since."""

    def look_again(self) -> None:
        """Re-check leadership after a round."""
        self._leader_changed.set()

    def forget(self, name: str) -> None:
        """Forget what a connector published: a stop removes its task configs."""
        self._published.pop(name, None)

    def overwritten(self, name: str, snapshot: ConfigSnapshot) -> bool:
        """Return whether other task configs are in force than those published here last."""
        made_of, configs = self._published.get(name, ({}, ()))
        # A connector whose config has changed since is about to publish again by itself.
        return _current(name, made_of, snapshot) and self._differs(name, configs, snapshot)

    def is_due(self, name: str, snapshot: ConfigSnapshot) -> bool:
        """Return whether a connector that is to run has published nothing of its config yet."""
        made_of, _ = self._published.get(name, ({}, ()))
        started = snapshot.target(name) is TargetState.STARTED
        return started and not _current(name, made_of, snapshot)

    async def publish(
        self, name: str, made_of: ConnectorConfig, configs: Sequence[Mapping[str, str]]
    ) -> None:
        """Bring task configs into force if they differ from those that are.

        ``made_of`` is the raw config of the connector that made them: when another one is in force
        by now, or the connector is not to run, nothing is written.
        """
        parts = self._parts
        # Until the end of this call nothing counts as published: a comparison in between would
        # repair what is just being written.
        self._published.pop(name, None)
        # A connector starts while the round is being completed; Java forwards its task configs to
        # the leader over REST instead.
        await self._until_led()
        snapshot = parts.config.snapshot()
        if not _current(name, made_of, snapshot):
            return
        # Java's ``reverseTransform``.
        completed = [self._completed(made_of, config) for config in configs]
        if self._differs(name, completed, snapshot):
            # Through the queue, in order with the changes of REST.
            await self._queue.submit(partial(self._store, name, made_of, completed))
        self._published[name] = made_of, completed

    async def _store(
        self, name: str, made_of: ConnectorConfig, configs: Sequence[Mapping[str, str]]
    ) -> None:
        """Write task configs; runs in the queue, in order with the leader's other writes."""
        parts, snapshot = self._parts, self._parts.config.snapshot()
        # Looked at again: the queue may have run a deletion, a stop or the same publication first.
        if not _current(name, made_of, snapshot) or not self._differs(name, configs, snapshot):
            return
        if not (parts.membership.permit.valid and parts.membership.is_leader):
            raise RetriableError(
                f"connector {name} runs on a worker that does not lead the group, only the leader "
                "writes task configs",
                remedy="the next rebalance moves it; bring all workers to one version if it does "
                "not",
            )
        what = f"writing {len(configs)} task configs for connector {name} to the config topic"
        with self._queue.stage(what):
            await parts.config.put_tasks(name, configs)

    @property
    def may_hand_over(self) -> bool:
        """Whether this worker may write the config topic of its group, if it is its last one."""
        membership, privileged = self._parts.membership, self._parts.config.privileged
        return (
            self._forms.are_two
            and membership.permit.valid
            and membership.is_leader
            and (privileged is None or privileged.claimed)
        )

    async def is_last(self) -> bool:
        """Return whether no other worker is in the group: the last plan may have one that left
        within the heartbeat since."""
        membership = self._parts.membership
        # One member in the last plan: no request needed.
        if not self.may_hand_over or len(membership.member_urls()) == 1:
            return self.may_hand_over
        try:
            async with asyncio.timeout(HAND_OVER_S):
                return await membership.is_alone()
        except (Mm2pyError, TimeoutError) as error:
            log.info("whether other workers run is not known cause=%s", cause_text(error))
            return False

    async def hand_over(self, dealt: Mapping[str, tuple[ConnectorConfig, TaskConfigs]]) -> None:
        """Leave the task configs that Java's connectors would make at their start, when no task
        runs in this group any more.

        A worker that joins meanwhile waits for a round, and reads this commit before it is assigned
        anything.
        """
        config, loop = self._parts.config, asyncio.get_running_loop()
        until_s = loop.time() + HAND_OVER_S
        for name, (made_of, configs) in dealt.items():
            snapshot = config.snapshot()
            if (
                # In each turn: the permit runs out, another leader may write then.
                not self.may_hand_over
                or not _current(name, made_of, snapshot)
                or loop.time() >= until_s
            ):
                continue
            plain = [self._completed(made_of, it) for it in configs]
            parts = list(map(parted, plain))
            records, beside = [it for it, _ in parts], [it for _, it in parts]
            told = tuple(beside) if any(beside) else ()
            stored = [snapshot.task_configs.get(task) for task in snapshot.tasks(name)]
            in_force = [{**of_java, **ours} for of_java, ours in parts]
            # Nothing to write: another record would make Java restart its tasks.
            is_there = stored == in_force and tuple(snapshot.beside.get(name, ())) == told
            if is_there and name not in snapshot.unfinished:
                continue
            try:
                async with asyncio.timeout_at(until_s):
                    await config.put_tasks(name, records, told)
            except (Mm2pyError, TimeoutError) as error:
                log.info(
                    "task configs stay as they are, a Java worker would start its tasks twice "
                    "connector=%s cause=%s",
                    name,
                    cause_text(error),
                )

    async def _until_led(self) -> None:
        """Wait for a round that makes this worker the leader, or fail later: a rebalance in
        progress is no error."""
        until_s = self._clock.monotonic() + LEADER_WAIT_S
        while (
            not self._parts.membership.is_leader
            and (left_s := until_s - self._clock.monotonic()) > 0
        ):
            # Cleared before the wait, set by the turn after each round.
            self._leader_changed.clear()
            await wait_or_stop(self._clock, left_s, self._leader_changed)

    def _differs(self, name: str, configs: TaskConfigs, snapshot: ConfigSnapshot) -> bool:
        """Whether tasks, or their connector config, differ from the committed ones."""
        stored = [snapshot.task_configs.get(task) for task in snapshot.tasks(name)]
        # A commit that is incomplete has to be written again, whatever its parts say.
        broken = snapshot.inconsistent | snapshot.unfinished
        if name in broken or len(stored) != len(configs):
            return True
        # An empty list that was never committed is no change.
        if name not in snapshot.generations:  # nothing was ever committed
            return bool(configs)
        # Converters and other keys of the framework reach tasks by the connector config alone.
        raw = snapshot.connectors.get(name, {})
        # Workers of earlier builds run what is published: only where a commit starts every task
        # again, Java's form stays in force.
        form_counts = not self._parts.settings.exactly_once
        # KAFKA-9228: as in Java the connector config that the tasks were last made of counts too
        # (``appliedConnectorConfig``).
        return snapshot.applied.get(name) != raw or not all(
            before == config or (not form_counts and self._forms.same(before, config, raw))
            for before, config in zip(stored, configs, strict=True)
        )

    def _completed(self, raw: ConnectorConfig, config: Mapping[str, str]) -> dict[str, str]:
        """Add Java's task class, and the placeholders of resolved secrets."""
        whole = dict(config)
        if "task.class" not in whole:
            task_class = self._task_class(raw)
            if task_class is not None:
                whole["task.class"] = task_class
        # Java's ``reverseTransform``: a task config that repeats a key of the connector gets the
        # placeholder, not the resolved secret.
        for key, text in raw.items():
            if key in whole and text is not None and placeholders(text):
                whole[key] = text
        return whole

    def _task_class(self, raw: ConnectorConfig) -> str | None:
        try:
            java_class = self._parts.node.plugins.find(raw.get("connector.class") or "").java_class
        except ConfigError:
            return None
        # MirrorSourceConnector -> MirrorSourceTask: Java instantiates ``task.class``.
        stem, separator, rest = java_class.rpartition("Connector")
        return f"{stem}Task{rest}" if separator else java_class


def _current(name: str, made_of: ConnectorConfig, snapshot: ConfigSnapshot) -> bool:
    stored = snapshot.connectors.get(name)
    return stored == made_of and snapshot.target(name) is TargetState.STARTED
