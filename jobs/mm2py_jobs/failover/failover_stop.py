"""Stops a flow whose source cannot be reached, and says whether it is stopped: by the target states in Connect's config topic.

Flow: ``mm2-configs.<source>.internal`` on the target -> its connectors -> a record STOPPED for each, which any worker may write. Workers that
begin later find it before they start a task; until the cluster is back they show WAITING, stopped or not.
"""

from contextlib import suppress

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.permit import UNLIMITED
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.flows.changes import SOURCE
from mm2py.protocol.records import Record
from mm2py.storage.config_fold import ConfigFold
from mm2py.storage.connect_json import TargetPut, decode_config_record, encode_config_record
from mm2py.storage.table import Handler
from mm2py.types import TargetState
from mm2py_workers.internal_stores import FlowTables, config_topic, store_producer
from mm2py_workers.node_parts import FlowPlan


async def stop_without_workers(target: Cluster, plan: FlowPlan, clock: Clock) -> None:
    """Let no connector of a flow run, whoever starts a worker; returns when that is acknowledged.

    Raises:
        RetriableError: the target does not answer.
    """
    fold = ConfigFold()
    producer = store_producer(plan.props, plan.name)
    tables = FlowTables(target, producer, permit=UNLIMITED, clock=clock)
    table = tables.table(
        config_topic(plan.props, plan.worker),
        transactional=plan.worker.leader_writes_in_transactions,
    )
    try:
        await table.start(_into(fold))
        names = {*fold.snapshot().connectors, *plan.connectors}
        puts = [TargetPut(name, TargetState.STOPPED) for name in sorted(names)]
        await table.post([encode_config_record(it) for it in puts])
    finally:
        await table.stop()
        await tables.close()


async def is_stopped_on_record(target: Cluster, plan: FlowPlan, clock: Clock) -> bool:
    """Return whether the flow's source connector is to stand still, whatever its workers know; writes and creates nothing.

    Raises:
        RetriableError: the target does not answer.
    """
    topic = plan.worker.config_storage_topic
    if topic not in await Admin(target).describe_topics([topic]):
        return False
    fold = ConfigFold()
    reader = LogReader(
        target,
        topic,
        clock=clock,
        waits_for_transactions=plan.worker.leader_writes_in_transactions,
    )
    try:
        await reader.read_to_end(_into(fold))
    finally:
        await reader.close()
    return fold.snapshot().targets.get(SOURCE) is TargetState.STOPPED


def _into(fold: ConfigFold) -> Handler:
    def take(_partition: int, record: Record) -> None:
        fold.advance(record.offset)
        with suppress(ProtocolError):  # a worker logs it
            fold.take(decode_config_record(record.key, record.value))

    return take
