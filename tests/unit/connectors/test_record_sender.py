"""What a sender does with records of partitions that are given up, at moments that no cluster can be made to choose; and logins by Kerberos."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, cast

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.api.records import SinkRecord
from mm2py.clock import SystemClock
from mm2py.config.librdkafka import producer_settings
from mm2py.errors import ConfigError, FatalError, RetriableError
from mm2py.types import TopicPartition
from mm2py_connectors import record_sender
from mm2py_connectors.record_sender import RIGHTS, RecordSender, SentRecord, check_kerberos
from mm2py_workers import dead_letters
from mm2py_workers.dead_letters import DeadLetterTopic
from tests.unit.workers.consumer_fakes import Read

GONE, KEPT = ("t", 0), ("t", 1)
TOO_LARGE: Final = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
PURGED: Final = KafkaError(KafkaError._PURGE_QUEUE)
FORGOTTEN: Final = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
LARGE: Final = b"large"

OnDelivery = Callable[[KafkaError | None, object], None]


class Cluster:
    """The target, and what its producers do at the next call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.answers = True
        self.fails = 0
        """So many records fail once, as where their batch fails."""
        self.failures = [TOO_LARGE] * 1_000
        """Causes of them, the last ones count."""
        self.room = self.per_poll = 1_000
        self.asked: list[str | None] = []
        self.alone: list[bytes] = []
        """What was handed over to go alone."""
        self.before_produce: dict[bytes, Callable[[], None]] = {}
        self.at_len: Callable[[], None] | None = None
        self.is_quick = False
        """A record is written as soon as it is handed over."""

    def producer(self, values: Mapping[str, object]) -> "FakeProducer":
        self.latest = FakeProducer(self, is_alone=values.get("batch.num.messages") == 1)
        return self.latest


class FakeProducer:
    """A ``confluent_kafka.Producer`` that writes what it has when it is polled."""

    def __init__(self, cluster: Cluster, *, is_alone: bool) -> None:
        self.cluster, self.is_alone = cluster, is_alone
        self.waiting: list[tuple[bytes, OnDelivery]] = []
        self.purged: list[OnDelivery] = []

    def produce(
        self,
        _topic: str,
        value: bytes,
        _key: bytes | None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: object = None,
    ) -> None:
        assert (partition, timestamp, headers) == (-1, 0, None)
        failed = callback or on_delivery
        assert failed is not None
        self.cluster.before_produce.pop(value, lambda: None)()
        if len(self.waiting) >= self.cluster.room:
            raise BufferError
        if value == LARGE:
            raise KafkaException(TOO_LARGE)
        if self.is_alone:
            self.cluster.alone.append(value)
        if self.cluster.is_quick:
            self.cluster.written.append(value)
            return
        self.waiting.append((value, failed))

    def poll(self, _timeout_s: float) -> int:
        purged, self.purged = self.purged, []
        for on_delivery in purged:
            on_delivery(PURGED, None)
        for _ in range(self.cluster.per_poll):
            if not (self.cluster.answers and self.waiting):
                break
            value, on_delivery = self.waiting[0]
            if self.cluster.fails:
                on_delivery(self.cluster.failures[-self.cluster.fails], None)
                self.cluster.fails -= 1
            else:
                self.cluster.written.append(value)
            del self.waiting[0]
        return 0

    def purge(self, *, in_flight: bool = True, blocking: bool = True) -> None:
        assert in_flight
        assert not blocking
        self.purged += [on_delivery for _, on_delivery in self.waiting]
        self.waiting.clear()

    def list_topics(self, topic: str | None, _timeout_s: float) -> None:
        self.cluster.asked.append(topic)

    def __len__(self) -> int:
        if self.cluster.at_len is not None:
            self.cluster.at_len()
        return len(self.waiting) + len(self.purged)


