"""Names of remote topics can be undone, and a copy never goes back where it came from."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.policies import DefaultReplicationPolicy
from mm2py.api.records import SourcePartition
from mm2py.mirror.filters import DefaultTopicFilter, TopicSelection
from mm2py.mirror.source_offsets import (
    parse_source_offset_key,
    partition_identity,
    source_offset_key,
)

ALIASES = st.text("ABCxyz-_", min_size=1, max_size=6)
TOPICS = st.text("abcXYZ019-_", min_size=1, max_size=20)


@given(hops=st.lists(ALIASES, min_size=1, max_size=5), topic=TOPICS)
def test_remote_names_are_undone_hop_by_hop(hops: list[str], topic: str) -> None:
    policy = DefaultReplicationPolicy({})
    name = topic
    for alias in hops:
        name = policy.remote_topic(alias, name)
    assert policy.original_topic(name) == topic
    for alias in reversed(hops):
        assert policy.topic_source(name) == alias
        name = policy.upstream_topic(name) or ""
    assert name == topic


@given(hops=st.lists(ALIASES, min_size=1, max_size=5), topic=TOPICS, source=ALIASES)
def test_nothing_is_sent_to_a_cluster_that_it_passed(
    hops: list[str], topic: str, source: str
) -> None:
    policy = DefaultReplicationPolicy({})
    name = topic
    for alias in hops:
        name = policy.remote_topic(alias, name)
    for target in hops:
        flow = TopicSelection(
            policy,
            DefaultTopicFilter({"topics.exclude": ""}),
            source_alias=source,
            target_alias=target,
        )
        assert not flow.replicate(name)


MEMBERS: st.SearchStrategy[SourcePartition] = st.dictionaries(
    st.text(max_size=10), st.one_of(st.text(max_size=10), st.integers(-(2**63), 2**63 - 1))
)


@given(connector=st.text(max_size=20), partition=MEMBERS)
def test_source_offset_keys_are_read_as_they_were_written(
    connector: str, partition: SourcePartition
) -> None:
    name, read = parse_source_offset_key(source_offset_key(connector, partition))
    assert name == connector
    assert partition_identity(read) == partition_identity(partition)
