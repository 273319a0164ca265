"""How much of an answer each partition may fill while several have more to give than fits. No I/O.

Flow: partitions with a backlog, their lag in seconds -> ``shares`` -> ``max_bytes`` of each.
The broker serves a session's partitions in turn (KIP-227), so nobody starves; the shares decide who
catches up first.
"""

from collections.abc import Collection, Iterator
from typing import Final

from mm2py.client.fetch.cursor import Cursor

__all__ = ["LEAST_BYTES", "shares"]

LEAST_BYTES: Final = 128 * 1024
"""Least share: smaller pieces cost more than the fairness is worth (real-broker.md 8)."""

_LEAST_LAG_MS: Final = 1000


def shares(
    backlogged: Collection[Cursor], limit: int, answer_bytes: int, now_ms: int
) -> Iterator[tuple[Cursor, int]]:
    """Yield the partitions whose share changes, with the new one; 0 is no share of its own.

    While all fit side by side nobody is limited. Else each gets a part of the answer by its lag in
    seconds, a quarter of it equally, so that a partition far behind catches up first but never alone.
    """
    if len(backlogged) * limit <= answer_bytes:
        yield from ((cursor, 0) for cursor in backlogged if cursor.share_bytes)
        return
    lags = [max(now_ms - cursor.newest_ms, _LEAST_LAG_MS) for cursor in backlogged]
    equal = answer_bytes // 4 // len(backlogged)
    rest, total = answer_bytes - answer_bytes // 4, sum(lags)
    for cursor, lag in zip(backlogged, lags, strict=True):
        # Room for two batches like the last: a broker leaves out what would be cut (KIP-74).
        share = max(2 * cursor.batch_bytes, equal + rest * lag // total)
        steps = -(-share // LEAST_BYTES)  # whole steps, so that it is not sent anew for every tick
        share = min(limit, steps * LEAST_BYTES)
        if share != cursor.share_bytes:
            yield cursor, share
