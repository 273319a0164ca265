"""Brokers and clusters: where they listen, what they speak, the producer ids they give.

Flow: answer -> ``messages`` -> one of these -> the client. Error codes stay codes
(``error_codes.server_error`` makes errors of them): the caller decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FinalizedFeature:
    """A feature level that the whole cluster runs at."""

    name: str
    min_level: int
    max_level: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResult:
    """What one broker speaks: api key -> (lowest, highest version)."""

    error_code: int
    versions: Mapping[int, tuple[int, int]]
    finalized_features: tuple[FinalizedFeature, ...]
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerIdResult:
    """A producer id and epoch."""

    error_code: int
    producer_id: int
    producer_epoch: int
