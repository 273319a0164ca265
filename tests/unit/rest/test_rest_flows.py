"""``/flows`` and ``/lag`` over fakes: answers, refusals, dry runs, forwarding, misspelt requests."""

import asyncio
import cProfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from mm2py.config.class_names import IDENTITY_REPLICATION_POLICY
from mm2py.errors import NO_ANSWER, NO_CONNECTION, UNREACHABLE
from mm2py.flows.service import NO_TARGET
from mm2py.flows.views import change_view
from mm2py.mirror.backfills import NO_DRIVER, BackfillRecord, Job, JobState, Lease, LeaseState
from mm2py.mirror.flow_overrides import Change
from mm2py.observability.logging import HIDDEN
from mm2py.observability.metrics import (
    KEPT_OUT,
    UNKNOWN,
    Finding,
    FlowSample,
    Forecast,
    NodeSnapshot,
    PartitionSnapshot,
)
from mm2py.rest.app import internal_app
from mm2py.runtime.errors import ForwardError, HerderError
from mm2py.runtime.group.request_signing import sign_request
from mm2py.runtime.herder.api import ConnectorState, WorkState
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import State, TaskId, TopicPartition
from tests.unit.rest.flow_fakes import AB, BA, IDENTITY, NAME, Rig, follower, partition, snapshot
from tests.unit.rest.paper_worker import CONFIG, PaperWorker
from tests.unit.rest.rest_fakes import KEY, FakeHerder, Reply, ask, flow, state

LARGEST = (1 << 31) - 1
"""Of a partition's number."""
CIRCLING = {"replication.policy.class": IDENTITY, "loop.suppression": "off"}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    rig.add(BA, topics="payments")
    return rig


def changes_of(herder: FakeHerder) -> list[tuple[object, ...]]:
    return [call for call in herder.calls if call[0] != "topics"]


# -- reading


def test_flows_are_listed_with_state_lag_and_rates(rig: Rig) -> None:
    reply = rig.ask("GET", "/flows")
    assert reply.status == 200
    first, second = reply.json
    assert (first["flow"], second["flow"]) == ("A->B", "B->A")
    assert (first["state"], first["workers"]) == ("RUNNING", ["worker:8083"])
    assert (first["lag_records"], first["lag_ms"], first["records_per_s"]) == (7, 70, 2.0)
    assert first["bytes_per_s"] is None
    assert first["connectors"][0]["tasks"] == [
        {"number": 0, "state": "RUNNING", "worker": "worker:8083"}
    ]
    for target in ("/flows/A-%3EB", "/flows/A->B/", "/flows//A%2D%3EB"):
        assert rig.ask("GET", target).json == first


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/flows/X->Y"),
        ("PATCH", "/flows/X->Y"),
        ("POST", "/flows/X->Y/pause"),
        ("GET", "/flows/X->Y/lag"),
    ],
)
def test_an_unknown_flow_is_a_404_that_names_the_others(rig: Rig, method: str, target: str) -> None:
    body = {"config": {"topics": "x"}} if method == "PATCH" else None
    reply = rig.ask(method, target, body=body)
    assert reply.status == 404
    assert reply.message == "No flow X->Y; flows of this worker: A->B, B->A"


def test_numbers_of_all_members_are_put_together_and_who_is_missing_is_named(rig: Rig) -> None:
    herder = rig.herders[AB]
    herder.urls = ("http://worker:8083/", "http://n2:1/", "http://n3:1/")
    rig.peers.answers = {
        "http://n2:1/": snapshot(
            "n2:1", AB, partition("t", 1, 5), partition("u", 0, -1, state="FAILED")
        ),
        "http://n3:1/": HerderError("away"),
    }
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["partitions"], found["lag_records"], found["lag_ms"]) == (3, 12, 70)
    assert (found["incomplete"], found["records_lost"]) == (["http://n3:1/"], 6)
    assert (found["state"], found["errors"][0]["where"]) == ("DEGRADED", "http://n3:1/")
    assert found["errors"][0]["message"].startswith("this worker gave no answer (away)")
    rows = rig.ask("GET", "/flows/A->B/partitions").json
    assert [(it["topic"], it["partition"], it["lag_records"]) for it in rows] == [
        ("t", 0, 7),
        ("t", 1, 5),
        ("u", 0, None),
    ]
    topics = rig.ask("GET", "/flows/A->B/lag").json
    assert [(it["topic"], it["partitions"], it["lag_records"]) for it in topics] == [
        ("t", 2, 12),
        ("u", 1, None),
    ]


def test_a_partition_whose_copy_was_deleted_counts_once_while_another_has_it(rig: Rig) -> None:
    """The worker with the connector reports that it waits for its copy, that of the task measures it."""
    waits = PartitionSnapshot.unmeasured(
        TopicPartition("t", 1), state="HELD", cause="its remote topic is about to be created"
    )
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, partition("t", 0, 7), waits)
    rig.herders[AB].urls = ("http://worker:8083/", "http://n2:1/")
    rig.peers.answers = {"http://n2:1/": snapshot("n2:1", AB, partition("t", 1, 5))}
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["partitions"], found["lag_records"], found["held_partitions"]) == (2, 12, 0)
    rows = rig.ask("GET", "/flows/A->B/partitions").json
    assert [(it["partition"], it["worker"], it["lag_records"]) for it in rows] == [
        (0, "worker:8083", 7),
        (1, "n2:1", 5),
    ]
    (topic,) = rig.ask("GET", "/flows/A->B/topics").json
    assert topic["lag_records"] == 12
    rig.peers.answers = {"http://n2:1/": snapshot("n2:1", AB)}
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["partitions"], found["held_partitions"]) == (2, 1), "no task has it"


