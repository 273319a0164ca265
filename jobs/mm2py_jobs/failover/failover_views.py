"""What people see of a failover: the plan, what refuses it, and how far it is.

Plain data; ``mm2py_jobs.failover.failover_plan`` fills it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import final

from mm2py.mirror.failovers import Failover, OpenTransaction
from mm2py.observability.logging import some_of
from mm2py_jobs.failover.failover import FailoverRequest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One source topic; lags are null where the source is gone. ``problems``: missing copies, other configs, missing ACLs.

    ``copied_to`` are source offsets below which everything is copied, by partition; ``would_lose`` counts offsets that are not copied and
    that nothing copies now: those above an open transaction are among them where the flow copies committed records.
    """

    topic: str
    copy: str
    partitions: int
    lag_records: int | None
    lag_ms: int | None
    would_lose: int | None
    copied_to: Mapping[int, int]
    problems: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group: its state on both sides, what it would read again or skip if it moved now, and why it is not synced.

    ``type`` is ``classic``, ``consumer`` or ``share``, empty where the broker is older than 3.8.
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
    """A producer that has written to the source lately and is no mirror's; ``age_ms`` since its last batch's time."""

    topic: str
    partition: int
    producer_id: int
    age_ms: int | None
    in_transaction: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What a failover would do.

    ``would_lose`` is what ``--accept-loss`` has to name; of these ``awaited`` are above open transactions, whose end the drain waits for.
    ``transactions`` are all that are open in the flow's topics, but mirrors'; ``state`` is the flow's, empty where no worker of it answers.
    ``standing`` says why clients cannot be moved from where they are, empty where they can.
    ``jobs`` are jobs of Spark that have to end first, and how they are ended. ``fence_rules`` is how many rules would be made, ``fence_note`` who is not kept out by them. ``writers`` is null where brokers do not
    disclose them.
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
    standing: str = ""
    jobs: tuple[str, ...] = ()
    awaited: int = 0
    topics: tuple[TopicRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    writers: tuple[WriterRow, ...] | None = ()
    transactions: tuple[OpenTransaction, ...] = ()

    @property
    def hanging(self) -> tuple[OpenTransaction, ...]:
        """Transactions that no drain should wait for."""
        return tuple(it for it in self.transactions if it.hangs(self.at_ms))

    def document(self) -> dict[str, object]:
        """Return it as JSON shows it."""
        return asdict(self)

    def remarks(self, accept_loss: int) -> Iterator[str]:
        """Yield what is to be known before it begins, and what the number accepts beyond the plan's."""
        if self.standing:
            return
        yield from self.problems
        if accept_loss > self.would_lose:
            yield (
                f"--accept-loss {accept_loss} is more than the {self.would_lose} offsets that would not be copied now:"
                f" up to {accept_loss} may stay behind"
            )

    def refusals(self, request: FailoverRequest, begun: Failover | None = None) -> tuple[str, ...]:
        """Return the reasons not to begin a failover, or not to continue ``begun``."""
        accept_loss, unplanned = request.accept_loss, request.unplanned
        if begun is not None and begun.goes_on(unplanned=unplanned):
            return () if begun.step.is_switched else self.jobs
        if self.standing:
            return (self.standing,)  # how much would be lost is no question then
        found = list(self.jobs)
        if not self.source_reachable and not unplanned:
            found.append("the source does not answer; if it is gone, use --unplanned")
        if self.source_reachable and unplanned:
            found.append("the source answers: leave --unplanned out, nothing has to be lost")
        if self.hanging and accept_loss < 0:
            found.append(
                f"{some_of(list(map(str, self.hanging)), 3, '; ')}: abort what hangs with kafka-transactions.sh find-hanging and abort,"
                f" or --accept-loss {self.would_lose} does not wait for it"
            )
        if self.would_lose - self.awaited > max(0, accept_loss) or (unplanned and accept_loss < 0):
            found.append(
                f"{self.would_lose} offsets would not be copied, as far as they are known: see --plan;"
                f" --accept-loss {self.would_lose} accepts that"
            )
        if not self.state and not unplanned:
            found.append("no worker of the flow answers: give its address with --url or MM2PY_URL")
        return tuple(found)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverView:
    """The newest failover of a flow, null where there was none; ``refused``: why one does not begin.

    ``driven_here``: the worker that was asked drives it; ``plan`` is what a dry run shows.
    """

    flow: str
    driven_here: bool
    failover: Failover | None
    plan: FailoverPlan | None = None
    refused: tuple[str, ...] = ()
