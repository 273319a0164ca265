"""What a file asks for and a later part of the product brings: accepted, and named at start."""

from collections.abc import Mapping
from typing import Final

__all__ = ["later_parts"]

_SOURCE: Final = "MirrorSourceConnector"


def later_parts(connectors: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return one line per feature, for the connectors of one flow."""
    if any(key.startswith("topic.creation.") for key in connectors.get(_SOURCE, {})):
        return [
            "topic.creation.* rules come with part 5: remote topics follow the source, topics that a transform names are"
            " created by the target's brokers (auto.create.topics.enable)"
        ]
    return []
