"""What the fake broker remembers of a client's Fetch (KIP-227). Data only."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Key: TypeAlias = tuple[str | bytes, int]
"""Topic name or id, and partition."""


class Wanted(NamedTuple):
    """One partition as a client asks for it."""

    topic: str | bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(slots=True)
class FakeSession:
    """One client's partitions; the order is the order of service."""

    node_id: int
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict[Key, Wanted])
    told: dict[Key, tuple[int, int, int]] = field(default_factory=dict[Key, tuple[int, int, int]])
