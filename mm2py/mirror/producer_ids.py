"""Producer ids of mirrors, so that what one flow wrote is not copied back by another
(docs/reference/formats.md).

Flow: ``Sender.new_producer`` -> ``encode_producer`` -> ``mm2py-producers.internal`` on the cluster
that is written -> ``ProducerOrigins`` of the flows that read that cluster -> batches dropped right
after Fetch. Nothing is added to records.

Invariants (tests of the same names):

1. An id is in the topic, acknowledged, before the first batch under it is sent.
2. An id is judged only by a read of the topic to its end that began after its batch was read: with
   1, an id that is not in it then is no mirror's, and never will be.
3. A judgement is final; ids are kept as long as their batches may be in a log, which is for ever in
   a compacted topic.
4. Only a batch whose CRC matches is dropped, and only as a whole.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from mm2py.config.class_names import MIRROR_SINK_CONNECTOR, canonical_class
from mm2py.errors import ConfigError, ProtocolError
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.routed_names import keeps_names
from mm2py.mirror.versioned_json import decode, encode
from mm2py.protocol.batch_stage import Origins
from mm2py.types import NO_PRODUCER_ID

PRODUCERS_TOPIC: Final = "mm2py-producers.internal"
"""On every cluster that is written; no mirror replicates it (``mm2*.internal``)."""

_ID_DIGITS: Final = 19

LOOP_SUPPRESSION: Final = "loop.suppression"
SOURCE_CLUSTER_ID: Final = "task.source.cluster.id"
TARGET_CLUSTER_ID: Final = "task.target.cluster.id"

MOST_PASSING: Final = 100_000
"""Ids of applications that are remembered at most; beyond that they are forgotten and looked up
again."""


class Suppression(StrEnum):
    """``loop.suppression``: whose batches a flow does not copy."""

    OFF = "off"
    """All are copied, and the flow does not publish its ids."""
    AUTO = "auto"
    """``on`` where copies keep names, if the source lets us read the ids; else ``off``."""
    ON = "on"
    """Those that a mirror of the flow's target wrote are not."""
    ALL = "all"
    """Those that any mirror wrote are not: for three or more clusters that are all connected."""


def suppression_of(config: Mapping[str, str]) -> Suppression:
    """Return what a source connector's config asks for; ``OFF`` where names carry their provenance,
    which no router takes away. ``ConfigError``: no such choice, or no such policy."""
    if canonical_class(config.get("connector.class", "")) == MIRROR_SINK_CONNECTOR:
        return (
            Suppression.OFF
        )  # its producer belongs to librdkafka, which does not tell its id before it writes
    text = config.get(LOOP_SUPPRESSION, "").strip().lower() or Suppression.AUTO
    try:
        chosen = Suppression(text)
    except ValueError:
        choices = ", ".join(Suppression)
        raise ConfigError(
            f"{LOOP_SUPPRESSION}={text}: no such choice", remedy=f"use one of {choices}"
        ) from None
    if chosen is Suppression.AUTO and policy_from_config(config).detects_cycles:
        return Suppression.AUTO if keeps_names(config) else Suppression.OFF
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProducer:
    """One producer id of a mirror, and what it copies from where; ``source_cluster`` is Kafka's id,
    empty if unknown."""

    producer_id: int
    source: str
    source_cluster: str
    flow: str = ""
    task: str = ""
    worker: str = ""
    time_ms: int = 0


def encode_producer(producer: MirrorProducer) -> tuple[bytes, bytes]:
    """Return key (the id in decimal) and value (version byte, then JSON in a fixed member
    order)."""
    members: dict[str, str | int] = {
        "flow": producer.flow,
        "source": producer.source,
        "source_cluster": producer.source_cluster,
        "task": producer.task,
        "worker": producer.worker,
        "time": producer.time_ms,
    }
    return str(producer.producer_id).encode(), encode(members, in_order=True)


def published_id(key: bytes | None) -> int:
    """Return the producer id that a record is about, that of no batch where its key is none."""
    # Anybody with Write may leave any key there; 19 digits hold every producer id.
    is_number = key is not None and key.isdigit() and len(key) <= _ID_DIGITS
    return int(key) if key is not None and is_number else NO_PRODUCER_ID


def decode_producer(key: bytes | None, value: bytes) -> MirrorProducer:
    """Read a record; members that it does not know are ignored. ``ProtocolError``: this version
    cannot read it."""
    members, producer_id = decode(value), published_id(key)
    if producer_id == NO_PRODUCER_ID:
        raise ProtocolError(f"key {key!r} is no producer id")
    return MirrorProducer(
        producer_id=producer_id,
        flow=members.text("flow", ""),
        source=members.text("source", ""),
        source_cluster=members.text("source_cluster", ""),
        task=members.text("task", ""),
        worker=members.text("worker", ""),
        time_ms=members.number("time", 0),
    )


@final
class ProducerOrigins:
    """What one flow knows of the producer ids of its source.

    Args:
        everything: whether no mirror's batches are copied (``all``), not only those of the flow's
            target.
        target: alias of the flow's target.
        target_cluster: Kafka's id of it, empty if unknown; aliases are compared only where an id is
            missing, since two files may give a cluster two names.
    """

    def __init__(self, *, everything: bool, target: str, target_cluster: str) -> None:
        self._everything = everything
        self._target, self._target_cluster = target, target_cluster
        self._passing: set[int] = set()
        self._looping: set[int] = set()
        self._mirrors: set[int] = set()
        self.known = Origins(self._passing, self._looping)

    def learn(self, producer: MirrorProducer) -> None:
        # Looping and mirrors are never forgotten, passing ids may be (MOST_PASSING): only a wrong
        # "passes" could start a loop.
        if self._everything or self._is_from_target(producer):
            self._looping.add(producer.producer_id)
            self._passing.discard(producer.producer_id)
        else:
            self._mirrors.add(producer.producer_id)
            self._passing.add(producer.producer_id)

    def judge(self, producers: Collection[int]) -> None:
        """The topic was read to its end after batches of these were read: ids that are not in it
        are applications' (invariant 2)."""
        # Applications get a new id at each start; without a limit the set would grow for ever.
        if len(self._passing) + len(producers) > MOST_PASSING + len(self._mirrors):
            self._passing.intersection_update(self._mirrors)
        self._passing.update(producer for producer in producers if producer not in self._looping)

    def _is_from_target(self, producer: MirrorProducer) -> bool:
        # The alias is what one file calls a cluster; Kafka's id is the same in all.
        if producer.source_cluster and self._target_cluster:
            return producer.source_cluster == self._target_cluster
        return producer.source == self._target
