"""``mm2py verify --continuous``: proves beside a running flow that its copies are equal, until SIGTERM or SIGINT.

Flow: ``RealSides`` -> rounds of ``ContinuousProof`` -> a line per round that has something new on standard output. Exit code 0 if no
difference is known, 4 if one is.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import final

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.mirror.proofs import Proof
from mm2py.types import TopicPartition
from mm2py_jobs.spark.reading import connected
from mm2py_jobs.verify.continuous import ContinuousProof, RealSides, Round, rounds
from mm2py_jobs.verify.differences import Difference
from mm2py_workers.flow_sides import FlowSides
from mm2py_workers.output import NOT_EQUAL, OK, Printer, say
from mm2py_workers.signals import StopSignal


@final
@dataclass(frozen=True, slots=True)
class ContinuousOrder:
    """The arguments."""

    sides: FlowSides
    every_s: float
    bytes_per_s: int


def run_continuous(order: ContinuousOrder, printer: Printer) -> int:
    """Prove until a stop signal; return the exit code.

    Raises:
        Mm2pyError: a cluster refuses, or cannot be compared.
    """
    return asyncio.run(_run(order, printer, SYSTEM_CLOCK))


async def _run(order: ContinuousOrder, printer: Printer, clock: Clock) -> int:
    flow = order.sides
    shown = _Shown(str(flow.flow), printer, clock)
    async with (
        connected(flow.source, alias=flow.flow.source) as source,
        connected(flow.target, alias=flow.flow.target) as target,
    ):
        sides = RealSides(flow, source, target, bytes_per_s=order.bytes_per_s, clock=clock)
        with StopSignal() as stop:
            following = asyncio.create_task(_follow(sides, order.every_s, shown, clock))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    await following
            finally:
                following.cancel()
                stopping.cancel()
                await asyncio.gather(following, stopping, return_exceptions=True)
                await sides.close()
    return OK if shown.equal else NOT_EQUAL


async def _follow(sides: RealSides, every_s: float, shown: "_Shown", clock: Clock) -> None:
    async for found in rounds(ContinuousProof(sides, clock=clock), every_s, clock=clock):
        shown.show(found)


@final
class _Shown:
    """Prints rounds."""

    def __init__(self, flow: str, printer: Printer, clock: Clock) -> None:
        self._flow, self._printer, self._clock = flow, printer, clock
        self._not_compared: Sequence[str] = ()
        self._before = ""
        self.equal = True

    def show(self, found: Round) -> None:
        """Print a line of JSON for each round, or a line for people where something changed."""
        self.equal = all(it.equal for it in found.proofs)
        if found.not_compared != self._not_compared:
            self._not_compared = found.not_compared
            for line in found.not_compared:
                say(f"not compared: {line}")
        if not self._printer.is_table:
            print(json.dumps(self._document(found)), flush=True)  # noqa: T201 - the report
            return
        for tp, it in found.differences:
            print(f"{tp}: {_named(it)}", flush=True)  # noqa: T201 - the report
        text = _state(found)
        if text != self._before:
            self._before = text
            print(f"{self._flow}: {text}", flush=True)  # noqa: T201 - the report

    def _document(self, found: Round) -> dict[str, object]:
        now_ms = self._clock.now_ms()
        return {
            "flow": self._flow,
            "equal": self.equal,
            "partitions": [
                asdict(it) | {"seconds_ago": max(0, now_ms - it.at_ms) / 1000}
                for it in found.proofs
            ],
            "differences": [_row(tp, it) for tp, it in found.differences],
            "not_compared": list(found.not_compared),
            "waiting_offsets": found.waiting_offsets,
        }


def _state(found: Round) -> str:
    proofs: Sequence[Proof] = found.proofs
    records = sum(it.records for it in proofs)
    bad = sum(not it.equal for it in proofs)
    skipped = sum(it.skipped for it in proofs)
    text = f"{records:,} records of {len(proofs):,} partitions are proved to be equal"
    if bad:
        text = f"NOT equal: {bad:,} partitions differ; {text}"
    if skipped:
        text += f"; {skipped:,} offsets were deleted before they were compared"
    return f"{text}; {found.waiting_offsets:,} offsets wait" if found.waiting_offsets else text


def _named(it: Difference) -> str:
    fields = f" ({', '.join(it.fields)})" if it.fields else ""
    return (
        f"{it.kind.value} source offset {it.source_offset} target offset {it.target_offset}{fields}"
    )


def _row(tp: TopicPartition, it: Difference) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "kind": it.kind.value,
        "source_offset": it.source_offset if it.source_offset >= 0 else None,
        "target_offset": it.target_offset if it.target_offset >= 0 else None,
        **({"fields": list(it.fields)} if it.fields else {}),
    }
