"""``mm2py stream`` on real brokers under load: killed, moved to and from a worker, never a record lost or doubled."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    copied,
    ends,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import (
    MM2PY,
    attempts,
    flow_name,
    freeze_tree,
    kill_all,
    orphan_worker,
    spark_workers,
    taken_over,
    thaw,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(1_500),
]

ON_SPARK = {
    "{source}->{target}.flow.engine": "spark",
    "refresh.topics.interval.seconds": "2",
}


BEGUN: Final = "copying .* lanes"
CLUSTER: Final = "local-cluster[2,1,512]"
SPARK_DEFAULTS: Final = """\
spark.network.timeout 20s
spark.network.timeoutInterval 5s
spark.executor.heartbeatInterval 4s
spark.executor.memory 512m
spark.task.maxFailures 8
"""


def stream_of(
    flow: Flow,
    *options: str,
    name: str = "stream",
    master: str = "local[2]",
    environ: Mapping[str, str] | None = None,
) -> Mirror:
    """Start ``mm2py stream``."""
    arguments = ("--flow", flow_name(flow), "--master", master, "-o", "json", *options)
    return Mirror(flow.file, *arguments, name=name, program=(MM2PY, "stream"), environ=environ)


def wait_copying(stream: Mirror, flow: Flow, topic: str, more: int = 1_000) -> None:
    """Wait until records arrive."""
    before = copied(flow, topic)
    until(lambda: copied(flow, topic) >= before + more, 300, "records", alive=stream)


def report_of(stream: Mirror) -> dict[str, object]:
    """Return what a stream printed at its end."""
    log = stream.log()
    found = json.JSONDecoder().raw_decode(log, log.index("\n{") + 1)[0]
    return dict(found)


def paused_alone(asked: Asked, stream: Mirror, flow: Flow, topic: str) -> None:
    """Pause one partition over REST: it waits, also in the next terms, and continues when it is resumed."""
    remote = flow.remote(topic)

    def stays(more: int) -> bool:
        before = ends(flow.target, remote)
        until(lambda: ends(flow.target, remote)[0] >= before[0] + more, 120, "others", alive=stream)
        return ends(flow.target, remote)[1] == before[1]

    asked.done("POST", f"{path_of(flow)}/pause", topic=topic, partition=1)
    until(lambda: stays(100), 60, "the partition to be paused", alive=stream)
    assert stays(4_000)  # longer than a term
    paused = ends(flow.target, remote)[1]
    asked.done("POST", f"{path_of(flow)}/resume", topic=topic, partition=1)
    until(lambda: ends(flow.target, remote)[1] > paused, 60, "it to continue", alive=stream)


@pytest.fixture
def orders(region_a: KafkaAddress, create_topic: CreateTopic, unique: Callable[[str], str]) -> str:
    topic = unique("orders")
    create_topic(region_a, topic, 3, config={})
    write(region_a, topic, [Sent(i % 3, b"%d" % i) for i in range(3_000)])
    return topic


@pytest.mark.chaos
def test_killed_workers_and_drivers_lose_and_double_nothing(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    orders: str,
    create_topic: CreateTopic,
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, f"{orders}.*", ON_SPARK)
    checkpoint = tmp_path / "checkpoint"
    options = ("--checkpoint", str(checkpoint), "--term", "8")
    late = f"{orders}-late"
    with Load(region_a, orders, 3, rate=800) as load:
        with stream_of(flow, *options, name="first") as stream:
            wait_copying(stream, flow, orders, 4_000)
            second = stream_of(flow, name="refused")
            assert second.wait(120) == 3, second.tail()
            assert "mm2py stream copies" in second.log()
            os.kill(spark_workers(stream.pid)[0], signal.SIGKILL)
            create_topic(region_a, late, 2, config={})
            write(region_a, late, [Sent(i % 2, b"%d" % i) for i in range(2_000)])
            until(lambda: copied(flow, late) == 2_000, 120, "the late topic", alive=stream)
            wait_copying(stream, flow, orders, 3_000)
            # Of the driver alone: its workers notice it later.
            os.kill(stream.pid, signal.SIGKILL)
            stream.wait(30)
        shutil.rmtree(checkpoint)
        with stream_of(flow, *options, name="again") as stream:
            wait_copying(stream, flow, orders, 4_000)
            load.stop()
            for topic in (orders, late):
                assert_equal(*wait_for_copy(stream, flow, topic, timeout_s=120))
            assert stream.stop() == 0, stream.tail()
            report = report_of(stream)
            assert report["state"] == "ENDED"
            assert int(str(report["records"])) >= 4_000


@pytest.mark.chaos
def test_frozen_workers_and_drivers_that_are_thawed_later_lose_and_double_nothing(
    tmp_path: Path, region_a: KafkaAddress, region_b: KafkaAddress, orders: str
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, orders, ON_SPARK)
    folder = tmp_path / "spark-conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(SPARK_DEFAULTS)

    def on_cluster(name: str) -> Mirror:
        environ = {"SPARK_CONF_DIR": str(folder)}
        return stream_of(flow, "--term", "20", name=name, master=CLUSTER, environ=environ)

    with ExitStack() as left, Load(region_a, orders, 3, rate=800) as load:
        first = left.enter_context(on_cluster("first"))
        wait_copying(first, flow, orders, 4_000)
        zombie = orphan_worker(flow, first.pid)
        left.callback(kill_all, [zombie])
        taken_over(flow, zombie)
        wait_copying(first, flow, orders, 2_000)
        thaw(zombie)
        wait_copying(first, flow, orders, 2_000)
        frozen = freeze_tree(first.pid)
        left.callback(kill_all, frozen[1:])
        holders = [pid for pid in frozen if attempts(flow, pid)]
        assert holders
        second = left.enter_context(on_cluster("second"))
        for pid in holders:
            taken_over(flow, pid, timeout_s=400)
        wait_copying(second, flow, orders, 2_000)
        thaw(*frozen)
        assert first.wait(150) == 3, first.tail()
        assert "another driver has taken" in first.log()
        wait_copying(second, flow, orders, 4_000)
        load.stop()
        assert_equal(*wait_for_copy(second, flow, orders, timeout_s=150))
        assert second.stop() == 0, second.tail()


@pytest.mark.chaos
def test_a_frozen_worker_that_spark_waits_for_is_replaced(
    tmp_path: Path, region_a: KafkaAddress, region_b: KafkaAddress, orders: str
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, orders, ON_SPARK)
    with (
        ExitStack() as left,
        Load(region_a, orders, 3, rate=800) as load,
        stream_of(flow, "--term", "20") as stream,
    ):
        wait_copying(stream, flow, orders, 4_000)
        frozen = next(pid for pid in spark_workers(stream.pid) if attempts(flow, pid))
        os.kill(frozen, signal.SIGSTOP)
        left.callback(kill_all, [frozen])
        taken_over(flow, frozen, timeout_s=400)
        assert "has not renewed its lease" in stream.log()
        thaw(frozen)
        wait_copying(stream, flow, orders, 3_000)
        load.stop()
        assert_equal(*wait_for_copy(stream, flow, orders, timeout_s=150))
        assert stream.stop() == 0, stream.tail()


def test_a_flow_moves_between_worker_and_stream_without_a_gap(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    orders: str,
) -> None:
    flow = write_flow(tmp_path, region_a, region_b, orders)
    with Load(region_a, orders, 3, rate=800) as load, Mirror(flow.file) as mirror:
        asked = Asked(mirror)
        mirror.wait_ready()
        refused = stream_of(flow, name="refused")
        assert refused.wait(60) == 3, refused.tail()
        assert f"set {flow_name(flow)}.flow.engine = spark" in refused.log()

        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "spark"}})
        until(
            lambda: "no mm2py stream" in str(asked.done("GET", path_of(flow))["errors"]),
            60,
            "the worker to report that no stream runs",
            alive=mirror,
        )
        wait_copying(mirror, flow, orders, 2_000)  # until a stream has its partitions
        with stream_of(flow, "--term", "8") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_copying(stream, flow, orders, 6_000)
            until(
                lambda: asked.done("GET", path_of(flow))["state"] == "RUNNING",
                60,
                lambda: f"a flow in order: {asked.done('GET', path_of(flow))}",
                alive=mirror,
            )
            assert asked.done("GET", path_of(flow))["engine"] == "spark"
            paused_alone(asked, stream, flow, orders)
            asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "worker"}})
            assert stream.wait(60) == 3, stream.tail()
        before = copied(flow, orders)
        until(lambda: copied(flow, orders) > before + 2_000, 90, "the worker", alive=mirror)

        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "spark"}})
        with stream_of(flow, "--term", "8", name="second") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_copying(stream, flow, orders, 3_000)
            assert stream.stop() == 0, stream.tail()
            assert int(str(report_of(stream)["records"])) >= 3_000
        wait_copying(mirror, flow, orders, 2_000)  # given back in order
        with stream_of(flow, "--term", "8", name="third") as stream:
            stream.wait_for_log(BEGUN, 300)
            wait_copying(stream, flow, orders, 3_000)
            stream.wait_for_log("term ended", 300)
            stream.kill()
        # Its driver is gone and gives nothing back: the worker does.
        asked.done("PATCH", path_of(flow), {"config": {"flow.engine": "worker"}})
        before = copied(flow, orders)
        until(lambda: copied(flow, orders) > before + 2_000, 120, "the worker", alive=mirror)
        load.stop()
        assert_equal(*wait_for_copy(mirror, flow, orders))
        assert not mirror.lines("Traceback")
