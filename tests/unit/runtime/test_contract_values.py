"""The values that the distributed mode's parts hand to each other."""

import itertools

import pytest

from mm2py.config.connect_definitions import ConfigInfos, ConfigValue
from mm2py.errors import ProtocolError
from mm2py.observability.metrics import UNKNOWN, NodeSnapshot, PartitionSnapshot
from mm2py.runtime.errors import ForwardError, HerderError, NotFoundError
from mm2py.storage.config_state import EMPTY, ConfigSnapshot, RestartRequest, SessionKey
from mm2py.types import ClusterAlias, FlowName, TargetState, TaskId, TopicPartition, Work


def test_work_is_a_pair_of_sets() -> None:
    first = Work(frozenset({"a", "b"}), frozenset({TaskId("a", 0)}))
    second = Work(frozenset({"b"}), frozenset({TaskId("a", 0), TaskId("a", 1)}))
    assert len(first) == 3
    assert first - second == Work(frozenset({"a"}))
    assert first & second == Work(frozenset({"b"}), frozenset({TaskId("a", 0)}))
    assert len(first | second) == 4
    assert not Work()


def test_the_impact_of_restarts_is_javas() -> None:
    flags = itertools.product((True, False), (False, True))
    assert [RestartRequest("c", failed, tasks).impact for failed, tasks in flags] == [0, 1, 2, 3]


def test_an_inconsistent_connector_has_no_tasks() -> None:
    snapshot = ConfigSnapshot(task_counts={"a": 2, "b": 1}, inconsistent=frozenset({"b"}))
    assert snapshot.tasks("a") == (TaskId("a", 0), TaskId("a", 1))
    assert snapshot.tasks("b") == snapshot.tasks("c") == ()
    assert EMPTY.target("a") is TargetState.STARTED


def test_a_session_key_is_not_printed() -> None:
    assert "secret" not in repr(SessionKey(b"secret", "HmacSHA256", 1))


def test_a_node_snapshot_survives_the_way_to_another_node() -> None:
    partition = PartitionSnapshot(
        source=TopicPartition("t", 1),
        target=None,
        task="c-0",
        state="RUNNING",
        cause="",
        records=3,
        size_bytes=30,
        lag_records=UNKNOWN,
        lag_ms=0,
        newest_ms=UNKNOWN,
        records_per_s=1.5,
        bytes_per_s=15.0,
    )
    snapshot = NodeSnapshot(
        worker="h:1",
        flow=FlowName(ClusterAlias("A"), ClusterAlias("B")),
        at_ms=7,
        state="RUNNING",
        partitions=(partition,),
        events={"retention": 1},
        records_lost=2,
    )
    read = NodeSnapshot.from_json(snapshot.to_json())
    assert read == snapshot
    assert str(read.flow) == "A->B"
    with pytest.raises(ProtocolError, match="same version"):
        NodeSnapshot.from_json(b"{}")


def test_a_refusal_lists_all_errors_in_javas_words() -> None:
    value = ConfigValue(name="k", value="v", errors=("one", "two"))
    infos = ConfigInfos(name="c", error_count=2, groups=(), configs=((None, value), (None, None)))
    assert infos.refusal() == (
        "Connector configuration is invalid and contains the following 2 error(s):\none\ntwo\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    assert ConfigInfos(name="c", error_count=0, groups=(), configs=()).refusal() is None


def test_errors_carry_their_status() -> None:
    assert NotFoundError("no").status == 404
    assert HerderError("peer", status=418).status == 418
    assert "no known leader URL" in ForwardError(None).message
