"""What ``mm2py stream`` does: topics found and created, one Spark query, its failures, config changes, the orderly end.

Flow: ``StreamOrder`` -> ``BackfillSession`` -> ``_Topics`` (the flow's connector, without tasks) -> ``StreamDriver.begin`` ->
``StreamQuery`` until a stop signal, a recall by the flow's workers, or a changed config -> ``StreamDriver.end``.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.secret_names import secrets_in
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.backfills import new_id
from mm2py.observability.logging import SecretMask, level_name
from mm2py.spark.session import OpenSession, open_session
from mm2py.spark.stream import StreamDriver, StreamPartitions
from mm2py.spark.stream_query import StreamQuery
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.partition_deal import (
    ASSIGNED_PARTITIONS,
    LATE_PARTITIONS,
    parse_partitions,
)
from mm2py_workers.backfill_flow import BackfillSession
from mm2py_workers.backfill_lane import run_backfill_lane
from mm2py_workers.bulk_flow import flow_plan
from mm2py_workers.output import OK, Printer, say
from mm2py_workers.signals import StopSignal
from mm2py_workers.stream_terms import StreamSpec, plan_term

__all__ = ["StreamOrder", "run_stream"]

log = logging.getLogger(__name__)

CONFIG_LOOK_S: Final = 5.0
"""How often changes made over REST are looked for; flow.engine=worker comes sooner, from the flow's workers."""

END_S: Final = 15.0
"""How long lanes may take to end in order before Spark kills them."""

MOST_FAILURES: Final = 6
LOOK_S: Final = 0.5
FIRST_RETRY_MS: Final = 1_000
LONGEST_RETRY_MS: Final = 60_000

_HERE: Final = {
    "flow.engine": "worker",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.enabled": "false",
}
"""Of the connector in this process: it creates topics and deals partitions. What else it does is the workers' part."""


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """The arguments of ``mm2py stream``."""

    file: Path
    flow: str
    master: str
    checkpoint: str
    term_s: float
    most_bytes: int


class _Ended(Enum):
    """Why the copy ended."""

    STOPPED = "stopped"
    RECALLED = "recalled"
    CHANGED = "changed"


@dataclass(slots=True)
class _Totals:
    terms: int = 0
    records: int = 0
    bytes: int = 0


def run_stream(order: StreamOrder, printer: Printer, mask: SecretMask) -> int:
    """Copy until a stop signal; return the exit code; ``mask`` gets the secrets of the flow.

    Raises:
        BackfillRefusedError: the flow's engine is not spark, or is worker again, or something else copies it.
        Mm2pyError: Spark or a cluster cannot be used.
    """
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return asyncio.run(_Stream(order, printer, mask, SYSTEM_CLOCK).run())


@final
class _Stream:
    """One ``mm2py stream``."""

    def __init__(
        self, order: StreamOrder, printer: Printer, mask: SecretMask, clock: Clock
    ) -> None:
        self._order, self._printer, self._clock = order, printer, clock
        self._mask = mask
        self._totals = _Totals()
        self._opened: OpenSession | None = None
        self._name = ""

    async def run(self) -> int:
        """Copy; a changed config begins anew with it."""
        ended = _Ended.CHANGED
        with StopSignal() as stop:
            try:
                while ended is _Ended.CHANGED:
                    ended = await self._with_config_of_now(stop)
            finally:
                if self._opened is not None:
                    await asyncio.to_thread(_close, self._opened)
        if ended is _Ended.RECALLED:
            raise BackfillRefusedError(
                f"flow.engine of {self._name} is worker for its workers: they take over",
                remedy="set flow.engine = spark for them, too (their file, or over REST)",
            )
        totals = self._totals
        report = {
            "flow": self._name,
            "state": "ENDED",
            "terms": totals.terms,
            "records": totals.records,
            "bytes": totals.bytes,
        }
        if not self._printer.is_table:
            self._printer.document(report)
        say(f"ended, positions are stored: {totals.records:,} records in {totals.terms:,} terms")
        return OK

    async def _with_config_of_now(self, stop: StopSignal) -> _Ended:
        async with BackfillSession(flow_plan(self._order.file, self._order.flow)) as session:
            self._name = str(session.name)
            self._mask.add(secrets_in(session.connector) | secrets_in(session.plan.props))
            engine = session.connector.get("flow.engine", "worker")
            if engine != "spark":
                raise BackfillRefusedError(
                    f"flow.engine of {session.name} is {engine}: its workers copy it",
                    remedy=f"set {session.name}.flow.engine = spark in the file (or over REST), and run this again",
                )
            await session.open_topic()
            topics = _Topics(session, self._clock)
            try:
                if not await topics.start(stop):
                    return _Ended.STOPPED
                if self._opened is None:
                    name = f"mm2py stream {session.name}"
                    self._opened = await asyncio.to_thread(
                        open_session, self._order.master, name=name
                    )
                return await _Copy(
                    self._order, session, topics, self._opened, self._totals, stop, self._clock
                ).run()
            finally:
                await topics.close()


