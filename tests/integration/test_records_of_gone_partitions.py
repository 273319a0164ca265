"""What a producer still holds of a partition that another member of the group has now: it must not arrive behind that one's records."""

import threading
from collections.abc import Generator, Mapping
from itertools import pairwise
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.config.librdkafka import SettingValue
from mm2py_connectors.record_sender import RecordSender, SentRecord
from tests.integration.mirror_process import running, until
from tests.integration.setups import Setup
from tests.integration.sinks import PARTITIONS, SHORT_SESSIONS, a_flow, group_of, wait_committed
from tests.integration.traffic import Sent as Record
from tests.integration.traffic import assert_resumed, ends, read, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.regions import ANY_SESSION

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

SIZE: Final = 1_000
BEFORE, HELD = 20, 3_000
IN_REQUESTS: Final = 5 * 16
"""Five requests of 16 KiB may be on their way."""


@pytest.fixture
def target() -> Generator[Region]:
    with Region("gone", properties=ANY_SESSION) as region:
        yield region


def never() -> None:
    """A stream that waits for the target."""


def values(region: KafkaAddress) -> Mapping[str, SettingValue]:
    return {
        "bootstrap.servers": region.bootstrap_servers,
        "enable.idempotence": True,
        "acks": -1,
        "batch.size": 16_384,
        "message.timeout.ms": 0,
    }


def refuse(sent: SentRecord, text: str) -> None:
    raise AssertionError(f"{sent.place}: {text}")


def send(sender: RecordSender, topic: str, start: int, count: int) -> None:
    for number in range(start, start + count):
        for partition in (0, 1):
            value = b"%d" % number + bytes(SIZE)
            out = OutgoingRecord(topic, None, value, (), None, partition)
            sender.send(SentRecord((topic, partition, number), out), never)


def numbers(region: KafkaAddress, topic: str, partition: int) -> list[int]:
    return [int((it.value or b"").rstrip(b"\0")) for it in read(region, topic)[partition].records]


@pytest.mark.parametrize("by", ["holder", "another thread", "while it waits"])
def test_a_partition_that_was_given_up_gets_nothing_more_and_others_everything(
    setup: Setup, target: Region, by: str
) -> None:
    topic = setup.topic("gone", 2, on=target)
    sender = RecordSender(values(target), refuse)
    with sender.hold(never):
        send(sender, topic, 0, BEFORE)
        sender.flush(never)
        target.freeze()
        try:
            send(sender, topic, BEFORE, HELD)
            gone = [(topic, 0)]
            if by == "holder":
                sender.give_up(gone)
            elif by == "another thread":
                thread = threading.Thread(target=sender.give_up, args=(gone,))
                thread.start()
                thread.join()
            else:
                waited = 0

                def idle() -> None:
                    nonlocal waited
                    waited += 1
                    if waited == 2:
                        sender.give_up(gone)
                    if waited == 4:
                        target.thaw()

                sender.flush(idle)
        finally:
            target.thaw()
        # Its next owner.
        producer = Producer({"bootstrap.servers": target.bootstrap_servers})
        producer.produce(topic, b"-1", partition=0)
        assert producer.flush(60) == 0
        sender.flush(never)
        sender.send(
            SentRecord((topic, 0, 9), OutgoingRecord(topic, None, b"-2", (), None, 0)), never
        )
        sender.flush(never)
    sender.close()
    assert len(numbers(target, topic, 0)) <= BEFORE + IN_REQUESTS + 2
    assert numbers(target, topic, 0)[-1] == -2, "a partition that came back is written"
    kept = numbers(target, topic, 1)
    assert sorted(set(kept)) == list(range(BEFORE + HELD))
    # What was in requests is there twice.
    assert sum(after != before + 1 for before, after in pairwise(kept)) <= 1


def test_records_of_partitions_that_moved_while_the_target_stood_still_stay_with_their_new_owner(
    setup: Setup, target: Region
) -> None:
    topic = setup.topic("moved", PARTITIONS)
    flow = a_flow(setup.folder, setup.a, target, topic, {"tasks.max": "1"}, SHORT_SESSIONS)

    def produce(start: int, count: int) -> None:
        for at in range(start, start + count, 1_000):
            write(
                setup.a,
                topic,
                [
                    Record(n % PARTITIONS, b"%d" % n + bytes(SIZE))
                    for n in range(at, min(at + 1_000, start + count))
                ],
            )

    with running(flow.file, ready=False) as mirror:
        produce(0, PARTITIONS * BEFORE)
        wait_for_copy(mirror, flow, topic)
        wait_committed(mirror, flow, topic)
        other = Consumer(
            {
                "bootstrap.servers": setup.a.bootstrap_servers,
                "group.id": group_of(flow),
                "partition.assignment.strategy": "roundrobin",
                "enable.auto.commit": False,
            }
        )
        target.freeze()
        try:
            produce(PARTITIONS * BEFORE, PARTITIONS * 1_000)
            # Read and with the producer long before: six seconds of silence.
            until(lambda: mirror.lines("the flow is suspended"), 90, "silence", alive=mirror)
            other.subscribe([topic])

            def moved() -> list[TopicPartition]:
                other.poll(0.1)
                return other.assignment()

            theirs = {it.partition for it in until(moved, 90, "a share", alive=mirror)}
            assert len(theirs) == PARTITIONS // 2
        finally:
            target.thaw()
        kept = set(range(PARTITIONS)) - theirs

        def copied() -> bool:
            other.poll(0.1)
            now = ends(target, flow.remote(topic))
            return all(now.get(it, 0) >= BEFORE + 1_000 for it in kept)

        until(copied, 90, lambda: f"{ends(target, flow.remote(topic))}", alive=mirror)
        there = ends(target, flow.remote(topic))
        # Five requests of 128 KiB, the batches of MirrorSink's producer.
        assert all(there[it] <= BEFORE + 5 * 131 for it in theirs), there
        other.close()
        truth, copy = wait_for_copy(mirror, flow, topic)
        # What was in requests is there twice, also where the partition came back.
        assert_resumed(truth, copy, rewinds=2)
