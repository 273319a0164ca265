"""``mm2py ledger FILE [A/B]``: what the flows of a file lost, stopped at or may have doubled.

Flow: file -> one ledger topic per flow, read from its target -> rows -> table or JSON on standard
output. Reads only; a ledger that does not exist yet is an empty one. Without a flow's name also the
ledgers of flows between clusters of the file that a failover or REST began: the file does not name
those.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import chain
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mm2py.api.context import LossEvent
from mm2py.client.connect.cluster import Cluster
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.flows.flow_ledger import Ledger, read_ledger, topic_sums
from mm2py.mirror.ledger import LedgerRecord, ledger_topic
from mm2py.observability.quantities import utc_text
from mm2py.types import ClusterAlias, FlowName
from mm2py_cli.config_commands import flow_named
from mm2py_connectors.config import CONNECTORS

log = logging.getLogger(__name__)

_WIDTH_WHEN_PIPED: Final = 200


def show_ledger(
    path: Path | str, flow: str | None = None, *, topic: str | None = None, as_json: bool = False
) -> int:
    """Print the ledgers of a file's flows, or of one; return the exit code. ``Mm2pyError``: the
    file is wrong, or a target cannot be read."""
    config = MirrorMakerConfig.load(path, CONNECTORS)
    ledgers = asyncio.run(_read_all(config, None if flow is None else flow_named(config, flow)))
    if topic is not None:
        for ledger in ledgers:
            ledger.records = [r for r in ledger.records if r.event.partition.topic == topic]
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = max(out.width, _WIDTH_WHEN_PIPED)
    if as_json:
        out.print(Text(json.dumps(_document(ledgers), indent=2)), soft_wrap=True)
    else:
        _print_tables(out, ledgers)
    return 0


async def _read_all(config: MirrorMakerConfig, only: FlowName | None) -> list[Ledger]:
    if only is not None:
        return await _read_target(config, (only,))
    of_file = {flow: number for number, flow in enumerate(config.flows())}

    async def of(target: ClusterAlias) -> list[Ledger]:
        pairs = (FlowName(source, target) for source in config.clusters if source != target)
        flows = sorted(pairs, key=lambda flow: flow not in of_file)
        try:
            return await _read_target(config, flows)
        except Mm2pyError as error:
            if any(flow.target == target for flow in of_file):
                raise
            log.warning(
                "the file has no flow to %s, and whether another one lost records there is "
                "unknown: %s",
                target,
                error,
            )
            return []

    read = await asyncio.gather(*map(of, config.clusters))
    return sorted(chain(*read), key=lambda ledger: of_file.get(ledger.flow, len(of_file)))


async def _read_target(config: MirrorMakerConfig, flows: Sequence[FlowName]) -> list[Ledger]:
    flow = flows[0]
    try:
        async with Cluster.of(
            config.worker_config(flow), alias=flow.target, scope=f"worker of {flow}"
        ) as cluster:
            return [await read_ledger(cluster, each) for each in flows]
    except RetriableError as error:
        raise RetriableError(
            f"ledger of {flow} cannot be read from cluster {flow.target}: {error.message}",
            remedy=error.remedy,
        ) from error


# -- printing --------------------------------------------------------------------------------------


def _document(ledgers: Sequence[Ledger]) -> dict[str, object]:
    records = [record for ledger in ledgers for record in ledger.records]
    return {
        "events": [_event_members(record) for record in records],
        "unknown": [
            {
                "flow": str(ledger.flow),
                "offset": offset,
                "key": reason.key.hex(),
                "value": reason.value.hex(),
                "reason": reason.reason,
            }
            for ledger in ledgers
            for offset, reason in ledger.unknown
        ],
        "topics": [asdict(topic) for topic in topic_sums(records)],
    }


def _event_members(record: LedgerRecord) -> dict[str, object]:
    event = record.event
    return {
        "time": record.time_ms,
        "flow": record.flow,
        "task": event.task,
        "kind": event.kind.value,
        "topic": event.partition.topic,
        "partition": event.partition.partition,
        "first": event.first_offset,
        "last": event.last_offset,
        "offsets": event.count,
        "policy": event.policy,
        "cause": event.cause,
    }


def _print_tables(out: Console, ledgers: Sequence[Ledger]) -> None:
    records = [record for ledger in ledgers for record in ledger.records]
    unknown = [(ledger.flow, *found) for ledger in ledgers for found in ledger.unknown]
    if not records and not unknown:
        out.print(
            Text(
                "the ledger is empty: nothing was lost or refused (after a crash the last second "
                "may be there twice)"
            )
        )
        return
    events = _table(
        "time (UTC)", "flow", "partition", "kind", "offsets", "count", "policy", "cause"
    )
    for record in records:
        event = record.event
        place = utc_text(record.time_ms), record.flow, str(event.partition), event.kind.value
        cells = (*place, _range(event), str(event.count), event.policy, event.cause)
        events.add_row(*map(Text, cells))
    for flow, offset, found in unknown:
        where = f"record {offset} of {ledger_topic(flow.source)}"
        cells = ("", str(flow), where, "unknown", "", "", "", found.reason)
        events.add_row(*map(Text, cells))
    out.print(events)
    sums = _table("flow", "topic", "events", "lost", "refused", "truncated", "may be doubled")
    for topic in topic_sums(records):
        sums.add_row(*(Text(str(cell)) for cell in astuple(topic)))
    out.print(sums)


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _range(event: LossEvent) -> str:
    if event.first_offset < 0:
        return "unknown"
    if event.count == 0:
        return f"from {event.first_offset}"
    return f"{event.first_offset}-{event.last_offset}"
