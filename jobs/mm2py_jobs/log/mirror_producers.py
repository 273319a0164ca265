"""Which batches of a cluster mirrors wrote: the producer ids that they publish there
(``mm2py.mirror.producer_ids``)."""

from contextlib import suppress
from typing import Final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_values
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC, MirrorProducer, decode_producer
from mm2py.protocol.record_batch import HEADER
from mm2py_jobs.log.log_batches import LogBatch

_PRODUCER_ID: Final = 9
"""Field of ``HEADER``."""


def producer_of(batch: LogBatch) -> int:
    """Return the producer id of a batch, ``NO_PRODUCER_ID`` if it has none."""
    return int(HEADER.unpack_from(batch.data)[_PRODUCER_ID])


async def mirror_producers(cluster: Cluster, clock: Clock) -> list[MirrorProducer]:
    """Return the producers of all mirrors that write to a cluster."""
    found: list[MirrorProducer] = []
    for key, value in (await newest_values(cluster, PRODUCERS_TOPIC, clock)).items():
        with suppress(ProtocolError):  # the flow's task logs it
            found.append(decode_producer(key, value))
    return found
