"""``mm2py consumer-offset-checker``: the table of the tool that guides of MirrorMaker 1 show (kafka.tools.ConsumerOffsetChecker).

Flow: group -> committed offsets, log ends and members, from the brokers -> a row per partition. Ends with 1 for a group that does not
exist.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import connection_settings
from mm2py.config.properties import load
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.protocol.groups import DescribedGroup, assigned_partitions
from mm2py.types import LATEST, TopicPartition

__all__ = ["check_offsets"]

_TITLES: Final = ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner")
_NOBODY: Final = "none"
_UNKNOWN: Final = "unknown"
_DEAD: Final = "Dead"


def check_offsets(servers: str, group: str, topics: Collection[str], config: Path | None) -> int:
    """Print the table; return the exit code.

    Raises:
        Mm2pyError: the cluster does not answer, or refuses.
    """
    props = {} if config is None else dict(load(config).values)
    props["bootstrap.servers"] = servers
    rows = asyncio.run(_rows(props, group, frozenset(topics)))
    widths = [max(len(row[at]) for row in (_TITLES, *rows)) for at in range(len(_TITLES))]
    for row in (_TITLES, *rows):
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    return 0


async def _rows(
    props: Mapping[str, str], group: str, topics: Collection[str]
) -> list[tuple[str, ...]]:
    cluster = Cluster(connection_settings(props), alias="source", clock=SYSTEM_CLOCK)
    try:
        await cluster.connect()
        admin = Admin(cluster)
        described = await admin.describe_group(group)
        found = (await GroupAdmin(cluster).committed([group]))[group]
        if isinstance(found, Mm2pyError):
            raise found
        owners = _owners(described)
        if not found and described.state == _DEAD:
            raise ConfigError(
                f"there is no consumer group {group}",
                remedy="check --group; names are case-sensitive",
            )
        wanted = sorted(tp for tp in {*found, *owners} if not topics or tp.topic in topics)
        ends = await admin.list_offsets(dict.fromkeys(wanted, LATEST))
    finally:
        await cluster.close()
    rows: list[tuple[str, ...]] = []
    for tp in wanted:
        offset = found[tp].offset if tp in found else None
        end = ends[tp].offset if ends[tp].error is None else None
        lag = None if offset is None or end is None else max(0, end - offset)
        numbers = (_UNKNOWN if it is None else str(it) for it in (offset, end, lag))
        rows.append((group, tp.topic, str(tp.partition), *numbers, owners.get(tp, _NOBODY)))
    return rows


def _owners(group: DescribedGroup) -> dict[TopicPartition, str]:
    return {
        tp: f"{member.client_id}_{member.client_host}"
        for member in group.members
        for tp in assigned_partitions(member.assignment)
    }
