"""Questions to a leader about positions: all partitions that wait for one, with one request of each kind.

Flow: cursors with a ``Lookup`` -> ListOffsets, OffsetForLeaderEpoch -> ``FetchLosses``, which moves the cursor.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TypeVar

from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.fetch.cursor import Cursor, Lookup
from mm2py.client.fetch.losses import FetchLosses
from mm2py.errors import ServerError
from mm2py.protocol.error_codes import (
    OFFSET_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.log_offsets import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from mm2py.protocol.messages import list_offsets, offset_for_leader_epoch
from mm2py.types import EARLIEST, LATEST, TopicPartition

__all__ = ["look_up"]

Answer = TypeVar("Answer", ListedOffset, EpochEnd)


async def look_up(
    connection: BrokerConnection,
    cursors: Sequence[Cursor],
    losses: FetchLosses,
    *,
    isolation_level: int,
    current: Container[Cursor],
) -> list[tuple[Cursor, ServerError]]:
    """Answer the look-ups of ``cursors``, which this broker leads; returns those that it refused.

    ``current`` holds the cursors that still wait here when the answer has come.

    Raises:
        Mm2pyError: the broker did not answer.
    """
    asked = {cursor: cursor.lookup for cursor in cursors}
    first = {c: EARLIEST if kind is Lookup.BEGINNING else c.position for c, kind in asked.items()}
    outside = [cursor for cursor, kind in asked.items() if kind is Lookup.ENDS]
    compared = [c for c, kind in asked.items() if kind in (Lookup.EPOCH, Lookup.VALIDATE)]
    for cursor in (*outside, *compared):
        del first[cursor]
    offsets, starts, ends, epochs = await asyncio.gather(
        _offsets(connection, first, isolation_level),
        _offsets(connection, dict.fromkeys(outside, EARLIEST), 0),
        _offsets(connection, dict.fromkeys(outside, LATEST), 0),
        _epoch_ends(connection, compared),
    )
    refused: list[tuple[Cursor, ServerError]] = []
    for cursor, kind in asked.items():
        if cursor.failed or cursor.lookup is not kind or cursor not in current:
            continue
        answers = (it.get(cursor) for it in (offsets, starts, ends, epochs))
        code = next((it.error_code for it in answers if it is not None and it.error_code), 0)
        if code:
            refused.append((cursor, server_error(code, f"position of {cursor.tp}")))
        elif cursor in offsets and offsets[cursor].offset < 0:
            refused.append((cursor, server_error(OFFSET_NOT_AVAILABLE, f"position of {cursor.tp}")))
        elif cursor in offsets:
            losses.offset_found(cursor, offsets[cursor].offset)
        elif cursor in starts:
            losses.ends_found(cursor, starts[cursor].offset, ends[cursor].offset)
        else:
            end = epochs[cursor]
            losses.epoch_found(cursor, end.leader_epoch, end.end_offset)
    return refused


async def _offsets(
    connection: BrokerConnection, at: Mapping[Cursor, int], isolation_level: int
) -> dict[Cursor, ListedOffset]:
    if not at:
        return {}
    queries = [OffsetQuery(*c.tp, timestamp, c.leader_epoch) for c, timestamp in at.items()]
    answers = await connection.call(list_offsets(queries, isolation_level=isolation_level))
    return _by_cursor(
        at, answers, lambda tp: ListedOffset(*tp, UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    )


async def _epoch_ends(
    connection: BrokerConnection, cursors: Collection[Cursor]
) -> dict[Cursor, EpochEnd]:
    if not cursors:
        return {}
    queries = [EpochQuery(*c.tp, c.last_epoch, c.leader_epoch) for c in cursors]
    answers = await connection.call(offset_for_leader_epoch(queries))
    return _by_cursor(
        cursors, answers, lambda tp: EpochEnd(*tp, UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    )


def _by_cursor(
    cursors: Collection[Cursor],
    answers: Sequence[Answer],
    absent: Callable[[TopicPartition], Answer],
) -> dict[Cursor, Answer]:
    by_tp = {TopicPartition(answer.topic, answer.partition): answer for answer in answers}
    return {c: by_tp[c.tp] if c.tp in by_tp else absent(c.tp) for c in cursors}
