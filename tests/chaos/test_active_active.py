"""Same names both ways for minutes: writers on both sides, restarts, a kill; ``MM2PY_CHAOS_ACTIVE_S=600`` by default."""

import logging
import os
import time
from typing import Final

import pytest

from tests.integration.active_active import (
    check_sides,
    wait_both_ready,
    wait_until_quiet,
    write_pair,
)
from tests.integration.mirror_process import SHORT_SESSION, Mirror
from tests.integration.setups import Setup
from tests.integration.traffic import Load, ends
from tests.kit.regions import NewRegion

DURATION_S: Final = float(os.environ.get("MM2PY_CHAOS_ACTIVE_S", "600"))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.timeout(DURATION_S * 2 + 1_400),
]

log = logging.getLogger(__name__)

PARTITIONS: Final = 4
RATE: Final = 500
VALUE_BYTES: Final = 20
"""All of both sides is read into the memory of the test."""
TURNS: Final = ("stop", "stop", "kill", "stop", "stop", "last")
MARKS: Final = (b"one", b"two")


def test_ten_minutes_of_writes_on_both_sides_make_no_loop_and_lose_nothing(
    setup: Setup, new_region: NewRegion
) -> None:
    one, two = new_region("one"), new_region("two")
    topic = setup.unique("both-ways")
    for region in (one, two):
        setup.create_topic(region, topic, PARTITIONS)
    flow = write_pair(setup.folder, one, two, topic, SHORT_SESSION)
    turn_s = DURATION_S / len(TURNS)
    with (
        Load(one, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES, mark=MARKS[0]) as first,
        Load(two, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES, mark=MARKS[1]) as second,
    ):
        for number, end in enumerate(TURNS):
            with Mirror(flow.file, name=f"{number}-{end}") as mirror:
                wait_both_ready(mirror)
                until_s = time.monotonic() + turn_s
                while time.monotonic() < until_s:
                    first.wait_acked(RATE)
                    mirror.check_running()
                if end == "kill":
                    mirror.kill()
                elif end == "stop":
                    assert mirror.stop() == 0
                else:
                    first.stop()
                    second.stop()
                    written = first.acked, second.acked
                    logs = wait_until_quiet(mirror, one, two, topic, sum(written))
                    assert mirror.stop() == 0
                    sides = check_sides(*logs, MARKS, written)
                    log.warning(
                        "active-active: %d and %d records written, log ends %d and %d, %d loops, %d doubled",
                        *written,
                        sum(ends(one, topic).values()),
                        sum(ends(two, topic).values()),
                        sides.loops,
                        sides.doubled,
                    )
                    assert sides.loops == 0
