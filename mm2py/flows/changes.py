"""Every change of a flow over ``/flows``: creation, properties, pauses, states, restarts, rollback,
deletion.

Flow: request -> ``FlowChange`` (an edit of what is in force, and what the herder has to do) ->
``_apply``: every check -> one revision in ``mm2py-flows`` (leader only: ``ForwardError`` elsewhere)
-> in force in the config topic. A refused change and a dry run have written nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

from mm2py.config.class_names import COPY_NAMES
from mm2py.errors import Mm2pyError, RequestTimedOutError
from mm2py.flows.edits import Patches, created, deleted, nothing_held, patched, without_topic
from mm2py.flows.graph import FlowNode, chosen, copies, source_configs
from mm2py.flows.patch_rules import PatchRules
from mm2py.flows.service import FlowServiceParts
from mm2py.flows.states import (
    FlowWork,
    assigned_tasks,
    picture_at,
    read_flow,
    state_name,
    unfinished_job,
)
from mm2py.flows.view_models import ChangeResult, TopicsChange
from mm2py.flows.views import change_view, held_name
from mm2py.mirror.flow_overrides import Change, flows_topic, state_key
from mm2py.mirror.flow_state import FlowPicture, enabled
from mm2py.runtime.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForwardError,
    HerderError,
    NotFoundError,
    PreconditionFailedError,
    RebalanceExpectedError,
)
from mm2py.runtime.herder.api import WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.flow_overrides_store import Edit, FlowOverridesStore, held_edit
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.types import ClusterAlias, FlowName, State, TargetState, TaskId, TopicPartition

APPLIED_S: Final = 30.0
"""How long the leader may take to write what follows from a change into the config topic."""

LISTED_S: Final = 5.0
"""How long the source may take to list its topics for a dry run."""

STORED_S: Final = 15.0
"""How long both clusters of a flow that does not run here may take to answer."""

MOST_NAMES: Final = 100
"""Names of topics that begin or end to be copied at most, each."""

_NO_COPY: Final = {"enabled": "false"}
_WANTED: Final = {
    "pause": TargetState.PAUSED,
    "resume": TargetState.STARTED,
    "stop": TargetState.STOPPED,
}

Elsewhere = Callable[[ForwardError, TaskId], Awaitable[None]]
"""Has the worker that owns a task restart it."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """Which flow changes, for whom; ``revision`` is the one that must be in force (If-Match)."""

    flow: FlowName
    actor: str
    dry_run: bool
    revision: int | None = None


def _unchanged(now: FlowPicture) -> FlowPicture:
    return now


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """What the herder has to do; the states it changes are kept in the history when it is done."""

    states: Sequence[Change]
    run: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChange:
    """One change: its words in the history, and the edit; ``steps`` (None: not about states) are
    done before it."""

    action: str
    target: str
    edit: Edit = _unchanged
    steps: Sequence[ChangeStep] | None = None

    @property
    def states(self) -> Sequence[Change]:
        return [state for step in self.steps or () for state in step.states]


MakeChange = Callable[[FlowNode], Awaitable[FlowChange]]
"""Makes the change of a flow as it is when its turn has come."""


@final
class FlowChanges:
    """Changes the flows of this process; of each flow one at a time."""

    def __init__(self, parts: FlowServiceParts) -> None:
        self._parts, self._rules = parts, PatchRules(parts)

    def _alone(self, flow: FlowName) -> asyncio.Lock:
        """Return the lock of a flow's changes, here and over Connect's paths.

        Others do not wait: a cluster that does not answer holds up the flows to it alone. That two
        changes close no circle together is seen to by ``CircleGuard.under_way``.
        """
        return self._parts.changing.setdefault(flow, asyncio.Lock())

    # ---- flows that come and go

    def pair(self, source: str, target: str) -> FlowName:
        """Return the flow between two clusters; ``BadRequestError``: this worker knows no such
        pair."""
        flow = FlowName(ClusterAlias(source), ClusterAlias(target))
        if flow not in self._parts.fleet.pairs:
            pairs = ", ".join(sorted(map(str, self._parts.fleet.pairs)))
            raise BadRequestError(
                f"No flow {flow} can run here: clusters come from the file; flows of this worker "
                f"may be {pairs}"
            )
        return flow

    async def create(
        self, request: ChangeRequest, patches: Patches, opened: Callable[[Herder], None]
    ) -> ChangeResult:
        """Make a flow, or let one copy that sends only heartbeats; ``opened`` gets its herder.

        Raises:
            AlreadyExistsError: it copies already.
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
            ConfigError: a value cannot be used.
            RetriableError: a cluster is unreachable; nothing was written.
        """
        flow, fleet = request.flow, self._parts.fleet
        if flow not in fleet.nodes:
            # Nothing may be started for what is refused.
            draft = await self._draft(flow)
            change = self._creation(flow, draft, patches)
            planned = await self._checked(request, draft, change)
            if request.dry_run:
                return self._result(request, change, None, planned)
        node = await fleet.open(flow)
        opened(node.herder)
        async with self._alone(flow):
            # After the lock: leadership may have gone while another change was made.
            _need_leader(node)
            steps = [  # its heartbeats may have been paused
                _to_state(node.herder, name, "resume", request.actor)
                for name in node.herder.connectors()
            ]
            # Planned again: another worker may have created it since the draft was read.
            change = replace(self._creation(flow, node.overrides, patches), steps=steps)
            return await self._apply(request, node, change)

    async def delete(self, request: ChangeRequest) -> ChangeResult:
        """Delete a flow; its connectors go, positions stay. ``ConflictError``: lanes of a backfill
        copy for it."""
        edit = deleted(self._parts.fleet.file(request.flow))

        async def plan(node: FlowNode) -> FlowChange:
            job = unfinished_job(node.herder)
            if job is not None:
                raise ConflictError(
                    f"{job.kind.value.lower()} {job.id} is {job.state.value}: cancel a backfill "
                    "first, end a stream with SIGTERM"
                )
            return FlowChange(action="delete", target=str(request.flow), edit=edit)

        return await self._turn(request, plan)

    # ---- what flows copy

    async def patch(self, request: ChangeRequest, patches: Patches) -> ChangeResult:
        """Change properties of connectors; all of it is checked before any of it is written.

        Raises:
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
            ConfigError: a value cannot be used.
        """

        async def plan(node: FlowNode) -> FlowChange:
            given = self._rules.allowed(
                request.flow, node.overrides, node.overrides.state.picture(), patches
            )
            target = next(iter(given)) if len(given) == 1 else str(request.flow)
            edit = patched(given, self._parts.fleet.file(request.flow))
            return FlowChange(action="change", target=target, edit=edit)

        return await self._turn(request, plan)

    async def remove_topic(self, request: ChangeRequest, topic: str) -> ChangeResult:
        """Take one source topic out of a flow: from ``topics``, or into ``topics.exclude``.
        ``NotFoundError``: the flow does not copy it."""

        async def plan(node: FlowNode) -> FlowChange:
            config = self._source(request.flow, node)[1]
            resolve = node.herder.resolved
            _need_copied(request.flow, resolve(config), topic)
            patch = without_topic(request.flow, config, topic, resolve)
            now, file = node.overrides.state.picture(), self._parts.fleet.file(request.flow)
            change = patched(self._rules.of_all(request.flow, now, config, patch), file)
            # Its own pause goes with it: added again later, the topic would begin paused.
            freed = held_edit(TopicPartition(topic, -1), paused=False)
            return FlowChange(
                action="remove-topic", target=topic, edit=lambda now: change(freed(now))
            )

        return await self._turn(request, plan)

    async def rollback(self, request: ChangeRequest, revision: int) -> ChangeResult:
        """Make config, pauses and connectors what they were after a revision; 0 is the file.

        Raises:
            NotFoundError: the history does not reach that revision.
            BadRequestError: there was no such flow then.
        """

        async def plan(node: FlowNode) -> FlowChange:
            state = node.overrides.state
            then = picture_at(request.flow, state, revision)
            if not state.is_present(then.presence):
                raise BadRequestError(
                    f"Flow {request.flow} did not exist at revision {revision}; delete it instead"
                )
            self._rules.check_return(request.flow, state.picture(), then)

            def edit(_now: FlowPicture) -> FlowPicture:
                return picture_at(request.flow, state, revision)

            return FlowChange(action="rollback", target=f"revision {revision}", edit=edit)

        return await self._turn(request, plan)

    # ---- whether they do

    async def set_state(
        self, request: ChangeRequest, action: str, *, all_topics: bool = False
    ) -> ChangeResult:
        """Pause, resume or stop every connector of a flow; ``all_topics`` ends pauses of parts."""

        async def plan(node: FlowNode) -> FlowChange:
            return FlowChange(
                action=action,
                target=str(request.flow),
                edit=nothing_held if all_topics else _unchanged,
                steps=[
                    _to_state(node.herder, it.name, action, request.actor)
                    for it in read_flow(node.herder).connectors
                ],
            )

        return await self._turn(request, plan)

    async def hold(self, request: ChangeRequest, part: TopicPartition, action: str) -> ChangeResult:
        """Pause, stop or resume one source topic (partition -1) or partition, and no other.
        ``NotFoundError``: the flow does not copy the topic, or it has no such partition."""
        not_there = list[str]()

        async def plan(node: FlowNode) -> FlowChange:
            held = node.overrides.held()
            if action == "resume" and part not in held and part._replace(partition=-1) in held:
                raise BadRequestError(
                    f"Partition {part} is paused with its whole topic; resume topic {part.topic}"
                )
            # What is paused may be gone by now; any other name may be misspelt.
            if action != "resume" or not any(it.topic == part.topic for it in held):
                name, config = self._source(request.flow, node)
                _need_copied(request.flow, node.herder.resolved(config), part.topic)
                if not await _has(node.herder, name, part):
                    not_there.append(part.topic)
            edit = held_edit(part, paused=action != "resume")
            return FlowChange(action=action, target=held_name(part), edit=edit)

        result = await self._turn(request, plan)
        return result.model_copy(update={"not_there": tuple(not_there)})

    async def restart(
        self,
        request: ChangeRequest,
        elsewhere: Elsewhere,
        *,
        only_failed: bool,
        stuck: Collection[str] = (),
    ) -> ChangeResult:
        """Restart connectors and tasks of a flow, or those that failed and those that are
        ``stuck``: a partition of them failed.

        Raises:
            ConflictError: all of it is stopped, nothing would restart.
        """

        async def plan(node: FlowNode) -> FlowChange:
            work = read_flow(node.herder)
            stopped = [it for it in work.connectors if state_name(it.state) == State.STOPPED]
            if stopped and len(stopped) == len(work.connectors):
                raise ConflictError(f"Flow {request.flow} is STOPPED; resume it instead")
            live = [it for it in work.connectors if it.state is not None and it not in stopped]
            steps = [
                ChangeStep(
                    _restarts(FlowWork([it]).works(), only_failed=only_failed),
                    partial(
                        node.herder.restart, it.name, only_failed=only_failed, include_tasks=True
                    ),
                )
                for it in live
            ]
            # A task whose partition failed is RUNNING: Connect's `onlyFailed` would pass it over.
            steps += [
                _task_restart(node.herder, task, state, elsewhere)
                for it in live
                for task, state in it.tasks.items()
                if only_failed and str(task) in stuck and state_name(state) != State.FAILED
            ]
            return FlowChange(action="restart", target=str(request.flow), steps=steps)

        return await self._turn(request, plan)

    async def restart_part(
        self,
        request: ChangeRequest,
        part: TopicPartition,
        elsewhere: Elsewhere,
        *,
        only_failed: bool,
    ) -> ChangeResult:
        """Restart the tasks that have a source topic (partition -1) or partition.

        Raises:
            NotFoundError: no task has it.
            ConflictError: the tasks are about to change.
        """

        async def plan(node: FlowNode) -> FlowChange:
            herder = node.herder
            name, _ = self._source(request.flow, node)
            try:
                assigned = await assigned_tasks(herder, name)
            except RebalanceExpectedError as error:
                raise ConflictError(error.message) from error
            tasks = {
                task
                for it, task in assigned.items()
                if it == part or (part.partition < 0 and it.topic == part.topic)
            }
            if not tasks:
                raise NotFoundError(f"No task of flow {request.flow} has {held_name(part)}")
            works = dict(read_flow(herder).works())
            steps = [
                _task_restart(herder, task, works.get(str(task)), elsewhere)
                for task in sorted(tasks, key=str)
                if not only_failed or state_name(works.get(str(task))) == State.FAILED
            ]
            return FlowChange(action="restart", target=held_name(part), steps=steps)

        return await self._turn(request, plan)

    # ---- one way for all of them

    async def _turn(self, request: ChangeRequest, plan: MakeChange) -> ChangeResult:
        await self._take_failed(request.flow)
        self._led(request.flow)  # others are not held up for what is another worker's
        async with self._alone(request.flow):
            node = self._led(request.flow)  # it may have been deleted meanwhile
            change = await plan(node)
            result = await self._apply(request, node, change)
            configs = _choosing(node.overrides, change) if request.dry_run else None
        if configs is None:
            return result
        return result.model_copy(
            update={"topics": await self._topics(request.flow, node, *configs)}
        )

    async def _topics(
        self, flow: FlowName, node: FlowNode, before: Mapping[str, str], after: Mapping[str, str]
    ) -> TopicsChange | None:
        """Return which topics of the source a change of the connector's config begins and ends to
        copy; None where that is not known now."""
        herder = node.herder
        try:
            listing = self._parts.source_topics(
                flow, herder.resolved_config(self._source(flow, node)[0]), self._parts.clock
            )
            async with asyncio.timeout(LISTED_S):
                listed = await listing
            old, new = (chosen(flow, herder.resolved(it), listed) for it in (before, after))
        except (Mm2pyError, TimeoutError):
            return None
        starting, stopping = sorted(new - old), sorted(old - new)
        return TopicsChange(
            starts=len(starting),
            starting=tuple(starting[:MOST_NAMES]),
            stops=len(stopping),
            stopping=tuple(stopping[:MOST_NAMES]),
        )

    async def _take_failed(self, flow: FlowName) -> None:
        """Let a flow whose herder failed be changed here, which may be the remedy."""
        node = self._parts.fleet.nodes.get(flow)
        if node is not None and node.herder.failure is not None:
            await node.herder.accept_changes()

    async def _apply(
        self, request: ChangeRequest, node: FlowNode, change: FlowChange
    ) -> ChangeResult:
        """Check a change; unless it is a dry run, do it, record it, wait until it is in force."""
        store = node.overrides
        # Everything that may refuse comes before the first step and the first record (invariant 9).
        planned = await self._checked(request, store, change)
        revision: int | None = None
        if not request.dry_run:
            before = set(store.effective())
            # If-Match is checked once more inside the store's own turn: another worker may have
            # changed the flow meanwhile.
            edit = _expecting(request, store, change.edit)
            if change.steps is not None:
                await self._carry_out(request, node, change)
                edit = change.edit  # done is not refused any more, and the history has it
            _need_leader(node)  # checks and steps take their time
            # One batch: the overrides and their line of the history become visible together.
            revision = await store.edit(
                change.action, change.target, edit, actor=request.actor, notes=change.states or None
            )
            if planned:
                await self._in_force(request, node, before)
        held = change.edit(store.state.picture()).held if change.action == "resume" else ()
        paused = tuple(sorted(map(held_name, held))) if change.steps is not None else ()
        result = self._result(request, change, revision, planned)
        return result.model_copy(update={"still_paused": paused})

    async def _carry_out(self, request: ChangeRequest, node: FlowNode, change: FlowChange) -> None:
        """Do the steps of a change; where one fails the history has those before it, and a repeat
        does the others."""
        done: list[Change] = []
        try:
            for step in change.steps or ():
                await step.run()
                done += step.states
        except Mm2pyError:
            if done:
                with contextlib.suppress(Mm2pyError):  # the first error is the answer
                    _need_leader(node)
                    await node.overrides.edit(
                        change.action, change.target, _unchanged, actor=request.actor, notes=done
                    )
            raise

    async def _checked(
        self, request: ChangeRequest, store: FlowOverridesStore, change: FlowChange
    ) -> tuple[Change, ...]:
        """Return what an edit would change; refuse what it makes of the flow."""
        planned = store.preview(_expecting(request, store, change.edit))
        after = change.edit(store.state.picture())
        before = store.effective()
        for name, config in after.configs.items() if store.state.is_present(after.presence) else ():
            if config != before.get(name):
                errors = await self._errors(config)
                former = before.get(name) or store.state.file.get(name)
                if errors and former:
                    # What was wrong before is no fault of this change.
                    with contextlib.suppress(HerderError):
                        known = await self._errors(former)
                        errors = [it for it in errors if it not in known]
                if errors:
                    raise BadRequestError(f"{name} of {request.flow}: {'; '.join(errors)}")
        return planned

    async def _errors(self, config: Mapping[str, str]) -> Sequence[str]:
        return (await self._parts.validator.validate(dict(config))).errors()

    def _result(
        self,
        request: ChangeRequest,
        change: FlowChange,
        revision: int | None,
        planned: Sequence[Change],
    ) -> ChangeResult:
        changes = (*planned, *change.states)
        return ChangeResult(
            flow=str(request.flow),
            action=change.action,
            dry_run=request.dry_run,
            revision=revision,
            changes=tuple(change_view(request.flow, it, self._parts.mask) for it in changes),
        )

    async def _in_force(self, request: ChangeRequest, node: FlowNode, before: set[str]) -> None:
        """Return when the config topic holds what the change has made of the flow."""
        herder, store = node.herder, node.overrides
        if herder.failure is not None:
            return  # it starts again with the change, and its leader acts on it then
        # Pauses act at once: they need no config and no round.
        await herder.apply_holds()
        for name in herder.connectors():
            if name not in store.effective() and (name in before or not store.state.present):
                # Who leads by now completes a deletion; asked again, it would know no such flow.
                done = (NotFoundError,) if store.state.present else (NotFoundError, ForwardError)
                with contextlib.suppress(*done):
                    await herder.delete(name, actor=request.actor)
        # The leader's write is queued in the herder: health is answered after it.
        try:
            await herder.health()
        except HerderError:
            if store.state.present:
                raise
            return  # deleted: its herder has ended meanwhile

        def written() -> bool:
            infos = [(herder.info_now(name), config) for name, config in store.effective().items()]
            return all(info is not None and info.config == config for info, config in infos)

        # The leader repeats a write that failed.
        # The change is recorded in any case; the answer only says whether it is in force by now.
        if not await herder.wait_for_configs(written, APPLIED_S):
            raise RequestTimedOutError(
                f"the change of flow {request.flow} is recorded, but the leader has not acted on it"
                f" within {APPLIED_S:g} s",
                remedy="the leader retries; check the flow again later",
            )

    # ---- what changes need

    def _led(self, flow: FlowName) -> FlowNode:
        """Return a flow that this worker leads; ``ForwardError`` elsewhere."""
        node = self._parts.fleet.nodes.get(flow)
        if node is None or not node.overrides.state.present:
            raise NotFoundError(f"No flow {flow}")
        _need_leader(node)
        return node

    def _creation(self, flow: FlowName, store: FlowOverridesStore, patches: Patches) -> FlowChange:
        if store.state.present and enabled(_copying(store.effective())):
            raise AlreadyExistsError(f"Flow {flow} exists already")
        file = self._parts.fleet.file(flow)
        now = store.state.picture()
        edit = created(file, self._rules.allowed(flow, store, created(file, {})(now), patches))
        if not enabled(_copying(edit(now).configs)):
            raise BadRequestError(f"enabled: flow {flow} could not be created without it")
        return FlowChange(action="create", target=str(flow), edit=edit)

    async def _draft(self, flow: FlowName) -> FlowOverridesStore:
        """Return the changes of a flow that nothing runs for here: another worker may just have
        made or deleted it."""
        fleet = self._parts.fleet
        file = fleet.file(flow)
        of_source = source_configs(file)
        config: Mapping[str, str] = fleet.resolve(of_source[0]) if of_source else {}
        try:
            async with asyncio.timeout(STORED_S):
                records = await self._parts.stored_changes(flow, config, self._parts.clock)
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"the clusters of flow {flow} did not answer within {STORED_S:g} s",
                remedy="look whether both clusters can be reached, and try again",
            ) from error
        # In memory: a preview must not start a producer on the flow's topic.
        topic = MemoryTopic(flows_topic(flow.source))
        topic.records.extend(records)
        store = FlowOverridesStore(MemoryTable(topic), file, clock=self._parts.clock, by_file=False)
        await store.start()
        store.guarded_by(fleet.guard(flow))
        return store

    def _source(self, flow: FlowName, node: FlowNode) -> tuple[str, Mapping[str, str]]:
        source = read_flow(node.herder).source
        config = None if source is None else node.overrides.state.picture().configs.get(source.name)
        if source is None or config is None:
            raise NotFoundError(f"Flow {flow} has no connector that copies topics")
        return source.name, config


def _need_leader(node: FlowNode) -> None:
    """Raise ``ForwardError`` unless this worker leads the flow, or it does not run and changes are
    accepted; ``ConflictError`` of a leader that its group does not answer."""
    if node.herder.failure is not None:
        return
    # Raises ``ForwardError`` on any other worker.
    node.herder.member_urls()
    if node.herder.idles:
        raise ConflictError(
            f"Cannot complete request momentarily: flow {node.herder.flow} {node.herder.idles}; "
            "another worker may lead by now"
        )


def _need_copied(flow: FlowName, config: Mapping[str, str], topic: str) -> None:
    if not copies(flow, config, topic):
        raise NotFoundError(f"Flow {flow} does not copy topic {topic}: see its property topics")


async def _has(herder: Herder, name: str, part: TopicPartition) -> bool:
    """Return whether tasks copy a topic, True where that is not known now; ``NotFoundError``: they
    do, and it has no such partition."""
    try:
        assigned = await assigned_tasks(herder, name)
    except HerderError:
        return True
    numbers = [it.partition for it in assigned if it.topic == part.topic]
    if numbers and part.partition >= 0 and part.partition not in numbers:
        raise NotFoundError(
            f"Topic {part.topic} has no partition {part.partition}; copied are"
            f" {min(numbers)} to {max(numbers)}"
        )
    return bool(numbers) or not assigned


def _expecting(request: ChangeRequest, store: FlowOverridesStore, edit: Edit) -> Edit:
    """Return an edit that is refused where another revision is in force than expected."""

    def checked(now: FlowPicture) -> FlowPicture:
        if request.revision not in (None, store.state.revision):
            raise PreconditionFailedError(
                f"Flow {request.flow} is at revision {store.state.revision}, not "
                f"{request.revision}: read it again, it was changed meanwhile"
            )
        return edit(now)

    return checked


def _choosing(
    store: FlowOverridesStore, change: FlowChange
) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
    """Return the config of the connector that copies before and after a change, None where the same
    topics are chosen."""
    then = change.edit(store.state.picture())
    before = _copying(store.effective())
    after = _copying(then.configs) if store.state.is_present(then.presence) else _NO_COPY
    keys = (it for it in {*before, *after} if it == "enabled" or it.startswith("topic"))
    return (before, after) if any(before.get(it) != after.get(it) for it in keys) else None


# -- states ----------------------------------------------------------------------------------------


def _state_change(work: str, before: str, after: str) -> Change:
    return Change(key=state_key(work), before=before, after=after)


def _restarts(works: Iterable[tuple[str, WorkState | None]], *, only_failed: bool) -> list[Change]:
    return [
        _state_change(name, state_name(state), State.RESTARTING.value)
        for name, state in works
        if not only_failed or state_name(state) == State.FAILED
    ]


def _to_state(herder: Herder, name: str, action: str, actor: str) -> ChangeStep:
    """Pause, resume or stop a connector; repeated where it is so, as after a failure."""
    runs = {"pause": herder.pause, "resume": herder.resume, "stop": herder.stop_connector}
    wanted, now = _WANTED[action], herder.target_now(name)
    states = [] if now is wanted else [_state_change(name, now.state.value, wanted.state.value)]
    return ChangeStep(states, partial(runs[action], name, actor=actor))


def _task_restart(
    herder: Herder, task: TaskId, state: WorkState | None, elsewhere: Elsewhere
) -> ChangeStep:
    async def run() -> None:
        try:
            await herder.restart_task(task)
        except ForwardError as error:
            await elsewhere(error, task)

    return ChangeStep(_restarts([(str(task), state)], only_failed=False), run)


def _copying(configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return the config of the connector that copies records, one that copies nothing where there
    is none."""
    return next((configs[name] for name in COPY_NAMES if name in configs), _NO_COPY)
