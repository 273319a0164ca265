"""Two flows into one topic of a target: a group that both sources have is placed by neither, and every display says why."""

import json

import pytest

from mm2py.mirror_client import exact_offsets, translate_offsets
from tests.integration.active_active import IDENTITY
from tests.integration.mirror_process import Flow, command_here, running, until
from tests.integration.rest_asking import public_url
from tests.integration.setups import Setup
from tests.integration.test_group_commands import command, commit_at, get, offset_of, records
from tests.integration.traffic import write
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEEPS_NAMES = {"replication.policy.class": IDENTITY}
PROPERTIES = {"{source}->{target}.sync.group.offsets.enabled": "true", **KEEPS_NAMES}
WHY = "write into"


def test_a_group_of_two_sources_skips_no_record_of_either(
    setup: Setup, new_region: NewRegion
) -> None:
    third = new_region("third")
    shared, alone = setup.topic_on_both("shared"), setup.topic_on_both("alone")
    setup.create_topic(third, shared)
    flow = setup.flow(f"{shared},{alone}", PROPERTIES)
    other = setup.flow(shared, PROPERTIES, source=third)
    group = setup.unique("billing")
    with running(flow.file, ready=False) as worker, running(other.file, ready=False) as beside:
        for region in setup.a, third:
            write(region, shared, records(0, 100))
        write(setup.a, alone, records(0, 100))
        until(
            lambda: all(
                WHY in _notes(public_url(it), f) for it, f in ((worker, flow), (beside, other))
            ),
            90,
            "each flow has seen the other",
            alive=worker,
        )
        for region in setup.a, third:
            commit_at(region, shared, group, 50)
        commit_at(setup.a, alone, group, 50)
        until(lambda: offset_of(setup.b, alone, group) == 50, 90, "the group", alive=worker)
        _look(flow, public_url(worker), group, shared, alone)
        for region in setup.a, third:
            commit_at(region, shared, group, 60)
        commit_at(setup.a, alone, group, 60)
        until(lambda: offset_of(setup.b, alone, group) == 60, 90, "the group", alive=worker)
        assert offset_of(setup.b, shared, group) < 0, "50 records of one source would be skipped"

        props = {"bootstrap.servers": setup.b.bootstrap_servers, **KEEPS_NAMES}
        for positions in translate_offsets, exact_offsets:
            found = positions(props, flow.source_alias, group)
            assert {it.topic for it in found} == {alone}
        environ = {"MM2PY_URL": public_url(worker), "NO_COLOR": "1"}
        asked = ("failover", flow.file, "--flow", flow.name, "--plan", "-o", "json")
        plan = command_here(*asked, environ=environ)
        (planned,) = [it for it in json.loads(plan.stdout)["groups"] if it["group"] == group]
        assert f"{WHY} {shared} too" in planned["not_synced"]


def _notes(url: str, flow: Flow) -> str:
    return str(get(url, f"/flows/{flow.name}")[1])


def _look(flow: Flow, url: str, group: str, shared: str, alone: str) -> None:
    name = flow.name.replace("->", "/")
    code, found = command(url, "describe", name, group)
    places = {it["topic"]: (it["place"], it["continues_at"]) for it in found["partitions"]}
    assert (code, places) == (3, {shared: ("shared", None), alone: ("copied", 50)})
    assert f"{WHY} {shared} too" in found["not_synced"]
    _, listed = command(url, "list", name)
    assert WHY in json.dumps([it["not_synced"] for it in listed if it["group"] == group])
    code, found = command(url, "translate", name, shared, "0", "50")
    assert (code, WHY in found["text"]) == (0, True)
