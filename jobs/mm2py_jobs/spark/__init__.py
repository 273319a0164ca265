"""Bulk work on Spark: Spark schedules lanes of whole partitions, each runs the data plane of mm2py;
extra ``mm2py[spark]``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mm2py_jobs.spark.data_source import Mm2pyDataSource

__all__ = ["Mm2pyDataSource"]


def __getattr__(name: str) -> object:
    """Load pyspark only for what needs it."""
    if name != "Mm2pyDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mm2py_jobs.spark.session import require_spark

    require_spark()
    from mm2py_jobs.spark.data_source import Mm2pyDataSource

    return Mm2pyDataSource
