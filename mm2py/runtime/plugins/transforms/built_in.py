"""Apache's transforms and predicates that make sense on bytes, by Java's class names and keys.

Those that look into fields (``InsertField``, ``Cast``, ...) need structures, which a mirror does not have; they are known by name.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Final, final

from mm2py.api.records import SinkRecord, quick_record
from mm2py.api.transforms import Predicate, Transformation
from mm2py.config.class_names import KAFKA_RELEASE
from mm2py.config.definitions import ConfigModel, Option, parse_config
from mm2py.config.java_regex import JavaPattern
from mm2py.config.java_values import JavaType, JavaValue, invalid
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.converters.converter import DataError

_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_STRING, _LIST = JavaType.STRING, JavaType.LIST
_CYCLE_YEARS: Final = 400
_CYCLE_S: Final = 146_097 * 86_400
"""So many days have 400 years."""

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

    regex: Annotated[
        str,
        Option(
            _STRING,
            "Java pattern that the whole name of the topic must match.",
            importance="HIGH",
            checks=(_compiles,),
        ),
    ]
    replacement: Annotated[
        str, Option(_STRING, "What takes the place of the match; $1 is a group.", importance="HIGH")
    ]


class TimestampRouterConfig(ConfigModel):
    """Keys of TimestampRouter."""

    topic_format: Annotated[
        str,
        Option(
            _STRING, "The new name, with ${topic} and ${timestamp} replaced.", importance="HIGH"
        ),
    ] = "${topic}-${timestamp}"
    timestamp_format: Annotated[
        str,
        Option(
            _STRING,
            "Java's SimpleDateFormat of the record's timestamp, in UTC: y, M, d, D, H, m, s, S and quoted text.",
            importance="HIGH",
            checks=(_format,),
        ),
    ] = "yyyyMMdd"


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

    pattern: Annotated[
        str,
        Option(
            _STRING,
            "Java pattern that the whole name of the topic must match.",
            importance="MEDIUM",
            checks=(_text, _compiles),
        ),
    ]


class HasHeaderKeyConfig(ConfigModel):
    """Keys of HasHeaderKey."""

    name: Annotated[
        str, Option(_STRING, "Name of the header.", importance="MEDIUM", checks=(_text,))
    ]


class WithoutKeysConfig(ConfigModel):
    """What has no keys."""


class _Open:
    """Nothing to close."""

    plugin_version: ClassVar[str] = KAFKA_RELEASE

    def close(self) -> None:
        """Nothing is open."""


@final
class RegexRouter(_Open, Transformation):
    """Renames topics that match."""

    java_class: ClassVar[str] = _PACKAGE + "RegexRouter"
    config_model: ClassVar[type[ConfigModel]] = RegexRouterConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        parsed = parse_config(RegexRouterConfig, config)
        self._pattern, self._replacement = JavaPattern(parsed.regex), parsed.replacement
        self._known: dict[str, str] = {}

    def apply(self, record: SinkRecord) -> SinkRecord:
        """Return the record under its new name."""
        topic = self._known.get(record.topic)
        if topic is None:
            topic = self._pattern.replaced(record.topic, self._replacement) or record.topic
            self._known[record.topic] = topic
        return record if topic == record.topic else quick_record((topic, *record[1:]))


@final
class TimestampRouter(_Open, Transformation):
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
        found = list(self._PART.finditer(pattern))
        if "".join(it[0] for it in found) != pattern:
            raise ConfigError(
                f"timestamp.format={pattern}: a quotation mark is not closed",
                remedy="close it, or write '' for the mark itself",
            )
        wrong = [it[2] for it in found if it[2] and it[2] not in "yuMdDHmsS"]
        if wrong:
            raise ConfigError(
                f"timestamp.format={pattern}: the letter {wrong[0]} is not supported",
                remedy="use y, M, d, D, H, m, s, S, or put text into single quotation marks",
            )
        self._parts = [
            (
                it[2] or "",
                len(it[0]),
                (it[1] or "'").replace("''", "'") if it[0][0] == "'" else it[0],
            )
            for it in found
        ]

    def text(self, timestamp_ms: int) -> str:
        """Return a timestamp, in UTC."""
        seconds, millis = divmod(timestamp_ms, 1_000)
        # The calendar repeats itself; datetime ends with year 9999, Java's does not.
        cycles, seconds = divmod(seconds, _CYCLE_S)
        at = datetime.fromtimestamp(seconds, UTC)
        numbers = {
            "M": at.month, "d": at.day, "D": at.timetuple().tm_yday,
            "H": at.hour, "m": at.minute, "s": at.second, "S": millis,
        }  # fmt: skip
        return "".join(
            self._year(at.year + cycles * _CYCLE_YEARS, width)
            if letter in ("y", "u")
            else f"{numbers[letter]:0{width}d}"
            if letter
            else text
            for letter, width, text in self._parts
        )

    @staticmethod
    def _year(year: int, width: int) -> str:
        return f"{year % 100:02d}" if width == 2 else f"{year:0{width}d}"


@final
class Filter(_Open, Transformation):
    """Drops every record that it sees; meant with a predicate."""

    java_class: ClassVar[str] = _PACKAGE + "Filter"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = WithoutKeysConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        del config

    def apply(self, record: SinkRecord) -> None:
        """Drop the record."""


@final
class InsertHeader(_Open, Transformation):
    """Adds a header to each record.

    Java parses the literal to a typed value, which a mirror's ByteArrayConverter then refuses; here it is UTF-8.
    """

    java_class: ClassVar[str] = _PACKAGE + "InsertHeader"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = InsertHeaderConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        parsed = parse_config(InsertHeaderConfig, config)
        self._header = ((parsed.header, parsed.value_literal.encode()),)

    def apply(self, record: SinkRecord) -> SinkRecord:
        """Return the record with the header behind its own."""
        return quick_record((*record[:4], (*record.headers, *self._header), *record[5:]))


@final
class DropHeaders(_Open, Transformation):
    """Leaves headers out."""

    java_class: ClassVar[str] = _PACKAGE + "DropHeaders"
    keeps_partition: ClassVar[bool] = True
    config_model: ClassVar[type[ConfigModel]] = DropHeadersConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._names = frozenset(parse_config(DropHeadersConfig, config).headers)

    def apply(self, record: SinkRecord) -> SinkRecord:
        """Return the record without these headers."""
        kept = tuple(it for it in record.headers if it[0] not in self._names)
        return record if len(kept) == len(record.headers) else record._replace(headers=kept)


@final
class TopicNameMatches(_Open, Predicate):
    """Records of topics that match."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.TopicNameMatches"
    config_model: ClassVar[type[ConfigModel]] = TopicNameMatchesConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._pattern = JavaPattern(parse_config(TopicNameMatchesConfig, config).pattern)
        self._known: dict[str, bool] = {}

    def test(self, record: SinkRecord) -> bool:
        """Return whether the whole name of the topic matches."""
        found = self._known.get(record.topic)
        if found is None:
            found = self._known[record.topic] = self._pattern.matches(record.topic)
        return found


@final
class HasHeaderKey(_Open, Predicate):
    """Records with a header of that name."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.HasHeaderKey"
    config_model: ClassVar[type[ConfigModel]] = HasHeaderKeyConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        self._name = parse_config(HasHeaderKeyConfig, config).name

    def test(self, record: SinkRecord) -> bool:
        """Return whether the record has the header."""
        return any(name == self._name for name, _ in record.headers)


@final
class RecordIsTombstone(_Open, Predicate):
    """Records without a value."""

    java_class: ClassVar[str] = _PACKAGE + "predicates.RecordIsTombstone"
    config_model: ClassVar[type[ConfigModel]] = WithoutKeysConfig

    def __init__(self, config: Mapping[str, str]) -> None:
        del config

    def test(self, record: SinkRecord) -> bool:
        """Return whether the value is null."""
        return record.value is None


TRANSFORMS: Final = (DropHeaders, Filter, InsertHeader, RegexRouter, TimestampRouter)
PREDICATES: Final = (HasHeaderKey, RecordIsTombstone, TopicNameMatches)
