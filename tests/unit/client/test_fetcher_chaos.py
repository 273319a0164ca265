"""Whatever brokers do, each partition is read completely, in order and once."""

import random
from collections.abc import Callable

import pytest

from mm2py.protocol import error_codes as codes
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.fetcher_rig import FETCH, Rig, fetching

PARTITIONS = 6
STEPS = 80
CODES = [
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.FENCED_LEADER_EPOCH,
    codes.UNKNOWN_LEADER_EPOCH,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.LEADER_NOT_AVAILABLE,
    codes.KAFKA_STORAGE_ERROR,
    codes.OFFSET_OUT_OF_RANGE,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.FETCH_SESSION_ID_NOT_FOUND,
    codes.INVALID_FETCH_SESSION_EPOCH,
    codes.FETCH_SESSION_TOPIC_ID_ERROR,
]


@pytest.mark.parametrize("version", [4, 11, 17])
@pytest.mark.parametrize("seed", range(4))
async def test_no_fault_of_a_broker_loses_doubles_or_reorders(seed: int, version: int) -> None:
    chance = random.Random(seed * 100 + version)
    tps = [TopicPartition("t", index) for index in range(PARTITIONS)]

    async with fetching(
        partitions=PARTITIONS, versions={FETCH: (4, version)}, rack="east", max_age_ms=100
    ) as rig:
        versions = {FETCH: (4, version)}
        async with FakeBroker(node_id=2, cluster=rig.broker.cluster, versions=versions) as other:
            written = dict.fromkeys(tps, 0)
            await rig.fetcher.assign(dict.fromkeys(tps, 0))
            for _ in range(STEPS):
                tp = chance.choice(tps)
                count = chance.randrange(1, 4)
                rig.fill(tp, range(written[tp], written[tp] + count))
                written[tp] += count
                await _misbehave(chance, rig, other, tp)
                if chance.random() < 0.5:
                    await rig.take()
            rig.fetcher.resume(tps)
            await rig.until(lambda: {tp: len(rig.read.get(tp, ())) for tp in tps} == written)
            await rig.take()
            assert rig.read == {tp: list(range(count)) for tp, count in written.items() if count}
            assert (rig.gaps, rig.failed) == ([], [])


async def _misbehave(
    chance: random.Random, rig: Rig, other: FakeBroker, tp: TopicPartition
) -> None:
    cluster, broker = rig.broker.cluster, chance.choice([rig.broker, other])
    leader = cluster.topics["t"].leaders[tp.partition]

    def move() -> None:
        cluster.nearest.pop(tp, None)
        cluster.move_leader(tp, broker.node_id)

    faults: list[Callable[[], object]] = [
        cluster.sessions.clear,
        move,
        lambda: cluster.nearest.update({tp: 3 - leader}),
        lambda: cluster.follower_codes.append(chance.choice(CODES[:7])),
        lambda: rig.fetcher.pause([tp]),
        lambda: rig.fetcher.resume([tp]),
        lambda: setattr(cluster, "throttle_ms", chance.choice([0, 5])),
        lambda: broker.fail_next(FETCH, chance.choice(CODES)),
        lambda: broker.fail_next(FETCH, chance.choice(CODES)),
        lambda: broker.fail_next(FETCH, "disconnect"),
        lambda: None,
        lambda: None,
    ]
    if chance.random() < 0.07:
        await broker.disconnect()
    else:
        chance.choice(faults)()
