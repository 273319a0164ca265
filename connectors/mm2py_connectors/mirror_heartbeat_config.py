"""Options of MirrorHeartbeatConnector.

Flow: config texts -> ``parse_config`` -> ``mirror_heartbeat``.
"""

from typing import Annotated

from mm2py.config.definitions import Option
from mm2py.config.java_values import JavaType
from mm2py_connectors.mirror_connector_config import MirrorConnectorConfig, replicas, seconds

__all__ = ["MirrorHeartbeatConfig"]

_BOOLEAN = JavaType.BOOLEAN


class MirrorHeartbeatConfig(MirrorConnectorConfig):
    """Options of MirrorHeartbeatConnector (``MirrorHeartbeatConfig``)."""

    emit_heartbeats_enabled: Annotated[
        bool, Option(_BOOLEAN, "Write heartbeats to the target.", group="heartbeats")
    ] = True
    emit_heartbeats_interval_seconds: Annotated[
        int, seconds("How often to write a heartbeat.", "heartbeats")
    ] = 1
    heartbeats_topic_replication_factor: Annotated[int, replicas("the heartbeats topic")] = 3
