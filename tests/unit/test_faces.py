"""What users may import: the three faces offer these names, and no other package lists any."""

from types import ModuleType

import pytest

from mm2py import api, mirror_client, testing

API = """DATE DECIMAL TIME TIMESTAMP BatchSourceTask ConfigError ConfigPropertyFilter Connector ConnectorContext
DefaultReplicationPolicy Delivery FatalError Field GroupFilter IdentityReplicationPolicy MessageHandler MirrorRecord Outgoing OutgoingRecord
PartitionState Predicate RebalanceListener ReplicationPolicy RetriableError Run Schema SchemaType SinkConnector SinkRecord SinkTask
SinkTaskContext SourceGap SourceOffset SourcePartition SourceRecord SourceTask TaskContext TopicFilter TopicPartition Transformation"""
TESTING = (
    "BatchTaskContract FakeClock FakeConnectorContext FakeTaskContext RecordTaskContract eventually"
)
CLIENT = """MirrorClient checkpoint_topics exact_offsets heartbeat_topics remote_topics replication_hops translate_offset translate_offsets
upstream_clusters"""


@pytest.mark.parametrize(("face", "names"), [(api, API), (testing, TESTING)])
def test_a_face_offers_what_is_documented_and_nothing_else(face: ModuleType, names: str) -> None:
    assert sorted(face.__all__) == sorted(names.split())
    assert [name for name in face.__all__ if not hasattr(face, name)] == []


def test_consumers_that_fail_over_find_their_functions() -> None:
    assert [name for name in CLIENT.split() if not hasattr(mirror_client, name)] == []
