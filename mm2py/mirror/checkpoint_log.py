"""Reads the checkpoints of a source: ``<source>.checkpoints.internal`` -> the newest checkpoint by group and partition."""

from collections.abc import Callable

from mm2py.client.fetch.log_reader import LogReader
from mm2py.errors import ProtocolError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition


async def read_checkpoints(
    log: LogReader, is_wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, dict[TopicPartition, Checkpoint]]:
    """Return the newest checkpoints by group and partition of the target, of groups that are wanted; damaged records are passed over.

    Raises:
        RetriableError, ServerError: as ``LogReader.read_to_end``.
    """
    found: dict[str, dict[TopicPartition, Checkpoint]] = {}

    def take(_partition: int, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        try:
            it = decode_checkpoint(record.key, record.value)
        except ProtocolError:
            return
        if is_wanted(it.group):
            found.setdefault(it.group, {})[it.partition] = it

    await log.read_to_end(take)
    return found
