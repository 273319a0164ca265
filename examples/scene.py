"""What the scripts of the examples share: two clusters, one worker on the example's file, a few records.

Flow: ``play`` -> regions from jars (or the two addresses of the command line) -> the file with their addresses ->
``connect-mirror-maker-py`` -> the example's scene -> exit code. Clients are confluent-kafka: nothing of the product.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast, final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kit.kafka.region import Region, start_regions

ADDRESSES: Final = "localhost:9092", "localhost:9093"
"""Placeholders of the two clusters in the files of the examples."""

PATIENCE_S: Final = 90.0
STOP_S: Final = 30.0
LOOK_S: Final = 0.3


@final
class Scene:
    """Two clusters and what is done with them; ``first`` and ``second`` are their addresses."""

    def __init__(self, first: str, second: str) -> None:
        self.first, self.second = first, second

    def create(self, cluster: str, topic: str, partitions: int = 2) -> None:
        """Create a topic; one that is there stays."""
        admin = AdminClient({"bootstrap.servers": cluster})
        wanted = [NewTopic(topic, num_partitions=partitions, replication_factor=1)]
        created = cast("dict[str, object]", admin.create_topics(wanted))  # pyright: ignore[reportUnknownMemberType] - its Future has no parameter
        self.until(lambda: self.ends(cluster, topic), f"{len(created)} topic on {cluster}")

    def write(self, cluster: str, topic: str, values: Sequence[str]) -> None:
        """Write one record per value, and wait until all are acknowledged."""
        producer = Producer({"bootstrap.servers": cluster, "acks": "all"})
        for value in values:
            producer.produce(topic, value=value.encode(), key=value.encode())
        if producer.flush(PATIENCE_S):
            raise SystemExit(f"not every record was acknowledged by {cluster}")

    def ends(self, cluster: str, topic: str) -> list[int]:
        """Return the log end of each partition, nothing while the topic is not there."""
        client = self.consumer(cluster, "example-ends")
        try:
            found = client.list_topics(topic, timeout=STOP_S).topics[topic]
            if found.error is not None:
                return []
            return [
                client.get_watermark_offsets(TopicPartition(topic, number), timeout=STOP_S)[1]
                for number in sorted(found.partitions)
            ]
        except KafkaException:
            return []
        finally:
            client.close()

    def read(self, cluster: str, topic: str, group: str, records: int) -> list[str]:
        """Read so many records as a member of a group, commit, and leave it.

        With ``records`` 0 it reads what comes within three seconds.
        """
        client = self.consumer(cluster, group)
        client.subscribe([topic])
        values: list[str] = []
        deadline = time.monotonic() + (PATIENCE_S if records else 3.0)
        try:
            while time.monotonic() < deadline and (not records or len(values) < records):
                message = client.poll(0.2)
                if message is not None and message.error() is None:
                    values.append((message.value() or b"").decode())
            if values:
                client.commit(asynchronous=False)
        finally:
            client.close()
        return values

    def committed(self, cluster: str, topic: str, group: str) -> list[int]:
        """Return the committed offset of each partition, negative where there is none."""
        client = self.consumer(cluster, group)
        try:
            partitions = [TopicPartition(topic, n) for n in range(len(self.ends(cluster, topic)))]
            return [it.offset for it in client.committed(partitions, timeout=STOP_S)]
        finally:
            client.close()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is true; the example fails where it does not become true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"FAILED: not within {PATIENCE_S:.0f} s: {what}")
            time.sleep(LOOK_S)

    @staticmethod
    def consumer(cluster: str, group: str) -> Consumer:
        """Return a consumer of a group that commits only when it is asked."""
        return Consumer(
            {
                "bootstrap.servers": cluster,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )


def play(show: Callable[[Scene], None], file: Path) -> int:
    """Run an example: its file, with the addresses of real clusters, and its scene."""
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="mm2py-example-") as folder:
        if len(given) == len(ADDRESSES):
            return _on(given[0], given[1], show, file, Path(folder))
        print("Starting two Kafka regions from jars ...")
        with _regions() as (first, second):
            return _on(first, second, show, file, Path(folder))


@contextmanager
def _regions() -> Generator[tuple[str, str]]:
    one, two = Region("one"), Region("two")
    try:
        start_regions(one, two)
        yield one.bootstrap_servers, two.bootstrap_servers
    finally:
        one.close()
        two.close()


def _on(first: str, second: str, show: Callable[[Scene], None], file: Path, folder: Path) -> int:
    text = file.read_text(encoding="latin-1")
    for written, real in zip(ADDRESSES, (first, second), strict=True):
        text = text.replace(written, real)
    copy, log = folder / file.name, folder / "worker.log"
    copy.write_text(text, encoding="latin-1")
    command = [str(Path(sys.executable).parent / "connect-mirror-maker-py"), str(copy)]
    with log.open("wb") as stream:
        worker = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
    try:
        show(Scene(first, second))
    except BaseException:
        print(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        raise
    finally:
        worker.terminate()
        worker.wait(STOP_S)
    print("OK")
    return 0
