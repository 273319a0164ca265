"""Apache's transforms and predicates that make sense on bytes, by Java's class names and keys.

Those that look into fields (``InsertField``, ``Cast``, ...) need structures, which a mirror does
not have; they are known by name.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, ClassVar, Final, Literal, cast, final

from mm2py.api.records import SinkRecord, quick_record
from mm2py.api.transforms import Predicate, Transformation
from mm2py.config.class_names import KAFKA_RELEASE
from mm2py.config.client_properties import with_prefix
from mm2py.config.definitions import ConfigModel, Option, parse_config
from mm2py.config.java_regex import JavaPattern
from mm2py.config.java_values import (
    JavaType,
    JavaValue,
    invalid,
    parse_boolean_leniently,
    parse_list,
)
from mm2py.errors import ConfigError
from mm2py.observability.logging import cause_text
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.converters.registry import HEADER_NAMES

log = logging.getLogger(__name__)


# ---- Kafka Connect's transforms and predicates


_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_STRING, _LIST = JavaType.STRING, JavaType.LIST
_CYCLE_YEARS: Final = 400
_CYCLE_S: Final = 146_097 * 86_400
"""So many days have 400 years."""
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
"""In Java the language is the JVM's."""

_OF_STRUCTURES: Final = frozenset(
    {
        "Cast", "ExtractField", "Flatten", "HeaderFrom", "HoistField", "InsertField", "MaskField", "ReplaceField",
        "SetSchemaMetadata", "TimestampConverter", "ValueToKey",
    }
)  # fmt: skip


def needs_structures(name: str) -> bool:
    """Whether this is the name of a transform of Apache's that changes fields or schemas."""
    simple = name.removeprefix(_PACKAGE)
    for part in ("$Key", "$Value"):
        simple = simple.removesuffix(part)
    return simple in _OF_STRUCTURES


def _compiles(name: str, value: JavaValue) -> str:
    if value is None:
        return ""  # that it is missing is enough
    try:
        JavaPattern(str(value))
    except ConfigError as error:
        return invalid(name, value, f"Invalid regex: {error.message}")
    return ""


def _text(name: str, value: JavaValue) -> str:
    return "" if value else invalid(name, value, "String must be non-empty")


def _items(name: str, value: JavaValue) -> str:
    if value is None:
        return f"Configuration '{name}' values must not be null."
    if value:
        return ""
    return f"Configuration '{name}' must not be empty. Valid values include: any non-empty value"


def _given(name: str, value: JavaValue) -> str:
    return invalid(name, None, "entry must be non null") if value is None else ""


def _format(name: str, value: JavaValue) -> str:
    try:
        _DateFormat(str(value))
    except ConfigError as error:
        return invalid(name, value, error.message.partition(": ")[2])
    return ""


class RegexRouterConfig(ConfigModel):
    """Keys of RegexRouter."""

    regex: Annotated[str, Option(
        _STRING, "Java pattern that the whole name of the topic must match.", importance="HIGH",
        checks=(_compiles,),
    )]  # fmt: skip
    replacement: Annotated[
        str, Option(_STRING, "What takes the place of the match; $1 is a group.", importance="HIGH")
    ]


class TimestampRouterConfig(ConfigModel):
    """Keys of TimestampRouter."""

    topic_format: Annotated[str, Option(
        _STRING, "The new name, with ${topic} and ${timestamp} replaced.", importance="HIGH",
    )] = "${topic}-${timestamp}"  # fmt: skip
    timestamp_format: Annotated[str, Option(
        _STRING,
        "Java's SimpleDateFormat of the record's timestamp, in UTC: y, M, d, D, u, H, m, s, "
        "S and quoted text; MMM in English.",
        importance="HIGH", checks=(_format,),
    )] = "yyyyMMdd"  # fmt: skip


class InsertHeaderConfig(ConfigModel):
    """Keys of InsertHeader."""

    header: Annotated[str, Option(_STRING, "Name of the header.", importance="HIGH")]
    value_literal: Annotated[
        str, Option(_STRING, "Its value, in UTF-8.", importance="HIGH", checks=(_given,))
    ]


class DropHeadersConfig(ConfigModel):
    """Keys of DropHeaders."""

    headers: Annotated[
        tuple[str, ...],
        Option(_LIST, "Names of the headers to leave out.", importance="HIGH", checks=(_items,)),
    ]


