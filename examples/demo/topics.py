"""What the demo's topics look like; shared by traffic and verification, which run in own processes.

Each topic shows one thing a mirror can get wrong. No I/O, no client.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """One topic of the demo; ``share`` is its part of the traffic."""

    name: str
    partitions: int
    codec: str
    share: float
    value_bytes: int
    keyed: bool = True
    tombstones: bool = False
    headers: bool = False
    years_old: int = 0


TOPICS: Final = (
    DemoTopic("orders", 4, "lz4", 0.35, 400, tombstones=True),
    DemoTopic("payments", 2, "zstd", 0.15, 250, headers=True),
    DemoTopic("clicks", 6, "none", 0.35, 120, keyed=False),
    DemoTopic("audit", 1, "gzip", 0.05, 600, headers=True, years_old=6),
    DemoTopic("sensors", 3, "snappy", 0.10, 80),
)
"""All five codecs; keys, null keys, tombstones, null and repeated headers, old timestamps."""

GROUP_TOPICS: Final = ("orders", "payments")
"""What the consumer group of each region reads."""


def group_of(region: str) -> str:
    """Return the name of a region's consumer group."""
    return f"shop-{region}"


def copy_of(region: str, topic: str) -> str:
    """Return the name of a region's topic on the other side."""
    return f"{region}.{topic}"
