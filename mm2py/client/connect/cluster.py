"""One Kafka cluster as a client sees it: any broker, a partition's leader, a group's coordinator.

Flow: ``call_*`` -> pick a broker -> ``ConnectionPool`` -> response, repeated with back-off until
``default.api.timeout.ms`` while the error is retriable. ``leader`` and ``connection`` serve the
Fetcher and Sender, which use connections directly. No background task: metadata is refreshed
on demand when it is old, missing or known to be wrong; concurrent refreshes become one.
"""

import asyncio
import logging
import math
import random
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self, TypeVar, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.connect.metadata_cache import BrokerAddress, Leader, MetadataCache
from mm2py.client.connect.pool import ConnectionPool
from mm2py.client.pacing import CallDeadlines, RequestPace, patience
from mm2py.client.parts import chunks
from mm2py.clock import SYSTEM_CLOCK, Clock, cancelled
from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.errors import (
    SILENT,
    UNREACHABLE,
    ConnectionFailedError,
    Mm2pyError,
    RequestTimedOutError,
    RetriableError,
    RetriableServerError,
    ServerError,
    UnsupportedVersionError,
)
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.call import AnswerMemo, Call
from mm2py.protocol.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    error_name,
    server_error,
)
from mm2py.protocol.group_messages import find_coordinator, find_coordinators
from mm2py.protocol.messages import metadata
from mm2py.protocol.schema import unsendable
from mm2py.protocol.topics import MetadataResult, ProducerIdResult
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

R = TypeVar("R")

ADMIN: Final = "admin"
"""Purpose of the connections that carry metadata and administration."""

COORDINATOR: Final = "coordinator"

_DENIED: Final = {TOPIC_AUTHORIZATION_FAILED: "topic", GROUP_AUTHORIZATION_FAILED: "group"}
_GROUPS_PER_QUESTION: Final = 1_000

PACED_AGE_S: Final = 60.0
"""Greatest age of the list of brokers that a paced client uses."""

SILENT_S: Final = 2.0
"""Wait for a Metadata response before another broker is asked too."""


def _no_code(_: object) -> int:
    return 0


class _Refresh:
    """A pending metadata refresh: callers add their topics and wait for it."""

    __slots__ = ("task", "topics")

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.task: asyncio.Task[None] | None = None


