"""Runs the product's command under a sampling profiler: SIGPROF per CPU tick -> stack counts.

``python -m bench.sampling OUT FILE [--clusters …]`` writes OUT (a table: own and total share per function,
own share per line) and OUT.folded (one stack per line, the input of flame graph tools). Costs a few
percent; time in C is charged to the line that called it.
"""

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, final

from mm2py_workers.connect_mirror_maker import main as run_product

INTERVAL_S: Final = 0.001  # asked for; the kernel gives one per scheduler tick, 1 to 4 ms
_ROWS: Final = 40


@final
class Sampler:
    """Counts stacks while it is on."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()
        self._lines: Counter[tuple[CodeType, int]] = Counter()

    def start(self) -> None:
        """Begin; main thread only."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)  # noqa: FBT003 - the library's signature
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        """End; what was counted stays."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._lines[frame.f_code, frame.f_lineno] += 1
        stack: list[CodeType] = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def table(self) -> str:
        """Return the functions and lines that took most."""
        own: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for stack, count in self._stacks.items():
            own[_name(stack[0])] += count
            for name in {_name(code) for code in stack}:
                total[name] += count
        samples = max(self._stacks.total(), 1)
        rows = [f"{samples} samples of {time.process_time():.2f} s CPU, imports included", ""]
        rows += ["own %  total %  function"]
        rows += [
            f"{100 * count / samples:5.1f}  {100 * total[name] / samples:7.1f}  {name}"
            for name, count in own.most_common(_ROWS)
        ]
        rows += ["", "total %  function"]
        rows += [f"{100 * n / samples:7.1f}  {name}" for name, n in total.most_common(_ROWS)]
        rows += ["", "own %  line"]
        rows += [
            f"{100 * count / samples:5.1f}  {_name(code)}:{line}"
            for (code, line), count in self._lines.most_common(_ROWS)
        ]
        return "\n".join(rows) + "\n"

    def folded(self) -> Iterable[str]:
        """Yield one stack per line, outermost function first, and its count."""
        for stack, count in self._stacks.most_common():
            yield ";".join(_name(code) for code in reversed(stack)) + f" {count}\n"


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_qualname}"


def main() -> None:
    """Run the product on the remaining arguments and write the profile when it ends."""
    out = Path(sys.argv[1])
    sys.argv[:] = ["connect-mirror-maker-py", *sys.argv[2:]]
    sampler = Sampler()
    sampler.start()
    try:
        run_product()
    finally:
        sampler.stop()
        out.write_text(sampler.table(), encoding="utf-8")
        with Path(f"{out}.folded").open("w", encoding="utf-8") as file:
            file.writelines(sampler.folded())


if __name__ == "__main__":
    main()
