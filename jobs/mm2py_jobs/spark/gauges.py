"""How far a job of lanes is, among Spark's own metrics: gauges of the driver for each of its sinks,
while lanes run.

Flow: figures of a job, asked every ``TELL_S`` -> accumulators of the driver ->
``LongAccumulatorSource`` of Spark -> ``spark.metrics.conf``'s sinks and ``/metrics/json`` of its
UI. A task in Python has no metrics of its own: what it adds to an accumulator, Spark hears when it
has ended.
"""

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from mm2py_jobs.spark.jvm import Jvm, has_ended
from mm2py_jobs.spark.session import OpenSession, is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

TELL_S: Final = 2.0


class Figures(NamedTuple):
    """Of the job that runs, or ran last, in this application; ``records`` and ``bytes`` are what a
    backfill or restore has copied."""

    offsets_total: int = 0
    offsets_done: int = 0
    records: int = 0
    bytes: int = 0


class _Accumulator(Protocol):
    def value(self) -> int: ...
    def add(self, number: int) -> None: ...


_REGISTERED: Final = dict[str, Mapping[str, _Accumulator]]()
"""By application: Spark takes such a source once."""


@contextmanager
def gauges(opened: OpenSession, figures: Callable[[], Figures]) -> Generator[None]:
    """Tell Spark's metrics how far a job is while the ``with`` block runs it, and at its end;
    nothing over Spark Connect, whose driver is elsewhere."""
    if is_connect(opened.spark):
        yield
        return
    context, ended = opened.spark.sparkContext, threading.Event()

    def tell() -> None:
        try:
            while not ended.wait(TELL_S):
                _tell(context, figures())
            _tell(context, figures())
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes, and no job depends on it
            if not has_ended(error):  # which the job says
                log.warning("Spark's metrics do not have the job's figures cause=%s", error)

    thread = threading.Thread(target=tell, name="gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(TELL_S)


def _tell(context: "SparkContext", figures: Figures) -> None:
    known = _REGISTERED.get(context.applicationId) or _register(context)
    for name, number in figures._asdict().items():
        known[name].add(number - known[name].value())


def _register(context: "SparkContext") -> Mapping[str, _Accumulator]:
    jvm, java = (cast("Jvm", getattr(context, it)) for it in ("_jvm", "_jsc"))
    made, named = dict[str, _Accumulator](), jvm.java.util.HashMap()
    for name in Figures._fields:
        accumulator = jvm.org.apache.spark.util.LongAccumulator()
        named.put(f"mm2py.{name}", accumulator)
        made[name] = cast("_Accumulator", accumulator)
    # Scala's object of that name: its class has a method of the same name, which hides the static
    # one.
    source = getattr(
        getattr(jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$"), "MODULE$"
    )
    source.register(java.sc(), jvm.PythonUtils.toScalaMap(named))
    _REGISTERED[context.applicationId] = made
    return made
