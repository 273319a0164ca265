"""How far copies are proved to be equal: kept as the committed offsets of a consumer group on the target (docs/formats.md).

Flow: ``mm2py verify --continuous`` -> ``Proof`` -> ``to_commit`` -> OffsetCommit; ``proofs_of`` <- OffsetFetch <- the same after a restart, and
``GET /flows/{flow}/proof``. The committed offset is that of the copy, so Kafka's own tools show as lag what is not proved. No I/O.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, final

from pydantic import TypeAdapter, ValidationError

from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.types import FlowName, TopicPartition

VERSION: Final = 1


def proof_group(flow: FlowName) -> str:
    """Return the group; ``groups.exclude`` leaves such names to their cluster by default."""
    return f"__mm2py-proof.{flow}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One source partition: its records from ``source_from`` up to ``source_to`` (exclusive) are equal to their copies.

    ``target_to`` is the target offset behind those copies. ``at_ms`` is when that was last compared, ``records`` how many there were.
    ``skipped`` source offsets were deleted before they could be compared. ``differences`` were found behind ``source_to``,
    the first of them is ``first``; the proof does not grow while there are any.
    """

    topic: str
    partition: int
    source_from: int
    source_to: int
    target_to: int
    at_ms: int
    records: int = 0
    skipped: int = 0
    differences: int = 0
    first: str = ""

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def equal(self) -> bool:
        """Whether no difference is known."""
        return not self.differences


_ADAPTER: Final = TypeAdapter(Proof)
_KEPT: Final = TypeAdapter(dict[str, object])


def to_commit(proofs: Mapping[TopicPartition, Proof]) -> list[OffsetToCommit]:
    """Return the offsets to commit of target partitions."""
    return [
        OffsetToCommit(
            copy.topic,
            copy.partition,
            proof.target_to,
            metadata=json.dumps({"v": VERSION, **asdict(replace(proof, first=proof.first[:500]))}),
        )
        for copy, proof in proofs.items()
    ]


def proofs_of(
    committed: Mapping[TopicPartition, FetchedOffset],
) -> dict[TopicPartition, Proof]:
    """Return proofs by source partition; what another program or a later version committed is none."""
    found: dict[TopicPartition, Proof] = {}
    for offset in committed.values():
        try:
            kept = _KEPT.validate_json(offset.metadata)
            if kept.pop("v", 0) != VERSION:
                continue
            proof = _ADAPTER.validate_python(kept)
        except ValidationError:
            continue
        if proof.target_to == offset.offset:
            found[proof.source] = proof
    return found
