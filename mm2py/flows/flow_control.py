"""Whether flows run, as a failover asks and changes it over REST."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from mm2py.types import FlowName, State

__all__ = ["WAITING", "FlowControl", "FlowNow"]

WAITING: Final = "WAITING"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNow:
    """A flow that there is; ``enabled``: it copies topics, not heartbeats alone.

    ``failed`` counts its partitions and tasks that have failed; ``paused`` names topics and partitions.
    """

    state: str
    enabled: bool
    tasks: int
    failed: int = 0
    paused: tuple[str, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it copies, now or later."""
        if self.is_waiting:
            return False
        return not self.enabled or (self.state == State.STOPPED and not self.tasks)

    @property
    def is_waiting(self) -> bool:
        """Whether its workers wait for a cluster: what it is to do is not known to them yet."""
        return self.state == WAITING

    @property
    def copies(self) -> bool:
        """Whether it copies, or will as soon as it can."""
        return self.enabled and self.state not in (State.STOPPED, State.PAUSED, WAITING)


class FlowControl(Protocol):
    """Asks and changes flows; ``RetriableError`` for "not now"."""

    async def now(self, flow: FlowName) -> FlowNow | None:
        """Return a flow as it is; None where there is none."""
        ...

    async def lag(self, flow: FlowName) -> Mapping[str, int]:
        """Return the records of each topic that its tasks knew of and had not copied; none of what is not known."""
        ...

    async def stop(self, flow: FlowName) -> None:
        """Stop every connector of a flow; does not wait for its tasks."""
        ...

    async def start(self, flow: FlowName, config: Mapping[str, str]) -> None:
        """Let a flow copy: created with ``config`` where it does not copy at all, else resumed."""
        ...
