"""Options of MirrorHeartbeatConnector.

Flow: config texts -> ``parse_config`` -> ``mirror_heartbeat``.
"""

from typing import Annotated

from mm2py_connectors.mirror_connector_config import (
    MirrorConnectorConfig,
    replicas,
    seconds,
    switch,
)


class MirrorHeartbeatConfig(MirrorConnectorConfig):
    """Options of MirrorHeartbeatConnector (``MirrorHeartbeatConfig``)."""

    emit_heartbeats_enabled: Annotated[bool, switch("Write heartbeats to the target.")] = True
    emit_heartbeats_interval_seconds: Annotated[int, seconds("How often to write a heartbeat.")] = 1
    heartbeats_topic_replication_factor: Annotated[int, replicas("the heartbeats topic")] = 3
