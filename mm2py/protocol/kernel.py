"""Loads the optional C kernel: the loops of this package that run once per batch or per record.

Flow: ``mm2py/protocol/kernel.c`` -> built at install where a C compiler is -> ``native`` or None.
Each of its functions has a ``plain_`` twin in Python with the same results: ``plain_sign`` and
``plain_scan`` in ``batch_stage``, those of columns in ``columns``, the others in ``record_bytes``.
"""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from importlib import import_module
from typing import Final, Protocol, TypeAlias, TypeVar, cast

SWITCH: Final = "MM2PY_NATIVE"
"""Environment variable; 0 disables the kernel."""

_INTERFACE: Final = 6  # kernel.c has the same number; a library of another build is not used
_KNOWN_ANSWER: Final = (b"123456789" * 100, 0x0482DB52)

Bytes: TypeAlias = bytes | bytearray | memoryview
Runs: TypeAlias = tuple[tuple[int, int], ...]
Made = TypeVar("Made")

Part: TypeAlias = tuple[Bytes, int, int, int, bool, int, Runs]
"""The records of a batch to be read: decompressed payload, their number, base offset, base
timestamp (the one of all where it is log append time, as the next member says), the first offset
that counts, and runs of a batch that was converted from an old format."""
Filled: TypeAlias = tuple[bytearray, bytearray, bytearray]
"""Buffers of a column in Arrow's layout: where each value begins and ends (int32), a bit for each
that is there, the bytes of all."""
Columns: TypeAlias = tuple[
    bytearray, bytearray, bytearray, Filled, Filled, bytearray, Filled, Filled
]
"""Offsets and timestamps (int64), 1 for log append time (int32), keys, values; where the headers of
each record begin and end (int32), their keys and values."""
Given: TypeAlias = tuple[Bytes | None, Bytes, Bytes | None, int, int]
"""A column in the same layout, bits first: bits or None where all are there, ends, bytes (None: it
is a list), its first row and their number."""


class Joinable(Protocol):
    """The fields of a batch that ``join`` reads."""

    @property
    def data(self) -> memoryview | bytearray:
        """One whole v2 batch."""
        ...

    @property
    def runs(self) -> Runs:
        """Ranges of (first source offset, count)."""
        ...


class Kernel(Protocol):
    """The functions of the C module; damaged input raises ValueError, ProtocolError in the
    twins."""

    @property
    def INTERFACE(self) -> int:  # noqa: N802 - a constant of the C module
        """Version of the functions below."""
        ...

    def crc32c(self, data: Bytes, /) -> int:
        """Return the CRC-32C of contiguous bytes."""
        ...

    def sign(
        self,
        data: memoryview | bytearray,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        transactional: bool = False,
    ) -> None:
        """See ``batch_stage.plain_sign``."""
        ...

    def borders(self, payload: Bytes, count: int, /) -> list[int]:
        """See ``record_bytes.plain_borders``."""
        ...

    def renumber(
        self,
        payload: Bytes,
        count: int,
        base_offset: int,
        last_delta: int,
        wanted_offset: int,
        retime: bool,  # noqa: FBT001 - positional for speed
        reserve: int,
        /,
    ) -> tuple[bytearray, Runs, int]:
        """See ``record_bytes.plain_renumber``."""
        ...

    def same(
        self,
        one: Bytes,
        position: int,
        stamp: int,
        other: Bytes,
        other_position: int,
        other_stamp: int,
        count: int,
        untimed: int,
        /,
    ) -> tuple[int, int, int]:
        """See ``record_bytes.plain_same``."""
        ...

    def join(
        self, batches: Sequence[Joinable], open_payload: Callable[[Bytes], Bytes], reserve: int, /
    ) -> tuple[bytearray, Runs, int, int, int, int]:
        """See ``record_bytes.plain_join``."""
        ...

    def scan(
        self,
        record_set: memoryview,
        position: int,
        wanted_offset: int,
        floor: int,
        make: Callable[..., Made],
        lease: object,
        out: list[Made],
        passing: Set[int] | None = None,
        /,
    ) -> tuple[int, int, int]:
        """See ``batch_stage.plain_scan``."""
        ...

    def columns(self, parts: Sequence[Part], end: int, /) -> Columns:
        """See ``columns.plain_columns``."""
        ...

    def pack(  # noqa: PLR0913 - see there
        self,
        order: Bytes,
        start: int,
        limit: int,
        reserve: int,
        keys: Given | None,
        values: Given,
        headers: Given | None,
        names: Given | None,
        texts: Given | None,
        /,
    ) -> tuple[bytearray, int]:
        """See ``columns.plain_pack``."""
        ...

    def spread(self, keys: Given, partitions: int, /) -> bytearray:
        """See ``columns.plain_spread``."""
        ...


def load_kernel(
    environ: Mapping[str, str] = os.environ, name: str = "mm2py.protocol._kernel"
) -> Kernel | None:
    """Return the C module; None if it is disabled, was not built, or fails its check."""
    if environ.get(SWITCH) == "0":
        return None
    try:
        kernel = cast("Kernel", import_module(name))
    except ImportError:
        return None
    text, expected = _KNOWN_ANSWER
    # An old build may lie beside new Python files, and one for another CPU may compute nonsense.
    usable = getattr(kernel, "INTERFACE", 0) == _INTERFACE and kernel.crc32c(text) == expected
    return kernel if usable else None


native: Final = load_kernel()
