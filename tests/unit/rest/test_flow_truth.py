"""``/flows`` shows what is true: a flow that does not copy all it should is DEGRADED and says why."""

from dataclasses import replace
from typing import cast

import httpx
import pytest

from mm2py.flows.edits import patched
from mm2py.mirror.flow_overrides import HistoryEntry
from mm2py.observability.metrics import Finding
from mm2py.runtime.errors import ForwardError
from mm2py.runtime.herder.api import ConnectorInfo
from mm2py.runtime.tasks.task_context import KEPT_OUT
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import State
from tests.unit.rest.flow_fakes import AB, NAME, Leader, Rig, partition, snapshot
from tests.unit.rest.paper_worker import CONFIG, PaperWorker
from tests.unit.rest.rest_fakes import state


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB, topics="orders.*")
    return rig


def flow_of(rig: Rig) -> tuple[str, list[str]]:
    found = rig.ask("GET", "/flows/A->B").json
    return found["state"], [f"{it['where']}: {it['message']}" for it in found["errors"]]


def test_a_topic_that_cannot_be_created_degrades_its_flow(rig: Rig) -> None:
    herder = rig.herders[AB]
    assert herder.snapshot is not None
    problem = {f"{NAME}: topic t waits": "INVALID_REPLICATION_FACTOR canary-value"}
    herder.snapshot = replace(herder.snapshot, problems=problem)
    assert flow_of(rig) == (
        "DEGRADED",
        [f"{NAME}: topic t waits: INVALID_REPLICATION_FACTOR [hidden]"],
    )


def test_a_held_partition_degrades_its_flow(rig: Rig) -> None:
    stuck = partition("t", 0, 3, state="HELD", cause="broker 2 is away")
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, stuck)
    assert flow_of(rig) == ("DEGRADED", ["t-0: broker 2 is away"])


def test_a_partition_that_a_stream_has_degrades_no_flow_on_spark(rig: Rig) -> None:
    kept_out = partition("t", 0, 3, state="HELD", cause=KEPT_OUT)
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, kept_out)
    assert flow_of(rig)[0] == "DEGRADED"  # of a backfill
    rig.herders[AB].configs[NAME]["flow.engine"] = "spark"
    assert flow_of(rig) == ("RUNNING", [])
    stuck = partition("t", 0, 3, state="HELD", cause="broker 2 is away")
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, stuck)
    assert flow_of(rig) == ("DEGRADED", ["t-0: broker 2 is away"])


def without_tasks(herder: Leader) -> None:
    def info_now(name: str) -> ConnectorInfo | None:
        found = herder.configs.get(name)
        return None if found is None else ConnectorInfo(name, found, (), "source")

    herder.info_now = info_now  # type: ignore[method-assign] # a connector without tasks


def notes_of(rig: Rig) -> list[str]:
    notes: list[str] = rig.ask("GET", "/flows/A->B").json["notes"]
    return notes


def test_a_flow_that_matches_no_topic_is_running_and_notes_it(rig: Rig) -> None:
    assert notes_of(rig) == []
    herder = rig.herders[AB]
    text = "topics=ordes matches no topic of the source that this principal may see"
    note = Finding(task=NAME, what="topics", text=text, count=1, harms=False)
    herder.snapshot = replace(snapshot("worker:8083", AB), findings=(note,))
    assert flow_of(rig) == ("RUNNING", [])
    assert notes_of(rig) == [f"{NAME}: topics: {text}"]
    herder.snapshot = snapshot("worker:8083", AB)
    rig.herders[AB].configs[NAME]["enabled"] = "false"
    assert (flow_of(rig), notes_of(rig)) == (("DISABLED", []), [])


def test_a_flow_whose_task_configs_are_not_published_is_degraded(rig: Rig) -> None:
    herder = rig.herders[AB]
    without_tasks(herder)
    assert herder.snapshot is not None
    problem = {f"{NAME}: task configs are not published yet": "the target does not answer"}
    herder.snapshot = replace(herder.snapshot, problems=problem)
    degraded, (error,) = flow_of(rig)
    assert (degraded, "not published yet" in error, notes_of(rig)) == ("DEGRADED", True, [])


