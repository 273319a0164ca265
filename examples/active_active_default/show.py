"""Each region reads what both wrote, its own under the name and the other's under a prefix."""

import sys
from pathlib import Path

from examples.scene import Scene, play

RECORDS = 100


def show(scene: Scene) -> None:
    """Write on both sides, and find everything on each."""
    for cluster, region in ((scene.first, "eu"), (scene.second, "us")):
        scene.create(cluster, "orders")
        scene.write(cluster, "orders", [f"{region}-{number}" for number in range(RECORDS)])
    for cluster, copy in ((scene.first, "us.orders"), (scene.second, "eu.orders")):
        scene.until(lambda: sum(scene.ends(cluster, copy)) == RECORDS, f"{copy} on {cluster}")  # noqa: B023 - called here
        own = sum(scene.ends(cluster, "orders"))
        print(f"{cluster}: orders has {own} records of its own, {copy} {RECORDS} of the other")
        if own != RECORDS:
            raise SystemExit("FAILED: a region's own topic was written by the mirror")


if __name__ == "__main__":
    sys.exit(play(show, Path(__file__).with_name("mm2.properties")))