def test_heartbeats_are_no_topic(rig: Rig) -> None:
    beat = partition("source partition {'sourceClusterAlias': 'A'} to heartbeats", 0, 0)
    broken = replace(beat, state="FAILED", cause="no right to write")
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, partition("t", 0, 7), broken)
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["partitions"], found["records_per_s"], found["state"]) == (1, 2.0, "DEGRADED")
    assert "no right to write" in found["errors"][0]["message"]
    for rows in ("partitions", "topics", "lag"):
        assert [it["topic"] for it in rig.ask("GET", f"/flows/A->B/{rows}").json] == ["t"]


def test_a_forecast_lists_what_retention_overtakes_the_soonest_first(rig: Rig) -> None:
    def overtaken(topic: str, at_ms: int, size_bytes: int) -> PartitionSnapshot:
        said = Forecast(
            by="retention.ms", limit=60_000, at_ms=at_ms, records=7, size_bytes=size_bytes
        )
        return replace(partition(topic, 0, 7), forecast=said)

    late = overtaken("late", FakeClock().now_ms() + 9_500, 4_000)
    past = overtaken("past", FakeClock().now_ms() - 9_500, UNKNOWN)
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, partition("t", 0, 7), late, past)
    rows = rig.ask("GET", "/flows/A->B/forecast").json
    assert [(it["topic"], it["in_s"], it["size_bytes"]) for it in rows] == [
        ("past", 0.0, None),
        ("late", 9.5, 4_000),
    ]
    sent = snapshot("worker:8083", AB, late)
    assert NodeSnapshot.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(
    ("paused", "partitions", "lag", "is_blind"),
    [
        (True, [], None, True),
        (True, [partition("t", 0, 7)], 7, False),  # it was paused while it ran
        (False, [], None, False),  # about to start
    ],
)
def test_of_a_task_that_was_paused_before_its_start_nothing_is_known_and_a_note_says_so(
    rig: Rig,
    *,
    paused: bool,
    partitions: Sequence[PartitionSnapshot],
    lag: int | None,
    is_blind: bool,
) -> None:
    herder = rig.herders[AB]
    herder.assigned = {0: "t-0"}
    work = replace(state(NAME).connector, state=State.PAUSED if paused else State.RUNNING)
    herder.states[NAME] = ConnectorState(NAME, work, {0: work}, "source")
    herder.snapshot = snapshot("worker:8083", AB, *partitions)
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["partitions"], found["lag_records"]) == (1, lag)
    (topic,) = rig.ask("GET", "/flows/A->B/topics").json
    states = {True: "RUNNING", False: "PAUSED" if paused else "UNASSIGNED"}
    assert topic["state"] == states[bool(partitions)]
    assert found["lag_ms"] == (None if lag is None else 10 * lag)
    notes = [it for it in found["notes"] if it.startswith("nothing is measured of paused tasks")]
    assert len(notes) == is_blind
    assert all("mm2py flow resume 'A->B'" in it for it in notes)


def test_the_course_of_a_flow_has_rates_between_its_samples(rig: Rig) -> None:
    def sample(at_s: int, records: int, lag: int | None) -> FlowSample:
        return FlowSample(
            at_ms=at_s * 1000, lag_records=lag, lag_ms=lag, records=records, size_bytes=records * 10
        )

    rig.sampled[AB] = [sample(0, 0, None), sample(15, 300, 7), sample(30, 300, 0), sample(45, 2, 0)]
    rows = rig.ask("GET", "/flows/A->B/samples").json
    assert [(it["lag_records"], it["records_per_s"], it["bytes_per_s"]) for it in rows] == [
        (None, None, None),
        (7, 20.0, 200.0),
        (0, 0.0, 0.0),
        (0, None, None),
    ]
    assert rig.ask("GET", "/flows/B->A/samples").json == []


def test_the_lag_of_all_flows_is_sorted_and_cut(rig: Rig) -> None:
    rig.herders[BA].snapshot = snapshot("worker:8083", BA, partition("z", 0, 100))
    rows = rig.ask("GET", "/lag").json
    assert [(it["flow"], it["topic"]) for it in rows] == [("B->A", "z"), ("A->B", "t")]
    assert len(rig.ask("GET", "/lag?top=1").json) == 1


def test_the_clusters_of_the_file_say_between_which_a_flow_may_run_here(rig: Rig) -> None:
    rig.absent(flow("C", "B"))
    assert rig.ask("GET", "/clusters").json == [
        {"alias": "A", "targets": ["B"], "sources": ["B"], "note": ""},
        {"alias": "B", "targets": ["A"], "sources": ["A", "C"], "note": ""},
        {"alias": "C", "targets": ["B"], "sources": [], "note": NO_TARGET},
    ]


