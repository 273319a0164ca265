"""Bulk work on Spark: Spark schedules lanes of whole partitions, each runs the data plane of mm2py; extra ``mm2py[spark]``."""

from typing import TYPE_CHECKING

from mm2py.errors import ConfigError

if TYPE_CHECKING:
    from mm2py.spark.data_source import Mm2pyDataSource

__all__ = ["Mm2pyDataSource"]


def __getattr__(name: str) -> object:
    """Load pyspark only for what needs it."""
    if name != "Mm2pyDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from mm2py.spark.data_source import Mm2pyDataSource
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed: {error}", remedy="pip install 'mm2py[spark]'"
        ) from error
    return Mm2pyDataSource
