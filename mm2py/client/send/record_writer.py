"""Writes mm2py's own small records (configs, states, source offsets, offset syncs, the ledger).

Flow: ``write``/``post`` -> one uncompressed batch -> Sender -> ``done``. Order per partition is
kept. A batch is stored whole or not at all: the Sender neither joins nor cuts it.

Invariants (tests of the same names):

1. Each post is answered exactly once: with the offset of its first record, or with the error.
2. A refused post fails alone; the others of its partition are sent again after it, in their order.
3. A post is never written after it was taken back: its connection is reset, and later posts are
   sent under a new producer epoch, after which the broker refuses the old one.
4. When the permit's term ends, every post that is not answered fails and is never written.
5. A topic without the right to write fails its posts after some attempts; later posts are attempted
   again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.sender import Sender
from mm2py.client.send.transactions import Transactions
from mm2py.clock import Clock, cancelled, set_within
from mm2py.config.clients import ProducerSettings
from mm2py.errors import ConnectionFailedError, FatalServerError, Mm2pyError, RetriableError
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition

Done = Callable[[int | Exception], None]


@final
class Post:
    """One batch that was posted and is not answered yet."""

    __slots__ = ("_answer", "partition", "records")

    def __init__(self, partition: TopicPartition, records: Sequence[NewRecord], done: Done) -> None:
        self.partition = partition
        self.records = records
        self._answer: Done | None = done

    def answer(self, result: int | Exception) -> None:
        """Report the outcome, the first time only."""
        done, self._answer = self._answer, None
        if done is not None:
            done(result)


@final
class RecordWriter:
    """An idempotent producer for records that we make ourselves; several topics may share it.

    Args:
        cluster: the target.
        settings: of the producer.
        clock: time.
        permit: nothing is sent without it.
        transactions: these records go last in each of them; a refused post breaks the open one.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        clock: Clock,
        permit: Permit = UNLIMITED,
        transactions: Transactions | None = None,
    ) -> None:
        self._sender = Sender(
            cluster,
            settings,
            clock=clock,
            on_delivered=self._delivered,
            on_failed=self._failed,
            on_stalled=self._stalled,
            permit=permit,
            whole_batches=True,
            transactions=transactions,
            sends_last=True,
        )
        self._transactions = transactions
        if transactions is not None:
            transactions.on_broken(self._fail_all)
        self._clock = clock
        self._permit, self._term = permit, permit.term
        self._end_watch = permit.watch(self._permit_changed)
        self._unanswered: dict[TopicPartition, deque[Post]] = {}
        self.stalled: dict[TopicPartition, Exception] = {}
        """Partitions that are refused and retried, with the cause."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._starting = asyncio.Lock()
        self._started = self._closed = False
        self._opening: asyncio.Task[None] | None = None
        """A start for posts that came before it."""

    async def start(self) -> None:
        """Get a producer id, once; ``RetriableError`` when the cluster cannot give one now.

        Without it the first post does; it fails where there is none.
        """
        async with self._starting:
            if not self._started:
                await self._sender.start()
                self._started = True
                for post in [it for waiting in self._unanswered.values() for it in waiting]:
                    self._send(post)

    async def _open(self) -> None:
        try:
            await self.start()
        except Mm2pyError as error:
            self._fail_all(error)

    async def write(self, tp: TopicPartition, records: Sequence[NewRecord]) -> int:
        """Write ``records`` as one batch and return the offset of the first.

        Waits while the cluster refuses for a transient reason; cancelled, it takes the batch back.

        Raises:
            PartitionError: the cluster refused the records; a retry does not help.
            RetriableError: the membership was lost, or the writer was closed.
        """
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(result: int | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, int):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        post = self.post(tp, records, done)
        try:
            return await answer
        except asyncio.CancelledError:
            self.take_back(post)
            raise

    def post(self, tp: TopicPartition, records: Sequence[NewRecord], done: Done) -> Post:
        """Write ``records`` as one batch; ``done`` gets the first offset or the error, later."""
        now_ms = self._clock.now_ms()
        stamped = [r if r.timestamp >= 0 else replace(r, timestamp=now_ms) for r in records]
        post = Post(tp, stamped, done)
        if self._closed:
            # Later, so that a caller has the Post before its answer.
            asyncio.get_running_loop().call_soon(post.answer, _closed())
            return post
        self._unanswered.setdefault(tp, deque()).append(post)
        self._idle.clear()
        self._send(post)
        return post

    def take_back(self, post: Post) -> None:
        """Do not write a post that is not answered; whether it was written already is unknown
        (3)."""
        waiting = self._unanswered.get(post.partition)
        if waiting is not None and post in waiting:
            # The lane is abandoned with all of its batches;
            # what remains is posted again under a new epoch.
            waiting.remove(post)
            self._send_again(post.partition)
            self._note_answered(post.partition)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until every post is answered; False when that takes longer than ``timeout_s``."""
        return await set_within(self._idle, timeout_s)

    async def close(self) -> None:
        """Stop at once; what is not acknowledged fails. Safe twice."""
        if self._closed:
            return
        self._closed = True
        self._end_watch()
        await cancelled(self._opening)
        await self._sender.close()
        self._fail_all(_closed())

    # ---- inside ----

    def _send(self, post: Post) -> None:
        if not self._started:  # ``start`` sends it
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open(), name="open the writer")
            return
        records = post.records
        data = encode_batch(records)
        newest = max(record.timestamp for record in records)
        # Own records have no source offsets: all that counts is how many there are.
        batch = RecordBatch(
            data, 0, len(records) - 1, len(records), newest, -1, 0, ((0, len(records)),), None
        )
        self._sender.enqueue(post.partition, post.partition, (batch,))

    def _delivered(
        self, _source: TopicPartition, target: TopicPartition, _batch: RecordBatch, base_offset: int
    ) -> None:
        waiting = self._unanswered[target]
        post = waiting.popleft()
        self._note_answered(target)
        post.answer(base_offset)

    def _failed(self, _source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        """Fail the post of the oldest batch, which was refused, alone (2)."""
        if self._transactions is not None:
            self._transactions.broke(error)
        waiting = self._unanswered.get(target)
        refused = waiting.popleft() if waiting else None
        self._send_again(target)
        self._note_answered(target)
        if refused is not None:
            refused.answer(error)

    def _stalled(self, target: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self.stalled.pop(target, None)
            return
        self.stalled[target] = error
        if isinstance(error, FatalServerError):
            # Not at once: this runs inside the Sender's own
            # handling of the lane that is abandoned here.
            asyncio.get_running_loop().call_soon(self._refuse, target, error)

    def _refuse(self, target: TopicPartition, error: FatalServerError) -> None:
        """Fail what waits where the right to write is missing; the Sender alone would retry without
        end (5)."""
        if self._transactions is not None:
            self._transactions.broke(error)
        waiting = self._unanswered.pop(target, deque())
        self._sender.abandon(target)
        self._note_answered(target)
        for post in waiting:
            post.answer(error)

    def _send_again(self, target: TopicPartition) -> None:
        """Send the remaining posts of a partition again, under a new epoch."""
        self._sender.abandon(target)
        for post in self._unanswered.get(target, ()):
            self._send(post)

    def _note_answered(self, target: TopicPartition) -> None:
        if not self._unanswered.get(target):
            self._unanswered.pop(target, None)
        if not self._unanswered:
            self._idle.set()

    def _permit_changed(self) -> None:
        if self._permit.term != self._term:
            self._term = self._permit.term
            self._sender.renew()
            self._fail_all(
                RetriableError("it was not written: the membership of the group was lost")
            )

    def _fail_all(self, error: Exception) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        self._idle.set()
        for waiting in unanswered.values():
            for post in waiting:
                post.answer(error)


def _closed() -> ConnectionFailedError:
    return ConnectionFailedError("the writer was closed before the answer came")
