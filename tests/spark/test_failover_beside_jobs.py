"""A failover beside a stream and beside a backfill, on real brokers: each refuses beside the other, and a command ends what a dead driver left."""

import signal
import subprocess

import pytest

from mm2py_cli.output import UNHEALTHY
from tests.integration.failovers import Drivers, failover_of
from tests.integration.mirror_process import MM2PY, Flow, running, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Sent,
    assert_equal,
    copied,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.spark.backfill_process import MASTER, BackfillProcess, command_line
from tests.spark.test_stream import BEGUN, ON_SPARK, stream_of

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
]

RECORDS = 3_000
LARGE = b"x" * 1_000
"""So that a lane with the smallest rate is still at it when its driver is killed."""


@pytest.fixture
def orders(setup: Setup) -> str:
    return setup.topic("orders", 2, config={})


def more(region: KafkaAddress, topic: str, count: int = RECORDS) -> None:
    write(region, topic, [Sent(n % 2, b"%d " % n + LARGE) for n in range(count)])


def refused_failover(drivers: Drivers, flow: Flow, text: str) -> None:
    """Plan, drill and run refuse, whatever loss is accepted; nothing is recorded."""
    report = flow.file.parent / "drill.json"
    for words in (
        ("failover", "--plan"),
        ("failover", "--execute", "--accept-loss", "1000000"),
        ("drill", "--report", str(report)),
    ):
        ended = drivers.run(*words)
        assert ended.code == UNHEALTHY, drivers.said[-1]
        assert text in ended.said, drivers.said[-1]
    assert failover_of(flow.target, flow.source_alias) is None


@pytest.mark.chaos
def test_a_stream_and_a_failover_refuse_each_other_and_a_dead_stream_is_ended_by_a_command(
    setup: Setup, orders: str
) -> None:
    flow = setup.flow(orders, ON_SPARK)
    more(setup.a, orders)
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        with stream_of(flow, "--term", "8") as stream:
            stream.wait_for_log(BEGUN, 300)
            before = copied(flow, orders)
            more(setup.a, orders)
            wait_for_progress(stream, flow, orders, 100, before=before)
            refused_failover(drivers, flow, "end it with SIGTERM where it runs")
            alive = cancel_stream(flow)
            assert alive.returncode == 3, alive
            assert "copies" in alive.stderr
            stream.kill()
        refused_failover(drivers, flow, f"mm2py stream FILE --flow '{flow.name}' --cancel")
        more(setup.a, orders)
        cancelled = cancel_stream(flow)
        assert cancelled.returncode == 0, cancelled
        # It may be refused until the workers have taken back what the stream had.
        until_equal(
            lambda: drivers.run("failover", "--execute", "--settle", "1", kill_at="DRAIN").code,
            -signal.SIGKILL,
        )
        late = stream_of(flow, name="late")
        assert late.wait(120) == 3, late.tail()
        assert "Spark copies nothing beside it" in late.log()
        done = drivers.execute("failover")
        assert done.document["missing"] == 0
        assert_equal(*wait_for_copy(mirror, flow, orders, timeout_s=120))


def cancel_stream(flow: Flow) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MM2PY, "stream", str(flow.file), "--flow", flow.name, "--cancel"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_backfill_and_a_failover_refuse_each_other_and_a_dead_backfill_is_ended_by_a_command(
    setup: Setup, orders: str
) -> None:
    flow = setup.flow(orders)
    with running(flow.file) as mirror:
        drivers = Drivers(flow, mirror)
        drivers.change_flow("stop", "STOPPED")
        more(setup.a, orders)
        with BackfillProcess(flow, "--rate-limit", "30000") as backfill:
            backfill.wait_copying()
            refused_failover(drivers, flow, "wait for its end (mm2py backfill status")
            backfill.kill()
        refused_failover(drivers, flow, f"mm2py backfill cancel FILE --flow '{flow.name}'")
        cancelled = command_line(flow, "cancel")
        assert cancelled.code == 0, cancelled
        drivers.change_flow("resume", "RUNNING")
        drivers.run("failover", "--execute", "--settle", "1", kill_at="DRAIN")
        late = command_line(flow, "run", "--master", MASTER)
        assert late.code == 3, late
        assert "Spark copies nothing beside it" in late.err
        done = drivers.execute("failover")
        assert done.document["missing"] == 0
        assert_equal(*wait_for_copy(mirror, flow, orders, timeout_s=120))
