"""Records of the failover topic: golden bytes, what is refused, and names."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.mirror.failovers import (
    Failover,
    FailoverKind,
    Fence,
    GroupMove,
    Place,
    Rule,
    Step,
    Tail,
    decode_failover,
    encode_failover,
    quarantine_topic,
)

FENCE = Fence(by="1700000000000-ab12", rules=(Rule(topic="orders", principal="User:shop"),))


def test_a_fence_has_these_bytes() -> None:
    key, value = encode_failover(FENCE)
    assert key == b"fence"
    assert value == (
        b'\x01{"by":"1700000000000-ab12","rules":[{"principal":"User:shop","topic":"orders"}]}'
    )
    assert decode_failover(key, value) == FENCE


def test_a_failover_comes_back_as_it_was() -> None:
    failover = Failover(
        id="f",
        flow="A->B",
        kind=FailoverKind.FAILBACK,
        step=Step.TAIL,
        run=3,
        ends=(Place(topic="orders", partition=1, offset=7),),
        groups=(GroupMove(group="g", moved=1, left=("why",)),),
        tail=(Tail(topic="orders", partition=1, start=2, end=7, records=5),),
        starts=(Place(topic="orders", partition=1, offset=9),),
    )
    assert decode_failover(*encode_failover(failover)) == failover


def test_a_failover_of_thousands_of_partitions_fits_into_a_record() -> None:
    places = tuple(
        Place(
            topic=f"team-{topic}.of-some-service.with-a-long-name-v1",
            partition=number,
            offset=10**9 + topic,
        )
        for topic in range(2_000)
        for number in range(3)
    )
    failover = Failover(
        id="f",
        flow="A->B",
        kind=FailoverKind.FAILOVER,
        step=Step.REVERSE,
        run=1,
        ends=places,
        ends_there=places,
        starts=places,
    )
    key, value = encode_failover(failover)
    assert value[0] == 2
    assert len(value) < 512 * 1024, "topics take 1 MiB by default"
    assert decode_failover(key, value) == failover


def test_a_failover_of_a_program_that_knew_no_transactions_is_read() -> None:
    failover = Failover(id="f", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.DRAIN, run=1)
    key, value = encode_failover(failover)
    former = value.replace(b',"transactions":[]', b"")
    assert former != value
    assert decode_failover(key, former) == failover


def test_members_of_a_newer_program_are_ignored() -> None:
    assert decode_failover(b"fence", b'\x01{"by":"x","rules":[],"why":1}') == Fence(by="x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"fence", b""),
        (b"fence", b'\x02{"by":"x"}'),
        (b"fence", b'\x03{"by":"x"}'),
        (b"fence", b"\x01no"),
        (b"other", b"\x01{}"),
        (None, b"\x01{}"),
    ],
)
def test_damaged_records_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_failover(key, value)


def test_a_quarantine_topic_is_named_after_its_source_whatever_the_length() -> None:
    assert quarantine_topic("A", "orders") == "mm2py-quarantine.A.orders.internal"
    long = [quarantine_topic("A", "x" * 248 + it) for it in "yz"]
    assert len(set(long)) == 2
    assert all(len(it) <= 249 and it.startswith("mm2py-") for it in long)
    assert all(it.endswith(".internal") for it in long)