def test_half_of_a_character_and_a_secret_in_a_live_cause_are_in_no_answer(rig: Rig) -> None:
    """As of a task in the worker's own process: no frame and no stored record has replaced them."""
    herder, text = rig.herders[AB], "header \udcff of canary-value"
    work = WorkState(State.FAILED, "worker:8083", f"FatalError: {text}\n", None)
    herder.states[NAME] = ConnectorState(NAME, state(NAME).connector, {0: work}, "source")
    part = partition("t", 0, 1, state="FAILED", cause=text)
    harmless = Finding(task=f"{NAME}-0", what="w \udcff", text=text, count=1, harms=False)
    herder.snapshot = replace(
        snapshot("worker:8083", AB, part), problems={text: text}, findings=(harmless, harmless)
    )
    for path in ("", "/A->B", "/A->B/partitions", "/A->B/topics", "/A->B/lag"):
        reply = rig.ask("GET", f"/flows{path}")
        assert (reply.status, b"canary-value" in reply.content) == (200, False), path
    (found,) = rig.ask("GET", "/flows/A->B").json["notes"]  # of two workers that note alike
    assert found == f"{NAME}-0: w \\udcff: header \\udcff of [hidden]"


def test_what_failed_is_said_in_words_without_secrets(rig: Rig) -> None:
    herder = rig.herders[AB]
    trace = "FatalError: canary-value was refused; grant it\nCaused by: x"
    failed = WorkState(State.FAILED, "worker:8083", trace, None)
    running = state(NAME).connector
    herder.states[NAME] = ConnectorState(NAME, running, {0: failed}, "source")
    grant = "kafka-acls.sh --bootstrap-server b:9092 --add --operation Write --topic A.t"
    causes = [
        "too large; raise max.message.bytes",
        f"user mm may not Write topic A.t of cluster B; {grant}; or leave it out.",
        f"no broker of cluster B (b:9092) {UNREACHABLE}: {NO_CONNECTION} b:9092: refused; check it",
        f"a broker of the source A {NO_ANSWER}: closed; see kafka-transactions.sh find-hanging",
    ]
    broken = [partition("t", 1 + n, -1, state="FAILED", cause=it) for n, it in enumerate(causes)]
    herder.snapshot = snapshot("worker:8083", AB, *broken)
    found = rig.ask("GET", "/flows/A->B").json
    assert found["state"] == "FAILED"
    assert found["errors"] == [
        {"where": where, "message": message, "away": away, "command": command}
        for where, message, away, command in (
            (f"{NAME}-0", "[hidden] was refused; grant it", False, ""),
            ("t-1", causes[0], False, ""),
            ("t-2", causes[1], False, grant),
            ("t-3", causes[2], True, ""),
            ("t-4", causes[3], True, ""),
        )
    ]
    herder.states[NAME] = state(NAME)
    assert rig.ask("GET", "/flows/A->B").json["state"] == "DEGRADED"


@pytest.mark.parametrize(
    ("connector", "task", "node", "said"),
    [
        (State.PAUSED, State.PAUSED, "PAUSED", "PAUSED"),
        (State.STOPPED, None, "STOPPED", "STOPPED"),
        (State.RUNNING, State.RESTARTING, "RUNNING", "RESTARTING"),
        (State.RUNNING, State.UNASSIGNED, "RUNNING", "UNASSIGNED"),
        (State.RUNNING, State.RUNNING, "SUSPENDED", "SUSPENDED"),
        (State.RUNNING, State.RUNNING, "WAITING", "WAITING"),
    ],
)
def test_a_flow_is_as_well_as_its_worst_part(
    rig: Rig, connector: State, task: State | None, node: str, said: str
) -> None:
    herder = rig.herders[AB]
    work = state(NAME).connector
    tasks = {} if task is None else {0: replace(work, state=task)}
    herder.states[NAME] = ConnectorState(NAME, replace(work, state=connector), tasks, "source")
    if task is None:
        herder.info_now = lambda name: replace(FakeHerder.info_now(herder, name), tasks=())  # type: ignore[method-assign, type-var] # a connector without tasks
    herder.snapshot = replace(snapshot("worker:8083", AB), state=node)
    assert rig.ask("GET", "/flows/A->B").json["state"] == said


HAS_IT = "backfill j has it"
JOB = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)
LEASE = Lease(
    topic="t",
    partition=0,
    job="j",
    run=1,
    state=LeaseState.COPYING,
    start=0,
    end=9,
    position=1,
    lane=0,
)
RESERVED = replace(LEASE, state=LeaseState.RESERVED, lane=-1)
OF_ANOTHER = replace(LEASE, partition=1, lane=1)
OVER = replace(LEASE, state=LeaseState.HANDED_OVER)
DONE = replace(JOB, state=JobState.DONE)


