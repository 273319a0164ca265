"""One flow on one node: waits for its clusters, joins its group alone, runs its connectors.

Flow: clusters answer -> internal topics exist, sole membership of ``<source>-mm2`` -> offset store
read -> worker. Membership in doubt: tasks and positions are suspended until it is confirmed or lost. Lost:
tasks stop and commit, the group is left, and it waits again. In this part the config and status topics are
created but not written.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.observability.logging import log_scope
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.patience import Patience
from mm2py.runtime.worker import Worker
from mm2py.types import State

__all__ = ["FlowParts", "FlowStore", "Herder", "Membership"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Membership(Protocol):
    """What the herder needs of ``mm2py.client.group_membership.SoleMembership``."""

    async def acquire(self) -> None:
        """Wait until this node is the group's only member."""
        ...

    def listen(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        """Name who stops and goes on sending, until ``release``."""
        ...

    async def lost(self) -> str:
        """Complete with the reason when that is over."""
        ...

    async def release(self) -> None:
        """Leave the group."""
        ...


class FlowStore(Protocol):
    """The flow's offset store, as far as the herder goes."""

    async def start(self) -> None:
        """Open it and read it to its end; may be called again after ``stop``."""
        ...

    async def stop(self) -> None:
        """Close its connections."""
        ...

    def suspend(self) -> None:
        """Write nothing from now on."""
        ...

    def resume(self) -> None:
        """Write again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """The real objects of one flow, built by the composition root.

    ``clusters`` maps a description (``target cluster B at b1:9092``) to what connects it; ``prepare``
    creates and checks the internal topics; ``close`` closes what the flow opened.
    """

    clusters: Mapping[str, Callable[[], Awaitable[None]]]
    prepare: Callable[[], Awaitable[None]]
    membership: Membership
    store: FlowStore
    worker: Callable[[Callable[[], None]], Worker]
    connectors: Mapping[str, Mapping[str, str]]
    close: Callable[[], Awaitable[None]]


@final
class Herder:
    """Runs one flow until it is stopped."""

    def __init__(self, parts: FlowParts, *, meter: FlowMeter, clock: Clock) -> None:
        self._parts = parts
        self._meter = meter
        self._clock = clock
        self._stop = asyncio.Event()
        self._worker: Worker | None = None
        self._suspended = False
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """Why the flow ended by itself; None while it runs or after an orderly stop."""
        return self._error

    @property
    def worker(self) -> Worker | None:
        """Connectors and tasks of the current term, None while the flow waits."""
        return self._worker

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stop.set()

    async def run(self) -> None:
        """Run the flow; returns after ``stop``, or when the flow failed for good (``error``)."""
        with log_scope(str(self._meter.flow)):
            try:
                while not self._stop.is_set():
                    await self._one_term()
            except Exception as error:  # the edge: one flow fails visibly, the others run
                self._error = error
                log.exception("flow failed")
            finally:
                self._meter.state = "FAILED" if self._error is not None else "STOPPED"
                await self._close()

    async def _one_term(self) -> None:
        self._meter.state = "WAITING"
        for what, connect in self._parts.clusters.items():
            if not await self._patiently(what, connect):
                return
        membership = self._parts.membership
        try:
            if await self._prepared(membership) and (
                await self._patiently("the offset store", self._parts.store.start)
            ):
                await self._work()
        finally:
            self._meter.state = "STOPPING" if self._stop.is_set() else "WAITING"
            await self._parts.store.stop()
            await membership.release()

    async def _prepared(self, membership: Membership) -> bool:
        """Create topics and join the group side by side: joining is mostly waiting for the broker."""
        joining = asyncio.ensure_future(self._patiently("the flow's group", membership.acquire))
        try:
            created = await self._patiently("the internal topics", self._parts.prepare)
            return created and await joining
        finally:
            if not joining.done():
                joining.cancel()
                await asyncio.wait({joining})

    async def _work(self) -> None:
        worker = self._worker = self._parts.worker(self._note_state)
        log.info("flow starts connectors=%s", ",".join(self._parts.connectors))
        worker.start(self._parts.connectors)
        self._note_state()
        self._parts.membership.listen(self._suspend, self._resume)
        try:
            reason = await self._or_stop(self._parts.membership.lost())
            if reason is not None:
                log.warning("group membership lost, the flow stops and waits cause=%s", reason)
                # What was acknowledged is committed, even where nothing more may be sent.
                self._parts.membership.listen(worker.suspend, worker.resume)
                self._parts.store.resume()
        finally:
            await worker.stop()
            self._worker = None
            self._suspended = False
            log.info("flow stopped, positions are committed as far as the target took them")

    def _suspend(self) -> None:
        if self._worker is not None:
            self._suspended = True
            self._parts.store.suspend()
            self._worker.suspend()
            self._meter.state = "SUSPENDED"

    def _resume(self) -> None:
        if self._worker is not None:
            self._suspended = False
            self._parts.store.resume()
            self._worker.resume()
            self._note_state()

    def _note_state(self) -> None:
        if self._worker is not None and not self._suspended:
            state = self._worker.state()
            self._meter.state = "STARTING" if state is State.UNASSIGNED else state.value

    async def _patiently(self, what: str, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Try until it works; False when the flow is being stopped."""
        patience = Patience(self._clock, what, self._stop)
        while not self._stop.is_set():
            try:
                done = await self._or_stop(_completed(attempt))
            except RetriableError as error:
                await patience.wait(error)
                continue
            if done:
                patience.succeeded()
                return True
        return False

    async def _or_stop(self, work: Coroutine[object, object, T]) -> T | None:
        """Wait for ``work``, None (and it is cancelled) when the flow is stopped first."""
        running = asyncio.ensure_future(work)
        stopper = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopper}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            return None
        finally:
            stopper.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    async def _close(self) -> None:
        try:
            await self._parts.close()
        except Exception as error:  # noqa: BLE001 - the edge: the other flows still have to stop
            log.warning("closing the flow failed cause=%s", error)


async def _completed(attempt: Callable[[], Awaitable[None]]) -> bool:
    await attempt()
    return True
