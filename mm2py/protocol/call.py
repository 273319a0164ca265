"""One request of the protocol together with how to read its answer.

Flow: ``encode`` -> connection -> ``decode`` -> one value.
The client picks the version between ``min_version``, ``max_version`` and the broker's range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, final

__all__ = ["Call"]

R_co = TypeVar("R_co", covariant=True)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[R_co]):
    """A request, ready to be encoded for any version in its range; may be sent more than once."""

    api_key: int
    name: str
    min_version: int
    max_version: int
    encode_with: Callable[[int, int, str], bytes]
    decode_with: Callable[[int, memoryview], R_co]

    def encode(self, version: int, correlation_id: int, client_id: str) -> bytes:
        """Return the framed request with its header."""
        self._check(version)
        return self.encode_with(version, correlation_id, client_id)

    def decode(self, version: int, body: memoryview) -> R_co:
        """Read an answer, ``body`` being the bytes after the correlation id.

        Raises:
            ProtocolError: the bytes are not an answer of this version.
        """
        return self.decode_with(version, body)

    def _check(self, version: int) -> None:
        if not self.min_version <= version <= self.max_version:
            raise ValueError(
                f"{self.name} v{version} is outside v{self.min_version}..v{self.max_version}"
            )
