"""The transactions of one transactional id: which lanes may send when, and the requests to the
coordinator.

Flow: ``start`` (InitProducerId) -> ``admits`` per lane -> data is sent -> ``settle`` (all of it is
acknowledged) -> the offset records are sent -> ``commit`` (EndTxn) -> the next transaction. Senders
send the batches; this class never does.

::

    phase     what may be sent              event and next phase
    IDLE      nothing is open               a lane has data -> OPEN; settle -> CLOSING
    OPEN      data of admitted lanes        settle -> CLOSING
    CLOSING   retries of earlier data,      commit -> ENDING
              then records that go last
    ENDING    EndTxn, until answered        answered -> IDLE
    BROKEN    nothing                       (end; a new producer aborts what is open)

Invariants (tests of the same names):

1. Nothing of a transaction is sent before it is open: in the old protocol no batch of a partition
   before AddPartitionsToTxn of this transaction succeeded for it, in the new one (KIP-890) none
   under the previous epoch.
2. A transaction is committed only when everything sent in it was acknowledged or definitely
   refused.
3. Records that go last are sent after the acknowledgement of all data, and are acknowledged before
   the commit.
4. After a response that ends the transaction (abort, time-out, fencing) nothing is sent and nothing
   is committed.
5. A commit of unknown outcome is repeated under the same epoch until the coordinator answers; it is
   never followed by an abort: the coordinator may have written the commit already.
6. Nothing is sent, EndTxn included, without the permit.
"""

import asyncio
import logging
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeVar, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.lane import SenderLane
from mm2py.client.send.owner import Announce, LaneOwner
from mm2py.clock import Clock, cancelled, closing, each_of
from mm2py.errors import (
    ConfigError,
    FatalServerError,
    Mm2pyError,
    ProducerFencedError,
    RetriableError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.call import Call
from mm2py.protocol.group_messages import find_coordinator
from mm2py.protocol.groups import CoordinatorType
from mm2py.protocol.messages import (
    TransactionalProducer,
    add_partitions_to_txn,
    end_txn,
)
from mm2py.protocol.topics import ProducerIdResult
from mm2py.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)

R = TypeVar("R")

ENDS_TRANSACTION: Final = frozenset(
    {
        codes.DUPLICATE_SEQUENCE_NUMBER,
        codes.INVALID_PRODUCER_EPOCH,
        # The partition is not in the transaction: the
        # coordinator aborted it (KIP-890 verifies each one).
        codes.INVALID_TXN_STATE,
        # The coordinator forgot the id:
        # transactional.id.expiration.ms passed without a transaction.
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.UNKNOWN_PRODUCER_ID,
        codes.PRODUCER_FENCED,
        # Since Produce 11 (KIP-890); for older versions
        # brokers translate it into INVALID_TXN_STATE.
        codes.TRANSACTION_ABORTABLE,
    }
)
"""Produce errors after which the transaction can only be aborted. OUT_OF_ORDER_SEQUENCE_NUMBER is
not among them: it may just follow from the refusal of an earlier batch, and the lane decides after
that whether the sequence is lost (RESOLVING)."""

FENCED: Final = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED})
"""A newer producer, or our own time-out: under ``transaction.version`` 2 InitProducerId with our id
and epoch tells which (KIP-360)."""

_MOVED: Final = frozenset({codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE})

_TRY_AGAIN: Final = _MOVED | {
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.CONCURRENT_TRANSACTIONS,
    codes.REQUEST_TIMED_OUT,
    codes.THROTTLING_QUOTA_EXCEEDED,
}

# KafkaApis.handleAddPartitionsToTxnRequest: one refused or unknown topic fails the whole request.
_NOT_ATTEMPTED: Final = 55
"""OPERATION_NOT_ATTEMPTED: another partition of the request was refused, so none was added."""

FENCED_AT_ONCE: Final = 20

FIRST_PAUSE_MS: Final = 20
"""While the markers of the last transaction are written (CONCURRENT_TRANSACTIONS); the same pause
as in Java."""

