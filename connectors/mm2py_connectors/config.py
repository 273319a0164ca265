"""The connectors that a mirror maker file configures, each with the model of its options.

Flow: ``CONNECTORS`` -> ``mm2py.config`` derives and checks what a file sets for them.
"""

from typing import Final

from mm2py.config.class_names import (
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SINK_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
)
from mm2py.config.definitions import ConnectorDefinition
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_heartbeat_config import MirrorHeartbeatConfig
from mm2py_connectors.mirror_sink_config import MirrorSinkConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

CONNECTORS: Final = (
    ConnectorDefinition(
        "MirrorSourceConnector",
        MIRROR_SOURCE_CONNECTOR,
        MirrorSourceConfig,
        extra_names=("use.defaults.from",),
        copies="source",
    ),
    ConnectorDefinition(
        "MirrorSinkConnector",
        MIRROR_SINK_CONNECTOR,
        MirrorSinkConfig,
        extra_names=("use.defaults.from",),
        copies="sink",
    ),
    ConnectorDefinition(
        "MirrorHeartbeatConnector", MIRROR_HEARTBEAT_CONNECTOR, MirrorHeartbeatConfig
    ),
    ConnectorDefinition(
        "MirrorCheckpointConnector", MIRROR_CHECKPOINT_CONNECTOR, MirrorCheckpointConfig
    ),
)
"""The connectors that a mirror maker file configures for every flow; of those that copy one, by ``copy.connector``."""