@pytest.mark.parametrize(
    ("begins", "lives", "left_s", "said"),
    [
        ([LEASE], [JOB, LEASE], 200, ""),
        ([RESERVED], [JOB], 80, ""),  # lanes are being started
        ([RESERVED], [JOB], 100, f"{HAS_IT}, and no lane has copied it"),
        ([RESERVED], [JOB, OF_ANOTHER], 200, ""),  # its lane is to come
        ([LEASE], [], 7, ""),
        ([LEASE], [LEASE], 9, f"{HAS_IT}; {NO_DRIVER}"),
        ([LEASE], [JOB], 80, ""),
        ([LEASE], [JOB, OF_ANOTHER], 100, f"{HAS_IT}, and no lane has copied it"),
        ([LEASE], [JOB, replace(LEASE, cause="too large")], 9, f"{HAS_IT}: too large"),
        ([LEASE], [replace(JOB, state=JobState.PAUSED), LEASE], 9, f"{HAS_IT} and is paused"),
        ([replace(JOB, state=JobState.FAILED, cause="no Java")], [], 9, f"{HAS_IT} and failed (no Java)"),
        ([OVER], [JOB], 8, ""),
        ([OVER], [JOB], 12, "no job has it any more"),  # though its workers were to take it over
        ([OVER, DONE], [], 8, ""),
        ([OVER, DONE], [], 12, "no job has it any more"),
        ([], [JOB], 9, "no job has it any more"),
    ],
)  # fmt: skip
def test_a_partition_of_a_job_is_a_problem_once_nobody_copies_it(
    rig: Rig,
    begins: Sequence[BackfillRecord],
    lives: Sequence[BackfillRecord],
    left_s: int,
    said: str,
) -> None:
    herder = rig.herders[AB]
    clock = FakeClock()
    store = herder.backfill_store = BackfillStore(MemoryTable(MemoryTopic("backfill")), clock)

    async def pass_time() -> None:
        await store.start()
        await store.post([JOB, RESERVED, *begins] if begins else [JOB])
        await store.refresh()
        for _ in range(left_s):
            if lives:
                await store.post(lives)
            await store.refresh()
            await clock.advance(1)

    asyncio.run(pass_time())
    herder.show(partitions=(partition("t", 0, -1, state="HELD", cause=KEPT_OUT),))
    found = rig.ask("GET", "/flows/A->B").json
    assert found["state"] == ("DEGRADED" if said else "RUNNING")
    messages = [it["message"] for it in found["errors"]]
    assert len(messages) == bool(said)
    assert all(it.startswith(said) for it in messages)
    assert (found["lag_records"], found["lag_ms"], found["held_partitions"]) == (None, None, 1)


def test_what_a_worker_that_is_gone_wrote_last_does_not_run(rig: Rig) -> None:
    herder = rig.herders[AB]
    work = state(NAME).connector
    herder.states[NAME] = ConnectorState(
        NAME, work, {0: replace(work, worker_id="gone:1")}, "source"
    )
    found = rig.ask("GET", "/flows/A->B").json
    (task,) = found["connectors"][0]["tasks"]
    assert (found["state"], task["state"]) == ("UNASSIGNED", "UNASSIGNED")
    (error,) = found["errors"]
    assert error["where"] == f"{NAME}-0"
    assert "its worker gone:1 has left" in error["message"]
    herder.urls = (*herder.urls, "http://gone:1/")  # it has come back
    rig.peers.answers = {"http://gone:1/": snapshot("gone:1", AB)}
    assert rig.ask("GET", "/flows/A->B").json["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("source", "checkpoints", "said", "resting"),
    [
        # Connect's interface pauses each connector by itself.
        (State.PAUSED, State.RUNNING, "PAUSED", [NAME]),
        (State.STOPPED, State.PAUSED, "STOPPED", []),
        (State.RUNNING, State.PAUSED, "DEGRADED", ["MirrorCheckpointConnector"]),
        (State.RUNNING, State.RUNNING, "RUNNING", []),
    ],
)
def test_a_flow_whose_source_connector_rests_does_not_run_and_one_that_rests_is_named(
    rig: Rig, source: State, checkpoints: State, said: str, resting: list[str]
) -> None:
    herder = rig.herders[AB]
    herder.configs["MirrorCheckpointConnector"] = {"connector.class": "MirrorCheckpointConnector"}
    for name, rests in ((NAME, source), ("MirrorCheckpointConnector", checkpoints)):
        work = replace(state(name).connector, state=rests)
        herder.states[name] = ConnectorState(name, work, {0: work}, "source")
    found = rig.ask("GET", "/flows/A->B").json
    assert (found["state"], [it["where"] for it in found["errors"]]) == (said, resting)
    for it in found["errors"]:  # its remedies are of this flow, under names that the root knows
        assert f"PUT /connectors/A->B.{it['where']}/resume" in it["message"]
        assert "mm2py flow resume 'A->B'" in it["message"]


# -- changing properties


def test_a_change_is_kept_beside_the_file_and_stands_in_the_history(rig: Rig) -> None:
    body = {"config": {"topics": "orders.*", "tasks.max": "4"}}
    reply = rig.ask("PATCH", "/flows/A->B", body=body)
    assert reply.status == 200
    assert reply.json == {
        "flow": "A->B",
        "action": "change",
        "dry_run": False,
        "revision": 1,
        "changes": [
            {"key": f"{NAME}.tasks.max", "before": None, "after": "4"},
            {"key": f"{NAME}.topics", "before": ".*", "after": "orders.*"},
        ],
        "still_paused": [],
        "not_there": [],
        "topics": None,
    }
    assert rig.herders[AB].configs[NAME]["tasks.max"] == "4"
    (line,) = rig.ask("GET", "/flows/A->B/history").json
    assert (line["by"], line["action"], line["revision"]) == ("anonymous", "change", 1)
    (view,) = rig.ask("GET", "/flows/A->B/config").json
    by_key = {it["key"]: it for it in view["properties"]}
    assert (by_key["topics"]["value"], by_key["topics"]["file_value"]) == ("orders.*", ".*")
    assert by_key["topics"]["changed_by"] == "anonymous"
    assert by_key["connector.class"]["changed_by"] is None


