"""Keys of a compacted partition whose newest record one side lacks: by compaction or by a loss, as
the log of that side shows.

Flow: records that one side lacks (``put``) and keys of those that both have (``passed``), in the
order of the logs -> dicts -> each time they have ``OPEN_KEYS``, files by the hash of the key (a
Grace hash join) -> ``lost`` reads the log once and judges file by file, as the dicts are judged.

A key's chance to share its 128-bit hash with one of n others is n / 2^128, as of ``digests``.
"""

import asyncio
import os
import struct
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, NamedTuple, final

from mm2py.errors import FatalError

OPEN_KEYS: Final = 250_000
"""Keys in memory, about 60 MB."""

_FILES: Final = 128
"""A file is judged in memory: of so many keys one, with 240 bytes for each."""

_BUFFER: Final = 1 << 17
"""Bytes of each file that are in memory before it is on the disk."""

_BITS: Final = 1 << 28
"""Of the filter that keeps keys off the disk which were never open; 32 MB. With 20 million open
keys it lets 7 % of the others pass."""

_READ: Final = 4_096
_ENTRY: Final = struct.Struct("<B16sqq")
_VALUE, _TOMBSTONE, _PASSED, _LOGGED = range(4)

_END: Final = 2**63 - 1

Keys = Callable[[int, int], AsyncGenerator[tuple[int, int]]]
"""Offset and hashed key of each record with a key that a log has between two offsets (the second
exclusive) when it is read."""


def local_folders() -> list[str]:
    """Return Spark's local folders in one of its tasks, else the temporary one."""
    # ``BasePythonRunner`` sets it to those of the block manager; pyspark spills there, too.
    return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")


@final
class SpillError(FatalError):
    """The local disk does not take the open keys of a partition."""


class _Gone(NamedTuple):
    """The newest record of a key that only one side has; ``position`` is where the other side would
    have it."""

    offset: int
    position: int


@final
class _Known:
    """What is known of some keys."""

    def __init__(self) -> None:
        self.values: dict[int, _Gone] = {}
        self.tombstones: dict[int, _Gone] = {}
        self._lost: list[int] = []

    def __len__(self) -> int:
        return len(self.values) + len(self.tombstones)

    def add(self, kind: int, key: int, offset: int, position: int) -> None:
        """Take what comes next in the logs, those of ``_LOGGED`` last."""
        if kind == _VALUE:
            self.values[key] = _Gone(offset, position)
        elif kind == _TOMBSTONE:
            self.values.pop(key, None)
            self.tombstones[key] = _Gone(offset, position)
        elif kind == _PASSED:
            self.values.pop(key, None)
        elif (value := self.values.get(key)) is not None and offset >= value.position:
            del self.values[key]
        elif (deletes := self.tombstones.get(key)) is not None and offset < deletes.position:
            # A cleaner removes the older records of a key before the tombstone.
            del self.tombstones[key]
            self._lost.append(deletes.offset)

    def lost(self) -> list[int]:
        """Return the offsets of records that neither both sides nor the log explain."""
        return self._lost + [it.offset for it in self.values.values()]


@final
class _Spill:
    """What is known of any number of keys, on Spark's local disk.

    The files have no names, so the system frees them however the process ends. They have 33 bytes
    for each record that was put or, where its key was open before, passed or is in the log.
    """

    def __init__(self) -> None:
        self._places = local_folders()
        self._files = [
            tempfile.SpooledTemporaryFile(  # noqa: SIM115 - ``close`` closes them
                _BUFFER, dir=self._places[it % len(self._places)]
            )
            for it in range(_FILES)
        ]
        self._filter = bytearray(_BITS // 8)

    def add(self, kind: int, key: int, offset: int, position: int) -> None:
        """Keep what comes next, unless the key was never open; raises ``SpillError``."""
        slot = key % _BITS
        if kind <= _TOMBSTONE:
            self._filter[slot >> 3] |= 1 << (slot & 7)
        elif not self._filter[slot >> 3] >> (slot & 7) & 1:
            return
        try:
            self._files[slot % _FILES].write(
                _ENTRY.pack(kind, key.to_bytes(16, "big"), offset, position)
            )
        except OSError as error:
            raise self._refused(error) from error

    def known(self) -> Iterator[_Known]:
        """Yield what is known of the keys of each file; raises ``SpillError``."""
        for file in self._files:
            known = _Known()
            try:
                file.seek(0)
                for entries in iter(partial(file.read, _READ * _ENTRY.size), b""):
                    for kind, key, offset, position in _ENTRY.iter_unpack(entries):
                        known.add(kind, int.from_bytes(key, "big"), offset, position)
                file.close()
            except OSError as error:
                raise self._refused(error) from error
            yield known

    def _refused(self, error: OSError) -> SpillError:
        return SpillError(
            f"more than {OPEN_KEYS:,} keys of a compacted partition are open, and {self._places} "
            f"does not take them: {error.strerror}",
            remedy="free space there or set spark.local.dir, and verify the topic again",
        )

    def close(self) -> None:
        for file in self._files:
            with suppress(OSError):  # of what a full disk has not taken
                file.close()


@final
class OpenKeys:
    """Keys whose newest record the side with ``log`` lacks; None: it does not compact."""

    def __init__(self, log: Keys | None) -> None:
        self._log = log
        self._known = _Known()
        self._spill: _Spill | None = None

    @property
    def await_records(self) -> bool:
        """Whether a later record that both have may explain one."""
        return self._spill is not None or bool(self._known.values)

    def put(self, key: int, offset: int, position: int, *, is_tombstone: bool) -> None:
        """Take a record that the side lacks; ``position`` is the offset of its next record.

        Raises:
            SpillError: the disk does not take them.
        """
        self._known.add(_TOMBSTONE if is_tombstone else _VALUE, key, offset, position)
        if len(self._known) >= OPEN_KEYS:
            self._spill = self._spill or _Spill()
            self._empty_into(self._spill)

    def passed(self, key: int) -> None:
        """Take a record that both sides have; raises as ``put``."""
        self._known.add(_PASSED, key, 0, 0)
        if self._spill is not None:
            self._spill.add(_PASSED, key, 0, 0)

    async def lost(self, most: int) -> list[int]:
        """Read the log, once, and return the offsets of the first ``most`` records that nothing
        explains.

        Raises:
            SpillError: the disk does not take them.
            Mm2pyError: the log cannot be read.
        """
        known, spill = self._known, self._spill
        if self._log is None or not (known or spill):
            return []
        first, end = 0, _END
        if spill is not None:
            self._empty_into(spill)
        elif not known.tombstones:
            first = min(it.position for it in known.values.values())
        elif not known.values:
            end = max(it.position for it in known.tombstones.values())
        add = known.add if spill is None else spill.add
        async with aclosing(self._log(first, end)) as records:
            async for offset, key in records:
                add(_LOGGED, key, offset, 0)
                if spill is None and not known:
                    break
        lost: list[int] = []
        for part in [known] if spill is None else spill.known():
            lost = sorted(lost + part.lost())[:most]
            await asyncio.sleep(0)  # the connections of the task live on
        return lost

    def _empty_into(self, spill: _Spill) -> None:
        # A value of a key with a tombstone came after it.
        for kind, keys in ((_TOMBSTONE, self._known.tombstones), (_VALUE, self._known.values)):
            for key, gone in keys.items():
                spill.add(kind, key, *gone)
        self._known = _Known()

    def close(self) -> None:
        """Free the disk."""
        if self._spill is not None:
            self._spill.close()
