"""What commands do about the record of a job whose driver is gone; nothing of it needs Spark."""

import asyncio
import subprocess

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.backfills import Job, JobKind, JobState, Lease, LeaseState
from mm2py_jobs.open_flow import flow_plan
from mm2py_workers.flow_target import FlowTarget
from tests.integration.mirror_process import MM2PY, Flow
from tests.integration.setups import Setup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def left_stream(flow: Flow, topic: str, partitions: int) -> None:
    """Write what a stream leaves that was killed before its lanes had stored a position."""
    job = Job(id="s", state=JobState.FAILED, run=1, lanes=1, kind=JobKind.STREAM)
    reserved = LeaseState.RESERVED
    leases = [
        Lease(topic=topic, partition=it, job="s", run=1, state=reserved, start=0, end=0, position=0)
        for it in range(partitions)
    ]

    async def write() -> None:
        plan = flow_plan(flow.file, flow.name)
        target = FlowTarget(plan.name, plan.props, SYSTEM_CLOCK)
        try:
            await target.open()
            await target.jobs.post([job, *leases])
        finally:
            await target.close()

    asyncio.run(write())


@pytest.mark.parametrize("reset", ["latest", pytest.param("earliest", marks=pytest.mark.faults)])
def test_an_ended_stream_names_partitions_that_would_begin_at_the_ends_of_their_logs(
    setup: Setup, reset: str
) -> None:
    topic = setup.topic("orders", 2, config={})
    more = {"{source}->{target}.flow.engine": "spark", "{source}.consumer.auto.offset.reset": reset}
    flow = setup.flow(topic, more)
    left_stream(flow, topic, 2)
    command = [MM2PY, "job", "stream", "cancel", str(flow.file), "--flow", flow.name]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended
    named = f"2 partitions have no stored position ({topic}-0, {topic}-1)" in ended.stderr
    assert named is (reset == "latest"), ended.stderr
    again = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert (again.returncode, "no stream" in again.stderr) == (3, True), again
