"""The transforms of a connector: found by name, described for validation, built, and applied in their order (kcr 5.8).

Flow: connector config -> ``steps_of`` -> ``TransformChain.apply``, each step through ``errors.*``. Classes are Apache's by Java's
names, with or without the package, and those of entry points of the groups ``mm2py.transforms`` and ``mm2py.predicates``.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Final, Literal, Protocol, cast, final

from mm2py.api.records import SinkRecord, quick_record
from mm2py.api.transforms import Predicate, Transformation
from mm2py.config.client_properties import with_prefix
from mm2py.config.definitions import ConfigModel
from mm2py.config.java_values import parse_boolean_leniently, parse_list
from mm2py.errors import ConfigError
from mm2py.observability.logging import cause_text
from mm2py.runtime.plugins.converters.registry import HEADER_NAMES
from mm2py.runtime.plugins.transforms.built_in import PREDICATES, TRANSFORMS, needs_structures

log = logging.getLogger(__name__)

Kind = Literal["transforms", "predicates"]
KINDS: Final[tuple[Kind, ...]] = ("transforms", "predicates")
_Class = Callable[[Mapping[str, str]], Transformation | Predicate]


class Attempt(Protocol):
    """Runs an operation on a record as ``errors.*`` say; None where the record is left out."""

    def __call__(
        self,
        class_name: str,
        record: SinkRecord,
        call: Callable[[SinkRecord], SinkRecord | None],
    ) -> SinkRecord | None:
        """Return what the operation makes of the record."""
        ...


_BUILT_IN: Final[Mapping[Kind, Iterable[_Class]]] = {
    "transforms": TRANSFORMS,
    "predicates": PREDICATES,
}


@cache
def installed(kind: Kind) -> Sequence[_Class]:
    """Return the classes of a kind, sorted by Java's names; one that cannot be imported is left out."""
    found = list(_BUILT_IN[kind])
    for entry in entry_points(group=f"mm2py.{kind}"):
        try:
            found.append(entry.load())
        except Exception as error:  # noqa: BLE001 - the package's own code runs here, and hurts no other
            log.warning("%s left out name=%s cause=%s", kind, entry.name, cause_text(error))
    return sorted(found, key=java_class)


def java_class(it: _Class) -> str:
    """Return the name of a class in configs."""
    return str(getattr(it, "java_class", it))


def find(kind: Kind, name: str) -> _Class:
    """Return the class of that name; ``ConfigError``, in Java's words for one that Java has not either, where there is none."""
    wanted = name.strip()
    for it in installed(kind):
        full = java_class(it)
        if wanted in (full, full.rpartition(".")[2]):
            return it
    if kind == "transforms" and needs_structures(wanted):
        raise ConfigError(
            f"Class {wanted} changes fields of structures, and the records of a mirror are bytes",
            remedy="remove it, or write a transform that reads your format (docs/reference/extend.md)",
        )
    raise ConfigError(f"Class {wanted} could not be found.")


def seen_headers(headers: Iterable[tuple[bytes | str, object]]) -> tuple[tuple[str, object], ...]:
    """Return the headers of a source's record as transforms see them: names need not be UTF-8, any bytes survive the way through ``str``."""
    return tuple(
        (name.decode(errors=HEADER_NAMES) if isinstance(name, bytes) else name, value)
        for name, value in headers
    )


def model_of(it: _Class) -> type[ConfigModel] | None:
    """Return the model of a class's keys, None where it tells of none."""
    model: object = getattr(it, "config_model", None)
    return model if isinstance(model, type) and issubclass(model, ConfigModel) else None


@dataclass(frozen=True, slots=True)
class Step:
    """One transform with its predicate; ``negate``: it is applied where the predicate does not hold."""

    name: str
    transform: Transformation
    predicate: Predicate | None
    negate: bool

    @property
    def routes(self) -> bool:
        """Whether it may send a record to another topic or partition."""
        return not getattr(self.transform, "keeps_partition", False)

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        """Return what becomes of a record."""
        # A predicate of a user's own may answer anything that is true or false.
        if self.predicate is not None and bool(self.predicate.test(record)) is self.negate:
            return record
        return self.transform.apply(record)


def steps_of(config: Mapping[str, str]) -> tuple[Step, ...]:
    """Build the transforms of a connector in their order.

    Raises:
        ConfigError: a class, a key or a predicate's name is wrong.
    """
    predicates = {
        alias: cast("Predicate", _built("predicates", alias, config)[1])
        for alias in parse_list(config.get("predicates", ""))
    }
    steps: list[Step] = []
    for alias in parse_list(config.get("transforms", "")):
        prefix = f"transforms.{alias}."
        wanted = config.get(f"{prefix}predicate", "").strip()
        if wanted and wanted not in predicates:
            raise ConfigError(
                f"{prefix}predicate={wanted}: no predicate has this alias",
                remedy=f"use one of {', '.join(predicates) or '(none defined)'}",
            )
        name, transform = _built("transforms", alias, config)
        negate = parse_boolean_leniently(config.get(f"{prefix}negate"), absent=False)
        steps.append(Step(name, cast("Transformation", transform), predicates.get(wanted), negate))
    return tuple(steps)


def _built(
    kind: Kind, alias: str, config: Mapping[str, str]
) -> tuple[str, Transformation | Predicate]:
    """Return the name of a class, and what it makes of its own keys."""
    own = with_prefix(config, f"{kind}.{alias}.")
    where = f"{kind}.{alias}.type={own.get('type', '')}: "
    try:
        wanted = find(kind, own.get("type", ""))
        where = f"{kind}.{alias}."
        return java_class(wanted), wanted(own)
    except ConfigError as error:
        raise ConfigError(f"{where}{error.message}", remedy=error.remedy) from error


@final
class TransformChain:
    """Applies steps one after the other; a record that one of them drops passes no further."""

    def __init__(self, steps: Sequence[Step], attempt: Attempt) -> None:
        self._steps, self._attempt = steps, attempt
        self.routes: bool = any(step.routes for step in steps)
        """Whether a record may leave it for another topic or partition."""

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        """Return what becomes of a record, None where it is dropped or left out."""
        current, read = record, record.raw or record
        for step in self._steps:
            made = self._attempt(step.name, current, step.apply)
            if made is None:
                return None
            if made is not record and made.raw is not read:
                made = quick_record((*made[:-1], read))
            current = made
        return current

    def close(self) -> None:
        """End transforms and predicates."""
        for step in self._steps:
            step.transform.close()
            if step.predicate is not None:
                step.predicate.close()
