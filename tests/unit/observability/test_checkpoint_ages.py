"""Latencies of checkpoints: which are kept, and what is told of them."""

import pytest

from mm2py.observability.ages import Ages, AgeWindow
from mm2py.observability.checkpoint_ages import MOST_CHECKPOINTS, CheckpointKey, CheckpointMeter
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition


def key(number: int, task: str = "c-0") -> CheckpointKey:
    return CheckpointKey(task, "billing", TopicPartition("A.orders", number))


def test_of_more_than_can_be_kept_the_one_that_is_longest_without_a_checkpoint_goes() -> None:
    meter = CheckpointMeter(FakeClock())
    for number in range(MOST_CHECKPOINTS):
        meter.note(key(number), number)
    meter.note(key(0), 7)
    meter.note(key(MOST_CHECKPOINTS), 8)
    kept = {it.key for it in meter.all()}
    assert len(kept) == MOST_CHECKPOINTS
    assert key(0) in kept
    assert key(1) not in kept


def test_news_cost_as_much_as_there_are_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = CheckpointMeter(FakeClock())
    for number in range(100):
        meter.note(key(number), number)
    meter.changed()
    looks: list[AgeWindow] = []
    ages = AgeWindow.ages

    def looked(window: AgeWindow, now_ms: int) -> Ages | None:
        looks.append(window)
        return ages(window, now_ms)

    monkeypatch.setattr(AgeWindow, "ages", looked)
    meter.note(key(7), 1)
    assert [it.key for it in meter.changed()] == [key(7)]
    assert len(looks) == 1


def test_of_those_that_are_dropped_nothing_is_told() -> None:
    meter = CheckpointMeter(FakeClock())
    meter.note(key(0, "c-1"), 1)
    meter.forget("c-1")
    for number in range(MOST_CHECKPOINTS + 1):
        meter.note(key(number), number)
    told = {it.key for it in meter.changed()}
    assert len(told) == MOST_CHECKPOINTS
    assert key(0) not in told


def test_only_those_with_a_newer_checkpoint_are_told_again_and_an_ended_task_has_none() -> None:
    clock = FakeClock()
    meter = CheckpointMeter(clock)
    meter.note(key(0), 1)
    meter.note(key(1, "c-1"), 2)
    assert [it.key for it in meter.changed()] == [key(0), key(1, "c-1")]
    clock.jump(1.0)
    meter.note(key(0), 3)
    assert [(it.key, it.ages.last) for it in meter.changed()] == [(key(0), 3)]
    assert meter.changed() == ()
    meter.forget("c-0")
    assert [it.key for it in meter.all()] == [key(1, "c-1")]
