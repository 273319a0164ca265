"""A rate is that of the lanes which run: of verify and archive by the driver's desk, of a backfill by its leases."""

import time
from pathlib import Path

import pytest

from mm2py.client.pacing import ByteRate
from mm2py.clock import SYSTEM_CLOCK
from mm2py.testing.waiting import eventually
from mm2py_jobs.copy.dealing import DealtWork, answers_of
from mm2py_jobs.copy.rate_desk import opened_desk, part_of_rate
from mm2py_jobs.spark.session import OpenSession
from tests.integration.mirror_process import until
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, copied, read, write
from tests.spark.backfill_process import BackfillProcess
from tests.spark.lane_functions import until_alone

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]


async def has(rate: ByteRate, bytes_per_s: float) -> None:
    await eventually(lambda: rate.bytes_per_s == bytes_per_s, within_s=60)


async def test_a_lane_that_comes_or_ends_changes_the_parts_of_the_others(
    lanes_session: OpenSession,
) -> None:
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
        until_alone,
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
