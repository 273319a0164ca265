"""A running MirrorMaker 1: streams, the topics they read, and a line of progress.

Flow: ``Mirror.run`` -> both clusters answer -> topics that match, looked up again every
``metadata.max.age.ms`` -> ``Stream`` threads -> a stop signal, or the first stream that fails, ends
all of them -> last line with what was mirrored and dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from mm2py.api.mirror_maker_1 import RebalanceListener
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import Clock, cancelled, closing
from mm2py.config.librdkafka import Settings
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.observability.metrics import UNKNOWN
from mm2py_connectors.record_sender import RecordSender, SentRecord
from mm2py_migrate.mirror_maker_1.options import TopicChoice
from mm2py_migrate.mirror_maker_1.stream import Handle, Stream
from mm2py_workers.group_consumer import SourceAnswers
from mm2py_workers.signals import StopSignal

log = logging.getLogger(__name__)

PROGRESS_S: Final = 10.0
LOOK_S: Final = 5.0
"""How often topics are looked up while none matches."""
END_S: Final = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """What is to run; ``commit_s`` in seconds, ``batch`` in records (``max.poll.records``)."""

    consumer: Settings
    producer: Settings
    topics: TopicChoice
    streams: int
    producers: int
    batch: int
    commit_s: float
    abort: bool
    is_sync: bool
    handle: Handle | None
    listener: RebalanceListener | None


@final
class Mirror:
    """One process of the group."""

    def __init__(self, plan: MirrorPlan, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._senders = [
            RecordSender(
                plan.producer.values, _abort if plan.abort else _drop, is_sync=plan.is_sync
            )
            for _ in range(min(plan.producers, plan.streams))
        ]
        self._source = Cluster(plan.consumer.connection, alias="source", clock=clock)
        self._streams = [self._stream(number) for number in range(plan.streams)]
        self._topics: tuple[str, ...] = ()
        self._began_s = clock.monotonic()

    async def run(self, stop: StopSignal) -> int:
        """Mirror until a stop is asked for; return the exit code. ``Mm2pyError``: a cluster refuses
        us, or a record was refused and ``abort`` is set."""
        asked = asyncio.create_task(stop.wait())
        beginning = asyncio.create_task(self._begin())
        background: list[asyncio.Task[None]] = [beginning]
        try:
            await asyncio.wait({asked, beginning}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.asked:
                beginning.result()
                background += map(asyncio.create_task, (self._follow_topics(), self._tell()))
                await asyncio.wait({asked, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if stop.asked:
                log.info("stopping: what was read is written and committed")
        finally:
            await cancelled(*background, asked)
            await self._source.close()
        return await self._end()

    async def _begin(self) -> None:
        """Wait for both clusters, and start the streams on the topics that there are."""
        async with closing(
            Cluster(self._plan.producer.connection, alias="target", clock=self._clock)
        ) as target:
            await self._until_answered(target.connect, "target")
        await self._until_answered(self._source.connect, "source")
        if self._plan.handle is None:  # a handler may give copies other names
            refuse_one_cluster(ClusterEnd.of(self._source), ClusterEnd.of(target))
        await self._until_answered(self._look_up, "source")
        for stream in self._streams:
            stream.start()

    async def _until_answered(self, ask: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await ask()
            except RetriableError as error:
                log.warning("the %s does not answer yet, tried again cause=%s", name, error)
                await self._clock.sleep(LOOK_S)
            else:
                return

    def _stream(self, number: int) -> Stream:
        plan = self._plan
        name = f"{plan.consumer.values['group.id']}-{number}"

        def ended(cause: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(self._ended, cause)

        return Stream(
            {**plan.consumer.values, "client.id": name},
            self._senders[number % len(self._senders)],
            plan.handle,
            listener=plan.listener,
            batch=plan.batch,
            commit_s=plan.commit_s,
            source=SourceAnswers(self._source),
            ended=ended,
        )

    def _ended(self, cause: BaseException | None) -> None:
        if cause is not None and not self._failed.done():
            self._failed.set_exception(cause)

    async def _follow_topics(self) -> None:
        while True:
            age_s = self._plan.consumer.connection.metadata_max_age_ms / 1_000
            await self._clock.sleep(max(age_s, 1.0) if self._topics else min(age_s, LOOK_S))
            try:
                await self._look_up()
            except RetriableError as error:
                log.warning("topics cannot be looked up, tried again cause=%s", error)
            except Mm2pyError as error:
                self._ended(error)
                return

    async def _look_up(self) -> None:
        metadata = await self._source.metadata()
        names = tuple(
            sorted(
                topic.name
                for topic in metadata.topics
                if not topic.is_internal
                and not topic.error_code
                and self._plan.topics.matches(topic.name)
            )
        )
        if names == self._topics and names:
            return
        if names:
            log.info("topics=%d %s", len(names), ",".join(names[:8]))
        elif self._topics or not any(it.records for it in self._streams):
            log.warning("no topic of the source is among the %s", self._plan.topics.text)
        self._topics = names
        for stream in self._streams:
            stream.subscribe(names)

    async def _tell(self) -> None:
        records = size = 0
        while True:
            await self._clock.sleep(PROGRESS_S)
            was_records, was_size = records, size
            records, size = self._records, sum(stream.bytes for stream in self._streams)
            lags = [stream.lag for stream in self._streams]
            log.info(
                "mirrored %d records, %d records/s, %.1f MB/s, lag %s, dropped %d",
                records,
                (records - was_records) / PROGRESS_S,
                (size - was_size) / PROGRESS_S / 1e6,
                "unknown" if UNKNOWN in lags else sum(lags),
                self._dropped,
            )

    @property
    def _records(self) -> int:
        return sum(stream.records for stream in self._streams)

    @property
    def _dropped(self) -> int:
        return sum(sender.dropped for sender in self._senders)

    async def _end(self) -> int:
        for stream in self._streams:
            stream.stop()
        ended = await asyncio.gather(*(asyncio.to_thread(it.join, END_S) for it in self._streams))
        await asyncio.to_thread(self._close_senders)
        await asyncio.sleep(0)  # what the threads' ends have scheduled
        log.info(
            "mirrored %d records in %.0f s, dropped %d",
            self._records, self._clock.monotonic() - self._began_s, self._dropped,
        )  # fmt: skip
        if self._failed.done():
            cause = self._failed.exception()
            if isinstance(cause, Mm2pyError):
                raise cause
            assert cause is not None
            raise FatalError(f"a stream failed: {type(cause).__name__}: {cause}") from cause
        return 0 if all(ended) else 1

    def _close_senders(self) -> None:
        for sender in self._senders:
            sender.close()


def _abort(_sent: SentRecord, text: str) -> None:
    raise FatalError(
        text, remedy="correct the target, or drop such records with --abort.on.send.failure false"
    )


def _drop(_sent: SentRecord, text: str) -> None:
    log.error("record dropped record=%s", text)