class TopicNameMatchesConfig(ConfigModel):
    """Keys of TopicNameMatches."""

    pattern: Annotated[str, Option(
        _STRING, "Java pattern that the whole name of the topic must match.", importance="MEDIUM",
        checks=(_text, _compiles),
    )]  # fmt: skip


class HasHeaderKeyConfig(ConfigModel):
    """Keys of HasHeaderKey."""

    name: Annotated[
        str, Option(_STRING, "Name of the header.", importance="MEDIUM", checks=(_text,))
    ]


class WithoutKeysConfig(ConfigModel):
    """What has no keys."""


class _NothingOpen:
    """Nothing to close."""

    plugin_version: ClassVar[str] = KAFKA_RELEASE

    def close(self) -> None:
        """Nothing is open."""


@final
class RegexRouter(_NothingOpen, Transformation):
    """Renames topics that match."""

    java_class: ClassVar[str] = _PACKAGE + "RegexRouter"
    config_model: ClassVar[type[ConfigModel]] = RegexRouterConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        parsed = parse_config(RegexRouterConfig, config)
        self._pattern, self._replacement = JavaPattern(parsed.regex), parsed.replacement
        self._known: dict[str, str] = {}

    def apply(self, record: SinkRecord) -> SinkRecord:
        # One match per topic, not per record.
        topic = self._known.get(record.topic)
        if topic is None:
            topic = self._pattern.replaced(record.topic, self._replacement)
            topic = self._known[record.topic] = record.topic if topic is None else topic
        # The same object: the batch stays as it came where nothing was changed.
        return record if topic == record.topic else quick_record((topic, *record[1:]))


@final
class TimestampRouter(_NothingOpen, Transformation):
    """Renames topics by the time of each record."""

    java_class: ClassVar[str] = _PACKAGE + "TimestampRouter"
    config_model: ClassVar[type[ConfigModel]] = TimestampRouterConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        parsed = parse_config(TimestampRouterConfig, config)
        self._topic, self._format = parsed.topic_format, _DateFormat(parsed.timestamp_format)

    def apply(self, record: SinkRecord) -> SinkRecord:
        """Return the record under its new name; one without a timestamp is an error."""
        if record.timestamp_ms < 0:
            raise DataError(
                "Timestamp missing on record", remedy="leave such topics out by a predicate"
            )
        stamp = self._format.text(record.timestamp_ms)
        named = self._topic.replace("${topic}", record.topic).replace("${timestamp}", stamp)
        return record._replace(topic=named)


class _DateFormat:
    """The letters of Java's SimpleDateFormat that make sense in a topic's name."""

    _PART: ClassVar[re.Pattern[str]] = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']")

    def __init__(self, pattern: str) -> None:
        groups = list(self._PART.finditer(pattern))
        if "".join(group[0] for group in groups) != pattern:
            raise ConfigError(
                f"timestamp.format={pattern}: a quotation mark is not closed",
                remedy="close it, or write '' for the mark itself",
            )
        wrong = [group[2] for group in groups if group[2] and group[2] not in "yuMdDHmsS"]
        if wrong:
            raise ConfigError(
                f"timestamp.format={pattern}: the letter {wrong[0]} is not supported",
                remedy="use y, M, d, D, u, H, m, s, S, or put text into single quotation marks",
            )
        self._parts = [
            (
                group[2] or "",
                len(group[0]),
                (group[1] or "'").replace("''", "'") if group[0][0] == "'" else group[0],
            )
            for group in groups
        ]

    def text(self, timestamp_ms: int) -> str:
        seconds, millis = divmod(timestamp_ms, 1_000)
        # The calendar repeats itself; datetime ends with year 9999, Java's does not.
        cycles, seconds = divmod(seconds, _CYCLE_S)
        at = datetime.fromtimestamp(seconds, UTC)
        numbers = {
            "M": at.month, "d": at.day, "D": at.timetuple().tm_yday, "u": at.isoweekday(),
            "H": at.hour, "m": at.minute, "s": at.second, "S": millis,
        }  # fmt: skip
        return "".join(
            self._year(at.year + cycles * _CYCLE_YEARS, width)
            if letter == "y"
            else _MONTHS[at.month - 1][: None if width > 3 else 3]
            if letter == "M" and width >= 3
            else f"{numbers[letter]:0{width}d}"
            if letter
            else text
            for letter, width, text in self._parts
        )

    @staticmethod
    def _year(year: int, width: int) -> str:
        return f"{year % 100:02d}" if width == 2 else f"{year:0{width}d}"


