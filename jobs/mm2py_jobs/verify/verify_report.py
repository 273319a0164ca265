"""Reports of verify, signed: what was proved can be kept, and later shown to be what was written.

Flow: report -> ``sign_report`` -> JSON -> ``check_report``. Without a key the signature finds damage and edits that did not renew it;
with one (``MM2PY_REPORT_KEY_FILE``) only holders of the key can write a report that passes.
"""

import hmac
import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

from mm2py.errors import ConfigError

KEY_FILE: Final = "MM2PY_REPORT_KEY_FILE"
"""Environment variable: a file whose bytes are the key."""

_SIGNATURE: Final = "signature"


def sign_report(report: Mapping[str, object]) -> dict[str, object]:
    """Return the report with its signature.

    Raises:
        ConfigError: the key file cannot be read.
    """
    key = _key()
    return {
        **report,
        _SIGNATURE: {"algorithm": _algorithm(key), "value": _value(report, key)},
    }


def check_report(text: str) -> dict[str, object]:
    """Return a report that is as it was written.

    Raises:
        ConfigError: it is none, was changed, or was signed with another key; or the key file cannot be read.
    """
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"no report of mm2py verify: {error}") from None
    if not isinstance(found, dict) or _SIGNATURE not in found:
        raise ConfigError("no report of mm2py verify: it has no signature")
    report = cast("dict[str, object]", found)
    signature, key = report.pop(_SIGNATURE), _key()
    expected = {"algorithm": _algorithm(key), "value": _value(report, key)}
    given = cast("dict[str, object]", signature) if isinstance(signature, dict) else {}
    if given.get("algorithm") != expected["algorithm"]:
        raise ConfigError(
            f"the report is signed in another way than {expected['algorithm']}",
            remedy=f"{KEY_FILE} names the file with the key of a report that was signed with one",
        )
    value = str(given.get("value"))
    if not hmac.compare_digest(value.encode(), expected["value"].encode()):
        raise ConfigError("the report was changed after it was signed, or signed with another key")
    return report


def _key() -> bytes:
    path = os.environ.get(KEY_FILE, "")
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise ConfigError(f"{KEY_FILE}={path}: {error}") from error


def _algorithm(key: bytes) -> str:
    return "hmac-sha256" if key else "sha256"


def _value(report: Mapping[str, object], key: bytes) -> str:
    text = json.dumps(report, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, text, sha256).hexdigest() if key else sha256(text).hexdigest()
