"""Changes of flows over fakes, and ``/flows`` shows the truth: a flow that does not copy all it should is DEGRADED and says why."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import httpx
import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.connect_definitions import ConfigInfos
from mm2py.errors import ConfigError, RequestTimedOutError
from mm2py.flows.changes import ChangeRequest, FlowChanges
from mm2py.flows.edits import patched
from mm2py.flows.flow_offsets import stored_changes
from mm2py.mirror.flow_overrides import (
    FlowEntry,
    HistoryEntry,
    Presence,
    Revision,
    encode_flow_record,
    flows_topic,
)
from mm2py.observability.metrics import KEPT_OUT, Finding
from mm2py.protocol.records import NewRecord, Record, encode_batch
from mm2py.rest.app import internal_app
from mm2py.runtime.errors import ForwardError
from mm2py.runtime.group.request_signing import new_session_key
from mm2py.runtime.herder.api import ConnectorInfo
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName, State, TargetState, TaskId, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.rest.flow_fakes import (
    AB,
    BA,
    CHECKPOINTS,
    IDENTITY,
    LEADER,
    NAME,
    Leader,
    Network,
    Rig,
    changes,
    follower,
    partition,
    snapshot,
)
from tests.unit.rest.paper_worker import CONFIG, PaperWorker
from tests.unit.rest.rest_fakes import PLACEHOLDER, flow, state

AC = flow("A", "C")
CREATE: dict[str, object] = {"source": "A", "target": "C"}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    rig.absent(AC)
    return rig


# -- create


def test_a_flow_is_created_with_the_files_properties_and_what_the_body_says(rig: Rig) -> None:
    body = {**CREATE, "config": {"topics": "orders.*", "tasks.max": "2"}}
    planned = rig.ask("POST", "/flows?dry_run=true", body=body)
    assert (planned.status, rig.opened) == (200, []), "nothing is started to say what would be"
    reply = rig.ask("POST", "/flows", body=body)
    assert (reply.status, reply.json["revision"]) == (201, 1)
    assert changes(reply) == changes(planned) == {
        "A->C": (None, "added"),
        f"{NAME}.enabled": ("false", "true"),
        f"{NAME}.tasks.max": (None, "2"),
        f"{NAME}.topics": (".*", "orders.*"),
    }  # fmt: skip
    assert rig.herders[AC].configs[NAME]["topics"] == "orders.*"
    view = rig.ask("GET", "/flows/A->C").json
    assert (view["enabled"], view["revision"], view["since_ms"]) == (True, 1, 5)
    assert rig.ask("POST", "/flows", body=body).status == 409


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"source": "A", "target": "X"}, 400, "No flow A->X can run here"),
        ({"source": "A", "target": "A"}, 400, "clusters come from the file"),
        ({**CREATE, "config": {"topics": "["}}, 400, "["),
        ({**CREATE, "config": {"enabled": "false"}}, 400, "enabled"),
        ({**CREATE, "config": {"source.cluster.x": "1"}}, 400, "the file's"),
        ({**CREATE, "config": {"a.password": "x"}}, 400, "holds a secret"),
        ({**CREATE, "connectors": {"Nobody": {}}}, 404, "Connector Nobody not found"),
        ({"source": "A", "target": "B"}, 409, "exists already"),
        ([], 422, "body"),
    ],
)
def test_a_refused_creation_starts_and_writes_nothing(
    rig: Rig, given: object, status: int, said: str
) -> None:
    rig.absent(AC, **{"replication.policy.class": IDENTITY})
    reply = rig.ask("POST", "/flows", body=given)
    assert (reply.status, said in reply.message) == (status, True), reply.message
    assert (rig.opened, rig.topics[AB].records) == ([], [])


def test_a_flow_of_heartbeats_alone_begins_to_copy_and_where_those_cannot_go_on_it_can_be_repeated(
    rig: Rig,
) -> None:
    herder, body = rig.add(BA, enabled="false"), {"source": "B", "target": "A"}
    assert rig.ask("GET", "/flows/B->A").json["enabled"] is False
    herder.targets[NAME] = TargetState.PAUSED
    herder.refusal = RequestTimedOutError("the target did not answer")
    assert (rig.ask("POST", "/flows", body=body).status, rig.stores[BA].state.revision) == (503, 0)
    herder.refusal = None
    reply = rig.ask("POST", "/flows", body=body)
    assert changes(reply) == {
        "B->A": (None, "added"),
        f"{NAME}.enabled": ("false", "true"),
        NAME: ("PAUSED", "RUNNING"),
    }
    assert herder.targets[NAME] is TargetState.STARTED


def test_a_dry_run_knows_what_another_worker_has_just_made_or_deleted(rig: Rig) -> None:
    other = Rig()
    other.absent(AC)
    assert other.ask("POST", "/flows", body=CREATE).status == 201
    rig.topics[AC] = other.topics[AC]
    assert rig.ask("POST", "/flows?dry_run=true", body=CREATE).status == 409
    other.ask("DELETE", "/flows/A->C")
    planned = rig.ask("POST", "/flows?dry_run=true", body=CREATE)
    assert rig.opened == []
    done = rig.ask("POST", "/flows", body=CREATE)
    assert changes(planned) == changes(done)
    assert changes(done)["A->C"] == ("deleted", "added")


async def test_what_is_kept_of_a_flow_is_read_from_its_target_which_is_not_its_source() -> None:
    revision = Revision(number=1, by="anna", at_ms=1)
    key, value = encode_flow_record(FlowEntry(state=Presence.ADDED, revision=revision))
    topic = TopicPartition(flows_topic("A"), 0)

    async def stored(name: FlowName, source: FakeBroker, target: FakeBroker) -> Sequence[Record]:
        ends = {"source": source, "target": target}
        config = {
            f"{it}.cluster.bootstrap.servers": f"127.0.0.1:{end.port}" for it, end in ends.items()
        }
        return await stored_changes(name, config, SYSTEM_CLOCK)

    async with FakeBroker() as a, FakeBroker(topics={topic.topic: 1}) as b:
        b.append(topic, bytes(encode_batch([NewRecord(key, value, timestamp=1)])))
        assert [(it.key, it.value) for it in await stored(AB, a, b)] == [(key, value)]
        assert list(await stored(BA, b, a)) == []
        with pytest.raises(ConfigError, match="are one cluster"):
            await stored(AB, b, b)


# -- delete


def test_a_deleted_flow_is_gone_until_it_is_created_again(rig: Rig) -> None:
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "orders"}})
    rig.ask("POST", "/flows/A->B/pause?topic=orders")
    planned = rig.ask("DELETE", "/flows/A->B?dry_run=true")
    assert rig.ask("GET", "/flows/A->B").status == 200
    reply = rig.ask("DELETE", "/flows/A->B")
    assert changes(reply) == changes(planned) == {
        "A->B": (None, "deleted"),
        f"{NAME}.topics": ("orders", ".*"),
        "orders": ("paused", "running"),
    }  # fmt: skip
    assert rig.herders[AB].configs == {}
    assert rig.ask("GET", "/flows").json == []
    with pytest.raises(Exception, match="POST /flows"):
        asyncio.run(rig.stores[AB].record(NAME, None, {"topics": "x"}, actor="anna"))
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause")):
        body = {"config": {"topics": "x"}} if method == "PATCH" else None
        reply = rig.ask(method, f"/flows/A->B{path}", body=body)
        assert (reply.status, "mm2py flow create 'A->B'" in reply.message) == (404, True)
    again = rig.ask("POST", "/flows", body={"source": "A", "target": "B"})
    assert changes(again) == {"A->B": ("deleted", "added")}
    assert rig.herders[AB].configs[NAME]["topics"] == ".*"
    assert rig.stores[AB].held() == frozenset()


class Resigned(Leader):
    """Another worker leads from the moment at which a deletion is recorded."""

    async def delete(
        self, name: str, *, actor: str, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        raise ForwardError(LEADER)


def test_a_deletion_that_the_next_leader_completes_is_no_404_of_that_one(rig: Rig) -> None:
    before, store = rig.herders[AB], rig.stores[AB]
    now = rig.herders[AB] = Resigned(AB, store=store)
    now.configs, now.states, now.snapshot = before.configs, before.states, before.snapshot
    reply = rig.ask("DELETE", "/flows/A->B")
    assert (reply.status, reply.json["revision"]) == (200, 1)
    assert store.state.presence is Presence.DELETED


@pytest.mark.parametrize(
    ("topics", "exclude", "wanted"),
    [
        ("orders,payments", None, {"topics": ("orders,payments", "payments")}),
        ("orders.*", "x", {"topics.exclude": ("x", "x,orders")}),
        (
            "orders, o.*",
            "x",
            {"topics": ("orders, o.*", "o.*"), "topics.exclude": ("x", "x,orders")},
        ),
    ],
)
def test_one_topic_is_taken_out(
    rig: Rig, topics: str, exclude: str | None, wanted: dict[str, tuple[str, str]]
) -> None:
    rig.add(AB, topics=topics, **({} if exclude is None else {"topics.exclude": exclude}))
    reply = rig.ask("DELETE", "/flows/A->B?topic=orders")
    assert reply.json["action"] == "remove-topic"
    assert changes(reply) == {f"{NAME}.{key}": texts for key, texts in wanted.items()}
    assert rig.ask("DELETE", "/flows/A->B?topic=orders").status == 404


@pytest.mark.parametrize("own", ["orders,payments", "orders", None])
def test_connectors_with_the_same_list_lose_the_topic_too(rig: Rig, own: str | None) -> None:
    rig.beside = {CHECKPOINTS: {} if own is None else {"topics": own}}
    rig.add(AB, topics="orders,payments")
    found = changes(rig.ask("DELETE", "/flows/A->B?topic=orders"))
    wanted = [NAME, CHECKPOINTS] if own == "orders,payments" else [NAME]
    assert found == {f"{it}.topics": ("orders,payments", "payments") for it in sorted(wanted)}


@pytest.mark.parametrize(
    ("query", "status"),
    [("topic=orders", 400), ("topic=other", 404), ("topic=orders&partition=0", 400)],
)
def test_what_cannot_be_taken_out_is_said(rig: Rig, query: str, status: int) -> None:
    rig.add(AB, topics="orders")
    reply = rig.ask("DELETE", f"/flows/A->B?{query}")
    assert (reply.status, rig.topics[AB].records) == (status, [])


# -- rollback


def test_a_flow_goes_back_to_any_revision_that_can_be_seen_before_in_one_new_one(rig: Rig) -> None:
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "one", "tasks.max": "3"}})
    rig.ask("POST", "/flows/A->B/pause?topic=one")
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "two", "tasks.max": None}})
    for revision, topics in ((0, ".*"), (1, "one"), (3, "two")):
        (view,) = rig.ask("GET", f"/flows/A->B/config?revision={revision}").json
        (shown,) = (it for it in view["properties"] if it["key"] == "topics")
        assert (shown["value"], shown["file_value"]) == (topics, ".*")
    assert rig.ask("GET", "/flows/A->B/config?revision=4").status == 404
    planned = rig.ask("POST", "/flows/A->B/rollback?revision=1&dry_run=true")
    reply = rig.ask("POST", "/flows/A->B/rollback?revision=1")
    assert reply.json["revision"] == 4
    assert changes(reply) == changes(planned) == {
        f"{NAME}.tasks.max": (None, "3"),
        f"{NAME}.topics": ("two", "one"),
        "one": ("paused", "running"),
    }  # fmt: skip
    assert rig.herders[AB].configs[NAME]["topics"] == "one"
    assert rig.stores[AB].held() == frozenset()
    rig.ask("POST", "/flows/A->B/rollback?revision=3")
    assert rig.herders[AB].configs[NAME]["topics"] == "two"
    assert rig.stores[AB].held() == {TopicPartition("one", -1)}
    assert rig.ask("POST", "/flows/A->B/rollback?revision=0").status == 200
    assert rig.stores[AB].state.overrides(NAME) == {}
    (newest, *former) = rig.ask("GET", "/flows/A->B/history").json
    assert (newest["action"], newest["target"]) == ("rollback", "revision 0")
    # In the words of the plan, not in the keys of the topic.
    keys = [it["key"] for line in (newest, *former) for it in line["changes"]]
    assert set(keys) == {f"{NAME}.topics", f"{NAME}.tasks.max", "one"}


def test_no_way_leads_back_to_what_only_the_file_may_set(rig: Rig) -> None:
    """It may have been in a former file, or its config provider have been allowed."""
    store = rig.stores[AB]

    async def former() -> None:
        for text in ("1", "2"):
            await store.edit("x", "x", patched({NAME: {"source.cluster.x": text}}, {}), actor="x")

    asyncio.run(former())
    reply = rig.ask("POST", "/flows/A->B/rollback?revision=1")
    assert (reply.status, reply.message) == (400, "source.cluster.* is the file's")
    assert store.state.revision == 2


@pytest.mark.parametrize(
    ("change", "starting", "stopping"),
    [
        ({"topics": "orders,bills"}, ["bills"], ["t-1", "t-2"]),
        ({"topics.exclude": "t-.*"}, [], ["t-1", "t-2"]),
        ({"topics": "orders|t-."}, [], []),
        ({"topics": f"orders, t-.*, {PLACEHOLDER}"}, ["bills"], []),
        ({"enabled": "false"}, [], ["orders", "t-1", "t-2"]),
    ],
)
def test_a_dry_run_names_the_topics_that_begin_and_end_to_be_copied(
    rig: Rig, change: dict[str, str], starting: list[str], stopping: list[str]
) -> None:
    rig.add(AB, topics="orders, t-.*")
    rig.listed = ["orders", "bills", "t-1", "t-2", "__own", "B.t-3", "mm2-offset-syncs.B.internal"]
    body = {"connectors": {NAME: change}}
    found = rig.ask("PATCH", "/flows/A->B?dry_run=true", body=body).json["topics"]
    assert (found["starts"], found["starting"]) == (len(starting), starting)
    assert (found["stops"], found["stopping"]) == (len(stopping), stopping)
    rig.listed = None
    planned = rig.ask("PATCH", "/flows/A->B?dry_run=true", body=body)
    assert (planned.status, planned.json["topics"]) == (200, None)
    rig.listed = [f"orders-{n}" for n in range(150)]
    wider = {"config": {"topics": "orders-.*", "tasks.max": "2"}}
    found = rig.ask("PATCH", "/flows/A->B?dry_run=true", body=wider).json["topics"]
    assert (found["starts"], len(found["starting"]), found["stops"]) == (150, 100, 0)
    other = {"config": {"tasks.max": "2"}}
    for query, asked in (("?dry_run=true", other), ("", wider)):
        assert rig.ask("PATCH", f"/flows/A->B{query}", body=asked).json["topics"] is None


def test_a_flow_that_a_change_enables_is_one_that_people_added(rig: Rig) -> None:
    """So it is there, too, under a file that does not run the pair for its heartbeats."""
    rig.add(BA, enabled="false")
    for enabled, presence in (("false", None), ("true", Presence.ADDED)):
        body = {"config": {"enabled": enabled, "topics": enabled}}
        assert rig.ask("PATCH", "/flows/B->A", body=body).status == 200
        assert rig.stores[BA].state.presence is presence


async def test_a_change_that_waited_while_the_flow_was_deleted_is_refused(rig: Rig) -> None:
    changes = FlowChanges(rig.flow_parts)
    asked = ChangeRequest(AB, "anna", dry_run=False)
    done = await asyncio.gather(
        changes.delete(asked), changes.patch(asked, {NAME: {"topics": "x"}}),
        return_exceptions=True,
    )  # fmt: skip
    assert not isinstance(done[0], BaseException)
    assert (done[0].revision or 0, getattr(done[1], "status", 200)) == (1, 404)
    assert rig.stores[AB].state.overrides(NAME) == {}


def test_a_flow_whose_cluster_does_not_answer_holds_up_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add(BA)
    answers, asked = asyncio.Event(), asyncio.Event()

    async def away(timeout_s: float) -> None:
        asked.set()
        await answers.wait()

    async def play() -> None:
        changes = FlowChanges(rig.flow_parts)
        slow, other = (ChangeRequest(it, "anna", dry_run=False) for it in (AB, BA))
        held = asyncio.create_task(changes.patch(slow, {NAME: {"topics": "x"}}))
        async with asyncio.timeout(90):
            await asked.wait()
            assert (await changes.patch(other, {NAME: {"topics": "y"}})).revision == 1
            assert not held.done()
        answers.set()
        assert (await held).revision == 1

    monkeypatch.setattr(rig.tables[AB], "read_to_end", away)
    asyncio.run(play())


def test_where_there_is_nothing_to_go_back_to_it_is_said(rig: Rig) -> None:
    assert rig.ask("POST", "/flows/A->B/rollback?revision=1").status == 404
    rig.ask("POST", "/flows", body=CREATE)
    refused = rig.ask("POST", "/flows/A->C/rollback?revision=0")
    assert (refused.status, "did not exist at revision 0" in refused.message) == (400, True)
    for revision in (-1, "x"):
        assert rig.ask("POST", f"/flows/A->B/rollback?revision={revision}").status == 422


# -- one topic or partition


def test_the_tasks_that_have_a_topic_restart_where_they_run(rig: Rig) -> None:
    herder = rig.herders[AB]
    herder.assigned = {0: "t-0,t-1", 1: "u-0", 2: "t-2"}
    owner = Rig()
    owner.add(AB)
    network = Network(internal_app(owner.parts))
    rig.client = network.client
    rig.ask("POST", "/flows/A->B/restart?topic=t&dry_run=true")
    assert ("restart_task", TaskId(NAME, 0)) not in herder.calls
    herder.owner = {2: ForwardError(LEADER)}
    reply = rig.ask("POST", "/flows/A->B/restart?topic=t")
    assert list(changes(reply)) == [f"{NAME}-0", f"{NAME}-2"]
    assert ("restart_task", TaskId(NAME, 0)) in herder.calls
    assert network.asked == [f"POST /pairs/A/B/connectors/{NAME}/tasks/2/restart?forward=true"]
    one = rig.ask("POST", "/flows/A->B/restart?topic=u&partition=0")
    assert list(changes(one)) == [f"{NAME}-1"]
    assert rig.ask("POST", "/flows/A->B/restart?topic=nobody").status == 404


# -- other workers


def test_a_creation_is_forwarded_to_who_leads_the_flow(rig: Rig) -> None:
    rig.add(BA, enabled="false")
    asked, network = follower(rig, BA, enabled="false")
    reply = asked.ask("POST", "/flows", body={"source": "B", "target": "A"})
    assert reply.status == 201
    assert network.asked == ["POST /flows?forward=true"]
    assert rig.stores[BA].state.revision == 1


@pytest.mark.parametrize("action", ["stop", "resume"])
def test_a_dry_run_goes_to_who_leads_the_flow_too_and_changes_nothing(
    rig: Rig, action: str
) -> None:
    asked, network = follower(rig, AB)
    before = dict(rig.herders[AB].states)
    reply = asked.ask("POST", f"/flows/A->B/{action}?dry_run=true")
    assert (reply.status, reply.json["dry_run"]) == (200, True)
    (sent,) = network.asked
    assert sent.endswith(f"/{action}?dry_run=true&forward=true")
    assert (rig.herders[AB].states, rig.stores[AB].state.revision) == (before, 0)


def test_who_stops_leading_while_a_change_is_checked_writes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who lead, one after the other, must not give one number to two changes."""
    errors = rig.validator.validate

    async def resign(config: ConnectorConfig, *, plugin: str | None = None) -> ConfigInfos:
        rig.herders[AB].elsewhere = ForwardError(None)
        return await errors(config, plugin=plugin)

    monkeypatch.setattr(rig.validator, "validate", resign)
    assert rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "x"}}).status == 409
    assert rig.topics[AB].records == []


