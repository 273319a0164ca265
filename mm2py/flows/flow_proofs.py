"""How far the copies of a flow are proved to be equal, as ``/flows/{flow}/proof`` answers.

Flow: ``mm2py.mirror.proofs`` on the target, written by ``mm2py verify --continuous`` ->
``proof_view``. Asks no cluster.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from mm2py.mirror.proofs import Proof
from mm2py.types import FlowName


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPartitionView:
    """One source partition: records from ``source_from`` up to ``source_to`` (exclusive) were equal ``seconds_ago``.

    ``differences`` were found behind that, ``first`` is one of them; ``skipped`` source offsets were deleted before they were compared.
    """

    topic: str
    partition: int
    source_from: int
    source_to: int
    target_to: int
    at_ms: int
    records: int
    skipped: int
    differences: int
    first: str
    seconds_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofView:
    """A flow: ``equal`` is null where nothing was proved yet; ``seconds_ago`` is that of the partition that was compared least recently."""

    flow: str
    equal: bool | None
    records: int
    seconds_ago: float | None
    text: str
    partitions: tuple[ProofPartitionView, ...]


def proof_view(flow: FlowName, proofs: Iterable[Proof], now_ms: int) -> ProofView:
    """Return what people see."""
    rows = tuple(
        ProofPartitionView(**asdict(it), seconds_ago=max(0, now_ms - it.at_ms) / 1000)
        for it in sorted(proofs, key=lambda it: it.source)
    )
    equal = all(not it.differences for it in rows) if rows else None
    seconds = max((it.seconds_ago for it in rows), default=None)
    records = sum(it.records for it in rows)
    if equal is None:
        text = "nothing is proved: mm2py verify --continuous does not run, or has not compared anything yet"
    elif equal:
        ends = (
            f"up to offset {rows[0].source_to}" if len(rows) == 1 else f"of {len(rows)} partitions"
        )
        text = f"{records:,} records {ends} proved equal, {seconds:.0f} seconds ago"
    else:
        bad = [it for it in rows if it.differences]
        first = bad[0]
        text = (
            f"NOT equal: {len(bad)} of {len(rows)} partitions, {first.topic}-{first.partition} behind source offset"
            f" {first.source_to}: {first.first}"
        )
    return ProofView(
        flow=str(flow),
        equal=equal,
        records=records,
        seconds_ago=seconds,
        text=text,
        partitions=rows,
    )
