"""Jobs whose brokers throttle every client (KIP-219), stand still, or are old: they take longer, and are right."""

import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Final, cast

import pytest

from mm2py_jobs.spark.session import OpenSession
from tests.integration.other_releases import region_of
from tests.integration.setups import Setup
from tests.integration.test_quotas import throttled
from tests.integration.traffic import Sent, assert_equal, read, write
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.matrix import matrix
from tests.spark.backfill_process import Ended, here

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(600),
]

RECORDS, VALUE_BYTES = 100, 10_000
LOCAL: Final = ("--master", "local[2]")
IMPATIENT: Final = {
    f"{{{side}}}.{client}request.timeout.ms": "2000"
    for side in ("source", "target")
    for client in ("", "consumer.", "producer.", "admin.")
}
SLOWLY: Final = ("--rate-limit", "120000")
LANES_OPEN_S: Final = 2.0
DARK_S: Final = 7.0
"""Longer than a lane's lease and some requests."""

Sides = tuple[KafkaAddress, KafkaAddress, AbstractContextManager[None], Sequence[str]]


@contextmanager
def dark(region: Region, session: OpenSession) -> Generator[None]:
    """Hold a region for a while in the middle of each of Spark's jobs."""
    ended = threading.Event()

    def hold() -> None:
        jobs = session.spark.sparkContext.statusTracker()
        seen = set[int]()
        while not ended.wait(0.2):
            begun = set(jobs.getActiveJobsIds()) - seen
            if not begun:
                continue
            seen |= begun
            ended.wait(LANES_OPEN_S)
            region.freeze()
            until = monotonic() + DARK_S
            # A command that begins while its cluster does not answer ends with 1.
            while begun & set(jobs.getActiveJobsIds()) and monotonic() < until:
                ended.wait(0.2)
            region.thaw()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        ended.set()
        holder.join()


@pytest.fixture
def sides(
    setup: Setup, request: pytest.FixtureRequest, lanes_session: OpenSession
) -> Generator[Sides]:
    hindrance, is_target = cast("tuple[str, int]", request.param)
    if hindrance == "throttled":
        rates = (setup.a, "consumer"), (setup.b, "consumer"), (setup.b, "producer")
        yield setup.a, setup.b, throttled(*rates), ()
    elif hindrance == "dark":
        a, b = cast("tuple[Region, Region]", request.getfixturevalue("own_regions"))
        yield a, b, dark(b if is_target else a, lanes_session), SLOWLY
    else:
        with region_of(hindrance) as old:
            source, target = (setup.a, old) if is_target else (old, setup.b)
            yield source, target, nullcontext(), ()


@pytest.mark.parametrize(
    "sides",
    matrix(
        [(("throttled", 0),), (("2.4.1", 0),), (("2.8.2", 1),)],
        [(("dark", 0),), (("dark", 1),), (("2.8.2", 0),)],
    ),
    indirect=True,
)
def test_jobs_wait_for_brokers_that_throttle_or_stand_still_or_are_old_and_are_right(
    setup: Setup, sides: Sides
) -> None:
    source, target, hindered, pace = sides
    topic = setup.topic("orders", 2, on=source, config={"retention.ms": "-1"})
    flow = setup.flow(topic, IMPATIENT, source=source, target=target)
    history = [Sent(n % 2, b"%d" % n + bytes(VALUE_BYTES)) for n in range(RECORDS)]
    write(source, topic, history, linger_ms=5)
    folder, again = str(setup.folder / "archive"), setup.unique("again")

    def done(*words: str) -> Ended:
        kind = words[: 1 + (words[0] == "backfill")]
        ended = here(flow, kind, *words[len(kind) :], *LOCAL, *pace)
        assert ended.code == 0, (words, ended.out, ended.err)
        return ended

    with hindered:
        assert done("backfill", "run").report["state"] == "DONE"
        verified = done("verify", "--tier", "2")
        assert [row["checked_records"] for row in verified.rows("partitions")] == [RECORDS // 2] * 2
        write(target, flow.remote(topic), [Sent(0, b"of another program")])
        repaired = done("verify", "--repair", "--delete-copies")
        assert [it["done"] for it in repaired.rows("repairs")] == [True]
        assert done("archive", "--to", folder).report["records"] == RECORDS
        rename = f"({topic})={again}"
        assert done("restore", "--from", folder, "--rename", rename).report["records"] == RECORDS
    assert_equal(read(source, topic), read(target, again))
