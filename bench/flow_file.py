"""The properties file of one benched flow: two clusters, defaults, topics of the bench only.

``MM2PY_BENCH_SET="task.host.processes=2 tasks.max=2"`` in the environment adds properties to every file; ``{flow}`` is its flow.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_SET: Final = "MM2PY_BENCH_SET"
_SINGLE_REPLICA: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A cluster as a mirror reaches it; ``properties`` are the client's, of security."""

    servers: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


def set_exactly_once() -> None:
    """Let every file written from now on ask for exactly-once support; the target's alias is ``B``.

    The source's logs have no transactions, so ``read_committed`` is left out: it costs the reader nothing here.
    """
    added = "B.exactly.once.source.support=enabled"
    os.environ[_SET] = f"{os.environ.get(_SET, '')} {added}".strip()


def write_flow_file(
    path: Path,
    *,
    source: tuple[str, Endpoint],
    target: tuple[str, Endpoint],
    topics: str,
    refresh_s: int | None = None,
) -> None:
    """Write the file; ``source`` and ``target`` are (alias, where it is).

    Without ``refresh_s`` new topics are looked for as often as the mirror does by default.
    """
    properties = {
        "clusters": f"{source[0]}, {target[0]}",
        f"{source[0]}.bootstrap.servers": source[1].servers,
        f"{target[0]}.bootstrap.servers": target[1].servers,
        f"{source[0]}->{target[0]}.enabled": "true",
        f"{source[0]}->{target[0]}.topics": topics,
        **dict.fromkeys(_SINGLE_REPLICA, "1"),
        **{f"{source[0]}.{name}": value for name, value in source[1].properties.items()},
        **{f"{target[0]}.{name}": value for name, value in target[1].properties.items()},
    }
    if refresh_s is not None:
        properties["refresh.topics.interval.seconds"] = str(refresh_s)
    added = os.environ.get(_SET, "").replace("{flow}", f"{source[0]}->{target[0]}")
    properties |= dict(pair.split("=", 1) for pair in added.split())
    lines = (f"{key} = {value}\n" for key, value in properties.items())
    path.write_text("".join(lines).replace("\\", "\\\\"), encoding="latin-1")
