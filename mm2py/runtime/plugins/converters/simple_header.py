"""``SimpleHeaderConverter``: the text form of any value, in UTF-8."""

import json
from collections.abc import Mapping
from typing import cast, final

from mm2py.api.schema import Schema, SchemaType
from mm2py.runtime.plugins.converters.java_text import header_text


@final
class SimpleHeaderConverter:
    """Implements ``Converter`` for headers."""

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the text's bytes."""
        if value is None:
            return None
        return header_text(_whole(schema, value)).encode("utf-8", "replace")

    def from_bytes(self, data: bytes | None) -> object:
        """Return what the text looks like: a truth value, a number, an array or a map as in JSON, else the text."""
        if data is None:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data  # Java's falls back to the bytes, too
        try:
            return cast("object", json.loads(text))
        except ValueError:
            return text


def _whole(schema: Schema | None, value: object) -> object:
    """Return a struct with all of its fields, in the order of its schema."""
    if schema is None or schema.type is not SchemaType.STRUCT or not isinstance(value, Mapping):
        return value
    members = cast("Mapping[str, object]", value)
    return {
        it.name: _whole(it.schema, members.get(it.name, it.schema.default)) for it in schema.fields
    }