LONGEST_PAUSE_MS: Final = 1000
QUIET_FAILURES: Final = 5
ABORT_S: Final = 2.0
"""Longest wait for an abort at the end; otherwise a new producer or the time-out aborts."""

_INIT_KEY: Final = 22
_INIT_OLDEST: Final = 3
"""InitProducerId with id and epoch (KIP-360, Kafka 2.5): without it our time-out looks like
fencing."""

# A finalized feature in ApiVersions (KIP-584): brokers may know Produce 12 before it is enabled.
_FEATURE: Final = "transaction.version"
_IMPLICIT: Final = 2
TOO_LONG: Final = 50
"""INVALID_TRANSACTION_TIMEOUT."""


class Phase(Enum):
    """Phase of the current transaction; see the table in the module docstring."""

    IDLE = auto()
    OPEN = auto()
    CLOSING = auto()
    ENDING = auto()
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class _WaitingLane:
    lane: SenderLane
    sender: LaneOwner


@final
class Transactions:
    """One transactional producer; its Senders ask ``admits`` before a lane may begin to send.

    Args:
        cluster: the target, the same as of the Senders.
        transactional_id: fences every earlier producer of the same id.
        timeout_ms: after which the coordinator aborts an open transaction.
        announce: publishes a producer id before anything is sent under it.
        permit: no request that changes a transaction is sent without it.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int,
        clock: Clock,
        announce: Announce | None = None,
        permit: Permit = UNLIMITED,
    ) -> None:
        self._cluster, self._clock = cluster, clock
        self._announce = announce
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._permit, self._term = permit, permit.term
        self._listeners: list[Callable[[Exception], None]] = []
        self.implicit = False
        """Whether the second protocol generation is used (KIP-890), from ``start`` on."""
        self.producer_id, self.epoch = NO_PRODUCER_ID, -1
        self.began = asyncio.Event()
        """Set while a transaction is open."""
        self._phase = Phase.IDLE
        self._error: Exception | None = None
        self._node_id: int | None = None
        self._inside: dict[TopicPartition, _WaitingLane] = {}
        self._waiting: dict[TopicPartition, _WaitingLane] = {}
        self._added: set[TopicPartition] = set()
        self._to_add: dict[TopicPartition, _WaitingLane] = {}
        self._declined: set[TopicPartition] = set()
        """Partitions that were refused when they were added last."""
        self._adding: asyncio.Task[None] | None = None
        self._landed = self._ending = False
        self._changed = asyncio.Event()
        self._end_watch = permit.watch(self._changed.set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def broken(self) -> bool:
        """Whether nothing may be sent any more (4)."""
        return self._phase is Phase.BROKEN

    async def start(self) -> None:
        """Get id and epoch, once: fences earlier producers of the id and aborts what they left
        open.

        Raises:
            RetriableError: the coordinator is unavailable, or is still ending a transaction of the
                previous producer.
            ConfigError: the cluster is too old, or refuses ``transaction.timeout.ms``.
            FatalServerError: the principal may not use the transactional id; names the missing
                grant.
        """
        # Several Senders share this producer, and each starts it.
        async with self._starting:
            if self.producer_id != NO_PRODUCER_ID:
                return
            # Without an id it fences: the coordinator aborts what is open, answers
            # CONCURRENT_TRANSACTIONS, and gives the next epoch to a later
            # try (TransactionCoordinator.prepareInitProducerIdTransit).
            answer = await self._init(NO_PRODUCER_ID, -1)
            if answer.error_code == TOO_LONG:
                raise ConfigError(
                    f"transaction.timeout.ms={self._timeout_ms} of the producer is refused by "
                    f"{self._cluster}",
                    remedy="set it to at most the brokers' transaction.max.timeout.ms",
                )
            if answer.error_code:
                raise self._refusal(answer.error_code, "InitProducerId")
            # Before the id is used: mirrors of the other direction recognise our batches by it.
            if self._announce is not None:
                await self._announce(answer.producer_id)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def check(self) -> None:
        """Find the coordinator and check its versions; changes nothing. Errors as of ``start``."""
        await self._checked_coordinator()

    def on_broken(self, broken: Callable[[Exception], None]) -> None:
        """Call ``broken`` once with the reason when nothing can be committed any more."""
        self._listeners.append(broken)

    # ---- what Senders ask

    def admits(self, lane: SenderLane, sender: LaneOwner, *, last: bool) -> bool:
        """Whether a lane may send its queue now; otherwise it is made ready later.

        ``last``: its records are sent only between ``settle`` and ``commit`` (3).
        """
        waiting = _WaitingLane(lane, sender)
        if self._phase is Phase.IDLE and not last:
            self._phase = Phase.OPEN
            self.began.set()
        # Records that go last wait for the acknowledgement of all data (3).
        if self._phase is not (Phase.CLOSING if last else Phase.OPEN):
            self._waiting[lane.target] = waiting
            return False
        # Transactions of version 1: one AddPartitionsToTxn at
        # a time, all that wait meanwhile go into the next.
        if not self.implicit and lane.target not in self._added:
            self._to_add[lane.target] = waiting
            if self._adding is None or self._adding.done():
                self._adding = self._spawn(self._add())
            return False
        self._inside[lane.target] = waiting
        # Under version 2 each EndTxn bumped the epoch, so sequences begin at 0 again.
        lane.admit(self.producer_id, self.epoch)
        return True

    def landed(self) -> None:
        """Note that a batch of this transaction is in the log."""
        self._landed = True
        if self._phase is Phase.CLOSING:
            self._changed.set()

    def progressed(self) -> None:
        """Note that a batch of this transaction was refused."""
        self._changed.set()

    def refused(self, code: int, text: str) -> None:
        """Break the transaction: a batch got one of ``ENDS_TRANSACTION``, or its outcome stays
        unknown."""
        if self._phase is not Phase.BROKEN:
            self._phase = Phase.BROKEN
            self.began.set()
            self._spawn(self._explain(code, text))

    def broke(self, error: Exception) -> None:
        """Break the producer: nothing is committed any more (4)."""
        self._phase = Phase.BROKEN
        if self._error is None:
            self._error = error
            for broken in self._listeners:
                broken(error)
        self.began.set()
        self._changed.set()

    # ---- what ends a transaction

    async def settle(self) -> None:
        """Stop sending new data, and wait until all batches in flight are answered (2); what was
        refused waits for the next transaction.

        Raises:
            Mm2pyError: what broke the transaction.
        """
        if self._phase in (Phase.IDLE, Phase.OPEN):
            self._phase = Phase.CLOSING
        for waiting in self._inside.values():
            waiting.lane.admitted = False
            if waiting.lane.queue:
                self._waiting[waiting.lane.target] = waiting
        await self._until(self._drain)
        for waiting in self._take_waiting():
            waiting.sender.ready(waiting.lane)

    async def commit(self) -> None:
        """End the transaction after ``settle``; its records are visible to readers when this
        returns.

        Returns at once if it was ended already. Raises as ``settle``.
        """
        if self._phase in (Phase.IDLE, Phase.OPEN):
            return
        # The offset records were sent after ``settle``: they must be in the log before EndTxn (3).
        await self._until(self._is_settled)
        # Otherwise the coordinator knows of no transaction, and there is nothing to end.
        if self._inside or self._added:
            self._phase, self._ending = Phase.ENDING, True
            # Without a single batch there is nothing to commit,
            # and KIP-890 brokers refuse it (INVALID_TXN_STATE).
            await self._end(commit=self._landed)
        self._begin_next()

    async def close(self) -> None:
        """Abort an open transaction without batches in flight; waits ``ABORT_S`` at most."""
        if self._closed:
            return
        self._closed = True
        self._end_watch()
        await cancelled(*self._tasks)
        # Never after EndTxn was sent: the coordinator may have written the commit (5).
        open_now = bool(self._inside or self._added) and not self._ending
        # A batch in flight could reach the log behind the abort's marker; before KIP-890 it would
        # open a hanging transaction. The coordinator's time-out or the next producer aborts then.
        under_way = any(it.lane.under_way for it in self._inside.values())
        fenced = isinstance(self._error, ProducerFencedError)
        if open_now and not under_way and not fenced and self._permit.allows(self._term):
            with suppress(Mm2pyError, TimeoutError):
                async with asyncio.timeout(ABORT_S):
                    await self._ask(self._end_call(commit=False), _code)
        if self._error is None:
            self._error = RetriableError("the producer was closed before its transaction ended")
        self._phase = Phase.BROKEN
        self._changed.set()

    # ---- inside: lanes

    def _drain(self) -> bool:
        """Defer definite refusals to the next transaction; return whether all else is answered."""
        for target, waiting in self._inside.items():
            waiting.sender.withdraw(waiting.lane)
            if waiting.lane.queue:
                self._waiting[target] = waiting
        return self._is_settled()

    def _is_settled(self) -> bool:
        return not (self._adding is not None and not self._adding.done()) and not any(
            waiting.lane.unsettled for waiting in self._inside.values()
        )

    def _take_waiting(self) -> list[_WaitingLane]:
        """Remove and return the lanes that have something to send; ``admits`` puts those back that
        must still wait."""
        waiting, self._waiting = self._waiting, {}
        return [each for each in waiting.values() if each.lane.queue]

    def _begin_next(self) -> None:
        for each in self._inside.values():
            each.lane.admitted = False
            if each.lane.queue:
                self._waiting[each.lane.target] = each
        self._inside.clear()
        self._added.clear()
        self._landed = self._ending = False
        self._phase = Phase.IDLE
        self.began.clear()
        for each in self._take_waiting():
            each.sender.ready(each.lane)

    async def _add(self) -> None:
        """Add all waiting partitions with data, with one request (old protocol).

        A partition that is refused lets a request fail for all of its partitions: the others are
        added without it, and it is tried apart.
        """
        while self._to_add:
            added = self._next_to_add()
            call = add_partitions_to_txn(self._producer(), added)
            answer = await self._insist("AddPartitionsToTxn", call, _passing)
            # The coordinator answers its own errors for every
            # partition, those of topics only for theirs.
            ending = [code for code in answer.values() if code in ENDS_TRANSACTION]
            if ending:
                self.refused(ending[0], "AddPartitionsToTxn")
                return
            # What an answer leaves out is tried again, like
            # a topic that the broker does not know yet.
            codes_of = {it: answer.get(it, codes.UNKNOWN_TOPIC_OR_PARTITION) for it in added}
            declined = {it for it, code in codes_of.items() if code not in (0, _NOT_ATTEMPTED)}
            for target, waiting in added.items():
                code = codes_of[target]
                if code == codes.NONE:
                    self._added.add(target)
                    self._declined.discard(target)
                elif target in declined:
                    waiting.sender.stalled(waiting.lane, codes.server_error(code, str(target)))
                elif declined:
                    self._to_add.setdefault(target, waiting)
            self._declined |= declined
            for target in self._added & added.keys():
                added[target].sender.ready(added[target].lane)
            left = added.keys() - self._added - self._to_add.keys()
            if left:
                self._spawn(self._try_later([added[target] for target in left]))
        self._changed.set()

    def _next_to_add(self) -> Mapping[TopicPartition, _WaitingLane]:
        """Take what the next request adds; what was refused before comes after the others."""
        waiting, self._to_add = self._to_add, {}
        added = {target: it for target, it in waiting.items() if target not in self._declined}
        if added:
            self._to_add = {target: it for target, it in waiting.items() if target not in added}
        return added or waiting

    async def _try_later(self, refused: Iterable[_WaitingLane]) -> None:
        await self._clock.sleep(LONGEST_PAUSE_MS / 1000)
        for each in refused:
            if each.lane.queue:
                each.sender.ready(each.lane)

    # ---- inside: the coordinator

    def _producer(self) -> TransactionalProducer:
        return TransactionalProducer(self.transactional_id, self.producer_id, self.epoch)

    def _end_call(self, *, commit: bool) -> Call[ProducerIdResult]:
        return end_txn(self._producer(), commit=commit, implicit=self.implicit)

    async def _end(self, *, commit: bool) -> None:
        # A repeat is safe: while the markers are written the answer is
        # CONCURRENT_TRANSACTIONS, and NONE once the same outcome is
        # complete; version 2 accepts it under the epoch before the bump.
        answer = await self._insist("EndTxn", self._end_call(commit=commit), _code)
        if answer.error_code:
            self.refused(answer.error_code, "EndTxn")
            await self._until(lambda: False)
        if self.implicit:
            # The epochs of an id are used up: under version 2 EndTxn returns the next id.
            if answer.producer_id != self.producer_id:
                await self._announce_next(answer.producer_id)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def _announce_next(self, producer_id: int) -> None:
        """Publish the id that follows when the epochs of the last one are used up; earlier commits
        are valid."""
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        while self._announce is not None:
            try:
                await self._announce(producer_id)
            except Mm2pyError as error:
                if not isinstance(error, RetriableError) or self._permit.term != self._term:
                    self.broke(error)
                    return
                await self._clock.sleep(backoff.next_s())
            else:
                return

    async def _init(self, producer_id: int, epoch: int) -> ProducerIdResult:
        await self._checked_coordinator()
        call = messages.init_producer_id(
            self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        deadline = self._clock.monotonic() + self._cluster.settings.default_api_timeout_ms / 1000
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        while True:
            await self._until_permitted()
            try:
                return await self._ask(call, _code)
            except RetriableError:
                if self._clock.monotonic() >= deadline:
                    raise
            await self._clock.sleep(backoff.next_s())

    async def _checked_coordinator(self) -> None:
        connection = await self._cluster.connection(await self._coordinator(), ADMIN)
        # Asked on the coordinator's own connection: in a rolling upgrade brokers differ.
        if not takes_jobs(connection.versions):
            offered = connection.versions.get(_INIT_KEY, (0, -1))
            raise ConfigError(
                "exactly-once needs brokers of Kafka 2.5 or newer, and so do jobs that write; "
                f"{connection.address} of"
                f" {self._cluster} speaks InitProducerId up to version {offered[1]}",
                remedy="upgrade the target's brokers; a flow can do with "
                "exactly.once.source.support=disabled",
            )
        # Read before anything is sent: a transaction ends under the protocol that it began with.
        self.implicit = connection.feature_level(_FEATURE) >= _IMPLICIT

    async def _coordinator(self) -> int:
        if self._node_id is None:
            call = find_coordinator(self.transactional_id, CoordinatorType.TRANSACTION)
            answer = await self._cluster.call_any(call, code_of=lambda it: it.error_code)
            if answer.error_code:
                raise self._refusal(answer.error_code, "FindCoordinator")
            self._node_id = answer.node.node_id
        return self._node_id

    async def _ask(self, call: Call[R], code_of: Callable[[R], int]) -> R:
        """Send a request once; codes worth a retry are raised, others are in the result."""
        try:
            connection = await self._cluster.connection(await self._coordinator(), ADMIN)
            answer = await connection.call(call)
        # The coordinator may have moved: it is looked up again.
        except RetriableError:
            self._node_id = None
            raise
        code = code_of(answer)
        # __transaction_state has another leader for this id's partition.
        if code in _MOVED:
            self._node_id = None
        if code in _TRY_AGAIN:
            raise codes.server_error(code, f"{call.name} of {self.transactional_id}")
        return answer

    async def _insist(self, what: str, call: Call[R], code_of: Callable[[R], int]) -> R:
        """Repeat a request until it is answered (5); bounded by the time-out of the transaction."""
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        while True:
            await self._until_permitted()
            try:
                return await self._ask(call, code_of)
            except RetriableError as error:
                if backoff.failures == QUIET_FAILURES:
                    log.warning(
                        "transaction waits for its coordinator id=%s request=%s cause=%s",
                        self.transactional_id, what, error,
                    )  # fmt: skip
            # After a downgrade of the coordinator's broker no retry helps.
            except UnsupportedVersionError as error:
                self.broke(error)
                raise
            await self._clock.sleep(backoff.next_s())

    async def _until_permitted(self) -> None:
        """Wait for the permit (6); the end of the membership breaks the transaction."""
        while not self._permit.allows(self._term):
            if self._permit.term != self._term:
                error = RetriableError("the membership of the group was lost in a transaction")
                self.broke(error)
                raise error
            self._changed.clear()
            await self._changed.wait()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while self._error is None and (self._phase is Phase.BROKEN or not reached()):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def _explain(self, code: int, text: str) -> None:
        """Determine whether we were fenced or only timed out, and break with that reason."""
        reason = f"{codes.error_name(code)} ({code}){': ' + text if text else ''}"
        fenced = False
        # The coordinator bumps the epoch of what it times out (prepareFenceProducerEpoch),
        # so for the next batch a time-out looks like fencing.
        if code in FENCED:
            try:
                # KIP-360: only an epoch that is still the newest one, or
                # the one before it, is not answered with PRODUCER_FENCED.
                answer = await self._init(self.producer_id, self.epoch)
                fenced = answer.error_code in FENCED
            except Mm2pyError as error:
                reason += f"; its coordinator cannot be asked: {error}"
        if fenced:
            # Earlier coordinators forget the epoch that they time out: lastProducerEpoch becomes
            # -1.
            timed_out = "" if self.implicit else ", or its coordinator timed the transaction out"
            self.broke(
                ProducerFencedError(
                    f"a newer producer has the transactional id {self.transactional_id}{timed_out}"
                    f" ({reason})",
                    remedy="look for another worker that runs this task",
                )
            )
        elif code == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            self.broke(self._refusal(code, "Produce"))
        else:
            aborted = TransactionAbortedError(
                f"the transaction of {self.transactional_id} is aborted, what it held is copied "
                "again:"
                f" {reason}"
            )
            aborted.__cause__ = codes.server_error(code, text)
            self.broke(aborted)

    def _refusal(self, code: int, what: str) -> Mm2pyError:
        error = codes.server_error(code, f"{what} of transactional id {self.transactional_id}")
        if code == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            error.remedy = (
                "grant the mirror's user Write and Describe on the target's resource "
                f"TransactionalId {self.transactional_id}: "
                + self._cluster.granting(
                    "Write --operation Describe",
                    f"--transactional-id {shlex.quote(self.transactional_id)}",
                )
            )
        return error

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.broke(error)
        self._changed.set()


def takes_jobs(versions: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a broker of these versions takes the transactions of jobs that write, and of
    exactly-once support (KIP-360, Kafka 2.5)."""
    return versions.get(_INIT_KEY, (0, -1))[1] >= _INIT_OLDEST


