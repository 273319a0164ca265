from mm2py.client.backoff import Backoff


def test_pause_doubles_up_to_its_maximum() -> None:
    backoff = Backoff(100, 1000, random=lambda: 0.5)
    assert [round(backoff.next_s(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_stays_within_a_fifth() -> None:
    assert Backoff(100, 1000, random=lambda: 0.0).next_s() == 0.08
    assert round(Backoff(100, 1000, random=lambda: 1.0).next_s(), 3) == 0.12


def test_reset_starts_over() -> None:
    backoff = Backoff(100, 1000, random=lambda: 0.5)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.failures == 0
    assert round(backoff.next_s(), 3) == 0.1


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(50, 1000, random=lambda: 0.5)
    backoff.failures = 100_000
    assert backoff.next_s() == 1.0


def test_a_maximum_below_the_initial_pause_is_raised_to_it() -> None:
    assert Backoff(500, 100, random=lambda: 0.5).next_s() == 0.5
