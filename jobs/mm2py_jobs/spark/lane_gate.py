"""At most so many lanes at a time at one broker: each lane is a job of Spark of its own, which
begins when its brokers have room.

Flow: lanes in their order -> those whose brokers all have room are begun, each in a thread -> one
ends -> brokers are asked for again -> the next. A lane that waits is no task yet: it holds no slot,
dynamic allocation asks for no executor for it, and other lanes pass it by. A lane that runs counts
where its partitions were led when it began: where leaders move meanwhile, later lanes are counted
at the new ones.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar, final

T = TypeVar("T")

LOOK_S: Final = 1.0
"""How often a job that is given up is cancelled again: one of its lanes may just have been
submitted."""


@final
class LaneGate:
    """Which lanes may run beside each other.

    Args:
        most: lanes at one broker.
        brokers: returns the brokers of each of these lanes, as of now; none for a lane that need
            not wait.
    """

    def __init__(
        self, most: int, brokers: Callable[[Sequence[int]], Sequence[Collection[str]]]
    ) -> None:
        self._most, self._brokers = most, brokers
        self._busy = Counter[str]()
        self._stopped = False

    def stop(self) -> None:
        """Begin no lane any more, from any thread; those that run go on to their end."""
        self._stopped = True

    def run(self, lanes: int, work: Callable[[int], T], give_up: Callable[[], None]) -> list[T]:
        """Call ``work`` for each lane, in threads; return the answers in the order of the lanes,
        after ``stop`` of those that were begun.

        Where one raises none is begun any more, ``give_up`` is called until the others have ended,
        and it is raised.
        """
        waiting = list(range(lanes))
        running: dict[Future[T], tuple[int, Collection[str]]] = {}
        answers: dict[int, T] = {}
        failure: BaseException | None = None
        with ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="lane") as threads:
            while running or (waiting and failure is None and not self._stopped):
                try:
                    if failure is None and not self._stopped:
                        for number, brokers in self._admitted(waiting):
                            waiting.remove(number)
                            running[threads.submit(work, number)] = number, brokers
                    for done in wait(running, LOOK_S, FIRST_COMPLETED).done:
                        number, brokers = running.pop(done)
                        self._busy.subtract(brokers)
                        answers[number] = done.result()
                except BaseException as error:  # noqa: BLE001 - raised below, when no lane runs any more
                    failure = failure or error
                if failure is not None:
                    give_up()
        if failure is not None:
            raise failure
        return [answers[number] for number in sorted(answers)]

    def _admitted(self, waiting: Sequence[int]) -> list[tuple[int, Collection[str]]]:
        """Return the lanes that have room now, and count them."""
        admitted: list[tuple[int, Collection[str]]] = []
        if not waiting:
            return admitted
        for number, brokers in zip(waiting, self._brokers(waiting), strict=True):
            if all(self._busy[it] < self._most for it in brokers):
                self._busy.update(brokers)
                admitted.append((number, brokers))
        return admitted
