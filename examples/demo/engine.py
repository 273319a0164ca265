"""What the demo shows at work: the flows in this process, or several workers as processes of their own.

Flow: ``Engine.start`` -> ``plain`` / ``render`` while it runs -> ``settled`` after the producers -> ``stop``.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, final

from rich.console import RenderableType

from examples.demo.table import FlowSums, FlowTable
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.lint import load_checked
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
from mm2py_workers.connect_mirror_maker import announce
from mm2py_workers.process_memory import settle
from mm2py_workers.signals import DRAIN_TIMEOUT_S
from mm2py_workers.wiring import build_node


class Engine(Protocol):
    """Runs the flows of the demo's file."""

    @property
    def kills(self) -> int:
        """How often a worker died at work: each may have doubled what it had not committed."""
        ...

    @property
    def page(self) -> str:
        """Address of the page, empty until a worker serves it."""
        ...

    async def start(self) -> None:
        """Launch everything; returns at once."""
        ...

    async def look(self) -> None:
        """See how things are now, for the table."""
        ...

    def plain(self) -> Sequence[str]:
        """Return the lines of now."""
        ...

    def render(self, title: str) -> RenderableType:
        """Return the table of now."""
        ...

    def runs(self) -> bool:
        """Whether every flow runs."""
        ...

    def settled(self, written: Mapping[str, int]) -> bool:
        """Whether everything runs and nothing is left to copy; ``written`` is by region."""
        ...

    async def stop(self) -> Sequence[str]:
        """Stop everything; return what did not end well."""
        ...


def page_below(url: str) -> str:
    """Return the page of the worker at ``url``, empty for none."""
    return f"{url.rstrip('/')}/ui/" if url else ""


@final
class InProcess:
    """The normal wiring in this process."""

    def __init__(self, file: Path, mask: SecretMask) -> None:
        config, findings = load_checked(file, CHECKED_CONNECTORS)
        flows = config.flows()
        announce(config, flows, findings)
        self._metrics = Metrics(SYSTEM_CLOCK)
        self._node = build_node(config, metrics=self._metrics, clock=SYSTEM_CLOCK, mask=mask)
        self._table = FlowTable(self._metrics, SYSTEM_CLOCK, self._node.maker.problems)
        self._beside: list[asyncio.Task[None]] = []

    @property
    def page(self) -> str:
        """Address of the page, as soon as REST is open."""
        return page_below(next(iter(self._node.rest.public_urls), ""))

    @property
    def kills(self) -> int:
        """None: who kills this process ends the demo."""
        return 0

    async def start(self) -> None:
        """Launch every flow."""
        self._node.start()
        self._beside = [
            asyncio.create_task(settle(SYSTEM_CLOCK)),
            asyncio.create_task(self._node.serve()),
        ]

    async def look(self) -> None:
        """Nothing has to be asked."""

    def plain(self) -> Sequence[str]:
        """Return one line per flow."""
        return [row.plain() for row in self._table.update()]

    def render(self, title: str) -> RenderableType:
        """Return the table of now."""
        return self._table.render(title)

    def runs(self) -> bool:
        """Whether every flow runs."""
        meters = self._metrics.meters()
        return bool(meters) and all(meter.state == "RUNNING" for meter in meters)

    def settled(self, written: Mapping[str, int]) -> bool:
        """Whether every flow runs, has copied what its source got, and reports no lag."""
        return self.runs() and all(
            not seen.lag_records and seen.records >= written[seen.flow.source]
            for seen in map(FlowSums.of, self._metrics.meters())
        )

    async def stop(self) -> Sequence[str]:
        """Stop every flow."""
        for task in self._beside:
            task.cancel()
        clean = await self._node.stop(DRAIN_TIMEOUT_S)
        failed = await self._node.maker.wait()
        wrong = [f"Flow {flow} failed: {error}" for flow, error in failed.items()]
        return wrong if clean else [*wrong, "A flow had to be cut off"]
