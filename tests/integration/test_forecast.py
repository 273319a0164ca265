"""Retention of a real broker against its forecast: never later than the loss, and none for a topic that keeps up."""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from mm2py.clock import SYSTEM_CLOCK
from mm2py.flows.view_models import ForecastView
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import running, until, write_flow
from tests.integration.setups import Setup
from tests.integration.traffic import METADATA_TIMEOUT_S, Load, ends, reader
from tests.kit.kafka.region import KafkaAddress, Region

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]

RATE: Final = 50
"""Records per second, one segment each second."""
VALUE_BYTES: Final = 1500
RETENTION_MS: Final = 60_000
LIMIT: Final = 4_000_000
"""Of bytes in the log: about 50 s of records that wait."""
CHECK_S: Final = 1.0
PROMPT: Final = {
    "log.retention.check.interval.ms": str(round(CHECK_S * 1000)),
    "log.initial.task.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
}
LIMITS: Final = {
    "age": {"retention.ms": str(RETENTION_MS), "segment.ms": "1000"},
    "size": {"retention.bytes": str(LIMIT), "segment.ms": "1000"},
}


@pytest.fixture(scope="module")
def hasty() -> Iterator[Region]:
    """A region that deletes at once what retention gives it."""
    with Region("hasty", properties=PROMPT) as region:
        yield region


@pytest.mark.parametrize("by", [*LIMITS])
def test_retention_is_forecast_before_it_takes_a_record_that_is_not_copied(
    setup: Setup, hasty: Region, by: str
) -> None:
    stalled, keeps_up = (setup.unique(f"forecast-{word}") for word in ("stalled", "keeps-up"))
    for topic in (stalled, keeps_up):
        setup.create_topic(hasty, topic, 1, config=LIMITS[by])
    flow = write_flow(setup.folder, hasty, setup.b, f"{stalled},{keeps_up}")
    with (
        Load(hasty, stalled, 1, rate=RATE, value_bytes=VALUE_BYTES) as load,
        Load(hasty, keeps_up, 1, rate=RATE, value_bytes=VALUE_BYTES),
        running(flow.file) as mirror,
    ):
        load.wait_acked(5 * RATE)
        ask = Asked(mirror)

        def rows() -> list[ForecastView]:
            status, answer = ask("GET", f"{path_of(flow)}/forecast")
            assert status == 200
            return [ForecastView.model_validate(it) for it in answer]

        until(lambda: ends(flow.target, flow.remote(stalled)), 90, "a first copy", alive=mirror)
        ask.done("POST", f"{path_of(flow)}/pause", topic=stalled)
        until(rows, 90, "a forecast", alive=mirror)
        seen: list[ForecastView] = []

        def is_lost() -> bool:
            seen.extend(rows())
            return log_start(hasty, stalled) > ends(flow.target, flow.remote(stalled))[0]

        until(is_lost, 180, "retention to take what is not copied", alive=mirror)
        lost_ms = SYSTEM_CLOCK.now_ms()
    assert {it.topic for it in seen} == {stalled}
    assert {it.by for it in seen} == {"retention.ms" if by == "age" else "retention.bytes"}
    log.info("forecast %.1f s before", (lost_ms - seen[0].at_ms) / 1000)
    assert seen[0].in_s > 0
    assert max(it.at_ms for it in seen) <= lost_ms + CHECK_S * 1000


def log_start(region: KafkaAddress, topic: str) -> int:
    """Return the first offset of the topic's only partition."""
    with closing(reader(region)) as consumer:
        marks = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=METADATA_TIMEOUT_S)
        return marks[0]
