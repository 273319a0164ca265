"""The demo's backfill: a topic with history, copied by Spark while the flows run, and compared at the end.

Flow: ``start`` -> ``demo_history`` fills the topic -> ``mm2py backfill run``, until its partitions are reserved -> the
flows start, and copy what is written behind -> ``finish`` -> its report -> ``mm2py verify``.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO, cast, final

from mm2py.clock import Clock
from mm2py.errors import FatalError

TOPIC: Final = "history"
TOPICS: Final = ("--topics", TOPIC)
FLOW: Final = "A->B"
RECORDS: Final = 200_000
LATER_RECORDS: Final = 1_000
"""Written behind the history while the flows run."""
RATE_LIMIT: Final = 4_000_000
"""Bytes per second, so that the flows are seen beside it."""
MASTER: Final = "local[2]"
RESERVED_WITHIN_S: Final = 120.0
ENDED_WITHIN_S: Final = 300.0
LOOK_S: Final = 0.5

Report = Mapping[str, object]


@final
class DemoBackfill:
    """One backfill from A to B, as child processes."""

    def __init__(
        self, file: Path, bootstrap: str, log: TextIO, say: Callable[[str], None], clock: Clock
    ) -> None:
        self._file, self._bootstrap, self._log = file, bootstrap, log
        self._say, self._clock = say, clock
        self._run: Process | None = None

    async def start(self) -> None:
        """Fill the topic, and return when Spark copies it.

        Raises:
            FatalError: it could not be filled, or the backfill did not begin.
        """
        self._say(f"Writing {RECORDS:,} records of two years ago to A's topic {TOPIC} ...")
        await self._fill(RECORDS)
        self._say(f"Starting Spark: mm2py backfill run {self._file.name} --flow '{FLOW}' ...")
        options = ("--master", MASTER, "--rate-limit", str(RATE_LIMIT))
        self._run = await self._spawn("backfill", "run", *self._flow, *TOPICS, *options)
        deadline = self._clock.monotonic() + RESERVED_WITHIN_S
        while self._run.returncode is None and self._clock.monotonic() < deadline:
            status = await self._report("backfill", "status", *self._flow)
            if status is not None and status.get("state") == "RUNNING":
                self._say("The backfill holds the topic's partitions; the flows start beside it")
                return
            await self._clock.sleep(LOOK_S)
        raise FatalError(f"the backfill did not begin, see {self._log.name}")

    async def write_later(self) -> None:
        """Write records behind the history; the flow copies those, as the next ones of each partition."""
        await self._fill(LATER_RECORDS)

    async def finish(self) -> bool:
        """Wait for its end and compare the topic; return whether all is equal."""
        run = self._run
        assert run is not None
        try:
            async with asyncio.timeout(ENDED_WITHIN_S):
                output, _ = await run.communicate()
        except TimeoutError:
            self._say(f"The backfill did not end within {ENDED_WITHIN_S:.0f} s")
            return False
        if run.returncode != 0:
            self._say(f"The backfill ended with {run.returncode}, see {self._log.name}")
            return False
        done = _object(output)
        self._say(f"Backfill {done['id']}: {done['state']}, {done['records']:,} records by Spark")
        report = await self._report(
            "verify", *self._flow, *TOPICS, "--tier", "2", "--master", MASTER
        )
        if report is None:
            self._say(f"The copy of {TOPIC} could not be compared, see {self._log.name}")
            return False
        equal = report["equal"] is True
        checked = report["checked_records"]
        self._say(f"Verify: {checked:,} records of {TOPIC} are {'equal' if equal else 'NOT equal'}")
        return equal and checked == RECORDS + LATER_RECORDS

    async def kill(self) -> None:
        """End it at once; safe when it is gone. Its JVM ends with its standard input."""
        if self._run is not None and self._run.returncode is None:
            self._run.kill()
            await self._run.wait()

    @property
    def _flow(self) -> tuple[str, ...]:
        return (str(self._file), "--flow", FLOW, "-o", "json")

    async def _fill(self, records: int) -> None:
        arguments = ("--bootstrap", self._bootstrap, "--topic", TOPIC, "--records", str(records))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.demo.history", *arguments),
            stdin=DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        if await child.wait() != 0:
            raise FatalError(f"the topic {TOPIC} could not be filled, see {self._log.name}")

    async def _report(self, *words: str) -> Report | None:
        """Run a command to its end; None where it printed no report."""
        child = await self._spawn(*words)
        output, _ = await child.communicate()
        return _object(output) if output.strip() else None

    async def _spawn(self, *words: str) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "mm2py_cli", *words),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=self._log,
            # Ctrl-C is for the demo, which stops its children itself.
            start_new_session=True,
        )


def _object(output: bytes) -> Report:
    return cast("Report", json.loads(output))
