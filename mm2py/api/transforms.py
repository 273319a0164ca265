"""Contracts of transforms and predicates (KIP-66, KIP-585; ``Transformation``, ``Predicate``).

Found by entry point (``mm2py.transforms``, ``mm2py.predicates``): a class with ``java_class``,
called with its own properties, without their prefix.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from mm2py.api.records import SinkRecord
from mm2py.config.definitions import ConfigModel


class Transformation(Protocol):
    """Changes records one by one, in the order of each partition; never called on two threads at a
    time.

    A sink's records have the topic that they were read from, a source's the one that they would be
    written to.
    """

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        """Return the record or another one (``record._replace``), None to drop it.

        ``RetriableError`` is tried again as ``errors.retry.*`` say; for any other error
        ``errors.tolerance`` decides.
        """
        ...

    def close(self) -> None:
        """End it; nothing is applied any more."""
        ...


class Predicate(Protocol):
    """Decides which records a transform is applied to."""

    def test(self, record: SinkRecord) -> bool:
        """Return whether the record is meant; errors as of ``Transformation.apply``."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class TransformationFactory(Protocol):
    """The factory that an entry point of group ``mm2py.transforms`` names.

    ``config_model``, ``plugin_version`` and ``keeps_partition`` may be left out; the runtime reads
    them with ``getattr``. ``keeps_partition``: ``apply`` changes neither the topic nor the
    partition of a record, and makes the same of the same record each time. Then a task that was
    killed doubles nothing; left out, it may.
    """

    java_class: ClassVar[str]
    config_model: ClassVar[type[ConfigModel]]
    keeps_partition: ClassVar[bool] = False

    def __call__(self, config: Mapping[str, str]) -> Transformation:
        """Build it; ``ConfigError`` when a property is wrong."""
        ...


class PredicateFactory(Protocol):
    """The factory that an entry point of group ``mm2py.predicates`` names."""

    java_class: ClassVar[str]
    config_model: ClassVar[type[ConfigModel]]

    def __call__(self, config: Mapping[str, str]) -> Predicate:
        """Build it; ``ConfigError`` when a property is wrong."""
        ...
