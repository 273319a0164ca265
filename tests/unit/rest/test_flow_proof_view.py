"""What people see of a flow's proofs."""

from mm2py.flows.flow_proofs import proof_view
from mm2py.mirror.proofs import Proof
from mm2py.types import ClusterAlias, FlowName

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


def proof(partition: int, at_ms: int, differences: int = 0) -> Proof:
    return Proof(
        topic="t", partition=partition, source_from=0, source_to=70, target_to=75, at_ms=at_ms, records=60,
        differences=differences, first="altered source offset 71" if differences else "",
    )  # fmt: skip


def test_nothing_is_proved_is_not_equal() -> None:
    found = proof_view(FLOW, [], 0)
    assert (found.equal, found.seconds_ago) == (None, None)
    assert "nothing is proved" in found.text


def test_a_flow_is_proved_as_long_ago_as_its_oldest_partition() -> None:
    found = proof_view(FLOW, [proof(1, 7_000), proof(0, 9_500)], 10_000)
    assert (found.equal, found.seconds_ago, found.records) == (True, 3.0, 120)
    assert found.text == "120 records of 2 partitions proved equal, 3 seconds ago"
    assert [it.partition for it in found.partitions] == [0, 1]
    alone = proof_view(FLOW, [proof(0, 9_000)], 10_000)
    assert alone.text == "60 records up to offset 70 proved equal, 1 seconds ago"


def test_a_difference_is_named_with_its_place() -> None:
    found = proof_view(FLOW, [proof(0, 1), proof(3, 1, differences=2)], 10)
    assert found.equal is False
    assert (
        found.text
        == "NOT equal: 1 of 2 partitions, t-3 behind source offset 70: altered source offset 71"
    )
