"""One question to the REST API of a running process, with the standard library.

Flow: ``public_url`` (from the log) -> ``ask`` -> status and decoded body. Who asks again, and why, is the caller's.
"""

import json
import urllib.error
import urllib.request
from typing import Any, Final

from tests.integration.mirror_process import Mirror

ANSWER_S: Final = 100.0
"""Longer than the 90 s that Connect takes to give up."""


def public_url(mirror: Mirror, timeout_s: float = 120.0) -> str:
    """Return where a process listens for its users, as its log tells: ``http://127.0.0.1:8083/``."""
    line = mirror.wait_for_log("public=http", timeout_s)
    return line.split("public=")[1].split()[0].split(",")[0]


def ask(
    url: str, method: str = "GET", body: object = None, *, timeout_s: float = ANSWER_S
) -> tuple[int, Any]:
    """Ask once; return the status and the decoded body, None where it is empty.

    Raises:
        OSError: nobody answered.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - http to ourselves
        url, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - as above
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
