"""The demo's producers of one region, seen from the parent.

Flow: ``start`` -> child ``mm2py_workers.demo_traffic`` -> ``finish`` (SIGTERM, its counts). The child loads
confluent-kafka, so that this process never does.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Final, TextIO, final

__all__ = ["TrafficCount", "TrafficProcess"]

FINISH_TIMEOUT_S: Final = 25.0


@dataclass(frozen=True, slots=True)
class TrafficCount:
    """What a region's producers wrote."""

    region: str
    written: int
    failed: bool


@final
class TrafficProcess:
    """One child process."""

    def __init__(self, region: str, bootstrap: str, rate: int) -> None:
        self.region = region
        self._bootstrap = bootstrap
        self._rate = rate
        self._process: asyncio.subprocess.Process | None = None

    @property
    def ended(self) -> bool:
        """Whether it ran and is gone."""
        return self._process is not None and self._process.returncode is not None

    async def start(self, errors: TextIO) -> None:
        """Start it; what it has to complain about goes to ``errors``."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "mm2py_workers.demo_traffic",
            "--bootstrap",
            self._bootstrap,
            "--region",
            self.region,
            "--rate",
            str(self._rate),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Ctrl-C is for the demo, which stops its producers itself.
            start_new_session=True,
        )

    async def finish(self) -> TrafficCount:
        """Tell it to stop, wait for its last acknowledgement, return what it wrote."""
        process = self._process
        if process is None:
            return TrafficCount(self.region, 0, failed=True)
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            await self.kill()
            return TrafficCount(self.region, 0, failed=True)
        return _count(self.region, output, failed=process.returncode != 0)

    async def kill(self) -> None:
        """End it at once; safe when it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _count(region: str, output: bytes, *, failed: bool) -> TrafficCount:
    try:
        answer: dict[str, dict[str, int]] = json.loads(output)
        return TrafficCount(region, sum(answer["written"].values()), failed)
    except (ValueError, KeyError):
        return TrafficCount(region, 0, failed=True)
