"""Cost of a copy: CPU and memory of all processes of a mirror, while the records of a topic arrive.

Flow: ``ProcessTree(pid)`` + a counter of the target -> ``measure_copy`` -> ``CopyCost``.
CPU is user + system time in nanoseconds by the kernel's per-process clock, children included. Linux only.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

_SAMPLE_S: Final = 0.01
_ONCE_SHARE: Final = 0.2
_LATEST_SHARE: Final = 0.6
_TREE_AGE_S: Final = 0.5
_TICKS_PER_S: Final = 100
_CPUCLOCK_SCHED: Final = 2  # linux: process clock id = ~pid << 3 | 2, see clock_getcpuclockid(3)


class CopyFailedError(RuntimeError):
    """The copy did not end, or cannot be measured."""


@dataclass(frozen=True, slots=True)
class CopyCost:
    """What one copy of a topic took."""

    records: int
    cpu_s: float
    wall_s: float
    rss_bytes: int
    pss_bytes: int

    @property
    def cpu_us_per_record(self) -> float:
        """CPU of all processes of the mirror per record, in microseconds."""
        return self.cpu_s * 1e6 / self.records

    @property
    def records_per_s(self) -> float:
        """Records that arrived per second of wall clock."""
        return self.records / self.wall_s


@final
class ProcessTree:
    """One process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._pids: list[int] = [pid]
        self._looked_at = float("-inf")

    def cpu_s(self) -> float:
        """Return the CPU time of the living processes and of the children they waited for."""
        if time.monotonic() - self._looked_at > _TREE_AGE_S:
            self._pids = _descendants(self._root)
            self._looked_at = time.monotonic()
        return sum(_cpu_s(pid) for pid in self._pids)

    def memory(self) -> tuple[int, int]:
        """Return resident bytes (shared pages counted in each process) and proportional bytes."""
        rss = pss = 0
        for pid in _descendants(self._root):
            for line in _lines(f"/proc/{pid}/smaps_rollup"):
                if line.startswith("Rss:"):
                    rss += int(line.split()[1]) * 1024
                elif line.startswith("Pss:"):
                    pss += int(line.split()[1]) * 1024
        return rss, pss


def memory_by_kind(
    root: int, kinds: Mapping[str, str]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return proportional bytes and numbers of a process and its descendants, by kind; a process is of the first kind whose word its command line has."""
    sizes, counts = (dict.fromkeys(kinds.values(), 0) for _ in range(2))
    for pid in _descendants(root):
        line = "".join(_lines(f"/proc/{pid}/cmdline"))
        kind = next(it for word, it in kinds.items() if word in line)
        counts[kind] += 1
        pss = (it for it in _lines(f"/proc/{pid}/smaps_rollup") if it.startswith("Pss:"))
        sizes[kind] += sum(int(it.split()[1]) * 1024 for it in pss)
    return sizes, counts


def measure_copy(
    tree: ProcessTree,
    counted: Callable[[], int],
    records: int,
    *,
    deadline_s: float,
    begin: Callable[[], None] | None = None,
) -> CopyCost:
    """Wait until ``records`` have arrived; the cost is that of the records behind the first fifth.

    That fifth carries what happens once: connections, look-ups, first use of code. Where most records arrive
    between two looks, the cost is counted from the look before, once-only costs included. Both mirrors are
    measured by the same rule. ``begin`` lets the copy begin: what it costs until it returns is counted where nothing was seen before
    most records had arrived.

    Raises:
        CopyFailedError: A fifth was there at the first look, or not all after ``deadline_s``.
    """
    begun: tuple[float, float, int] | None = None
    before: tuple[float, float, int] | None = None
    if begin is not None:
        before = tree.cpu_s(), time.monotonic(), 0
        begin()
    give_up_at = time.monotonic() + deadline_s
    while True:
        cpu_s, at = tree.cpu_s(), time.monotonic()
        arrived = counted()
        if begun is None and arrived >= records * _ONCE_SHARE:
            if before is None:
                raise CopyFailedError("the copy began before it could be measured")
            begun = (cpu_s, at, arrived) if arrived <= records * _LATEST_SHARE else before
        before = cpu_s, at, arrived
        if begun is not None and arrived >= records:
            cpu_s, at = tree.cpu_s() - begun[0], time.monotonic() - begun[1]
            return CopyCost(records - begun[2], cpu_s, at, *tree.memory())
        if at > give_up_at:
            raise CopyFailedError(f"{arrived} of {records} records after {deadline_s:.0f} s")
        time.sleep(_SAMPLE_S)


def _cpu_s(pid: int) -> float:
    try:
        own = time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return 0.0  # it has ended; its parent's figures have it once it was waited for
    return own + _waited_children_s(pid)


def _waited_children_s(pid: int) -> float:
    fields = _stat_fields(pid)
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_S if fields else 0.0


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: [0] state, [1] parent, [13] cutime."""
    lines = _lines(f"/proc/{pid}/stat")
    return lines[0].rpartition(")")[2].split() if lines else []


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
