"""Each record is once on each side, and log ends rest when the writers do."""

import sys
import time
from pathlib import Path

from examples.scene import Scene, play

RECORDS = 100
REST_S = 3.0
"""A loop between two clusters on one machine turns several times a second."""


def show(scene: Scene) -> None:
    """Write on both sides; every record arrives once, and none comes back."""
    for cluster, region in ((scene.first, "east"), (scene.second, "west")):
        scene.create(cluster, "carts")
        scene.write(cluster, "carts", [f"{region}-{number}" for number in range(RECORDS)])
    both = scene.first, scene.second
    for cluster in both:
        scene.until(lambda: sum(scene.ends(cluster, "carts")) >= 2 * RECORDS, f"all on {cluster}")  # noqa: B023 - called here
    time.sleep(REST_S)
    for cluster in both:
        values = scene.read(cluster, "carts", "example-same-names", 2 * RECORDS)
        records = sum(scene.ends(cluster, "carts"))
        print(f"{cluster}: carts has {records} records, {len(set(values))} different ones")
        if records != 2 * RECORDS or len(set(values)) != 2 * RECORDS:
            raise SystemExit("FAILED: a record is missing, or came back")


if __name__ == "__main__":
    sys.exit(play(show, Path(__file__).with_name("mm2.properties")))
