"""Records of the backfill topic: golden bytes, and what is refused."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.mirror.backfills import (
    BackfillRecord,
    Job,
    JobState,
    Lease,
    LeaseState,
    Notice,
    Order,
    SettingChange,
    Wanted,
    Wish,
    backfill_topic,
    decode_backfill,
    encode_backfill,
)

GOLDEN: list[tuple[BackfillRecord, bytes, bytes]] = [
    (
        Job(
            id="20261122-a1",
            state=JobState.RUNNING,
            run=2,
            lanes=4,
            beat=7,
            topics="orders.*",
            started_ms=1_700_000_000_000,
            settings=(SettingChange("A.orders", "retention.ms", "604800000", "-1"),),
            driver="w/78/c3",
        ),
        b"job",
        b'\x01{"archive":"","beat":7,"cause":"","driver":"w/78/c3","end":"now","id":"20261122-a1","kind":"BACKFILL","lanes":4,"run":2,"settings":[{"before":"604800000",'
        b'"during":"-1","name":"retention.ms","topic":"A.orders"}],"start":"earliest","started_ms":1700000000000,'
        b'"state":"RUNNING","topics":"orders.*","turn":0}',
    ),
    (
        Lease(
            topic="orders",
            partition=3,
            job="20261122-a1",
            run=2,
            state=LeaseState.COPYING,
            start=10,
            end=500,
            position=200,
            lane=1,
            attempt="w/77",
            target_start=0,
            target_end=190,
            bytes=19_000,
        ),
        b"lease:orders:3",
        b'\x01{"again":null,"attempt":"w/77","bytes":19000,"cause":"","end":500,"job":"20261122-a1","lag":-1,"lane":1,"partition":3,"position":200,'
        b'"run":2,"start":10,"state":"COPYING","target_end":190,"target_start":0,"topic":"orders"}',
    ),
    (
        Wish(job="20261122-a1", wanted=Wanted.PAUSE),
        b"wish",
        b'\x01{"job":"20261122-a1","wanted":"PAUSE"}',
    ),
    (
        Order(
            id="20261122-a1",
            topics="orders.*",
            rate_limit=5_000_000,
            master="local[4]",
            by="ann",
            at_ms=1_700_000_000_000,
            worker="w1:8083",
            cause="exit code 1",
            log=("mm2py: no Java",),
        ),
        b"order",
        b'\x01{"at_ms":1700000000000,"by":"ann","cause":"exit code 1","end":"now","id":"20261122-a1","log":["mm2py: no Java"],'
        b'"master":"local[4]","rate_limit":5000000,"start":"earliest","topics":"orders.*","worker":"w1:8083"}',
    ),
    (
        Notice(worker="w1:8083", offset=12),
        b"notice:w1:8083",
        b'\x01{"offset":12,"worker":"w1:8083"}',
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), GOLDEN, ids=lambda it: type(it).__name__)
def test_records_have_these_bytes(record: BackfillRecord, key: bytes, value: bytes) -> None:
    assert encode_backfill(record) == (key, value)
    assert decode_backfill(key, value) == record


def test_members_of_a_newer_program_are_ignored() -> None:
    wish = decode_backfill(b"wish", b'\x01{"job":"j","wanted":"RUN","reason":"later"}')
    assert wish == Wish(job="j", wanted=Wanted.RUN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"wish", b""),
        (b"wish", b'\x02{"job":"j","wanted":"RUN"}'),
        (b"wish", b"\x01not json"),
        (b"wish", b'\x01{"job":"j","wanted":"FLY"}'),
        (b"other", b"\x01{}"),
        (None, b"\x01{}"),
        (b"notice:a", b'\x01{"offset":1,"worker":"b"}'),
    ],
)
def test_damaged_records_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_backfill(key, value)


def test_no_mirror_replicates_the_topic() -> None:
    assert backfill_topic("A") == "mm2py-backfill.A.internal"
