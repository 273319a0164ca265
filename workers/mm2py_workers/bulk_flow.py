"""The flow that a bulk command is about, from a properties file.

Flow: file + ``--flow`` + ``--topics`` -> ``FlowSides``: both clusters' properties with placeholders resolved, names of copies.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError
from mm2py.spark.flow_sides import FlowSides
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.config_commands import flow_named

__all__ = ["flow_sides", "needs_spark"]

_SOURCE: Final = "MirrorSourceConnector"


def flow_sides(path: Path, flow: str, topics: str | None) -> FlowSides:
    """Read the file.

    Raises:
        UsageError: it has no such flow.
        ConfigError: the file is wrong.
    """
    config = MirrorMakerConfig.load(path, CONNECTORS)
    name = flow_named(config, flow if "->" in flow else flow.replace("/", "->", 1))
    connector = config.resolved(config.connector_configs(name)[_SOURCE])
    return FlowSides.of_topics(name, connector, config.worker_config(name), topics)


@contextmanager
def needs_spark() -> Generator[None]:
    """Import what the extra brings.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed: {error}", remedy="pip install 'mm2py[spark]'"
        ) from error
