"""The connectors of a mirror maker file, with what only their plug-ins know to be wrong with a
config.

Flow: ``CHECKED_CONNECTORS`` -> ``mm2py lint`` and the start of a mirror. The transforms that are
installed are the runtime's, which the connectors never see.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from mm2py.config.definitions import Problem
from mm2py.config.findings import Severity
from mm2py.runtime.plugins.transforms.keys import plugin_findings
from mm2py_connectors.config import CONNECTORS, topic_findings


def _findings(props: Mapping[str, str]) -> Iterator[tuple[Severity, Problem]]:
    yield from plugin_findings(props)
    yield from topic_findings(props)


CHECKED_CONNECTORS: Final = tuple(
    replace(it, findings=_findings) if it.copies else it for it in CONNECTORS
)
