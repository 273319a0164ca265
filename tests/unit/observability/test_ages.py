"""The window of ages: Java's SampledStat of two samples of 30 s."""

from mm2py.observability.ages import Ages, AgeWindow


def test_the_window_forgets_after_a_minute_and_the_last_value_stays() -> None:
    window = AgeWindow()
    assert window.ages(0) is None
    for age_ms, at_ms in ((50, 0), (10, 29_999), (30, 30_000), (-5, 59_999)):
        window.note(age_ms, at_ms)

    def found(now_ms: int) -> tuple[int, int | None, int | None, float | None]:
        ages = window.ages(now_ms)
        assert ages is not None
        return ages.last, ages.least, ages.greatest, ages.mean

    assert found(59_999) == (-5, -5, 50, 85 / 4)
    assert found(60_000) == (-5, -5, 30, 25 / 2)
    assert found(90_000) == (-5, None, None, None)


def test_what_another_process_noted_is_shown_until_its_minute_is_over() -> None:
    window = AgeWindow()
    window.note(7, 0)
    said = Ages(last=3, noted_ms=1_000, least=2, greatest=9, mean=4.5)
    window.take(None)
    window.take(said)
    assert window.ages(60_999) == said
    assert window.ages(61_000) == Ages(3, 1_000, None, None, None)
