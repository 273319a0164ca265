"""Lanes share: ``--max-lanes-per-broker``, where lanes at one broker follow each other and leave their slots to others, and rates."""

import json
import signal
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import pytest
from typer.testing import CliRunner

from mm2py.client.pacing import ByteRate
from mm2py.clock import SYSTEM_CLOCK
from mm2py.mirror.backfills import LeaseState
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from mm2py_cli.app import app
from mm2py_jobs.copy.dealing import DealtWork, answers_of
from mm2py_jobs.copy.leaders import LedPartition
from mm2py_jobs.copy.rate_desk import opened_desk, part_of_rate
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.session import OpenSession, run_lanes
from tests.integration.cluster_changes import create_led_by, delete_topic
from tests.integration.mirror_process import until
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, copied, read, write
from tests.kit.kafka.region import Region
from tests.spark import lane_functions
from tests.spark.backfill_process import BackfillProcess, command, leases_of

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

ONE: Final = ("--master", "local[2]", "--lanes", "3", "--max-lanes-per-broker", "1")


def limited(session: OpenSession, lanes: int) -> OpenSession:
    return OpenSession(session.spark, owned=False, lanes=lanes, lanes_per_broker=1)


def test_lanes_of_one_broker_follow_each_other_beside_those_of_another(
    setup: Setup, region_three: Region, lanes_session: OpenSession, tmp_path: Path
) -> None:
    topic = setup.unique("led")
    create_led_by(region_three, topic, [[1], [1], [1], [2], [2], [2]])
    parts = [TopicPartition(topic, it) for it in range(6)]
    answers = answers_of(
        limited(lanes_session, 6),
        lane_functions.beside_another,
        DealtWork(
            parts,
            lambda it: 100 - it.partition,  # those of one broker come first
            lambda it: (LedPartition("source", it),),
            {"source": {"bootstrap.servers": region_three.bootstrap_servers}},
        ),
        lambda lane: {"names": [str(it.partition) for it in lane], "folder": str(tmp_path)},
        name="beside",
    )
    times = {int(str(it["name"])): (cast("float", it["begin"]), cast("float", it["end"])) for it in answers}  # fmt: skip
    assert sorted(times) == list(range(6))
    for of_one in ((0, 1, 2), (3, 4, 5)):
        for (_, ended), (began, _) in pairwise(sorted(times[it] for it in of_one)):
            assert ended <= began, times
    delete_topic(region_three, topic)


def test_a_lane_that_waits_holds_no_slot(lanes_session: OpenSession, tmp_path: Path) -> None:
    """Of three lanes one runs, until another job has had the second slot."""
    mark = tmp_path / "mark"
    begun = threading.Event()

    def brokers(numbers: Sequence[int]) -> list[str]:
        begun.set()
        return ["a"] * len(numbers)

    def other() -> None:
        assert begun.wait(90)
        lanes_session.spark.sparkContext.parallelize([str(mark)], 1).foreach(_touch)

    thread = threading.Thread(target=other)
    thread.start()
    lanes = [{"mark": str(mark)}] * 3
    run_lanes(limited(lanes_session, 3), lane_functions.until_there, lanes, tag="w", description="w", gate=LaneGate(1, brokers))  # fmt: skip
    thread.join()
    assert mark.exists()


def _touch(path: str) -> None:
    Path(path).touch()


@pytest.mark.usefixtures("lanes_session")
def test_every_job_takes_it_and_does_the_same(setup: Setup) -> None:
    topic, folder = setup.topic("all", 4, config={"retention.ms": "-1"}), setup.folder / "archive"
    write(setup.a, topic, [Sent(it % 4, b"%d" % it) for it in range(2_000)])
    flow = setup.flow(topic)
    for job in (
        ("backfill", "plan"),
        ("backfill", "run"),
        ("verify", "run"),
        ("archive", "run", "--to", str(folder)),
        ("restore", "plan", "--from", str(folder), "--rename", "(.*)=again.$1"),
        ("restore", "run", "--from", str(folder), "--rename", "(.*)=again.$1"),
    ):
        kind, verb, *options = job
        more = ONE if verb == "run" or kind != "verify" else ()
        done = CliRunner().invoke(
            app, ["job", kind, verb, str(flow.file), "--flow", flow.name, *options, *more, "-o", "json"]
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        if verb == "plan":
            assert len(report["lanes"]) == 3
    for copy in (flow.remote(topic), f"again.{topic}"):
        assert_equal(read(setup.a, topic), read(setup.b, copy))


@pytest.mark.faults
def test_a_stopped_run_ends_with_the_lanes_that_run_and_begins_none_that_waits(
    setup: Setup, tmp_path: Path
) -> None:
    """Each lane that begins is a job of Spark, in its own log of events."""
    topic = setup.topic("stopped", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(it % 3, b"." * 100) for it in range(9_000)])
    flow, events = setup.flow(topic), tmp_path / "events"
    events.mkdir()
    log = {"eventLog.enabled": "true", "eventLog.dir": events, "eventLog.rolling.enabled": "false", "eventLog.compress": "false"}  # fmt: skip
    lines = [f"spark.{key} {value}\n" for key, value in log.items()]
    (tmp_path / "spark-defaults.conf").write_text("".join(lines))
    options = "--lanes", "3", "--max-lanes-per-broker", "1", "--rate-limit", "20000"
    with BackfillProcess(flow, *options, environ={"SPARK_CONF_DIR": str(tmp_path)}) as run:
        run.wait_copying()
        run.send(signal.SIGTERM)
        ended = run.wait()
    assert (ended.code, ended.report["state"]) == (1, "FAILED"), ended.err
    assert "stopped; run the same command again" in ended.err.splitlines()[-1]
    (file,) = events.iterdir()
    begun = [it for it in file.read_text().splitlines() if '"SparkListenerJobStart"' in it]
    assert len(begun) == 1
    again = command(flow, "run", "--master", "local[2]", *options[:4])
    assert (again.code, again.report["state"]) == (0, "DONE"), again.err
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


