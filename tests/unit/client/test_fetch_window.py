"""What a Fetch asks for follows the round trip and the speed of the line; what the user set does not."""

from mm2py.client.fetch.window import ANSWER_BYTES, FetchWindow
from mm2py.config.clients import ConnectionSettings, ConsumerSettings, consumer_settings

MIB = 1 << 20
CONNECTION = ConnectionSettings(bootstrap_servers=(("b", 1),))
PLENTY = 64 * MIB
WAN_S = 0.08


def window(settings: ConsumerSettings | None = None) -> FetchWindow:
    made = FetchWindow(settings or ConsumerSettings(connection=CONNECTION))
    made.opened()
    return made


def copy(
    over: FetchWindow, rounds: int, *, bytes_per_s: float, round_trip_s: float = WAN_S
) -> float:
    """Fetch a backlog of one partition; returns the bytes per second of the last round."""
    pace = 0.0
    for _ in range(rounds):
        size = min(over.partition_bytes, over.answer_bytes(PLENTY))
        took_s = round_trip_s + size / bytes_per_s
        pace = size / took_s
        over.answered(size, took_s, round_trip_s)
    return pace


def test_nearby_the_limits_are_javas_whatever_arrives() -> None:
    near = window()
    copy(near, 10, bytes_per_s=1e9, round_trip_s=0.0005)
    assert near.partition_bytes == MIB
    assert near.answer_bytes(PLENTY) == ANSWER_BYTES


def test_over_80_ms_one_partition_reaches_what_five_largest_batches_in_flight_permit() -> None:
    assert copy(window(), 6, bytes_per_s=200e6) >= 5 * MIB / WAN_S * 0.8


def test_a_slow_line_is_nearly_full_and_no_answer_blocks_it_for_long() -> None:
    for bytes_per_s in (0.5e6, 5e6, 20e6):
        slow = window()
        assert copy(slow, 10, bytes_per_s=bytes_per_s) >= bytes_per_s * 0.7
        assert slow.partition_bytes <= max(MIB, bytes_per_s)


def test_a_line_that_became_slow_gets_smaller_answers_again() -> None:
    fading = window()
    copy(fading, 6, bytes_per_s=200e6)
    before = fading.partition_bytes
    copy(fading, 6, bytes_per_s=1e6)
    assert fading.partition_bytes == MIB < before


def test_a_long_round_trip_is_not_taken_for_a_slow_line() -> None:
    far = window()
    copy(far, 6, bytes_per_s=200e6, round_trip_s=1.5)
    assert far.partition_bytes > 7 * MIB


def test_small_answers_change_nothing() -> None:
    idle = window()
    for _ in range(10):
        idle.answered(100_000, WAN_S, WAN_S)
    assert idle.partition_bytes == MIB


def test_a_partition_limit_that_was_set_stays_and_the_answer_grows_for_the_others() -> None:
    props = {"bootstrap.servers": "b:1", "max.partition.fetch.bytes": "1048576"}
    fixed = window(consumer_settings(props))
    copy(fixed, 6, bytes_per_s=200e6)
    assert fixed.partition_bytes == MIB
    assert fixed.answer_bytes(PLENTY) > 15 * MIB


def test_an_answer_limit_that_was_set_is_never_exceeded() -> None:
    props = {"bootstrap.servers": "b:1", "fetch.max.bytes": "5000000"}
    fixed = window(consumer_settings(props))
    copy(fixed, 6, bytes_per_s=200e6)
    assert fixed.answer_bytes(PLENTY) == 5_000_000


def test_an_answer_fits_its_part_of_the_buffers_and_a_buffer_that_is_a_power_of_two() -> None:
    many = window()
    copy(many, 6, bytes_per_s=200e6)
    for brokers in (1, 2, 3, 4, 16):
        size = many.answer_bytes(16 * MIB // brokers)
        assert size <= max(ANSWER_BYTES, 16 * MIB // brokers)
        assert (size + 65_536) & (size + 65_535) == 0


def test_another_connection_starts_small_again() -> None:
    again = window()
    copy(again, 6, bytes_per_s=200e6)
    again.opened()
    assert again.partition_bytes == MIB