def test_a_suspended_leader_changes_nothing_and_says_what_it_waits_for(rig: Rig) -> None:
    rig.herders[AB].show(state="SUSPENDED")
    reply = rig.ask("DELETE", "/flows/A->B")
    assert reply.status == 409
    assert "flow A->B is SUSPENDED: the target does not answer" in reply.message
    assert rig.topics[AB].records == []


# -- flow truth -------------------------------------------------------------------------------------


@pytest.fixture
def orders() -> Rig:
    orders = Rig()
    orders.add(AB, topics="orders.*")
    return orders


def flow_of(orders: Rig) -> tuple[str, list[str]]:
    found = orders.ask("GET", "/flows/A->B").json
    return found["state"], [f"{it['where']}: {it['message']}" for it in found["errors"]]


def test_a_held_partition_degrades_its_flow_on_spark_too_but_under_a_stream(orders: Rig) -> None:
    kept_out = partition("t", 0, 3, state="HELD", cause=KEPT_OUT)
    orders.herders[AB].show(partitions=(kept_out,))
    assert flow_of(orders)[0] == "DEGRADED"  # no job is known to have it
    orders.herders[AB].configs[NAME]["flow.engine"] = "spark"
    assert flow_of(orders) == ("RUNNING", [])
    stuck = partition("t", 0, 3, state="HELD", cause="broker 2 is away")
    orders.herders[AB].show(partitions=(stuck,))
    assert flow_of(orders) == ("DEGRADED", ["t-0: broker 2 is away"])


