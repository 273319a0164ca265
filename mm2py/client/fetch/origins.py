"""The interface of loop suppression.

Flow: a batch of an unknown producer id -> ``BatchOrigins.find`` -> fetched again, and copied or dropped.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from mm2py.protocol.batch_stage import Origins
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition


class BatchOrigins(Protocol):
    """Decides which batches of a cluster are copied, by their producer ids."""

    @property
    def known(self) -> Origins:
        """Ids of known origin; always the same object."""
        ...

    async def find(self, producers: Collection[int]) -> None:
        """Look up the origin of these ids, of batches that were read before the call, and add them to ``known``.

        Raises:
            Mm2pyError: the lookup failed; retry.
        """
        ...

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        """Observe the batches of one response that are copied, and those that are dropped, whole.

        Their bytes are valid only during the call.
        """
        ...
