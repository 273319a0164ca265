"""Where share groups continue, while records come and are acknowledged between any two steps of the broker."""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from mm2py.client.connect.share_positions import delivered_of, share_positions
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.share_offsets import ShareOffset, ShareOffsets
from mm2py.types import TopicPartition

TP: Final = TopicPartition("t", 0)
AWAY: Final = 15


class Broker:
    """A partition and a share group, as Kafka 4.3 keeps them.

    The stored start offset is that before the last acknowledgement. A description reads what is stored, and then asks
    the leader for the end.
    """

    def __init__(self, seed: int, *, knows_lag: bool, moves: int) -> None:
        self._chance, self._knows_lag, self.moves = random.Random(seed), knows_lag, moves
        self.end = self.start = 0
        self.stored = -1
        self.delivered: set[int] = set()
        self.ends_known = self._chance.random() < 0.9

    def move(self) -> None:
        """Let some of what happens all the time happen, while there are moves left."""
        for _ in range(self._chance.randint(0, 3)):
            if not self.moves:
                return
            self.moves -= 1
            if self._chance.random() < 0.4:
                self.end += self._chance.randint(1, 3)
            else:
                self.acknowledge(self._chance.random() < 0.6)

    def acknowledge(self, everything: bool) -> None:
        """Deliver all records, or some in any order; what is stored is the start offset of before."""
        pending = [it for it in range(self.start, self.end) if it not in self.delivered]
        if not pending:
            return
        self.stored = self.start
        some = self._chance.sample(pending, self._chance.randint(1, len(pending)))
        self.delivered |= set(pending if everything else some)
        while self.start in self.delivered:
            self.start += 1

    async def describe(self, groups: Sequence[str]) -> Mapping[str, ShareOffsets]:
        self.move()
        stored = self.stored
        count = sum(it >= stored for it in self.delivered)
        self.move()
        lag = self.end - stored - count if self._knows_lag and stored >= 0 else -1
        self.move()
        part = ShareOffset("t", 0, stored, lag, 0)
        broken = ShareOffset("t", 1, 0, 0, AWAY)
        return {it: ShareOffsets(0, (part, broken)) for it in groups}

    async def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert set(partitions) == {TP}, "one with an error is not asked for"
        self.move()
        end = self.end
        self.move()
        return {TP: end} if self.ends_known else {}


def position(broker: Broker) -> FetchedOffset:
    (answer,) = asyncio.run(share_positions(broker, ["g"])).values()
    found, broken = answer.offsets
    assert (broken.error_code, broken.offset) == (AWAY, 0)
    return found


@given(seed=st.integers(0, 1 << 32), knows_lag=st.booleans(), moves=st.integers(0, 60))
def test_all_before_a_position_is_delivered_and_it_is_not_behind_the_start(
    seed: int, *, knows_lag: bool, moves: int
) -> None:
    broker = Broker(seed, knows_lag=knows_lag, moves=moves)
    for _ in range(6):
        stored = broker.stored
        found = position(broker)
        assert found.offset <= broker.start, "records would be skipped"
        assert found.offset >= stored


@given(seed=st.integers(0, 1 << 32), moves=st.integers(0, 60))
def test_a_group_that_has_acknowledged_everything_is_at_the_end(seed: int, moves: int) -> None:
    broker = Broker(seed, knows_lag=True, moves=moves)
    broker.ends_known = True
    for _ in range(200):
        broker.move()
    broker.end += 1
    broker.acknowledge(everything=True)
    assert (position(broker)).offset == broker.end


def behind(broker: Broker) -> int:
    return asyncio.run(delivered_of(broker, ["g"])).get("g", {}).get(TP, 0)


@given(seed=st.integers(0, 1 << 32), knows_lag=st.booleans(), moves=st.integers(0, 60))
def test_no_more_counts_as_delivered_than_was(seed: int, *, knows_lag: bool, moves: int) -> None:
    broker = Broker(seed, knows_lag=knows_lag, moves=moves)
    for _ in range(6):
        stored = max(0, broker.stored)
        assert behind(broker) <= broker.end - stored
        assert knows_lag or not behind(broker)
    quiet = sum(it >= broker.stored for it in broker.delivered)
    if not broker.moves and 0 <= broker.stored < broker.end - quiet:
        assert behind(broker) == (quiet if knows_lag and broker.ends_known else 0)