def without_tasks(herder: Leader) -> None:
    def info_now(name: str) -> ConnectorInfo | None:
        found = herder.configs.get(name)
        return None if found is None else ConnectorInfo(name, found, (), "source")

    herder.info_now = info_now  # type: ignore[method-assign] # a connector without tasks


def notes_of(orders: Rig) -> list[str]:
    notes: list[str] = orders.ask("GET", "/flows/A->B").json["notes"]
    return notes


def test_a_flow_that_matches_no_topic_is_running_and_notes_it(orders: Rig) -> None:
    assert notes_of(orders) == []
    herder = orders.herders[AB]
    text = "topics=ordes matches no topic of the source that this principal may see"
    note = Finding(task=NAME, what="topics", text=text, count=1, harms=False)
    herder.snapshot = replace(snapshot("worker:8083", AB), findings=(note,))
    assert flow_of(orders) == ("RUNNING", [])
    assert notes_of(orders) == [f"{NAME}: topics: {text}"]
    herder.snapshot = snapshot("worker:8083", AB)
    orders.herders[AB].configs[NAME]["enabled"] = "false"
    assert (flow_of(orders), notes_of(orders)) == (("DISABLED", []), [])


def test_a_flow_with_a_topic_that_is_not_created_or_without_task_configs_is_degraded(
    orders: Rig,
) -> None:
    herder = orders.herders[AB]
    herder.show(problems={f"{NAME}: topic t waits": "INVALID_CONFIG canary-value"})
    said = f"{NAME}: topic t waits: INVALID_CONFIG [hidden]"
    assert flow_of(orders) == ("DEGRADED", [said])
    without_tasks(herder)
    herder.show(
        problems={f"{NAME}: task configs are not published yet": "the target does not answer"}
    )
    degraded, (error,) = flow_of(orders)
    assert (degraded, "not published yet" in error, notes_of(orders)) == ("DEGRADED", True, [])


