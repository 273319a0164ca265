"""What a topic's batches may measure is known before anything is joined or sent; the target's brokers are scripted here."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.limits import TargetLimits
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConnectionFailedError, UnsupportedVersionError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.configs import (
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    DescribedConfigs,
)


def described(topic: str, size: int, code: int = 0) -> DescribedConfigs:
    entry = ConfigEntry("max.message.bytes", str(size))
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    return DescribedConfigs(resource, code, "", () if code else (entry,))


class Brokers:
    """Answer DescribeConfigs with what is scripted, after ``answering`` is set."""

    def __init__(self, *answers: Sequence[DescribedConfigs] | Exception) -> None:
        self.answers = list(answers)
        self.answering = asyncio.Event()
        self.answering.set()
        self.asked = 0

    async def call_any(self, _call: Any) -> Sequence[DescribedConfigs]:
        self.asked += 1
        await self.answering.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def limits_of(brokers: Brokers) -> TargetLimits:
    return TargetLimits(cast("Cluster", brokers), SYSTEM_CLOCK)


async def test_a_second_caller_waits_for_the_question_under_way() -> None:
    brokers = Brokers([described("t", 70_000)])
    brokers.answering.clear()
    limits = limits_of(brokers)
    first = asyncio.create_task(limits.learn_sizes(["t"]))
    second = asyncio.create_task(limits.learn_sizes(["t"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done()
    brokers.answering.set()
    await asyncio.gather(first, second)
    assert limits.max_message_bytes("t") == 70_000
    assert brokers.asked == 1


@pytest.mark.parametrize(
    "answer",
    [[described("t", 0, codes.UNKNOWN_TOPIC_OR_PARTITION)], ConnectionFailedError("gone")],
    ids=["topic not known yet", "no answer"],
)
async def test_a_topic_is_asked_for_again_where_the_answer_says_nothing_of_it(
    answer: list[DescribedConfigs] | Exception,
) -> None:
    limits = limits_of(Brokers(answer, [described("t", 70_000)]))
    await limits.learn_sizes(["t"])
    assert limits.is_old("t")
    await limits.learn_sizes(["t"])
    assert limits.max_message_bytes("t") == 70_000


@pytest.mark.parametrize(
    "answer",
    [
        [described("t", 0, codes.TOPIC_AUTHORIZATION_FAILED)],
        UnsupportedVersionError("DescribeConfigs is not offered"),
    ],
    ids=["no right", "not offered"],
)
async def test_a_topic_whose_limit_may_not_be_read_is_opened_without(
    answer: list[DescribedConfigs] | Exception,
) -> None:
    limits = limits_of(Brokers(answer))
    await limits.learn_sizes(["t"])
    assert not limits.is_old("t")
    assert limits.max_message_bytes("t") == 0


async def test_a_refusal_asks_again_although_the_limit_is_known() -> None:
    brokers = Brokers([described("t", 70_000)], [described("t", 80_000)])
    limits = limits_of(brokers)
    await limits.learn_sizes(["t"])
    await limits.learn_sizes(["t"])
    assert brokers.asked == 1
    await limits.learn_sizes(["t"], max_age_s=0)
    assert limits.max_message_bytes("t") == 80_000
