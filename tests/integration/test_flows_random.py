"""A hundred random ``/flows`` operations while five flows run: the end is what a model says, two flows notice nothing.

Flow: seed -> operation, on the model and over REST -> answers compared -> states, configs and copies compared.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import pytest

from tests.integration.flow_questions import (
    SOURCE,
    Asked,
    flows_file,
    path_of,
    push,
    wait_for_records,
)
from tests.integration.mirror_process import Flow, Mirror, running, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import Load, assert_equal, copied, wait_for_copy

pytestmark = [
    pytest.mark.faults,
    pytest.mark.fuzz,
    pytest.mark.integration,
    pytest.mark.timeout(480),
]

OPERATIONS: Final = 100
UNTOUCHED: Final = 2
RATE: Final = 100
LOOK_EVERY: Final = 20


@dataclass(frozen=True)
class Picture:
    """What is in force of one flow."""

    there: bool = True
    topics: str = ""
    tasks_max: str = "1"
    held: frozenset[str] = frozenset()


@final
@dataclass
class Model:
    """One flow as it should be; ``pictures`` by revision since it was made last."""

    flow: Flow
    topics: tuple[str, str]
    now: Picture
    state: str = "RUNNING"
    pictures: dict[int, Picture] = field(default_factory=dict[int, Picture])

    def became(self, answer: dict[str, Any], then: Picture) -> None:
        """Note a change that was answered; one that changes nothing has no revision."""
        assert (answer["revision"] is None) == (then == self.now), answer
        self.now = then
        if answer["revision"] is not None:
            self.pictures[answer["revision"]] = then

    @property
    def both(self) -> str:
        """The value of ``topics`` that names both."""
        return ",".join(self.topics)


@final
class Operations:
    """Random operations on one flow after the other."""

    def __init__(self, ask: Asked, models: list[Model], seed: int) -> None:
        self._ask, self._models = ask, models
        self.mirror = ask.mirror
        self._random = random.Random(seed)
        self.done: list[str] = []

    def one(self) -> None:
        """Do one, and compare its answer."""
        model = self._random.choice(self._models)
        if not model.now.there:
            self._note(model, "create")
            self._create(model)
            return
        operations: list[Callable[[Model], None]] = [
            self._topics, self._topics, self._tasks, self._hold, self._hold, self._hold_part,
            self._state, self._state, self._restart, self._rollback, self._rollback, self._remove,
            self._dry, self._refused, self._delete,
        ]  # fmt: skip
        operation = self._random.choice(operations)
        self._note(model, operation.__name__)
        operation(model)

    def _note(self, model: Model, what: str) -> None:
        self.done.append(f"{what.strip('_')} {model.flow.source_alias}")

    def _change(
        self,
        model: Model,
        then: Picture,
        method: str,
        path: str,
        body: object = None,
        **query: object,
    ) -> None:
        model.became(self._ask.done(method, path_of(model.flow) + path, body, **query), then)

    def _create(self, model: Model) -> None:
        topics = self._random.choice([model.topics[0], model.both])
        body = {
            "source": model.flow.source_alias,
            "target": model.flow.target_alias,
            "config": {"topics": topics},
        }
        answer = self._ask.done("POST", "/flows", body)
        model.now, model.state, model.pictures = Picture(there=False), "RUNNING", {}
        model.became(answer, Picture(topics=topics))

    def _delete(self, model: Model) -> None:
        self._change(model, Picture(there=False), "DELETE", "")

    def _topics(self, model: Model) -> None:
        topics = self._random.choice([model.topics[0], model.both])
        body = {"config": {"topics": topics}}
        self._change(model, replace(model.now, topics=topics), "PATCH", "", body)

    def _tasks(self, model: Model) -> None:
        number = str(self._random.randint(1, 2))
        body = {"config": {"tasks.max": number}}
        self._change(model, replace(model.now, tasks_max=number), "PATCH", "", body)

    def _hold(self, model: Model) -> None:
        topic, on = model.topics[0], self._random.random() < 0.5
        kept = {it for it in model.now.held if it.rpartition("-")[0] != topic and it != topic}
        held = model.now.held | {topic} if on else frozenset(kept)
        path = "/pause" if on else "/resume"
        self._change(model, replace(model.now, held=held), "POST", path, topic=topic)

    def _hold_part(self, model: Model) -> None:
        query: dict[str, object] = {"topic": model.topics[0], "partition": 0}
        held = model.now.held | {f"{model.topics[0]}-0"}
        self._change(model, replace(model.now, held=held), "POST", "/stop", **query)

    def _state(self, model: Model) -> None:
        words = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED"}
        action = self._random.choice(list(words))
        answer = self._ask.done("POST", f"{path_of(model.flow)}/{action}")
        assert (answer["revision"] is None) == (model.state == words[action]), answer
        model.state = words[action]
        if answer["revision"] is not None:
            model.pictures[answer["revision"]] = model.now

    def _restart(self, model: Model) -> None:
        path = f"{path_of(model.flow)}/restart"
        if model.state == "RUNNING" and self._random.random() < 0.5:
            status, answer = self._ask.patiently("POST", path, topic=model.topics[0])
            if status == 404:  # its task is not there yet
                return
            assert status == 200, answer
        else:
            status, answer = self._ask.patiently("POST", path)
            if status == 409 and model.state == "STOPPED":
                return
            assert status == 200, answer
        if answer["revision"] is not None:  # None where nothing of a new flow is there yet
            model.pictures[answer["revision"]] = model.now

    def _rollback(self, model: Model) -> None:
        revision = self._random.choice(sorted(model.pictures))
        self._change(model, model.pictures[revision], "POST", "/rollback", revision=revision)

    def _remove(self, model: Model) -> None:
        topic = model.topics[1]
        path = path_of(model.flow)
        if model.now.topics != model.both:
            assert self._ask.patiently("DELETE", path, topic=topic)[0] == 404
            return
        then = replace(model.now, topics=model.topics[0])
        self._change(model, then, "DELETE", "", topic=topic)

    def _dry(self, model: Model) -> None:
        path = path_of(model.flow)
        asked: list[tuple[str, str, dict[str, object]]] = [
            ("DELETE", "", {}),
            ("POST", "/stop", {}),
            ("POST", "/pause", {"topic": model.topics[0]}),
            ("POST", "/rollback", {"revision": min(model.pictures)}),
        ]
        if model.state != "STOPPED":
            asked.append(("POST", "/restart", {}))
        for method, way, query in asked:
            answer = self._ask.done(method, path + way, dry_run=True, **query)
            assert (answer["dry_run"], answer["revision"]) == (True, None)

    def _refused(self, model: Model) -> None:
        path = path_of(model.flow)
        part = {"topic": model.topics[0], "partition": 0}
        refused: list[tuple[str, str, object, dict[str, object], int]] = [
            ("PATCH", "", {"config": {"topics": "["}}, {}, 400),
            ("PATCH", "", {"config": {"tasks.max": "none"}}, {}, 400),
            ("PATCH", "", [], {}, 422),
            ("POST", "/pause", None, {"topic": "nobody-has-it"}, 404),
            ("POST", "/rollback", None, {"revision": 10**6}, 404),
            ("DELETE", "", None, {**part}, 400),
        ]
        for method, way, body, query, wanted in refused:
            status, found = self._ask.patiently(method, path + way, body, **query)
            assert status == wanted, f"{method} {way}: {status} {found}"


def compare(ask: Asked, model: Model) -> None:
    """A flow is as its model says."""
    status, found = ask.patiently("GET", path_of(model.flow))
    if not model.now.there:
        assert status == 404, found
        return
    assert set(found["paused"]) == model.now.held
    properties = ask.properties(model.flow)
    assert properties["topics"] == model.now.topics
    assert properties.get("tasks.max", "1") == model.now.tasks_max
    wait_for_state(ask, model)


def wait_for_state(ask: Asked, model: Model) -> None:
    """Wait until a flow does what its model says."""
    flow = model.flow
    until_equal(lambda: state_of(ask, flow), model.state, alive=ask.mirror)


def state_of(ask: Asked, flow: Flow) -> str:
    """Return the state of what copies; UNASSIGNED while one of its tasks is not as itself."""
    found = ask.done("GET", path_of(flow))
    source = next((it for it in found["connectors"] if it["name"] == SOURCE), None)
    states = (
        set[str]()
        if source is None
        else {source["state"], *(task["state"] for task in source["tasks"])}
    )
    return states.pop() if len(states) == 1 else "UNASSIGNED"


def test_a_hundred_random_operations_end_as_a_model_says(setup: Setup, seed: int) -> None:
    names = [(setup.unique(f"random{n}"), setup.unique(f"random{n}-more")) for n in range(5)]
    for name in (name for pair in names for name in pair):
        setup.create_topic(setup.a, name, 1)
    flows = flows_file(
        setup.folder, setup.a, setup.b, [first for first, _ in names], running=4,
        properties={"tasks.max": "1"},
    )  # fmt: skip
    models = [
        Model(flow, pair, Picture(topics=pair[0]), pictures={0: Picture(topics=pair[0])})
        for flow, pair in zip(flows, names, strict=True)
    ]
    models[-1].now = Picture(there=False)
    touched, steady = models[UNTOUCHED:], models[:UNTOUCHED]
    with running(flows[0].file, ready=False) as mirror:
        ask = Asked(mirror)
        for model in models[:-1]:
            wait_for_state(ask, model)
        with (
            Load(setup.a, steady[0].topics[0], 1, rate=RATE) as one,
            Load(setup.a, steady[1].topics[0], 1, rate=RATE) as two,
        ):
            operate(Operations(ask, touched, seed), steady, (one, two))
        for model in models:
            compare(ask, model)
        for model in steady:
            assert_equal(*wait_for_copy(mirror, model.flow, model.topics[0]))
            alias = f"{model.flow.source_alias}->{model.flow.target_alias}"
            assert len(mirror.lines(f"{alias}.*source task started")) == 1, "nothing touched it"
        assert_content(mirror, touched)
    with running(flows[0].file, name="again", ready=False) as mirror:
        for model in models:
            if model.now.there:
                Asked(mirror).wait_there(model.flow)
            compare(Asked(mirror), model)


def operate(operations: Operations, steady: list[Model], loads: tuple[Load, Load]) -> None:
    """Do all operations; now and then the untouched flows have to be up to date."""
    mirror = operations.mirror
    try:
        for number in range(OPERATIONS):
            operations.one()
            if number % LOOK_EVERY == 0:
                for model, load in zip(steady, loads, strict=True):
                    wait_for_records(mirror, model.flow, model.topics[0], load.acked)
    except BaseException as error:
        error.add_note(f"operations: {', '.join(operations.done)}")
        raise
    for load in loads:
        load.stop()


def assert_content(mirror: Mirror, models: list[Model]) -> None:
    """Each flow copies what its model says."""
    for model in models:
        topic = model.topics[0]
        before = copied(model.flow, topic)
        push(model.flow, topic)
        held = {topic, f"{topic}-0"} & model.now.held
        if model.now.there and model.state == "RUNNING" and not held:
            assert_equal(*wait_for_copy(mirror, model.flow, topic))
        else:
            assert copied(model.flow, topic) == before