def test_a_flow_without_its_source_connector_is_degraded(orders: Rig) -> None:
    herder = orders.herders[AB]
    herder.configs.clear()
    herder.configs["MirrorHeartbeatConnector"] = {"connector.class": "x"}
    herder.states = {"MirrorHeartbeatConnector": state("MirrorHeartbeatConnector")}
    degraded, (error,) = flow_of(orders)
    assert (degraded, "no MirrorSourceConnector" in error) == ("DEGRADED", True)


def test_the_copy_of_a_topic_is_named_before_its_first_record(orders: Rig) -> None:
    idle = partition("orders", 0, 0, target=None)
    orders.herders[AB].show(partitions=(idle,))
    for separator in (".", PLACEHOLDER):
        orders.herders[AB].configs[NAME]["replication.policy.separator"] = separator
        copy = f"A{separator.replace(PLACEHOLDER, 'bills')}orders"
        for rows in ("topics", "partitions"):
            (row,) = orders.ask("GET", f"/flows/A->B/{rows}").json
            assert row["target_topic"] == copy


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
def test_a_topic_has_its_worst_partitions_state(orders: Rig, states: str, worst: str) -> None:
    parts = [partition("t", n, 1, state=it) for n, it in enumerate(states.split())]
    orders.herders[AB].snapshot = snapshot("worker:8083", AB, *parts)
    (topic,) = orders.ask("GET", "/flows/A->B/topics").json
    assert (topic["state"], topic["held_partitions"]) == (worst, states.count("HELD"))
    orders.herders[AB].assigned = {0: "t-77"}
    (topic,) = orders.ask("GET", "/flows/A->B/topics").json
    assert topic["state"] == (worst if worst in ("FAILED", "HELD") else "UNASSIGNED")


