"""Options of MirrorSinkConnector and of its tasks (KIP-382 names it; Apache never shipped it).

Flow: config texts -> ``parse_config`` -> ``mirror_sink``, ``mirror_sink_task``.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.config.definitions import Option, Problem
from mm2py.config.framework import SinkFrameworkConfig
from mm2py.config.java_values import JavaType
from mm2py.config.mirror_options import TOPICS, Topics, UseDefaultsFrom
from mm2py_connectors.mirror_topics_config import (
    HeartbeatsReplication,
    MirrorTopicsConfig,
    StartRules,
    start_problems,
)


class MirrorSinkConfig(SinkFrameworkConfig, MirrorTopicsConfig):
    """Options of MirrorSinkConnector: ``topics`` are patterns, not names as of Connect's sinks."""

    topics: Topics = TOPICS
    heartbeats_replication_enabled: HeartbeatsReplication = True
    use_defaults_from: UseDefaultsFrom = "target"
    start_positions: StartRules = ()

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        return start_problems(props)


class MirrorSinkTaskConfig(MirrorSinkConfig):
    """Options of one MirrorSink task; its ``topics`` are the names that the connector has found."""

    task_index: Annotated[int, Option(JavaType.INT, "Number of the task.", low=0)] = 0
