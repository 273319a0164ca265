"""mm2py as its user runs it: ``connect-mirror-maker-py FILE``, or the same under the sampling profiler.

Flow: properties file -> ``start_mm2py`` -> ``MirrorProcess`` -> ``public_url`` -> ``change_flow``.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from bench.measure import CopyFailedError
from bench.mirror_process import MirrorProcess

COMMAND: Final = "connect-mirror-maker-py"
START_S: Final = 60.0
ANSWER_S: Final = 90.0
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


def public_url(worker: MirrorProcess) -> str:
    """Wait until a worker serves REST; return where, with a slash at the end."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        worker.check_running()
        found = re.search(r"rest listens public=([^\s,]+)", worker.log())
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise CopyFailedError("REST is not served")


def change_flow(url: str, source: str, target: str, keys: dict[str, str]) -> None:
    """Change properties of a flow, as soon as the worker at ``url`` lets it: not while its tasks are being dealt out."""
    request = urllib.request.Request(  # noqa: S310 - http to ourselves
        f"{url}flows/{source}-%3E{target}",
        json.dumps({"config": keys}).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    give_up = time.monotonic() + ANSWER_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:  # noqa: S310 - as above
                reply.read()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT or time.monotonic() > give_up:
                raise
        else:
            return
        time.sleep(0.1)
