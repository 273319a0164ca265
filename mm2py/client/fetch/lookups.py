"""Looks positions up at a leader: all partitions that need it, with one request of each kind.

Flow: cursors with a ``Lookup`` -> ListOffsets, OffsetForLeaderEpoch -> ``FetchLosses``, which moves
the cursor.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
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
from mm2py.protocol.messages import list_offsets, offset_for_leader_epoch
from mm2py.protocol.topics import EpochEnd, EpochQuery, OffsetAnswer, OffsetQuery
from mm2py.types import EARLIEST, LATEST, TopicPartition, asked_start

Answer = TypeVar("Answer", OffsetAnswer, EpochEnd)


async def look_up(
    connection: BrokerConnection,
    cursors: Sequence[Cursor],
    losses: FetchLosses,
    *,
    isolation_level: int,
    current: Container[Cursor],
) -> list[tuple[Cursor, ServerError]]:
    """Do the lookups of ``cursors``, which this broker leads; returns those that it refused.

    ``current`` has the cursors that are still read from this broker when the response arrives.

    Raises:
        Mm2pyError: the broker did not answer.
    """
    asked = {cursor: cursor.lookup for cursor in cursors}
    answers = await _ask(connection, _Questions.of(asked), isolation_level)
    refused: list[tuple[Cursor, ServerError]] = []
    for cursor, kind in asked.items():
        # Moved or dropped while the request was in flight: the answer belongs to a former state.
        if cursor.failed or cursor.lookup is not kind or cursor not in current:
            continue
        code = answers.error_code(cursor)
        if not code and cursor in answers.epochs:
            end = answers.epochs[cursor]
            losses.epoch_found(cursor, end.leader_epoch, end.end_offset)
        elif not code and cursor in answers.ends:
            losses.ends_found(cursor, answers.starts[cursor].offset, answers.ends[cursor].offset)
        elif not code and answers.first(cursor) >= 0:
            losses.offset_found(cursor, answers.first(cursor))
        else:
            # Neither an offset nor an error: tried again like
            # a new leader's lagging high watermark (KIP-207).
            code = code or OFFSET_NOT_AVAILABLE
            refused.append((cursor, server_error(code, f"position of {cursor.tp}")))
    return refused


@dataclass(frozen=True, slots=True)
class _Questions:
    """Cursors by the kind of their lookup.

    ``first``: the offset of a time (ListOffsets); ``timed``: those of them whose time the user
    chose; ``placed``: an offset that the user chose; ``outside``: both ends of the log;
    ``compared``: the end of an epoch.
    """

    first: dict[Cursor, int]
    timed: list[Cursor]
    placed: dict[Cursor, int]
    outside: list[Cursor]
    compared: list[Cursor]

    @classmethod
    def of(cls, asked: Mapping[Cursor, Lookup]) -> "_Questions":
        questions = cls({}, [], {}, [], [])
        for cursor, kind in asked.items():
            if kind is Lookup.ENDS:
                questions.outside.append(cursor)
            elif kind in (Lookup.EPOCH, Lookup.VALIDATE):
                questions.compared.append(cursor)
            elif kind is Lookup.BEGINNING:
                questions.first[cursor] = EARLIEST
            else:
                questions.begin(cursor)
        return questions

    def begin(self, cursor: Cursor) -> None:
        time, offset = asked_start(cursor.position)
        if offset is not None:
            self.placed[cursor] = offset
            return
        self.first[cursor] = cursor.position if time is None else time
        if time is not None:
            self.timed.append(cursor)


@dataclass(frozen=True, slots=True)
class _Answers:
    """``limits``: readable log ends, of cursors whose start the user chose."""

    placed: Mapping[Cursor, int]
    limits: Mapping[Cursor, OffsetAnswer]
    offsets: Mapping[Cursor, OffsetAnswer]
    starts: Mapping[Cursor, OffsetAnswer]
    ends: Mapping[Cursor, OffsetAnswer]
    epochs: Mapping[Cursor, EpochEnd]

    def error_code(self, cursor: Cursor) -> int:
        every = (self.limits, self.offsets, self.starts, self.ends, self.epochs)
        answers = (it.get(cursor) for it in every)
        return next(
            (answer.error_code for answer in answers if answer is not None and answer.error_code), 0
        )

    def first(self, cursor: Cursor) -> int:
        """Return the start offset of a cursor, negative where the broker does not know it yet."""
        if cursor in self.placed:
            return min(
                max(self.placed[cursor], self.starts[cursor].offset), self.limits[cursor].offset
            )
        offset = self.offsets[cursor].offset
        # No record is that new: start at the end.
        return self.limits[cursor].offset if offset < 0 and cursor in self.limits else offset


async def _ask(
    connection: BrokerConnection, questions: _Questions, isolation_level: int
) -> _Answers:
    placed, outside = questions.placed, questions.outside
    # Sent in this order: records that arrive after the limits were read are found by their time.
    limits, offsets, starts, ends, epochs = await asyncio.gather(
        _offsets(connection, dict.fromkeys((*questions.timed, *placed), LATEST), isolation_level),
        _offsets(connection, questions.first, isolation_level),
        # Ends of the log itself, under any isolation.level:
        # the last stable offset may be below the position.
        _offsets(connection, dict.fromkeys((*outside, *placed), EARLIEST), 0),
        _offsets(connection, dict.fromkeys(outside, LATEST), 0),
        _epoch_ends(connection, questions.compared),
    )
    return _Answers(placed, limits, offsets, starts, ends, epochs)


async def _offsets(
    connection: BrokerConnection, at: Mapping[Cursor, int], isolation_level: int
) -> dict[Cursor, OffsetAnswer]:
    if not at:
        return {}
    # With the leader epoch a deposed leader refuses instead of answering from an old log (KIP-320).
    queries = [OffsetQuery(*c.tp, timestamp, c.leader_epoch) for c, timestamp in at.items()]
    answers = await connection.call(list_offsets(queries, isolation_level=isolation_level))
    return _by_cursor(
        at, answers, lambda tp: OffsetAnswer(*tp, UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
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