def test_a_flow_without_its_source_connector_is_degraded(rig: Rig) -> None:
    herder = rig.herders[AB]
    herder.configs.clear()
    herder.configs["MirrorHeartbeatConnector"] = {"connector.class": "x"}
    herder.states = {"MirrorHeartbeatConnector": state("MirrorHeartbeatConnector")}
    degraded, (error,) = flow_of(rig)
    assert (degraded, "no MirrorSourceConnector" in error) == ("DEGRADED", True)


def test_the_copy_of_a_topic_is_named_before_its_first_record(rig: Rig) -> None:
    idle = partition("orders", 0, 0, target=None)
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, idle)
    for rows in ("topics", "partitions"):
        assert [it["target_topic"] for it in rig.ask("GET", f"/flows/A->B/{rows}").json] == [
            "A.orders"
        ]


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ("RUNNING RUNNING", "RUNNING"),
        ("RUNNING HELD FAILED", "FAILED"),
        ("HELD HELD HELD", "HELD"),
        ("PAUSED HELD", "HELD"),
        ("PAUSED RUNNING", "PARTLY PAUSED"),
        ("PAUSED PAUSED", "PAUSED"),
    ],
)
def test_a_topic_has_the_worst_state_of_its_partitions(rig: Rig, states: str, worst: str) -> None:
    parts = [partition("t", n, 1, state=it) for n, it in enumerate(states.split())]
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, *parts)
    (topic,) = rig.ask("GET", "/flows/A->B/topics").json
    assert (topic["state"], topic["held_partitions"]) == (worst, states.count("HELD"))
    rig.herders[AB].assigned = {0: "t-77"}
    (topic,) = rig.ask("GET", "/flows/A->B/topics").json
    assert topic["state"] == (worst if worst in ("FAILED", "HELD") else "UNASSIGNED")


def test_a_flow_that_waits_at_start_is_described_with_its_cause_and_what_the_file_wants(
    rig: Rig,
) -> None:
    herder = rig.herders[AB]
    herder.configs.clear()
    herder.waits = "waits for target cluster B at b:1, 23 s now: user mm is refused"
    herder.elsewhere = ForwardError(None)
    assert herder.snapshot is not None
    problems = {"flow": herder.waits}
    herder.snapshot = replace(herder.snapshot, state="WAITING", partitions=(), problems=problems)
    found = rig.ask("GET", "/flows/A->B").json
    assert flow_of(rig) == ("WAITING", [f"flow: {herder.waits}"])
    assert (found["enabled"], found["incomplete"]) == (True, [])
    assert rig.ask("GET", "/flows").json == [found]
    asked = rig.ask("GET", "/flows/A->B/groups")
    assert (asked.status, asked.message) == (503, f"Flow A->B {herder.waits}")


def lags_of(rig: Rig) -> list[tuple[object, object]]:
    """Of the flow, and of its topic."""
    found = (rig.ask("GET", "/flows/A->B").json, rig.ask("GET", "/flows/A->B/lag").json[0])
    return [(it["lag_records"], it["lag_ms"]) for it in found]


def test_the_lag_is_unknown_while_no_worker_measures_an_assigned_partition(rig: Rig) -> None:
    """A task host that ended has taken its numbers with it, and the next one has none yet."""
    herder = rig.herders[AB]
    herder.assigned = {0: "t-0,t-1"}
    herder.snapshot = snapshot("worker:8083", AB, partition("t", 0, 0))
    assert lags_of(rig) == [(None, None)] * 2
    assert rig.ask("GET", "/flows/A->B").json["partitions"] == 2
    lost = rig.ask("GET", "/flows/A->B/partitions").json[1]
    assert (lost["state"], lost["task"], lost["lag_records"]) == ("UNASSIGNED", f"{NAME}-0", None)
    both = [partition("t", 0, 0), partition("t", 1, 5)]
    herder.snapshot = snapshot("worker:8083", AB, *both)
    assert lags_of(rig) == [(5, 50)] * 2


def test_the_lag_is_unknown_until_all_partitions_that_work_are_measured(rig: Rig) -> None:
    herder = rig.herders[AB]
    begins = partition("t", 1, -1)
    herder.snapshot = snapshot("worker:8083", AB, partition("t", 0, 0), begins)
    assert lags_of(rig) == [(None, None)] * 2
    failed = replace(begins, state="FAILED")
    herder.snapshot = snapshot("worker:8083", AB, partition("t", 0, 3), failed)
    assert lags_of(rig) == [(3, 30)] * 2, "failed_partitions says the rest"


