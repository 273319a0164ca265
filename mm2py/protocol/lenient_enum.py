"""The enum that Kafka's growing lists of codes are read with.

A value newer than ours becomes UNKNOWN; the enums themselves are in ``acls`` and ``configs``.
"""

from enum import IntEnum


class LenientEnum(IntEnum):
    """Kafka's enums grow; a value newer than ours reads as UNKNOWN, as in Java."""

    @classmethod
    def _missing_(cls, value: object) -> IntEnum | None:
        unknown: IntEnum | None = cls.__members__.get("UNKNOWN")
        return unknown
