"""The operator at night without the page: cause and remedy by command line and doctor, and an alert that fires.

Flow: something is broken on a real broker -> ``mm2py flow describe``, ``mm2py doctor``, the samples that the rule of an alert reads.
``test_page_night`` has the same rows on the page; that each rule fires on such samples: ``unit/workers/test_examples``.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mm2py_cli.flow_commands import WELL
from tests.integration.cluster_changes import forbid_writing
from tests.integration.mirror_process import Flow, Mirror, command_here, running, until
from tests.integration.night_scenes import AT_START, SOON, at_start, numbered
from tests.integration.rest_asking import public_url
from tests.integration.secured import SecuredRegion
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, wait_for_copy, write
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

    def wait(self, texts: tuple[str, ...], alert: str) -> None:
        """Wait until the command line has these texts and the alert is due."""
        until(
            lambda: all(text in self.described() for text in texts),
            90,
            lambda: f"{texts} in: {self.described()}",
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


def test_a_right_that_is_missing_on_a_copy_and_a_target_that_stops(
    setup: Setup, new_region: NewRegion
) -> None:
    target = new_region("night", properties={"super.users": "User:nobody"})
    topic = setup.topic("night")
    write(setup.a, topic, numbered(10))
    flow = setup.flow(topic, SOON, target=target)
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        teller, copy = Teller(mirror, flow), flow.remote(topic)
        assert not any(map(teller.fires, ALERTS))
        forbid_writing(target, copy)
        write(setup.a, topic, numbered(10))
        grants = ("kafka-acls.sh", "--operation Write", f"--topic {copy}")
        teller.wait((f"may not Write topic {copy}", *grants), "PartitionsHeld")
        said = teller.examined()
        assert [text for text in grants if text not in said] == [], said
        target.stop()
        teller.wait(("the target does not answer",), "FlowNotWell")
        assert f"target cluster {flow.target_alias} does not answer" in teller.examined()
        target.start()
