"""Flows that people add between the clusters of the file, and delete.

Flow: request -> every check -> herder started where none runs -> one revision in ``mm2py-flows`` -> connectors
in the config topic; other nodes see it in ``flow_fleet``. Positions of a deleted flow stay.
"""

from collections.abc import Callable
from typing import Final, final

from mm2py.flows.changes import Change, ChangeResult, FlowChanges, Request, leading
from mm2py.flows.connectors import enabled
from mm2py.flows.patches import SOURCE, Patches, created, deleted
from mm2py.flows.service import FlowParts
from mm2py.runtime.herder.api import Herder
from mm2py.runtime.herder.errors import AlreadyExistsError, BadRequestError
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryLog, MemoryTopic
from mm2py.types import ClusterAlias, FlowName

__all__ = ["FlowMaking"]

_NO_COPY: Final = {"enabled": "false"}


@final
class FlowMaking:
    """Makes and deletes flows of this process."""

    def __init__(self, parts: FlowParts, changes: FlowChanges) -> None:
        self._parts, self._changes = parts, changes

    def pair(self, source: str, target: str) -> FlowName:
        """Return the flow between two clusters.

        Raises:
            BadRequestError: this worker knows no such pair.
        """
        flow = FlowName(ClusterAlias(source), ClusterAlias(target))
        if flow not in self._parts.fleet.pairs:
            known = ", ".join(sorted(map(str, self._parts.fleet.pairs)))
            raise BadRequestError(
                f"No flow {flow} can run here: clusters come from the file; flows of this worker may be"
                f" {known}"
            )
        return flow

    async def create(
        self, request: Request, patches: Patches, tell: Callable[[Herder], None]
    ) -> ChangeResult:
        """Make a flow, or let one copy that sends only heartbeats; ``tell`` gets its herder.

        Raises:
            AlreadyExistsError: it copies already.
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
            ConfigError: a value cannot be used.
            RetriableError: a cluster is away; nothing was written.
        """
        flow, fleet = request.flow, self._parts.fleet
        if flow not in fleet.nodes:
            # Nothing may be started for what is refused.
            store = self._unstarted(flow)
            change = self._creation(flow, store, patches)
            planned = await self._changes.plan(flow, store, change)
            if request.dry_run:
                return self._changes.result(request, change.action, None, planned)
        node = await fleet.open(flow)
        tell(node.herder)
        leading(node)
        async with self._changes.changing:
            before = node.herder.connectors()
            change = self._creation(flow, node.overrides, patches)
            result = await self._changes.apply(request, node, change)
        if not request.dry_run:
            for name in before:  # its heartbeats may have been paused
                await node.herder.resume(name, actor=request.actor)
        return result

    async def delete(self, request: Request) -> ChangeResult:
        """Delete a flow; its connectors go, positions stay.

        Raises:
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
        """
        node = self._changes.led(request.flow)
        edit = deleted(self._parts.fleet.file(request.flow))
        async with self._changes.changing:
            return await self._changes.apply(
                request, node, Change("delete", str(request.flow), edit)
            )

    def _creation(self, flow: FlowName, store: FlowOverridesStore, patches: Patches) -> Change:
        if store.present and enabled(store.effective().get(SOURCE, _NO_COPY)):
            raise AlreadyExistsError(f"Flow {flow} exists already")
        file = self._parts.fleet.file(flow)
        now = store.picture()
        edit = created(file, self._changes.checked(flow, created(file, {})(now), patches))
        if not enabled(edit(now).configs.get(SOURCE, _NO_COPY)):
            raise BadRequestError(f"enabled: flow {flow} could not be created without it")
        return Change("create", str(flow), edit)

    def _unstarted(self, flow: FlowName) -> FlowOverridesStore:
        store = FlowOverridesStore(
            lambda handle: MemoryLog(MemoryTopic("none"), handle),
            self._parts.fleet.file(flow),
            clock=self._parts.clock,
            names_a_secret=self._parts.names_a_secret,
            by_file=False,
        )
        store.guarded_by(self._parts.fleet.guard(flow))
        return store
