"""Readiness, lag and metrics while brokers are stopped or frozen: an unknown value has no number."""

import urllib.request
from typing import Any

import pytest

from tests.integration.mirror_process import SHORT_SESSION, Mirror, running, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.sinks import a_flow, wait_committed, wait_ready
from tests.integration.traffic import Load, Sent, wait_for_copy, write
from tests.kit.kafka.region import Region
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

SESSION = "consumer.override.session.timeout.ms"


class Displays:
    """What a worker shows of its only flow."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror, self._url = mirror, public_url(mirror)
        ((self._flow,),) = [[it["flow"] for it in self._ask("flows")]]

    def _ask(self, path: str) -> Any:
        return ask(self._url + path)[1]

    def health(self) -> tuple[int, dict[str, str]]:
        return ask(self._url + "health")

    def unhealthy(self) -> dict[str, str] | None:
        """Return what a 503 says."""
        code, body = self.health()
        return body if code == 503 else None

    def lag(self) -> tuple[int | None, int | None]:
        """Of its only topic."""
        topics = self._ask("lag")
        return (topics[0]["lag_records"], topics[0]["lag_ms"]) if topics else (None, None)

    def notes(self) -> str:
        found = self._ask(f"flows/{self._flow}")
        return str(found["notes"]) + str(found["errors"])

    def samples(self, name: str) -> list[float]:
        with urllib.request.urlopen(f"{self._url}metrics", timeout=60) as reply:  # noqa: S310 - http to ourselves
            lines = reply.read().decode().splitlines()
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{")]

    def wait_unknown(self) -> None:
        """Wait until the lag is not known, and its age grows."""

        def aged() -> int | None:
            records, age_ms = self.lag()
            return age_ms if records is None else None

        first = until(aged, 90, lambda: f"the lag to be unknown: {self.lag()}", alive=self._mirror)
        until(lambda: (aged() or 0) > first, 120, "its age to grow", alive=self._mirror)
        # That of the topic is unknown as soon as that of one partition is.
        until_equal(lambda: self.samples("mm2py_source_lag_records"), [], "samples of lag")
        assert max(self.samples("mm2py_rpo_seconds")) * 1000 > first

    def wait_current(self) -> None:
        """Wait until everything is well."""
        until_equal(lambda: (self.health()[0], self.lag()), (200, (0, 0)), alive=self._mirror)


def test_while_clusters_are_frozen_or_dead_health_and_lag_say_so(
    setup: Setup, new_region: NewRegion
) -> None:
    source, target = new_region("source"), new_region("target")
    topic = setup.topic("outage", 2, on=source)
    flow = setup.flow(topic, SHORT_SESSION, source=source, target=target)
    write(source, topic, [Sent(number % 2, b"%d" % number) for number in range(20)])
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        shown = Displays(mirror)
        shown.wait_current()
        _freeze_source(source, shown)
        shown.wait_current()
        for region in (source, target):
            region.kill()
        body = until(shown.unhealthy, 120, "health to be 503", alive=mirror)
        assert body["status"] == "starting"
        assert "the target does not answer" in body["message"] or "group" in body["message"]
        shown.wait_unknown()
        assert shown.health()[0] == 503, "as long as it lasts"
        assert "grant" not in shown.notes()
        for region in (source, target):
            region.start()
        shown.wait_current()


def test_a_flow_that_a_group_copies_says_so_too(setup: Setup, new_region: NewRegion) -> None:
    source = new_region("source")
    topic = setup.topic("outage", 2, on=source)
    write(source, topic, [Sent(number % 2, b"%d" % number) for number in range(20)])
    # Once its session has ended a member has no partitions, and their lag has no age.
    flow = a_flow(setup.folder, source, setup.b, topic, {SESSION: "60000"})
    with Mirror(flow.file) as mirror:
        wait_ready(mirror, 2)
        wait_committed(mirror, flow, topic)
        shown = Displays(mirror)
        shown.wait_current()
        with Load(source, topic, 2, rate=100) as load:
            load.wait_acked(100)
            # As a rule a commit is under way then, which holds the thread of a member for up to 90 s.
            _freeze_source(source, shown)
        shown.wait_current()
        mirror.stop()


def _freeze_source(source: Region, shown: Displays) -> None:
    source.freeze()
    try:
        shown.wait_unknown()
        # The flow is DEGRADED: what it does besides goes on.
        until_equal(lambda: shown.health()[0], 200, "health beside a silent source")
    finally:
        source.thaw()
