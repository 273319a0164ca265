"""CPU, memory and files of this process and of those below it, as Linux counts them in ``/proc``.

Flow: ``/proc`` -> ``ProcessWatch.read`` -> ``ProcessReading`` -> ``GET /metrics``. Elsewhere
nothing is known: no reading. A reading takes about 0.1 ms for each process of the machine: children
are found by their parents.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

_PROC: Final = Path("/proc")
_PARENT, _USER_CPU, _SYSTEM_CPU, _START, _VIRTUAL, _RESIDENT = 1, 11, 12, 19, 20, 21
"""Fields of ``/proc/PID/stat`` after the name of the command, which may hold anything (proc(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """This process, and the sums of those below it: task hosts, and drivers of jobs."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    started_s: float
    """Since the epoch."""
    open_files: int | None
    """None where it may not be counted."""
    most_files: int | None
    """None where there is no limit."""
    children: int
    children_cpu_s: float
    """Of ended ones too, as of their last reading: it never falls."""
    children_resident_bytes: int
    """Pages that processes share are counted in each."""


@dataclass(frozen=True, slots=True)
class _Stat:
    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    start_ticks: int


@final
class ProcessWatch:
    """Reads this process again and again; ``proc`` is where the system counts."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._children: dict[tuple[int, int], float] = {}
        self._ended_cpu_s = 0.0

    def read(self) -> ProcessReading | None:
        """Return what the system counts now, None where it does not."""
        pid = os.getpid()
        own, booted_s = self._stat(pid), self._booted_s()
        if own is None or booted_s is None:
            return None
        children = {child: stat for child in self._below(pid) if (stat := self._stat(child))}
        return ProcessReading(
            cpu_s=own.cpu_s,
            resident_bytes=own.resident_bytes,
            virtual_bytes=own.virtual_bytes,
            started_s=booted_s + own.start_ticks / self._ticks_per_s,
            open_files=self._open_files(pid),
            most_files=self._most_files(pid),
            children=len(children),
            children_cpu_s=self._children_cpu_s(children),
            children_resident_bytes=sum(it.resident_bytes for it in children.values()),
        )

    def _children_cpu_s(self, children: dict[int, _Stat]) -> float:
        # A number of a process is used again: its start tells two apart.
        living = {(pid, stat.start_ticks): stat.cpu_s for pid, stat in children.items()}
        self._ended_cpu_s += sum(
            cpu_s for key, cpu_s in self._children.items() if key not in living
        )
        self._children = living
        return self._ended_cpu_s + sum(living.values())

    def _fields(self, pid: int) -> list[str]:
        # A process may end between the listing and this look.
        with suppress(OSError):
            text = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            return text.rpartition(")")[2].split()
        return []

    def _stat(self, pid: int) -> _Stat | None:
        fields = self._fields(pid)
        if not fields:
            return None
        ticks = int(fields[_USER_CPU]) + int(fields[_SYSTEM_CPU])
        return _Stat(
            cpu_s=ticks / self._ticks_per_s,
            resident_bytes=int(fields[_RESIDENT]) * self._page_bytes,
            virtual_bytes=int(fields[_VIRTUAL]),
            start_ticks=int(fields[_START]),
        )

    def _below(self, pid: int) -> Iterator[int]:
        """Yield all processes below one: a task host is a child of the process that forks hosts."""
        children: dict[int, list[int]] = {}
        for name in self._numbers(self._proc):
            fields = self._fields(name)
            if fields:
                children.setdefault(int(fields[_PARENT]), []).append(name)
        waiting = children.get(pid, [])
        while waiting:
            child = waiting.pop()
            yield child
            waiting += children.get(child, [])

    def _numbers(self, folder: Path) -> list[int]:
        try:
            return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - entries vanish
        except OSError:
            return []

    def _booted_s(self) -> float | None:
        with suppress(OSError):
            for line in (self._proc / "stat").read_text(encoding="utf-8").splitlines():
                if line.startswith("btime "):
                    return float(line.split()[1])
        return None

    def _open_files(self, pid: int) -> int | None:
        numbers = self._numbers(self._proc / str(pid) / "fd")
        return len(numbers) - 1 if numbers else None  # one of them is the listing's own

    def _most_files(self, pid: int) -> int | None:
        with suppress(OSError):
            limits = (self._proc / str(pid) / "limits").read_text(encoding="utf-8")
            for line in limits.splitlines():
                if line.startswith("Max open files"):
                    soft = line.split()[3]
                    return int(soft) if soft.isdigit() else None
        return None
