"""Looks for flows that people added on other nodes, or before this one was started.

Flow: pairs that nobody runs here -> does ``mm2py-flows.<source>.internal`` exist on the target -> its records ->
those that were added. A look reads on from where the last one ended; it creates nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.mirror.flow_overrides import FlowEntry, Presence, decode_flow_record, flows_topic
from mm2py.protocol.records import Record
from mm2py.types import ClusterAlias, FlowName

log = logging.getLogger(__name__)

LOOK_S: Final = 15.0
FLOW_KEY: Final = b"flow"


@dataclass(slots=True)
class _Target:
    """One cluster, and what was read of the flows to it."""

    cluster: Cluster
    readers: dict[FlowName, LogReader] = field(default_factory=dict[FlowName, LogReader])
    added: set[FlowName] = field(default_factory=set[FlowName])


@final
class FlowWatch:
    """Keeps one connection per target that has pairs without a flow."""

    def __init__(self, settings: Callable[[FlowName], ConnectionSettings], clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._targets: dict[ClusterAlias, _Target] = {}
        self._silent: set[ClusterAlias] = set()

    async def added(self, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        """Return those of ``pairs`` that were added; of a target that is away none."""
        targets = dict.fromkeys(pair.target for pair in pairs)
        found = await asyncio.gather(
            *(self._at(target, [it for it in pairs if it.target == target]) for target in targets)
        )
        return [pair for part in found for pair in part]

    async def close(self) -> None:
        """Close all connections."""
        for target in list(self._targets):
            await self._drop(target)

    async def _at(self, target: ClusterAlias, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._look(target, pairs)
        except ConfigError:
            return ()  # a pair that nobody can run; said when somebody asks for it
        except (Mm2pyError, TimeoutError) as error:
            await self._drop(target)
            if target not in self._silent:
                self._silent.add(target)
                # Whoever copies from or to that cluster complains already.
                log.info(
                    "flows that were added cannot be looked for now target=%s cause=%s",
                    target,
                    error,
                )
            return ()
        self._silent.discard(target)
        return found

    async def _look(self, target: ClusterAlias, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        there = self._targets.get(target)
        if there is None:
            cluster = Cluster(self._settings(pairs[0]), alias=target, clock=self._clock)
            there = self._targets[target] = _Target(cluster)
            await cluster.connect()
        topics = {pair: flows_topic(pair.source) for pair in pairs}
        exist = await Admin(there.cluster).describe_topics(list(topics.values()))
        for pair, topic in topics.items():
            found = exist.get(topic)
            if found is not None and found.error is None:
                reader = there.readers.get(pair)
                if reader is None:
                    reader = LogReader(there.cluster, topic, clock=self._clock)
                    there.readers[pair] = reader
                await reader.read_to_end(_note(pair, there.added))
        return [pair for pair in pairs if pair in there.added]

    async def _drop(self, target: ClusterAlias) -> None:
        there = self._targets.pop(target, None)
        if there is not None:
            for reader in there.readers.values():
                await reader.close()
            await there.cluster.close()


def _note(pair: FlowName, added: set[FlowName]) -> Callable[[int, Record], None]:
    def handle(_partition: int, record: Record) -> None:
        if record.key != FLOW_KEY:
            return
        entry = None if record.value is None else decode_flow_record(record.key, record.value)
        if isinstance(entry, FlowEntry) and entry.state is Presence.ADDED:
            added.add(pair)
        else:
            added.discard(pair)

    return handle
