"""Membership of a worker on its own (``ConnectStandalone``): no group, one member, generation 0.

Flow: ``rejoin`` -> one ``Round`` that assigns everything that is configured -> ``signal`` when a round is requested.
"""

import asyncio
from collections.abc import Callable
from typing import final

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.runtime.group.assignor import configured_work
from mm2py.runtime.group.membership import Lost, Rejoin, Round
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.types import TaskId, Work


def _everything(_connector_class: str) -> bool:
    return True


@final
class SoloMembership:
    """Implements ``WorkerMembership`` without a group: one member, which leads."""

    def __init__(
        self,
        store: ConfigBackingStore,
        *,
        url: str,
        runnable: Callable[[str], bool] = _everything,
    ) -> None:
        self._store = store
        self._url = url
        self._runnable = runnable
        self._requested = asyncio.Event()
        self._joined = False

    async def rejoin(self, owned: Work, config_offset: int) -> Round:
        """Give out what is configured and not owned yet, take away what is not configured any more."""
        self._requested.clear()
        configured = configured_work(self._store.snapshot(), self._runnable)
        self._joined = True
        return Round(
            member_id="standalone",
            generation=0,
            leader=True,
            leader_url=self._url,
            config_offset=config_offset,
            assigned=configured - owned,
            revoked=owned - configured,
            delay_ms=0,
            failed=False,
            incremental=True,
            signed=False,
        )

    async def is_empty(self) -> bool:
        """Return True: there is no other member."""
        return True

    async def until_ours(self) -> None:
        """Return at once: there is no other member."""

    async def signal(self) -> Rejoin | Lost:
        """Wait until a round is asked for."""
        await self._requested.wait()
        return Rejoin("a round was requested")

    def request_rejoin(self) -> None:
        """Make ``signal`` ask for a round."""
        self._requested.set()

    @property
    def permit(self) -> Permit:
        """This membership is never in doubt."""
        return UNLIMITED

    @property
    def solo(self) -> bool:
        """True: no other worker can join."""
        return True

    @property
    def generation(self) -> int:
        """0 as in Java; -1 before the first round."""
        return 0 if self._joined else -1

    @property
    def is_leader(self) -> bool:
        """Whether the first round was."""
        return self._joined

    @property
    def leader_url(self) -> str | None:
        """This worker."""
        return self._url if self._joined else None

    def owner_url(self, work: str | TaskId) -> str | None:
        """Return this worker, whatever is asked for."""
        return self._url

    def member_urls(self) -> tuple[str, ...]:
        """Return this worker."""
        return (self._url,)

    async def leave(self) -> None:
        """Forget that there was a round."""
        self._joined = False
