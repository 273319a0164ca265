"""Changes the side that clients write to: one resumable course of steps, the same for failover, failback and a region that is lost.

Flow: ``FailoverDriver.run`` -> claim of ``mm2py-failover.<source>.internal`` -> the steps of ``mm2py.mirror.failovers.Step``, each recorded
before it begins -> ``Sides``, which does them on both clusters and over REST. A driver that dies is followed by any other one, which does
the recorded step again: each can be done twice.

Invariants, tests of the same names (the model with drivers that crash between any two awaits: tests/property/test_failover_drivers.py):

1. A step begins only when it is recorded by the driver that does it; a driver behind which another one has claimed begins no other.
2. Clients may write to the target only when everything below the ends where the source stood still is copied and no transaction is
   open below these, but for what was accepted, or when the source is gone and that was accepted. The ends are high watermarks, whatever
   the flow reads: below a last stable offset nothing says what is committed above it later, and no rule keeps a producer from that.
3. What was not copied is in the quarantine topic before the flow's position goes past it, and before the flow back begins.
4. The flow back begins where the record says, which was written before the flow first began; one that runs is left alone.
5. A cancel undoes what was fenced; it is refused as soon as clients may have written to the target. A failover that is continued behind
   half a cancel fences again.
6. A driver that stood still within a step, while others went on, sets right what it then changes: whoever was kept from writing by these
   is again, and nobody else. Kafka's ACLs cannot be changed under a condition, so this is found out before and behind each change.
7. It is done only when the flow has stopped and the flow back has begun.
8. Writers are fenced, and clients may write to the target, only while no job of Spark (backfill, repair, restore, stream) is unfinished:
   a failover asks for one after its own record is written, a job asks for a failover after its own (``refuse_beside_failover``), and
   both read what is committed. So of both at least one finds the other: the job gives its partitions back, the failover waits for that.
"""

import logging
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, final

from mm2py.clock import Clock
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.failovers import (
    Failover,
    FailoverKind,
    GroupMove,
    OpenTransaction,
    Place,
    Step,
    Tail,
)
from mm2py.observability.logging import some_of
from mm2py.types import TopicPartition
from mm2py_jobs.failover.failover_store import FailoverStore

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_S: Final = 2.0
"""How long the ends of the source's logs have to stand still: a producer that waits longer than that between two sends is not seen."""

DRAIN_S: Final = 120.0
"""How long a drain may make no progress before it is given up."""

LOOK_S: Final = 0.2
AGAIN_S: Final = 0.5
INSIST_S: Final = 60.0
SHOWN: Final = 3
AWAY_S: Final = 10.0
"""How long a source may be silent before it counts as gone, and workers may take to stop its flow before that is left for later."""


class FailoverRefusedError(FatalError):
    """A check refuses; nothing was changed, or the message says what was."""


class SourceAwayError(RetriableError):
    """The source does not answer."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far each source partition is copied: ``ends`` of the logs, ``copied`` offsets below which nothing is left to copy.

    ``stable`` are last stable offsets: a transaction is open there where one is below the end.
    """

    ends: Mapping[TopicPartition, int]
    copied: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]

    @property
    def held(self) -> Mapping[TopicPartition, int]:
        """The last stable offsets of partitions in which a transaction is open."""
        return {tp: at for tp, at in self.stable.items() if at < self.ends[tp]}

    @property
    def missing(self) -> int:
        """Source offsets that are not copied."""
        return sum(it.end - it.start for it in self.tails())

    def tails(self) -> tuple[Tail, ...]:
        """Return what is not copied of each partition."""
        return tuple(
            Tail(topic=tp.topic, partition=tp.partition, start=self.copied.get(tp, 0), end=end)
            for tp, end in sorted(self.ends.items())
            if end > self.copied.get(tp, 0)
        )


