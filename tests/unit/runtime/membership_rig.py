"""Workers that share a group in memory and obey their rounds, as the herder does."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from mm2py.client.group.coordinator import GroupCoordinator
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.errors import RequestTimedOutError, RetriableError
from mm2py.runtime.errors import ForeignMemberError
from mm2py.runtime.group.connect_membership import ConnectMembership
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import Work

SESSION_S = 6.0


class Configs:
    """What a worker has read of the config topic; ``newest`` is what a refresh finds."""

    def __init__(self, snapshot: ConfigSnapshot, newest: ConfigSnapshot | None = None) -> None:
        self.held, self.newest = snapshot, newest

    def snapshot(self) -> ConfigSnapshot:
        return self.held

    async def refresh(self, timeout_s: float) -> None:
        if self.newest is None:
            raise RequestTimedOutError(f"no answer within {timeout_s} s")
        self.held = self.newest


def configs(counts: Mapping[str, int], offset: int = 7) -> ConfigSnapshot:
    """Connectors with so many tasks each; the class is named after the connector."""
    return ConfigSnapshot(
        offset=offset,
        connectors={name: {"connector.class": f"x.{name}"} for name in counts},
        task_counts=counts,
    )


class Worker:
    """A member that runs what it is told; ``log`` is what happened to it."""

    def __init__(
        self,
        link: GroupCoordinator,
        name: str,
        store: Configs,
        clock: Clock,
        *,
        connect_protocol: str = "sessioned",
        max_delay_ms: int = 3_000,
        heartbeat_ms: int = 2_000,
        session_ms: int = int(SESSION_S * 1000),
        runnable: Callable[[str], bool] | None = None,
    ) -> None:
        self.link, self.name, self.store = link, name, store
        self.member = GroupMember(
            link,
            Permit(clock),
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=heartbeat_ms,
            rebalance_timeout_ms=60_000,
            clock=clock,
        )
        options = {} if runnable is None else {"runnable": runnable}
        self.membership = ConnectMembership(
            self.member,
            cast("ConfigBackingStore", store),
            url=f"http://{name}/",
            connect_protocol=connect_protocol,
            max_delay_ms=max_delay_ms,
            clock=clock,
            **options,
        )
        self.owned = Work()
        self.log: list[str] = []
        self.rounds: list[Round] = []
        self.lost: list[Lost] = []
        self.has_news = asyncio.Event()
        """Set by a test: as a herder does with a new config, it asks for another round."""
        self._clock = clock

    @property
    def suspended(self) -> bool:
        """Nothing may be written for it."""
        return not self.membership.permit.valid

    async def round(self) -> Round:
        """One round, and what follows from it."""
        done = await self.membership.rejoin(
            self.owned, self.store.snapshot().offset, lambda _: False
        )
        self.owned = (self.owned - done.revoked) | done.assigned
        self.rounds.append(done)
        return done

    async def run(self) -> None:
        """Stay in the group until cancelled."""
        while True:
            try:
                done = await self.round()
                if done.revoked:
                    continue
            except MembershipLostError as error:
                self._give_up(error.lost)
                continue
            except ForeignMemberError as error:
                self.log.append(str(error))
                self.owned = Work()
                await self.membership.until_ours()
                continue
            except RetriableError as error:
                self.log.append(str(error))
                await self._clock.sleep(0.1)
                continue
            signal = await self._signal()
            if isinstance(signal, Lost):
                self._give_up(signal)
            elif signal is not None:
                self.log.append(signal.reason)

    async def _signal(self) -> Rejoin | Lost | None:
        """Return what the membership says, None where there was news before."""
        signal = asyncio.create_task(self.membership.signal())
        news = asyncio.create_task(self.has_news.wait())
        try:
            await asyncio.wait({signal, news}, return_when=asyncio.FIRST_COMPLETED)
            self.has_news.clear()
            return await signal if signal.done() else None
        finally:
            signal.cancel()
            news.cancel()

    def _give_up(self, lost: Lost) -> None:
        self.lost.append(lost)
        self.owned = Work()


@asynccontextmanager
async def working(worker: Worker) -> AsyncGenerator["asyncio.Task[None]", None]:
    """Let a worker run, and end it without leaving the group: it dies."""
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
