"""What a load costs a worker, from the fit of ``python -m bench.sizing`` (docs/sizing.md).

Flow: partitions, records and bytes per second -> ``Load`` -> ``Costs`` -> share of a core and bytes
of memory. The figures are of one machine: they say which part of a load is expensive, and how many
workers it takes, not what another CPU needs.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from mm2py.client.connect.admin import Admin
from mm2py.observability.quantities import size_text
from mm2py.types import TopicPartition
from mm2py_jobs.doctor.examined import Examined, Level, Row

MB: Final = 1_000_000

LOOK_S: Final = 1.0
"""For how long it is looked how much the source is written."""

CYCLE_S: Final = 0.0075
"""From one Fetch that brings little to the next: ``producer.linger.ms``, and the round trips to
both brokers on a near line."""
LOOK_AT_S: Final = 1.7e-6
"""What a broker adds to a round for each partition of the flow, written to or not: that many fewer
rounds a worker has."""
MANY: Final = 100
"""Where so many partitions get records, each round brings many small batches: it costs up to
``MOST_TIMES`` as much."""
MOST_TIMES: Final = 2.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one worker copies: ``written`` of its ``partitions`` get records now."""

    partitions: int
    written: int = 0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def rounds_per_s(self) -> float:
        """How often a worker reads and writes: at each record where they are rare, else as often as
        brokers let it."""
        between_s = CYCLE_S + self.partitions * LOOK_AT_S
        return self.records_per_s / (1 + self.records_per_s * between_s)


@final
class Costs(NamedTuple):
    """Shares of a core: of a worker, a partition, a round and a megabyte per second; bytes of a
    worker and a partition."""

    worker: float
    partition: float
    a_round: float
    a_megabyte: float
    worker_bytes: float
    partition_bytes: float

    def cores(self, load: Load) -> float:
        """Return the share of a core that a worker needs."""
        return (
            self.worker
            + self.partition * load.partitions
            + self.a_round * load.rounds_per_s
            + self.a_megabyte * load.bytes_per_s / MB
        )

    def most_cores(self, load: Load) -> float:
        """Return what it needs where many partitions get a little each."""
        return self.cores(load) * (MOST_TIMES if load.written > MANY else 1)

    def memory_bytes(self, load: Load) -> float:
        """Return the memory of a worker with its task hosts."""
        return self.worker_bytes + self.partition_bytes * load.partitions


MEASURED: Final = Costs(0.011, 2e-6, 0.0009, 0.0005, 160e6, 5.8e3)
"""Of docs/sizing.md: one flow between near clusters, 1 KB records without compression and TLS, on
one core of two."""


async def load(flow: Examined) -> AsyncIterator[Row]:
    """What one worker needs that copies all of it, as the source is written to now."""
    topics = {name: it.partitions for name, it in (await flow.chosen()).items()}
    admin, began = flow.sides["source"].admin, flow.clock.monotonic()
    former = await _written(admin, topics)
    await flow.clock.sleep(LOOK_S)
    latter, seconds = await _written(admin, topics), flow.clock.monotonic() - began
    records, sizes = (
        {tp: grown for tp, end in new.items() if (grown := end - old.get(tp, end)) > 0}
        for old, new in zip(former, latter, strict=True)
    )
    now = Load(
        partitions=sum(map(len, topics.values())),
        written=len(records),
        records_per_s=sum(records.values()) / seconds,
        bytes_per_s=sum(sizes.values()) / seconds,
    )
    least, most = f"{MEASURED.cores(now):.0%}", f"{MEASURED.most_cores(now):.0%}"
    yield Level.OK.row(
        f"{now.partitions} partitions, {now.written} of them written to now with "
        f"{now.records_per_s:.0f} records/s and {size_text(now.bytes_per_s)}/s: a worker that has "
        f"all of them needs about {least if least == most else f'{least} to {most}'} of a core and "
        f"{size_text(MEASURED.memory_bytes(now))}",
    )


async def _written(
    admin: Admin, topics: Mapping[str, Sequence[int]]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Return the log ends of all partitions, and their sizes, as far as brokers tell them."""
    wanted = [TopicPartition(topic, number) for topic, those in topics.items() for number in those]
    return await admin.log_ends(wanted, within_s=LOOK_S), await admin.partition_sizes(topics)
