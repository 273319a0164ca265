"""The live table of the demo: flow, records/s, bytes/s, lag, state, what is wrong.

Flow: ``Metrics``, problems -> ``FlowTable.update`` -> rich table for a terminal, plain lines otherwise.
Rates are over the last few seconds.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self, final

from rich.table import Table
from rich.text import Text

from mm2py.clock import Clock
from mm2py.observability.metrics import FlowMeter, Metrics
from mm2py.types import FlowName

WINDOW_S: Final = 3.0
MOST_WRONGS: Final = 5
_STYLES: Final = {"RUNNING": "green", "FAILED": "bold red"}


@dataclass(frozen=True, slots=True)
class FlowSums:
    """Sums of one flow at one moment; ``records`` and ``size_bytes`` since the process started."""

    flow: FlowName
    state: str
    records: int
    size_bytes: int
    lag_records: int
    lag_ms: int
    failed: Sequence[str]
    records_lost: int
    records_may_be_doubled: int

    @classmethod
    def of(cls, meter: FlowMeter) -> Self:
        """Add up what a meter has."""
        seen, sums = meter.node_snapshot(""), meter.sample()
        return cls(
            flow=seen.flow,
            state=seen.state,
            records=sums.records,
            size_bytes=sums.size_bytes,
            lag_records=sum(max(0, it.lag_records) for it in seen.partitions),
            lag_ms=max((it.lag_ms for it in seen.partitions), default=0),
            failed=[f"{it.source}: {it.cause}" for it in seen.partitions if it.state == "FAILED"],
            records_lost=seen.records_lost,
            records_may_be_doubled=seen.records_may_be_doubled,
        )


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One line: sums with their rates."""

    snapshot: FlowSums
    records_per_s: float
    bytes_per_s: float
    problems: Sequence[str] = ()

    def wrongs(self) -> list[str]:
        """Say what is wrong: losses, failed partitions, problems; the first few of them."""
        seen = self.snapshot
        found: list[str] = []
        if seen.records_lost:
            found.append(
                f"{seen.records_lost:,} records lost (mm2py ledger FILE '{seen.flow}' names them)"
            )
        if seen.records_may_be_doubled:
            found.append(f"{seen.records_may_be_doubled:,} records may be doubled")
        found += [f"failed: {text}" for text in seen.failed]
        found += self.problems
        more = len(found) - MOST_WRONGS
        return [*found[:MOST_WRONGS], f"and {more} more"] if more > 0 else found

    def plain(self) -> str:
        """Return the line for output that is no terminal."""
        seen = self.snapshot
        line = (
            f"{seen.flow}  {self.records_per_s:>8,.0f} records/s  {size_text(self.bytes_per_s)}/s"
            f"  lag {seen.lag_records:,} records, {duration_text(seen.lag_ms)}"
            f"  total {seen.records:,}  {seen.state}"
        )
        return "; ".join((line, *self.wrongs()))


@final
class FlowTable:
    """Remembers a few seconds of snapshots to say how fast the flows are."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        problems: Callable[[FlowName], Sequence[str]] = lambda _: (),
    ) -> None:
        self._metrics = metrics
        self._problems = problems
        self._clock = clock
        self._history: deque[tuple[float, list[FlowSums]]] = deque()

    def update(self) -> list[FlowRow]:
        """Take the numbers of now."""
        now = self._clock.monotonic()
        snapshots = [FlowSums.of(meter) for meter in self._metrics.meters()]
        self._history.append((now, snapshots))
        while len(self._history) > 2 and now - self._history[0][0] > WINDOW_S:
            self._history.popleft()
        then, before = self._history[0]
        old = {snapshot.flow: snapshot for snapshot in before}
        seconds = max(now - then, 1e-9)
        return [
            FlowRow(
                snapshot,
                (snapshot.records - old[snapshot.flow].records) / seconds,
                (snapshot.size_bytes - old[snapshot.flow].size_bytes) / seconds,
                self._problems(snapshot.flow),
            )
            for snapshot in snapshots
            if snapshot.flow in old
        ]

    def render(self, title: str) -> Table:
        """Return the table of now."""
        table = Table(title=title, title_justify="left", min_width=88)
        table.add_column("flow")
        for name in ("records/s", "bytes/s", "lag (records)", "lag (time)", "total"):
            table.add_column(name, justify="right")
        table.add_column("state")
        wrongs: list[str] = []
        for row in self.update():
            seen = row.snapshot
            table.add_row(
                str(seen.flow),
                f"{row.records_per_s:,.0f}",
                size_text(row.bytes_per_s).strip(),
                f"{seen.lag_records:,}",
                duration_text(seen.lag_ms),
                f"{seen.records:,}",
                Text(seen.state, style=_STYLES.get(seen.state, "yellow")),
            )
            wrongs += [f"{seen.flow} {text}" for text in row.wrongs()]
        if wrongs:
            table.caption = Text("\n".join(wrongs), style="red", justify="left")
        return table


def size_text(value: float) -> str:
    """Say how many bytes."""
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:6.1f} {unit}"
        value /= 1000
    return f"{value:6.1f} GB"


def duration_text(milliseconds: int) -> str:
    """Say how old; records may carry timestamps of years ago."""
    seconds = milliseconds / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds / 86_400:,.0f} d"
