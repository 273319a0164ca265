"""Every offset of a flow looked up in its exact map, both ways, and compared with what both logs hold.

Flow: logs of both sides as confluent-kafka reads them -> what each look-up must answer -> ``OffsetMapReader`` ->
the answers that differ.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.offset_lookup import Place, Translation
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.types import TopicPartition
from tests.integration.clients import connected
from tests.integration.mirror_process import Flow
from tests.integration.traffic import Log, Logs, ends

MOST_EXAMPLES: Final = 10


@dataclass(slots=True)
class Census:
    """How many look-ups were made, and those whose answer is not what the logs say."""

    asked: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list[str])

    def note(self, text: str, wanted: Translation, found: Translation | None) -> None:
        """Compare one answer."""
        self.asked += 1
        if found != wanted:
            self.wrong += 1
            if len(self.examples) < MOST_EXAMPLES:
                self.examples.append(f"{text}: {found}, not {wanted}")


async def take_census(flow: Flow, topic: str, truth: Logs, copy: Logs) -> Census:
    """Look up every offset of the source from its first record to its end, and every record of the copy.

    ``truth`` and ``copy`` are the records that a mirror copies and what is on the target, of which each has its own
    value. Where a record was copied twice the newer copy is wanted; both lead back to it.
    """
    census = Census()
    source_ends = ends(flow.source, topic)
    async with connected(flow.target) as cluster:
        reader = OffsetMapReader(cluster, flow.source_alias, clock=SYSTEM_CLOCK)
        await reader.read_to_end()
        for number, log in truth.items():
            partition = TopicPartition(topic, number)
            for offset, wanted in _forward(log, copy[number], source_ends[number]):
                found = await reader.to_target(partition, offset)
                census.note(f"source {partition} at {offset}", wanted, found)
            for offset, wanted in _back(log, copy[number]):
                found = await reader.to_source(partition, offset)
                census.note(f"target of {partition} at {offset}", wanted, found)
        await reader.close()
    return census


def _forward(log: Log, copy: Log, source_end: int) -> Iterator[tuple[int, Translation]]:
    newest = {record.value: at for at, record in zip(copy.offsets, copy.records, strict=True)}
    targets = [newest[record.value] for record in log.records]
    behind = copy.offsets[-1] + 1
    for offset in range(log.offsets[0] if log.offsets else source_end, source_end + 1):
        index = bisect_left(log.offsets, offset)
        if index < len(targets):
            exists = log.offsets[index] == offset
            yield (
                offset,
                Translation(Place.COPIED if exists else Place.NEVER_EXISTED, targets[index]),
            )
        else:
            yield (
                offset,
                Translation(Place.AT_END if offset == source_end else Place.NEVER_EXISTED, behind),
            )


def _back(log: Log, copy: Log) -> Iterator[tuple[int, Translation]]:
    source_of = {record.value: at for at, record in zip(log.offsets, log.records, strict=True)}
    for offset, record in zip(copy.offsets, copy.records, strict=True):
        yield offset, Translation(Place.COPIED, source_of[record.value])
