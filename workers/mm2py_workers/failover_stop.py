"""Stops a flow whose workers wait for a cluster that is gone: the target states of its connectors, in Connect's own topic.

Flow: ``mm2-configs.<source>.internal`` on the target -> its connectors -> a record STOPPED for each, which any worker may write. Workers that
begin later find it before they start a task.
"""

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.protocol.records import Record
from mm2py.storage.config_fold import ConfigFold
from mm2py.storage.connect_json import TargetPut, decode_config_record, encode_config_record
from mm2py.types import TargetState
from mm2py_workers.internal_stores import FlowTables, config_topic, store_producer
from mm2py_workers.node_parts import FlowPlan

__all__ = ["stop_without_workers"]


async def stop_without_workers(target: Cluster, plan: FlowPlan, clock: Clock) -> None:
    """Let no connector of a flow run, whoever starts a worker; returns when that is acknowledged.

    Raises:
        RetriableError: the target does not answer.
    """
    fold = ConfigFold()

    def take(_partition: int, record: Record) -> None:
        fold.advance(record.offset)
        try:
            fold.take(decode_config_record(record.key, record.value))
        except ProtocolError:
            return  # a worker logs it

    producer = store_producer(plan.props, plan.name)
    tables = FlowTables(target, producer, permit=UNLIMITED, clock=clock)
    table = tables.table(
        config_topic(plan.props, plan.worker),
        transactional=plan.worker.leader_writes_in_transactions,
    )
    try:
        await table.start(take)
        names = {*fold.snapshot().connectors, *plan.connectors}
        puts = [TargetPut(name, TargetState.STOPPED) for name in sorted(names)]
        await table.post([encode_config_record(it) for it in puts])
    finally:
        await table.stop()
        await tables.close()
