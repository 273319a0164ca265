"""Transactions that never end and so hold back all readers of committed data.

Flow: last stable offset and high watermark of each cursor, once a second -> what changed, once per
partition and cause. Never ends a transaction: that is for the operator.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from mm2py.client.fetch.cursor import Cursor
from mm2py.errors import RetriableError

TRANSACTION_TIMEOUT_S: Final = 60.0
"""Java's ``transaction.timeout.ms``: a broker aborts an open transaction after that, so a stable offset
that does not move for longer is either a producer with a longer timeout or a hanging transaction."""


@dataclass(slots=True)
class _Standing:
    stable: int
    since: float
    reported: bool = False


@final
class OpenTransactions:
    """Watches the last stable offsets under ``read_committed``."""

    def __init__(self, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._standing: dict[Cursor, _Standing] = {}

    def check(self, cursors: Iterable[Cursor], now: float) -> list[tuple[Cursor, Exception | None]]:
        """Return those that are held back from now on (the cause) or not any more (None); ``now`` is monotonic."""
        changed: list[tuple[Cursor, Exception | None]] = []
        known, self._standing = self._standing, {}
        for cursor in cursors:
            stable = cursor.last_stable_offset
            standing = known.pop(cursor, None)
            if not 0 <= stable < cursor.high_watermark or cursor.paused or cursor.node < 0:
                if standing is not None and standing.reported:
                    changed.append((cursor, None))
                continue
            if standing is None or standing.stable != stable:
                if standing is not None and standing.reported:
                    changed.append((cursor, None))
                standing = _Standing(stable, now)
            elif not standing.reported and now - standing.since >= self._timeout_s:
                standing.reported = True
                changed.append((cursor, self._cause(cursor, now - standing.since)))
            self._standing[cursor] = standing
        return changed

    @staticmethod
    def _cause(cursor: Cursor, seconds: float) -> Exception:
        return RetriableError(
            f"a transaction is open at offset {cursor.last_stable_offset} of {cursor.tp} for "
            f"{int(seconds)} s; {cursor.high_watermark - cursor.last_stable_offset} offsets behind it "
            "may not be read under isolation.level=read_committed",
            remedy="if its producer is gone, find and abort it with kafka-transactions.sh "
            "find-hanging and abort",
        )
