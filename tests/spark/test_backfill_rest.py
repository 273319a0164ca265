"""Backfills over REST on real brokers: planned, started, watched, ended with their worker, and continued."""

import urllib.request
from collections.abc import Mapping
from typing import Any, cast

import pytest

from mm2py_jobs.open_flow import flow_sides
from tests.integration.mirror_process import Flow, Mirror, until, until_equal
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write
from tests.spark.backfill_process import SLOW_FLOW, command, drivers_of

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
]


RECORDS = 40_000


class Backfills:
    """``/backfills`` of one worker, as a user asks."""

    def __init__(self, mirror: Mirror) -> None:
        self.url = public_url(mirror)

    def ask(self, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        return ask(f"{self.url}{path}", method, body)

    def plan(self, flow: Flow, **more: object) -> tuple[int, Any]:
        body = {"flow": flow.name, "master": "local[2]", "rate_limit": 60_000, **more}
        return self.ask("backfills", "POST", body)

    def change(self, identifier: str, action: str) -> Mapping[str, Any]:
        status, view = self.ask(f"backfills/{identifier}:{action}", "POST")
        assert status == 202, view
        return cast("Mapping[str, Any]", view)

    def show(self, identifier: str) -> Mapping[str, Any]:
        status, view = self.ask(f"backfills/{identifier}")
        assert status == 200, view
        return cast("Mapping[str, Any]", view)

    def wait_for(self, identifier: str, state: str, records: int = 0) -> Mapping[str, Any]:
        """Wait for a state and so many records; FAILED is not waited for by accident."""
        seen: Mapping[str, Any] = {}

        def there() -> bool:
            nonlocal seen
            seen = self.show(identifier)
            assert seen["state"] in (state, "STARTING", "RUNNING", "PAUSED"), seen
            return bool(seen["state"] == state and seen["records"] >= records)

        until(there, 300, lambda: f"{state} with {records} records: {dict(seen)}")
        return seen


@pytest.fixture
def history(setup: Setup) -> tuple[Flow, str]:
    """A flow whose file names another topic, and 9 MB of history on its source."""
    topic = setup.topic("history", 2)
    write(setup.a, topic, [Sent(i % 2, b"%d-" % i + b"x" * 200) for i in range(RECORDS)])
    return setup.flow(f"not-{topic}", SLOW_FLOW | CALM), topic


def add_topic(rest: Backfills, flow: Flow, topic: str) -> None:
    """Let the flow copy the topic, over REST."""
    path = f"flows/{flow.name.replace('>', '%3E')}"
    status, answer = rest.ask(path, "PATCH", {"config": {"topics": topic}})
    assert status == 200, answer


def _unless_momentary(answer: tuple[int, Any]) -> tuple[int, Any] | None:
    status, body = answer
    return None if status == 409 and "momentarily" in body["message"] else answer


def gauges(rest: Backfills, flow: Flow) -> dict[str, float]:
    """Return the metrics of backfills of a flow, by name and state."""
    with urllib.request.urlopen(f"{rest.url}metrics", timeout=90) as reply:  # noqa: S310 - http to ourselves
        lines = reply.read().decode().splitlines()
    mark = f'{{flow="{flow.name}"'
    return {
        line.rpartition(" ")[0].replace(mark, ""): float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("mm2py_backfill_") and mark in line
    }


def test_a_backfill_over_rest_ends_with_its_worker_and_is_continued_by_the_next(
    history: tuple[Flow, str],
) -> None:
    flow, topic = history
    with Mirror(flow.file) as mirror:
        rest = Backfills(mirror)
        status, refusal = rest.plan(flow)
        assert (status, "copies no topics" in refusal["message"]) == (409, True), refusal
        add_topic(rest, flow, topic)
        # The same flow everywhere: the file, and what was changed over REST.
        seen = command(flow, "plan")
        assert {str(it["topic"]) for it in seen.rows("partitions")} == {topic}
        assert flow_sides(flow.file, flow.name, None).chooses(topic)
        status, planned = rest.plan(flow)
        assert (status, planned["state"]) == (201, "PLANNED"), planned
        assert {it["topic"] for it in planned["plan"]["partitions"]} == {topic}
        identifier = planned["id"]
        mirror.wait_ready()
        before = command(flow, "status").report
        assert before["state"] is None
        waiting = cast("Mapping[str, object]", before["planned"])
        assert (waiting["id"], waiting["state"]) == (identifier, "PLANNED")
        assert rest.change(identifier, "start")["state"] == "STARTING"
        running = rest.wait_for(identifier, "RUNNING", 1_000)
        until_equal(lambda: rest.show(identifier)["partitions_by_state"], {"COPYING": 2})
        assert rest.plan(flow)[0] == 409
        rest.change(identifier, "pause")
        rest.wait_for(identifier, "PAUSED")
        shown = command(flow, "status").report
        assert (shown["id"], shown["state"]) == (identifier, "PAUSED")
        paused = 'mm2py_backfill_state,state="PAUSED"}'
        until_equal(lambda: gauges(rest, flow).get(paused), 1, "paused by the metrics")
        numbers = gauges(rest, flow)
        assert numbers['mm2py_backfill_partitions,state="COPYING"}'] == 2
        assert numbers["mm2py_backfill_records}"] >= 1_000
        assert numbers["mm2py_backfill_offsets_left}"] > 0
        rest.change(identifier, "resume")
        rest.wait_for(identifier, "RUNNING", running["records"] + 1)
        assert mirror.stop() == 0
    assert drivers_of(flow) == []
    assert command(flow, "status").report["state"] == "FAILED"
    left = copied(flow, topic)
    assert left < RECORDS
    with Mirror(flow.file) as mirror:
        rest = Backfills(mirror)
        until(lambda: rest.ask(f"backfills/{identifier}")[0] == 200, 90, "the topic is read")
        ended = rest.show(identifier)
        assert (ended["state"], ended["cause"][:8]) == ("FAILED", "stopped;"), ended
        mirror.wait_ready()
        rest.change(identifier, "start")
        rest.wait_for(identifier, "RUNNING", 1)
        rest.change(identifier, "cancel")
        cancelled = rest.wait_for(identifier, "CANCELLED")
        assert cancelled["partitions_by_state"] == {"RELEASED": 2}
        until(lambda: drivers_of(flow) == [], 120, "the end of the driver")
        status, planned = rest.plan(flow, rate_limit=100_000_000)
        assert status == 201, planned
        rest.change(planned["id"], "start")
        done = rest.wait_for(planned["id"], "DONE")
        assert {it["target_to"] for it in done["partitions"]} == {RECORDS // 2}
        write(flow.source, topic, [Sent(0, b"live-%d" % i) for i in range(20)])
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert not mirror.lines("Traceback")


@pytest.mark.chaos
def test_a_follower_sends_on_and_the_driver_of_a_killed_worker_ends_in_order(
    history: tuple[Flow, str],
) -> None:
    flow, topic = history
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        workers = {it: Backfills(it) for it in (one, two)}
        add_topic(workers[one], flow, topic)
        leader = until(lambda: next((it for it in workers if it.lines("this worker leads")), None))
        follower = two if leader is one else one
        # Until the rebalances of the start are over there is no leader to send it on to.
        status, planned = until(lambda: _unless_momentary(workers[follower].plan(flow)))
        assert status == 201, planned
        identifier = planned["id"]
        workers[follower].change(identifier, "start")
        workers[follower].wait_for(identifier, "RUNNING", 500)
        assert leader.lines("backfill of ")
        assert not follower.lines("backfill of ")
        leader.kill()
        until(lambda: drivers_of(flow) == [], 120, "the end of the driver")
        rest = workers[follower]
        until(lambda: rest.show(identifier)["state"] == "FAILED", 120, "a failed backfill")
        assert "stopped" in rest.show(identifier)["cause"]
        assert copied(flow, topic) < RECORDS
        until_equal(lambda: rest.ask(f"backfills/{identifier}:start", "POST")[0], 202)
        rest.wait_for(identifier, "RUNNING", 1)
        rest.change(identifier, "cancel")
        rest.wait_for(identifier, "CANCELLED")
        assert not follower.lines("Traceback")
