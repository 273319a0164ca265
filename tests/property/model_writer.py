"""What the privileged writers of the models share: the newest claim of an id fences every earlier one."""

from abc import abstractmethod
from typing import NoReturn

from mm2py.errors import RetriableError


class Epochs:
    """The newest claim of each transactional id."""

    def __init__(self) -> None:
        self.newest = dict[str, int]()


class ModelWriter:
    """The claim of a ``PrivilegedWriter``; a model gives its steps and its ``write``."""

    def __init__(self, epochs: Epochs, writer_id: str = "") -> None:
        self._epochs, self._id, self._epoch = epochs, writer_id, -1

    @abstractmethod
    async def step(self) -> None:
        """A moment between two questions, at which anything may happen."""

    @property
    def claimed(self) -> bool:
        return self._epoch >= 0

    @property
    def is_fenced(self) -> bool:
        return self._epoch != self._epochs.newest.get(self._id, 0)

    async def claim(self) -> None:
        await self.step()
        self._epoch = self._epochs.newest[self._id] = self._epochs.newest.get(self._id, 0) + 1
        await self.step()

    async def close(self) -> None:
        self._epoch = -1

    def end(self, said: str) -> NoReturn:
        """End the claim: the write is refused, or its outcome is not known."""
        self._epoch = -1
        raise RetriableError(said)
