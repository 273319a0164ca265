"""What a herder refuses, with the HTTP status and the exact text of the answer.

::

    HerderError                    500
    |-- NotFoundError              404
    |-- AlreadyExistsError         409
    |-- BadRequestError            400
    |-- ForbiddenError             403
    |-- ConflictError              409, try again
    |-- PreconditionFailedError    412
    |-- WorkerUnreachableError     503, try again
    |-- SignatureError             400, 403 or 503
    |-- RebalanceExpectedError     500
    |-- HerderTimeoutError         500
    |-- HerderFailedError          503
    `-- ForwardError               409, unless the receiver of the request forwards it
"""

from typing import Final

from mm2py.errors import Mm2pyError, RetriableError

STALE_CONFIGURATION: Final = (
    "Cannot complete request momentarily due to stale configuration (typically caused by a "
    "concurrent config change)"
)
"""Text of a ``ConflictError`` while a change waits for a rebalance."""

CONFLICTING_OPERATION: Final = (
    "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
)
"""Text of a ``ConflictError`` after two hops, and of a ``ForwardError`` that is not forwarded."""

REBALANCE_EXPECTED: Final = "Request cannot be completed because a rebalance is expected"
NO_LEADER: Final = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was"
    " underway."
)


WORKER_ENDS: Final = "Worker is shutting down"


class HerderError(Mm2pyError):
    """A request failed; ``message`` is the body's text, word for word.

    Args:
        message: the text.
        status: the HTTP status where it is not the class's own, as for what a peer answered.
        remedy: for the log; the body does not hold it.
    """

    status: int = 500

    def __init__(self, message: str, *, status: int | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        if status is not None:
            self.status = status


class NotFoundError(HerderError):
    """No such connector, task or plug-in."""

    status = 404


class AlreadyExistsError(HerderError):
    """A connector of that name exists."""

    status = 409


class BadRequestError(HerderError):
    """The request is wrong and will stay wrong."""

    status = 400


class ForbiddenError(HerderError):
    """The request is switched off, or not this caller's to make."""

    status = 403


class ConflictError(HerderError):
    """Not now: stale configuration or fencing."""

    status = 409


class PreconditionFailedError(HerderError):
    """``If-Match`` names another revision or config than the one in force."""

    status = 412


class WorkerUnreachableError(HerderError):
    """The worker that has to answer cannot be reached; its group may not know that yet."""

    status = 503


class SignatureError(HerderError):
    """A request between workers is signed wrongly (400, 403), or cannot be checked yet (503)."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, status=status)


class RebalanceExpectedError(HerderError):
    """The answer would be stale; clients retry on exactly this text."""

    def __init__(self) -> None:
        super().__init__(REBALANCE_EXPECTED)


class HerderTimeoutError(HerderError):
    """The herder was busy for too long.

    Args:
        stage: the sentence about what keeps it busy (``The worker is currently ...``).
    """

    def __init__(self, stage: str) -> None:
        super().__init__(f"Request timed out. {stage}")


class ForwardError(HerderError):
    """Another worker has to answer: the one at ``url``, None while the leader is not known."""

    status = 409

    def __init__(self, url: str | None) -> None:
        super().__init__(NO_LEADER if url is None else CONFLICTING_OPERATION)
        self.url = url


class HerderFailedError(HerderError):
    """The herder failed and does not run now; ``cause`` is why it failed."""

    status = 503

    def __init__(self, cause: Mm2pyError) -> None:
        super().__init__(f"The herder failed and does not run now: {cause}")
        self.cause = cause


class ForeignMemberError(RetriableError):
    """The group holds members that are not mm2py's; names their client ids and hosts."""