@final
class Cluster:
    """Bootstrap, metadata, leaders, coordinators and connections of one cluster."""

    def __init__(
        self, settings: ConnectionSettings, *, alias: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.settings = settings
        self.alias = alias
        self.clock = clock
        self.pool = BufferPool()
        self._connections = ConnectionPool(settings, self.pool, alias=alias, clock=clock)
        self._cache = MetadataCache()
        # Negative ids, as in Java's Cluster.bootstrap: the real ones come with metadata.
        self._bootstrap = tuple(
            BrokerAddress(-1 - index, host, port)
            for index, (host, port) in enumerate(settings.bootstrap_servers)
        )
        self._coordinators: dict[str, int] = {}
        self._next_refresh: _Refresh | None = None
        self._refresh_lock = asyncio.Lock()
        self._refreshed_at = self._answered_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: set[str] = set()
        self._all_topics: AnswerMemo[MetadataResult] = AnswerMemo()
        self._last: MetadataResult | None = None
        self._asked: dict[object, float] = {}
        self._unreached = ""

    def __str__(self) -> str:
        addresses = ",".join(str(address) for address in self._bootstrap)
        return f"cluster {self.alias} ({addresses})"

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster, empty before the first answer."""
        return self._cache.cluster_id

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Brokers of the last metadata."""
        return tuple(self._cache.brokers)

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str],
        *,
        alias: str,
        scope: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Return a cluster by its effective client properties; ``scope`` names their owner in
        messages.

        Raises:
            ConfigError: a property is wrong.
        """
        settings = connection_settings(properties, scope=scope or f"cluster {alias}")
        return cls(settings, alias=alias, clock=clock)

    async def __aenter__(self) -> Self:
        """Connect; raises as ``connect``."""
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    def pace(self, pace: RequestPace) -> None:
        """Pace the requests of connections that are opened later; for clients that only read."""
        self._connections.pace = pace

    async def connect(self) -> None:
        """Find a broker and discover the others; one attempt per address.

        Raises:
            ConnectionFailedError: no bootstrap broker answers.
        """
        connection = await self._any()
        self._take(await connection.call(metadata(())))
        self._answered_at = self.clock.monotonic()
        log.debug(
            "cluster ready cluster=%s id=%s brokers=%d",
            self.alias,
            self._cache.cluster_id,
            len(self._cache.brokers),
        )

    def denied(self, code: int, operation: str, name: str) -> ServerError | None:
        """Return the error of a missing right on a topic or group, with the user and the command
        that grants it; None for other codes."""
        kind = _DENIED.get(code)
        if kind is None:
            return None
        options = f"--{kind} {shlex.quote(name)}"
        return self._denied(code, f"{operation} {kind} {name} of", operation, options)

    def denied_here(self, code: int, operation: str) -> ServerError | None:
        """Return the error of a missing right on the cluster itself, as ``denied``; brokers answer
        with all of the request."""
        if code != CLUSTER_AUTHORIZATION_FAILED:
            return None
        return self._denied(code, f"{operation} on", operation, "--cluster")

    def _denied(self, code: int, what: str, operation: str, options: str) -> ServerError:
        sasl = self.settings.sasl
        user = "" if sasl is None else sasl.username
        who = f"user {user}" if user else "the mirror's principal"
        error = server_error(code, f"{who} may not {what} cluster {self.alias}")
        error.remedy = self.granting(operation, options)
        return error

    def granting(self, operation: str, resources: str) -> str:
        """Return the command that grants an operation to our user; ``resources`` are its options,
        ``--topic t --cluster``.

        It is copied into a shell, and a group may have any name: names are quoted.
        """
        sasl = self.settings.sasl
        user = shlex.quote((sasl.username if sasl is not None else "") or "...")
        return (
            f"kafka-acls.sh --bootstrap-server {self.settings.addresses} --add --allow-principal"
            f" User:{user} --operation {operation} {resources}"
        )

    async def close(self) -> None:
        """Close all connections; safe before ``connect`` and safe twice."""
        await cancelled(*self._tasks)
        await self._connections.close()
        # Garbage collection of cycles hardly ever runs
        # (wiring.py), so the pool could outlive its flow by far.
        self.pool.close()

    # ---- metadata ----

    async def metadata(
        self, topics: Sequence[str] | None = None, *, operations: bool = False
    ) -> MetadataResult:
        """Request fresh metadata of ``topics``, None for all topics of the cluster; ``operations``:
        with our principal's rights on them (KIP-430; ``UnsupportedVersionError`` before 2.3)."""
        call = metadata(topics, operations=operations)
        if topics is None:
            # An answer with the same bytes is not decoded again:
            # of all topics that is long work on the loop.
            call = self._all_topics.over(call)

        async def attempt() -> MetadataResult:
            result, _ = await self._first_answer(call)
            if result is not self._last:
                self._take(result)
                self._last = result
            return result

        question = object()
        self._asked[question] = self.clock.monotonic()
        try:
            result = await self._repeat(attempt, call.name)
        finally:
            del self._asked[question]
        self._unreached, self._answered_at = "", self.clock.monotonic()
        return result

    def unanswered(self, longer_than_s: float) -> str:
        """Return why a request for metadata has waited longer than that, empty while none has.

        Such a request is repeated until ``default.api.timeout.ms``, 60 s by default: too late for
        an operator.
        """
        since = min(self._asked.values(), default=math.inf)
        if self.clock.monotonic() - since <= longer_than_s:
            return ""
        return self._unreached or f"no broker of {self} {SILENT} {longer_than_s:g} s"

    @property
    def unreached(self) -> str:
        """Why no broker answered when all of them were asked last, empty where one did."""
        return self._unreached

    async def refresh_brokers(self) -> None:
        """Refresh ``broker_ids``; a paced client uses those of the last minute."""
        is_old = self.clock.monotonic() - self._answered_at > PACED_AGE_S
        if self._connections.pace is None or is_old:
            await self.metadata([])

    async def leader(self, tp: TopicPartition) -> Leader:
        """Return the leader of a partition, refreshing metadata where it is unknown or old.

        Raises:
            RetriableServerError: the topic, the partition or its leader does not exist.
            FatalServerError: the topic may not be read or has an impossible name.
            RetriableError: no broker answered.
        """
        leader = self._cache.leader(tp)
        if leader is not None and not self._is_old(tp):
            return leader
        await self._refresh((tp.topic,))
        leader = self._cache.leader(tp)
        if leader is None:
            raise self.no_leader(tp)
        return leader

    def known_leader(self, tp: TopicPartition) -> Leader | None:
        """Return the leader without waiting; starts a refresh in the background when it is old."""
        # All known topics in one request: they age together.
        if self._is_old(tp) and self._next_refresh is None:
            self._join_refresh((*self._cache.topics, tp.topic))
        return self._cache.leader(tp)

    def no_leader(self, tp: TopicPartition) -> ServerError:
        """Return why ``known_leader`` has none, by the last metadata."""
        error = self._cache.no_leader(tp)
        return self.denied(error.code, "Describe", tp.topic) or error

    async def leaders(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Leader | Mm2pyError]:
        """Return the leaders of many partitions, or why there is none, with at most one request for
        all."""
        partitions = list(tps)
        unknown = [tp for tp in partitions if self._cache.leader(tp) is None or self._is_old(tp)]
        problem: Mm2pyError | None = None
        if unknown:
            try:
                await self._refresh({tp.topic for tp in unknown})
            except (RetriableError, ServerError) as error:
                problem = error
        return {tp: self._cache.leader(tp) or problem or self.no_leader(tp) for tp in partitions}

    def known_topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic from the last metadata, without waiting; None where unknown."""
        return self._cache.topic_id(topic)

    def leader_moved(self, tp: TopicPartition, node_id: int = -1, epoch: int = -1) -> None:
        """Note that a broker is not the leader, and the new one if the broker named it
        (KIP-951)."""
        self._cache.moved(tp, node_id, epoch)

    # ---- connections ----

    async def connection(self, node_id: int, purpose: str) -> BrokerConnection:
        """Return the connection to a broker for a purpose, waiting out its back-off.

        Raises:
            ConnectionFailedError: one attempt failed, or the broker is not part of the cluster.
        """
        # A broker may have joined since; its id came with a leader or a coordinator.
        if node_id not in self._cache.brokers:
            await self._refresh(())
        broker = self._cache.brokers.get(node_id)
        if broker is None:
            raise ConnectionFailedError(f"broker {node_id} is not in the metadata of {self}")
        return await self._connections.get(broker, purpose)

    async def coordinator(self, group_id: str, purpose: str = COORDINATOR) -> BrokerConnection:
        """Return a connection to the coordinator of a group.

        Raises:
            RetriableError: there is none, or it cannot be reached.
        """
        node_id = self._coordinators.get(group_id)
        if node_id is None:
            answer, _ = await self._first_answer(find_coordinator(group_id))
            if answer.error_code:
                raise self._no_coordinator(answer.error_code, group_id)
            node_id = answer.node.node_id
            self._coordinators[group_id] = node_id
        try:
            return await self.connection(node_id, purpose)
        except ConnectionFailedError:
            self.coordinator_moved(group_id)
            raise

    async def coordinators(self, group_ids: Iterable[str]) -> dict[str, int | Mm2pyError]:
        """Return the coordinators of groups, or why there is none; unknown ones by one request.

        A name that no request can carry has its ``UnsendableError``; the others are looked up
        without it.

        Raises:
            RetriableError: no broker answered.
        """
        groups = list(group_ids)
        refused: dict[str, Mm2pyError] = unsendable(groups, "group")
        unknown = [it for it in groups if it not in self._coordinators and it not in refused]
        for asked in chunks(unknown, _GROUPS_PER_QUESTION):
            try:
                answers, _ = await self._first_answer(find_coordinators(asked))
            except UnsupportedVersionError:  # brokers before 3.0 are asked one by one
                answers = {it: (await self._first_answer(find_coordinator(it)))[0] for it in asked}
            for group, answer in answers.items():
                if answer.error_code:
                    refused[group] = self._no_coordinator(answer.error_code, group)
                else:
                    self._coordinators[group] = answer.node.node_id
        absent = server_error(COORDINATOR_NOT_AVAILABLE, "coordinator")
        found: dict[str, int | Mm2pyError] = {**self._coordinators, **refused}
        return {it: found.get(it, absent) for it in groups}

    def _no_coordinator(self, code: int, group: str) -> ServerError:
        return self.denied(code, "Read", group) or server_error(
            code, f"coordinator of group {group}"
        )

    def coordinator_found(self, group_id: str, node_id: int) -> None:
        """Note the coordinator of a group, known from ListGroups."""
        self._coordinators[group_id] = node_id

    def coordinator_moved(self, group_id: str) -> None:
        """Forget the coordinator of a group."""
        self._coordinators.pop(group_id, None)

    async def controller(self) -> BrokerConnection:
        """Return a connection to the controller; KRaft brokers name any broker and forward."""
        if self._cache.controller_id not in self._cache.brokers:
            await self._refresh(())
        # KRaft brokers before they know a controller; any broker forwards (KIP-590).
        if self._cache.controller_id < 0:
            return await self._any()
        return await self.connection(self._cache.controller_id, ADMIN)

    # ---- calls with retries ----

    async def call_any(self, call: Call[R], *, code_of: Callable[[R], int] = _no_code) -> R:
        """Send to any broker, to more than one where the first is silent.

        Retriable failures and ``code_of`` codes are retried until ``default.api.timeout.ms``.
        """

        async def attempt() -> R:
            return self._checked(call, code_of, *await self._first_answer(call))

        return await self._repeat(attempt, call.name)

    async def call_controller(self, call: Call[R], *, code_of: Callable[[R], int] = _no_code) -> R:
        """Send to the controller; otherwise as ``call_any``."""

        def moved() -> None:
            self._cache.controller_id = -1

        return await self._repeat(
            lambda: self._once(self.controller, call, code_of), call.name, moved
        )

    async def call_coordinator(
        self, group_id: str, call: Call[R], *, code_of: Callable[[R], int] = _no_code
    ) -> R:
        """Send to the coordinator of a group; otherwise as ``call_any``."""
        return await self._repeat(
            lambda: self._once(lambda: self.coordinator(group_id), call, code_of),
            call.name,
            lambda: self.coordinator_moved(group_id),
        )

    async def call_leader(
        self, tp: TopicPartition, call: Call[R], *, code_of: Callable[[R], int] = _no_code
    ) -> R:
        """Send to the leader of a partition; otherwise as ``call_any``."""

        async def connection() -> BrokerConnection:
            return await self.connection((await self.leader(tp)).node_id, ADMIN)

        return await self._repeat(
            lambda: self._once(connection, call, code_of),
            call.name,
            lambda: self.leader_moved(tp),
        )

    # ---- inside ----

    def _is_old(self, tp: TopicPartition) -> bool:
        age_s = self._cache.age_s(tp, self.clock.monotonic())
        return age_s * 1000 > self.settings.metadata_max_age_ms

    def _take(self, result: MetadataResult) -> None:
        if result.error_code:
            # Without topics, which are there all the same. KIP-1102:
            # what is known of the brokers may be of another cluster.
            self._cache.brokers = {}
            raise ConnectionFailedError(
                f"{self} gives no metadata: {error_name(result.error_code)} ({result.error_code})"
            )
        self._cache.update(result, self.clock.monotonic())

    def _candidates(self) -> list[BrokerAddress]:
        """Return the addresses to try: connected ones, other known ones, bootstrap; silent ones
        last."""
        brokers = list(self._cache.brokers.values())
        random.shuffle(brokers)
        # KIP-899: when every known broker is gone the bootstrap list leads back to the cluster.
        brokers += self._bootstrap
        pool = self._connections
        brokers.sort(
            key=lambda broker: (
                # A frozen host accepts connections but answers nothing.
                str(broker) in self._silent,
                not pool.is_open(broker, ADMIN),
                broker.node_id < 0,
                pool.is_backing_off(broker),
            )
        )
        by_address: dict[str, BrokerAddress] = {}
        for broker in brokers:
            # A bootstrap address is usually a broker's own, too: one attempt is enough.
            by_address.setdefault(str(broker), broker)
        return list(by_address.values())

    async def _any(self) -> BrokerConnection:
        """Return a connection to some broker, in the order of ``_candidates``."""
        problem: RetriableError | None = None
        for broker in self._candidates():
            try:
                return await self._connections.get(broker, ADMIN)
            except RetriableError as error:
                problem = error
        raise self._unreachable(problem) from problem

    def _unreachable(self, problem: RetriableError | None) -> ConnectionFailedError:
        return ConnectionFailedError(
            f"no broker of {self} {UNREACHABLE}: {'' if problem is None else problem.message}",
            remedy=(problem.remedy if problem is not None else "")
            or f"check {self.alias}.bootstrap.servers and that the brokers run",
        )

    async def _first_answer(self, call: Call[R]) -> tuple[R, str]:
        """Send to one broker after the other until one responds; return its address, too.

        Another one is added each ``SILENT_S``.

        A dead host holds a request for ``request.timeout.ms``: too long a wait for the new leaders
        of its partitions.
        """
        with patience() as deadlines:
            return await self._ask_all(call, deadlines)

    async def _ask_all(self, call: Call[R], deadlines: CallDeadlines) -> tuple[R, str]:
        problem: RetriableError | None = None
        asked: dict[asyncio.Task[R], BrokerAddress] = {}
        candidates = self._candidates()
        try:
            while candidates or asked:
                if candidates:
                    broker = candidates.pop(0)
                    asked[asyncio.create_task(self._ask(broker, call))] = broker
                done: set[asyncio.Task[R]] = set()
                with suppress(TimeoutError):
                    async with deadlines.within(SILENT_S if candidates else None):
                        # ``wait`` leaves the attempts running at a time-out, other than ``gather``.
                        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    address = str(asked.pop(attempt))
                    try:
                        answer = attempt.result()
                    except RetriableError as error:
                        problem = error
                    else:
                        self._silent.discard(address)
                        self._unreached = ""
                        return answer, address
                if not done:
                    self._silent.update(map(str, asked.values()))
        finally:
            # The slower ones: their responses are still read off their connections.
            await cancelled(*asked)
        unreachable = self._unreachable(problem)
        self._unreached = str(unreachable)
        raise unreachable from problem

    async def _ask(self, broker: BrokerAddress, call: Call[R]) -> R:
        connection = await self._connections.get(broker, ADMIN)
        return await connection.call(call)

    async def _refresh(self, topics: Iterable[str]) -> None:
        # Others wait for the same refresh: the cancellation of one must not end it.
        await asyncio.shield(self._join_refresh(topics))

    def _join_refresh(self, topics: Iterable[str]) -> "asyncio.Task[None]":
        refresh = self._next_refresh
        # A refresh that is under way was sent before this call and may not have the news.
        if refresh is None or refresh.task is None:
            refresh = self._next_refresh = _Refresh()
            refresh.task = asyncio.create_task(self._run_refresh(refresh))
            self._tasks.add(refresh.task)
            refresh.task.add_done_callback(self._refreshed)
        refresh.topics.update(topics)
        return refresh.task

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a background refresh has no waiter; the next caller asks again

    async def _run_refresh(self, refresh: _Refresh) -> None:
        try:
            async with self._refresh_lock:
                # As Java's Metadata.timeToAllowUpdate: retry.backoff.ms between any two refreshes.
                pause_s = self._refreshed_at - self.clock.monotonic()
                pause_s += self.settings.retry_backoff_ms / 1000
                if pause_s > 0:
                    await self.clock.sleep(pause_s)
                self._next_refresh = None  # callers from here on need a newer answer
                self._refreshed_at = self.clock.monotonic()
                found, _ = await self._first_answer(metadata(sorted(refresh.topics)))
                self._take(found)
        finally:
            if self._next_refresh is refresh:
                self._next_refresh = None

    async def _repeat(
        self,
        attempt: Callable[[], Awaitable[R]],
        name: str,
        moved: Callable[[], None] | None = None,
    ) -> R:
        backoff = Backoff(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
        problem: RetriableError | None = None
        limit_ms = self.settings.default_api_timeout_ms
        try:
            with patience() as deadlines:
                # Time in which a request waits for its turn does not count (``suspended``).
                async with deadlines.within(limit_ms / 1000):
                    while True:
                        try:
                            return await attempt()
                        except RetriableError as error:
                            problem = error
                        if moved is not None:
                            moved()
                        await self.clock.sleep(backoff.next_s())
        except TimeoutError:
            cause = "no answer" if problem is None else str(problem)
            raise RequestTimedOutError(
                f"{name} to {self} did not succeed within {limit_ms} ms: {cause}"
            ) from problem

    def _no_producer_id(self, result: object, address: str) -> ServerError | None:
        """Return the error of a response without a producer id, which no caller can use."""
        if not isinstance(result, ProducerIdResult) or not result.error_code:
            return None
        error = server_error(result.error_code, f"InitProducerId to {address}")
        # InitProducerId needs IdempotentWrite, or since 2.8 Write on any topic (KIP-679).
        if error.code == CLUSTER_AUTHORIZATION_FAILED:
            error.remedy = (
                f"grant IdempotentWrite on the Cluster resource of {self.alias}, or Write on the "
                "topic:"
                f" {self.granting('IdempotentWrite', '--cluster')}"
            )
        return error

    async def _once(
        self,
        connect: Callable[[], Awaitable[BrokerConnection]],
        call: Call[R],
        code_of: Callable[[R], int],
    ) -> R:
        connection = await connect()
        return self._checked(call, code_of, await connection.call(call), connection.address)

    def _checked(self, call: Call[R], code_of: Callable[[R], int], result: R, address: str) -> R:
        if code_of is _no_code:
            refusal = self._no_producer_id(result, address)
            if refusal is not None:
                raise refusal
        code = code_of(result)
        if code:
            error = server_error(code, f"{call.name} to {address}")
            # All others are part of the result: the caller knows which topic or group they concern.
            if isinstance(error, RetriableServerError):
                raise error
        return result
