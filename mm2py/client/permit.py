"""The right of this process to write for one flow: data, positions, states and configs.

Flow: confirmed heartbeat -> ``grant`` -> writers ask ``allows`` immediately before bytes leave; expiry,
``revoke`` and ``abandon`` -> watchers, which reset connections that still hold unanswered requests.

Invariants (tests of the same names):

1. Nothing leaves after the granted instant. It is compared at each send, not only by a timer: a process
   that was frozen, or a machine that slept, runs its sockets before its timers.
2. ``abandon`` ends a term for good: what was queued under it never leaves, whatever is granted later.
3. A grant never extends an abandoned term; the next grant begins a new one.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from math import inf
from typing import Final, final

from mm2py.clock import SYSTEM_CLOCK, Clock

_ending: Final[set["Permit"]] = set()
"""Those that are valid until an instant."""


@final
class Permit:
    """One flow's right to write in this process; instants are ``Clock.monotonic`` seconds.

    A *term* lasts from the first grant of a membership until ``abandon``. A writer notes the term it was
    made in and passes it to ``allows``.
    """

    def __init__(self, clock: Clock, *, until_s: float = -inf) -> None:
        self._clock = clock
        self._until_s = until_s
        self.was_valid = until_s > -inf
        """What ``check`` saw last: for bookkeeping on hot paths, never for the decision to send."""
        self._watchers: list[tuple[Callable[[], None], Context]] = []
        self._timer: asyncio.Task[None] | None = None
        self.term = 0
        """Number of the present term; grows by one with each ``abandon``."""

    @property
    def valid(self) -> bool:
        """Whether writing is allowed now."""
        return self._clock.monotonic() < self._until_s

    @property
    def until_s(self) -> float:
        """The instant up to which writing is allowed, for a process that shares the clock."""
        return self._until_s

    def allows(self, term: int) -> bool:
        """Whether what was queued in ``term`` may leave now."""
        return term == self.term and self._clock.monotonic() < self._until_s

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each grant, revocation, expiry and ``abandon``.

        It runs in the context of this call: an expiry may be seen by a signal handler or by another flow's
        code, and what is logged and started then belongs to the watcher. Returns what ends the watching.
        """
        watcher = changed, copy_context()
        self._watchers.append(watcher)

        def end() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return end

    def grant(self, until_s: float) -> None:
        """Allow writing until ``until_s``; an earlier instant than the present one changes nothing."""
        self._set(self.term, max(self._until_s, until_s))

    def revoke(self) -> None:
        """Allow nothing until the next grant: the membership is in doubt, what is queued stays."""
        self._set(self.term, -inf)

    def abandon(self) -> None:
        """End the term: the membership is over, what is queued must never leave."""
        self._set(self.term + 1, -inf)

    def follow(self, term: int, until_s: float) -> None:
        """Be as the permit of another process of this machine is, which this one works for."""
        self._set(term, until_s)

    def check(self) -> None:
        """Notify watchers if the permit has ended since the last look."""
        if self.was_valid and not self.valid:
            self._set(self.term, -inf)

    def _set(self, term: int, until_s: float) -> None:
        if (term, until_s) == (self.term, self._until_s) and self.was_valid == self.valid:
            return
        self.term, self._until_s = term, until_s
        self.was_valid = self.valid
        if not self.was_valid:
            self._stop_timer()
        elif until_s < inf and self._timer is None:
            self._timer = asyncio.create_task(self._run_out(), name="permit")
            _ending.add(self)
        self._notify()

    def _notify(self) -> None:
        errors: list[Exception] = []
        for changed, context in tuple(self._watchers):
            try:
                context.copy().run(changed)  # a copy: a change may be made by a watcher
            except Exception as error:  # noqa: BLE001 - a defect of one must not leave the others writing
                errors.append(error)
        if errors:
            raise errors[0]

    async def _run_out(self) -> None:
        """Look when the granted instant is reached, later if it was moved meanwhile."""
        while (left_s := self._until_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._timer = None
        _ending.discard(self)
        self.check()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        _ending.discard(self)
        if timer is not None and timer is not asyncio.current_task():
            timer.cancel()


def check_all() -> None:
    """Look at every permit of this process: it may have been frozen (see ``runtime.hosts.thaw``)."""
    for permit in tuple(_ending):
        permit.check()


UNLIMITED: Final = Permit(SYSTEM_CLOCK, until_s=inf)
"""For writers that need no membership: offset syncs, tools, a worker without a group."""
