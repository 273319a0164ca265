"""``SimpleHeaderConverter``: the text form of any value, in UTF-8."""

from typing import final

from mm2py.api.schema import Schema
from mm2py.runtime.converters.java_text import header_text

__all__ = ["SimpleHeaderConverter"]


@final
class SimpleHeaderConverter:
    """Implements ``Converter`` for headers."""

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the text's bytes."""
        return None if value is None else header_text(value).encode("utf-8", "replace")
