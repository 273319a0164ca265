# noqa: INP001 - a script of the image, in no package
"""HEALTHCHECK of the image: exit code 0 when the worker's ``/health`` answers 200.

A 401 counts as well: the worker serves, and no password of its users belongs into a health check.
``MM2PY_HEALTH_URL`` names another address, where ``listeners`` does; over https its certificate has to be
trusted by the image (``SSL_CERT_FILE``).
"""

import os
import sys
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

URL: Final = "http://127.0.0.1:8083/health"
TIMEOUT_S: Final = 4.0
UNAUTHORIZED: Final = 401


def main() -> str | None:
    """Return what is wrong, None when nothing is."""
    url = os.environ.get("MM2PY_HEALTH_URL", URL)
    try:
        with urlopen(url, timeout=TIMEOUT_S):  # noqa: S310 - the operator's own address
            return None
    except HTTPError as error:
        if error.code == UNAUTHORIZED:
            return None
        return f"{url} answered {error.code}: {error.read(500).decode(errors='replace')}"
    except (URLError, OSError) as error:
        return f"{url} does not answer: {error}"


if __name__ == "__main__":
    sys.exit(main())
