"""Changes that people make of flows over ``/flows``: properties, pauses, states, restarts, rollback.

Flow: request -> every check -> one revision in ``mm2py-flows`` (leader only: ``ForwardError`` elsewhere) -> the
leader writes what follows into the config topic. A refused change and a dry run have written nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.errors import RequestTimedOutError
from mm2py.flows.connectors import (
    owners_of,
    runnable,
    source_connector,
    state_of,
    works_of,
)
from mm2py.flows.graph import FlowNode, copies
from mm2py.flows.patches import Patches, part_name, patched, without_topic
from mm2py.flows.service import FlowParts
from mm2py.flows.views import ChangeView, change_view, shown_value
from mm2py.mirror.flow_overrides import Change as StoredChange
from mm2py.mirror.flow_state import FlowPicture
from mm2py.observability.logging import HIDDEN
from mm2py.runtime.herder.api import Herder
from mm2py.runtime.herder.errors import (
    BadRequestError,
    ConflictError,
    ForwardError,
    NotFoundError,
    RebalanceExpectedError,
)
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import Edit, FlowOverridesStore, held_edit
from mm2py.types import FlowName, TaskId, TopicPartition

__all__ = ["Change", "ChangeResult", "FlowChanges", "Request", "leading"]

APPLIED_S: Final = 30.0
"""How long the leader may take to write what follows from a change into the config topic."""

ENDED_S: Final = 10.0
"""How long a deletion waits for the tasks of what it deleted; they end in any case."""

LOOK_S: Final = 0.05
Elsewhere = Callable[[ForwardError, TaskId], Awaitable[None]]
"""Has the worker that owns a task restart it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """What a change did, or with ``dry_run`` would do; ``revision`` is its number in the history."""

    flow: str
    action: str
    dry_run: bool
    revision: int | None
    changes: tuple[ChangeView, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks for a change, of which flow, and whether only to know what it would do."""

    flow: FlowName
    actor: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what the history calls it, of what, and the edit."""

    action: str
    target: str
    edit: Edit


@final
class FlowChanges:
    """Changes the flows of this process; one at a time."""

    def __init__(self, parts: FlowParts) -> None:
        self._parts = parts
        # Two changes that are safe each may close a circle together: the second sees the first.
        self.changing = asyncio.Lock()

    # ---- what flows copy

    async def patch(self, request: Request, patches: Patches) -> ChangeResult:
        """Change properties of connectors; all of it is checked before any of it is written.

        Raises:
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
            ConfigError: a value cannot be used.
        """
        node = self.led(request.flow)
        async with self.changing:
            given = self.checked(request.flow, node.overrides.picture(), patches)
            change = Change("change", _targets(request.flow, given), patched(given))
            return await self.apply(request, node, change)

    async def remove_topic(self, request: Request, topic: str) -> ChangeResult:
        """Take one source topic out of a flow: from ``topics``, or into ``topics.exclude``.

        Raises:
            NotFoundError: the flow does not copy it.
        """
        node = self.led(request.flow)
        async with self.changing:
            name, config = self._source(request.flow, node)
            self._need_copied(request.flow, node, topic)
            patch = without_topic(request.flow, config, topic)

            def edit(now: FlowPicture) -> FlowPicture:
                freed = held_edit(TopicPartition(topic, -1), paused=False)(now)
                return patched({name: patch})(freed)

            return await self.apply(request, node, Change("remove-topic", topic, edit))

    async def rollback(self, request: Request, revision: int) -> ChangeResult:
        """Make config, pauses and connectors what they were after a revision; 0 is the file.

        Raises:
            NotFoundError: the history does not reach that revision.
            BadRequestError: there was no such flow then.
        """
        node = self.led(request.flow)
        async with self.changing:
            store = node.overrides
            then = store.picture_at(revision)
            if then is None:
                kept = store.history()
                raise NotFoundError(
                    f"Flow {request.flow} has no revision {revision} to go back to; known are 0 (the"
                    f" file) and {kept[-1].revision.number if kept else 0} to {store.revision}"
                )
            if not store.would_be_present(then):
                raise BadRequestError(
                    f"Flow {request.flow} did not exist at revision {revision}; delete it instead"
                )
            change = Change("rollback", f"revision {revision}", lambda _: then)
            return await self.apply(request, node, change)

    # ---- whether they do

    async def set_state(self, request: Request, action: str) -> ChangeResult:
        """Pause, resume or stop every connector of a flow."""
        node = self.led(request.flow)
        herder, actor = node.herder, request.actor
        names = runnable(herder)
        steps: dict[str, Callable[[str], Awaitable[None]]] = {
            "pause": lambda name: herder.pause(name, actor=actor),
            "resume": lambda name: herder.resume(name, actor=actor),
            "stop": lambda name: herder.stop_connector(name, actor=actor),
        }
        words = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED"}
        changes = [
            ChangeView(key=name, before=state_of(herder, name), after=words[action])
            for name in names
        ]
        if not request.dry_run:
            for name in names:
                await steps[action](name)
        return await self._noted(request, node, action, str(request.flow), changes)

    async def hold(self, request: Request, part: TopicPartition, action: str) -> ChangeResult:
        """Pause, stop or resume one source topic (partition -1) or partition; the others go on.

        Raises:
            NotFoundError: the flow does not copy the topic.
        """
        node, paused = self.led(request.flow), action != "resume"
        async with self.changing:
            held = node.overrides.held()
            if paused:
                self._need_copied(request.flow, node, part.topic)
            elif part not in held and part._replace(partition=-1) in held:
                raise BadRequestError(
                    f"Partition {part} is paused with its whole topic; resume topic {part.topic}"
                )
            change = Change(action, part_name(part), held_edit(part, paused=paused))
            return await self.apply(request, node, change)

    async def restart(self, request: Request, *, only_failed: bool) -> ChangeResult:
        """Restart connectors and tasks of a flow, or those that failed."""
        node = self.led(request.flow)
        herder, changes = node.herder, list[ChangeView]()
        names = [name for name in runnable(herder) if state_of(herder, name) is not None]
        for name in names:
            for work, state in works_of(herder, name):
                if state == "FAILED" or not only_failed:
                    changes.append(ChangeView(key=work, before=state, after="RESTARTING"))
        if not request.dry_run:
            for name in names:
                await herder.restart(name, only_failed=only_failed, include_tasks=True)
        return await self._noted(request, node, "restart", str(request.flow), changes)

    async def restart_part(
        self, request: Request, part: TopicPartition, elsewhere: Elsewhere, *, only_failed: bool
    ) -> ChangeResult:
        """Restart the tasks that have a source topic (partition -1) or partition.

        Raises:
            NotFoundError: no task has it.
            ConflictError: the tasks are about to change.
        """
        node = self.led(request.flow)
        herder, changes = node.herder, list[ChangeView]()
        name, _ = self._source(request.flow, node)
        try:
            tasks = await owners_of(herder, name, part)
        except RebalanceExpectedError as error:
            raise ConflictError(error.message) from error
        if not tasks:
            raise NotFoundError(f"No task of flow {request.flow} has {part_name(part)}")
        states = dict(works_of(herder, name))
        chosen = [it for it in tasks if not only_failed or states.get(str(it)) == "FAILED"]
        changes = [
            ChangeView(key=str(it), before=states.get(str(it)), after="RESTARTING") for it in chosen
        ]
        for task in () if request.dry_run else chosen:
            try:
                await herder.restart_task(task)
            except ForwardError as error:
                await elsewhere(error, task)
        return await self._noted(request, node, "restart", part_name(part), changes)

    # ---- what changes need; also of flows that are made and deleted

    def led(self, flow: FlowName) -> FlowNode:
        """Return a flow that this worker leads; ``ForwardError`` elsewhere."""
        node = self._parts.fleet.nodes.get(flow)
        if node is None or not node.overrides.present:
            raise NotFoundError(f"No flow {flow}")
        return leading(node)

    async def plan(
        self, flow: FlowName, store: FlowOverridesStore, change: Change
    ) -> tuple[StoredChange, ...]:
        """Return what an edit would change; refuse what it makes of the flow."""
        planned = store.preview(change.edit)
        after = change.edit(store.picture())
        if not store.present and not store.would_be_present(after):
            raise NotFoundError(f"No flow {flow}")  # deleted while this one waited for its turn
        gone: Mapping[str, Mapping[str, str]] = {}
        configs = after.configs if store.would_be_present(after) else gone
        await self._check(flow, store.effective(), configs)
        return planned

    async def apply(self, request: Request, node: FlowNode, change: Change) -> ChangeResult:
        """Write an edit and wait until it is in force; only plan it for a dry run."""
        store = node.overrides
        planned = await self.plan(request.flow, store, change)
        revision: int | None = None
        if planned and not request.dry_run:
            before = set(store.effective())
            revision = await store.edit(
                change.action, change.target, change.edit, actor=request.actor
            )
            await self._in_force(request, node, before)
        return self.result(request, change.action, revision, planned)

    def result(
        self,
        request: Request,
        action: str,
        revision: int | None,
        planned: Sequence[StoredChange],
    ) -> ChangeResult:
        """Return what people see of an edit."""
        secret, mask = self._parts.names_a_secret, self._parts.mask
        return ChangeResult(
            flow=str(request.flow),
            action=action,
            dry_run=request.dry_run,
            revision=revision,
            changes=tuple(change_view(request.flow, it, secret, mask) for it in planned),
        )

    async def _check(
        self,
        flow: FlowName,
        before: Mapping[str, Mapping[str, str]],
        after: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Refuse configs that cannot be used."""
        for name, config in after.items():
            if config != before.get(name):
                refusal = (await self._parts.validator.validate(dict(config))).refusal()
                if refusal is not None:
                    raise BadRequestError(f"{name} of {flow}: {refusal}")

    def checked(self, flow: FlowName, now: FlowPicture, patches: Patches) -> Patches:
        """Return patches whose ``[hidden]`` texts are what is stored; refuse what may not come from outside."""
        found: dict[str, ConnectorConfig] = {}
        for name, patch in patches.items():
            before = now.configs.get(name)
            if before is None:
                raise NotFoundError(f"Connector {name} not found in flow {flow}")
            if patch.get("name", name) != name:
                raise BadRequestError(f"name of connector {name} in flow {flow} cannot be changed")
            given = {key: self._unhidden(name, key, text, before) for key, text in patch.items()}
            refusal = self._parts.remote_refusal(flow, name, given)
            if refusal is not None:
                raise BadRequestError(refusal)
            found[name] = given
        return found

    def _unhidden(
        self, name: str, key: str, text: str | None, before: Mapping[str, str]
    ) -> str | None:
        if text is None or HIDDEN not in text:
            return text
        stored = before.get(key)
        if text != shown_value(key, stored, self._parts.names_a_secret, self._parts.mask):
            raise BadRequestError(
                f"{key} of connector {name} holds {HIDDEN}, which stands for a stored secret,"
                " but no such secret is stored under this key"
            )
        return stored

    async def _in_force(self, request: Request, node: FlowNode, before: set[str]) -> None:
        """Wait until the config topic says what the change has made of the flow."""
        herder, store, clock = node.herder, node.overrides, self._parts.clock
        await herder.apply_holds()
        deadline = clock.monotonic() + APPLIED_S
        while True:
            wanted = store.effective()
            for name in herder.connectors():
                if name not in wanted and (name in before or not store.present):
                    with contextlib.suppress(NotFoundError):
                        await herder.delete(name, actor=request.actor)
            infos = {name: herder.info_now(name) for name in wanted}
            if all(it is not None and it.config == wanted[n] for n, it in infos.items()):
                await self._ended(herder, before - set(wanted))
                return
            if clock.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"the change of flow {request.flow} is recorded, but the leader has not acted on it"
                    f" within {APPLIED_S:g} s",
                    remedy="it will; look at the flow again later",
                )
            await clock.sleep(LOOK_S)

    async def _ended(self, herder: Herder, gone: Collection[str]) -> None:
        """Wait a while for the work of connectors that are gone: their states end after it."""
        clock = self._parts.clock
        deadline = clock.monotonic() + ENDED_S
        while any(state_of(herder, name) is not None for name in gone):
            if clock.monotonic() > deadline:
                return
            await clock.sleep(LOOK_S)

    async def _noted(
        self,
        request: Request,
        node: FlowNode,
        action: str,
        target: str,
        changes: Sequence[ChangeView],
    ) -> ChangeResult:
        revision: int | None = None
        if not request.dry_run:
            revision = await node.overrides.note(action, target, actor=request.actor)
        return ChangeResult(
            flow=str(request.flow),
            action=action,
            dry_run=request.dry_run,
            revision=revision,
            changes=tuple(changes),
        )

    def _source(self, flow: FlowName, node: FlowNode) -> tuple[str, Mapping[str, str]]:
        name = source_connector(node.herder)
        config = None if name is None else node.overrides.picture().configs.get(name)
        if name is None or config is None:
            raise NotFoundError(f"Flow {flow} has no connector that copies topics")
        return name, config

    def _need_copied(self, flow: FlowName, node: FlowNode, topic: str) -> None:
        _, config = self._source(flow, node)
        if not copies(flow, config, topic):
            raise NotFoundError(f"Flow {flow} does not copy topic {topic}: see its property topics")


def leading(node: FlowNode) -> FlowNode:
    """Return a node whose worker leads its flow; ``ForwardError`` elsewhere."""
    node.herder.member_urls()
    if node.herder.node_snapshot().state == "SUSPENDED":
        raise ForwardError(None)  # somebody else may lead by now
    return node


def _targets(flow: FlowName, patches: Patches) -> str:
    return next(iter(patches)) if len(patches) == 1 else str(flow)