@final
class Filter(_NothingOpen, Transformation):
    """Drops every record that it sees; meant with a predicate."""

    java_class: ClassVar[str] = _PACKAGE + "Filter"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = WithoutKeysConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        """It has no options."""

    def apply(self, record: SinkRecord) -> None:
        """Drop it."""


@final
class InsertHeader(_NothingOpen, Transformation):
    """Adds a header to each record.

    Java parses the literal to a typed value, which a mirror's ByteArrayConverter then refuses; here
    it is UTF-8.
    """

    java_class: ClassVar[str] = _PACKAGE + "InsertHeader"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = InsertHeaderConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        parsed = parse_config(InsertHeaderConfig, config)
        self._header = ((parsed.header, parsed.value_literal.encode()),)

    def apply(self, record: SinkRecord) -> SinkRecord:
        return quick_record((*record[:4], (*record.headers, *self._header), *record[5:]))


@final
class DropHeaders(_NothingOpen, Transformation):
    """Leaves headers out."""

    java_class: ClassVar[str] = _PACKAGE + "DropHeaders"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = DropHeadersConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._names = frozenset(parse_config(DropHeadersConfig, config).headers)

    def apply(self, record: SinkRecord) -> SinkRecord:
        kept = tuple(header for header in record.headers if header[0] not in self._names)
        return record if len(kept) == len(record.headers) else record._replace(headers=kept)


@final
class TopicNameMatches(_NothingOpen, Predicate):
    """Records of topics that match."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.TopicNameMatches"
    config_model: ClassVar[type[ConfigModel]] = TopicNameMatchesConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._pattern = JavaPattern(parse_config(TopicNameMatchesConfig, config).pattern)
        self._known: dict[str, bool] = {}

    def test(self, record: SinkRecord) -> bool:
        matched = self._known.get(record.topic)
        if matched is None:
            matched = self._known[record.topic] = self._pattern.matches(record.topic)
        return matched


@final
class HasHeaderKey(_NothingOpen, Predicate):
    """Records with a header of that name."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.HasHeaderKey"
    config_model: ClassVar[type[ConfigModel]] = HasHeaderKeyConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._name = parse_config(HasHeaderKeyConfig, config).name

    def test(self, record: SinkRecord) -> bool:
        return any(name == self._name for name, _ in record.headers)


@final
class RecordIsTombstone(_NothingOpen, Predicate):
    """Records without a value."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.RecordIsTombstone"
    config_model: ClassVar[type[ConfigModel]] = WithoutKeysConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        """It has no options."""

    def test(self, record: SinkRecord) -> bool:
        return record.value is None


TRANSFORMS: Final = (DropHeaders, Filter, InsertHeader, RegexRouter, TimestampRouter)
PREDICATES: Final = (HasHeaderKey, RecordIsTombstone, TopicNameMatches)


# ---- the chain


Kind = Literal["transforms", "predicates"]
KINDS: Final[tuple[Kind, ...]] = ("transforms", "predicates")
_Class = Callable[[Mapping[str, str]], Transformation | Predicate]


Attempt = Callable[[str, SinkRecord, Callable[[SinkRecord], SinkRecord | None]], SinkRecord | None]
"""Runs an operation of the class with that name on a record as ``errors.*`` configure; None where
the record is skipped."""


_BUILT_IN: Final[Mapping[Kind, Iterable[_Class]]] = {
    "transforms": TRANSFORMS,
    "predicates": PREDICATES,
}


@cache
def installed(kind: Kind) -> Sequence[_Class]:
    """Return the classes of a kind by Java's names, without those that cannot be imported."""
    entries = list(_BUILT_IN[kind])
    for entry in entry_points(group=f"mm2py.{kind}"):
        try:
            entries.append(entry.load())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the package's own code runs here, and hurts no other
            log.warning("%s left out name=%s cause=%s", kind, entry.name, cause_text(error))
    return sorted(entries, key=java_class)


def java_class(it: _Class) -> str:
    """Return the name of a class in configs."""
    return str(getattr(it, "java_class", it))


