"""The CRC that ``sign`` writes, for tests that read what was not signed yet."""

from struct import Struct
from typing import Final

from mm2py.protocol.record_batch import ATTRIBUTES_OFFSET, Bytes, crc32c

_CRC: Final = Struct(">I")
_CRC_OFFSET: Final = 17


def sealed(batch: Bytes) -> bytearray:
    """Return a copy of one batch with the right CRC."""
    data = bytearray(batch)
    _CRC.pack_into(data, _CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return data
