"""What Spark's own page, its REST API and its metrics tell of jobs of lanes and of ``format("mm2py")``."""

import json
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from mm2py_jobs.copy.dealing import DealtWork, answers_of
from mm2py_jobs.copy.leaders import LedPartition
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.session import OpenSession, run_lanes
from tests.integration.mirror_process import until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, write
from tests.spark import lane_functions
from tests.spark.backfill_process import command

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]  # fmt: skip
API = "/api/v1/applications/{app}"


def page(session: OpenSession, path: str) -> Any:
    context = session.spark.sparkContext
    url = f"{context.uiWebUrl}{path}".replace("{app}", context.applicationId)
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - of this machine
        return json.load(answer)


def jobs(session: OpenSession, tag: str) -> list[Any]:
    return [it for it in page(session, f"{API}/jobs") if tag in it.get("jobTags", ())]


def gauges(session: OpenSession) -> dict[str, int]:
    found = page(session, "/metrics/json/")["gauges"]
    return {
        name.rpartition("mm2py.")[2]: it["value"] for name, it in found.items() if "mm2py." in name
    }


async def test_a_job_names_its_topics_and_its_gauges_rise_while_lanes_run(
    lanes_session: OpenSession, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    def archive() -> Sequence[object]:
        return answers_of(
            OpenSession(lanes_session.spark, owned=False, lanes=3),
            lane_functions.until_marked,
            DealtWork(
                PARTITIONS, lambda it: 100 + it.partition, lambda it: (LedPartition("source", it),)
            ),
            lambda lane: {"mark": str(mark) if lane == PARTITIONS[:1] else ""},
            name="archive A->B",
        )

    with ThreadPoolExecutor() as threads:
        running = threads.submit(archive)
        await eventually(lambda: gauges(lanes_session).get("offsets_done") == 201, within_s=90)
        # Spark's page has what has ended at the next heartbeat, where nothing else happens.
        await eventually(
            lambda: jobs(lanes_session, "archive A->B")[0]["numCompletedTasks"] == 2, within_s=60
        )
        (job,) = jobs(lanes_session, "archive A->B")
        assert job["description"] == "archive A->B: orders, payments"
        assert job["jobGroup"] == "archive A->B"
        assert (job["status"], job["numTasks"], job["numCompletedTasks"]) == ("RUNNING", 3, 2)
        stages = page(lanes_session, f"{API}/stages")
        (stage,) = (it for it in stages if it["stageId"] in job["stageIds"])
        assert stage["description"] == job["description"]
        assert gauges(lanes_session)["offsets_total"] == 301
        mark.touch()
        assert not running.result(90)
    assert gauges(lanes_session)["offsets_done"] == 301


def test_a_lane_that_is_a_job_of_its_own_is_named_and_a_notebook_s_names_stay(
    lanes_session: OpenSession,
) -> None:
    context = lanes_session.spark.sparkContext
    context.setJobGroup("cell 7", "of the notebook")
    context.addJobTag("notebook")
    run_lanes(
        lanes_session,
        lane_functions.double,
        [{"number": 1}, {"number": 2}],
        tag="named",
        description="A->B backfill j",
        gate=LaneGate(1, lambda numbers: [("a",) for _ in numbers]),
        partitions=[PARTITIONS[:2], PARTITIONS[2:]],
    )
    assert sorted(it["description"] for it in jobs(lanes_session, "named")) == [
        "A->B backfill j: lane 1 of 2 orders-0, orders-1",
        "A->B backfill j: lane 2 of 2 payments-0",
    ]
    run_lanes(lanes_session, lane_functions.double, [{"number": 1}], tag="one", description="d")
    for job in (*jobs(lanes_session, "named"), *jobs(lanes_session, "one")):
        assert job["jobGroup"] == "cell 7"
        assert "notebook" in cast("list[str]", job["jobTags"])
    assert set(context.getJobTags()) == {"notebook"}
    context.removeJobTag("notebook")
    assert context.getLocalProperty("spark.job.description") == "of the notebook"
    for name in ("spark.job.description", "spark.jobGroup.id"):
        context.setLocalProperty(name, cast("str", None))


def test_a_backfill_is_named_by_flow_and_topic_and_its_bytes_are_gauges(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic = setup.topic("seen", 2, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(it % 2, b"." * 100) for it in range(1_000)])
    flow = setup.flow(topic)
    ended = command(flow, "run", "--master", "local[2]")
    assert ended.code == 0, ended.err
    named = f"{flow.name} backfill {ended.report['id']}: {topic}"

    def states() -> list[str]:
        found = page(lanes_session, f"{API}/jobs")
        return [it["status"] for it in found if it.get("description") == named]

    # Spark's page learns of ends from a queue.
    until_equal(states, ["SUCCEEDED"], "the job on Spark's page")
    now = gauges(lanes_session)
    assert (now["offsets_total"], now["offsets_done"], now["records"]) == (1_000, 1_000, 1_000)
    assert now["bytes"] > 1_000


def test_what_a_read_and_a_stream_have_read_is_in_spark_s_figures(
    setup: Setup, lanes_session: OpenSession
) -> None:
    topic, spark = setup.topic("figures", 2), lanes_session.spark
    write(setup.a, topic, [Sent(it % 2, b"." * 100) for it in range(500)])
    options = {"subscribe": topic, "kafka.bootstrap.servers": setup.a.bootstrap_servers}
    read = spark.read.format("mm2py").options(**options).load()
    read.selectExpr("length(value)").collect()
    rows = page(lanes_session, f"{API}/sql?details=true&length=1000")
    scans = [it for row in rows for it in row["nodes"] if "BatchScan" in it["nodeName"]]
    metrics = {it["name"]: it["value"] for it in scans[-1]["metrics"]}
    assert metrics["number of output rows"] == "500", metrics
    stream = spark.readStream.format("mm2py").options(**options, startingOffsets="earliest").load()
    query = (
        stream.writeStream.format("noop")
        .queryName("figures")
        .option("checkpointLocation", str(setup.folder / "state"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    progress = [it for it in query.recentProgress if it.numInputRows]
    (source,) = progress[0].sources
    ends = {topic: {"0": 250, "1": 250}}
    assert (source.numInputRows, json.loads(source.endOffset)) == (500, ends)
    assert json.loads(source.latestOffset) == ends
    assert '"metrics"' not in source.json
