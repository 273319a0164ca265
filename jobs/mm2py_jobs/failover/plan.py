"""What is asked of a failover, what it would do and what refuses it: plain data, the one model of
REST, CLI and OpenAPI.

``FailoverRequest`` is the order; ``mm2py_jobs.failover.survey`` fills ``FailoverPlan``. Asks no
cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Final, Protocol, TypeVar, cast, final

from mm2py.errors import FatalError
from mm2py.mirror.failovers import Failover, FailoverKind, OpenTransaction
from mm2py.observability.logging import some_of

SETTLE_S: Final = 2.0
"""How long the ends of the source's logs must not move: a producer that pauses longer between two
sends is not noticed."""

DRAIN_S: Final = 120.0
"""Longest drain without progress."""


class FailoverRefusedError(FatalError):
    """A check refuses; nothing was changed, or the message names what was."""


def where_it_stands(failover: Failover, command: str = "the same command") -> str:
    """Return where an unfinished failover has its clients, and which ``command`` continues it."""
    source, _, target = failover.flow.partition("->")
    goes_on = f"{command} continues from here"
    if failover.switched_ms:
        return f"clients may write to {target} already, {goes_on}"
    if failover.step.is_switched:
        return goes_on
    return f"clients may be kept from writing to {source}: {goes_on}, --cancel ends that"


_NAMES: Final = frozenset({"topic", "copy", "group", "flow", "id"})
"""Members that name something in a cluster: one that is equal to a secret is shown, or it could not
be found."""

V = TypeVar("V")


def masked(view: V, mask: Callable[[str], str]) -> V:
    """Return a plan, record or view with secrets hidden in its texts: causes quote configs and what
    brokers answer."""
    return cast("V", _masked(view, mask))


def _masked(value: object, mask: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else mask(value)
    if type(value) is tuple:
        return tuple(_masked(it, mask) for it in cast("tuple[object, ...]", value))
    if is_dataclass(value) and not isinstance(value, type):
        hidden = {
            it.name: _masked(getattr(value, it.name), mask)
            for it in fields(value)
            if it.init and it.name not in _NAMES
        }
        return cast("object", replace(value, **hidden))
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRequest:
    """What a user asked for; ``accept_loss`` as in ``Failover``, ``unplanned``: without the source;
    ``id``: of a failover that it begins."""

    id: str = ""
    kind: FailoverKind = FailoverKind.FAILOVER
    accept_loss: int = -1
    unplanned: bool = False
    settle_s: float = SETTLE_S
    drain_s: float = DRAIN_S


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One source topic; lags are null if the source is unreachable. ``problems``: missing or lost
    copies, config drift, missing ACLs; ``gaps`` are the former.

    ``copied_to``: per partition, the source offset below which everything is copied.
    ``would_lose``: offsets that are not copied and that nothing is copying; they include those
    above an open transaction if the flow reads committed records.
    """

    topic: str
    copy: str
    partitions: int
    lag_records: int | None
    lag_ms: int | None
    would_lose: int | None
    copied_to: Mapping[int, int]
    problems: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group: its state on both clusters, what it would read again or skip if it moved now, and
    why it is not synced.

    ``type`` is ``classic``, ``consumer``, ``streams`` or ``share``, empty if the broker is older
    than 3.8.
    """

    group: str
    state: str
    state_there: str
    reads_again: int | None
    skips: int | None
    not_synced: str
    type: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRow:
    """A producer, not a mirror's, that wrote to the source recently; ``age_ms`` since the timestamp
    of its last batch."""

    topic: str
    partition: int
    producer_id: int
    age_ms: int | None
    in_transaction: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What a failover would do.

    ``would_lose`` is the number that ``--accept-loss`` has to name: offsets that nothing copies,
    since their partition or the flow failed, is held, paused or stopped; ``awaited`` of them are
    above open transactions that the drain waits for. ``copied_first``: ordinary lag beside them,
    which a failover copies before clients move; it is lost only with the source itself, 0 if that
    does not answer. ``transactions``: all open ones in the flow's topics, except mirrors'; they
    hang by ``source_ms``, which is the time of the source's controller where they do by the
    driver's clock. ``state``: of the flow, empty if no worker of it answers. ``resting``: what
    copies nothing until it is resumed. ``unplaced``: groups that would not continue where they are.
    ``standing``: why the clients cannot be moved from where they are, else empty. ``jobs``: Spark
    jobs that have to end first, and how to end them. ``fence_rules``: number of ACLs to create;
    ``fence_note``: writers that no ACL blocks. ``writers`` is null if the brokers do not disclose
    producers. ``unreached``: why the worker that is asked could not change a flow.
    """

    flow: str
    kind: str
    at_ms: int
    source_reachable: bool
    state: str
    reverse_state: str
    would_lose: int
    fence_rules: int
    fence_note: str
    quarantine: tuple[str, ...]
    unfinished: str
    problems: tuple[str, ...]
    resting: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    standing: str = ""
    jobs: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    awaited: int = 0
    copied_first: int = 0
    source_ms: int = 0
    topics: tuple[TopicRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    writers: tuple[WriterRow, ...] | None = ()
    transactions: tuple[OpenTransaction, ...] = ()

    @property
    def hanging(self) -> tuple[OpenTransaction, ...]:
        """Transactions that are not worth waiting for."""
        now_ms = self.source_ms or self.at_ms
        return tuple(transaction for transaction in self.transactions if transaction.hangs(now_ms))

    def remarks(self, accept_loss: int) -> Iterator[str]:
        """Yield what a user should know before it begins, and by how much ``accept_loss`` exceeds
        the plan."""
        if self.standing:
            return
        yield from self.problems
        if accept_loss >= 0 or not self.source_reachable:  # else they refuse it
            yield from self.resting
        if accept_loss > self.would_lose:
            yield (
                f"--accept-loss {accept_loss} is more than the {self.would_lose} offsets that "
                "would not be copied now:"
                f" up to {accept_loss} may stay behind"
            )

    def refusals(self, request: FailoverRequest, begun: Failover | None = None) -> tuple[str, ...]:
        """Return the reasons not to begin a failover, or not to continue ``begun``."""
        accept_loss, unplanned = request.accept_loss, request.unplanned
        if begun is not None and begun.goes_on(unplanned=unplanned):
            return () if begun.step.is_switched else self.jobs
        if self.standing:
            return (self.standing,)  # the loss does not matter then
        refusals = list(self.jobs)
        if not self.source_reachable and not unplanned:
            refusals.append("the source does not answer; if it is gone, use --unplanned")
        if self.source_reachable and unplanned:
            refusals.append("the source answers: leave --unplanned out, nothing has to be lost")
        if self.hanging and accept_loss < 0:
            refusals.append(
                f"{some_of(list(map(str, self.hanging)), 3, '; ')}: abort hanging transactions "
                "with kafka-transactions.sh find-hanging and"
                f" abort, or do not wait for them with --accept-loss {self.would_lose}"
            )
        if self.would_lose - self.awaited > max(0, accept_loss) or (unplanned and accept_loss < 0):
            refusals.append(
                f"{self.would_lose} offsets would not be copied, as far as they are known: see "
                f"--plan; --accept-loss {self.would_lose} accepts that"
            )
        # Without lag nothing is lost yet, but whatever is written until the fence would be.
        if self.source_reachable and accept_loss < 0:
            refusals += self.resting
        if not self.state and not unplanned:
            refusals.append(
                "no worker of the flow answers: give its address with --url or MM2PY_URL"
            )
        # Found out at SWITCH, clients would have moved already.
        if not unplanned:
            refusals += self.unreached
        return tuple(refusals)

    def not_ready(self, request: FailoverRequest, begun: Failover | None = None) -> tuple[str, ...]:
        """Return the refusals, and what else keeps clients from moving as they should: an
        unfinished failover, copies that are missing, groups without their place."""
        reasons = self.refusals(request, begun)
        if self.standing in reasons:
            return reasons
        gaps = (f"{topic.topic}: {text}" for topic in self.topics for text in topic.gaps)
        return (*reasons, *filter(None, [self.unfinished]), *gaps, *self.unplaced)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """How long the questions of one step took, and what they found."""

    step: str
    ms: int
    found: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPlan:
    """A plan with the questions of each step timed; ``gap_ms``: about how long clients would wait
    between their last write on the source and their first on the target.

    ``ready``: a failover would be accepted, and would drain; ``reasons``: why not.
    """

    flow: str
    at_ms: int
    plan: FailoverPlan
    steps: tuple[TimedStep, ...]
    reasons: tuple[str, ...]
    ready: bool
    gap_ms: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverView:
    """The newest failover of a flow, null if there was none.

    ``driven_here``: this worker drives it; ``plan``, ``refused``, and ``reasons`` why it is not
    ready, which contain the refusals, are of a dry run.
    """

    flow: str
    driven_here: bool
    failover: Failover | None
    plan: FailoverPlan | None = None
    refused: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class FailoverCommands(Protocol):
    """The verbs of a failover (``FailoverJob``); each raises ``Mm2pyError`` if a cluster does not
    answer."""

    async def newest(self) -> Failover | None: ...
    async def plan(self) -> FailoverPlan: ...
    async def timed_plan(
        self, request: FailoverRequest, asks: Callable[[str], None] = ...
    ) -> TimedPlan: ...
    async def execute(
        self,
        request: FailoverRequest,
        report: Callable[[Failover], None],
        planned: Callable[[FailoverPlan], None] = ...,
        waits: Callable[[Failover], None] = ...,
    ) -> Failover: ...
    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover: ...


@final
class Masked:
    """The verbs of a failover with secrets hidden in what they show; implements
    ``FailoverCommands``."""

    def __init__(self, inner: FailoverCommands, mask: Callable[[str], str]) -> None:
        self._inner, self._mask = inner, mask

    async def newest(self) -> Failover | None:
        return masked(await self._inner.newest(), self._mask)

    async def plan(self) -> FailoverPlan:
        return masked(await self._inner.plan(), self._mask)

    async def timed_plan(
        self, request: FailoverRequest, asks: Callable[[str], None] = lambda _: None
    ) -> TimedPlan:
        return masked(await self._inner.timed_plan(request, asks), self._mask)

    async def execute(
        self,
        request: FailoverRequest,
        report: Callable[[Failover], None],
        planned: Callable[[FailoverPlan], None] = lambda _: None,
        waits: Callable[[Failover], None] = lambda _: None,
    ) -> Failover:
        shown = self._hiding(report), self._hiding(planned), self._hiding(waits)
        return masked(await self._inner.execute(request, *shown), self._mask)

    async def cancel(self, report: Callable[[Failover], None], *, dry_run: bool) -> Failover:
        return masked(await self._inner.cancel(self._hiding(report), dry_run=dry_run), self._mask)

    def _hiding(self, show: Callable[[V], None]) -> Callable[[V], None]:
        return lambda shown: show(masked(shown, self._mask))
