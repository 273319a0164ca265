"""Properties of flows and what they are for: all connectors of a flow, what is behind placeholders, two interfaces at once."""

import asyncio

import pytest

from mm2py.config.class_names import SINK_NAME
from mm2py.flows.changes import ChangeRequest, FlowChanges
from mm2py.flows.edits import created
from mm2py.mirror.flow_state import FlowPicture
from tests.unit.rest.flow_fakes import AB, BA, CHECKPOINTS, IDENTITY, NAME, Rig, changes
from tests.unit.rest.rest_fakes import PLACEHOLDER


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB, topics="orders")
    return rig


def test_a_circle_is_seen_behind_placeholders(rig: Rig) -> None:
    same = {"replication.policy.class": IDENTITY, "loop.suppression": "off"}
    rig.add(AB, topics=PLACEHOLDER, **same)
    rig.absent(BA, topics="bills", **same)
    assert rig.ask("PATCH", "/flows/A->B", body={"config": {"tasks.max": "2"}}).status == 200
    reply = rig.ask("POST", "/flows", body={"source": "B", "target": "A"})
    assert (reply.status, "in a circle: A->B, B->A" in reply.message) == (400, True)
    assert rig.opened == []
    body = {"source": "B", "target": "A", "config": {"topics": "other"}}
    assert rig.ask("POST", "/flows", body=body).status == 201


@pytest.mark.parametrize(("copier", "checkpoints"), [(NAME, "true"), (SINK_NAME, "false")])
def test_groups_follow_a_new_flow_where_offsets_are_known(copier: str, checkpoints: str) -> None:
    file = {it: {"enabled": "false"} for it in (copier, CHECKPOINTS)}
    edit = created(file, {})
    made = edit(FlowPicture(presence=None, configs=file, held=frozenset())).configs
    assert {name: it["enabled"] for name, it in made.items()} == {
        copier: "true",
        CHECKPOINTS: checkpoints,
    }


@pytest.mark.parametrize(
    ("key", "now", "then"),
    [("enabled", "false", "true"), ("replication.policy.class", "x", IDENTITY)],
)
def test_what_is_one_thing_for_a_flow_changes_for_all_its_connectors_as_in_the_file(
    rig: Rig, key: str, now: str, then: str
) -> None:
    rig.beside = {CHECKPOINTS: {key: now}}
    rig.add(BA, **{"enabled": "false", key: now})
    found = changes(rig.ask("PATCH", "/flows/B->A", body={"config": {key: then, "tasks.max": "2"}}))
    found.pop("B->A", None)
    assert found == {
        f"{CHECKPOINTS}.{key}": (now, then),
        f"{NAME}.{key}": (now, then),
        f"{NAME}.tasks.max": (None, "2"),
    }


def test_a_topic_that_a_placeholder_names_can_be_paused_and_taken_out(rig: Rig) -> None:
    rig.add(AB, topics=f"{PLACEHOLDER}, orders", **{"topics.exclude": "x"})
    assert rig.ask("POST", "/flows/A->B/pause?topic=other").status == 404
    assert rig.ask("POST", "/flows/A->B/pause?topic=bills").status == 200
    found = changes(rig.ask("DELETE", "/flows/A->B?topic=bills"))
    assert found == {f"{NAME}.topics.exclude": ("x", "x,bills"), "bills": ("paused", "running")}


async def test_flows_and_connects_dialect_change_a_flow_one_after_the_other(rig: Rig) -> None:
    parts = rig.flow_parts
    async with parts.changing.setdefault(AB, asyncio.Lock()):  # as a PUT of Connect's
        asked = ChangeRequest(AB, "ann", dry_run=False)
        patch = FlowChanges(parts).patch(asked, {NAME: {"topics": "second"}})
        waiting = asyncio.create_task(patch)
        for _ in range(20):
            await asyncio.sleep(0)
        assert rig.stores[AB].state.revision == 0
    assert (await waiting).revision == 1


def test_what_was_wrong_before_is_no_fault_of_a_change(rig: Rig) -> None:
    """As a converter of the file that has no effect: the flow runs with it, and Connect's check refuses it."""
    rig.add(AB, **{"value.converter": "wrong"})
    rig.absent(BA, **{"value.converter": "wrong"})
    for key, text, said in (
        ("tasks.max", "2", ""),
        ("value.converter", "wrong too", f"{NAME} of A->B: value.converter is wrong too"),
        ("tasks.max", "wrong", f"{NAME} of A->B: tasks.max is wrong"),
    ):
        reply = rig.ask("PATCH", "/flows/A->B", body={"config": {key: text}})
        assert (reply.status, reply.json.get("message", "")) == (400 if said else 200, said)
    assert rig.ask("POST", "/flows", body={"source": "B", "target": "A"}).status == 201