def test_what_another_program_wrote_into_the_history_is_shown_without_its_secrets(rig: Rig) -> None:
    mask = rig.flow_parts.mask
    for key, text, shown in (
        ("override:ssl.password", "hunter2", HIDDEN),  # no such key: it names no connector
        ("later:thing", "xcanary-value", f"x{HIDDEN}"),
    ):
        wrote = Change(key=key, before=None, after=text)
        view = change_view(AB, wrote, mask)
        assert (view.before, view.after) == (None, shown)


def test_null_returns_a_property_to_the_file(rig: Rig) -> None:
    rig.add(AB, topics="orders")
    changed = {"config": {"topics": "other", "z": "1"}}
    assert rig.ask("PATCH", "/flows/A->B", body=changed).status == 200
    content = (
        b'{"connectors": {"MirrorSourceConnector":'
        b' {"topics": null, "x": "1.50", "y": "true", "z": null}}}'
    )
    headers = {"Content-Type": "application/json"}
    assert rig.ask("PATCH", "/flows/A->B", content=content, headers=headers).status == 200
    stored = rig.herders[AB].configs[NAME]
    assert (stored["x"], stored["y"], stored["topics"]) == ("1.50", "true", "orders")
    assert ("z" in stored, set(rig.stores[AB].state.overrides(NAME))) == (False, {"x", "y"})


def test_a_dry_run_says_the_same_and_writes_nothing(rig: Rig) -> None:
    body = {"config": {"topics": "orders.*"}}
    planned = rig.ask("PATCH", "/flows/A->B?dry_run=true", body=body).json
    assert (planned["dry_run"], planned["revision"]) == (True, None)
    for action in (
        "pause",
        "resume",
        "stop",
        "restart",
        "pause?topic=t",
        "pause?topic=t&partition=1",
    ):
        mark = "&" if "?" in action else "?"
        reply = rig.ask("POST", f"/flows/A->B/{action}{mark}dry_run=true")
        assert (reply.status, reply.json["dry_run"]) == (200, True)
    assert changes_of(rig.herders[AB]) == []
    assert rig.topics[AB].records == []
    done = rig.ask("PATCH", "/flows/A->B", body=body).json
    assert done["changes"] == planned["changes"]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"config": {"source.cluster.x": "1"}}, 400, "the file's"),
        ({"config": {"a.password": "other"}}, 400, "holds a secret"),
        ({"config": {"a.password": "[hidden]"}}, 400, "no such secret"),
        ({"config": {"name": "other"}}, 400, "cannot be changed"),
        ({"config": {"topiks": None}}, 400, "did you mean topics?"),
        ({"config": {"topics": "["}, "connectors": {}}, 400, "["),
        ({"connectors": {"Nobody": {"x": "1"}}}, 404, "Connector Nobody not found"),
        ({"config": {}}, 422, "nothing is to be changed"),
        ({}, 422, "nothing is to be changed"),
        ({"more": 1}, 422, "body.more"),
        ({"config": {"x": {"y": 1}}}, 422, "body.config.x"),
        ([], 422, "body"),
    ],
)
def test_a_refused_change_changes_nothing(rig: Rig, given: object, status: int, said: str) -> None:
    rig.add(AB, **{"replication.policy.class": IDENTITY})
    before = {name: dict(herder.configs[NAME]) for name, herder in rig.herders.items()}
    reply = rig.ask("PATCH", "/flows/A->B", body=given)
    assert (reply.status, said in reply.message) == (status, True), reply.message
    assert {name: dict(it.configs[NAME]) for name, it in rig.herders.items()} == before
    assert rig.topics[AB].records == []


def test_a_stored_secret_survives_its_masked_text(rig: Rig) -> None:
    rig.add(AB, **{"a.password": "${file:/s:p}"})
    (view,) = rig.ask("GET", "/flows/A->B/config").json
    shown = {it["key"]: it["value"] for it in view["properties"]}
    assert shown["a.password"] == "[hidden]"
    body = {"config": {"a.password": "[hidden]", "topics": "x"}}
    reply = rig.ask("PATCH", "/flows/A->B", body=body)
    assert [it["key"] for it in reply.json["changes"]] == [f"{NAME}.topics"]
    assert rig.herders[AB].configs[NAME]["a.password"] == "${file:/s:p}"


def test_what_the_validator_refuses_is_not_written(rig: Rig) -> None:
    rig.validator.refuses = "tasks.max: must be a number"
    reply = rig.ask("PATCH", "/flows/A->B", body={"config": {"tasks.max": "x"}})
    assert (reply.status, reply.message) == (400, "tasks.max: must be a number")
    assert untouched(rig)


