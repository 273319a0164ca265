"""``mm2py consumer-offset-checker``: the table of the tool that guides of MirrorMaker 1 show
(kafka.tools.ConsumerOffsetChecker).

Flow: group -> committed offsets, log ends and members, from the brokers -> a row per partition.
Ends with 1 for a group that does not exist.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.config.properties import load
from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py.protocol.groups import DescribedGroup, assigned_partitions
from mm2py.protocol.topics import BrokerNode
from mm2py.types import LATEST, TopicPartition

_TITLES: Final = ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner")
_NOBODY: Final = "none"
_UNKNOWN: Final = "unknown"
_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsQuestion:
    """What the command line asks for; ``topics`` empty: all of the group."""

    servers: str
    group: str
    topics: Collection[str] = ()
    config: Path | None = None
    shows_brokers: bool = False
    zookeeper: str = ""


def check_offsets(question: OffsetsQuestion) -> int:
    """Print the table; return the exit code.

    Raises:
        UsageError: no brokers are named.
        Mm2pyError: the cluster does not answer, or refuses.
    """
    if not question.servers:
        cause = "--zkconnect names ZooKeeper, which clients of Kafka do not use any more"
        raise UsageError(
            cause if question.zookeeper else "the brokers to ask are missing",
            remedy="give --bootstrap-server HOST:9092,... with the addresses of brokers",
        )
    props = {} if question.config is None else dict(load(question.config).values)
    props["bootstrap.servers"] = question.servers
    rows, brokers = asyncio.run(_answers(props, question.group, frozenset(question.topics)))
    widths = [max(len(row[at]) for row in (_TITLES, *rows)) for at in range(len(_TITLES))]
    for row in (_TITLES, *rows):
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    if any(row[3] == _UNKNOWN for row in rows):
        sys.stderr.write(
            "unknown: not committed yet (mirror-maker-py commits every 60 s, "
            "--offset.commit.interval.ms)\n"
        )
    if question.shows_brokers:
        sys.stdout.write("BROKER INFO\n")
        for broker in brokers:
            sys.stdout.write(f"{broker.node_id} -> {broker.host}:{broker.port}\n")
    return 0


async def _answers(
    props: Mapping[str, str], group: str, topics: Collection[str]
) -> tuple[list[tuple[str, ...]], tuple[BrokerNode, ...]]:
    """Return the rows, and the brokers of the cluster."""
    async with Cluster.of(props, alias="source") as cluster:
        admin = Admin(cluster)
        described = await admin.describe_group(group)
        committed = (await GroupAdmin(cluster).committed([group]))[group]
        if isinstance(committed, Mm2pyError):
            raise committed
        owners = _owners(described)
        if not committed and described.state == _DEAD:
            raise ConfigError(
                f"there is no consumer group {group}",
                remedy="check --group; names are case-sensitive",
            )
        partitions = sorted(tp for tp in {*committed, *owners} if not topics or tp.topic in topics)
        ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        brokers = (await cluster.metadata([])).brokers
    rows: list[tuple[str, ...]] = []
    for tp in partitions:
        offset = committed[tp].offset if tp in committed else None
        end = ends[tp].offset if ends[tp].error is None else None
        lag = None if offset is None or end is None else max(0, end - offset)
        numbers = (_UNKNOWN if it is None else str(it) for it in (offset, end, lag))
        rows.append((group, tp.topic, str(tp.partition), *numbers, owners.get(tp, _NOBODY)))
    return rows, brokers


def _owners(group: DescribedGroup) -> dict[TopicPartition, str]:
    return {
        tp: f"{member.client_id}_{member.client_host}"
        for member in group.members
        for tp in assigned_partitions(member.assignment)
    }