def test_a_flow_that_waits_at_start_is_described_with_its_cause_and_its_file(orders: Rig) -> None:
    herder = orders.herders[AB]
    herder.configs.clear()
    herder.waits = "waits for target cluster B at b:1, 23 s now: user mm is refused"
    herder.elsewhere = ForwardError(None)
    herder.show(state="WAITING", partitions=(), problems={"flow": herder.waits})
    found = orders.ask("GET", "/flows/A->B").json
    assert flow_of(orders) == ("WAITING", [f"flow: {herder.waits}"])
    assert (found["enabled"], found["incomplete"]) == (True, [])
    assert orders.ask("GET", "/flows").json == [found]
    asked = orders.ask("GET", "/flows/A->B/groups")
    assert (asked.status, asked.message) == (503, f"Flow A->B {herder.waits}")


def lags_of(orders: Rig) -> list[tuple[object, object]]:
    """Of the flow, and of its topic."""
    found = (orders.ask("GET", "/flows/A->B").json, orders.ask("GET", "/flows/A->B/lag").json[0])
    return [(it["lag_records"], it["lag_ms"]) for it in found]


def test_the_lag_is_unknown_while_no_worker_measures_an_assigned_partition(orders: Rig) -> None:
    """A task host that ended has taken its numbers with it, and the next one has none yet."""
    herder = orders.herders[AB]
    herder.assigned = {0: "t-0,t-1"}
    herder.snapshot = snapshot("worker:8083", AB, partition("t", 0, 0))
    assert lags_of(orders) == [(None, None)] * 2
    assert orders.ask("GET", "/flows/A->B").json["partitions"] == 2
    lost = orders.ask("GET", "/flows/A->B/partitions").json[1]
    assert (lost["state"], lost["task"], lost["lag_records"]) == ("UNASSIGNED", f"{NAME}-0", None)
    both = [partition("t", 0, 0), partition("t", 1, 5)]
    herder.snapshot = snapshot("worker:8083", AB, *both)
    assert lags_of(orders) == [(5, 50)] * 2


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({}, (None, None)),
        ({"state": "FAILED"}, (3, 30)),  # failed_partitions says the rest
        ({"lag_ms": 70_000}, (None, 70_000)),  # it is not known any more, and its age grows
    ],
)
def test_the_lag_is_unknown_until_all_partitions_that_work_are_measured(
    orders: Rig, other: dict[str, object], shown: tuple[int | None, int | None]
) -> None:
    both = partition("t", 0, 3), partition("t", 1, -1, **other)
    orders.herders[AB].snapshot = snapshot("worker:8083", AB, *both)
    assert lags_of(orders) == [shown] * 2
    rows = orders.ask("GET", "/flows/A->B/partitions").json
    assert (rows[0]["lag_records"], rows[0]["lag_ms"], rows[1]["lag_records"]) == (3, 30, None)
    assert rows[1]["lag_ms"] == other.get("lag_ms")