# -- changes


def test_states_of_a_whole_flow_are_in_the_history_and_survive_a_rollback(rig: Rig) -> None:
    rig.ask("POST", "/flows/A->B/pause")
    line = rig.stores[AB].history()[0]
    assert isinstance(line, HistoryEntry)
    assert [(it.key, it.before, it.after) for it in line.changes] == [
        (f"state:{NAME}", "RUNNING", "PAUSED")
    ]
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "x"}})
    assert rig.ask("POST", "/flows/A->B/rollback?revision=0").status == 200
    assert rig.herders[AB].configs[NAME]["topics"] == "orders.*"


def test_a_stopped_flow_is_not_restarted(rig: Rig) -> None:
    herder = rig.herders[AB]
    stopped = replace(state(NAME).connector, state=State.STOPPED)
    herder.states[NAME] = replace(state(NAME), connector=stopped, tasks={})
    reply = rig.ask("POST", "/flows/A->B/restart")
    assert (reply.status, reply.message) == (409, "Flow A->B is STOPPED; resume it instead")
    assert ("restart", NAME, False, True) not in herder.calls


def test_a_partition_that_the_topic_does_not_have_cannot_be_paused(rig: Rig) -> None:
    rig.herders[AB].assigned = {0: "orders-0,orders-1"}
    reply = rig.ask("POST", "/flows/A->B/pause?topic=orders&partition=99")
    assert (reply.status, "has no partition 99" in reply.message) == (404, True)
    assert rig.ask("POST", "/flows/A->B/pause?topic=orders&partition=1").status == 200


def test_a_resumed_flow_names_what_stays_paused_and_resumes_it_on_request(rig: Rig) -> None:
    rig.ask("POST", "/flows/A->B/pause?topic=orders")
    assert rig.ask("POST", "/flows/A->B/resume?dry_run=true").json["still_paused"] == ["orders"]
    assert rig.ask("POST", "/flows/A->B/resume").json["still_paused"] == ["orders"]
    reply = rig.ask("POST", "/flows/A->B/resume?all_topics=true").json
    assert (reply["still_paused"], rig.stores[AB].held()) == ([], frozenset())
    assert {"key": "orders", "before": "paused", "after": "running"} in reply["changes"]
    assert rig.ask("POST", "/flows/A->B/resume?topic=orders&all_topics=true").status == 422


def test_an_unknown_property_is_refused_with_the_near_one(rig: Rig) -> None:
    reply = rig.ask("PATCH", "/flows/A->B", body={"config": {"topiks": "x"}})
    assert (reply.status, "did you mean topics?" in reply.message) == (400, True)
    assert rig.ask("PATCH", "/flows/A->B", body={"config": {"topiks": None}}).status == 200
    rig.add(AB, topiks="from the file")
    assert rig.ask("PATCH", "/flows/A->B", body={"config": {"topiks": "x"}}).status == 200


def test_a_property_of_the_flow_reaches_the_connector_that_reads_it_and_no_other_takes_it(
    rig: Rig,
) -> None:
    key, reader = "emit.heartbeats.interval.seconds", "MirrorHeartbeatConnector"
    reply = rig.ask("PATCH", "/flows/A->B", body={"connectors": {NAME: {key: "2"}}})
    assert (reply.status, f"set it on {reader}" in reply.message) == (400, True)
    files = cast("dict[str, ConnectorConfig]", rig.files[AB])
    files[reader] = {"name": reader, "connector.class": reader}
    reply = rig.ask("PATCH", "/flows/A->B", body={"config": {key: "2", "topics": "orders"}})
    assert reply.status == 200
    changed = {it["key"] for it in reply.json["changes"]}
    assert changed == {f"{reader}.{key}", f"{NAME}.topics"}


# -- revisions


