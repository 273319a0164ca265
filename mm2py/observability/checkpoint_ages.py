"""How long checkpoints took from their poll to the target, by group and partition (Java's
``MirrorCheckpointMetrics``).

Flow: the checkpoint task's host ``note``s each -> ``changed`` -> the pipe -> ``take`` in the worker
-> ``GET /metrics``.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from mm2py.clock import Clock
from mm2py.observability.ages import Ages, AgeWindow
from mm2py.types import TopicPartition

MOST_CHECKPOINTS: Final = 10_000
"""By group and partition; the one that is longest without a checkpoint goes first. Java keeps all
that it ever saw."""


class CheckpointKey(NamedTuple):
    """Whose checkpoint; ``partition`` as the target names it."""

    task: str
    group: str
    partition: TopicPartition


class CheckpointAges(NamedTuple):
    """One of them with its last latency, and the least, greatest and mean of a minute, in ms."""

    key: CheckpointKey
    ages: Ages


@final
class CheckpointMeter:
    """Latencies of one flow's checkpoints."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[CheckpointKey, AgeWindow] = {}
        """In order of the last checkpoint."""
        self._news: dict[CheckpointKey, None] = {}
        """Those that ``changed`` has not returned yet."""

    def note(self, key: CheckpointKey, latency_ms: int) -> None:
        """Count a checkpoint that the target acknowledged."""
        self._newest(key).note(latency_ms, self._clock.now_ms())
        self._news[key] = None

    def take(self, said: CheckpointAges) -> None:
        """Show what another process counted."""
        self._newest(said.key).take(said.ages)

    def forget(self, task: str) -> None:
        """Drop those of a task that ended: another one may have its groups next."""
        self._windows = {key: it for key, it in self._windows.items() if key.task != task}
        self._news = {key: None for key in self._news if key.task != task}

    def all(self) -> tuple[CheckpointAges, ...]:
        return self._of(self._windows)

    def changed(self) -> tuple[CheckpointAges, ...]:
        """Return those that had a checkpoint since the last call; costs as much as these are."""
        news, self._news = self._news, {}
        return self._of(news)

    def _of(self, keys: Iterable[CheckpointKey]) -> tuple[CheckpointAges, ...]:
        now_ms = self._clock.now_ms()
        known = ((key, self._windows[key].ages(now_ms)) for key in keys)
        return tuple(CheckpointAges(key, ages) for key, ages in known if ages is not None)

    def _newest(self, key: CheckpointKey) -> AgeWindow:
        window = self._windows.pop(key, None) or AgeWindow()
        self._windows[key] = window
        if len(self._windows) > MOST_CHECKPOINTS:
            oldest = next(iter(self._windows))
            del self._windows[oldest]
            self._news.pop(oldest, None)
        return window
