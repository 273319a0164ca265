"""``POST`` and ``DELETE`` of ``/flows``, rollback, and changes of one topic or partition, over fakes."""

import asyncio
from typing import Any

import pytest

from mm2py.flows.changes import FlowChanges, Request
from mm2py.rest.app import internal_app
from mm2py.runtime.errors import ForwardError
from mm2py.types import TaskId, TopicPartition
from tests.unit.rest.flow_fakes import AB, BA, CHECKPOINTS, IDENTITY, LEADER, NAME, Network, Rig
from tests.unit.rest.rest_fakes import Reply, flow

AC = flow("A", "C")
CREATE: dict[str, object] = {"source": "A", "target": "C"}


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    rig.absent(AC)
    return rig


def changes(reply: Reply) -> dict[str, tuple[Any, Any]]:
    assert reply.status < 300, reply.content
    return {it["key"]: (it["before"], it["after"]) for it in reply.json["changes"]}


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
        ({"source": "A"}, 422, "body.target"),
        ({**CREATE, "more": 1}, 422, "body.more"),
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


def test_a_flow_that_would_close_a_circle_is_not_created(rig: Rig) -> None:
    same = {"replication.policy.class": IDENTITY, "loop.suppression": "off"}
    rig.add(AB, **same)
    rig.absent(BA, **same)
    reply = rig.ask("POST", "/flows", body={"source": "B", "target": "A"})
    assert (reply.status, "in a circle: A->B, B->A" in reply.message) == (400, True)
    assert rig.opened == []
    body = {"source": "B", "target": "A", "config": {"topics.exclude": ".*"}}
    assert rig.ask("POST", "/flows", body=body).status == 201


def test_a_circle_with_a_flow_that_other_nodes_run_is_refused(rig: Rig) -> None:
    same = {"replication.policy.class": IDENTITY, "loop.suppression": "off"}
    rig.elsewhere[BA] = [{"topics": ".*", **same}]
    reply = rig.ask("PATCH", "/flows/A->B", body={"config": same})
    assert (reply.status, "in a circle" in reply.message) == (400, True)


def test_a_flow_of_heartbeats_alone_begins_to_copy(rig: Rig) -> None:
    herder = rig.add(BA, enabled="false")
    assert rig.ask("GET", "/flows/B->A").json["enabled"] is False
    reply = rig.ask("POST", "/flows", body={"source": "B", "target": "A"})
    assert changes(reply) == {
        "B->A": (None, "added"),
        f"{NAME}.enabled": ("false", "true"),
    }
    assert ("resume", NAME, "anonymous") in herder.calls, "its heartbeats may have been paused"


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
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause")):
        body = {"config": {"topics": "x"}} if method == "PATCH" else None
        assert rig.ask(method, f"/flows/A->B{path}", body=body).status == 404
    again = rig.ask("POST", "/flows", body={"source": "A", "target": "B"})
    assert changes(again) == {"A->B": ("deleted", "added")}
    assert rig.herders[AB].configs[NAME]["topics"] == ".*"
    assert rig.stores[AB].held() == frozenset()


def test_a_connector_cannot_be_put_into_a_deleted_flow(rig: Rig) -> None:
    rig.ask("DELETE", "/flows/A->B")
    put = rig.stores[AB].record(NAME, None, {"topics": "x"}, actor="anna")
    with pytest.raises(Exception, match="POST /flows"):
        asyncio.run(put)


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


def test_a_flow_goes_back_to_any_revision_in_one_new_one(rig: Rig) -> None:
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "one", "tasks.max": "3"}})
    rig.ask("POST", "/flows/A->B/pause?topic=one")
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "two", "tasks.max": None}})
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
    assert rig.stores[AB].overrides(NAME) == {}
    (newest, *_) = rig.ask("GET", "/flows/A->B/history").json
    assert (newest["action"], newest["target"]) == ("rollback", "revision 0")


def test_the_config_of_a_revision_can_be_seen_before_going_back(rig: Rig) -> None:
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "one"}})
    rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "two"}})
    for revision, topics in ((0, ".*"), (1, "one"), (2, "two")):
        (view,) = rig.ask("GET", f"/flows/A->B/config?revision={revision}").json
        (shown,) = (it for it in view["properties"] if it["key"] == "topics")
        assert (shown["value"], shown["file_value"]) == (topics, ".*")
    assert rig.ask("GET", "/flows/A->B/config?revision=3").status == 404


async def test_a_change_that_waited_while_the_flow_was_deleted_is_refused(rig: Rig) -> None:
    changes = FlowChanges(rig.flow_parts)
    asked = Request(AB, "anna", dry_run=False)
    done = await asyncio.gather(
        changes.delete(asked), changes.patch(asked, {NAME: {"topics": "x"}}),
        return_exceptions=True,
    )  # fmt: skip
    assert not isinstance(done[0], BaseException)
    assert (done[0].revision or 0, getattr(done[1], "status", 200)) == (1, 404)
    assert rig.stores[AB].overrides(NAME) == {}


def test_where_there_is_nothing_to_go_back_to_it_is_said(rig: Rig) -> None:
    assert rig.ask("POST", "/flows/A->B/rollback?revision=1").status == 404
    rig.ask("POST", "/flows", body=CREATE)
    refused = rig.ask("POST", "/flows/A->C/rollback?revision=0")
    assert (refused.status, "did not exist at revision 0" in refused.message) == (400, True)
    for query in ("", "?revision=-1", "?revision=x"):
        assert rig.ask("POST", f"/flows/A->B/rollback{query}").status == 422


# -- one topic or partition


def test_a_topic_that_the_flow_does_not_copy_cannot_be_paused(rig: Rig) -> None:
    rig.add(AB, topics="orders")
    for action in ("pause", "stop"):
        reply = rig.ask("POST", f"/flows/A->B/{action}?topic=other")
        assert (reply.status, "does not copy topic other" in reply.message) == (404, True)
    assert rig.ask("POST", "/flows/A->B/resume?topic=other").json["changes"] == []


def test_a_stopped_topic_is_held_until_it_is_resumed(rig: Rig) -> None:
    assert rig.ask("POST", "/flows/A->B/stop?topic=t&partition=1").json["action"] == "stop"
    assert rig.stores[AB].held() == {TopicPartition("t", 1)}
    rig.ask("POST", "/flows/A->B/resume?topic=t")
    assert rig.stores[AB].held() == frozenset()


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
    network = Network(internal_app(rig.parts))
    asked = Rig()
    asked.add(BA, enabled="false").elsewhere = ForwardError(LEADER)
    asked.client = network.client
    reply = asked.ask("POST", "/flows", body={"source": "B", "target": "A"})
    assert reply.status == 201
    assert network.asked == ["POST /flows?forward=true"]
    assert rig.stores[BA].revision == 1


def test_a_suspended_leader_changes_nothing(rig: Rig) -> None:
    herder = rig.herders[AB]
    assert herder.snapshot is not None
    object.__setattr__(herder.snapshot, "state", "SUSPENDED")
    assert rig.ask("DELETE", "/flows/A->B").status == 409
    assert rig.topics[AB].records == []
