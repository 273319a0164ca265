"""Values of labels as JMX shows them, for the names of dashboards that were made for Java.

Kafka writes each tag of a metric into an MBean's name; one that has other characters than the plain
ones is there in quotes, and the JMX exporter keeps those.
"""

import re
from functools import lru_cache
from typing import Final

_PLAIN: Final = re.compile(r"[\w\-%. \t]*", re.ASCII)
_ESCAPED: Final = {ord(it): f"\\{it}" for it in '\\"*?'} | {ord("\n"): "\\n"}


@lru_cache(maxsize=10_000)
def jmx_value(text: str) -> str:
    """Return it as in an MBean's name (Kafka's ``Sanitizer.jmxSanitize``, Java's
    ``ObjectName.quote``)."""
    return text if _PLAIN.fullmatch(text) else f'"{text.translate(_ESCAPED)}"'
