"""Digests of sequences of records: order counts, offsets and batch boundaries do not, and parts
join in order.

Flow: records -> ``record_hash`` -> ``SequenceDigest.add_all``; parts that were read apart -> ``+``.
A digest of n hashes is the polynomial ``sum h_i * BASE^(n-1-i)`` modulo a prime of 127 bits, with
n: equal sequences have equal digests, and two that differ have equal ones with a chance of about n
/ 2^127.

Invariants, tests of the same names: 1 joining is associative, and the empty digest is neutral; 2
however a sequence is cut, its digest is the same; 3 a changed, missing, added or moved record
changes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Self, final

_PRIME: Final = 2**127 - 1
_BASE: Final = 0x3C6EF372FE94F82BA54FF53A5F1D36F1 % _PRIME


def record_hash(timestamp: int, body: bytes) -> int:
    """Return the hash of one record; ``body`` are the bytes of its key, value and headers as a v2
    batch has them."""
    return int.from_bytes(
        blake2b(body, digest_size=16, salt=timestamp.to_bytes(8, "big", signed=True)).digest()
    )


def part_hash(part: bytes | None) -> int | None:
    """Return the hash of a key, a value or headers; None for null."""
    return None if part is None else record_hash(0, part)


@final
@dataclass(frozen=True, slots=True)
class SequenceDigest:
    """The digest of ``count`` records in order; immutable."""

    value: int = 0
    count: int = 0

    def add_all(self, hashes: Iterable[int]) -> "SequenceDigest":
        """Return the digest with these after it."""
        value, count = self.value, self.count
        for hashed in hashes:
            value = (value * _BASE + hashed) % _PRIME
            count += 1
        return SequenceDigest(value, count)

    def __add__(self, later: "SequenceDigest") -> "SequenceDigest":
        """Return the digest of this sequence with ``later`` after it."""
        shifted = self.value * pow(_BASE, later.count, _PRIME)
        return SequenceDigest((shifted + later.value) % _PRIME, self.count + later.count)

    def __str__(self) -> str:
        return f"{self.count}:{self.value:032x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote.

        Raises:
            ValueError: it did not.
        """
        count, _, value = text.partition(":")
        return cls(int(value, 16), int(count))