def _close(opened: OpenSession) -> None:
    """Close Spark; a service manager that signals every process of a service has ended its JVM already."""
    try:
        opened.close()
    except Exception as error:  # noqa: BLE001 - py4j raises what it likes, and the copy has ended
        log.debug("Spark is not closed in order cause=%s", error)


@final
class _Topics:
    """The flow's connector without tasks: creates copies and finds partitions; is its context, too."""

    def __init__(self, session: BackfillSession, clock: Clock) -> None:
        self._connector = MirrorSourceConnector({**session.connector, **_HERE})
        self._clock = clock
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self.task: Mapping[str, str] = {}
        """Config of the flow's tasks."""

    @property
    def clock(self) -> Clock:
        """Time."""
        return self._clock

    def request_reconfiguration(self) -> None:
        """Partitions have come or gone."""
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """A loop of the connector has failed for good."""
        self._failure = error
        self._changed.set()

    async def start(self, stop: StopSignal) -> bool:
        """Find partitions; wait for the first one. False where a stop signal came before."""
        await self._connector.start(self)
        waiting = ""
        while not stop.asked:
            if self.partitions().chosen:
                return True
            if not waiting:
                waiting = "the flow has no partition that can be copied yet, waiting"
                say(waiting)
            await self._clock.sleep(LOOK_S)
        return False

    def partitions(self) -> StreamPartitions:
        """Return what the flow copies now."""
        if self._failure is not None:
            raise FatalError(f"topics are not looked for any more: {self._failure}")
        self._changed.clear()
        configs = self._connector.task_configs(1)
        if not configs:
            return StreamPartitions(frozenset())
        self.task = configs[0]
        chosen, late = (
            frozenset(_partitions(configs[0], key))
            for key in (ASSIGNED_PARTITIONS, LATE_PARTITIONS)
        )
        return StreamPartitions(chosen, late)

    async def changed(self) -> None:
        """Return when ``partitions`` has to be asked again."""
        await self._changed.wait()

    async def close(self) -> None:
        """End the connector."""
        await self._connector.stop()


def _partitions(config: Mapping[str, str], key: str) -> list[TopicPartition]:
    return list(parse_partitions([it for it in config.get(key, "").split(",") if it]))