def test_a_circle_that_was_there_before_does_not_forbid_other_changes(rig: Rig) -> None:
    rig.add(AB, **CIRCLING)
    rig.add(BA, **CIRCLING)
    reply = rig.ask("PATCH", "/flows/B->A", body={"config": {"tasks.max": "3"}})
    assert reply.status == 200


# -- states


@pytest.mark.parametrize("action", ["pause", "stop", "restart"])
def test_a_flow_is_paused_stopped_and_restarted(rig: Rig, action: str) -> None:
    reply = rig.ask("POST", f"/flows/A->B/{action}")
    assert (reply.status, reply.json["action"], reply.json["revision"]) == (200, action, 1)
    assert [call[:2] for call in rig.herders[AB].calls] == [(action, NAME)]
    assert changes_of(rig.herders[BA]) == []
    (line,) = rig.ask("GET", "/flows/A->B/history").json
    assert (line["action"], line["target"]) == (action, "A->B")


def test_a_flow_that_runs_is_resumed_and_an_equal_config_set_without_a_revision(rig: Rig) -> None:
    """Its connectors get the request, because what is known may be old; the history keeps what changed."""
    reply = rig.ask("POST", "/flows/A->B/resume")
    assert (reply.status, reply.json["changes"], reply.json["revision"]) == (200, [], None)
    assert [call[:2] for call in rig.herders[AB].calls] == [("resume", NAME)]
    assert rig.ask("GET", "/flows/A->B/history").json == []
    reply = rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": ".*"}})
    assert (reply.status, reply.json["changes"], reply.json["revision"]) == (200, [], None)
    assert rig.topics[AB].records == []


@pytest.mark.parametrize("flows", [5, 50])
def test_a_list_of_flows_looks_at_each_flow_a_few_times_however_many_there_are(flows: int) -> None:
    rig = Rig()
    for number in range(flows):
        rig.add(flow(f"A{number}", "B"))
    profile = cProfile.Profile()
    profile.enable()
    assert len(rig.ask("GET", "/flows").json) == flows
    profile.disable()
    looks = sum(
        it.callcount
        for it in profile.getstats()
        if getattr(it.code, "co_qualname", "") == "FlowState.present"
    )
    assert flows <= looks <= 8 * flows


def test_only_what_failed_is_restarted_on_request_also_a_task_of_which_a_partition_failed(
    rig: Rig,
) -> None:
    herder, restart = rig.herders[AB], "/flows/A->B/restart?only_failed=true"
    assert rig.ask("POST", restart).json["changes"] == []
    failed = replace(partition("t", 0, 7, state="FAILED", cause="too large"), task=f"{NAME}-0")
    herder.show(partitions=(failed,))
    reply = rig.ask("POST", restart)
    assert [it["key"] for it in reply.json["changes"]] == [f"{NAME}-0"]
    asked = [("restart", NAME, True, True)] * 2
    assert herder.calls == [*asked, ("restart_task", TaskId(NAME, 0))]


def test_a_pause_names_a_topic_that_no_task_copies_now(rig: Rig) -> None:
    """With a pattern any name is one that the flow copies once it is there: also a misspelt one."""
    rig.herders[AB].assigned = {0: "orders-0"}
    for change in ("pause", "resume"):
        rig.ask("POST", "/flows/A->B/resume?topic=ordres")
        reply = rig.ask("POST", f"/flows/A->B/{change}?topic=ordres")
        assert reply.json["not_there"] == ["ordres"]
    assert rig.ask("POST", "/flows/A->B/pause?topic=orders").json["not_there"] == []
    rig.herders[AB].assigned = {}  # of a flow without tasks nothing is known
    assert rig.ask("POST", "/flows/A->B/pause?topic=other").json["not_there"] == []


def test_one_topic_or_partition_is_paused_and_resumed(rig: Rig) -> None:
    store = rig.stores[AB]
    assert rig.ask("POST", "/flows/A->B/pause?topic=orders").status == 200
    assert rig.ask("POST", f"/flows/A->B/pause?topic=t&partition={LARGEST}").status == 200
    assert store.held() == {TopicPartition("orders", -1), TopicPartition("t", LARGEST)}
    assert rig.ask("GET", "/flows/A->B").json["paused"] == ["orders", f"t-{LARGEST}"]
    again = rig.ask("POST", "/flows/A->B/pause?topic=orders").json
    assert (again["changes"], again["revision"]) == ([], None)
    refused = rig.ask("POST", "/flows/A->B/resume?topic=orders&partition=1")
    assert (refused.status, "resume topic orders" in refused.message) == (400, True)
    assert rig.ask("POST", "/flows/A->B/resume?topic=orders").json["revision"] == 3
    assert rig.ask("POST", f"/flows/A->B/resume?topic=t&partition={LARGEST}").status == 200
    assert store.held() == frozenset()
    assert rig.herders[AB].calls == [("apply_holds",)] * 4


# -- other workers


