"""A steady load on one incarnation of a topic, which remembers what was acknowledged: also when the topic is gone."""

import threading
from typing import Final, Self

from confluent_kafka import KafkaError, Message

from tests.integration.mirror_process import until
from tests.integration.traffic import producer
from tests.kit.kafka.region import KafkaAddress

TICK_S: Final = 0.02
PER_TICK: Final = 40

Values = dict[int, list[bytes]]
"""By partition, in order."""


class Incarnation:
    """Writes ``<number of the incarnation>:<number>`` at 2,000 records/s until its topic is deleted, or ``stop``."""

    def __init__(
        self, region: KafkaAddress, topic: str, number: int, width: int, *, per_tick: int = PER_TICK
    ) -> None:
        self._topic, self._number, self._width = topic, number, width
        self._per_tick = per_tick
        self._client = producer(region, message_timeout_ms=60_000)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="incarnation", daemon=True)
        self.acked: Values = {partition: [] for partition in range(width)}
        self.offsets: dict[int, list[int]] = {partition: [] for partition in range(width)}
        """Of what was acknowledged: another writer's records may be between."""

    @property
    def total(self) -> int:
        """How many records were acknowledged."""
        return sum(map(len, self.acked.values()))

    def wait_acked(self, more: int) -> None:
        """Wait until so many more records are acknowledged."""
        goal = self.total + more
        until(lambda: self.total >= goal, 90, lambda: f"{goal} records, {self.total} acknowledged")

    def stop(self, *, deleted: bool) -> None:
        """Write nothing more; what a deleted topic has not taken is given up."""
        self._stop.set()
        self._thread.join(90)
        if deleted:
            self._client.purge()
        assert self._client.flush(90) == 0

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(TICK_S):
            for _ in range(self._per_tick):
                value = b"%d:%d" % (self._number, number)
                topic, partition = self._place(number)
                self._client.produce(topic, value, partition=partition, on_delivery=self._answered)
                number += 1
            self._client.poll(0)

    def _place(self, number: int) -> tuple[str, int]:
        return self._topic, number % self._width

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition = message.partition() or 0
            self.offsets[partition].append(message.offset() or 0)
            self.acked[partition].append(message.value() or b"")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
