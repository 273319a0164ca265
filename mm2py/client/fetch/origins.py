"""What a Fetcher asks of loop suppression: which producer ids are another mirror's.

Flow: a batch of an id that is not known -> ``find`` -> ``known`` has it -> it is read again, and copied or dropped.
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
        """The ids whose origin is known; always the same object."""
        ...

    async def find(self, producers: Collection[int]) -> None:
        """Find the origin of these ids, of batches that were read before the call; ``known`` has them then.

        Raises:
            Mm2pyError: it cannot be found now.
        """
        ...

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        """Take note of the batches of one answer that are copied, and of those that are not, whole.

        Their bytes are valid during the call only.
        """
        ...
