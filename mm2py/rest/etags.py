"""``ETag`` and ``If-Match``: a change that is refused where another one came first.

Flow: revision of a flow, or the text of a connector's config -> tag; a request's ``If-Match`` ->
412 or go.
"""

import hmac
import json
from collections.abc import Mapping
from typing import Final

from mm2py.runtime.errors import PreconditionFailedError

ANY: Final = "*"
REVISION_TAG: Final = r'^(\*|"[0-9]{1,15}"|[0-9]{1,15})$'
"""What ``If-Match`` may be for a flow; shells like to lose the quotes."""


def revision_tag(revision: int) -> str:
    """Return the tag of a flow at a revision."""
    return f'"{revision}"'


def revision_of(if_match: str | None) -> int | None:
    """Return the revision of a tag that fits ``REVISION_TAG``, None where any will do."""
    return None if if_match is None or if_match == ANY else int(if_match.strip('"'))


def config_tag(config: Mapping[str, str | None], key: bytes) -> str:
    """Return the tag of a connector's config as it is stored.

    Configs may hold passwords: ``key``, known to workers only, keeps readers from trying some
    against it.
    """
    # Over all flows a connector has a longer name.
    items = sorted((name, text) for name, text in config.items() if name != "name")
    text = json.dumps(items).encode()
    return f'"{hmac.digest(key, text, "sha256").hex()[:32]}"'


def check_config_tag(if_match: str, tag: str | None) -> None:
    """Raise ``PreconditionFailedError`` unless ``tag``, of the config in force (None: no
    connector), is listed in ``if_match``."""
    tags = {text.strip() for text in if_match.split(",")}
    if tag is None or not tags & {ANY, tag}:
        raise PreconditionFailedError(
            "The config is not the one that If-Match names: read it again, it was changed meanwhile"
        )
