"""Levels at run time, in Connect's words."""

import logging
from collections.abc import Iterator

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.observability.loggers import ProcessLoggers, UnknownLevelError


class FixedClock:
    """Always the same instant."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await SYSTEM_CLOCK.sleep(seconds)


@pytest.fixture
def levels_restored() -> Iterator[None]:
    """Give every logger its level back; loggers themselves cannot be taken away."""
    before = {
        logger: logger.level
        for logger in [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        if isinstance(logger, logging.Logger)
    }
    yield
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.setLevel(before.get(logger, logging.NOTSET))
    logging.getLogger().setLevel(before[logging.getLogger()])


pytestmark = pytest.mark.usefixtures("levels_restored")


def test_a_namespace_changes_its_logger_and_all_that_begin_with_it() -> None:
    loggers = ProcessLoggers(FixedClock())
    for name in ("t1.x", "t1.x.Y", "t1.xyz", "t1.z"):
        logging.getLogger(name)
    assert loggers.set("t1.x", "debug") == ["t1.x", "t1.x.Y", "t1.xyz"]
    assert logging.getLogger("t1.x.Y").level == logging.DEBUG
    assert loggers.get("t1.xyz") == ("DEBUG", 1_700_000_000_000)
    assert loggers.get("t1.z") == (loggers.all()["root"][0], None)


def test_the_same_level_twice_changes_nothing() -> None:
    loggers = ProcessLoggers(FixedClock())
    assert loggers.set("t2", "TRACE") == ["t2"]
    assert loggers.set("t2", "trace") == []
    assert loggers.get("t2") == ("TRACE", 1_700_000_000_000)


def test_an_unknown_namespace_becomes_a_logger_even_when_nothing_changes() -> None:
    loggers = ProcessLoggers(FixedClock())
    word = loggers.all()["root"][0]
    assert loggers.get("t3.never.seen") is None
    assert loggers.set("t3.never.seen", word) == []
    assert loggers.get("t3.never.seen") == (word, None)


def test_root_changes_every_known_logger() -> None:
    loggers = ProcessLoggers(FixedClock())
    logging.getLogger("t4.x").setLevel(logging.WARNING)
    changed = loggers.set("root", "FATAL")
    assert "root" in changed
    assert "t4.x" in changed
    assert changed == sorted(changed)
    assert {level for level, _ in loggers.all().values()} == {"FATAL"}


@pytest.mark.parametrize("word", ["OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL"])
def test_javas_levels_are_understood_and_shown(word: str) -> None:
    loggers = ProcessLoggers(FixedClock())
    other = "INFO" if word != "INFO" else "WARN"
    loggers.set("t5", other)
    assert loggers.set("t5", word.lower()) == ["t5"]
    assert loggers.get("t5") == (word, 1_700_000_000_000)
    assert logging.getLogger("t5").isEnabledFor(logging.CRITICAL) == (word != "OFF")


@pytest.mark.parametrize("word", ["WARNING", "", "7"])
def test_an_unknown_level_is_refused_in_connects_words_before_anything_happens(word: str) -> None:
    loggers = ProcessLoggers(FixedClock())
    with pytest.raises(UnknownLevelError) as caught:
        loggers.set("t6", word)
    assert caught.value.message == f"invalid log level '{word}'."
    assert loggers.get("t6") is None


def test_a_java_package_sets_the_level_of_what_does_its_work_here() -> None:
    told: list[tuple[str, str]] = []
    loggers = ProcessLoggers(FixedClock(), lambda name, level: told.append((name, level)))
    logging.getLogger("mm2py_connectors.t7")
    logging.getLogger("mm2py.runtime.t7")
    changed = loggers.set("org.apache.kafka.connect.mirror", "ERROR")
    assert {"mm2py_connectors.t7", "org.apache.kafka.connect.mirror"} <= set(changed)
    assert not [name for name in changed if name.startswith("mm2py.runtime")]
    assert told == [("org.apache.kafka.connect.mirror", "ERROR")]


def test_loggers_are_sorted_with_root_among_them() -> None:
    names = list(ProcessLoggers(FixedClock()).all())
    assert names == sorted(names)
    assert "root" in names
