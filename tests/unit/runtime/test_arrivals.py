"""Acknowledgements are gathered into few reports, exact and in order."""

import asyncio

from mm2py.api.task import Delivery, Run
from mm2py.runtime.tasks.arrivals import Arrivals
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import a_batch

T, U = TopicPartition("t", 0), TopicPartition("u", 1)
A_T, A_U = TopicPartition("A.t", 0), TopicPartition("A.u", 1)


async def test_batches_without_a_hole_on_either_side_become_one_run() -> None:
    reports: list[Delivery] = []
    arrivals = Arrivals(reports.append)
    arrivals.add(T, A_T, a_batch(10, 5, size=100), 3)
    arrivals.add(U, A_U, a_batch(0, 1, size=7), 0)
    arrivals.add(T, A_T, a_batch(15, 2, size=50), 8)
    arrivals.add(T, A_T, a_batch(20, 1, size=1), 10)  # a hole at the source
    arrivals.add(T, A_T, a_batch(21, 4, size=1), 12)  # a hole at the target
    assert reports == []
    arrivals.flush()
    assert reports == [
        Delivery(T, A_T, (Run(10, 7, 3), Run(20, 1, 10), Run(21, 4, 12)), 152, 5_021),
        Delivery(U, A_U, (Run(0, 1, 0),), 7, 5_000),
    ]
    arrivals.flush()
    assert len(reports) == 2, "each is reported once"


async def test_runs_of_a_spliced_batch_stay_apart() -> None:
    reports: list[Delivery] = []
    arrivals = Arrivals(reports.append)
    arrivals.add(T, A_T, a_batch(0, 4, runs=((0, 2), (7, 2))), 0)
    arrivals.add(T, A_T, a_batch(9, 1), 4)
    arrivals.flush()
    assert reports[0].runs == (Run(0, 2, 0), Run(7, 3, 2))


async def test_nobody_has_to_ask_and_nothing_is_reported_after_the_end() -> None:
    reports: list[Delivery] = []
    reported = asyncio.Event()

    def report(delivery: Delivery) -> None:
        reports.append(delivery)
        reported.set()

    arrivals = Arrivals(report)
    arrivals.add(T, A_T, a_batch(0, 1), 0)
    async with asyncio.timeout(30):
        await reported.wait()
    arrivals.add(T, A_T, a_batch(1, 1), 1)
    arrivals.close()
    arrivals.flush()
    assert len(reports) == 1


async def test_records_without_a_copy_are_reported_behind_what_came_before_them() -> None:
    reports: list[Delivery] = []
    arrivals = Arrivals(reports.append)
    arrivals.add(T, A_T, a_batch(10, 2, size=9), 3)
    arrivals.passes(T, A_T, 4, 15)
    arrivals.passes(U, A_U, 1, 0)
    arrivals.add(T, A_T, a_batch(16, 1, size=8), 5)
    arrivals.flush()
    assert reports == [
        Delivery(T, A_T, (Run(10, 2, 3),), 9, 5_010, passed=4, through=15),
        Delivery(U, A_U, (), 0, -1, passed=1, through=0),
        Delivery(T, A_T, (Run(16, 1, 5),), 8, 5_016),
    ]
    assert [it.last for it in reports] == [15, 0, 16]
