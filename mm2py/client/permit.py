"""The right of this process to write for one flow: data, positions, states and configs.

Flow: confirmed heartbeat -> ``grant`` -> writers ask ``allows`` immediately before bytes leave;
expiry, ``revoke`` and ``abandon`` -> watchers, which reset connections that still hold unanswered
requests.

Invariants (tests of the same names):

1. Nothing is sent after the granted instant. It is compared at each send, not only by a timer: a
   process that was frozen, or a machine that slept, may run its sockets before its timers.
2. ``abandon`` is final for a term: what was queued under it is never sent, also after a later
grant.
3. A grant never extends an abandoned term; the next grant begins a new one.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from math import inf
from typing import Final, final

from mm2py.clock import SYSTEM_CLOCK, Clock

_ending: Final[set["Permit"]] = set()
"""Permits with a limited validity."""


@final
class Permit:
    """One flow's right to write in this process; instants are ``Clock.monotonic`` seconds.

    A *term* lasts from the first grant of a membership until ``abandon``. A writer notes the term
    it was made in and passes it to ``allows``.
    """

    def __init__(self, clock: Clock, *, until_s: float = -inf) -> None:
        self._clock = clock
        self._until_s = until_s
        self.was_valid = until_s > -inf
        """Validity at the last ``check``: for bookkeeping on hot paths, never for the decision to
        send."""
        self._watchers: list[tuple[Callable[[], None], Context]] = []
        self._timer: asyncio.Task[None] | None = None
        self.term = 0
        """Number of the current term; incremented by ``abandon``."""
        self.cause = ""
        """Why the last heartbeat was not confirmed, empty where it was or is not answered yet."""

    @property
    def valid(self) -> bool:
        """Whether writing is allowed now."""
        return self._clock.monotonic() < self._until_s

    @property
    def until_s(self) -> float:
        """End of the validity, for a process that shares the clock."""
        return self._until_s

    def allows(self, term: int) -> bool:
        """Whether what was queued in ``term`` may be sent now."""
        return term == self.term and self._clock.monotonic() < self._until_s

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each grant, revocation, expiry and ``abandon``.

        It runs in the context of this call: an expiry may be noticed by a signal handler or by
        another flow's code, but its log lines and tasks belong to the watcher. Returns a function
        that ends the watching.
        """
        watcher = changed, copy_context()
        self._watchers.append(watcher)

        def end() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return end

    def grant(self, until_s: float) -> None:
        """Allow writing until ``until_s``; never shortens the current validity."""
        # Responses to heartbeats may be handled out of order of their sending.
        self._set(self.term, max(self._until_s, until_s))

    def revoke(self) -> None:
        """Suspend writing until the next grant, because the membership is in doubt; the queues
        stay."""
        self._set(self.term, -inf)

    def abandon(self) -> None:
        """End the term, because the membership is over; what is queued must never be sent."""
        # The number is what a writer compares: no list of queues has to be kept.
        self._set(self.term + 1, -inf)

    def follow(self, term: int, until_s: float) -> None:
        """Mirror the permit of the worker process on this machine that this process belongs to."""
        self._set(term, until_s)

    def check(self) -> None:
        """Notify watchers if the permit has ended since the last check."""
        # The expiry shows only now: the timer did not run while the process was frozen.
        if self.was_valid and not self.valid:
            self._set(self.term, -inf)

    def _set(self, term: int, until_s: float) -> None:
        if (term, until_s) == (self.term, self._until_s) and self.was_valid == self.valid:
            return
        self.term, self._until_s = term, until_s
        self.was_valid = self.valid
        if not self.was_valid:
            self._stop_timer()
        # One timer for all extensions: it sleeps again if the instant has moved.
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
        """Check at the granted instant, which may have moved meanwhile."""
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
    """Check every permit of this process, which may have been frozen (see
    ``runtime.hosts.thaw``)."""
    for permit in tuple(_ending):
        permit.check()


UNLIMITED: Final = Permit(SYSTEM_CLOCK, until_s=inf)
"""For writers without a membership: tools, and workers without a group."""