@pytest.mark.chaos
def test_over_spark_connect_lanes_of_one_broker_follow_each_other(
    setup: Setup, connect: str
) -> None:
    topic = setup.topic("connect", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(it % 3, b"." * 100) for it in range(3_000)])
    flow = setup.flow(topic)
    seen = set[int]()

    def is_over() -> bool:
        copying = {it.lane for it in leases_of(flow) if it.state is LeaseState.COPYING}
        seen.add(len(copying))
        return not run.is_running

    with BackfillProcess(flow, *ONE[2:], "--rate-limit", "50000", master=connect) as run:
        until(is_over, 240, "the end of the run")
        ended = run.wait()
    assert (ended.code, ended.report["state"]) == (0, "DONE"), ended.err
    assert max(seen) == 1


# -- the rate of a job is that of its lanes which run: by the driver's desk, or by leases


async def has(rate: ByteRate, bytes_per_s: float) -> None:
    await eventually(lambda: rate.bytes_per_s == bytes_per_s, within_s=60)


async def test_a_lane_that_comes_or_ends_changes_others_parts(lanes_session: OpenSession) -> None:
    rates = [ByteRate(1, SYSTEM_CLOCK) for _ in range(3)]
    with opened_desk(lanes_session, 900) as desk:
        assert desk is not None
        host, port, token = desk
        async with part_of_rate({"desk": desk}, [rates[0], None]):
            await has(rates[0], 900)
            async with part_of_rate({"desk": [host, port, "guessed"]}, [rates[2]]):
                async with part_of_rate({"desk": [host, port, token]}, [rates[1]]):
                    await has(rates[1], 450)
                    await has(rates[0], 450)
                await has(rates[0], 900)
                assert rates[2].bytes_per_s == 1, "what does not know the token has no part"
    with opened_desk(lanes_session, 0) as none:
        assert none is None
    async with part_of_rate({"desk": None}, rates):  # a driver elsewhere
        assert rates[0].bytes_per_s == 900


def test_a_lane_that_waits_for_a_slot_has_no_part_and_the_last_one_has_all(
    lanes_session: OpenSession, tmp_path: Path
) -> None:
    answers = answers_of(
        OpenSession(lanes_session.spark, owned=False, lanes=3),
        lane_functions.until_alone,
        DealtWork(["a", "b", "c"], lambda name: 9 if name == "a" else 1),
        lambda names: {"names": names, "folder": str(tmp_path), "limit": 8_000},
        name="rates",
        rate_limit=8_000,
    )
    assert sorted(str(it["name"]) for it in answers) == ["a", "b", "c"]


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("lanes_session")
def test_a_skewed_history_is_copied_at_the_rate_to_its_end(setup: Setup) -> None:
    """One partition has half of it; two of six lanes run at a time, which with equal parts would have a third of the rate."""
    topic = setup.topic("skewed", 6, config={"retention.ms": "-1"})
    sizes = [5_000, 1_000, 1_000, 1_000, 1_000, 1_000]
    write(setup.a, topic, [Sent(at, b"." * 1_000) for at, size in enumerate(sizes) for _ in range(size)], batch_size=5_000)  # fmt: skip
    flow, rate, seen = setup.flow(topic), 300_000, list[tuple[float, int]]()

    def look() -> bool:
        seen.append((time.monotonic(), copied(flow, topic)))
        return seen[-1][1] == sum(sizes)

    with BackfillProcess(flow, "--rate-limit", str(rate), "--lanes", "6") as run:
        until(look, 600, "the copy")
        ended = run.wait()
    assert ended.code == 0, ended.err
    begin = next(at for at, (_, done) in enumerate(seen) if done > 1_000)
    (began_s, before), (ended_s, after) = seen[begin], seen[-1]
    pace = (after - before) * 1_000 / (ended_s - began_s)
    # A lane of a few seconds has a part while it begins and stores its last position, too.
    assert 0.6 * rate < pace < 1.1 * rate, seen
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))
