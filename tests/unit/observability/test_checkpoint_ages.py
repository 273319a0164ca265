"""Latencies of checkpoints: which are kept, and what is told of them."""

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
