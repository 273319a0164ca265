"""The few value types that every layer speaks."""

from typing import Final, NamedTuple, NewType

__all__ = ["EARLIEST", "LATEST", "ClusterAlias", "FlowName", "TopicPartition"]

ClusterAlias = NewType("ClusterAlias", str)
"""Name of a cluster in the user's properties file."""

EARLIEST: Final = -2
"""ListOffsets timestamp of the log start (``ListOffsetsRequest.EARLIEST_TIMESTAMP``)."""

LATEST: Final = -1
"""ListOffsets timestamp of the log end (``ListOffsetsRequest.LATEST_TIMESTAMP``)."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Java does, ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class FlowName(NamedTuple):
    """An ordered pair of clusters (Java's ``SourceAndTarget``); prints as ``A->B``."""

    source: ClusterAlias
    target: ClusterAlias

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"
