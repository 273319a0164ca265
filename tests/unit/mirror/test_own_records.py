"""Records of mm2py's own topics, the ledger among them: golden bytes, what is refused, and what counts as known already."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mm2py.api.context import EventKind
from mm2py.errors import ConfigError, ProtocolError
from mm2py.mirror.backfills import (
    NO_DRIVER,
    BackfillRecord,
    Job,
    JobState,
    Lease,
    LeaseState,
    Notice,
    Order,
    Progress,
    SettingChange,
    Wanted,
    Wish,
    decode_backfill,
    encode_backfill,
    without_driver,
)
from mm2py.mirror.failovers import (
    Failover,
    FailoverKind,
    Fence,
    GroupMove,
    LogPlace,
    Rule,
    Step,
    StepTime,
    Tail,
    decode_failover,
    encode_failover,
    quarantine_topic,
)
from mm2py.mirror.flow_overrides import (
    Change,
    ConnectorEntry,
    FlowEntry,
    FlowOverrideEntry,
    HistoryEntry,
    HoldEntry,
    OverrideEntry,
    Presence,
    Revision,
    UnknownFlowRecord,
    decode_flow_record,
    encode_flow_record,
)
from mm2py.mirror.ledger import (
    IncarnationRecord,
    KnownEvents,
    LedgerRecord,
    QuarantinedRanges,
    UnknownLedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
)
from mm2py.mirror.producer_ids import (
    MOST_PASSING,
    MirrorProducer,
    ProducerOrigins,
    Suppression,
    decode_producer,
    encode_producer,
    suppression_of,
)
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill_report import GONE, cause_of, order_report
from tests.kit.fakes.stores import ORDERS, a_producer, an_event

FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"
Encode = Callable[[Any], tuple[bytes, bytes]]  # of the record of its row
Decode = Callable[[bytes | None, bytes], object]

BACKFILL: list[tuple[BackfillRecord, bytes, bytes]] = [
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
        b'"during":"-1","name":"retention.ms","topic":"A.orders"}],"slots":0,"start":"earliest","started_ms":1700000000000,'
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
    (
        Progress(
            id="20261122-a1",
            kind="VERIFY",
            state=JobState.DONE,
            beat=3,
            topics="orders.*",
            started_ms=1_700_000_000_000,
            at_ms=1_700_000_010_000,
            done=80,
            total=80,
            records=40,
            equal=True,
            result="equal",
            driver="w/78",
        ),
        b"progress:verify:20261122-a1",
        b'\x01{"at_ms":1700000010000,"beat":3,"bytes":0,"cause":"","differences":0,"done":80,"driver":"w/78","equal":true,"id":"20261122-a1",'
        b'"kind":"VERIFY","not_compared":0,"records":40,"result":"equal","started_ms":1700000000000,"state":"DONE","topics":"orders.*","total":80}',
    ),
]


AT = Revision(number=7, by="anna", at_ms=1_700_000_000_000)
SOURCE = "MirrorSourceConnector"

FLOW: list[tuple[FlowOverrideEntry, bytes, bytes]] = [
    (
        OverrideEntry(connector=SOURCE, property="topics", value="café.*", revision=AT),
        b"override:MirrorSourceConnector:topics",
        b'\x01{"at":1700000000000,"by":"anna","revision":7,"value":"caf\\u00e9.*"}',
    ),
    (
        HoldEntry(topic="orders", partition=3, revision=AT),
        b"hold:orders:3",
        b'\x01{"at":1700000000000,"by":"anna","revision":7}',
    ),
    (
        HistoryEntry(
            action="change",
            target=SOURCE,
            changes=(Change(key=f"override:{SOURCE}:topics", before=".*", after="café.*"),),
            revision=AT,
        ),
        b"history:000000000007",
        b'\x01{"action":"change","at":1700000000000,"by":"anna","changes":[{"after":"caf\\u00e9.*",'
        b'"before":".*","key":"override:MirrorSourceConnector:topics"}],"revision":7,'
        b'"target":"MirrorSourceConnector"}',
    ),
]

ORDERS_EU = TopicPartition("orders-eu", 3)
GOLDEN_KEY = b"orders-eu-3"
GOLDEN_VALUE = (
    b'\x01{"kind":"retention","topic":"orders-eu","partition":3,"first":1000,"last":1999,'
    b'"policy":"gap.policy=continue","cause":"deleted before it was copied","time":1700000000000,'
    b'"flow":"A->B","task":"MirrorSourceConnector-0"}'
)
GOLDEN_2_VALUE = (
    b'\x01{"kind":"too-large","topic":"caf\\u00e9","partition":0,"first":7,"last":7,'
    b'"policy":"partition.failure.policy=isolate","cause":"one record needs \\"more\\"",'
    b'"time":1700000000001,"flow":"A->B","task":"MirrorSourceConnector-1"}'
)
GOLDEN_3_VALUE = (
    b'\x01{"kind":"incarnation","topic":"orders-eu","partition":3,"id":"AAECAwQFBgcICQoLDA0ODw",'
    b'"time":1700000000000,"flow":"A->B"}'
)
GOLDEN_3 = IncarnationRecord(
    partition=ORDERS_EU, topic_id=bytes(range(16)), flow="A->B", time_ms=1_700_000_000_000
)
GOLDEN_EVENT = LedgerRecord(
    event=an_event(1000, 1999, ORDERS_EU), flow="A->B", time_ms=1_700_000_000_000
)
GOLDEN_2_EVENT = an_event(
    7,
    7,
    TopicPartition("café", 0),
    EventKind.TOO_LARGE,
    cause='one record needs "more"',
    task="MirrorSourceConnector-1",
)
GOLDEN_2 = LedgerRecord(
    event=replace(GOLDEN_2_EVENT, policy="partition.failure.policy=isolate"),
    flow="A->B",
    time_ms=1_700_000_000_001,
)
FENCE = Fence(by="1700000000000-ab12", rules=(Rule(topic="orders", principal="User:shop"),))

GOLDEN: list[tuple[Encode, Decode, object, bytes, bytes]] = [
    *((encode_backfill, decode_backfill, *it) for it in BACKFILL),
    (
        encode_failover,
        decode_failover,
        FENCE,
        b"fence",
        b'\x01{"by":"1700000000000-ab12","rules":[{"principal":"User:shop","topic":"orders"}]}',
    ),
    *((encode_flow_record, decode_flow_record, *it) for it in FLOW),
    (encode_ledger_record, decode_ledger_record, GOLDEN_EVENT, GOLDEN_KEY, GOLDEN_VALUE),
    (encode_ledger_record, decode_ledger_record, GOLDEN_2, "café-0".encode(), GOLDEN_2_VALUE),
    (encode_ledger_record, decode_ledger_record, GOLDEN_3, GOLDEN_KEY, GOLDEN_3_VALUE),
]


@pytest.mark.parametrize(
    ("encode", "decode", "record", "key", "value"), GOLDEN, ids=lambda it: type(it).__name__
)
def test_records_have_these_bytes(
    encode: Encode, decode: Decode, record: object, key: bytes, value: bytes
) -> None:
    assert encode(record) == (key, value)
    assert decode(key, value) == record


def test_the_golden_vectors_of_the_page_are_these() -> None:
    text = FORMATS.read_text(encoding="utf-8")
    page = bytes.fromhex("".join(re.findall(r"^    ([0-9a-f ]+)$", text, re.MULTILINE)))
    shown = [(key, value) for *_, key, value in GOLDEN[len(BACKFILL) + 1 :]]
    for key, value in (*shown, encode_producer(a_producer(1001))):
        assert key in page
        assert value in page


FAILOVER = Failover(
    id="f",
    flow="A->B",
    kind=FailoverKind.FAILBACK,
    step=Step.TAIL,
    run=3,
    ends=(LogPlace(topic="orders", partition=1, offset=7),),
    groups=(GroupMove(group="g", moved=1, left=("why",)),),
    tail=(Tail(topic="orders", partition=1, start=2, end=7, records=5),),
    starts=(LogPlace(topic="orders", partition=1, offset=9),),
)


@pytest.mark.parametrize(
    ("encode", "decode", "record"),
    [
        (encode_failover, decode_failover, FAILOVER),
        (encode_producer, decode_producer, a_producer(1001)),
        *(
            (encode_flow_record, decode_flow_record, entry)
            for entry in (
                FlowEntry(state=Presence.DELETED, revision=AT),
                OverrideEntry(connector="a:b%", property="x:y", value=None, revision=AT),
                ConnectorEntry(name="a:b", state=Presence.ADDED, config={"x": "1"}, revision=AT),
                HoldEntry(topic="orders", revision=AT),
                HistoryEntry(action="stop", target="A->B", changes=(), revision=AT),
            )
        ),
    ],
)
def test_every_kind_of_record_is_read_back(encode: Encode, decode: Decode, record: object) -> None:
    assert decode(*encode(record)) == record


@pytest.mark.parametrize(
    ("decode", "key", "value", "known"),
    [
        (
            decode_backfill,
            b"wish",
            b'\x01{"job":"j","wanted":"RUN","reason":"later"}',
            Wish(job="j", wanted=Wanted.RUN),
        ),
        (decode_failover, b"fence", b'\x01{"by":"x","rules":[],"why":1}', Fence(by="x")),
        (
            decode_flow_record,
            b"hold:t",
            b'\x01{"at":5,"by":"a","more":{"x":[1]},"revision":1}',
            HoldEntry(topic="t", revision=Revision(number=1, by="a", at_ms=5)),
        ),
        (
            decode_producer,
            b"1",
            encode_producer(a_producer(1))[1][:-1] + b',"more":[1]}',
            a_producer(1),
        ),
        (decode_ledger_record, GOLDEN_KEY, GOLDEN_VALUE[:-1] + b',"more":{"x":[1]}}', GOLDEN_EVENT),
    ],
)
def test_members_of_a_newer_program_are_ignored(
    decode: Decode, key: bytes, value: bytes, known: object
) -> None:
    assert decode(key, value) == known


@pytest.mark.parametrize(
    ("decode", "key", "value"),
    [
        (decode_backfill, b"wish", b""),
        (decode_backfill, b"wish", b'\x02{"job":"j","wanted":"RUN"}'),
        (decode_backfill, b"wish", b"\x01not json"),
        (decode_backfill, b"wish", b'\x01{"job":"j","wanted":"FLY"}'),
        (decode_backfill, b"other", b"\x01{}"),
        (decode_backfill, None, b"\x01{}"),
        (decode_backfill, b"notice:a", b'\x01{"offset":1,"worker":"b"}'),
        (decode_failover, b"fence", b""),
        (decode_failover, b"fence", b'\x02{"by":"x"}'),
        (decode_failover, b"fence", b'\x03{"by":"x"}'),
        (decode_failover, b"fence", b"\x01no"),
        (decode_failover, b"other", b"\x01{}"),
        (decode_failover, None, b"\x01{}"),
        (decode_producer, b"5", b""),
        (decode_producer, b"5", b"\x02{}"),
        (decode_producer, b"five", b"\x01{}"),
        (decode_producer, None, b"\x01{}"),
        (decode_producer, b"5", b"\x01[]"),
        (decode_producer, b"5", b"\x01{"),
        (decode_producer, b"5", b'\x01{"source":1}'),
    ],
)
def test_damaged_records_are_refused(decode: Decode, key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)


ORDER = Order(id="o", topics="orders.*", by="ann", at_ms=5)
JOB = Job(id="j", state=JobState.RUNNING, run=1, lanes=1)


def test_what_was_planned_over_rest_is_shown_until_its_job_begins() -> None:
    shown = order_report(ORDER, JOB, ())
    assert shown is not None
    assert (shown["id"], shown["state"], shown["topics"]) == ("o", "PLANNED", "orders.*")
    assert order_report(ORDER, replace(JOB, id="o"), ()) is None
    assert order_report(None, JOB, ()) is None


def test_an_order_is_starting_only_while_its_worker_is_in_the_group() -> None:
    started = replace(ORDER, worker="w1:8083")
    for workers, expected in ((["w1:8083"], ("STARTING", "")), (["w2:8083"], ("FAILED", GONE))):
        shown = order_report(started, None, workers)
        assert shown is not None
        assert (shown["state"], shown["cause"]) == expected


def test_a_driver_that_wrote_no_cause_is_shown_with_what_its_worker_noted() -> None:
    noted = replace(ORDER, id="j", cause="no Java")
    assert cause_of(without_driver(JOB), noted) == f"no Java; {NO_DRIVER}"
    assert cause_of(without_driver(JOB), ORDER) == NO_DRIVER
    assert cause_of(JOB, noted) == ""


def test_a_failover_of_thousands_of_partitions_fits_into_a_record() -> None:
    name = "team-{}.of-some-service.with-a-long-name-v1"
    places = tuple(
        LogPlace(topic=name.format(topic), partition=number, offset=10**9 + topic)
        for topic in range(2_000)
        for number in range(3)
    )
    kind, step = FailoverKind.FAILOVER, Step.REVERSE
    failover = Failover(id="f", flow="A->B", kind=kind, step=step, run=1)
    failover = replace(failover, ends=places, ends_there=places, starts=places)
    key, value = encode_failover(failover)
    assert value[0] == 2
    assert len(value) < 512 * 1024, "topics take 1 MiB by default"
    assert decode_failover(key, value) == failover


def test_a_failover_of_a_program_that_knew_no_transactions_is_read() -> None:
    failover = Failover(id="f", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.DRAIN, run=1)
    key, value = encode_failover(failover)
    former = value.replace(b',"transactions":[]', b"").replace(b'"steps":[],', b"")
    assert former != value
    assert decode_failover(key, former) == failover


def test_each_step_of_a_failover_has_its_times_and_a_repeated_one_those_of_the_last_time() -> None:
    failover = Failover(id="f", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.FENCE, run=1)
    course = [
        *((Step.FENCE, 10), (Step.DRAIN, 20), (Step.DRAIN, 25), (Step.VERIFY, 30)),
        *((Step.FENCE, 40), (Step.SWITCH, 35), (Step.DONE, 60)),
    ]
    for step, now_ms in course:
        failover = replace(failover, step=step).recorded(now_ms)
        assert failover.at_ms == now_ms
    # The clock was set back by 5 ms within the second FENCE.
    assert failover.steps == (
        StepTime(step=Step.DRAIN, began_ms=20, ended_ms=30),
        StepTime(step=Step.VERIFY, began_ms=30, ended_ms=40),
        StepTime(step=Step.FENCE, began_ms=40, ended_ms=40),
        StepTime(step=Step.SWITCH, began_ms=35, ended_ms=60),
    )
    assert decode_failover(*encode_failover(failover)) == failover


def test_a_quarantine_topic_is_named_after_its_source_whatever_the_length() -> None:
    assert quarantine_topic("A", "orders") == "mm2py-quarantine.A.orders.internal"
    long = [quarantine_topic("A", "x" * 248 + it) for it in "yz"]
    assert len(set(long)) == 2
    assert all(len(it) <= 249 and it.startswith("mm2py-") for it in long)
    assert all(it.endswith(".internal") for it in long)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"flow", b"", "empty"),
        (b"flow", b"\x02{}", "version 2"),
        (b"flow", b"\x01[]", "not a JSON object"),
        (b"flow", b"\x01{", "not JSON"),
        (b"flow", b'\x01{"at":1,"by":"a","revision":1,"state":"moved"}', "moved"),
        (
            b"flow",
            b'\x01{"at":true,"by":"a","revision":1,"state":"added"}',
            "at is not a 64-bit number",
        ),
        (b"override:c", b'\x01{"at":1,"by":"a","revision":1}', "names no property"),
        (b"override:c:p", b'\x01{"at":1,"by":"a","revision":1,"value":1}', "value is not a text"),
        (b"hold:t:x", b'\x01{"at":1,"by":"a","revision":1}', "no topic or partition"),
        (b"history:000000000002", b'\x01{"at":1,"by":"a","revision":1}', "not known"),
        (b"else", b'\x01{"at":1,"by":"a","revision":1}', "not known"),
        (b"\xff", b'\x01{"at":1,"by":"a","revision":1}', "UTF-8"),
        (None, b'\x01{"at":1,"by":"a","revision":1}', "not known"),
    ],
)
def test_what_cannot_be_read_is_told_apart(key: bytes | None, value: bytes, reason: str) -> None:
    found = decode_flow_record(key, value)
    assert isinstance(found, UnknownFlowRecord)
    assert reason in found.reason


IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


def origins(
    *learned: MirrorProducer, everything: bool = False, target_cluster: str = "id-of-a"
) -> ProducerOrigins:
    found = ProducerOrigins(everything=everything, target="A", target_cluster=target_cluster)
    for it in learned:
        found.learn(it)
    return found


def test_only_mirrors_of_our_target_loop_and_with_all_every_one() -> None:
    both = a_producer(1), a_producer(2, "C", "id-of-c")
    found = origins(*both)
    assert (found.known.looping, found.known.passing) == ({1}, {2})
    assert origins(*both, everything=True).known.looping == {1, 2}


def test_clusters_are_compared_by_id_and_by_alias_only_where_an_id_is_missing() -> None:
    another = a_producer(2, "A", "id-of-another-cluster-called-A")
    found = origins(a_producer(1, "other-name", "id-of-a"), another, a_producer(3, "A", ""))
    assert (found.known.looping, found.known.passing) == ({1, 3}, {2})
    assert origins(a_producer(1), target_cluster="").known.looping == {1}


def test_3_a_judgement_is_final() -> None:
    found = origins(a_producer(1))
    found.judge([1, 4])
    found.judge([4])
    assert (found.known.looping, found.known.passing) == ({1}, {4})


def test_ids_of_applications_are_forgotten_before_they_fill_memory_and_mirrors_never() -> None:
    found = origins(a_producer(2, "C", "id-of-c"))
    found.judge(range(1_000, 1_000 + MOST_PASSING))
    found.judge([5])
    assert found.known.passing == {2, 5}


def test_it_is_on_where_names_are_kept_unless_it_is_set() -> None:
    keeps = {"replication.policy.class": IDENTITY, "source.cluster.alias": "A"}
    assert suppression_of({}) is Suppression.OFF
    assert suppression_of(keeps) is Suppression.AUTO
    assert suppression_of({**keeps, "loop.suppression": "off"}) is Suppression.OFF
    assert suppression_of({"loop.suppression": "ON"}) is Suppression.ON
    assert suppression_of({"loop.suppression": "all"}) is Suppression.ALL
    with pytest.raises(ConfigError, match=r"loop\.suppression=maybe"):
        suppression_of({"loop.suppression": "maybe"})


# ---- the ledger


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x02anything", "version 2, this program knows 1"),
        (b"", "empty value"),
        (None, "empty value"),
        (b"\x01{", "not JSON behind the version byte"),
        (b"\x01[]", "not a JSON object behind the version byte"),
        (b"\x01{}", "member kind is not a text"),
        (b'\x01{"kind":"eaten"}', "kind 'eaten' is not known"),
        (GOLDEN_VALUE.replace(b"1999", b"true"), "member last is not a 64-bit number"),
        (GOLDEN_VALUE.replace(b"1999", b"9" * 30), "member last is not a 64-bit number"),
        (GOLDEN_3_VALUE.replace(b"AAEC", b"AA"), "member id is not a topic id"),
        (GOLDEN_3_VALUE.replace(b"AAEC", b"\\u00e9"), "member id is not a topic id"),
        (b"\x01" + b"[" * 100_000, "not JSON behind the version byte"),
    ],
)
def test_what_cannot_be_read_is_kept_with_the_reason(value: bytes | None, reason: str) -> None:
    found = decode_ledger_record(GOLDEN_KEY, value)
    assert found == UnknownLedgerRecord(GOLDEN_KEY, value or b"", reason)


def test_only_what_is_not_on_the_target_and_never_arrives_is_a_loss() -> None:
    losses = {kind.value for kind in EventKind if kind.is_loss}
    assert losses == {"retention", "recreated", "skipped", "quarantined", "target-lost"}
    assert {kind.value for kind in EventKind if kind.stops} == {"poisoned", "too-large", "refused"}


def test_what_a_failover_kept_in_quarantine_is_not_found_again_as_skipped() -> None:
    known, ranges = KnownEvents(), QuarantinedRanges()
    kept = an_event(10, 19, kind=EventKind.QUARANTINED)
    known.note(kept)
    ranges.take(LedgerRecord(event=kept, flow="A->B", time_ms=1))
    assert ranges.ranges == {kept.partition: [(10, 20)]}
    assert known.take(an_event(10, 19, kind=EventKind.SKIPPED)) == ()
    found = known.take(an_event(5, 24, kind=EventKind.SKIPPED))
    assert [(it.first_offset, it.last_offset) for it in found] == [(5, 9), (20, 24)]
    lost = an_event(10, 19)
    assert known.take(lost) == (lost,), "another cause is"
    new = IncarnationRecord(partition=kept.partition, topic_id=b"2" * 16, flow="A->B", time_ms=2)
    ranges.take(new)
    assert ranges.ranges == {}, "its offsets are other records"


def test_offsets_of_a_recreated_topic_are_not_those_of_the_old_one() -> None:
    known = KnownEvents()
    gap = an_event(10, 19)
    assert known.take(gap) == (gap,)
    assert known.take(an_event(30, 29, kind=EventKind.RECREATED)) != ()
    assert known.take(gap) == (gap,)


def test_a_lost_tail_that_the_next_task_finds_without_its_end_is_not_written_again() -> None:
    known, again = KnownEvents(), an_event(30, 29, kind=EventKind.RECREATED)
    restarted, tail = KnownEvents(), an_event(30, 34, kind=EventKind.RECREATED)
    assert len(known.take(tail)) == 1
    restarted.note(tail)
    assert known.take(again) == restarted.take(again) == ()
    assert known.take(again) == (), "nor by the one after that"
    known.copied(ORDERS)
    assert known.take(again) == (again,)


@pytest.mark.parametrize(("read_to", "last"), [(30, 29), (30, 34)])
def test_what_was_under_way_at_a_kill_behind_a_recreation_is_named(read_to: int, last: int) -> None:
    known = KnownEvents()
    assert len(known.take(an_event(read_to, last, kind=EventKind.RECREATED))) == 1
    (found,) = known.take(an_event(25, 24, kind=EventKind.RECREATED))
    assert (found.first_offset, found.last_offset) == (25, last)
    assert "ended before it was known" in found.cause
    assert known.take(an_event(25, 24, kind=EventKind.RECREATED)) == ()


def test_what_was_under_way_at_a_kill_is_named_though_nothing_was_delivered_before() -> None:
    """The stored position is 0 then, as that of an empty new incarnation: only what the next process finds first is the old one."""
    known = KnownEvents()
    known.note(an_event(30, 29, kind=EventKind.RECREATED))
    (found,) = known.take(an_event(0, -1, kind=EventKind.RECREATED))
    assert (found.first_offset, found.last_offset) == (0, 29)
    assert known.take(an_event(0, -1, kind=EventKind.RECREATED)) == ()
    later = KnownEvents()
    later.note(an_event(30, 29, kind=EventKind.RECREATED))
    assert later.take(an_event(30, 29, kind=EventKind.RECREATED)) == ()
    assert later.take(an_event(0, -1, kind=EventKind.RECREATED)) == (), "an empty one ended in turn"


@pytest.mark.parametrize("first", [0, 34])
def test_an_end_without_offsets_is_no_event_until_the_new_incarnation_is_copied(first: int) -> None:
    """The stored position may lie behind what was reported; an incarnation that was empty begins at 0."""
    known = KnownEvents()
    assert len(known.take(an_event(30, 34, kind=EventKind.RECREATED))) == 1
    assert known.take(an_event(first, first - 1, kind=EventKind.RECREATED)) == ()
    lost = an_event(first, first + 2, kind=EventKind.RECREATED)
    assert known.take(lost) == (lost,), "what is known to be lost is always an event"


def test_every_truncation_is_an_event() -> None:
    known = KnownEvents()
    event = an_event(30, 39, kind=EventKind.TRUNCATION)
    assert known.take(event) == (event,)
    assert known.take(event) == (event,)
