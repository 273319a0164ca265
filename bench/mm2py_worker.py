"""mm2py as its user runs it: ``connect-mirror-maker-py FILE``, or the same under the sampling profiler.

Flow: properties file -> ``start_mm2py`` -> ``MirrorProcess``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.mirror_process import MirrorProcess

__all__ = ["start_mm2py"]

COMMAND: Final = "connect-mirror-maker-py"
_ROOT: Final = Path(__file__).parent.parent


def start_mm2py(
    properties: Path,
    log_file: Path,
    *,
    clusters: Sequence[str] = (),
    profile_to: Path | None = None,
) -> MirrorProcess:
    """Start the product on a file; with ``profile_to`` it writes its profile there when it ends."""
    command = [str(Path(sys.executable).parent / COMMAND), str(properties)]
    if profile_to is not None:
        # bench.sampling needs the checkout as its folder; the product's command does not.
        command = [sys.executable, "-m", "bench.sampling", str(profile_to), str(properties)]
    if clusters:
        command += ["--clusters", *clusters]
    return MirrorProcess("mm2py", command, log_file, cwd=_ROOT if profile_to else None)
