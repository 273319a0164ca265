"""``StringConverter``: the text of a value, in one encoding."""

import codecs
from typing import Final, final

from mm2py.api.schema import Schema
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.converters.java_text import java_string

_BIG_ENDIAN_MARK: Final = b"\xfe\xff"


@final
class StringConverter:
    """Implements ``Converter``.

    Args:
        encoding: Java's name of a character set.

    Raises:
        ConfigError: it is unknown.
    """

    def __init__(self, encoding: str = "UTF-8") -> None:
        try:
            self._encoding = codecs.lookup(encoding.strip()).name
        except LookupError:
            raise ConfigError(
                f"converter.encoding={encoding}: no such character set", remedy="use UTF-8"
            ) from None

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the encoded text; what the character set lacks becomes ``?``."""
        if value is None:
            return None
        text = java_string(value)
        if self._encoding == "utf-16":  # Java's is big-endian, Python's this machine's
            return _BIG_ENDIAN_MARK + text.encode("utf-16-be", "replace")
        return text.encode(self._encoding, "replace")

    def from_bytes(self, data: bytes | None) -> str | None:
        """Return the text; as in Java, bytes that are none become the replacement character."""
        return None if data is None else data.decode(self._encoding, "replace")
