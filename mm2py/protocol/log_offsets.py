"""Offsets of a partition's log: by timestamp, by leader epoch, after DeleteRecords.

Flow: query -> ``messages`` -> broker -> its answer here -> the client. Offsets that groups commit
are in ``groups``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    """Ask for the first offset at or after ``timestamp`` (ms, or EARLIEST, LATEST)."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """Answer to one ``OffsetQuery``; ``offset`` -1 means no such record."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochQuery:
    """Ask for the end of ``leader_epoch``."""

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End of an epoch; (-1, -1) with error 0 means unknown epoch and is a failure."""

    topic: str
    partition: int
    error_code: int
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Log start of a partition after DeleteRecords."""

    topic: str
    partition: int
    low_watermark: int
    error_code: int
