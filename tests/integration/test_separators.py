"""Separators other than a dot, with excludes of one's own: no internal topic is mirrored, and a changed separator has a remedy."""

import json
import re
from typing import Any, Final

import pytest

from tests.integration.cluster_changes import delete_topic, topics_of
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import (
    GROUPS,
    PROMPT,
    Flow,
    Mirror,
    command_here,
    running,
    until,
    until_equal,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, committed, ends, write
from tests.kit.kafka.region import KafkaAddress, Region

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Regions = tuple[Region, Region]

OWN: Final = re.compile(r"mm2.*internal|.*checkpoints.internal|.*offset-syncs.*")
"""Names of mirrors' topics, in any spelling."""

OTHERS: Final = (
    "mm2-configs.{0}1.internal", "mm2-offsets.{0}1.internal", "mm2-status.{0}1.internal", "mm2-offset-syncs.{0}1.internal",
    "mm2-offset-syncs_{0}2_internal", "mm2-offset-syncs-{0}3-internal", "{0}1.checkpoints.internal", "{0}3-checkpoints-internal",
    "mm2py-ledger.{0}1.internal", "mm2py-flows.{0}1.internal", "mm2-configs.{0}4.internal", "{0}4_checkpoints_internal",
)  # fmt: skip
"""Topics of mirrors of other files, Java's and ours."""


def notes(mirror: Mirror, flow: Flow) -> str:
    """Return the notes and errors of a flow."""
    view: dict[str, Any] = ask(public_url(mirror) + path_of(flow).removeprefix("/"))[1]
    return json.dumps([view["notes"], view["errors"]])


@pytest.mark.parametrize("separator", ["_", "-"])
def test_no_internal_topic_is_mirrored_and_existing_copies_are_named(
    setup: Setup, own_regions: Regions, separator: str
) -> None:
    source, target = own_regions
    mark = setup.unique("x").replace("-", "")
    topic, back = setup.topic("orders", on=source), setup.topic("payments", on=target)
    properties = {
        "replication.policy.separator": separator,
        "{source}->{target}.topics.exclude": "secret.*",
        "{target}->{source}.enabled": "true",
        "{target}->{source}.topics.exclude": "secret.*",
        "emit.heartbeats.enabled": "true",
        "heartbeats.replication.enabled": "true",
        **{f"{pair}.refresh.topics.interval.seconds": "1" for pair in ("{source}->{target}", "{target}->{source}")},
    }  # fmt: skip
    flow = setup.flow(".*", properties, source=source, target=target)
    there, here = f"{flow.source_alias}{separator}", f"{flow.target_alias}{separator}"
    former = f"{there}mm2-configs.{mark}1.internal"
    for name in OTHERS:
        setup.create_topic(source, name.format(mark), 1)
        setup.create_topic(target, name.format(mark), 1)
    setup.create_topic(target, former, 1)
    write(source, topic, [Sent(0, b"1")])
    write(target, back, [Sent(0, b"2")])
    linted = command_here("lint", flow.file)
    assert "topics.exclude" in linted.output
    assert "lets internal topics through, such as mm2-configs." in linted.output
    with running(flow.file, ready=False) as mirror:
        wait_for(target, there + topic, mirror)
        wait_for(source, here + back, mirror)
        wait_for(target, f"{there}heartbeats", mirror)
        late = setup.topic("late", on=source)  # all topics of both directions exist by now
        write(source, late, [Sent(0, b"3")])
        wait_for(target, there + late, mirror)
        until(
            lambda: f"{former}: an earlier version or Java copied" in notes(mirror, flow),
            90,
            lambda: notes(mirror, flow),
        )
    ours = {f"{there}checkpoints{separator}internal", f"{here}checkpoints{separator}internal"}
    for region, prefix in ((target, there), (source, here)):
        copies = {
            it.removeprefix(prefix)
            for it in topics_of(region)
            if it.startswith(prefix) and it not in ours
        }
        assert {it for it in copies if OWN.search(it)} <= {former.removeprefix(there)}, copies
        assert copies


def test_copies_that_an_empty_alias_and_separator_leave_their_names_have_them_in_every_answer(
    setup: Setup,
) -> None:
    """As guides older than IdentityReplicationPolicy write it; Java takes the alias of the file."""
    topic, group = setup.topic("plain"), setup.unique("billing")
    write(setup.a, topic, [Sent(0, b"%d" % n) for n in range(100)])
    commit(setup.a, group, topic, {0: 40})
    nameless = {"replication.policy.separator": "", "source.cluster.alias": ""}
    flow = setup.flow(topic, {**GROUPS, **PROMPT, **nameless, "groups": group})
    with running(flow.file) as mirror:
        until_equal(lambda: committed(setup.b, group, topic), {0: 40}, alive=mirror)
        asked = Asked(mirror)
        view = asked.done("GET", f"{path_of(flow)}/groups/{group}")
        found = [(it["target_topic"], it["committed_there"]) for it in view["partitions"]]
        assert found == [(topic, 40)], view
        asked.done("POST", f"{path_of(flow)}/pause")
        topics = asked.done("GET", f"{path_of(flow)}/topics")
        assert [it["target_topic"] for it in topics] == [topic]
        plan = asked.done("GET", path_of(flow).replace("/flows", "/jobs/failover") + "/plan")
        assert "missing" not in json.dumps(plan), plan
    doctor = command_here("doctor", flow.file, "--all")
    assert (doctor.exit_code, "groups: " in doctor.output) == (0, False), doctor.output


def test_a_cluster_that_is_called_connect_has_an_offset_map(setup: Setup) -> None:
    """It is the word for what of a Connect worker copies no cluster."""
    topic, map_topic = setup.topic("orders"), "mm2py-offset-map.connect.internal"
    write(setup.a, topic, [Sent(0, b"1")])
    flow = setup.flow(topic, PROMPT)
    text = flow.file.read_text("latin-1").replace(flow.source_alias, "connect")
    flow.file.write_text(text, "latin-1")
    with running(flow.file) as mirror:
        until(lambda: ends(setup.b, map_topic)[0] > 0, 90, "the map", alive=mirror)


def wait_for(region: KafkaAddress, topic: str, mirror: Mirror) -> None:
    """Wait until a copy has a record."""
    until(
        lambda: topic in topics_of(region) and sum(ends(region, topic).values()) > 0,
        90,
        topic,
        alive=mirror,
    )


@pytest.mark.faults
@pytest.mark.parametrize("separator", ["_", "-"])
@pytest.mark.parametrize("remedy", ["delete", "set back"])
def test_the_remedy_for_a_separator_that_was_changed_on_a_running_pair_works(
    setup: Setup, own_regions: Regions, separator: str, remedy: str
) -> None:
    """Brokers let two names exclude each other that differ in dots and underscores alone."""
    source, target = own_regions
    topic, group = setup.topic("orders", on=source), setup.unique("billing")
    write(source, topic, [Sent(0, b"%d" % n) for n in range(100)])
    commit(source, group, topic, {0: 40})
    flow = setup.flow(topic, {**GROUPS, **PROMPT, "groups": group}, source=source, target=target)
    former, copy = f"{flow.source_alias}.checkpoints.internal", flow.remote(topic)
    with running(flow.file, ready=False) as mirror:
        until_equal(lambda: committed(target, group, copy), {0: 40}, alive=mirror)
    text = flow.file.read_text("latin-1")
    flow.file.write_text(f"{text}replication.policy.separator = {separator}\n", "latin-1")
    own = f"{flow.source_alias}{separator}checkpoints{separator}internal"
    with running(flow.file, ready=False) as mirror:
        until(
            lambda: f"{former} beside {own}" in notes(mirror, flow),
            90,
            lambda: notes(mirror, flow),
            alive=mirror,
        )
        said = notes(mirror, flow)
        assert "or set replication.policy.separator back" in said
        assert ("delete that topic if it is of a former" in said) is (separator == "_")
        assert "by hand" not in said
        if remedy == "delete":
            syncs = f"mm2-offset-syncs.{flow.target_alias}.internal"
            for region, name in ((target, former), (target, copy), (source, syncs)):
                delete_topic(region, name)
            copy = f"{flow.source_alias}{separator}{topic}"
            until(
                lambda: own in topics_of(target) and copy in topics_of(target),
                90,
                lambda: notes(mirror, flow),
                alive=mirror,
            )
            is_as_before(setup, mirror, flow, topic, group, copy)
            assert former not in topics_of(target)
    if remedy == "set back":
        flow.file.write_text(text, "latin-1")
        with running(flow.file, ready=False) as mirror:
            is_as_before(setup, mirror, flow, topic, group, copy)


def is_as_before(
    setup: Setup, mirror: Mirror, flow: Flow, topic: str, group: str, copy: str
) -> None:
    """What is written and committed now arrives, and nothing is wrong."""
    first = sum(ends(flow.source, topic).values())
    write(flow.source, topic, [Sent(0, b"%d" % n) for n in range(first, first + 10)])
    commit(flow.source, group, topic, {0: first + 10})
    until(
        lambda: committed(flow.target, group, copy) == ends(flow.target, copy) != {0: 0},
        90,
        lambda: f"{committed(flow.target, group, copy)} {notes(mirror, flow)}",
        alive=mirror,
    )
    until(
        lambda: "former" not in notes(mirror, flow) and "cannot be" not in notes(mirror, flow),
        90,
        lambda: notes(mirror, flow),
    )