async def check_transactions(cluster: Cluster, transactional_id: str) -> None:
    """Check that a cluster supports transactions and discloses the coordinator of an id; changes
    nothing.

    Raises:
        ConfigError: the cluster is too old, or a grant is missing.
        RetriableError: the cluster is unavailable.
    """
    transactions = Transactions(cluster, transactional_id, timeout_ms=0, clock=cluster.clock)
    try:
        await transactions.check()
    except (FatalServerError, UnsupportedVersionError) as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    finally:
        await transactions.close()


async def fence_producers(
    cluster: Cluster, transactional_ids: Iterable[str], *, clock: Clock, timeout_ms: int
) -> None:
    """Fence the producers of these ids and abort their open transactions (Java's
    ``Admin.fenceProducers``).

    Raises:
        RetriableError: a coordinator is unavailable.
        FatalServerError: one id may not be used; names the missing grant.
    """

    async def fence(transactional_id: str) -> None:
        # InitProducerId without ever sending: all that Java's FenceProducersHandler does, too.
        async with closing(
            Transactions(cluster, transactional_id, timeout_ms=timeout_ms, clock=clock)
        ) as fencing:
            await fencing.start()

    # With an error of one the others end: a later round, or another leader, may have begun.
    await each_of(transactional_ids, fence, at_once=FENCED_AT_ONCE)


def _code(answer: ProducerIdResult) -> int:
    return answer.error_code


def _passing(answer: Mapping[TopicPartition, int]) -> int:
    """Return a code worth a retry; a coordinator returns it for every partition."""
    return next((code for code in answer.values() if code in _TRY_AGAIN), codes.NONE)
