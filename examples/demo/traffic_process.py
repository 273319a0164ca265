"""The demo's producers and its consumer group of one region, seen from the parent.

Flow: ``start`` -> child ``examples.demo.traffic`` or ``demo_consumer`` -> ``finish`` (SIGTERM, its counts). The
children load confluent-kafka, so that this process never does.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Final, TextIO, final

FINISH_TIMEOUT_S: Final = 25.0


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """What a region's producers wrote."""

    region: str
    written: int
    failed: bool


@final
class DemoChild:
    """One child process: a module with options, whose last words are a JSON line."""

    def __init__(self, region: str, module: str, *options: str) -> None:
        self.region = region
        self._arguments = ("-m", f"examples.demo.{module}", "--region", region, *options)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def ended(self) -> bool:
        """Whether it ran and is gone."""
        return self._process is not None and self._process.returncode is not None

    async def start(self, errors: TextIO) -> None:
        """Start it; what it has to complain about goes to ``errors``."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Ctrl-C is for the demo, which stops its children itself.
            start_new_session=True,
        )

    async def finish(self) -> tuple[bytes, bool]:
        """Let it stop in order; return its output, and whether it failed."""
        process = self._process
        if process is None:
            return b"", True
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            await self.kill()
            return b"", True
        return output, process.returncode != 0

    async def kill(self) -> None:
        """End it at once; safe when it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@final
class TrafficProcess:
    """The producers of one region."""

    def __init__(self, region: str, bootstrap: str, rate: int) -> None:
        self.region = region
        self.child = DemoChild(region, "traffic", "--bootstrap", bootstrap, "--rate", str(rate))

    async def finish(self) -> TrafficCount:
        """Let it stop, wait for its last acknowledgement, return what it wrote."""
        output, failed = await self.child.finish()
        return _count(self.region, output, failed=failed)


def _count(region: str, output: bytes, *, failed: bool) -> TrafficCount:
    try:
        answer: dict[str, dict[str, int]] = json.loads(output)
        return TrafficCount(region, sum(answer["written"].values()), failed)
    except (ValueError, KeyError):
        return TrafficCount(region, 0, failed=True)
