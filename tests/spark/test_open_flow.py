"""The flow of bulk commands: which one a file has, what happens where its target does not answer or the driver of a job is gone, and what a job of another package makes of it."""

import asyncio
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from mm2py.clock import SYSTEM_CLOCK, closing
from mm2py.config.class_names import SOURCE_NAME
from mm2py.errors import RetriableError, UsageError
from mm2py.mirror.backfills import Job, JobKind, JobState, Lease, LeaseState
from mm2py_jobs.open_flow import flow_plan, flow_sides, reads_committed
from mm2py_jobs.spark.session import OpenSession
from mm2py_workers.flow_target import FlowTarget
from tests.integration.mirror_process import Flow, command_here, running, until, write_file
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, wait_for_copy, write

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "extend.md"
LINES = {
    "clusters": "A, B",
    "A.bootstrap.servers": "127.0.0.1:9",
    "B.bootstrap.servers": "127.0.0.1:9",
    "A->B.enabled": "true",
    "A->B.topics": "orders",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "mm2.properties"
    write_file(found, LINES)
    return found


def test_without_its_target_only_what_needs_none_takes_the_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:9"):
        flow_sides(file, "A->B", None)
    sides = flow_sides(file, "A/B", None, needs_target=False)
    assert sides.chooses("orders")
    assert not sides.chooses("payments")
    assert "the file alone counts" in capsys.readouterr().err
    assert flow_sides(file, "A->B", "payments", needs_target=False).chooses("payments")


def test_a_flow_that_the_file_lacks_is_refused_one_that_it_disables_is_not(file: Path) -> None:
    with pytest.raises(UsageError, match="is no flow of"):
        flow_plan(file, "A->C")
    write_file(file, {**LINES, "A->B.enabled": "false"})
    # What it has copied before can be verified, archived and restored.
    assert flow_sides(file, "A->B", None, needs_target=False).chooses("orders")


@pytest.mark.parametrize(
    ("lines", "committed"),
    [
        ({}, False),
        ({"A.consumer.isolation.level": "read_committed"}, True),
        ({"B.exactly.once.source.support": "enabled"}, True),
        (
            {
                "B.exactly.once.source.support": "enabled",
                "A.consumer.isolation.level": "read_uncommitted",
            },
            False,
        ),
    ],
)
def test_what_a_flow_copies_of_transactions_is_what_its_consumer_says_where_it_says_so(
    file: Path, lines: dict[str, str], committed: bool
) -> None:
    write_file(file, LINES | lines)
    plan = flow_plan(file, "A->B")
    assert reads_committed(plan, plan.connectors[SOURCE_NAME]) == committed
    assert flow_sides(file, "A->B", None, needs_target=False).read_committed == committed


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
        async with closing(FlowTarget(plan.name, plan.props, SYSTEM_CLOCK)) as target:
            await target.open()
            await target.jobs.post([job, *leases])

    asyncio.run(write())


@pytest.mark.parametrize("reset", ["latest", pytest.param("earliest", marks=pytest.mark.faults)])
def test_an_ended_stream_names_partitions_that_would_begin_at_the_ends_of_their_logs(
    setup: Setup, reset: str
) -> None:
    topic = setup.topic("orders", 2, config={})
    more = {"{source}->{target}.flow.engine": "spark", "{source}.consumer.auto.offset.reset": reset}
    flow = setup.flow(topic, more)
    left_stream(flow, topic, 2)
    command = ("job", "stream", "cancel", flow.file, "--flow", flow.name)
    ended = command_here(*command)
    assert ended.exit_code == 0, ended.output
    named = f"2 partitions have no stored position ({topic}-0, {topic}-1)" in ended.stderr
    assert named is (reset == "latest"), ended.stderr
    again = command_here(*command)
    assert (again.exit_code, "no stream" in again.stderr) == (3, True), again.output


def test_the_page_s_job_counts_with_lanes_and_workers_without_it_show_it(
    setup: Setup, lanes_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = re.findall(r"## A job\n(.*?)\n## ", PAGE.read_text("utf-8"), re.DOTALL)
    module, project = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    ((group, points),) = tomllib.loads(project)["project"]["entry-points"].items()
    (setup.folder / "count_job.py").write_text(module)
    info = setup.folder / "count_job-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: count-job\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\ncount = {points['count']}\n")
    topic = setup.topic("counted", 2)
    flow = setup.flow(topic)
    write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(41)])
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        monkeypatch.setattr(sys, "path", [str(setup.folder), *sys.path])
        lanes_session.spark.sparkContext.addPyFile(str(setup.folder / "count_job.py"))
        words = ("run", flow.file, "--flow", flow.name, "-o", "json")
        ended = command_here("job", "count", *words)
        assert ended.exit_code == 0, ended.output
        report = json.loads(ended.stdout)
        assert (report["flow"], report["records"]) == (flow.name, 41)
        assert {it["partition"]: it["records"] for it in report["partitions"]} == {0: 21, 1: 20}
        url = f"{public_url(mirror)}jobs/count"
        # The worker reads what the driver wrote a moment after it has ended.
        until(lambda: ask(url)[1][0]["state"] == "DONE", 90, lambda: str(ask(url)), alive=mirror)
        status, (job,) = ask(url)
        shown = {it: job[it] for it in ("kind", "state", "done", "total", "records", "result")}
        assert (status, shown) == (
            200,
            {"kind": "count", "state": "DONE", "done": 41, "total": 41, "records": 41, "result": "2 partitions"},
        )  # fmt: skip
