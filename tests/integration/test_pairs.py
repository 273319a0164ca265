"""Pairs of features under load: the scenes that can lose, double, skip or lie and that no other test has; `make chaos` has more of them.

A few ingredients, mixed, and one check of everything that is promised at the end.

Flow: ``Stage`` (two regions of its own, one worker, a load that knows what was acknowledged) -> ingredients, one inside of the
other -> ``Stage.check``: each incarnation whole and in order, what is missing in the ledger, no group past an unread record, no
display green while something is missing.
"""

import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, final

import pytest

from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import delete_records, delete_topic, topics_of
from tests.integration.exactly_once import ENABLED
from tests.integration.flow_questions import Asked, path_of
from tests.integration.incarnations import Incarnation
from tests.integration.ledger_scenes import Entry, entries, wait_for_entries
from tests.integration.mirror_process import (
    GROUPS,
    SHORT_SESSION,
    Flow,
    Mirror,
    until,
    until_equal,
    write_flow,
)
from tests.integration.setups import Setup
from tests.integration.sinks import SHORT_SESSIONS, a_flow
from tests.integration.traffic import (
    commit,
    committed,
    ends,
    producer,
    read,
    wait_for_progress,
)
from tests.integration.transactions import abandon, is_aborted, take_over
from tests.kit.kafka.region import Region
from tests.kit.matrix import matrix
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

WIDTH: Final = 3
PER_TICK: Final = 10
SOME: Final = 600
"""Records of the load, about a second."""
WHOLE_S: Final = 120.0
GREEN_S: Final = 60.0
"""So long a flow may say that nothing is left to copy while something is: views are made of what tasks report."""
OWN: Final = "{source}->{target}."
STAMP: Final = "org.apache.kafka.connect.transforms.InsertHeader"

COMMITTED: Final = {"{source}.consumer.isolation.level": "read_committed"}
TRANSFORMS: Final = {
    **SHORT_SESSION,
    OWN + "transforms": "stamp",
    OWN + "transforms.stamp.type": STAMP,
    OWN + "transforms.stamp.header": "h",
    OWN + "transforms.stamp.value.literal": "v",
}
KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": SHORT_SESSION,
    "exactly-once": ENABLED,
    "transforms": TRANSFORMS,
    "sink": {},
    "committed": {**SHORT_SESSION, **COMMITTED},
    "committed transforms": {**TRANSFORMS, **COMMITTED},
    "committed sink": {"consumer.override.isolation.level": "read_committed"},
    "same names": {
        **SHORT_SESSION,
        "replication.policy.class": IDENTITY,
        "{target}->{source}.enabled": "true",
        "{target}->{source}.topics": ".*",
    },
}
"""Kinds of flows, with what their files say."""


class Found(NamedTuple):
    """A record on the target: its incarnation, its offset there on the source, its offset."""

    incarnation: int
    at: int
    offset: int


