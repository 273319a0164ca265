"""Findings about a properties file, with their lines.

Findings are made by the loader and by lint; an ``ERROR`` refuses the start, a ``WARNING`` runs
differently from what the line seems to say, an ``INFO`` is good to know.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self

from mm2py.errors import ConfigError


class Severity(IntEnum):
    """How bad it is."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class Place(Protocol):
    """An entry of the file."""

    @property
    def line(self) -> int: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One remark; ``line`` is 0 where it is about the file as a whole."""

    severity: Severity
    line: int
    key: str
    message: str
    remedy: str = ""

    @classmethod
    def error(cls, place: Place, message: str, remedy: str = "") -> Self:
        return cls(Severity.ERROR, place.line, place.key, message, remedy)

    @classmethod
    def warning(cls, place: Place, message: str, remedy: str = "") -> Self:
        return cls(Severity.WARNING, place.line, place.key, message, remedy)

    @classmethod
    def info(cls, place: Place, message: str, remedy: str = "") -> Self:
        return cls(Severity.INFO, place.line, place.key, message, remedy)

    def describe(self, path: str) -> str:
        """Return the remark as one line, without its severity."""
        text = self._placed(path)
        return f"{text}; {self.remedy}" if self.remedy else text

    def as_error(self, path: str) -> ConfigError:
        """Return the error that refuses the start because of this remark."""
        return ConfigError(self._placed(path), remedy=self.remedy)

    def _placed(self, path: str) -> str:
        where = f"{path}:{self.line}" if self.line else path
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


def first_error(findings: list[LintFinding]) -> LintFinding | None:
    """Return the first remark that refuses the start, in file order."""
    return next((f for f in in_order(findings) if f.severity is Severity.ERROR), None)


def in_order(findings: list[LintFinding]) -> list[LintFinding]:
    """Return the remarks in file order, each once."""
    return sorted(dict.fromkeys(findings), key=lambda f: (f.line, -f.severity))
