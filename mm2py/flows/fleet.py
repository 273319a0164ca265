"""The flows of one node while it runs: those of its file, and those added or deleted over REST.

Flow: ``mm2py-flows`` of pairs that do not run here -> ``added`` -> herder built and started; flow
deleted, its connectors gone -> herder stopped. Looks once a second, and for flows that other nodes
added each five.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from mm2py.clock import Clock, cancelled, tick
from mm2py.errors import ConfigError, Mm2pyError, RetriableError
from mm2py.flows.graph import CircleGuard, FlowNode, Sources
from mm2py.flows.states import read_flow
from mm2py.mirror.flow_overrides import Presence
from mm2py.observability.metrics import FlowSample
from mm2py.runtime.errors import ForwardError, HerderError
from mm2py.runtime.herder.api import AskPeer
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.mirror_maker import MirrorMaker
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import FlowName

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
LOOK_FAR: Final = 5
"""Every so many looks also at flows that do not run here."""

SAMPLE_LOOKS: Final = 15
"""Every so many looks the sums of each flow are kept."""
SAMPLES: Final = 240
"""Of a flow at most: one hour."""

OPEN_S: Final = 45.0
"""How long a new herder may take until it knows its leader; brokers may delay a new group."""

SPARE_S: Final = 60.0
"""How long a herder that was started for a creation is kept although there is no such flow yet."""

STOP_S: Final = 20.0
BY_WORKER: Final = "mm2py"
"""Who completes what a worker that is gone has begun."""


@dataclass(frozen=True, slots=True)
class Since:
    """A state, and when this node saw it first (ms since the epoch)."""

    state: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """What the fleet is given.

    ``pairs`` are all flows that may run here, ``by_file`` those that do without a change over REST.
    ``build`` makes one; ``file`` returns the connectors of the file. ``added`` returns which of
    some pairs people have added (``RetriableError``: not known now). ``elsewhere`` has the source
    connectors' configs of the file's flows that only other processes run. ``resolve`` replaces
    placeholders of connectors' configs.
    """

    pairs: Collection[FlowName]
    by_file: Collection[FlowName]
    build: Callable[[FlowName], tuple[Herder, FlowOverridesStore, AskPeer]]
    file: Callable[[FlowName], Mapping[str, Mapping[str, str]]]
    added: Callable[[Sequence[FlowName]], Awaitable[Collection[FlowName]]]
    elsewhere: Sources = field(default_factory=dict[FlowName, Sequence[Mapping[str, str]]])
    resolve: Callable[[Mapping[str, str]], Mapping[str, str]] = dict[str, str]


@final
class FlowFleet:
    """Builds the flows of the file; ``start`` begins to look for others.

    Raises:
        ConfigError: a flow of the file cannot be run.
    """

    def __init__(self, parts: FleetParts, *, clock: Clock) -> None:
        self._parts, self._clock = parts, clock
        self.herders: dict[FlowName | None, Herder] = {}
        """Of all flows that run here; always the same object."""
        self.nodes: dict[FlowName, FlowNode] = {}
        """The same, with what ``/flows`` needs; always the same object."""
        self._being_written: dict[FlowName, Sequence[Mapping[str, str]]] = {}
        self._since: dict[FlowName, Since] = {}
        self._shown: dict[FlowName, Since] = {}
        self._samples: dict[FlowName, deque[FlowSample]] = {}
        self._spare_until: dict[FlowName, float] = {}
        self._unfinished: set[FlowName] = set()
        self._looked: set[FlowName] = set()
        """Flows whose changes were read and looked at."""
        self._told: set[FlowName] = set()
        """Flows of the file that were deleted over REST, as the log has it."""
        self._looking: asyncio.Task[None] | None = None
        self.maker = MirrorMaker({flow: self._built(flow) for flow in parts.by_file})

    @property
    def pairs(self) -> Collection[FlowName]:
        return self._parts.pairs

    @property
    def elsewhere(self) -> Sources:
        """Source connectors' configs of the file's flows that only other processes run."""
        return self._parts.elsewhere

    def file(self, flow: FlowName) -> Mapping[str, Mapping[str, str]]:
        return self._parts.file(flow)

    def resolve(self, config: Mapping[str, str]) -> Mapping[str, str]:
        return self._parts.resolve(config)

    def guard(self, flow: FlowName) -> CircleGuard:
        return CircleGuard(
            flow, lambda: self.nodes, self.elsewhere, self.resolve, self._being_written
        )

    def since(self, flow: FlowName, state: str) -> Since:
        work, seen = self._since.get(flow), self._shown.get(flow)
        same = work if work is not None and work.state == state else None
        if seen is None or (seen.state == state and same is not None and same.at_ms > seen.at_ms):
            seen = same
        if seen is None or seen.state != state:
            # What only partitions tell is known when it is looked at.
            seen = Since(state, self._clock.now_ms())
        self._shown[flow] = seen
        return seen

    def samples(self, flow: FlowName) -> Sequence[FlowSample]:
        return (*self._samples.get(flow, ()),)

    def start(self) -> None:
        """Launch the file's flows and begin to look for others; returns at once."""
        self.maker.start()
        self._looking = asyncio.create_task(self._look(), name="added flows")

    async def stop(self, timeout_s: float) -> bool:
        """Stop every flow in parallel; False if one had to be cut off after ``timeout_s``."""
        looking, self._looking = self._looking, None
        await cancelled(looking)
        return await self.maker.stop(timeout_s)

    async def open(self, flow: FlowName) -> FlowNode:
        """Return a flow of ``pairs``, started if it does not run yet, as soon as it knows who
        leads.

        Where no such flow comes of it, it is stopped again after a while.

        Raises:
            ConfigError: the flow cannot be run, as by the file's lines for it.
            RetriableError: a cluster is unreachable.
        """
        self._spare_until[flow] = self._clock.monotonic() + SPARE_S
        node = self.nodes.get(flow)
        if node is not None and flow in self.maker.ended and flow not in self._parts.by_file:
            await self._end(flow)
            node = None
        if node is None:
            log.info("flow is prepared, it is to be created flow=%s", flow)
            node = self._started(flow)
        deadline = self._clock.monotonic() + OPEN_S
        while not _knows_its_leader(node.herder):
            if flow in self.maker.ended or self._clock.monotonic() > deadline:
                cause = (
                    "; ".join(self.maker.problems(flow)) or "its clusters or group do not answer"
                )
                raise RetriableError(
                    f"flow {flow} cannot be run now: {cause}",
                    remedy="look whether both clusters can be reached, and try again",
                )
            # Answered after the first round of its group.
            with contextlib.suppress(HerderError):
                await node.herder.health()
            if not _knows_its_leader(node.herder):
                await self._clock.sleep(LOOK_S)
        return node

    # ---- looking

    async def _look(self) -> None:
        looks = 0
        while True:
            try:
                if looks % LOOK_FAR == 0:
                    await self._take_added()
                for flow in list(self.nodes):
                    if looks % SAMPLE_LOOKS == 0:
                        course = self._samples.setdefault(flow, deque(maxlen=SAMPLES))
                        course.append(self.nodes[flow].herder.sample())
                    self._note(flow)
                    await self._tidy(flow)
            except Exception:  # the edge: the flows run on, and the next look may go well
                log.exception("looking for flows that were added or deleted failed")
            looks += 1
            await tick(self._clock, LOOK_S)

    async def _take_added(self) -> None:
        absent = [flow for flow in self._parts.pairs if flow not in self.nodes]
        if not absent:
            return
        with contextlib.suppress(RetriableError):  # the caller has logged it
            for flow in await self._parts.added(absent):
                if flow in self.nodes:
                    continue
                log.info("flow was added over REST and starts here flow=%s", flow)
                try:
                    self._started(flow)
                except ConfigError as error:
                    log.error("flow cannot be started flow=%s cause=%s", flow, error)  # noqa: TRY400 - one line

    async def _tidy(self, flow: FlowName) -> None:
        """Complete a deletion whose worker is gone; stop deleted flows."""
        node = self.nodes[flow]
        herder, store = node.herder, node.overrides
        if store.live and flow not in self._looked:
            self._looked.add(flow)
            orphans = store.state.orphans()
            if orphans:
                log.warning(
                    "changes over REST are not in force, as the file has another connector copy "
                    "the flow: set them again flow=%s properties=%s",
                    flow,
                    ",".join(orphans),
                )
        if not store.live or store.state.present or flow in self.maker.ended:
            self._unfinished.discard(flow)
            self._told.discard(flow)
            return
        by_file = flow in self._parts.by_file
        if by_file and store.state.presence is Presence.DELETED and flow not in self._told:
            self._told.add(flow)
            log.warning(
                "flow of the file was deleted over REST and does nothing, mm2py flow create '%s' "
                "brings it back flow=%s",
                flow,
                flow,
            )
        names = herder.connectors()
        # A crash between the record of the deletion and the removal of the connectors: completed by
        # whichever worker leads.
        if store.state.presence is Presence.DELETED and names:
            if flow not in self._unfinished:
                self._unfinished.add(flow)  # the worker that deletes it is probably still running
                return
            for name in names:
                # A leader that is busy, or elsewhere, does it; the next look sees whether.
                # A flow that is created again meanwhile keeps its connectors.
                with contextlib.suppress(Mm2pyError):
                    await herder.delete(
                        name, actor=BY_WORKER, only_if=lambda: not store.state.present
                    )
            return
        # A creation is under way: its herder leads the group before the flow is recorded.
        spare = self._clock.monotonic() < self._spare_until.get(flow, 0)
        if not by_file and not spare:
            log.info("flow ends here, it was deleted over REST or never created flow=%s", flow)
            await self._end(flow)

    def _note(self, flow: FlowName) -> None:
        # Without partitions: a snapshot of thousands each second would cost more than an idle flow.
        state = read_flow(self.nodes[flow].herder).state(())
        there = self._since.get(flow)
        if there is None or there.state != state:
            self._since[flow] = Since(state, self._clock.now_ms())

    # ---- one flow

    def _started(self, flow: FlowName) -> FlowNode:
        self.maker.add(flow, self._built(flow))
        return self.nodes[flow]

    def _built(self, flow: FlowName) -> Herder:
        herder, store, peers = self._parts.build(flow)
        store.guarded_by(self.guard(flow))
        self.herders[flow] = herder
        self.nodes[flow] = FlowNode(herder, store, peers)
        return herder

    async def _end(self, flow: FlowName) -> None:
        self.herders.pop(flow, None)
        for of_flow in (self.nodes, self._since, self._shown, self._samples):
            of_flow.pop(flow, None)
        self._unfinished.discard(flow)
        self._looked.discard(flow)
        await self.maker.remove(flow, STOP_S)


def _knows_its_leader(herder: Herder) -> bool:
    if isinstance(herder.failure, ConfigError):
        raise herder.failure  # another try changes nothing
    if herder.failure is None and herder.not_ready:
        return False
    try:
        herder.member_urls()
    except ForwardError as error:
        return error.url is not None
    return True
