"""A v2 record batch: its header, its CRC, and the value that is passed from Fetch to Produce.

Flow: ``batch_stage.classify`` -> ``RecordBatch`` -> (queues) -> ``batch_stage.sign``. Records are
never decoded.
"""

from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from struct import Struct
from typing import Final, Protocol, TypeAlias, cast, final

from mm2py.errors import FatalError
from mm2py.protocol.kernel import native

Bytes: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
ATTRIBUTES_OFFSET: Final = 21
"""Start of what the CRC covers."""

HEADER: Final = Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, recordsCount."""

CODEC_MASK: Final = 0x07
LOG_APPEND_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20

CRC: Final = Struct(">I")
CRC_OFFSET: Final = 17
_KNOWN_ANSWER: Final = (b"123456789", 0xE3069283)  # check value of CRC-32/ISCSI


class Codec(IntEnum):
    """Compression of a batch: the low three attribute bits."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BufferLease(Protocol):
    """Share in a pooled receive buffer."""

    def retain(self) -> None:
        """Take one more reference."""
        ...

    def release(self) -> None:
        """Give one reference back; views must not be used after the last one."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes that the batch keeps in use, 0 where a copy would free nothing."""
        ...

    def copied(self, size_bytes: int) -> "BufferLease":
        """Return the lease of a copy, which the pool counts as it counts the buffer."""
        ...


def choose_crc(
    modules: tuple[tuple[str, str], ...] = (
        ("fastcrc.crc32", "iscsi"),
        ("awscrt.checksums", "crc32c"),
    ),
) -> Callable[[Bytes], int]:
    """Return the first CRC-32C that is installed and gives the known answer without a copy.

    Raises:
        FatalError: none works; nothing may be forwarded unverified.
    """
    text, expected = _KNOWN_ANSWER
    tried: list[str] = []
    for module, name in modules:
        try:
            function = cast("Callable[[Bytes], int]", getattr(import_module(module), name))
            # A writable view, as receive buffers are: some builds only take bytes.
            if function(memoryview(bytearray(text))[:]) == expected:
                return function
            tried.append(f"{module} gives a wrong answer")
        except (ImportError, AttributeError, TypeError) as error:
            tried.append(f"{module}: {error}")
    raise FatalError(
        f"no working CRC-32C: {', '.join(tried)}", remedy="install fastcrc or awscrt for this CPU"
    )


crc32c: Final[Callable[[Bytes], int]] = choose_crc() if native is None else native.crc32c


@final
class RecordBatch:
    """One verified v2 batch, ready to be sent.

    ``data`` is writable and exactly one batch; it is rewritten in place when it is sent.
    ``base_offset`` is the first source offset it carries, ``last_offset`` the last one it covers
    (the next position is one more). ``runs`` are consecutive stretches of (first source offset,
    count). ``lease`` holds one reference of the receive buffer, to be released once by the owner.
    """

    # kernel.c fills these itself, without __init__, as long as they are these nine.
    __slots__ = (
        "attributes",
        "base_offset",
        "count",
        "data",
        "last_offset",
        "leader_epoch",
        "lease",
        "max_timestamp",
        "runs",
    )

    def __init__(  # noqa: PLR0913 - one parameter per slot; made once per batch on the hot path
        self,
        data: memoryview | bytearray,
        base_offset: int,
        last_offset: int,
        count: int,
        max_timestamp: int,
        leader_epoch: int,
        attributes: int,
        runs: tuple[tuple[int, int], ...],
        lease: BufferLease | None,
    ) -> None:
        self.data = data
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.count = count
        self.max_timestamp = max_timestamp
        self.leader_epoch = leader_epoch
        self.attributes = attributes
        self.runs = runs
        self.lease = lease

    @property
    def size(self) -> int:
        """Bytes of the whole batch, as ``max.message.bytes`` counts them."""
        return len(self.data)

    @property
    def codec(self) -> Codec:
        """Compression of the records."""
        return Codec(self.attributes & CODEC_MASK)

    def detach(self) -> None:
        """Copy the bytes out of a receive buffer that is much larger, and give its lease back."""
        lease = self.lease
        # Otherwise the copy would take as much as it frees.
        if lease is not None and lease.held_bytes > 2 * len(self.data):
            self.data, self.lease = bytearray(self.data), lease.copied(len(self.data))
            lease.release()

    def __repr__(self) -> str:
        return (
            f"RecordBatch(offsets={self.base_offset}..{self.last_offset}, count={self.count}, "
            f"size={self.size})"
        )


def crc_matches(view: Bytes) -> bool:
    """Whether the bytes of exactly one v2 batch match their CRC."""
    stored: int = CRC.unpack_from(view, CRC_OFFSET)[0]
    return crc32c(memoryview(view)[ATTRIBUTES_OFFSET:]) == stored


def build_batch(
    payload: Bytes,
    *,
    base_offset: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
) -> bytearray:
    """Put a header before ``payload``: no producer, dense offset deltas, right CRC."""
    size = HEADER_BYTES + len(payload)
    data = bytearray(size)
    data[HEADER_BYTES:] = payload
    HEADER.pack_into(
        data,
        0,
        base_offset,
        size - 12,
        -1,
        2,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        count,
    )
    CRC.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return data
