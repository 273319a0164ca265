"""``python -m bench.verify_memory``: what the comparison of a compacted partition with many open keys needs.

Flow: per number of keys and fate a process of its own -> both logs are made while they are read, a batch at a time -> ``find`` of verify
-> CPU, the most resident memory of the process and its slope, what it wrote to the disk. It fails above ``MOST_BYTES``, or where memory grows with the
number of keys.

Each key has a record that the target lacks, between records that both have. ``later``: its newest record comes when all have passed.
``deleted``: that is a tombstone which the target has removed, too. ``lost``: there is none.
"""

import argparse
import asyncio
import re
import resource
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from bench.workspace import RESULTS
from mm2py.protocol.record_batch import ATTRIBUTES_OFFSET, CRC_OFFSET, build_batch, crc32c
from mm2py.protocol.record_bytes import append_record
from mm2py.protocol.records import record_body
from mm2py_jobs.log.log_batches import LogBatch, log_batch
from mm2py_jobs.verify.compare import find
from mm2py_jobs.verify.differences import CompareRules
from mm2py_jobs.verify.digests import part_hash
from mm2py_jobs.verify.log_entries import LogSide, OffsetRange

FATES: Final = ("later", "deleted", "lost")
MOST_BYTES: Final = 1 << 30
SLOPE: Final = 1.15
"""Twice as many keys may need so many times the memory: a heap that is used for longer."""
_MB: Final = 1 << 20
_BATCH: Final = 500
_LAST_DELTA: Final = ATTRIBUTES_OFFSET + 2
_WHOLE: Final = OffsetRange(0, 2**62)
_console = Console(stderr=True)


class Log(NamedTuple):
    """One side: how many keys, what becomes of them, and whether it is the copy."""

    keys: int
    fate: str
    is_copy: bool

    def key(self, offset: int) -> bytes | None:
        """Return the key of the record at an offset; None: it was removed."""
        number, is_open = divmod(offset, 2)
        if offset >= 2 * self.keys:
            return (
                None
                if self.is_copy and self.fate == "deleted"
                else b"key-%d" % (offset - 2 * self.keys)
            )
        if is_open:
            return None if self.is_copy else b"key-%d" % number
        return b"both-%d" % number

    def value(self, offset: int) -> bytes | None:
        """Return the value of the record at an offset."""
        if offset < 2 * self.keys:
            return b"old"
        return b"newest" if self.fate == "later" else None

    @property
    def end(self) -> int:
        return self.keys * (2 if self.fate == "lost" else 3)

    def batches(self) -> Iterator[LogBatch]:
        """Yield batches as a cleaner leaves them, with holes between their records."""
        waiting: list[tuple[int, bytes, bytes | None]] = []
        for offset in range(self.end):
            key = self.key(offset)
            if key is not None:
                waiting.append((offset, key, self.value(offset)))
            if waiting and (len(waiting) == _BATCH or offset + 1 == self.end):
                yield _batch(waiting)
                waiting = []

    async def pieces(self) -> AsyncGenerator[tuple[OffsetRange, Sequence[LogBatch]]]:
        """Yield all of it, as a reader does."""
        for batch in self.batches():
            yield _WHOLE, [batch]

    async def hashes(self, first: int, end: int) -> AsyncGenerator[tuple[int, int]]:
        """Yield offset and hashed key of its records."""
        for offset in range(first, min(end, self.end)):
            key = part_hash(self.key(offset))
            if key is not None:
                yield offset, key


def _batch(records: Sequence[tuple[int, bytes, bytes | None]]) -> LogBatch:
    base, payload = records[0][0], bytearray()
    for offset, key, value in records:
        append_record(payload, record_body(key, value, ()), 0, offset - base)
    data = build_batch(
        payload, base_offset=base, count=len(records), base_timestamp=1, max_timestamp=1
    )
    struct.pack_into(">i", data, _LAST_DELTA, records[-1][0] - base)
    struct.pack_into(">I", data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return log_batch(memoryview(data))


async def compare(keys: int, fate: str) -> int:
    """Compare, and return how many records are missing."""
    ours, theirs = Log(keys, fate, is_copy=False), Log(keys, fate, is_copy=True)
    rules = CompareRules(covered=ours.end, target_compacts=True, expected=lambda it: it, most=1_000)
    sides = LogSide(ours.pieces(), digests=False), LogSide(theirs.pieces(), digests=False)
    found = await find(*sides, rules, (ours.hashes, theirs.hashes))
    assert not found.regions
    assert found.complete == (fate != "lost")
    return len(found.missing)


class Row(NamedTuple):
    """One process."""

    fate: str
    keys: int
    seconds: float
    cpu_seconds: float
    bytes: int
    written: int
    missing: int

    def text(self) -> str:
        """Return a line of the table."""
        return (
            f"| {self.fate} | {self.keys:,} | {self.seconds:.0f} s | {self.cpu_seconds:.0f} s | {self.bytes / _MB:.0f} MB "
            f"| {self.written / _MB:,.0f} MB | {self.missing:,} |"
        )


def _measured(fate: str, keys: int) -> Row:
    command = [sys.executable, "-m", "bench.verify_memory", "--one", fate, "--keys", str(keys)]
    begun = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cpu, size, written, missing = map(int, done.stdout.split())
    row = Row(fate, keys, time.monotonic() - begun, cpu, size, written, missing)
    _console.print(row.text())
    return row


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=500_000, help="the smaller number")
    parser.add_argument("--one", choices=FATES, help="of a process: compare and print")
    chosen = parser.parse_args()
    if chosen.one:
        missing = asyncio.run(compare(chosen.keys, chosen.one))
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu, most = int(used.ru_utime + used.ru_stime), used.ru_maxrss * 1024
        (written,) = re.findall(r"wchar: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"))
        sys.stdout.write(f"{cpu} {most} {written} {missing}\n")
        return
    rows = [_measured(fate, keys) for fate in FATES for keys in (chosen.keys, 2 * chosen.keys)]
    lines = [
        "| fate of the keys | keys | took | CPU | most memory | written to disk | named as missing |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    head = f"# Memory of a verify of compacted keys\n\n`python -m bench.verify_memory`. {_about(__doc__ or '')}\n\n"
    text = head + "\n".join([*lines, *(it.text() for it in rows)]) + "\n"
    (RESULTS / "verify-memory.md").write_text(text, encoding="utf-8")
    for small, large in zip(rows[::2], rows[1::2], strict=True):
        wrong = large.bytes > min(MOST_BYTES, SLOPE * small.bytes)
        if wrong:
            raise SystemExit(
                f"{large.fate}: {large.bytes / _MB:.0f} MB after {small.bytes / _MB:.0f} MB"
            )


def _about(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[-1].split())


if __name__ == "__main__":
    main()
