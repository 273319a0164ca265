"""Contracts of custom message handlers and rebalance listeners of ``mirror-maker-py``.

Found by entry point (``mm2py.message_handlers``, ``mm2py.rebalance_listeners``): the name on the
command line is that of the entry point. Source: ``MirrorMakerMessageHandler`` and
``ConsumerRebalanceListener`` of Java's MirrorMaker 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mm2py.types import TopicPartition

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """A record of the source; ``timestamp_ms`` is None where it has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None


class OutgoingRecord(NamedTuple):
    """A record for the target; without a partition Java's default partitioner chooses it by the
    key.

    A tuple, because there is one per record.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class MessageHandler(Protocol):
    """Turns a record into any number of records; called in the order of each partition, by several
    threads.

    The class is called with the text of ``--message.handler.args`` where that is given, else
    without arguments. An exception ends the mirror, and the record is read again by its next start.
    """

    def handle(self, record: MirrorRecord, /) -> Sequence[OutgoingRecord]:
        """Return what is to be sent, in that order; nothing drops the record."""
        ...


class RebalanceListener(Protocol):
    """Learns which partitions a stream has; called by the stream's own thread.

    The class is called with the text of ``--rebalance.listener.args`` where that is given, else
    without arguments.
    """

    def partitions_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        """Partitions were assigned; nothing of them has been read yet."""
        ...

    def partitions_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        """Partitions were taken; what was read of them is sent and committed."""
        ...