# -- changes


def test_states_of_a_whole_flow_are_in_the_history_and_survive_a_rollback(orders: Rig) -> None:
    orders.ask("POST", "/flows/A->B/pause")
    line = orders.stores[AB].state.history()[0]
    assert isinstance(line, HistoryEntry)
    assert [(it.key, it.before, it.after) for it in line.changes] == [
        (f"state:{NAME}", "RUNNING", "PAUSED")
    ]
    orders.ask("PATCH", "/flows/A->B", body={"config": {"topics": "x"}})
    assert orders.ask("POST", "/flows/A->B/rollback?revision=0").status == 200
    assert orders.herders[AB].configs[NAME]["topics"] == "orders.*"


class CutOff(Leader):
    """Its target goes away after ``left`` steps."""

    left = 1

    def _did(self, *call: object) -> None:
        if self.left == 0:
            raise RequestTimedOutError("the target did not answer")
        self.left -= 1
        super()._did(*call)


@pytest.mark.parametrize("action", ["pause", "stop", "restart"])
def test_the_history_has_what_was_done_before_a_failure_and_a_repeat_does_the_rest(
    orders: Rig, action: str
) -> None:
    before, store = orders.herders[AB], orders.stores[AB]
    now = orders.herders[AB] = CutOff(AB, store=store)
    now.configs = {CHECKPOINTS: before.configs[NAME], NAME: before.configs[NAME]}
    now.states, now.snapshot = {it: state(it) for it in now.configs}, before.snapshot
    assert orders.ask("POST", f"/flows/A->B/{action}").status == 503

    def changed() -> list[str]:
        lines = [it for it in store.state.history() if it.action == action]
        return [it.key.removeprefix("state:") for line in lines for it in line.changes]

    assert changed() == [CHECKPOINTS] + [f"{CHECKPOINTS}-0"] * (action == "restart")
    now.left = 9
    assert orders.ask("POST", f"/flows/A->B/{action}").status == 200
    assert {CHECKPOINTS, NAME} <= set(changed())


