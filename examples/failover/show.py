"""A consumer group moves to the secondary and continues where it left."""

import sys
from pathlib import Path

from examples.scene import Scene, play

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


if __name__ == "__main__":
    sys.exit(play(show, Path(__file__).with_name("mm2.properties")))
