"""The schema library (kafka-python) behind one module: the only importer of ``kafka``.

Flow: schema class + converter -> ``schema_call`` -> ``Call``.
The library drops fields that a version does not have and encodes versions below a schema's minimum;
so builders raise the lowest version where a field needs it, and ``Call`` refuses versions outside.
"""

import struct
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import groupby
from types import ModuleType
from typing import Final, TypeVar, final
from uuid import UUID

from mm2py.errors import Mm2pyError, ProtocolError, UnsendableError
from mm2py.protocol.call import Call
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.protocol.wire import sendable, skip_tags


@final
class QuietPackage(ModuleType):
    """The package ``kafka`` without its ``__init__``, which loads a whole client that is not used
    here.

    Saves more than half of the import time and about 7 MB per process. Accessing a client name
    loads the real package.
    """

    def __getattr__(self, name: str) -> object:
        loader = None if self.__spec__ is None else self.__spec__.loader
        # ``__version__``: the real package was loaded here and has no such name.
        if loader is None or name.startswith("__") or "__version__" in self.__dict__:
            raise AttributeError(f"module 'kafka' has no attribute {name!r}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loader.exec_module(self)
        member: object = getattr(self, name)
        return member


def prepare_package() -> None:
    """Put the quiet package in place, unless the real one is loaded already."""
    spec = find_spec("kafka")
    # Another user of the process has imported it: its modules must not exist twice.
    if spec is None or "kafka" in sys.modules:
        return
    package = QuietPackage("kafka")
    package.__spec__, package.__file__ = spec, spec.origin
    # Enough for ``import kafka.protocol...``: submodules are found by the path alone.
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["kafka"] = package


prepare_package()
with warnings.catch_warnings():
    # The library reads its schemas with a function that Python 3.11 and 3.12 deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin as admin_schema
    from kafka.protocol import consumer as consumer_schema
    from kafka.protocol import metadata as metadata_schema
    from kafka.protocol import producer as producer_schema
    from kafka.protocol.api_message import ApiMessage

__all__ = [
    "QuietPackage",
    "admin_schema",
    "by_topic",
    "consumer_schema",
    "metadata_schema",
    "optional",
    "prepare_package",
    "producer_schema",
    "required",
    "schema_call",
    "topic_id_bytes",
    "unsendable",
]

_API_VERSIONS_KEY = 18
_REMEDIES: Final = {
    "group": "Java clients before 2.2 commit under the empty name without group.id: set it, or "
    "delete the group"
}

# As text: the metaclass of the class has a length, and TypeVar asks for its truth.
M = TypeVar("M", bound="ApiMessage")
R = TypeVar("R")
T = TypeVar("T")


def schema_call(
    request: Callable[[], ApiMessage],
    answer: type[M],
    convert: Callable[[M], R],
    versions: tuple[int, int],
) -> Call[R]:
    """Return a call; ``request`` returns a fresh schema object per attempt, because encoding
    modifies it."""
    name = answer.__name__.removesuffix("Response")

    def encode(version: int, correlation_id: int, client_id: str) -> bytes:
        message = request()
        # On the fresh object: set on the class it would hold for all requests.
        message.API_VERSION = version
        message.with_header(correlation_id, client_id)
        return bytes(message.encode(header=True, framed=True))

    def decode(version: int, body: memoryview) -> R:
        try:
            return convert(answer.decode(_after_header(answer, version, body), version=version))
        # All that the library raises on bytes of another layout.
        except (struct.error, ValueError, IndexError, TypeError, AssertionError) as error:
            raise ProtocolError(
                f"the answer to {name} v{version} cannot be read: {error}",
                remedy="check that the port is a Kafka listener; report the broker's version",
            ) from error

    return Call(answer.API_KEY, name, versions[0], versions[1], encode, decode)


def _after_header(answer: type[ApiMessage], version: int, body: memoryview) -> memoryview:
    """Skip the tagged fields of a flexible response header (KIP-482); ApiVersions has none."""
    if answer.API_KEY == _API_VERSIONS_KEY or not answer.flexible_version_q(version):
        return body
    return body[skip_tags(body, 0) :]


def required(value: str | None, what: str) -> str:
    """Return a name that must not be empty; the library would encode None silently.

    Raises:
        UnsendableError: it is empty, too long, or no text.
    """
    if not value:
        raise UnsendableError(
            f"a request needs a {what}, not {value!r}", remedy=_REMEDIES.get(what, "")
        )
    sendable(value, what)
    return value


def unsendable(names: Iterable[str], what: str) -> dict[str, Mm2pyError]:
    """Return the names that no request can carry, with the reason; callers leave these out."""
    reasons: dict[str, Mm2pyError] = {}
    for name in names:
        try:
            required(name, what)
        except UnsendableError as error:
            reasons[name] = error
    return reasons


def optional(value: str | None, what: str) -> None:
    """Check a value that may be absent; the library would send one that brokers close the
    connection on.

    Raises:
        UnsendableError: it is too long, or no text.
    """
    if value is not None:
        sendable(value, what)


def by_topic(items: Iterable[tuple[str, T]]) -> list[tuple[str, list[T]]]:
    """Group (topic, item) pairs by topic, in the order of topic names."""
    ordered = sorted(items, key=lambda pair: pair[0])
    return [
        (topic, [item for _, item in pairs])
        for topic, pairs in groupby(ordered, key=lambda pair: pair[0])
    ]


def topic_id_bytes(topic_id: UUID | None) -> bytes:
    """Return the 16 bytes of a topic id; the library reads the zero id as None."""
    return NO_TOPIC_ID if topic_id is None else topic_id.bytes
