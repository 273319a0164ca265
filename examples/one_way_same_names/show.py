"""The copy has the same name and the same records; the source is not written."""

import sys
from pathlib import Path

from examples.scene import Scene, play

RECORDS = 100


def show(scene: Scene) -> None:
    """Write on the old cluster, read from the new one."""
    scene.create(scene.first, "invoices")
    values = [f"invoice-{number}" for number in range(RECORDS)]
    scene.write(scene.first, "invoices", values)
    scene.until(
        lambda: sum(scene.ends(scene.second, "invoices")) == RECORDS, "invoices on the new cluster"
    )
    copied = scene.read(scene.second, "invoices", "example-one-way", RECORDS)
    if sorted(copied) != sorted(values) or sum(scene.ends(scene.first, "invoices")) != RECORDS:
        raise SystemExit("FAILED: the copy differs")
    print(f"invoices has the same {RECORDS} records on both clusters")


if __name__ == "__main__":
    sys.exit(play(show, Path(__file__).with_name("mm2.properties")))
