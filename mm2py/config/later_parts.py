"""What a file asks for and a later part of the product brings: accepted, and named at start."""

from collections.abc import Callable, Mapping
from typing import Final

from mm2py.config.java_values import parse_list

__all__ = ["later_parts"]

_SOURCE: Final = "MirrorSourceConnector"
_Configs = Mapping[str, Mapping[str, str]]


def later_parts(worker: Mapping[str, str], connectors: _Configs) -> list[str]:
    """Return one line per feature, for one flow."""
    return [line for check in _CHECKS for line in check(worker, connectors) if line]


def _transforms(worker: Mapping[str, str], connectors: _Configs) -> list[str]:
    del worker
    config = connectors.get(_SOURCE, {})
    lines: list[str] = []
    if parse_list(config.get("transforms", "")):
        lines.append(
            f"transforms={config['transforms']} are applied with copy.connector=sink: records stay unchanged"
        )
    if any(key.startswith("topic.creation.") for key in config):
        lines.append("topic.creation.* rules come with part 5: remote topics follow the source")
    return lines


_CHECKS: Final[tuple[Callable[[Mapping[str, str], _Configs], list[str]], ...]] = (_transforms,)