def find(kind: Kind, name: str) -> _Class:
    """Return the class of that name; ``ConfigError``, in Java's words for one that Java has not
    either, where there is none."""
    class_name = name.strip()
    for it in installed(kind):
        full = java_class(it)
        if class_name in (full, full.rpartition(".")[2]):
            return it
    if kind == "transforms" and needs_structures(class_name):
        raise ConfigError(
            f"Class {class_name} changes fields of structures, and the records of a mirror are "
            "bytes",
            remedy="remove it, or write a transform that reads your format "
            "(docs/reference/extend.md)",
        )
    raise ConfigError(f"Class {class_name} could not be found.")


def seen_headers(headers: Iterable[tuple[bytes | str, object]]) -> tuple[tuple[str, object], ...]:
    """Return the headers of a source's record as transforms see them: names need not be UTF-8, any
    bytes survive the way through ``str``."""
    return tuple(
        (name.decode(errors=HEADER_NAMES) if isinstance(name, bytes) else name, value)
        for name, value in headers
    )


def model_of(plugin: object) -> type[ConfigModel] | None:
    """Return the model of the keys of a plug-in's class, None where it declares none."""
    model: object = getattr(plugin, "config_model", None)
    return model if isinstance(model, type) and issubclass(model, ConfigModel) else None


@dataclass(frozen=True, slots=True)
class TransformStep:
    """One transform with its predicate; ``negate``: applied where that does not hold."""

    name: str
    transform: Transformation
    predicate: Predicate | None
    negate: bool

    @property
    def routes(self) -> bool:
        """Whether it may send a record to another topic or partition."""
        return not getattr(self.transform, "keeps_partition", False)

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        # A predicate of a user's own may answer anything that is true or false.
        if self.predicate is not None and bool(self.predicate.test(record)) is self.negate:
            return record
        return self.transform.apply(record)


def steps_of(config: Mapping[str, str]) -> tuple[TransformStep, ...]:
    """Build the transforms of a connector in their order; ``ConfigError``: a class, a key or a
    predicate's name is wrong."""
    unused = dict.fromkeys(parse_list(config.get("predicates", "")))
    predicates = tuple(unused)
    steps: list[TransformStep] = []
    for alias in parse_list(config.get("transforms", "")):
        prefix = f"transforms.{alias}."
        chosen = config.get(f"{prefix}predicate", "").strip()
        if chosen and chosen not in predicates:
            raise ConfigError(
                f"{prefix}predicate={chosen}: no predicate has this alias",
                remedy=f"use one of {', '.join(predicates) or '(none defined)'}",
            )
        name, transform = _built("transforms", alias, config)
        # Each step has one of its own, as in Java: it may count what it sees.
        predicate = _built("predicates", chosen, config)[1] if chosen else None
        unused.pop(chosen, None)
        negate = parse_boolean_leniently(config.get(f"{prefix}negate"), absent=False)
        steps.append(
            TransformStep(
                name, cast("Transformation", transform), cast("Predicate | None", predicate), negate
            )
        )
    for alias in unused:
        _built("predicates", alias, config)[1].close()
    return tuple(steps)


def _built(
    kind: Kind, alias: str, config: Mapping[str, str]
) -> tuple[str, Transformation | Predicate]:
    """Return the name of a class, and what it makes of its own keys."""
    own = with_prefix(config, f"{kind}.{alias}.")
    where = f"{kind}.{alias}.type={own.get('type', '')}: "
    try:
        plugin = find(kind, own.get("type", ""))
        where = f"{kind}.{alias}."
        return java_class(plugin), plugin(own)
    except ConfigError as error:
        raise ConfigError(f"{where}{error.message}", remedy=error.remedy) from error


@final
class TransformChain:
    """Applies steps one after the other; a record that one of them drops passes no further."""

    def __init__(self, steps: Sequence[TransformStep], attempt: Attempt) -> None:
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
            # A transform's new record lacks what was read, for dead letter queues (KIP-298).
            if made is not record and made.raw is not read:
                made = quick_record((*made[:-1], read))
            current = made
        return current

    def close(self) -> None:
        """End all steps; one that fails there keeps nothing else open."""
        for step in self._steps:
            for plugin in (step.transform, step.predicate):
                try:
                    if plugin is not None:
                        plugin.close()
                except Exception as error:  # noqa: BLE001 - a plug-in's own code, at the end
                    log.warning("%s cannot be closed cause=%s", step.name, cause_text(error))
