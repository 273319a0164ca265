"""A consumer group moves to the secondary and continues where it left; another consumer asks where that is, and seeks."""

import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from examples.scene import PATIENCE_S, Scene, play
from mm2py.mirror_client import exact_offsets

RECORDS, MORE = 100, 50
GROUP = "my-group"


def show(
    scene: Scene, topic: str = "payments", copy: str = "primary.payments", group: str = GROUP
) -> None:
    """The steps of the migration guide, as its reader types them."""
    primary, secondary = scene.first, scene.second
    scene.create(primary, topic)
    scene.write(primary, topic, [f"payment-{number}" for number in range(RECORDS)])
    read = scene.read(primary, topic, group, RECORDS)
    print(f"{group} read {len(read)} records on the primary, and is stopped")
    left_at = scene.committed(primary, topic, group)
    scene.until(
        lambda: scene.committed(secondary, copy, group) == left_at,
        f"{group} at {left_at} on the secondary",
    )
    again = scene.read(secondary, copy, group, 0)
    print(f"{group} reads {len(again)} of them again on the secondary")
    later = [f"payment-{number}" for number in range(RECORDS, RECORDS + MORE)]
    scene.write(primary, topic, later)
    found = scene.read(secondary, copy, group, MORE)
    print(f"{MORE} more are written to the primary; {group} reads {len(found)} on the secondary")
    if again or sorted(found) != sorted(later):
        raise SystemExit("FAILED: records were skipped or read twice")
    client = scene.consumer(secondary, f"{group}-without-sync")
    seek(client, secondary, copy.removesuffix(f".{topic}"), group)
    sought = [message.value() or b"" for message in client.consume(MORE, PATIENCE_S)]
    client.close()
    print(f"a consumer that seeks to where {group} stopped reads the {len(sought)} behind it")
    if sorted(sought) != sorted(it.encode() for it in later):
        raise SystemExit("FAILED: a consumer that seeks skipped records or read them twice")


def seek(client: Consumer, servers: str, source: str, group: str) -> None:
    """Let a consumer of confluent-kafka continue on one cluster where its group stopped on the other, which may be gone."""
    offsets = exact_offsets({"bootstrap.servers": servers}, source, group)
    client.assign(
        [TopicPartition(tp.topic, tp.partition, found.offset) for tp, found in offsets.items()]
    )


if __name__ == "__main__":
    sys.exit(play(show, Path(__file__).with_name("mm2.properties")))