def test_a_worker_that_does_not_lead_forwards_what_is_asked_of_it(rig: Rig) -> None:
    asked, network = follower(rig, AB)
    assert asked.ask("POST", "/flows/A->B/pause?topic=orders").status == 200
    assert rig.stores[AB].held() == {TopicPartition("orders", -1)}
    assert rig.ask("GET", "/flows/A->B/history").json[0]["by"] == "anonymous"
    assert asked.ask("GET", "/flows/A->B").json["paused"] == ["orders"]
    assert network.asked == [
        "POST /flows/A-%3EB/pause?topic=orders&forward=true",
        "GET /flows/A-%3EB?forward=true",
    ]


def test_lists_ask_each_leader_for_its_part(rig: Rig) -> None:
    asked, network = follower(rig, AB, BA)
    for herder in asked.herders.values():
        herder.show(worker="other:1", partitions=())
    assert [it["lag_records"] for it in asked.ask("GET", "/flows").json] == [7, 7]
    assert [it["topic"] for it in asked.ask("GET", "/lag").json] == ["t", "t"]
    assert len(network.asked) == 4


def test_a_list_names_the_leader_that_does_not_answer(rig: Rig) -> None:
    rig.herders[AB].elsewhere = ForwardError(None)
    first, second = rig.ask("GET", "/flows").json
    assert first["incomplete"][0].startswith("leader unknown: Cannot complete request momentarily")
    assert (first["lag_records"], second["incomplete"]) == (7, [])
    assert len(rig.ask("GET", "/lag").json) == 2
    assert rig.ask("GET", "/flows/A->B").status == 409
    reply = rig.ask("POST", "/flows/A->B/pause")
    assert (reply.status, reply.headers["retry-after"]) == (409, "1"), "it ends with the rebalance"


def test_a_signed_request_sees_the_flow_that_signed_it_alone(rig: Rig) -> None:
    app = internal_app(rig.parts)
    now_ms = rig.parts.clock.now_ms()

    def get(target: str) -> Reply:
        headers = {
            **sign_request(KEY, "GET", target, "w;operator", b"", now_ms),
            "X-Mm2py-Flow": "A/B",
        }
        return ask(app, "GET", target, headers=headers)

    assert [it["flow"] for it in get("/flows").json] == ["A->B"]
    assert get("/flows/B-%3EA").status == 404


# -- flow refusals ----------------------------------------------------------------------------------

SAME = {
    "replication.policy.class": IDENTITY_REPLICATION_POLICY,
    "topics": ".*",
    "loop.suppression": "off",
}


def untouched(rig: Rig) -> bool:
    return not changes_of(rig.herders[AB]) and not rig.topics[AB].records


@pytest.mark.parametrize(
    ("method", "target", "said"),
    [
        ("DELETE", "/flows/A->B?topics=back-1", "query.topics: unknown parameter; did you mean topic?"),
        ("POST", "/flows/A->B/pause?topics=x", "did you mean topic?"),
        ("POST", "/flows/A->B/pause?Topic=x", "did you mean topic?"),
        ("PATCH", "/flows/A->B?dryrun=true", "did you mean dry_run?"),
        ("POST", "/flows/A->B/rollback?revision=0&dryRun=true", "did you mean dry_run?"),
        ("POST", "/flows?dry-run=true", "did you mean dry_run?"),
        ("POST", "/flows/A->B/pause?topic=a&topic=b", "query.topic: given more than once"),
        ("DELETE", "/flows/A->B?dry_run=true&dry_run=false", "more than once"),
        ("GET", "/flows/A->B/config?revison=3", "did you mean revision?"),
        ("GET", "/flows?x=1", "known: none"),
        ("POST", "/flows/A->B/pause?topic=", "query"),
        ("POST", "/flows/A->B/pause?topic=a:b", "query"),
        ("POST", "/flows/A->B/pause?partition=1", "query"),
        ("POST", "/flows/A->B/pause?topic=t&partition=-1", "query"),
    ],
)  # fmt: skip
def test_a_query_that_does_not_fit_is_refused_and_changes_nothing(
    rig: Rig, method: str, target: str, said: str
) -> None:
    body: dict[str, Any] | None = {"config": {"topics": "x"}} if method == "PATCH" else None
    if target.startswith("/flows?dry"):
        body = {"source": "A", "target": "C"}
        rig.absent(flow("A", "C"))
    reply = rig.ask(method, target, body=body)
    assert (reply.status, said in reply.message) == (422, True), reply.message
    assert (untouched(rig), rig.opened) == (True, [])


@pytest.mark.parametrize("action", ["pause", "resume", "stop", "restart"])
def test_a_body_where_none_is_taken_is_refused_and_changes_nothing(rig: Rig, action: str) -> None:
    reply = rig.ask("POST", f"/flows/A->B/{action}", body={"topic": "x"})
    assert (reply.status, reply.message) == (422, "body: this request takes none")
    assert untouched(rig)
    assert rig.ask("POST", f"/flows/A->B/{action}", body={}).status == 200