def test_a_change_of_a_flow_that_was_changed_meanwhile_is_a_412(rig: Rig) -> None:
    tag = rig.ask("GET", "/flows/A->B").headers["etag"]
    assert tag == rig.ask("GET", "/flows/A->B/config").headers["etag"] == '"0"'
    body = {"config": {"tasks.max": "2"}}
    first = rig.ask("PATCH", "/flows/A->B", body=body, headers={"If-Match": tag})
    assert (first.status, rig.ask("GET", "/flows/A->B").headers["etag"]) == (200, '"1"')
    for method, path, given in (
        ("PATCH", "", {"config": {"tasks.max": "3"}}),
        ("POST", "/pause", None),
        ("POST", "/pause?topic=orders", None),
        ("POST", "/rollback?revision=0", None),
        ("DELETE", "", None),
    ):
        reply = rig.ask(method, f"/flows/A->B{path}", body=given, headers={"If-Match": tag})
        assert (reply.status, "at revision 1, not 0" in reply.message) == (412, True), path
    assert rig.stores[AB].revision == 1
    assert [call for call in rig.herders[AB].calls if call[0] == "pause"] == []
    assert rig.ask("POST", "/flows/A->B/pause", headers={"If-Match": "*"}).status == 200
    assert rig.ask("POST", "/flows/A->B/pause", headers={"If-Match": "x"}).status == 422


class ChangedBeside(Leader):
    """Somebody else's change is written while a pause is carried out, as over another worker."""

    async def pause(self, name: str, *, actor: str) -> None:
        await super().pause(name, actor=actor)
        assert self.store is not None
        changed = patched({name: {"tasks.max": "2"}}, {})
        await self.store.edit("patch", name, changed, actor="beside")


def test_a_pause_that_is_done_is_no_412_and_is_in_the_history(rig: Rig) -> None:
    before, store = rig.herders[AB], rig.stores[AB]
    now = rig.herders[AB] = ChangedBeside(AB, store=store)
    now.configs, now.states, now.snapshot = before.configs, before.states, before.snapshot
    reply = rig.ask("POST", "/flows/A->B/pause", headers={"If-Match": '"0"'})
    assert (reply.status, reply.json["revision"]) == (200, 2)
    assert [it.action for it in store.history()] == ["pause", "patch"]


def test_a_config_that_was_changed_meanwhile_is_a_412_in_connects_dialect(rig: Rig) -> None:
    path = f"/A/B/connectors/{NAME}/config"
    tag = rig.ask("GET", path).headers["etag"]
    assert tag == rig.ask("GET", f"/connectors/A-%3EB.{NAME}/config").headers["etag"]
    config = rig.ask("GET", path).json
    done = rig.ask("PUT", path, body={**config, "tasks.max": "2"}, headers={"If-Match": tag})
    assert (done.status, done.headers["etag"] != tag) == (200, True)
    for method, given in (("PUT", config), ("PATCH", {"tasks.max": "3"})):
        assert rig.ask(method, path, body=given, headers={"If-Match": tag}).status == 412
    target = f"/A/B/connectors/{NAME}"
    assert rig.ask("DELETE", target, headers={"If-Match": tag}).status == 412
    assert rig.herders[AB].configs[NAME]["tasks.max"] == "2"
    latest = rig.ask("GET", path).headers["etag"]
    assert rig.ask("DELETE", target, headers={"If-Match": latest}).status == 204


def test_a_refusal_that_ends_with_the_rebalance_says_when_to_retry(rig: Rig) -> None:
    rig.herders[AB].elsewhere = ForwardError(None)
    reply = rig.ask("POST", "/flows/A->B/pause")
    assert (reply.status, reply.headers["retry-after"]) == (409, "1")


def test_validate_answers_200_with_the_error_at_the_key_that_may_not_come_from_outside() -> None:
    with PaperWorker(dedicated=True) as worker:
        given = {
            **CONFIG,
            "topics": "${env:CANARY}",
            "producer.override.ssl.engine.factory.class": "x.Y",
        }
        path = f"/A/B/connector-plugins/{NAME}/config/validate"
        reply = worker.send(httpx.Request("PUT", f"http://worker{path}", json=given))
    assert (reply.status_code, reply.json()["error_count"]) == (200, 2)
    errors = {
        it["value"]["name"]: it["value"]["errors"]
        for it in reply.json()["configs"]
        if it["value"] and it["value"]["errors"]
    }
    assert "uses a config provider" in errors["topics"][0]
    assert "would load code" in errors["producer.override.ssl.engine.factory.class"][0]
    assert "CANARY" not in reply.text