@final
class _Copy:
    """The copy under one config: a driver, and one query after the other where one fails."""

    def __init__(
        self,
        order: StreamOrder,
        session: BackfillSession,
        topics: _Topics,
        opened: OpenSession,
        totals: _Totals,
        stop: StopSignal,
        clock: Clock,
    ) -> None:
        self._order, self._session, self._topics, self._opened = order, session, topics, opened
        self._totals, self._stop, self._clock = totals, stop, clock
        self._driver = StreamDriver(
            session.claim, session.connections.store, session, name=str(session.name), clock=clock
        )
        self._backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS)
        self._failures = 0

    async def run(self) -> _Ended:
        """Copy until it ends for another reason than a failed query."""
        driver = self._driver
        await driver.begin(
            self._topics.partitions(),
            self._opened.slots,
            job=new_id(self._clock.now_ms()),
        )
        say(f"copying {self._session.name}: {self._opened.slots} lanes")
        try:
            ended = await self._beside(self._queries())
        except BaseException:
            await driver.close()
            raise
        await driver.end()
        return ended

    async def _beside(self, queries: Coroutine[object, object, None]) -> _Ended:
        """Run queries until something ends them in order."""
        ends: dict[asyncio.Task[object], _Ended] = {
            asyncio.ensure_future(self._stop.wait()): _Ended.STOPPED,
            asyncio.ensure_future(self._driver.wait_recalled()): _Ended.RECALLED,
            asyncio.ensure_future(self._config_changes()): _Ended.CHANGED,
        }
        copying: asyncio.Task[object] = asyncio.ensure_future(queries)
        following: asyncio.Task[object] = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait({*ends, copying, following}, return_when=asyncio.FIRST_COMPLETED)
            for task in (copying, following, *ends):
                if task.done():
                    task.result()
            ended = next(why for task, why in ends.items() if task.done())
            log.info("stream ends in order cause=%s", ended.value)
            following.cancel()
            await self._driver.end_term()
            await asyncio.wait({copying}, timeout=END_S)
            return ended
        finally:
            for task in (*ends, copying, following):
                task.cancel()
            await asyncio.gather(*ends, copying, following, return_exceptions=True)

    async def _queries(self) -> None:
        """Run a query; where it fails, another one behind a new run, with growing pauses.

        Raises:
            FatalError: ``MOST_FAILURES`` in a row failed before a term was over: Spark itself may be gone.
        """
        while True:
            try:
                await self._query()
            except FatalError as error:
                self._failures += 1
                if isinstance(error, BackfillRefusedError) or self._failures >= MOST_FAILURES:
                    raise
                pause_s = self._backoff.next_s()
                log.warning(
                    "query failed, another one begins pause_s=%.0f cause=%s", pause_s, error
                )
                await self._clock.sleep(pause_s)
                await self._driver.again(str(error))
            else:
                return

    async def _query(self) -> None:
        """Run one query until it fails, or the driver lets it end.

        Raises:
            FatalError: it failed.
        """
        session, job = self._session, self._driver.job
        spec = StreamSpec(
            source=session.name.source,
            target=session.name.target,
            job=job.id,
            run=job.run,
            lanes=self._opened.slots,
            seconds=self._order.term_s,
            worker=session.plan.props,
            connector=session.connector,
            task=self._topics.task,
            log_level=level_name(),
        )
        query = StreamQuery(self._opened, f"mm2py {session.name}", self._order.checkpoint)
        try:
            await asyncio.to_thread(
                query.start,
                partial(plan_term, spec),
                run_backfill_lane,
                most_bytes=self._order.most_bytes,
            )
            ended = False
            while not ended and self._driver.dealing:
                ended = await asyncio.to_thread(query.wait, LOOK_S)
                await self._note(query)
            while not ended and session.connections.store.copying:
                ended = await asyncio.to_thread(query.wait, LOOK_S)
            await self._note(query)
        finally:
            await asyncio.to_thread(query.stop)
        if self._driver.dealing:
            raise FatalError("the query was stopped from outside")

    async def _note(self, query: StreamQuery) -> None:
        for progress in await asyncio.to_thread(query.new_progress):
            self._backoff.reset()
            self._failures = 0
            await self._driver.proven()
            self._totals.terms += 1
            self._totals.records += int(str(progress["records"] or 0))
            self._totals.bytes += int(str(progress["bytes"] or 0))
            log.info("term ended %s", " ".join(f"{key}={it}" for key, it in progress.items()))

    async def _follow(self) -> None:
        """Let the stream copy partitions that come, and no more those that go."""
        while True:
            await self._topics.changed()
            partitions = self._topics.partitions()
            try:
                await self._driver.follow(partitions)
            except RetriableError as error:
                log.warning("partitions are dealt again after a pause cause=%s", error)
                self._topics.request_reconfiguration()
            await self._clock.sleep(LOOK_S)

    async def _config_changes(self) -> None:
        """Return when the flow's config is another one than at the begin."""
        while True:
            await self._clock.sleep(CONFIG_LOOK_S)
            try:
                config = await self._session.current_connector()
            except Mm2pyError as error:
                log.debug("the flow's config cannot be read now cause=%s", error)
                continue
            if config != self._session.connector:
                return
