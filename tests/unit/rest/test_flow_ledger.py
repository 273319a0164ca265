"""The ledger that a worker keeps: each look reads what is new alone, and shows what a look at the whole would."""

from mm2py.api.context import EventKind
from mm2py.flows.flow_ledger import KeptLedger
from mm2py.flows.view_models import LedgerView
from mm2py.protocol.records import encode_batch
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.cli.test_ledger_command import RECORDS, TOPIC, a_record
from tests.unit.client.client_stage import connected_to

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
TP = TopicPartition(TOPIC, 0)
NEW = a_record(EventKind.RETENTION, "orders", 60, 64)
FETCH = 1


def shown(kept: KeptLedger, most: int = 100) -> LedgerView:
    return kept.view(most, str)


async def test_a_look_reads_what_is_new_alone() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        kept = KeptLedger(FLOW)
        broker.append(TP, bytes(encode_batch(RECORDS)))
        await kept.read(target)
        before = shown(kept)
        assert before.total == 6
        asked = broker.count(FETCH)
        await kept.read(target)
        assert (shown(kept), broker.count(FETCH)) == (before, asked)
        # Whoever read it from its start would not see the former events any more.
        broker.partition(TP).batches.clear()
        broker.append(TP, bytes(encode_batch([NEW])))
        await kept.read(target)
        after = shown(kept)
        assert after.events[0].first == 60
        assert after.events[1:] == before.events
        assert (after.total, after.topics[1].lost) == (7, before.topics[1].lost + 5)


async def test_a_ledger_that_is_created_again_is_read_anew() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        kept = KeptLedger(FLOW)
        await kept.read(target)
        assert shown(kept).total == 0
        broker.append(TP, bytes(encode_batch(RECORDS)))
        await kept.read(target)
        broker.create_topic(TOPIC)
        broker.append(TP, bytes(encode_batch([NEW])))
        await kept.read(target)
        assert [it.first for it in shown(kept).events] == [60]


async def test_of_more_events_than_are_kept_the_newest_are_there_and_all_are_in_the_sums() -> None:
    async with FakeBroker(topics={TOPIC: 1}) as broker, connected_to(broker) as target:
        broker.append(TP, bytes(encode_batch(RECORDS)))
        whole, kept = KeptLedger(FLOW), KeptLedger(FLOW, most=2)
        for each in (whole, kept):
            await each.read(target)
        assert shown(kept).events == shown(whole).events[:2]
        assert (shown(kept).total, shown(kept).topics) == (6, shown(whole).topics)
        assert [kept.has(2), kept.has(3), whole.has(100)] == [True, False, True]
