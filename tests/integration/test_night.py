"""The operator at night without the page: cause and remedy by command line and doctor, and an alert that fires.

Flow: something is broken on a real broker -> ``mm2py flow describe``, ``mm2py doctor``, the samples that the rule of an alert reads.
``test_page_night`` has the same rows on the page; that each rule fires on such samples: ``unit/workers/test_examples``.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mm2py_cli.flow_commands import WELL
from tests.integration.cluster_changes import delete_topic, forbid_writing
from tests.integration.mirror_process import Flow, Mirror, command_here, running, until, until_equal
from tests.integration.night_scenes import AT_START, SOON, at_start
from tests.integration.rest_asking import public_url
from tests.integration.secured import SecuredRegion
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, member, numbered, wait_for_copy, write
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

Samples = Callable[..., float]


@final
class Teller:
    """What a worker tells of one flow."""

    def __init__(self, mirror: Mirror, flow: Flow) -> None:
        self._mirror, self._flow, self._url = mirror, flow, public_url(mirror)

    def described(self) -> str:
        """Return what ``mm2py flow describe`` prints."""
        ended = command_here("flow", "describe", self._flow.name, "-o", "wide", "--url", self._url)
        return ended.stdout + ended.stderr

    def listed(self) -> str:
        """Return what ``mm2py group list`` prints."""
        ended = command_here("group", "list", self._flow.name, "--url", self._url)
        return ended.stdout + ended.stderr

    def examined(self) -> str:
        """Return what ``mm2py doctor`` prints."""
        ended = command_here("doctor", self._flow.file, self._flow.name)
        return ended.stdout + ended.stderr

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the flow's samples of a metric with these labels."""
        text = httpx.get(f"{self._url}metrics?compat=none", timeout=60).text
        wanted = {"flow": self._flow.name} | labels
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and wanted.items() <= sample.labels.items()
        )

    def fires(self, alert: str) -> bool:
        """Whether the samples are such that the alert fires, once they last."""
        return ALERTS[alert](self.total)

    def wait(
        self, texts: tuple[str, ...], alert: str, tell: Callable[[], str] | None = None
    ) -> None:
        """Wait until the command line (``tell``: not ``flow describe``) has these texts and the alert is due."""
        tell = tell or self.described
        until(
            lambda: all(text in tell() for text in texts),
            90,
            lambda: f"{texts} in: {tell()}",
            alive=self._mirror,
        )
        until(lambda: self.fires(alert), 90, f"samples of {alert}", alive=self._mirror)


def _is_well(total: Samples) -> bool:
    return any(total("mm2py_flow_state", state=state) for state in WELL)


ALERTS: Final[Mapping[str, Callable[[Samples], bool]]] = {
    "FlowNotWell": lambda total: not _is_well(total) and total("mm2py_flow_state") > 0,
    "FlowWithoutTopics": lambda total: (
        total("mm2py_flow_state", state="RUNNING") > 0
        and total("mm2py_partition_state") == total("mm2py_partition_state", topic="heartbeats")
    ),
    "GroupsInUse": lambda total: total("mm2py_groups", state="IN_USE") > 0,
    "NothingEnabled": lambda total: total("mm2py_flow_state", state="DISABLED") > 0,
    "TopicsMissing": lambda total: total("mm2py_flow_findings", finding="topics") > 0,
    "PartitionsFailed": lambda total: total("mm2py_failed_partitions") > 0,
    "PartitionsHeld": lambda total: total("mm2py_partitions", state="HELD") > 0,
}


def test_what_keeps_a_worker_from_a_cluster_when_it_starts(
    setup: Setup, secured: SecuredRegion
) -> None:
    flows = at_start(setup, secured)
    with running(flows["login"].file, ready=False) as mirror:
        for row, texts in AT_START.items():
            teller = Teller(mirror, flows[row])
            teller.wait(texts, "FlowNotWell")
            said = teller.examined()
            assert [text for text in texts if text not in said] == [], said


@dataclass(frozen=True)
class Scene:
    """One thing that is wrong: ``told`` by the command line, ``found`` by the doctor, with the alert that is due."""

    properties: Mapping[str, str]
    told: tuple[str, ...]
    found: tuple[str, ...]
    alert: str
    config: Mapping[str, str] | None = None
    """Of the copy, which is there before."""
    names: str = ""


