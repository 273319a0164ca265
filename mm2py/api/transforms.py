"""What transforms and predicates implement (Java's ``Transformation`` and ``Predicate``; KIP-66, KIP-585).

Found by entry point (``mm2py.transforms``, ``mm2py.predicates``): a class with ``java_class``, called with its own properties,
without their prefix.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from mm2py.api.records import SinkRecord
from mm2py.config.definitions import ConfigModel

__all__ = ["Predicate", "PredicateFactory", "Transformation", "TransformationFactory"]


class Transformation(Protocol):
    """Changes records one by one, in the order of each partition; called on the task's thread."""

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        """Return the record or another one (``record._replace``), None to drop it.

        ``RetriableError`` is tried again as ``errors.retry.*`` say; for any other error ``errors.tolerance`` decides.
        """
        ...

    def close(self) -> None:
        """End it; nothing is applied any more."""
        ...


class Predicate(Protocol):
    """Tells which records a transform is applied to."""

    def test(self, record: SinkRecord) -> bool:
        """Return whether the record is meant; errors as of ``Transformation.apply``."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class TransformationFactory(Protocol):
    """What an entry point of group ``mm2py.transforms`` names.

    ``config_model``, ``plugin_version`` may be left out; the runtime reads them with ``getattr``.
    """

    java_class: ClassVar[str]
    config_model: ClassVar[type[ConfigModel]]

    def __call__(self, config: Mapping[str, str]) -> Transformation:
        """Build it; ``ConfigError`` when a property is wrong."""
        ...


class PredicateFactory(Protocol):
    """What an entry point of group ``mm2py.predicates`` names; see ``TransformationFactory``."""

    java_class: ClassVar[str]
    config_model: ClassVar[type[ConfigModel]]

    def __call__(self, config: Mapping[str, str]) -> Predicate:
        """Build it; ``ConfigError`` when a property is wrong."""
        ...