def test_a_state_is_in_the_history_though_the_connector_is_not_there_yet(orders: Rig) -> None:
    """It is compared with what was wanted before: a resumed connector may still be PAUSED when it is paused again."""
    herder = orders.herders[AB]
    paused = replace(state(NAME).connector, state=State.PAUSED)
    herder.states[NAME] = replace(state(NAME), connector=paused)
    reply = orders.ask("POST", "/flows/A->B/pause")
    assert [(it["before"], it["after"]) for it in reply.json["changes"]] == [("RUNNING", "PAUSED")]
    herder.states[NAME] = state(NAME)
    reply = orders.ask("POST", "/flows/A->B/pause")
    assert (reply.json["changes"], reply.json["revision"]) == ([], None)


def test_a_stopped_flow_is_not_restarted(orders: Rig) -> None:
    herder = orders.herders[AB]
    stopped = replace(state(NAME).connector, state=State.STOPPED)
    herder.states[NAME] = replace(state(NAME), connector=stopped, tasks={})
    reply = orders.ask("POST", "/flows/A->B/restart")
    assert (reply.status, reply.message) == (409, "Flow A->B is STOPPED; resume it instead")
    assert ("restart", NAME, False, True) not in herder.calls


def test_a_partition_that_the_topic_has_not_or_a_topic_that_the_flow_has_not_cannot_be_changed(
    orders: Rig,
) -> None:
    orders.herders[AB].assigned = {0: "orders-0,orders-1"}
    reply = orders.ask("POST", "/flows/A->B/pause?topic=orders&partition=99")
    assert (reply.status, "has no partition 99" in reply.message) == (404, True)
    assert orders.ask("POST", "/flows/A->B/pause?topic=orders&partition=1").status == 200
    for action in ("pause", "stop", "resume"):
        reply = orders.ask("POST", f"/flows/A->B/{action}?topic=other")
        assert (reply.status, "does not copy topic other" in reply.message) == (404, True)


def test_a_resumed_flow_names_what_stays_paused_and_resumes_it_on_request(orders: Rig) -> None:
    orders.ask("POST", "/flows/A->B/pause?topic=orders")
    assert orders.ask("POST", "/flows/A->B/resume?dry_run=true").json["still_paused"] == ["orders"]
    assert orders.ask("POST", "/flows/A->B/resume").json["still_paused"] == ["orders"]
    reply = orders.ask("POST", "/flows/A->B/resume?all_topics=true").json
    assert (reply["still_paused"], orders.stores[AB].held()) == ([], frozenset())
    assert {"key": "orders", "before": "paused", "after": "running"} in reply["changes"]
    assert orders.ask("POST", "/flows/A->B/resume?topic=orders&all_topics=true").status == 422


def test_an_unknown_property_is_refused_with_the_near_one(orders: Rig) -> None:
    reply = orders.ask("PATCH", "/flows/A->B", body={"config": {"topiks": "x"}})
    assert (reply.status, "did you mean topics?" in reply.message) == (400, True)
    orders.add(AB, topiks="from the file")
    for text in ("x", None):
        body = {"config": {"topiks": text}}
        assert orders.ask("PATCH", "/flows/A->B", body=body).status == 200


def test_a_property_of_the_flow_reaches_the_connector_that_reads_it_alone(orders: Rig) -> None:
    key, reader = "emit.heartbeats.interval.seconds", "MirrorHeartbeatConnector"
    reply = orders.ask("PATCH", "/flows/A->B", body={"connectors": {NAME: {key: "2"}}})
    assert (reply.status, f"set it on {reader}" in reply.message) == (400, True)
    files = cast("dict[str, ConnectorConfig]", orders.files[AB])
    files[reader] = {"name": reader, "connector.class": reader}
    reply = orders.ask("PATCH", "/flows/A->B", body={"config": {key: "2", "topics": "orders"}})
    assert reply.status == 200
    changed = {it["key"] for it in reply.json["changes"]}
    assert changed == {f"{reader}.{key}", f"{NAME}.topics"}


