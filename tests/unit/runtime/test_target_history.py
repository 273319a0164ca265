"""What a target lost is found from where the next records land."""

from mm2py.api.task import Run
from mm2py.runtime.tasks.target_history import KEPT_RUNS, TargetHistory, TargetLoss
from mm2py.types import TopicPartition

TP = TopicPartition("orders", 0)


def test_offsets_that_rise_are_no_loss_whatever_lies_between() -> None:
    history = TargetHistory()
    for run in (Run(0, 5, 100), Run(5, 5, 105), Run(12, 1, 110), Run(13, 1, 150), Run(3, 2, 151)):
        assert history.add(TP, run) is None


def test_a_loss_goes_back_over_several_runs_to_where_the_new_record_landed() -> None:
    history = TargetHistory()
    for run in (Run(0, 5, 100), Run(7, 5, 105), Run(20, 5, 111)):
        history.add(TP, run)
    assert history.add(TP, Run(25, 1, 103)) == TargetLoss(3, 24, 103, 115)
    assert history.add(TP, Run(26, 1, 104)) is None
    assert history.add(TP, Run(27, 1, 102)) == TargetLoss(2, 26, 102, 104)


def test_a_loss_that_reaches_behind_what_is_known_has_what_is_known_of_it() -> None:
    history = TargetHistory()
    for number in range(KEPT_RUNS + 10):
        history.add(TP, Run(number * 2, 1, 1000 + number * 2))
    loss = history.add(TP, Run(10_000, 1, 0))
    assert loss == TargetLoss(20, 2 * (KEPT_RUNS + 9), 0, 1000 + 2 * (KEPT_RUNS + 9))


def test_a_broker_that_does_not_say_where_changes_nothing() -> None:
    history = TargetHistory()
    history.add(TP, Run(0, 5, 100))
    assert history.add(TP, Run(5, 5, -1)) is None
    assert history.add(TP, Run(10, 5, 110)) is None
    assert history.add(TP, Run(15, 1, 103)) == TargetLoss(3, 14, 103, 114)
