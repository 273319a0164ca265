"""What ``mm2py backfill`` refuses, on real brokers: with topic, partition and numbers, and nothing changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import write_flow
from tests.integration.traffic import Sent, ends, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import command, command_line

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(240)]


def test_targets_that_cannot_take_history_are_refused_by_plan_and_by_run(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Callable[[str], str],
) -> None:
    mark = unique("refused")
    full, short, good = f"{mark}-full", f"{mark}-short", f"{mark}-good"
    for topic in (full, short, good):
        create_topic(region_a, topic, 3)
        write(region_a, topic, [Sent(i % 3, b"v%d" % i) for i in range(30)])
    flow = write_flow(tmp_path, region_a, region_b, f"{mark}-.*")
    create_topic(region_b, flow.remote(full), 3)
    write(region_b, flow.remote(full), [Sent(1, b"of another program")])
    create_topic(region_b, flow.remote(short), 2, config={"max.message.bytes": "2000"})

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
    assert ends(region_b, flow.remote(good)) == {}  # not even created
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


def test_a_source_or_a_spark_master_that_does_not_answer_is_named(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Callable[[str], str],
) -> None:
    topic = unique("named")
    create_topic(region_a, topic)
    write(region_a, topic, [Sent(0, b"v")])
    flow = write_flow(tmp_path, region_a, region_b, topic)
    ended = command_line(flow, "run", "--master", "spark://127.0.0.1:9")
    assert ended.code == 1
    assert "Spark master spark://127.0.0.1:9 does not accept connections" in ended.err
    assert command(flow, "status").report["state"] is None
    flow.file.write_text(flow.file.read_text().replace(region_a.bootstrap_servers, "127.0.0.1:9"))
    silent = command(flow, "plan")
    assert silent.code == 1
    assert "127.0.0.1:9" in silent.err