# -- revisions


def test_a_change_of_a_flow_that_was_changed_meanwhile_is_a_412(orders: Rig) -> None:
    tag = orders.ask("GET", "/flows/A->B").headers["etag"]
    assert tag == orders.ask("GET", "/flows/A->B/config").headers["etag"] == '"0"'
    body = {"config": {"tasks.max": "2"}}
    first = orders.ask("PATCH", "/flows/A->B", body=body, headers={"If-Match": tag})
    assert (first.status, orders.ask("GET", "/flows/A->B").headers["etag"]) == (200, '"1"')
    for method, path, given in (
        ("PATCH", "", {"config": {"tasks.max": "3"}}),
        ("POST", "/pause", None),
        ("POST", "/pause?topic=orders", None),
        ("POST", "/rollback?revision=0", None),
        ("DELETE", "", None),
    ):
        reply = orders.ask(method, f"/flows/A->B{path}", body=given, headers={"If-Match": tag})
        assert (reply.status, "at revision 1, not 0" in reply.message) == (412, True), path
    assert orders.stores[AB].state.revision == 1
    assert [call for call in orders.herders[AB].calls if call[0] == "pause"] == []
    assert orders.ask("POST", "/flows/A->B/pause", headers={"If-Match": "*"}).status == 200
    assert orders.ask("POST", "/flows/A->B/pause", headers={"If-Match": "x"}).status == 422


class ChangedBeside(Leader):
    """Somebody else's change is written while a pause is carried out, as over another worker."""

    async def pause(self, name: str, *, actor: str) -> None:
        await super().pause(name, actor=actor)
        assert self.store is not None
        changed = patched({name: {"tasks.max": "2"}}, {})
        await self.store.edit("patch", name, changed, actor="beside")


def test_a_change_that_the_leader_does_not_write_is_recorded_and_reported(orders: Rig) -> None:
    orders.stores[AB].listen(lambda: None)
    reply = orders.ask("PATCH", "/flows/A->B", body={"config": {"topics": "orders.eu"}})
    assert (reply.status, "recorded, but the leader has not acted" in reply.message) == (503, True)
    assert orders.stores[AB].state.revision == 1


def test_a_pause_that_is_done_is_no_412_and_is_in_the_history(orders: Rig) -> None:
    before, store = orders.herders[AB], orders.stores[AB]
    now = orders.herders[AB] = ChangedBeside(AB, store=store)
    now.configs, now.states, now.snapshot = before.configs, before.states, before.snapshot
    reply = orders.ask("POST", "/flows/A->B/pause", headers={"If-Match": '"0"'})
    assert (reply.status, reply.json["revision"]) == (200, 2)
    assert [it.action for it in store.state.history()] == ["pause", "patch"]


def test_a_config_that_was_changed_meanwhile_is_a_412_in_connects_dialect(orders: Rig) -> None:
    path = f"/A/B/connectors/{NAME}/config"
    tag = orders.ask("GET", path).headers["etag"]
    assert tag == orders.ask("GET", f"/connectors/A-%3EB.{NAME}/config").headers["etag"]
    config = orders.ask("GET", path).json
    orders.herders[AB].file = {NAME: {"topics": "changed"}}  # what the config topic lacks yet
    for method in ("PUT", "PATCH"):
        reply = orders.ask(method, path, body={"topics": "x"}, headers={"If-Match": tag})
        assert reply.status == 412
    orders.herders[AB].file = {}
    done = orders.ask("PUT", path, body={**config, "tasks.max": "2"}, headers={"If-Match": tag})
    assert (done.status, done.headers["etag"] != tag) == (200, True)
    for method, given in (("PUT", config), ("PATCH", {"tasks.max": "3"})):
        assert orders.ask(method, path, body=given, headers={"If-Match": tag}).status == 412
    target = f"/A/B/connectors/{NAME}"
    assert orders.ask("DELETE", target, headers={"If-Match": tag}).status == 412
    assert orders.herders[AB].configs[NAME]["tasks.max"] == "2"
    latest = orders.ask("GET", path).headers["etag"]
    assert orders.ask("DELETE", target, headers={"If-Match": latest}).status == 204


def test_the_tag_of_a_config_outlives_rotations_of_the_session_key(orders: Rig) -> None:
    path, herder = f"/A/B/connectors/{NAME}/config", orders.herders[AB]
    tag = orders.ask("GET", path).headers["etag"]
    for now_ms in (1, 2):
        herder.key = new_session_key(now_ms, former=herder.key)
        assert orders.ask("GET", path).headers["etag"] == tag
    herder.key = new_session_key(3)
    assert orders.ask("GET", path).headers["etag"] != tag, "whoever has no key cannot make a tag"


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