@final
class Stage:
    """One flow with one topic; its load runs from ``begin`` to ``check``."""

    def __init__(
        self,
        regions: tuple[Region, Region],
        kind: str,
        topic: str,
        folder: Path,
        create: CreateTopic,
    ) -> None:
        self.source, self.target = regions
        self.kind, self.topic, self._create = kind, topic, create
        if self.is_sink:
            own = KINDS[kind]
            self.flow: Flow = a_flow(folder, *regions, topic, own, SHORT_SESSIONS)
        else:
            properties = {**KINDS[kind], **GROUPS, "refresh.topics.interval.seconds": "1"}
            flow = write_flow(folder, self.source, self.target, topic, properties)
            self.flow = replace(flow, keeps_names=kind == "same names")
        self.group = f"reads-{topic}"
        self.incarnations: list[Incarnation] = []
        self.kills = 0
        self._workers = ExitStack()
        self.worker: Mirror

    @contextmanager
    def running(self) -> Generator[None]:
        """Run the load and the worker, until the first records of each partition are on the target."""
        with self._workers:
            self._next_incarnation()
            self._start_worker()
            self.wait_copied()
            # One task may have copied all of them; another that never had its partitions knows no incarnation of them.
            until(
                lambda: (
                    len(there := ends(self.target, self.flow.remote(self.topic))) == WIDTH
                    and all(there.values())
                ),
                alive=self.worker,
            )
            try:
                yield
            finally:
                self.load.stop(deleted=True)

    @property
    def load(self) -> Incarnation:
        """The load on the incarnation of now."""
        return self.incarnations[-1]

    @property
    def is_sink(self) -> bool:
        """Whether a group copies the flow."""
        return self.kind.endswith("sink")

    @property
    def exact(self) -> bool:
        """Whether no record may be doubled."""
        return self.kind == "exactly-once" or (not self.is_sink and not self.kills)

    def _next_incarnation(self, *, creates: bool = True) -> None:
        number = len(self.incarnations)
        if creates:
            self._create(self.source, self.topic, WIDTH)
        until(lambda: len(ends(self.source, self.topic)) == WIDTH, 60, "leaders")
        load = Incarnation(self.source, self.topic, number, WIDTH, per_tick=PER_TICK)
        self.incarnations.append(self._workers.enter_context(load))

    def _start_worker(self) -> None:
        name = f"w{self.kills}"
        self.worker = self._workers.enter_context(Mirror(self.flow.file, name=name))

    def wait_copied(self) -> None:
        """Wait until half a load more is on the target."""
        wait_for_progress(self.worker, self.flow, self.topic, SOME // 2)

    def ask(self, action: str, **only: str) -> None:
        """Pause or resume over REST."""
        Asked(self.worker).done("POST", f"{path_of(self.flow)}/{action}", **only)

    # ---- steps

    def recreate(self) -> None:
        """Delete the topic under load, create it again, and write more than the old one had; once in a scene."""
        self._replace()

    def lose_to_flow_back(self) -> None:
        """As ``recreate``, but under the same names both ways the flow back creates the topic: its copy is still on the target."""
        self._replace(creates=False)

    def _replace(self, *, creates: bool = True) -> None:
        assert len(self.incarnations) == 1
        old = self.load
        delete_topic(self.source, self.topic)
        until(lambda: self.topic not in topics_of(self.source), 60, "deletion")
        old.stop(deleted=True)
        if not creates:
            until(lambda: self.topic in topics_of(self.source), alive=self.worker)
        self._next_incarnation(creates=creates)
        self.load.wait_acked(old.total + SOME)

    def truncate(self) -> None:
        """Delete what was written, but for the newest records."""
        self.load.wait_acked(SOME)
        for partition, end in ends(self.source, self.topic).items():
            delete_records(self.source, self.topic, partition, max(0, end - 20))

    def kill(self) -> None:
        """Kill the worker, and start another one."""
        self.worker.kill()
        self.kills += 1
        self._start_worker()

    def commit(self) -> None:
        """Let a group of the source commit in the middle of what is there."""
        done = {number: at[len(at) // 2] for number, at in self.load.offsets.items()}
        commit(self.source, self.group, self.topic, done)

    # ---- the check

    def check(self) -> None:
        """Stop the load, wait for what is missing, and compare everything."""
        self.load.wait_acked(SOME)
        self.load.stop(deleted=False)
        self._wait_whole()
        until(self._nothing_lags, 120, lambda: str(self._shown()), alive=self.worker)
        found = self.found()
        self._check_order(found)
        self._check_ledger(found)
        self._check_group(found)
        if self.flow.keeps_names:
            self._check_no_loop()
        assert self.worker.stop() == 0

    def found(self) -> dict[int, list[Found]]:
        """Return what is on the target, by partition."""
        places = [
            {
                value: (number, at)
                for partition, values in one.acked.items()
                for at, value in zip(one.offsets[partition], values, strict=True)
            }
            for number, one in enumerate(self.incarnations)
        ]
        logs = read(self.target, self.flow.remote(self.topic), committed=True)
        result: dict[int, list[Found]] = {partition: [] for partition in logs}
        for partition, log in logs.items():
            for offset, record in zip(log.offsets, log.records, strict=True):
                value = record.value or b""
                assert not is_aborted(value), f"partition {partition}: {value!r} was aborted"
                place = places[int(value.split(b":")[0])].get(value)
                if place is not None:  # else stored, though its answer did not arrive
                    result[partition].append(Found(*place, offset))
        return result

    def _wait_whole(self) -> None:
        """Wait for the last record of each partition; a flow that says that it has nothing to do must have it by then."""
        last = {values[-1] for values in self.load.acked.values() if values}
        green_since: list[float] = []

        def whole() -> bool:
            logs = read(self.target, self.flow.remote(self.topic), committed=True)
            if last <= {log.records[-1].value for log in logs.values() if log.records}:
                return True
            view = self._shown()
            if view["state"] != "RUNNING" or view["lag_records"] != 0:
                green_since.clear()
            else:
                green_since.append(time.monotonic())
                green_s = green_since[-1] - green_since[0]
                assert green_s < GREEN_S, f"green for {green_s:.0f} s, not whole: {view}"
            return False

        until(whole, WHOLE_S, lambda: f"the last records: {self._shown()}", alive=self.worker)

    def _shown(self) -> Mapping[str, object]:
        found: Mapping[str, object] = Asked(self.worker).done("GET", path_of(self.flow))
        return found

    def _nothing_lags(self) -> bool:
        view = self._shown()
        return view["state"] == "RUNNING" and view["lag_records"] == 0

    def _check_order(self, found: Mapping[int, Sequence[Found]]) -> None:
        for partition, records in found.items():
            steps = [(before, now) for before, now in pairwise(records) if now[:2] <= before[:2]]
            if self.exact:
                assert not steps, f"partition {partition}: {steps[:3]}"
            else:
                allowed = self.kills + 4 * len(
                    self.incarnations
                )  # members of the group come and go
                assert len(steps) <= allowed, f"partition {partition}: {steps[:9]}"

    def _check_ledger(self, found: Mapping[int, Sequence[Found]]) -> None:
        """What was acknowledged is on the target, or named."""
        ended = (len(self.incarnations) - 1) * WIDTH
        wait_for_entries(self.flow, ended, self.worker)  # records may be there before their events
        ledger = entries(self.flow)
        for partition in range(WIDTH):
            here = [it for it in ledger if it.partition == partition]
            for number, one in enumerate(self.incarnations):
                is_last = one is self.load
                events = _of_incarnation(here, number)
                there = {it.at for it in found[partition] if it.incarnation == number}
                missing = [at for at in one.offsets[partition] if at not in there]
                unnamed = [at for at in missing if not _is_named(at, events)]
                where = f"incarnation {number}, partition {partition}, {len(there)} copied"
                assert not unnamed, f"{where}: lost {unnamed[:5]} ... {unnamed[-3:]}, {here}"
                wrong = [it for it in events if it.kind == "retention" and _has_any(it, there)]
                assert not wrong, f"{where}: copied, and named as lost: {wrong}"
                assert is_last or any(it.kind == "recreated" for it in events), f"{where}: {here}"

    def _check_no_loop(self) -> None:
        """Nothing of the flow came back to the source."""
        for partition, log in read(self.source, self.topic).items():
            values = [it.value for it in log.records]
            assert len(values) == len(set(values)), f"partition {partition}: doubled on the source"

    def _check_group(self, found: Mapping[int, Sequence[Found]]) -> None:
        """A group that moves to the target now continues at its first unread record."""
        positions = committed(self.source, self.group, self.topic)
        last = len(self.incarnations) - 1
        if self.is_sink or not any(offset >= 0 for offset in positions.values()):
            return
        wanted = {
            partition: min(it.offset for it in found[partition] if (it.incarnation, it.at) >= (last, offset))
            for partition, offset in positions.items()
        }  # fmt: skip
        remote = self.flow.remote(self.topic)

        def there() -> dict[int, int]:
            return committed(self.target, self.group, remote)

        until_equal(there, wanted, alive=self.worker)


def _of_incarnation(ledger: Sequence[Entry], number: int) -> list[Entry]:
    """Return the events of one partition before or after its topic was created again; a kill may name the old one's tail twice."""
    ended = max((at + 1 for at, it in enumerate(ledger) if it.kind == "recreated"), default=0)
    return list(ledger[ended:] if number else ledger[: ended or None])


def _is_named(at: int, events: Sequence[Entry]) -> bool:
    # What was written between the last look and the deletion cannot be known.
    return any(
        it.first <= at and (it.kind == "recreated" or it.last >= at)
        for it in events
        if it.kind in ("retention", "recreated")
    )


def _has_any(entry: Entry, there: set[int]) -> bool:
    return any(entry.first <= at <= entry.last for at in there)


# ---- ingredients

Ingredient = Callable[[Stage], Generator[None]]


def _frozen_worker(stage: Stage) -> Generator[None]:
    stage.worker.send(signal.SIGSTOP)
    try:
        yield
    finally:
        stage.worker.send(signal.SIGCONT)


def _paused_flow(stage: Stage) -> Generator[None]:
    stage.ask("pause")
    yield
    stage.ask("resume")


def _paused_topic(stage: Stage) -> Generator[None]:
    stage.ask("pause", topic=stage.topic)
    yield
    stage.ask("resume", topic=stage.topic)


def _silent_target(stage: Stage) -> Generator[None]:
    stage.target.freeze()
    try:
        yield
    finally:
        stage.target.thaw()


def _group(stage: Stage) -> Generator[None]:
    """It has read half before, and half of what is there at the end."""
    stage.commit()
    stage.wait_copied()
    yield
    stage.commit()


def _open_transaction(stage: Stage) -> Generator[None]:
    """Of another writer: it has written before the rest, and commits behind it; only what it leaves open holds the copy back."""
    client = producer(stage.source, transactional_id=stage.topic, transaction_timeout_ms=600_000)
    client.init_transactions(60)
    client.begin_transaction()

    def write_in(when: bytes) -> None:
        for partition in range(WIDTH):
            value = b"0:in a transaction, %s, %d" % (when, partition)
            client.produce(stage.topic, value, partition=partition)
        assert client.flush(60) == 0

    write_in(b"first")
    yield
    write_in(b"last")
    client.commit_transaction(60)


def _hanging_transaction(stage: Stage) -> Generator[None]:
    """Its writer is killed: nothing above it is stable until another one of its name aborts it."""
    abandon(stage.source, stage.topic, stage.topic, 600_000)
    yield
    take_over(stage.source, stage.topic)


def _step(step: Callable[[Stage], None]) -> Ingredient:
    def whole(stage: Stage) -> Generator[None]:
        step(stage)
        yield

    return whole


INGREDIENTS: Final[Mapping[str, Ingredient]] = {
    "frozen worker": _frozen_worker,
    "paused flow": _paused_flow,
    "paused topic": _paused_topic,
    "silent target": _silent_target,
    "group": _group,
    "open transaction": _open_transaction,
    "hanging transaction": _hanging_transaction,
    "recreated": _step(Stage.recreate),
    "created by the flow back": _step(Stage.lose_to_flow_back),
    "truncated": _step(Stage.truncate),
    "killed": _step(Stage.kill),
}


def play(stage: Stage, names: Sequence[str]) -> None:
    """Run the ingredients, each inside of those before it, under load; then check."""
    with stage.running():
        with ExitStack() as open_ones:
            for name in names:
                stage.load.wait_acked(SOME // 2)
                open_ones.enter_context(contextmanager(INGREDIENTS[name])(stage))
            stage.load.wait_acked(SOME)
        stage.check()


SCENES: Final = [
    ("plain", "group", "frozen worker", "recreated"),
    ("plain", "paused topic", "recreated", "killed"),
    ("exactly-once", "silent target", "recreated"),
    ("transforms", "frozen worker", "recreated"),
    ("sink", "frozen worker", "recreated"),
    ("same names", "group", "created by the flow back"),
]
MORE: Final = [
    ("plain", "group", "silent target", "recreated"),
    ("plain", "group", "paused topic", "recreated"),
    ("plain", "group", "killed", "recreated"),
    ("plain", "frozen worker", "truncated"),
    ("plain", "paused topic", "truncated"),
    ("plain", "silent target", "truncated"),
    ("plain", "silent target", "recreated", "killed"),
    ("exactly-once", "group", "frozen worker", "recreated"),
    ("exactly-once", "paused topic", "truncated", "killed"),
    ("exactly-once", "frozen worker", "truncated"),
    ("transforms", "silent target", "recreated"),
    ("transforms", "paused topic", "truncated"),
    ("transforms", "group", "paused topic", "recreated", "killed"),
    ("sink", "silent target", "recreated"),
    ("sink", "frozen worker", "truncated"),
    ("sink", "paused topic", "truncated", "killed"),
    ("sink", "silent target", "truncated"),
    ("committed", "group", "open transaction", "killed"),
    ("committed", "open transaction", "truncated"),
    ("committed", "silent target", "open transaction", "frozen worker"),
    ("same names", "group", "silent target", "killed"),
    ("same names", "frozen worker", "truncated"),
    ("same names", "group", "recreated"),
    ("same names", "recreated", "killed"),
    ("plain", "recreated", "killed", "killed"),
    ("exactly-once", "open transaction", "killed"),
    ("committed", "group", "paused topic", "open transaction"),
    ("same names", "group", "open transaction", "killed"),
    ("same names", "group", "paused topic", "truncated"),
    ("transforms", "group", "open transaction", "killed"),
    ("sink", "open transaction", "frozen worker"),
    ("committed", "group", "hanging transaction", "killed"),
    ("committed", "group", "hanging transaction", "recreated"),
    ("committed transforms", "group", "hanging transaction", "killed"),
    ("committed sink", "hanging transaction", "killed"),
    ("plain", "silent target", "recreated", "truncated"),
    ("exactly-once", "frozen worker", "recreated", "truncated"),
    ("transforms", "paused topic", "recreated", "truncated", "killed"),
    ("sink", "silent target", "recreated", "truncated"),
]


@pytest.mark.parametrize(
    "scene", matrix([(it,) for it in SCENES], [(it,) for it in MORE]), ids=" + ".join
)
def test_what_is_promised_holds_where_features_meet(
    setup: Setup, own_regions: tuple[Region, Region], scene: tuple[str, ...]
) -> None:
    kind, *ingredients = scene
    play(
        Stage(own_regions, kind, setup.unique("pairs"), setup.folder, setup.create_topic),
        ingredients,
    )