SCENES: Final = {
    "replication factor too high": Scene(
        {"replication.factor": "3"}, ("replication.factor (now 3)",), ("replication.factor (now 3)",), "FlowNotWell"
    ),
    "one record too large": Scene(
        {}, ("max.message.bytes", "at offset 0"), ("takes 5000 bytes", "max.message.bytes="), "PartitionsFailed",
        config={"max.message.bytes": "5000"},
    ),
    "typing error in topics": Scene(
        {}, ("topics=ordes-misspelt matches no topic of the source",), ("topics=ordes-misspelt matches none", "correct topics"), "FlowWithoutTopics",
        names="ordes-misspelt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", SCENES)
def test_what_is_wrong_with_a_flow(setup: Setup, row: str) -> None:
    scene, topic = SCENES[row], setup.topic("night", 2)
    flow = setup.flow(scene.names or topic, SOON | dict(scene.properties))
    if scene.config is not None:
        setup.create_topic(setup.b, flow.remote(topic), 2, config=dict(scene.config))
    write(setup.a, topic, [Sent(0, os.urandom(20_000))])
    with running(flow.file, ready=False) as mirror:
        teller = Teller(mirror, flow)
        teller.wait(scene.told, scene.alert)
        said = teller.examined()
        assert [text for text in scene.found if text not in said] == [], said


def test_a_source_topic_that_is_deleted_and_a_group_active_on_the_target(setup: Setup) -> None:
    topic, gone, busy = setup.topic("night"), setup.topic("night-gone"), setup.unique("busy")
    flow = setup.flow(f"{topic},{gone}", SOON)
    write(setup.a, topic, numbered(0, 100))
    write(setup.a, gone, numbered(0, 10))
    commit(setup.a, busy, topic, {0: 50})
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        wait_for_copy(mirror, flow, gone)
        teller = Teller(mirror, flow)
        until(lambda: not any(map(teller.fires, ALERTS)), 90, "all is well", alive=mirror)
        delete_topic(setup.a, gone)
        teller.wait(("gone on the source", gone, "copies stay", flow.remote(gone)), "TopicsMissing")
        said = teller.examined()
        assert f"gone on {flow.source_alias}: {gone}" in said, said
        assert f"--delete --topic {flow.remote(gone)}" in said, said
        with member(setup.b, busy, flow.remote(topic)):
            # Its member there has read all that was copied, so that the group is behind the source's only then.
            write(setup.a, topic, numbered(0, 100))
            commit(setup.a, busy, topic, {0: 150})
            teller.wait((busy, "it has members on the target"), "GroupsInUse", teller.listed)
            said = teller.examined()
            assert f"so not synced: {busy}" in said, said
            assert "groups.exclude" in said, said


def test_a_group_that_has_no_place_and_a_flow_that_is_not_enabled(setup: Setup) -> None:
    topic, group = setup.topic("night"), setup.unique("lost")
    beats = {"emit.heartbeats.enabled": "true", "heartbeats.replication.enabled": "true"}
    flow = setup.flow(topic, SOON | beats | {"replication.factor": "3"})
    commit(setup.a, group, topic, {0: 0})
    with running(flow.file, ready=False) as mirror:
        teller = Teller(mirror, flow)
        why = f"{topic}-0: not copied or not checkpointed yet"
        teller.wait((group, why), "FlowNotWell", teller.listed)
        until(lambda: f"not synced: {group}: {why}" in teller.examined(), 90, "the doctor's row")
        back = Teller(
            mirror, replace(flow, source_alias=flow.target_alias, target_alias=flow.source_alias)
        )
        back.wait(("it is not enabled", "mm2py flow create"), "NothingEnabled")
        assert "the flow is not enabled" in back.examined()


def test_a_right_that_is_missing_on_a_copy_and_a_target_that_stops(
    setup: Setup, new_region: NewRegion
) -> None:
    target = new_region("night", properties={"super.users": "User:nobody"})
    topic = setup.topic("night")
    write(setup.a, topic, numbered(0, 10))
    flow = setup.flow(topic, SOON, target=target)
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        teller, copy = Teller(mirror, flow), flow.remote(topic)
        until(lambda: not any(map(teller.fires, ALERTS)), 90, "all is well", alive=mirror)
        forbid_writing(target, copy)
        write(setup.a, topic, numbered(0, 10))
        grants = ("kafka-acls.sh", "--operation Write", f"--topic {copy}")
        teller.wait((f"may not Write topic {copy}", *grants), "PartitionsHeld")
        said = teller.examined()
        assert [text for text in grants if text not in said] == [], said
        target.stop()
        teller.wait(("the target does not answer",), "FlowNotWell")
        assert f"target cluster {flow.target_alias} does not answer" in teller.examined()
        target.start()


@pytest.mark.parametrize(("ends", "comes_back"), [("stop", "start"), ("freeze", "thaw")])
def test_a_source_that_goes_is_named_though_all_its_topics_are_paused(
    setup: Setup, new_region: NewRegion, ends: str, comes_back: str
) -> None:
    source, topic = new_region("paused"), setup.unique("paused")
    setup.create_topic(source, topic, 2)
    flow = setup.flow(topic, SOON, source=source)
    with running(flow.file) as mirror:
        teller = Teller(mirror, flow)
        told = command_here(
            "flow", "pause", flow.name, "--topic", topic, "--url", public_url(mirror)
        )
        assert told.exit_code == 0, told.output
        until_equal(lambda: teller.total("mm2py_partitions", state="PAUSED"), 2, alive=mirror)
        cause = f"no broker of cluster {flow.source_alias}"
        getattr(source, ends)()
        teller.wait((cause,), "FlowNotWell")
        getattr(source, comes_back)()
        until(lambda: cause not in teller.described(), 90, "it is back", alive=mirror)
