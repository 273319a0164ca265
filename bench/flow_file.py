"""The properties file of one benched flow: two clusters, defaults, topics of the bench only."""

from pathlib import Path
from typing import Final

__all__ = ["write_flow_file"]

_SINGLE_REPLICA: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)


def write_flow_file(
    path: Path,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    topics: str,
    refresh_s: int,
) -> None:
    """Write the file; ``source`` and ``target`` are (alias, bootstrap servers)."""
    properties = {
        "clusters": f"{source[0]}, {target[0]}",
        f"{source[0]}.bootstrap.servers": source[1],
        f"{target[0]}.bootstrap.servers": target[1],
        f"{source[0]}->{target[0]}.enabled": "true",
        f"{source[0]}->{target[0]}.topics": topics,
        "refresh.topics.interval.seconds": str(refresh_s),
        **dict.fromkeys(_SINGLE_REPLICA, "1"),
    }
    lines = (f"{key} = {value}\n" for key, value in properties.items())
    path.write_text("".join(lines).replace("\\", "\\\\"), encoding="latin-1")
