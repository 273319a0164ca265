"""Moves clients to the other cluster: one resumable sequence of steps, the same for failover,
failback and a lost region.

Flow: ``FailoverDriver.run`` -> claim of ``mm2py-failover.<source>.internal`` (``FailoverStore``) ->
the steps of ``mm2py.mirror.failovers.Step``, each recorded before it begins -> ``Sides``, which
does them on both clusters and over REST. After a crash any other driver continues: it repeats the
recorded step, and every step is idempotent.

Invariants, tests of the same names (the model with drivers that crash between any two awaits:
tests/property/test_failover_drivers.py):

1. A step begins only after the driver that does it has recorded it; a superseded driver begins no
   further step.
2. Clients may write to the target only after everything below the ends at which the source stopped
   is copied and no transaction is open below them, except for the accepted loss, or if the source
   is gone and that was accepted. The ends are high watermarks, whatever the flow's isolation level:
   what is above a last stable offset may still be committed, and no ACL keeps a producer from
   committing.
3. What was not copied is in the quarantine topic before the flow's position passes it, and before
   the flow back begins.
4. The flow back begins where the record says, which was written before the flow back first began;
   one that runs is left alone.
5. A cancel removes the fence; it is refused as soon as clients may have written to the target. A
   failover that is continued after half a cancel fences again.
6. A driver that was suspended within a step, while others continued, repairs what it then changes:
   principals that the others had fenced are fenced again, and no others. Kafka has no conditional
   change of ACLs, so this is checked before and after each change.
7. It is done only when the flow has stopped and the flow back has begun.
8. Writers are fenced, and clients may write to the target, only while no Spark job (backfill,
   repair, restore, stream) is unfinished: a failover looks for a job after its own record is
   written, a job looks for a failover after its own (``refuse_beside_failover``), and both read
   committed records. So at least one of the two finds the other: the job returns its partitions,
   and the failover waits for that. A failover of the flow back that begins at the same time is
   found likewise, and waited for.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar, final

from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
from mm2py.mirror.failovers import (
    Failover,
    FailoverRecord,
    Fence,
    GroupMove,
    LogPlace,
    OpenTransaction,
    Step,
    Tail,
    decode_failover,
    encode_failover,
)
from mm2py.mirror.versioned_json import unreadable
from mm2py.observability.logging import some_of
from mm2py.protocol.records import Record
from mm2py.storage.job_claim import DriverClaim, drive_of
from mm2py.storage.privileged_writer import PrivilegedWriter
from mm2py.storage.table import Table
from mm2py.types import TopicPartition
from mm2py_jobs.failover.plan import (
    DRAIN_S,
    SETTLE_S,
    FailoverRefusedError,
    FailoverRequest,
    where_it_stands,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 0.2
AGAIN_S: Final = 0.5
INSIST_S: Final = 60.0
SHOWN: Final = 3
AWAY_S: Final = 10.0
"""After so long an unreachable source counts as gone; and without a source, the stop of its flow is
left for TAIL."""
READ_S: Final = 60.0
"""Longest read to the end of the failover topic (``default.api.timeout.ms``)."""


class SourceAwayError(RetriableError):
    """The source does not answer."""


@dataclass(frozen=True, slots=True)
class DriverProgress:
    """How far each source partition is copied: ``ends`` of the logs, ``copied`` offsets below which
    everything is copied.

    ``stable`` are last stable offsets: where one is below the end, a transaction is open.
    """

    ends: Mapping[TopicPartition, int]
    copied: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]

    @property
    def held(self) -> Mapping[TopicPartition, int]:
        """The last stable offsets of partitions with an open transaction."""
        return {tp: at for tp, at in self.stable.items() if at < self.ends[tp]}

    @property
    def missing(self) -> int:
        """Number of source offsets that are not copied."""
        return sum(tail.end - tail.start for tail in self.tails())

    def tails(self) -> tuple[Tail, ...]:
        """Return the range of each partition that is not copied."""
        return tuple(
            Tail(topic=tp.topic, partition=tp.partition, start=self.copied.get(tp, 0), end=end)
            for tp, end in sorted(self.ends.items())
            if end > self.copied.get(tp, 0)
        )


class Sides(Protocol):
    """Both clusters of a flow, and the workers that run it and the flow back. Every method is
    idempotent.

    What asks the source raises ``SourceAwayError`` while it does not answer; everything raises
    ``RetriableError`` for "not now".
    """

    async def fence(self, by: str) -> str: ...
    async def restore_fences(self) -> None: ...
    async def lift_fence(self, *, source: bool) -> None: ...
    async def unfinished_job(self) -> str: ...
    async def progress(self) -> DriverProgress: ...
    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]: ...
    async def target_ends(self) -> Sequence[LogPlace]: ...
    async def move_groups(self) -> Sequence[GroupMove]: ...
    async def stop_flow(self) -> int: ...
    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]: ...
    async def pass_over(self, tails: Sequence[Tail]) -> None: ...
    async def divergence(self, ends_there: Sequence[LogPlace]) -> Sequence[LogPlace]: ...
    async def start_reverse(self, starts: Sequence[LogPlace]) -> None: ...


@final
class FailoverStore:
    """The failover topic of one cluster (``mm2py-failover.<alias>.internal``): the newest failover
    into it, and the fence on it.

    Args:
        table: the topic; read by ``refresh``.
        writer: writes with a driver's transactional id; None only reads, and writes fences without
            one.
    """

    def __init__(self, table: Table, writer: PrivilegedWriter | None = None) -> None:
        self._table, self.writer = table, writer
        self._records: dict[bytes, FailoverRecord | ProtocolError] = {}

    async def start(self) -> None:
        """Read the topic to its end; creates it if it does not exist. ``RetriableError``: not now;
        a later call begins anew."""
        self._records.clear()
        await self._table.start(self._take)

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        await self._table.stop()
        if self.writer is not None:
            await self.writer.close()

    async def refresh(self) -> None:
        await self._table.read_to_end(READ_S)

    @property
    def failover(self) -> Failover | None:
        """The newest failover into this cluster, if any; ``FatalError``: its record is of a version
        that this program cannot read."""
        record = self._readable(b"failover")
        return record if isinstance(record, Failover) else None

    @property
    def fence(self) -> Fence | None:
        """The fence on this cluster, if any; raises as ``failover``."""
        record = self._readable(b"fence")
        return record if isinstance(record, Fence) and record.rules else None

    async def write(self, record: FailoverRecord) -> None:
        """Write a record in a transaction; a fence without one where this store does not drive.
        ``RetriableError``: not now, or another driver has claimed the topic; the claim is lost."""
        entry = encode_failover(record)
        if self.writer is not None:
            await self.writer.write([entry])
        else:
            await self._table.post([entry])
        if isinstance(record, Fence):
            self._records[entry[0]] = record

    def _take(self, _partition: int, record: Record) -> None:
        key = bytes(record.key or b"")
        if record.value is None:
            self._records.pop(key, None)
            return
        try:
            self._records[key] = decode_failover(key, bytes(record.value))
        except ProtocolError as error:
            log.warning("record cannot be read offset=%d cause=%s", record.offset, error)
            self._records[key] = error  # an older one does not count any more

    def _readable(self, key: bytes) -> FailoverRecord | None:
        record = self._records.get(key)
        if isinstance(record, ProtocolError):
            raise unreadable("the failover topic", record)
        return record


@final
class FailoverDriver:
    """Drives the newest failover of a flow.

    Args:
        store: the failover topic of the target, open.
        sides: both clusters.
        name: ``A->B``.
        report: called with each record that was written.
        waits: called at each look while it waits for the copy, with the record as it would be now.
        after_ms: when clients last moved the other way, by the clock of the driver that moved them:
            by these times it is known where they are, so that they rise whatever the clocks of
            drivers say.
    """

    def __init__(
        self,
        store: FailoverStore,
        sides: Sides,
        *,
        name: str,
        clock: Clock,
        report: Callable[[Failover], None] = lambda _: None,
        waits: Callable[[Failover], None] = lambda _: None,
        after_ms: int = 0,
    ) -> None:
        self._store, self._sides, self._name = store, sides, name
        self._clock, self._report, self._waits = clock, report, waits
        self._after_ms = after_ms
        self._settle_s, self._drain_s = SETTLE_S, DRAIN_S
        assert store.writer is not None
        self._claim = DriverClaim[Failover](store.writer, store.refresh, lambda: store.failover)
        self._lost = False
        self._written_since: float | None = None
        """When this driver first found the source written after a drain."""
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
        """Continue the unfinished failover, or begin one after ``seen``, the newest when the plan
        was checked; return it at its end.

        It is returned at the step TAIL if the source is still gone: a later run continues.

        Raises:
            FailoverRefusedError: a check refuses; a later run tries again.
            RetriableError: a cluster or worker did not answer for too long; a later run continues.
            Mm2pyError: something is not allowed; a later run continues after it was repaired.
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
                failover = await self._write(failover)
        except Mm2pyError as error:
            self._say_where(error)
            await self._record_cause(error)
            raise
        return failover

    def _say_where(self, error: Mm2pyError) -> None:
        """Add to the remedy of what ends this driver where clients are, and how it continues."""
        recorded = self._claim.known
        if self._lost or recorded is None:
            return
        where = where_it_stands(recorded)
        if where not in error.remedy and "--cancel" not in error.remedy:
            error.remedy = f"{error.remedy}; {where}" if error.remedy else where

    async def cancel(self) -> Failover:
        """Cancel the unfinished failover of the flow (5); ``FailoverRefusedError``: there is none,
        or clients may have written to the target."""
        failover = self.check_cancel(await self._insist(self._claim.take))
        # A driver that resumes instead of cancelling must fence again.
        failover = replace(
            self._mine(failover, failover.accept_loss), step=Step.FENCE, fenced=False
        )
        await self._write(failover)
        await self._change(lambda: self._sides.lift_fence(source=True))
        failover = await self._write(replace(failover, step=Step.CANCELLED))
        # A suspended driver may have fenced meanwhile; from here on it finds the cancel, and
        # removes its fence itself.
        await self._change(lambda: self._sides.lift_fence(source=True))
        return failover

    def check_cancel(self, failover: Failover | None) -> Failover:
        """Return ``failover`` if it can be cancelled; raises like ``cancel``."""
        if failover is None or failover.step.is_over:
            raise FailoverRefusedError(f"there is no unfinished failover of {self._name}")
        if failover.step.is_switched:
            raise FailoverRefusedError(
                f"{failover.kind} {failover.id} of {self._name} is at {failover.step}: clients "
                "may have written to the target",
                remedy="run it to its end, then return",
            )
        return failover

    # ---- the claim

    async def _taken(self, request: FailoverRequest, seen: Failover | None) -> Failover:
        before = await self._insist(self._claim.take)
        if before is not None and not before.step.is_over:
            accepted = max(before.accept_loss, request.accept_loss)
            failover = self._mine(before, accepted)
            if request.unplanned and not failover.step.is_switched:
                failover = replace(failover, unplanned=True, step=Step.SWITCH)
        elif drive_of(before) != drive_of(seen) or (seen is not None and not seen.step.is_over):
            raise FailoverRefusedError(
                f"another driver has ended a failover of {self._name} meanwhile",
                remedy="see --status",
            )
        else:
            first = Step.SWITCH if request.unplanned else Step.FENCE
            failover = Failover(
                id=request.id,
                flow=self._name,
                kind=request.kind,
                step=first,
                run=1,
                driver=self._claim.me,
                accept_loss=request.accept_loss,
                unplanned=request.unplanned,
                started_ms=self._clock.now_ms(),
            )
        return await self._write(failover)

    def _mine(self, failover: Failover, accept_loss: int) -> Failover:
        return replace(
            failover, run=failover.run + 1, driver=self._claim.me, accept_loss=accept_loss, cause=""
        )

    async def _write(self, failover: Failover) -> Failover:
        """Record the next step (1); return the record, which has the times of the steps."""
        before = self._claim.known
        steps = before.steps if before is not None and before.id == failover.id else ()
        record = replace(failover, steps=steps).recorded(self._clock.now_ms())

        async def write() -> None:
            await self._check_mine(record)
            await self._store.write(record)
            self._claim.known = record

        await self._insist(write)
        log.info("failover flow=%s step=%s", self._name, record.step)
        self._report(record)
        return record

    async def _record_cause(self, error: Mm2pyError) -> None:
        """Record why this driver ends, if the record can be written."""
        recorded = self._claim.known
        if self._lost or recorded is None or not self._claim.holds:
            return
        # What a step has recorded stays: it cannot be measured again once clients write to the
        # target.
        record = replace(recorded.recorded(self._clock.now_ms()), cause=str(error))
        try:
            await self._store.write(record)
        except Mm2pyError as problem:
            log.warning("the cause is not recorded cause=%s", problem)

    # ---- steps

    async def _wait_for_job(self) -> None:
        """Wait until no Spark job and no failover of the flow back is unfinished (8): a job that
        began at the same time withdraws by itself."""
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
        """Wait until everything is copied and no transaction is open, or the copy has settled
        within the accepted loss."""
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
            self._waits(replace(failover, missing=missing))
            await self._clock.sleep(LOOK_S)

    async def _named(self, failover: Failover, held: Mapping[TopicPartition, int]) -> Failover:
        """Record the transactions that the drain waits for."""
        opened = tuple(await self._insist(lambda: self._sides.open_transactions(held)))
        if opened != failover.transactions:
            failover = replace(failover, transactions=opened)
            await self._write(failover)
        return failover

    def _not_drained(self, failover: Failover, missing: int) -> FailoverRefusedError:
        opened = some_of(list(map(str, failover.transactions)), SHOWN, "; ")
        return FailoverRefusedError(
            (
                f"{missing} offsets of {self._name} are not copied and nothing was for "
                f"{self._drain_s:g} s"
            )
            + (f"; not ended: {opened}" if opened else ""),
            remedy=f"see mm2py lag --flow '{self._name}' and mm2py flow describe '{self._name}', "
            "then run it again; or accept that they go to the quarantine"
            f" topic with --accept-loss {missing}; or --cancel, which removes the fence"
            + (f". Not fenced: {failover.fence_note}" if failover.fence_note else ""),
        )

    async def _groups(self, failover: Failover) -> Failover:
        groups = await self._insist(self._sides.move_groups)
        return replace(failover, step=Step.VERIFY, groups=_both(failover.groups, groups))

    async def _verify(self, failover: Failover) -> Failover:
        """Check that the source still ends where it was drained to; else fence and drain again (2),
        because topics may be new.

        Producers that no ACL blocks may go on: after ``drain_s`` of that they are for the user to
        stop.
        """
        await self._clock.sleep(self._settle_s)
        progress = await self._insist(self._sides.progress)
        moved = _places(progress.ends) != failover.ends
        reopened = progress.held and failover.accept_loss < 0
        if moved or reopened or progress.missing > max(0, failover.accept_loss):
            log.warning("the source was written after it was drained flow=%s", self._name)
            now = self._clock.monotonic()
            self._written_since = now if self._written_since is None else self._written_since
            if now - self._written_since > self._drain_s:
                drained = {it.tp: it.offset for it in failover.ends}
                written = {tp for tp, end in progress.ends.items() if drained.get(tp) != end}
                written |= progress.held.keys() | {it.tp for it in progress.tails()}
                remedy = (
                    "stop the producers that are left there, then run it again; or "
                    "--cancel, which removes the fence"
                )
                raise self._written_on(written, failover, remedy)
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
            now_ms = max(self._clock.now_ms(), self._after_ms + 1)
            failover = replace(failover, switched_ms=now_ms)
            await self._write(failover)
        try:
            await self._change(
                self._sides.stop_flow, INSIST_S if not failover.unplanned else AWAY_S
            )
        except RetriableError as error:
            if not failover.unplanned:
                raise
            # No worker answers; TAIL stops the flow again before it reads the source.
            log.warning("flow is not stopped yet flow=%s cause=%s", self._name, error)
        groups = await self._insist(self._sides.move_groups)
        return replace(failover, step=Step.TAIL, groups=_both(failover.groups, groups))

    async def _tail(self, failover: Failover) -> Failover:
        """List and keep what was not copied (3); the source may be unreachable for long."""
        tails = failover.tail
        # Asked first: while the source is unreachable there is no need to wait for workers.
        progress = None if tails else await self._insist(self._sides.progress)
        stopped_at = await self._change(self._sides.stop_flow)
        failover = replace(failover, stopped_at=stopped_at)
        if progress is not None:
            if not failover.fenced:
                note = await self._change(lambda: self._sides.fence(failover.id))
                failover = replace(failover, fenced=True, fence_note=note)
            progress = await self._still(progress, failover)
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

    async def _still(self, progress: DriverProgress, failover: Failover) -> DriverProgress:
        """Wait until the ends do not move; after VERIFY they do not, but a source that is back may
        have producers that no ACL blocks."""
        deadline = self._clock.monotonic() + self._drain_s
        while True:
            await self._clock.sleep(self._settle_s)
            newer = await self._insist(self._sides.progress)
            moved = {it for it, end in newer.ends.items() if progress.ends.get(it) != end}
            if not moved and len(newer.ends) == len(progress.ends):
                return newer
            if self._clock.monotonic() > deadline:
                remedy = (
                    "stop the producers that are left there, then run it again: what they "
                    "wrote is listed and kept"
                )
                raise self._written_on(moved, failover, remedy)
            self._waits(replace(failover, missing=newer.missing))
            progress = newer

    def _written_on(
        self, written: Collection[TopicPartition], failover: Failover, remedy: str
    ) -> FailoverRefusedError:
        return FailoverRefusedError(
            f"the source of {self._name} was written for {self._drain_s:g} s: "
            f"{some_of(sorted(map(str, written)), SHOWN)}",
            remedy=remedy + (f". Not fenced: {failover.fence_note}" if failover.fence_note else ""),
        )

    async def _reverse(self, failover: Failover) -> Failover:
        if not failover.starts:
            starts = await self._insist(lambda: self._sides.divergence(failover.ends_there))
            failover = replace(failover, starts=tuple(starts))
            await self._write(failover)
        await self._change(lambda: self._sides.start_reverse(failover.starts))
        return replace(failover, step=Step.DONE)

    async def _change(self, change: Callable[[], Awaitable[T]], longest_s: float = INSIST_S) -> T:
        """Insist on a change of a cluster or flow, checking before and after it that no other
        driver has taken over (6)."""

        async def once() -> T:
            await self._check_mine()
            try:
                done = await change()
            except Mm2pyError:
                await self._insist(self._check_mine)  # it may have been done nevertheless
                raise
            await self._insist(self._check_mine)
            return done

        return await self._insist(once, longest_s)

    async def _check_mine(self, writes: Failover | None = None) -> None:
        """Raise if another driver has taken over; the record that this one ``writes`` may be in the
        topic already."""
        if not await self._claim.is_superseded(writes):
            return
        await self._sides.restore_fences()
        self._lost = True
        newest = self._store.failover
        assert newest is not None
        raise FailoverRefusedError(
            f"another driver has taken {newest.kind} {newest.id} of {self._name} over "
            f"({newest.driver})",
            remedy=f"see --status and mm2py flow describe '{self._name}'",
        )

    async def _insist(self, step: Callable[[], Awaitable[T]], longest_s: float = INSIST_S) -> T:
        """Retry a step for up to ``longest_s``, and for ``AWAY_S`` if the source is unreachable;
        ``RetriableError``: it still fails."""
        deadline = self._clock.monotonic() + longest_s
        while True:
            try:
                return await step()
            except RetriableError as error:
                away_s = longest_s - AWAY_S if isinstance(error, SourceAwayError) else 0.0
                if self._clock.monotonic() > deadline - max(0.0, away_s):
                    raise
                log.debug("failover step is retried cause=%s", error)
                await self._clock.sleep(AGAIN_S)


def _places(offsets: Mapping[TopicPartition, int]) -> tuple[LogPlace, ...]:
    return tuple(
        LogPlace(topic=tp.topic, partition=tp.partition, offset=offset)
        for tp, offset in sorted(offsets.items())
    )


def _both(first: Sequence[GroupMove], then: Sequence[GroupMove]) -> tuple[GroupMove, ...]:
    """Merge the results of two syncs for the groups of the second, which finds most of them
    moved."""
    before = {move.group: move.moved for move in first}
    return tuple(replace(it, moved=max(it.moved, before.get(it.group, 0))) for it in then)
