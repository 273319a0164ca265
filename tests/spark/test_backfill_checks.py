"""What ``mm2py backfill`` refuses, on real brokers: with topic, partition and numbers, and nothing changed; how one ends
that is a child process of a worker.
"""

import asyncio
from pathlib import Path

import pytest

from mm2py.mirror.backfills import Order
from mm2py.types import ClusterAlias, FlowName
from mm2py_jobs.copy.backfill_children import BackfillChildren
from mm2py_jobs.spark import session
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import running, write_file
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, ends, wait_for_copy, write
from tests.spark.backfill_process import command, command_line

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


def test_targets_that_cannot_take_history_are_refused_by_plan_and_by_run(setup: Setup) -> None:
    mark = setup.unique("refused")
    full, short, good = f"{mark}-full", f"{mark}-short", f"{mark}-good"
    for topic in (full, short, good):
        setup.create_topic(setup.a, topic, 3)
        write(setup.a, topic, [Sent(i % 3, b"v%d" % i) for i in range(30)])
    flow = setup.flow(f"{mark}-.*")
    setup.create_topic(setup.b, flow.remote(full), 3)
    write(setup.b, flow.remote(full), [Sent(1, b"of another program")])
    setup.create_topic(setup.b, flow.remote(short), 2, config={"max.message.bytes": "2000"})

    plan = command_line(flow, "plan")
    assert plan.code == 3
    refused = {
        (str(it["topic"]), it["partition"]): str(it["reason"]) for it in plan.rows("refused")
    }
    assert refused.keys() == {(full, 1), (short, 2)}
    assert "is not empty (its log ends at 1)" in refused[full, 1]
    assert "has 2 partitions" in refused[short, 2]
    small = f"{flow.remote(short)} has max.message.bytes=2000, its source "
    assert small in str(plan.report["notes"])
    assert {(str(it["topic"]), it["to"]) for it in plan.rows("partitions")} == {
        (full, 10),
        (short, 10),
        (good, 10),
    }

    run = command(flow, "run", "--master", "local[2]")
    assert (run.code, run.report["state"]) == (3, "REFUSED")
    assert ends(setup.b, flow.remote(good)) == {}  # not even created
    assert command(flow, "status").report["state"] is None

    narrowed = command(
        flow, "plan", "--topics", f"{mark}-good", "--from", "offset:4", "--to", "offset:7"
    )
    assert narrowed.code == 0, narrowed.err
    assert {(it["from"], it["to"]) for it in narrowed.rows("partitions")} == {(4, 7)}

    missing = command(flow, "plan", "--topics", "no-such-topic")
    assert missing.code == 3
    assert missing.rows("refused")[0]["topic"] == "no-such-topic"
    assert command(flow, "pause").code == 3
    usage = command(flow, "plan", "--from", "yesterday")
    assert usage.code == 2
    assert "--from 'yesterday' is not understood" in usage.err
    flow.file.write_text(flow.file.read_text().replace("enabled = true", "enabled = false"))
    disabled = command(flow, "plan")
    assert disabled.code == 1
    assert "is not enabled" in disabled.err
    assert command(flow, "status").code == 0


def test_what_is_paused_alone_is_left_out_and_copied_by_the_flow_once_it_is_resumed(
    setup: Setup,
) -> None:
    mark = setup.unique("paused")
    whole, part, other = f"{mark}-whole", f"{mark}-part", f"{mark}-other"
    for topic in (whole, part, other):
        setup.create_topic(setup.a, topic, 2)
    flow = setup.flow(f"{mark}-.*")
    with running(flow.file) as mirror:
        asked = Asked(mirror)
        asked.done("POST", f"{path_of(flow)}/pause", topic=whole)
        asked.done("POST", f"{path_of(flow)}/pause", topic=part, partition=1)
    for topic in (whole, part, other):
        write(setup.a, topic, [Sent(i % 2, b"v%d" % i) for i in range(20)])
    run = command(flow, "run", "--master", "local[2]")
    assert run.code == 0, run.err
    assert {(it["topic"], it["partition"]) for it in run.rows("partitions")} == {
        (part, 0), (other, 0), (other, 1),
    }  # fmt: skip
    plan = command(flow, "plan")
    assert f"left out: {part}-1, {whole} (paused alone" in str(plan.report["notes"])
    with running(flow.file) as mirror:
        asked = Asked(mirror)
        assert_equal(*wait_for_copy(mirror, flow, other))
        assert ends(setup.b, flow.remote(whole)) == {0: 0, 1: 0}
        assert ends(setup.b, flow.remote(part)) == {0: 10, 1: 0}
        asked.done("POST", f"{path_of(flow)}/resume", all_topics=True)
        for topic in (whole, part):
            assert_equal(*wait_for_copy(mirror, flow, topic))


def test_a_source_or_a_spark_master_that_does_not_answer_is_named(setup: Setup) -> None:
    topic = setup.topic("named")
    write(setup.a, topic, [Sent(0, b"v")])
    flow = setup.flow(topic)
    ended = command_line(flow, "run", "--master", "spark://127.0.0.1:9")
    assert ended.code == 1
    assert "Spark master spark://127.0.0.1:9 does not accept connections" in ended.err
    assert command(flow, "status").report["state"] is None
    flow.file.write_text(flow.file.read_text().replace(setup.a.bootstrap_servers, "127.0.0.1:9"))
    silent = command(flow, "plan")
    assert silent.code == 1
    assert "127.0.0.1:9" in silent.err


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
ORDER = Order(id="j", master="local[2]")


@pytest.fixture
def children(tmp_path: Path) -> BackfillChildren:
    """A worker whose clusters do not answer."""
    file = tmp_path / "mm2.properties"
    dead = {f"{alias}.bootstrap.servers": "127.0.0.1:9" for alias in "AB"}
    write_file(file, {"clusters": "A, B", "A->B.enabled": "true", **dead})
    return BackfillChildren(file)


async def test_why_a_command_failed_is_its_last_word(children: BackfillChildren) -> None:
    planned = await children.plan(FLOW, ORDER)
    assert (planned.code, planned.out) == (1, "")
    assert "127.0.0.1:9" in planned.cause
    usage = await children.run(FLOW, Order(id="j", start="yesterday", wait_executors_s=600))
    assert usage.code == 2
    assert "--from 'yesterday' is not understood" in usage.cause
    refused = await children.run(FLOW, Order(id="j", wait_executors_s=-1))
    assert "--wait-executors" in " ".join(refused.log)


async def test_a_child_that_is_ended_with_its_worker_leaves_nothing_behind(
    children: BackfillChildren,
) -> None:
    running = asyncio.create_task(children.run(FLOW, ORDER))
    await asyncio.sleep(0)
    async with asyncio.timeout(120):
        while not children.running:  # noqa: ASYNC110 - a process is started
            await asyncio.sleep(0.01)
        await children.close()
        ended = await running
    assert ended.code != 0
    assert not children.running


async def test_a_missing_extra_or_java_is_named(
    children: BackfillChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await children.missing("") == ""
    monkeypatch.setenv("MM2PY_JAVA", "/nowhere/java")
    assert "no Java 17" in await children.missing("local[2]")
    assert await children.missing("sc://host") == ""  # its server has one

    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(session, "find_spec", nothing)
    assert "pip install 'mm2py[spark]'" in await children.missing("")
