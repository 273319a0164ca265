"""A flow needs two clusters: one that is its own target would copy its copies for ever.

Flow: both ends after they answered -> ``refuse_one_cluster`` -> nothing, or the error that names
both addresses and the id. Addresses are not compared: a second listener, a DNS alias or a virtual
IP reach the same cluster, and only its id tells.
"""

import logging
from typing import Final, NamedTuple, Self

from mm2py.client.connect.cluster import Cluster
from mm2py.errors import ConfigError

log = logging.getLogger(__name__)

IDS_OF_IMAGES: Final = frozenset(
    {"5L6g3nShT-eMCtK--X86sw", "4L6g3nShT-eMCtK--X86sw", "MkU3OEVBNTcwNTJENDM2Qk"}
)
"""Which every container has that was started without ``CLUSTER_ID``, or after the examples: no
proof."""


class ClusterEnd(NamedTuple):
    """One end of a flow: its alias, the addresses that it was reached at, and Kafka's id of it,
    empty if unknown."""

    alias: str
    addresses: str
    cluster_id: str

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        return cls(cluster.alias, cluster.settings.addresses, cluster.cluster_id)


def refuse_one_cluster(source: ClusterEnd, target: ClusterEnd) -> None:
    """Refuse a flow whose source is its target; ``ConfigError``: both ends have the same id."""
    # Brokers before 0.10.1 (KIP-78) give no id; then nothing can be told.
    if not source.cluster_id or source.cluster_id != target.cluster_id:
        return
    if source.cluster_id in IDS_OF_IMAGES:
        log.warning(
            "%s and %s have the cluster id that images and examples come with, id=%s: whether "
            "they are one cluster is not known; give each cluster an id of its own",
            source.alias,
            target.alias,
            source.cluster_id,
        )
        return
    raise ConfigError(
        f"flow {source.alias}->{target.alias}: {source.alias} at {source.addresses} and "
        f"{target.alias} at {target.addresses} are one cluster, {source.cluster_id}: it would copy "
        "its own copies for ever",
        remedy="correct bootstrap.servers of one of the two, or remove the flow; two clusters of "
        "which one was"
        " cloned need ids of their own: stop one and change cluster.id in meta.properties of all "
        "its log directories",
    )
