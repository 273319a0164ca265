"""Where the Fetcher stands in one source partition, and what an answer of the leader does to that. No I/O.

Flow: ``FetchedPartition`` -> ``take`` -> batches, or the ``Verdict`` that tells the Fetcher what to do next.
"""

from enum import Enum, auto
from typing import Final, final

from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import ProblemKind, StageResult, classify
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease
from mm2py.types import TopicPartition

__all__ = ["NO_TOPIC_ID", "Cursor", "Verdict"]

NO_TOPIC_ID: Final = bytes(16)

RECREATED: Final = frozenset({codes.UNKNOWN_TOPIC_ID, codes.INCONSISTENT_TOPIC_ID})
REFUSED: Final = frozenset({codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED})


class Verdict(Enum):
    """What follows an answer."""

    GO_ON = auto()
    MOVE = auto()
    """Look the leader up again."""
    RESET = auto()
    """The position is outside the log: ask for its ends."""
    TRUNCATED = auto()
    """The log was cut below our position (KIP-320); ``diverged_to`` has the offset."""
    RECREATED = auto()
    """The topic id is not known any more."""
    REFUSED = auto()
    """We may not read it; keep asking."""
    FAILED = auto()
    """Nothing of this partition can be copied any more; ``cause`` says why."""


@final
class Cursor:
    """One assigned partition: position, leader, and the facts of the last answer."""

    __slots__ = (
        "cause",
        "diverged_to",
        "failed",
        "high_watermark",
        "last_epoch",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start",
        "moves",
        "paused",
        "position",
        "refused",
        "retry_at",
        "suspect",
        "topic_id",
        "tp",
    )

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.tp = tp
        self.position = position  # next offset wanted; EARLIEST or LATEST until it is known
        self.leader = -1
        self.leader_epoch = -1
        self.last_epoch = -1  # leader epoch of the last batch taken, for LastFetchedEpoch (KIP-320)
        self.topic_id = NO_TOPIC_ID
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1
        self.paused = False
        self.failed = False
        self.refused = False
        self.suspect = -1  # offset of a batch whose CRC did not match once
        self.retry_at = 0.0
        self.moves = 0
        self.diverged_to = -1
        self.cause = ""

    @property
    def fetchable(self) -> bool:
        """Whether it belongs into the next Fetch of its leader."""
        return not self.paused and not self.failed and self.position >= 0

    def take(
        self, fetched: FetchedPartition, lease: BufferLease
    ) -> tuple[Verdict, StageResult | None]:
        """Apply one answer; the batches returned each hold a reference to ``lease``."""
        code = fetched.error_code
        if code:
            return self._refusal(code), None
        self.moves = 0
        self.refused = False
        self.high_watermark = fetched.high_watermark
        self.last_stable_offset = fetched.last_stable_offset
        self.log_start = fetched.log_start_offset
        if fetched.diverging is not None:
            self.diverged_to = max(fetched.diverging[1], 0)
            return Verdict.TRUNCATED, None
        if not fetched.records:
            return Verdict.GO_ON, None
        result = classify(fetched.records, self.position, lease, aborted=fetched.aborted)
        if result.next_offset > self.position:
            self.position = result.next_offset
            self.suspect = -1
        if result.last_epoch >= 0:
            self.last_epoch = result.last_epoch
        if result.problem is None:
            return Verdict.GO_ON, result
        if result.problem.kind is ProblemKind.CRC and self.suspect != result.problem.offset:
            self.suspect = (
                result.problem.offset
            )  # read it once more: memory or network may be at fault
            return Verdict.GO_ON, result
        self.cause = result.problem.text
        return Verdict.FAILED, result

    def _refusal(self, code: int) -> Verdict:
        if code == codes.OFFSET_OUT_OF_RANGE:
            return Verdict.RESET
        if code in RECREATED:
            return Verdict.RECREATED
        if code in REFUSED:
            return Verdict.REFUSED
        if code in codes.RETRIABLE and code != codes.CORRUPT_MESSAGE:
            return Verdict.MOVE
        self.cause = f"the source answered {codes.error_name(code)} ({code})"
        return Verdict.FAILED