class Sides(Protocol):
    """Both clusters of a flow, and the workers that run it and the flow back. All of it may be done twice.

    What asks the source raises ``SourceAwayError`` while it does not answer; everything raises ``RetriableError`` for "not now".
    """

    async def fence(self, by: str) -> str:
        """Deny Write on the source by ACLs where possible; return who can still write and why, empty for nobody."""
        ...

    async def restore_fences(self) -> None:
        """Bring the rules on both clusters to what the records say, as far as a driver behind which others went on may have changed them."""
        ...

    async def lift_fence(self, *, source: bool) -> None:
        """Remove the rules that a failover has made on the source, or on the target."""
        ...

    async def unfinished_job(self) -> str:
        """Return what to call the job of Spark that copies the flow, or keeps partitions from it, and how to end it; empty for none."""
        ...

    async def progress(self) -> Progress:
        """Return how far the copy is; ends do not count what mirrors alone have written since the last call."""
        ...

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        """Name the transactions that hold back these last stable offsets, but mirrors'; none where they have ended."""
        ...

    async def target_ends(self) -> Sequence[Place]:
        """Return where the logs of the copies end."""
        ...

    async def move_groups(self) -> Sequence[GroupMove]:
        """Write the exact offsets of the source's groups to the target; from checkpoints where the source does not answer."""
        ...

    async def stop_flow(self) -> None:
        """Stop the flow; returns when nothing of it copies."""
        ...

    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        """Keep records that were not copied, each once; return the tails with the numbers of records."""
        ...

    async def pass_over(self, tails: Sequence[Tail]) -> None:
        """Let the flow, which is stopped, continue behind the tails."""
        ...

    async def divergence(self, ends_there: Sequence[Place]) -> Sequence[Place]:
        """Return where the flow back begins, by target partition: at the first record that this flow has not written."""
        ...

    async def start_reverse(self, starts: Sequence[Place]) -> None:
        """Let the flow back copy: begin at places if it does not run; returns when it does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRequest:
    """What is asked for; ``accept_loss`` as of ``Failover``, ``unplanned``: without the source, ``settle_s`` and ``drain_s`` as their defaults say."""

    id: str
    kind: FailoverKind = FailoverKind.FAILOVER
    accept_loss: int = -1
    unplanned: bool = False
    settle_s: float = SETTLE_S
    drain_s: float = DRAIN_S


@final
class FailoverDriver:
    """Drives the newest failover of a flow.

    Args:
        store: the failover topic of the target, open.
        sides: both clusters.
        name: ``A->B``.
        report: told of each record that was written.
    """

    def __init__(
        self,
        store: FailoverStore,
        sides: Sides,
        *,
        name: str,
        clock: Clock,
        report: Callable[[Failover], None] = lambda _: None,
    ) -> None:
        self._store, self._sides, self._name = store, sides, name
        self._clock, self._report = clock, report
        self._settle_s, self._drain_s = SETTLE_S, DRAIN_S
        self._known: Failover | None = None
        """What this driver took over, or wrote last; behind it another driver has written."""
        self._lost = False
        self._me = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._steps: Mapping[Step, Callable[[Failover], Awaitable[Failover]]] = {
            Step.FENCE: self._fence,
            Step.DRAIN: self._drain,
            Step.GROUPS: self._groups,
            Step.VERIFY: self._verify,
            Step.SWITCH: self._switch,
            Step.TAIL: self._tail,
            Step.REVERSE: self._reverse,
        }

    async def run(self, request: FailoverRequest, seen: Failover | None = None) -> Failover:
        """Begin a failover behind the one that was ``seen`` when it was checked, or continue the unfinished one, to its end; return it.

        It is returned at the step TAIL where the source is still gone: a later run goes on.

        Raises:
            FailoverRefusedError: a check refuses to go on; a later run tries again.
            RetriableError: a cluster or worker did not answer for too long; a later run goes on.
            Mm2pyError: something is not allowed; a later run goes on where it was repaired.
        """
        self._settle_s, self._drain_s = request.settle_s, request.drain_s
        failover = await self._taken(request, seen)
        try:
            while not failover.step.is_over:
                try:
                    failover = await self._steps[failover.step](failover)
                except SourceAwayError:
                    if failover.step is not Step.TAIL:
                        raise
                    return failover
                await self._write(failover)
        except Mm2pyError as error:
            await self._note(error)
            raise
        return failover

    async def cancel(self) -> Failover:
        """Undo the unfinished failover of the flow (5).

        Raises:
            FailoverRefusedError: there is none, or clients may have written to the target.
        """
        await self._insist(self._store.claim)
        failover = self._known = self.check_cancel(self._store.failover)
        # Who continues this in place of the cancel has to fence again.
        failover = replace(
            self._mine(failover, failover.accept_loss), step=Step.FENCE, fenced=False
        )
        await self._write(failover)
        await self._change(lambda: self._sides.lift_fence(source=True))
        failover = replace(failover, step=Step.CANCELLED)
        await self._write(failover)
        # A driver that stood still may have fenced meanwhile; from here on it finds the cancel, and undoes that itself.
        await self._change(lambda: self._sides.lift_fence(source=True))
        return failover

    def check_cancel(self, failover: Failover | None) -> Failover:
        """Return a failover that can be cancelled; raises as ``cancel``."""
        if failover is None or failover.step.is_over:
            raise FailoverRefusedError(f"there is no unfinished failover of {self._name}")
        if failover.step.is_switched:
            raise FailoverRefusedError(
                f"{failover.kind} {failover.id} of {self._name} is at {failover.step}: clients may have written to the target",
                remedy="run it to its end, then return",
            )
        return failover

    # ---- taking over

    async def _taken(self, request: FailoverRequest, seen: Failover | None) -> Failover:
        await self._insist(self._store.claim)
        before = self._known = self._store.failover
        if before is not None and not before.step.is_over:
            accepted = max(before.accept_loss, request.accept_loss)
            failover = self._mine(before, accepted)
            if request.unplanned and not failover.step.is_switched:
                failover = replace(failover, unplanned=True, step=Step.SWITCH)
        elif _drive(before) != _drive(seen) or (seen is not None and not seen.step.is_over):
            raise FailoverRefusedError(
                f"another driver has ended a failover of {self._name} meanwhile",
                remedy="look at --status",
            )
        else:
            first = Step.SWITCH if request.unplanned else Step.FENCE
            failover = Failover(
                id=request.id,
                flow=self._name,
                kind=request.kind,
                step=first,
                run=1,
                driver=self._me,
                accept_loss=request.accept_loss,
                unplanned=request.unplanned,
                started_ms=self._clock.now_ms(),
            )
        await self._write(failover)
        return failover

    def _mine(self, failover: Failover, accept_loss: int) -> Failover:
        return replace(
            failover, run=failover.run + 1, driver=self._me, accept_loss=accept_loss, cause=""
        )

    async def _write(self, failover: Failover) -> None:
        """Record what is done next (1)."""
        record = replace(failover, at_ms=self._clock.now_ms())

        async def write() -> None:
            await self._check_mine(record)
            await self._store.write(record)
            self._known = record

        await self._insist(write)
        log.info("failover flow=%s step=%s", self._name, record.step)
        self._report(record)

    async def _note(self, error: Mm2pyError) -> None:
        """Say in the record why this driver ends; where that cannot be written, the record says nothing."""
        if self._lost or self._known is None or not self._store.claimed:
            return
        # What a step has recorded on its way stays: it cannot be found out again once clients write to the target.
        record = replace(self._known, cause=str(error), at_ms=self._clock.now_ms())
        try:
            await self._store.write(record)
        except Mm2pyError as problem:
            log.warning("the cause is not recorded cause=%s", problem)

    # ---- steps

    async def _wait_for_job(self) -> None:
        """Wait until no job of Spark is left (8): one that began together with this failover gives way by itself."""
        deadline = self._clock.monotonic() + self._drain_s
        while job := await self._insist(self._sides.unfinished_job):
            if self._clock.monotonic() > deadline:
                raise FailoverRefusedError(job, remedy="then run this again; or --cancel it")
            await self._clock.sleep(AGAIN_S)

    async def _fence(self, failover: Failover) -> Failover:
        await self._wait_for_job()
        note = await self._change(lambda: self._sides.fence(failover.id))
        return replace(failover, step=Step.DRAIN, fenced=True, fence_note=note)

    async def _drain(self, failover: Failover) -> Failover:
        """Wait until nothing is missing and no transaction is open, or what is accepted is all that will not be copied."""
        least, since = None, self._clock.monotonic()
        named: Mapping[TopicPartition, int] | None = None
        while True:
            progress = await self._insist(self._sides.progress)
            missing, held = progress.missing, progress.held
            now = self._clock.monotonic()
            if least is None or (missing, len(held)) < least:
                least, since = (missing, len(held)), now
            is_settled = now - since >= self._settle_s
            if (is_settled or failover.transactions) and named != held:
                failover, named = await self._named(failover, held), held
            if (not missing and not held) or (missing <= failover.accept_loss and is_settled):
                return replace(
                    failover, step=Step.GROUPS, missing=missing, ends=_places(progress.ends)
                )
            if now - since > self._drain_s:
                raise self._not_drained(failover, missing)
            await self._clock.sleep(LOOK_S)

    async def _named(self, failover: Failover, held: Mapping[TopicPartition, int]) -> Failover:
        """Record which transactions are waited for."""
        opened = tuple(await self._insist(lambda: self._sides.open_transactions(held)))
        if opened != failover.transactions:
            failover = replace(failover, transactions=opened)
            await self._write(failover)
        return failover

    def _not_drained(self, failover: Failover, missing: int) -> FailoverRefusedError:
        opened = some_of(list(map(str, failover.transactions)), SHOWN, "; ")
        return FailoverRefusedError(
            f"{missing} offsets of {self._name} are not copied and nothing was for {self._drain_s:g} s"
            + (f"; not ended: {opened}" if opened else ""),
            remedy="look at mm2py lag and mm2py flow describe, then run it again; or accept that they go to the quarantine"
            f" topic with --accept-loss {missing}; or --cancel, which undoes the fence"
            + (f". Not kept from writing: {failover.fence_note}" if failover.fence_note else ""),
        )

    async def _groups(self, failover: Failover) -> Failover:
        groups = await self._insist(self._sides.move_groups)
        return replace(failover, step=Step.VERIFY, groups=_both(failover.groups, groups))

    async def _verify(self, failover: Failover) -> Failover:
        """Look whether the source still ends where it was drained to; if not, fence and drain again (2): topics may be new."""
        await self._clock.sleep(self._settle_s)
        progress = await self._insist(self._sides.progress)
        moved = _places(progress.ends) != failover.ends
        reopened = progress.held and failover.accept_loss < 0
        if moved or reopened or progress.missing > max(0, failover.accept_loss):
            log.warning("the source was written after it was drained flow=%s", self._name)
            return replace(failover, step=Step.FENCE)
        there = await self._insist(self._sides.target_ends)
        return replace(
            failover, step=Step.SWITCH, missing=progress.missing, ends_there=tuple(there)
        )

    async def _switch(self, failover: Failover) -> Failover:
        """Let clients write to the target, then stop the flow."""
        if not failover.switched_ms:
            await self._wait_for_job()
        if not failover.ends_there:
            there = await self._insist(self._sides.target_ends)
            failover = replace(failover, ends_there=tuple(there))
            await self._write(failover)
        await self._change(lambda: self._sides.lift_fence(source=False))
        if not failover.switched_ms:
            failover = replace(failover, switched_ms=self._clock.now_ms())
            await self._write(failover)
        try:
            await self._change(
                self._sides.stop_flow, INSIST_S if not failover.unplanned else AWAY_S
            )
        except RetriableError as error:
            if not failover.unplanned:
                raise
            # No worker answers; TAIL stops the flow again before it looks.
            log.warning("flow is not stopped yet flow=%s cause=%s", self._name, error)
        groups = await self._insist(self._sides.move_groups)
        return replace(failover, step=Step.TAIL, groups=_both(failover.groups, groups))

    async def _tail(self, failover: Failover) -> Failover:
        """List and keep what was not copied (3); the source may be away for long."""
        tails = failover.tail
        # First of all: a source that is still away is no reason to wait for workers.
        progress = None if tails else await self._insist(self._sides.progress)
        await self._change(self._sides.stop_flow)
        if progress is not None:
            if not failover.fenced:
                note = await self._change(lambda: self._sides.fence(failover.id))
                failover = replace(failover, fenced=True, fence_note=note)
            progress = await self._still(progress)
            tails, held = progress.tails(), progress.held
            opened = await self._insist(lambda: self._sides.open_transactions(held))
            failover = replace(
                failover, tail=tails, missing=progress.missing, transactions=tuple(opened)
            )
            if tails:
                await self._write(failover)
        if tails:
            kept = tuple(await self._insist(lambda: self._sides.quarantine(tails)))
            await self._change(lambda: self._sides.pass_over(kept))
            failover = replace(failover, tail=kept)
        return replace(failover, step=Step.REVERSE)

    async def _still(self, progress: Progress) -> Progress:
        """Wait until the ends stand still, which they do already behind a verification."""
        while True:
            await self._clock.sleep(self._settle_s)
            newer = await self._insist(self._sides.progress)
            if newer.ends == progress.ends:
                return newer
            progress = newer

    async def _reverse(self, failover: Failover) -> Failover:
        if not failover.starts:
            starts = await self._insist(lambda: self._sides.divergence(failover.ends_there))
            failover = replace(failover, starts=tuple(starts))
            await self._write(failover)
        await self._change(lambda: self._sides.start_reverse(failover.starts))
        return replace(failover, step=Step.DONE)

    async def _change(self, change: Callable[[], Awaitable[T]], longest_s: float = INSIST_S) -> T:
        """Insist on what changes a cluster or a flow, while no other driver has taken over (6)."""

        async def once() -> T:
            await self._check_mine()
            try:
                done = await change()
            except Mm2pyError:
                await self._insist(self._check_mine)  # it may have been done all the same
                raise
            await self._insist(self._check_mine)
            return done

        return await self._insist(once, longest_s)

    async def _check_mine(self, writes: Failover | None = None) -> None:
        """Find out whether another driver has taken over; a record that this one ``writes`` may be there already."""
        await (self._store.refresh() if self._store.claimed else self._store.claim())
        newest, known = self._store.failover, self._known
        mine = [_drive(it) for it in (known, writes) if it is not None and it.driver == self._me]
        # Also the driver before this one may have claimed again, and gone on.
        if newest is not None and newest != known and _drive(newest) not in mine:
            await self._sides.restore_fences()
            self._lost = True
            raise FailoverRefusedError(
                f"another driver has taken {newest.kind} {newest.id} of {self._name} over ({newest.driver})",
                remedy="look at --status, and at mm2py flow list",
            )

    async def _insist(self, step: Callable[[], Awaitable[T]], longest_s: float = INSIST_S) -> T:
        """Do a step, again for up to ``longest_s`` where it fails now, and for ``AWAY_S`` where the source is away.

        Raises:
            RetriableError: it still does.
        """
        deadline = self._clock.monotonic() + longest_s
        while True:
            try:
                return await step()
            except RetriableError as error:
                away_s = longest_s - AWAY_S if isinstance(error, SourceAwayError) else 0.0
                if self._clock.monotonic() > deadline - max(0.0, away_s):
                    raise
                log.debug("a step of the failover is done again cause=%s", error)
                await self._clock.sleep(AGAIN_S)


def _places(offsets: Mapping[TopicPartition, int]) -> tuple[Place, ...]:
    return tuple(
        Place(topic=tp.topic, partition=tp.partition, offset=offset)
        for tp, offset in sorted(offsets.items())
    )


def _both(first: Sequence[GroupMove], then: Sequence[GroupMove]) -> tuple[GroupMove, ...]:
    """Return what two syncs did with the groups that the second has found: it finds little that is still to be moved."""
    before = {it.group: it.moved for it in first}
    return tuple(replace(it, moved=max(it.moved, before.get(it.group, 0))) for it in then)


def _drive(failover: Failover | None) -> tuple[str, int, str] | None:
    """Return what differs between two drivers' records."""
    return None if failover is None else (failover.id, failover.run, failover.driver)
