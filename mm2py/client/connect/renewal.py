"""Renewal of tokens and tickets: a login waits for a silent server only if it has no valid one.

Flow: a login finds that its token is due -> ``Renewal`` -> one attempt for all of them, in a thread
of its own -> the next token.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Final, TypeVar, final

from mm2py.errors import ConnectionFailedError

T = TypeVar("T")

RETRY_S: Final = 10.0
"""Pause after an attempt that failed while the old one is valid (Java's
``ExpiringCredentialRefreshingLogin``)."""

PATIENCE_S: Final = 1.0
"""How long a login with a valid token or ticket waits for its renewal, so that it uses the new one
if the server responds."""


@final
class Renewal:
    """One attempt at a time, shared by all logins of a client; methods are for the loop's thread.

    Args:
        attempt: replaces the token or ticket, or raises why not.
    """

    def __init__(self, attempt: Callable[[], Coroutine[None, None, None]]) -> None:
        self._attempt = attempt
        self._running: asyncio.Task[None] | None = None
        self._patient_until_s = 0.0

    async def finished(self) -> None:
        """Wait for an attempt, one that is under way or a new one; raises what it raised."""
        # A login that is cancelled must not end the attempt that others wait for.
        await asyncio.shield(self.begin())

    async def tried(self) -> None:
        """Wait for an attempt, but no longer than ``PATIENCE_S`` after its start; raises
        nothing."""
        running = self.begin()
        left_s = self._patient_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            # ``wait`` neither cancels nor raises, other than ``wait_for``.
            await asyncio.wait({running}, timeout=left_s)

    def begin(self) -> "asyncio.Task[None]":
        """Begin an attempt unless one is under way, and return it."""
        running = self._running
        if running is None or running.done():
            self._patient_until_s = asyncio.get_running_loop().time() + PATIENCE_S
            running = self._running = asyncio.create_task(self._attempt(), name="login renewal")
            running.add_done_callback(_retrieve)
        return running


def _retrieve(attempt: "asyncio.Task[None]") -> None:
    """Mark the error as retrieved: every login may have gone on without it."""
    if not attempt.cancelled():
        attempt.exception()


async def in_own_thread(call: Callable[[], T]) -> T:
    """Run ``call``, which may block for long, in a thread of its own, that the end of the process
    does not wait for.

    The loop's few threads serve all clusters: one whose servers are silent must not keep the others
    from their logins.

    Raises:
        ConnectionFailedError: the process may have no more threads.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # a login that is cancelled leaves the thread to itself

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as failure:  # noqa: BLE001 - the caller gets it
            answer.set_exception(failure)

    try:
        threading.Thread(target=copy_context().run, args=(run,), name="login", daemon=True).start()
    except RuntimeError as error:
        raise ConnectionFailedError(
            f"no thread can be started for a login: {error}",
            remedy="raise the limit of processes and threads (ulimit -u, pids.max)",
        ) from None
    return await asyncio.wrap_future(answer)
