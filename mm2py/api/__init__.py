"""The face for authors: contracts of connectors, tasks, policies, filters, transforms and message
handlers.

Nothing else of the core is meant to be imported, but ``mm2py.mirror_client`` (consumers that fail
over) and ``mm2py.testing`` (tests of plug-ins); docs/reference/extend.md has the three.
"""

from mm2py.api.connector import Connector, SinkConnector
from mm2py.api.context import ConnectorContext, PartitionState, SourceGap, TaskContext
from mm2py.api.mirror_maker_1 import (
    MessageHandler,
    MirrorRecord,
    OutgoingRecord,
    RebalanceListener,
)
from mm2py.api.policies import (
    ConfigPropertyFilter,
    DefaultReplicationPolicy,
    GroupFilter,
    IdentityReplicationPolicy,
    ReplicationPolicy,
    TopicFilter,
)
from mm2py.api.records import SinkRecord, SourceOffset, SourcePartition, SourceRecord
from mm2py.api.schema import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, SchemaType
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.api.task import LEFT_OUT, BatchSourceTask, Delivery, Outgoing, Run, SourceTask
from mm2py.api.transforms import Predicate, Transformation
from mm2py.errors import ConfigError, FatalError, RetriableError
from mm2py.types import TopicPartition

__all__ = [
    "DATE",
    "DECIMAL",
    "LEFT_OUT",
    "TIME",
    "TIMESTAMP",
    "BatchSourceTask",
    "ConfigError",
    "ConfigPropertyFilter",
    "Connector",
    "ConnectorContext",
    "DefaultReplicationPolicy",
    "Delivery",
    "FatalError",
    "Field",
    "GroupFilter",
    "IdentityReplicationPolicy",
    "MessageHandler",
    "MirrorRecord",
    "Outgoing",
    "OutgoingRecord",
    "PartitionState",
    "Predicate",
    "RebalanceListener",
    "ReplicationPolicy",
    "RetriableError",
    "Run",
    "Schema",
    "SchemaType",
    "SinkConnector",
    "SinkRecord",
    "SinkTask",
    "SinkTaskContext",
    "SourceGap",
    "SourceOffset",
    "SourcePartition",
    "SourceRecord",
    "SourceTask",
    "TaskContext",
    "TopicFilter",
    "TopicPartition",
    "Transformation",
]
