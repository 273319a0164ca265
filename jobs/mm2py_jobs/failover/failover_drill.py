"""A failover rehearsed: each step's questions are asked of both clusters and timed, nothing is changed, nobody is switched.

Flow: ``rehearse`` -> the plan, log ends twice, groups translated but not written, the place where the flow back would begin ->
``Drill``, a report.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar, final

from mm2py.types import TopicPartition
from mm2py_jobs.failover.failover import FailoverRequest
from mm2py_jobs.failover.failover_groups import move_groups
from mm2py_jobs.failover.failover_views import FailoverPlan
from mm2py_jobs.failover.failover_work import FailoverWork

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One step: how long its questions took, and what they found."""

    step: str
    ms: int
    found: str


@final
@dataclass(slots=True)
class Drill:
    """A rehearsal; ``gap_ms`` is about how long clients would wait between their last write here and their first there."""

    flow: str
    at_ms: int
    plan: FailoverPlan | None = None
    steps: list[Rehearsed] = field(default_factory=list[Rehearsed])
    reasons: list[str] = field(default_factory=list[str])
    gap_ms: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether a failover would be let through, and drain."""
        return not self.reasons

    def document(self) -> dict[str, object]:
        """Return it as the report has it."""
        return {**asdict(self), "ready": self.is_ready}


async def rehearse(work: FailoverWork, settle_s: float) -> Drill:
    """Rehearse a failover of a flow.

    Raises:
        RetriableError: a cluster does not answer.
    """
    clusters, sides, clock = work.clusters, work.sides, work.clusters.clock
    drill = Drill(str(clusters.name), clock.now_ms())

    async def timed(step: str, question: Awaitable[T], found: Callable[[T], str]) -> T:
        began_s = clock.monotonic()
        answer = await question
        ms = round((clock.monotonic() - began_s) * 1000)
        drill.steps.append(Rehearsed(step=step, ms=ms, found=found(answer)))
        return answer

    plan = drill.plan = await timed(
        "PLAN",
        work.plan(),
        lambda it: (
            f"{len(it.topics)} topics, {len(it.groups)} groups, {len(it.writers or ())} writers"
        ),
    )
    _judge(plan, drill)
    if not plan.source_reachable:
        return drill
    await timed("FENCE", sides.fence_plan(), lambda it: f"{len(it.rules)} rules. {it.note}")
    first = await timed(
        "DRAIN",
        sides.progress(),
        lambda it: f"{it.missing} offsets behind, {len(it.held)} partitions with open transactions",
    )
    moves = await timed(
        "GROUPS",
        move_groups(clusters, source_there=True, writes=False),
        lambda it: f"{len(it)} groups, {sum(bool(move.left) for move in it)} with a remark",
    )
    await clock.sleep(settle_s)
    last = await timed(
        "VERIFY",
        sides.progress(),
        lambda it: "log ends stand still" if it.ends == first.ends else "somebody writes",
    )
    ends = await timed("SWITCH", sides.target_ends(), lambda it: f"{len(it)} partitions of copies")
    await timed(
        "REVERSE",
        sides.divergence(ends),
        lambda it: f"the flow back would begin at {len(it)} places",
    )
    drill.gap_ms = round(1000 * settle_s) + sum(
        it.ms for it in drill.steps if it.step in ("FENCE", "DRAIN", "GROUPS", "VERIFY", "SWITCH")
    )
    drill.reasons += [
        f"group {it.group}: {text}" for it in moves for text in it.left if "no place" in text
    ]
    drill.reasons += [
        str(it)
        for it in await clusters.open_transactions(last.held)
        if first.held.get(TopicPartition(it.topic, it.partition)) == it.offset
    ]
    if last.ends != first.ends and not plan.fence_rules:
        drill.reasons.append(
            f"the source is written, and no rule would stop that: {plan.fence_note}"
        )
    return drill


def _judge(plan: FailoverPlan, drill: Drill) -> None:
    drill.reasons += plan.refusals(FailoverRequest(id=""))
    drill.reasons += [
        f"{it.topic}: {text}" for it in plan.topics for text in it.problems if "missing" in text
    ]
