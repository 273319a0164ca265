"""The Fetcher against a scripted broker: positions, losses and leaders told apart."""

import asyncio
from collections.abc import Awaitable, Callable

from mm2py.api.context import SourceGap
from mm2py.client.cluster import Cluster
from mm2py.client.fetcher import Fetcher
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ConsumerSettings
from mm2py.protocol import error_codes as codes
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.testing.broker import FakeBroker
from mm2py.types import EARLIEST, LATEST, TopicPartition

FETCH = 1
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Rig:
    """A Fetcher on one fake broker, and what it reported."""

    def __init__(self, broker: FakeBroker, cluster: Cluster, reset: str = "earliest") -> None:
        self.broker = broker
        self.gaps: list[tuple[TopicPartition, int, int, str]] = []
        self.failed: list[tuple[TopicPartition, Exception]] = []
        self.read: dict[TopicPartition, list[int]] = {FIRST: [], SECOND: []}
        settings = ConsumerSettings(
            connection=cluster.settings, fetch_max_wait_ms=50, auto_offset_reset=reset
        )
        self.fetcher = Fetcher(
            cluster,
            settings,
            clock=SYSTEM_CLOCK,
            on_gap=self._on_gap,
            on_failed=lambda tp, error: self.failed.append((tp, error)),
        )

    def _on_gap(self, gap: SourceGap) -> None:
        self.gaps.append((gap.partition, gap.first_offset, gap.last_offset, gap.cause))

    def fill(self, tp: TopicPartition, numbers: range) -> None:
        """Append one batch with these numbers as values."""
        records = [NewRecord(None, b"%d" % n, (), 1_000) for n in numbers]
        self.broker.append(tp, bytes(encode_batch(records)))

    async def until(self, done: Callable[[], bool]) -> None:
        """Take what arrives until ``done``."""
        async with asyncio.timeout(10):
            while not done():
                for tp, batches in await self.fetcher.fetch(max_wait_ms=50, max_bytes=1 << 24):
                    for batch in batches:
                        (decoded,) = decode_batches(batch.data)
                        self.read[tp] += [int(r.value or b"") for r in decoded.records]


def play(body: Callable[[Rig], Awaitable[None]], *, reset: str = "earliest") -> None:
    async def run() -> None:
        async with FakeBroker(topics={"t": 2}) as broker:
            settings = ConnectionSettings(
                bootstrap_servers=(("127.0.0.1", broker.port),),
                reconnect_backoff_ms=1,
                reconnect_backoff_max_ms=5,
                retry_backoff_ms=1,
                retry_backoff_max_ms=5,
                default_api_timeout_ms=5000,
            )
            cluster = Cluster(settings, alias="A")
            await cluster.connect()
            rig = Rig(broker, cluster, reset)
            try:
                await body(rig)
            finally:
                await rig.fetcher.close()
                await cluster.close()

    asyncio.run(run())


def test_it_reads_every_partition_in_order_from_where_it_was_told() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(5))
        rig.fill(SECOND, range(10, 13))
        await rig.fetcher.assign({FIRST: 2, SECOND: EARLIEST})
        rig.fill(FIRST, range(5, 7))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 7 and bool(rig.read[SECOND]))
        assert rig.read == {FIRST: [2, 3, 4, 5, 6], SECOND: [10, 11, 12]}
        assert rig.fetcher.lag(FIRST) == 0
        assert rig.gaps == []

    play(body)


def test_latest_starts_at_the_end() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(5))
        await rig.fetcher.assign({FIRST: LATEST})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 5)
        rig.fill(FIRST, range(5, 6))
        await rig.until(lambda: bool(rig.read[FIRST]))
        assert rig.read[FIRST] == [5]

    play(body)


def test_a_paused_partition_is_left_alone_until_it_is_resumed() -> None:
    async def body(rig: Rig) -> None:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(2))
        rig.fill(SECOND, range(2))
        await rig.until(lambda: bool(rig.read[SECOND]))
        assert rig.read[FIRST] == []
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: bool(rig.read[FIRST]))
        assert rig.read[FIRST] == [0, 1]

    play(body)


def test_records_deleted_before_they_were_copied_are_a_gap_with_its_exact_range() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.broker.partition(FIRST).delete_before(4)
        await rig.fetcher.assign({FIRST: 1})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        assert rig.gaps == [(FIRST, 1, 3, "retention")]
        assert rig.read[FIRST] == [4, 5, 6, 7]

    play(body)


def test_a_position_behind_the_log_end_starts_over_and_says_so() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(3))
        await rig.fetcher.assign({FIRST: 9})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.gaps == [(FIRST, 3, 8, "recreated")]
        assert rig.read[FIRST] == [0, 1, 2]

    play(body)


def test_a_stored_position_that_is_gone_is_copied_from_the_log_start_even_under_latest() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.broker.partition(FIRST).delete_before(4)
        await rig.fetcher.assign({FIRST: 1})
        await rig.until(lambda: bool(rig.read[FIRST]))
        assert rig.read[FIRST] == [4, 5, 6, 7]

    play(body, reset="latest")


def test_auto_offset_reset_none_fails_the_partition_alone() -> None:
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(2))
        rig.fill(FIRST, range(2, 4))
        rig.fill(SECOND, range(2))
        rig.broker.partition(FIRST).delete_before(2)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: bool(rig.failed) and bool(rig.read[SECOND]))
        assert rig.failed[0][0] == FIRST
        assert "auto.offset.reset=none" in str(rig.failed[0][1])
        assert rig.read[SECOND] == [0, 1]

    play(body, reset="none")


def test_a_recreated_topic_is_copied_from_its_beginning_even_when_it_grew_beyond_the_position() -> (
    None
):
    async def body(rig: Rig) -> None:
        rig.fill(FIRST, range(4))
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 4)
        rig.broker.create_topic("t", 2)
        rig.fill(FIRST, range(100, 110))
        rig.broker.fail_next(FETCH, codes.UNKNOWN_TOPIC_ID)
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10)
        assert rig.read[FIRST][-10:] == list(range(100, 110))
        assert rig.gaps[0][3] == "recreated"

    play(body)


def test_a_lost_connection_and_a_moved_leader_are_not_losses() -> None:
    async def body(rig: Rig) -> None:
        await rig.fetcher.assign({FIRST: 0})
        for number in range(3):
            rig.fill(FIRST, range(number, number + 1))
            rig.broker.fail_next(FETCH, "disconnect")
            rig.broker.fail_next(FETCH, codes.NOT_LEADER_OR_FOLLOWER)
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
        assert rig.read[FIRST] == [0, 1, 2]
        assert rig.gaps == []
        assert rig.failed == []

    play(body)
