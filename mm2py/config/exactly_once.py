"""Settings of a connector and of its worker that exactly-once support does not allow together.

Flow: typed settings -> problems -> ``lint`` (which refuses the start), REST validation, the start
of a task.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mm2py.config.class_names import MIRROR_SINK_CONNECTOR, canonical_class
from mm2py.config.client_properties import framework_producer_properties
from mm2py.config.definitions import Problem, parse_config
from mm2py.config.framework import SourceFrameworkConfig, TaskFrameworkConfig
from mm2py.config.java_values import JavaType, parse_value
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError

POLL_MS: Final = 100
"""``transaction.boundary=poll``: Java ends a transaction after each poll of at most 500 records. A
poll here may be one batch, and a transaction costs five requests and a marker per partition: all
polls of this time share one."""


def contradictions(connector: Mapping[str, str], worker: Mapping[str, str]) -> list[Problem]:
    """Return everything that a connector's config and its worker's cannot have together; both
    without placeholders. ``ConfigError``: a value is wrong by itself."""
    settings = parse_config(WorkerConfig, worker)
    if canonical_class(connector.get("connector.class", "")) == MIRROR_SINK_CONNECTOR:
        return [*_sink_problems(connector, enabled=settings.exactly_once)]
    options = parse_config(TaskFrameworkConfig, connector)
    problems = [*exactly_once_problems(options, enabled=settings.exactly_once)]
    if settings.exactly_once:
        producer = framework_producer_properties(worker, connector)
        given = parse_value(JavaType.INT, producer.get("transaction.timeout.ms", "60000"))
        assert isinstance(given, int)
        problems += interval_problem(transaction_interval_ms(options, settings), given)
    return problems


def exactly_once_problems(connector: TaskFrameworkConfig, *, enabled: bool) -> Iterator[Problem]:
    """Yield what contradicts the worker's ``exactly.once.source.support``, enabled or not."""
    support, boundary = connector.exactly_once_support, connector.transaction_boundary
    if not enabled:
        if support.lower() == "required":
            yield Problem(
                "exactly.once.support",
                support,
                "is not possible: this worker does not have exactly-once source support enabled",
                "set exactly.once.source.support=enabled for the worker (in a mirror's file"
                " <target>.exactly.once.source.support)",
            )
        return
    if connector.offsets_identical.lower() == "require":
        yield Problem(
            "offsets.identical",
            connector.offsets_identical,
            "is not possible: with exactly-once support each transaction leaves a marker in the "
            "target's log, which takes an offset",
            "set offsets.identical=prefer, or exactly.once.source.support=disabled",
        )
    if boundary.lower() == "connector":
        yield Problem(
            "transaction.boundary",
            boundary,
            "is not possible: the connector does not define transaction boundaries",
            "use poll or interval",
        )


def _sink_problems(connector: Mapping[str, str], *, enabled: bool) -> Iterator[Problem]:
    """Return why a flow that MirrorSink copies is not exactly once: its positions and its copies
    are on two clusters."""
    source = "set copy.connector=source, which copies exactly once"
    support, chosen = connector.get("exactly.once.support", ""), connector.get("copy.connector", "")
    if support.strip().lower() == "required":
        yield Problem(
            "exactly.once.support",
            support,
            "is not possible: MirrorSink copies at least once, its positions are those of a "
            "consumer group of the source",
            f"remove it, or {source}",
        )
    # On a Connect worker the setting is for its source connectors; a mirror's file means the flow.
    elif enabled and chosen:
        yield Problem(
            "copy.connector",
            chosen,
            "contradicts exactly.once.source.support=enabled: MirrorSink copies at least once, its "
            "positions are those of a consumer group of the source",
            f"{source}, or <target>.exactly.once.source.support=disabled",
        )


def transaction_interval_ms(connector: SourceFrameworkConfig, worker: WorkerConfig) -> int:
    """Return how long a transaction stays open for more records (``transaction.boundary``)."""
    if connector.transaction_boundary.lower() != "interval":
        return POLL_MS
    given = connector.transaction_boundary_interval_ms
    return worker.offset_flush_interval_ms if given is None else given


def interval_problem(interval_ms: int, timeout_ms: int) -> Iterator[Problem]:
    """Yield why transactions of this length never commit: the target aborts each before its end."""
    if interval_ms >= timeout_ms:
        yield Problem(
            "transaction.boundary.interval.ms",
            str(interval_ms),
            f"is not possible: a transaction of {interval_ms} ms cannot end before "
            f"transaction.timeout.ms={timeout_ms} of the producer",
            "lower transaction.boundary.interval.ms, or raise the producer's "
            "transaction.timeout.ms",
        )


def raise_first(problems: Iterable[Problem]) -> None:
    """Refuse a task whose settings contradict each other; ``ConfigError``: the first problem."""
    for problem in problems:
        raise ConfigError(
            f"{problem.name}={problem.value}: {problem.message}", remedy=problem.remedy
        )