class ReadOfKept(Read):
    """A message of the partition that stays."""

    def __init__(self, offset: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(TopicPartition(*KEPT), offset)
        self._meanwhile = meanwhile

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, 0

    def value(self) -> bytes:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return b"1:%d" % self.offset()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(record_sender, "Producer", cluster.producer)
    for name in ("FLUSH_S", "RETRY_S", "FULL_S"):
        monkeypatch.setattr(record_sender, name, 0.001)
    return cluster


def never() -> None:
    """A stream that waits for the target."""


def accept(_sent: SentRecord, _text: str) -> None:
    """A refused record is dropped by request."""


def sent(partition: tuple[str, int], offset: int, value: bytes = b"") -> SentRecord:
    text = value or b"%d:%d" % (partition[1], offset)
    return SentRecord((*partition, offset), OutgoingRecord("t", None, text, (), None, None))


def once(call: Callable[[], None]) -> Callable[[], None]:
    """Return what calls it the first time."""
    calls = [call]
    return lambda: calls.pop()() if calls else None


def test_a_record_that_was_read_again_is_refused_as_any_other(cluster: Cluster) -> None:
    refused: list[SentRecord] = []
    sender = RecordSender({}, lambda it, _text: refused.append(it))
    cluster.answers = False
    sender.send(sent(GONE, 1), never)
    sender.give_up([GONE])
    cluster.answers = True
    # It came back; the first record behind its commit is too large for the producer itself.
    sender.send(sent(GONE, 1, LARGE), never)
    sender.flush(lambda: pytest.fail("nothing to wait for"))
    assert [it.place for it in refused] == [(*GONE, 1)]
    assert cluster.written == []


def test_a_record_whose_partition_goes_during_resends_is_not_sent(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    cluster.fails = 1
    sender.send(sent(KEPT, 1), never)
    cluster.latest.poll(0)
    cluster.answers = False

    def goes() -> None:
        sender.give_up([GONE])
        cluster.answers = True

    sender.send(sent(GONE, 1), once(goes))
    sender.flush(never)
    assert cluster.written == [b"1:1"]


def test_a_record_whose_partition_goes_as_it_waits_is_not_sent(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    cluster.room = 0

    def goes() -> None:
        cluster.room = 1
        sender.give_up([GONE])

    sender.send(sent(GONE, 1), once(goes))
    sender.send(sent(KEPT, 1), never)
    sender.flush(never)
    assert cluster.written == [b"1:1"]


def test_a_partition_goes_while_another_thread_hears_of_failures(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    sender.send(sent(GONE, 1), never)
    sender.send(sent(KEPT, 1), never)
    cluster.fails = 2

    def polls() -> None:
        cluster.latest.poll(0)

    # In the middle of give_up, the thread that holds the sender polls.
    cluster.at_len = once(polls)
    sender.give_up([GONE])
    cluster.at_len, cluster.fails = None, 0
    sender.flush(never)
    assert cluster.written == [b"1:1"]


def test_nothing_overtakes_what_was_purged(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    for offset in (1, 2, 3):
        sender.send(sent(KEPT, offset), never)
    cluster.fails = 3
    cluster.latest.poll(0)
    # While the last of them is handed over again, another thread gives up what is its own.
    other = threading.Thread(target=sender.give_up, args=([GONE],))

    def goes() -> None:
        other.start()
        other.join(0.2)

    cluster.before_produce[b"1:3"] = goes
    sender.flush(never)
    other.join()
    sender.flush(never)
    assert cluster.written == [b"1:1", b"1:2", b"1:3"]


def test_a_record_as_it_is_overtakes_nothing_that_was_purged(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    for offset in (1, 2):
        sender.forward(cast("Message", ReadOfKept(offset)), never)

    def goes() -> None:
        sender.give_up([GONE])
        cluster.is_quick = True

    sender.forward(cast("Message", ReadOfKept(3, goes)), never)
    sender.flush(never)
    assert cluster.written == [b"1:1", b"1:2", b"1:3"]


def test_what_another_reader_has_sent_since_is_not_given_up(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    late, now = object(), object()
    sender.take([GONE, KEPT], late)
    cluster.answers = False
    sender.take([GONE], now)
    sender.send(sent(GONE, 1), never)
    sender.send(sent(KEPT, 1), never)
    # The group has taken both from the first one long ago, and it hears of it only now.
    sender.give_up([GONE, KEPT], late)
    cluster.answers = True
    sender.flush(never)
    assert cluster.written == [b"0:1"]


def test_records_of_a_topic_created_again_go_behind_the_former(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    cluster.fails = 4
    for offset in (998, 999, 0, 1):
        sender.send(sent(KEPT, offset), never)
    sender.flush(never)
    assert cluster.written == [b"1:998", b"1:999", b"1:0", b"1:1"]


def test_records_behind_a_refusal_that_failed_are_sent_again(cluster: Cluster) -> None:
    refused: list[int] = []

    def failing_once(it: SentRecord, _text: str) -> None:
        refused.append(it.place[2])
        if len(refused) == 1:
            raise RuntimeError("the dead letter queue cannot be opened")

    sender = RecordSender({}, failing_once)
    sender.send(sent(KEPT, 1), never)
    sender.send(sent(KEPT, 2), never)
    cluster.fails = 100
    with pytest.raises(RuntimeError):
        sender.flush(never)
    sender.flush(never)
    assert refused == [1, 1, 2]


def test_only_what_may_be_refused_is_sent_alone(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    for offset in (1, 2, 3):
        sender.send(sent(KEPT, offset), never)
    sender.send(sent(GONE, 1), never)
    # A record of the second batch is too large: the library stops, and purges what lies behind.
    cluster.failures, cluster.fails = [PURGED, TOO_LARGE, PURGED, PURGED], 4
    sender.flush(never)
    assert cluster.alone == [b"1:1", b"1:2"]
    assert cluster.written == [b"1:1", b"1:2", b"1:3", b"0:1"]


@pytest.mark.parametrize("name", RIGHTS)
def test_a_right_that_is_missing_refuses_no_record(cluster: Cluster, name: str) -> None:
    sender = RecordSender({}, lambda _sent, text: pytest.fail(text), waits_for=RIGHTS)
    cluster.failures = [KafkaError(cast("int", getattr(KafkaError, name)))] * 3
    cluster.fails = 3  # in its batch, and alone
    sender.send(sent(KEPT, 1), never)
    sender.flush(never)
    assert cluster.written == [b"1:1"]


def test_a_dead_letter_queue_without_its_right_is_waited_for_with_the_cause(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "FLUSH_S", 0.0)
    settings = producer_settings({"bootstrap.servers": "b:1"}, scope="dead letter queue")
    queue = DeadLetterTopic("dead", 1, settings, cluster="B", clock=SystemClock())
    cluster.failures = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)] * 1_000
    cluster.fails = 1_000
    queue.send(SinkRecord("t", 1, None, b"v", (), -1, 4, "t", 1), ())
    with pytest.raises(RetriableError, match=r"dead takes no records now: .*authorization failed"):
        queue.flush()
    cluster.fails = 0
    queue.flush()
    assert cluster.written == [b"v"]


@pytest.mark.parametrize("cause", [TOO_LARGE, PURGED], ids=["refused", "purged"])
def test_a_wait_that_ends_early_is_continued_and_nothing_is_written_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, cause: KafkaError
) -> None:
    monkeypatch.setattr(record_sender, "FLUSH_S", 0.0)
    sender = RecordSender({}, accept)
    values = [b"1:%d" % offset for offset in range(100)]
    for offset in range(100):
        sender.send(sent(KEPT, offset), never)
    cluster.failures, cluster.fails = [cause] * 100, 100
    cluster.latest.poll(0)
    cluster.per_poll = 1

    def ends_early() -> None:
        raise RetriableError("the group must see that the task lives")

    for _ in range(1_000):
        with suppress(RetriableError):
            sender.flush(ends_early)
            break
    assert cluster.written == values


def test_the_pause_before_the_next_try_ends_however_often_the_wait_is_ended(
    cluster: Cluster,
) -> None:
    """A caller that looks in for a moment, again and again, would else never try again."""
    sender = RecordSender({}, accept)
    cluster.failures, cluster.fails = [KafkaError(KafkaError._UNKNOWN_PARTITION)], 1
    sender.send(sent(KEPT, 1), never)

    def at_once() -> None:
        raise RetriableError("no time")

    for _ in range(1_000):
        with suppress(RetriableError):
            sender.flush(at_once)
            break
    assert cluster.written == [b"1:1"]


def test_what_is_taken_back_is_in_order_with_its_cause_and_is_not_sent(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    cluster.failures, cluster.fails = [KafkaError(KafkaError._UNKNOWN_PARTITION)], 1
    for offset in (7, 8, 0):
        sender.send(sent(KEPT, offset), never)
    cluster.per_poll = 1
    cluster.latest.poll(0)
    back = sender.take_back()
    assert [it.place[2] for it, _ in back] == [7, 8, 0]
    assert ["Unknown partition" in cause for _, cause in back] == [True, False, False]
    sender.flush(never)
    assert (sender.waiting, cluster.written) == ((0, ""), [])


def test_what_was_not_there_is_asked_for_before_the_next_try(cluster: Cluster) -> None:
    sender = RecordSender({}, accept)
    cluster.failures, cluster.fails = [KafkaError(KafkaError._UNKNOWN_PARTITION)], 1
    sender.send(sent(KEPT, 1), never)
    sender.flush(never)
    assert cluster.asked == ["t"]
    assert cluster.written == [b"1:1"]


def test_a_broker_that_forgot_the_producer_takes_records_from_another(cluster: Cluster) -> None:
    refused: list[SentRecord] = []
    sender = RecordSender({}, lambda it, _text: refused.append(it))
    # The first producer, and the one that sends alone.
    cluster.failures, cluster.fails = [TOO_LARGE, FORGOTTEN], 2
    sender.send(sent(KEPT, 1), never)
    sender.flush(never)
    assert cluster.written == [b"1:1"]
    assert refused == []


def test_a_passing_error_refuses_no_record_of_a_sender_that_waits_for_it(cluster: Cluster) -> None:
    refused: list[int] = []
    forbidden = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    for waits_for in ((), ("TOPIC_AUTHORIZATION_FAILED",)):
        sender = RecordSender(
            {}, lambda it, _text: refused.append(it.place[2]), waits_for=waits_for
        )
        cluster.failures, cluster.fails = [forbidden] * 2, 2
        sender.send(sent(KEPT, len(waits_for)), never)
        sender.flush(never)
    assert (refused, cluster.written) == ([0], [b"1:1"])


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_header_that_the_library_cannot_read_is_named_with_its_record(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_sync: bool
) -> None:
    def fails(_it: Read) -> None:
        raise SystemError

    monkeypatch.setattr(Read, "headers", fails)
    sender = RecordSender({}, accept, is_sync=is_sync)
    with pytest.raises(FatalError, match="t-1 offset 7: the key of a header is no UTF-8"):
        sender.forward(cast("Message", ReadOfKept(7)), never)
    assert cluster.written == []


# -- Kerberos: refused in one line where librdkafka was built without it ---------------------------


def has_gssapi() -> bool:
    try:
        Producer({"builtin.features": "sasl_gssapi", "log_level": 0})
    except KafkaException:
        return False
    return True


@pytest.mark.skipif(has_gssapi(), reason="this librdkafka has Kerberos")
def test_a_library_without_kerberos_refuses_such_a_login_alone_with_what_to_do() -> None:
    login = {"sasl.mechanism": "GSSAPI", "bootstrap.servers": "h:1"}
    with pytest.raises(ConfigError, match=r"built without Kerberos.*docs/guide/security\.md"):
        check_kerberos(login)
    check_kerberos({"sasl.mechanism": "PLAIN"})
    check_kerberos({})


@pytest.mark.skipif(not has_gssapi(), reason="this librdkafka has no Kerberos")
def test_two_principals_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sender, "_principals", {})
    login = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"}
    for _ in range(2):
        check_kerberos({**login, "sasl.kerberos.principal": "one@A"})
    check_kerberos({"sasl.mechanism": "GSSAPI"})
    with pytest.raises(ConfigError, match="as one@A and two@B"):
        check_kerberos({**login, "sasl.kerberos.principal": "two@B"})
