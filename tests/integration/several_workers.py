"""Several processes of the product on one file: start them, ask them over REST, see who runs what.

Flow: ``Workers(flow)`` as a context manager -> ``start`` -> ``until_spread`` -> a fault -> the same questions again.
What runs where is what REST tells; what was started and stopped is what the logs tell.
"""

import re
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, Self, cast, final
from urllib.parse import quote

from tests.integration.earlier_build import PRESENT, Build
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.rest_asking import ANSWER_S, ask, public_url
from tests.integration.traffic import Logs, Record, copied, ends, read

TASKS: Final = 3
SPREAD_S: Final = 240.0
CONFLICT: Final = 409
NO_CONTENT: Final = 204
CALM: Final = {
    "task.host.processes": "1",
    "{target}.session.timeout.ms": "10000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
"""Properties of a flow whose test compares which worker has what: none of them is expired because processes that
start beside it take the machine, and fewer processes do."""
_ROUND: Final = re.compile(r"generation=(\d+) leader=(\S+)")
_STARTED: Final = re.compile(r"\|task-(\d+)\] source task started")
_STOPPED: Final = re.compile(r"\|task-(\d+)\] task state=UNASSIGNED")

Answer = tuple[int, object]
"""Status and decoded body; status 0: nobody answered."""


@final
class Workers:
    """The processes of one flow by name; leaving the ``with`` block ends them all."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._stack = ExitStack()
        self._running: dict[str, Mirror] = {}

    @property
    def running(self) -> list[Mirror]:
        """Those that were neither stopped nor killed."""
        return list(self._running.values())

    def start(self, *names: str, build: Build = PRESENT) -> list[Mirror]:
        """Start processes side by side and wait until each serves REST."""
        new = [
            self._stack.enter_context(
                Mirror(self.flow.file, name=name, program=build.worker, environ=build.environ)
            )
            for name in names
        ]
        self._running.update(zip(names, new, strict=True))
        for worker in new:
            worker.wait_for_log("rest listens", SPREAD_S)
        return new

    def settle(self, *names: str) -> dict[int, Mirror]:
        """Start processes that share the tasks of the source connector alone; return the owner of each."""
        self.start(*names)
        self.stop_checkpoints(self.running[0])
        return self.until_spread()

    def kill(self, worker: Mirror) -> None:
        """SIGKILL one."""
        del self._running[worker.name]
        worker.kill()

    @contextmanager
    def frozen(self, worker: Mirror) -> Generator[None]:
        """SIGSTOP one while the block runs; nobody waits for it or asks it."""
        del self._running[worker.name]
        worker.send(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.send(signal.SIGCONT)
        self._running[worker.name] = worker

    def stop(self, *workers: Mirror) -> None:
        """Stop some in order, all without arguments; each must end well."""
        for worker in workers or self.running:
            del self._running[worker.name]
            assert worker.stop() == 0, worker.tail()

    # ---- REST

    def ask(
        self,
        worker: Mirror,
        path: str,
        method: str = "GET",
        body: object = None,
        *,
        timeout_s: float = ANSWER_S,
        connector: str = "MirrorSourceConnector",
    ) -> Answer:
        """Ask one worker about the flow; ``path`` is behind the connector's name."""
        pair = f"{self.flow.source_alias}/{self.flow.target_alias}"
        url = f"{public_url(worker)}{pair}/connectors/{connector}{path}"
        try:
            return ask(url, method, body, timeout_s=timeout_s)
        except OSError as error:  # it was killed meanwhile
            return 0, str(error)

    def calmly(self, worker: Mirror, path: str, method: str, body: object = None) -> int:
        """Ask again while a rebalance is the answer (409); return the status."""

        def answered() -> int | None:
            status, _ = self.ask(worker, path, method, body)
            return None if status == CONFLICT else status

        return until(answered, SPREAD_S, f"{method} {path} beside rebalances", alive=worker)

    def stop_checkpoints(self, worker: Mirror) -> None:
        """Stop the checkpoint connector, whose task would be one more to share."""

        name = "MirrorCheckpointConnector"

        def asked() -> bool:
            return self.ask(worker, "/stop", "PUT", connector=name)[0] == NO_CONTENT

        def gone() -> bool:
            answers = [self.ask(each, "/status", connector=name)[1] for each in self.running]
            found = [cast("dict[str, object]", it) for it in answers if isinstance(it, dict)]
            return len(found) == len(answers) and all(it.get("tasks") == [] for it in found)

        until(asked, SPREAD_S, "the end of checkpoints", alive=worker)
        until(gone, SPREAD_S, "the end of the checkpoint task", alive=worker)

    def patch(self, worker: Mirror, changes: Mapping[str, str | None]) -> int:
        """Change keys of the connector's config; return the status."""
        return self.ask(worker, "/config", "PATCH", changes)[0]

    def config(self, worker: Mirror) -> dict[str, str]:
        """Return the connector's config as one worker has read it; it answers 500 before a round."""

        def told() -> dict[str, str] | None:
            status, found = self.ask(worker, "")
            if status != 200 or not isinstance(found, dict):
                return None
            return cast("dict[str, str]", found["config"])

        return until(told, SPREAD_S, f"the config as {worker.name} tells", alive=worker)

    def tasks(self, worker: Mirror) -> dict[int, tuple[str, str]]:
        """Return state and owner of each task, as one worker shows them; empty while nothing is known."""
        status, found = self.ask(worker, "/status")
        if status != 200:
            return {}
        assert isinstance(found, dict)
        listed = cast("list[dict[str, Any]]", found["tasks"])
        return {task["id"]: (task["state"], task["worker_id"]) for task in listed}

    def topics(self, worker: Mirror) -> set[str]:
        """Return the target topics that the connector uses, as one worker shows them."""
        status, found = self.ask(worker, "/topics")
        if status != 200:
            return set()
        assert isinstance(found, dict)
        (used,) = cast("dict[str, dict[str, list[str]]]", found).values()
        return set(used["topics"])

    def until_spread(
        self, *, tasks: int | Callable[[], int] = TASKS, over: int | None = None
    ) -> dict[int, Mirror]:
        """Wait until all running workers say the same: every task runs, on that many of them."""
        wanted = len(self._running) if over is None else over
        count = tasks if callable(tasks) else lambda: tasks

        def spread() -> dict[int, Mirror] | None:
            seen = [self.tasks(worker) for worker in self.running]
            if any(other != seen[0] for other in seen[1:]) or len(seen[0]) != count():
                return None
            owners = {task: self.named(owner) for task, (_, owner) in seen[0].items()}
            is_up = all(state == "RUNNING" for state, _ in seen[0].values())
            found = {task: owner for task, owner in owners.items() if owner is not None}
            names = {owner.name for owner in found.values()}
            return found if is_up and len(found) == len(owners) and len(names) == wanted else None

        return until(spread, SPREAD_S, self._describe, alive=self.running[0])

    def until_states(self, *states: str) -> None:
        """Wait until the tasks have these states and no other, as every worker tells."""
        until(
            lambda: all(
                {state for state, _ in self.tasks(worker).values()} == set(states)
                for worker in self.running
            ),
            SPREAD_S,
            lambda: f"{states}: {self._describe()}",
        )

    # ---- who is who

    def named(self, owner: str) -> Mirror | None:
        """Return the running worker of a name in statuses (``host:port``)."""
        return next((w for w in self.running if f"//{owner}/" == _internal(w)), None)

    def leader(self) -> Mirror:
        """Return who leads by the newest round in the logs; waits while that one is gone."""

        def newest() -> Mirror | None:
            rounds = [
                (int(found[1]), found[2])
                for worker in self.running
                for found in map(_ROUND.search, worker.lines("group (joined|round done)"))
                if found is not None
            ]
            url = max(rounds)[1].removeprefix("http:")
            return next((w for w in self.running if _internal(w) == url), None)

        return until(newest, SPREAD_S, "a leader")

    def starts(self, worker: Mirror) -> list[int]:
        """Return the task numbers that a worker has started, in order."""
        return _numbers(_STARTED, worker)

    def stops(self, worker: Mirror) -> list[int]:
        """Return the task numbers that a worker has given up, in order."""
        return _numbers(_STOPPED, worker)

    # ---- copying

    def wait_for_copy_everywhere(self, topic: str) -> float:
        """Wait until every partition has got new records since now; return after how many seconds."""
        began = time.monotonic()
        # A target that has just been thawed may name no leaders: there is nothing to compare with.
        before = until(lambda: ends(self.flow.target, self.flow.remote(topic)))

        def grown() -> bool:
            now = ends(self.flow.target, self.flow.remote(topic))
            return all(now.get(p, 0) > end for p, end in before.items())

        source = ends(self.flow.source, topic)
        until(
            grown,
            120,
            lambda: (
                f"all partitions of {topic}: source {source}, now {ends(self.flow.source, topic)}; copy {before}, now "
                f"{ends(self.flow.target, self.flow.remote(topic))}; {self._describe()}"
            ),
        )
        return time.monotonic() - began

    def wait_for_start(self, topic: str) -> None:
        """Wait until something was copied."""
        until(lambda: copied(self.flow, topic) > 0, SPREAD_S, "a first record")

    def _describe(self) -> str:
        tasks = {worker.name: self.tasks(worker) for worker in self.running}
        flows = {worker.name: self._flow_of(worker) for worker in self.running}
        return f"tasks as the workers tell: {tasks}; the flow: {flows}"

    def _flow_of(self, worker: Mirror) -> str:
        """Return state and findings of the flow, as one worker shows them."""
        try:
            _, found = ask(f"{public_url(worker)}flows/{quote(self.flow.name, safe='')}")
        except OSError as error:
            return str(error)
        return f"{found.get('state')} {found.get('errors')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def assert_nothing_lost(flow: Flow, topic: str, worker: Mirror) -> dict[int, list[int]]:
    """Every record of the source is in the copy in order; return where it steps back, by partition.

    A step back is the number of the source record that is there again after a later one.
    """
    truth = read(flow.source, topic)
    copy: Logs = {}

    def arrived() -> bool:
        nonlocal copy
        copy = read(flow.target, flow.remote(topic))
        return all(log.records[-1] in copy[p].records[-400:] for p, log in truth.items())

    until(arrived, SPREAD_S, "the end of the source on the target", alive=worker)
    return {p: _steps_back(log.records, copy[p].records) for p, log in truth.items()}


def _steps_back(wanted: Sequence[Record], found: Sequence[Record]) -> list[int]:
    # The load may stand twice in the source too, where a broker answered it late: the last one counts.
    numbers = {record: number for number, record in enumerate(wanted)}
    steps, following, furthest = list[int](), 0, 0
    for record in found:
        if following == len(wanted) or wanted[following] != record:
            number = numbers[record]
            assert number < following, f"records {following}-{number - 1} are missing"
            steps.append(number)
            following = number
        following += 1
        furthest = max(furthest, following)
    assert furthest == len(wanted), f"the copy ends at record {furthest - 1}"
    return steps


def _internal(worker: Mirror) -> str:
    """Return ``//host:port/``."""
    line = worker.wait_for_log("internal=http")
    return line.split("internal=")[1].split()[0].removeprefix("http:")


def _numbers(pattern: re.Pattern[str], worker: Mirror) -> list[int]:
    return [int(number) for number in pattern.findall(worker.log())]