@pytest.mark.parametrize(
    ("method", "target", "content"),
    [
        ("PATCH", "/flows/A->B", b'{"config": {"topics": "a", "topics": "b"}}'),
        ("PATCH", "/flows/A->B", b'{"config": {"topics": "a"}, "config": {}}'),
        ("PUT", f"/A/B/connectors/{NAME}/config", b'{"topics": "a", "topics": "b"}'),
    ],
)
def test_a_doubled_json_key_is_refused(rig: Rig, method: str, target: str, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    reply = rig.ask(method, target, content=content, headers=headers)
    assert (reply.status, "is there twice" in reply.message) == (400, True), reply.message
    assert untouched(rig)


@pytest.mark.parametrize("value", [5, 1.5, True, ["a"], {}])
def test_a_property_that_is_no_text_is_refused_with_its_name(rig: Rig, value: object) -> None:
    for key in ("config", "connectors"):
        given = {"topics": value} if key == "config" else {NAME: {"topics": value}}
        reply = rig.ask("PATCH", "/flows/A->B", body={key: given})
        refused = "topics: must be a text; given is " in reply.message
        assert (reply.status, refused) == (422, True)
    assert untouched(rig)


CANARY = "canary-of-nobody"


@pytest.mark.parametrize(
    ("method", "target", "body", "said"),
    [
        ("GET", "/lag?top=x", None, "query.top: must be a whole number; given is 'x'"),
        ("GET", "/lag?top=0", None, "query.top: must be at least 1; given is '0'"),
        ("GET", "/lag?top=1000000", None, "query.top: must be at most 100000; given is '1000000'"),
        ("POST", "/flows/A->B/pause?dry_run=maybe", None, "query.dry_run: must be true or false; given is 'maybe'"),
        ("POST", "/flows/A->B/rollback", None, "query.revision: is needed"),
        ("GET", "/flows/A->B/translate?topic=t&partition=0&offset=0&direction=x", None,
         "query.direction: must be one of 'to-target', 'to-source'; given is 'x'"),
        ("POST", "/flows", {"source": "", "target": "B"}, "body.source: must not be empty; given is a text"),
        ("POST", "/flows", {"source": 5, "target": "B"}, "body.source: must be a text; given is 5"),
        ("POST", "/flows", {"source": "A"}, "body.target: is needed"),
        ("POST", "/flows", {"source": "A", "target": "C", CANARY[:5]: CANARY}, "body.canar: is not known here; see /openapi.json"),
        ("PATCH", "/flows/A->B", {"config": {"a.password": [CANARY]}}, "body.config.a.password: must be a text; given is a list"),
        ("PATCH", "/flows/A->B", {"config": {"a.password": 1234567}}, "body.config.a.password: must be a text; given is a number"),
        ("PATCH", "/flows/A->B", {"config": {"": "x"}}, "body.config.: must not be empty; given is a text"),
        ("PATCH", "/flows/A->B", {"config": CANARY}, "body.config: must be a JSON object; given is a text"),
        ("PATCH", "/flows/A->B", [CANARY], "body: must be a JSON object; given is a list"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_our_words_with_what_is_right_and_no_secret(
    rig: Rig, method: str, target: str, body: object, said: str
) -> None:
    reply = rig.ask(method, target, body=body)
    assert (reply.status, reply.message) == (422, said)
    assert CANARY not in reply.message
    assert untouched(rig)


def test_in_connects_dialect_numbers_and_booleans_are_texts_as_in_java(rig: Rig) -> None:
    path = f"/A/B/connectors/{NAME}/config"
    config = rig.ask("GET", path).json
    body = {**config, "topics": 7, "x": True}
    assert rig.ask("PUT", path, body=body).status == 200
    headers = {"Content-Type": "application/json"}
    assert rig.ask("PATCH", path, content=b'{"y": 1.50, "z": 1e3}', headers=headers).status == 200
    found = rig.ask("GET", path).json
    assert [found[it] for it in ("topics", "x", "y", "z")] == ["7", "true", "1.50", "1e3"]


@pytest.mark.parametrize("query", ["dry_run=true", "dryrun=1", "dryRun"])
def test_a_dry_run_in_connects_dialect_is_refused_and_changes_nothing(rig: Rig, query: str) -> None:
    for method, path in (("DELETE", ""), ("PUT", "/pause"), ("POST", "/restart")):
        reply = rig.ask(method, f"/A/B/connectors/{NAME}{path}?{query}")
        assert (reply.status, "no dry run" in reply.message) == (400, True)
    assert untouched(rig)


@pytest.fixture(scope="module")
def circling() -> Iterator[PaperWorker]:
    with PaperWorker(dedicated=True, elsewhere={BA: [SAME]}) as worker:
        yield worker


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PATCH", "/flows/A->B", {"config": SAME}),
        ("PATCH", f"/A/B/connectors/{NAME}/config", SAME),
        ("PUT", f"/A/B/connectors/{NAME}/config", {**CONFIG, **SAME}),
        ("PUT", "/A/B/connectors/Mine/config", {**CONFIG, **SAME, "name": "Mine"}),
        ("POST", "/connectors", {"name": "A->B.Mine", "config": {**CONFIG, **SAME, "name": "A->B.Mine"}}),
    ],
)  # fmt: skip
def test_a_circle_is_refused_in_both_dialects(
    circling: PaperWorker, method: str, target: str, body: dict[str, object]
) -> None:
    reply = circling.send(httpx.Request(method, f"http://worker{target}", json=body))
    assert (reply.status_code, "in a circle" in reply.text) == (400, True), reply.text
    read = httpx.Request("GET", f"http://worker/A/B/connectors/{NAME}/config")
    assert "replication.policy.class" not in circling.send(read).text
