"""How old records are when something happens to them: the last value, and the least, greatest and
mean of the last minute.

Flow: the task notes one age per partition and poll or acknowledgement in an ``AgeWindow`` ->
``ages`` -> ``GET /metrics``.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

SAMPLE_MS: Final = 30_000
"""Java's ``metrics.sample.window.ms``; ``metrics.num.samples`` is 2."""


class Ages(NamedTuple):
    """In ms; the three of the window are None where nothing was noted in it. A tuple: one crosses
    the pipe for each partition."""

    last: int
    noted_ms: int
    least: int | None
    greatest: int | None
    mean: float | None


def joined(several: Iterable[Ages | None]) -> Ages | None:
    """Return the ages of several partitions as one: newest last value, mean of the means."""
    known = [it for it in several if it is not None]
    if not known:
        return None
    newest = max(known, key=lambda it: it.noted_ms)
    means = [it.mean for it in known if it.mean is not None]
    return Ages(
        last=newest.last,
        noted_ms=newest.noted_ms,
        least=min((it.least for it in known if it.least is not None), default=None),
        greatest=max((it.greatest for it in known if it.greatest is not None), default=None),
        mean=sum(means) / len(means) if means else None,
    )


@final
class _Sample:
    __slots__ = ("begun_ms", "count", "greatest", "least", "total")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        self.least = self.greatest = 0
        self.total = 0.0
        self.count = 0


@final
class AgeWindow:
    """Java's SampledStat of two samples, for the last value, Min, Max and Avg at once."""

    __slots__ = ("_former", "_last", "_noted_ms", "_now")

    def __init__(self) -> None:
        self._last = self._noted_ms = -1
        self._former: _Sample | None = None
        self._now: _Sample | None = None

    def note(self, age_ms: int, now_ms: int) -> None:
        """Note one age; a record whose clock is ahead has a negative one, as in Java. Hot path:
        once per poll and partition."""
        self._last, self._noted_ms = age_ms, now_ms
        now = self._now
        if now is None or now_ms - now.begun_ms >= SAMPLE_MS:
            self._former = now
            now = self._now = _Sample(now_ms)
            now.least = now.greatest = age_ms
        elif age_ms < now.least:
            now.least = age_ms
        elif age_ms > now.greatest:
            now.greatest = age_ms
        now.total += age_ms
        now.count += 1

    def take(self, said: Ages | None) -> None:
        """Show what another process noted."""
        if said is None:
            return
        self._last, self._noted_ms, self._former, self._now = said.last, said.noted_ms, None, None
        if said.least is not None and said.greatest is not None and said.mean is not None:
            now = self._now = _Sample(said.noted_ms)
            now.least, now.greatest, now.total, now.count = said.least, said.greatest, said.mean, 1

    def ages(self, now_ms: int) -> Ages | None:
        """Return what is known, None before the first record."""
        if self._noted_ms < 0:
            return None
        last, noted_ms, now, former = self._last, self._noted_ms, self._now, self._former
        over_ms = now_ms - 2 * SAMPLE_MS
        if now is None or now.begun_ms <= over_ms:
            return Ages(last, noted_ms, None, None, None)
        if former is None or former.begun_ms <= over_ms:
            return Ages(last, noted_ms, now.least, now.greatest, now.total / now.count)
        return Ages(
            last,
            noted_ms,
            min(now.least, former.least),
            max(now.greatest, former.greatest),
            (now.total + former.total) / (now.count + former.count),
        )

    @property
    def noted_ms(self) -> int:
        """When it was noted last, -1 before."""
        return self._noted_ms
