"""The options of ``format("mm2py")``: those of Spark's own Kafka source, and ``topics`` as in a
properties file.

Flow: options -> ``ReadOptions`` -> ``log_ends`` of the chosen partitions -> ``starting`` and
``ending`` offsets -> ``Range`` of each task. Names, defaults and what excludes what are those of
Spark's "Structured Streaming + Kafka Integration Guide".
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, cast, final

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.config.clients import consumer_settings
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import parse_list
from mm2py.errors import ConfigError, PartitionError
from mm2py.types import EARLIEST, LATEST, TopicPartition
from mm2py_jobs.log.log_ends import LogEnds, log_ends

_CHOICES: Final = ("topics", "subscribe", "subscribePattern", "assign")
NAMES: Final = (
    *_CHOICES,
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
)
_OURS: Final = {name.lower(): name for name in NAMES}
_KAFKA: Final = "kafka."
_IGNORED: Final = (
    "groupidprefix",
    "kafkaconsumer.",
    "fetchoffset.",
    "checkpointlocation",
    "asyncprogresstracking",
    "queryname",
    "path",
)
"""Of consumers of a group, which are none of ours, and of Spark's queries themselves."""
_REFUSED: Final = (
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
    "interceptor.classes",
)
"""Spark refuses them as well: what they say is said by options, or by the columns."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_DELAY: Final = re.compile(r"(\d+)\s*(us|ms|s|min|m|h|d)?")
_UNIT_S: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "": 1e-3,
}
"""Of Spark's ``timeStringAsMs``."""

Ends = Mapping[TopicPartition, LogEnds]
Offsets = dict[str, dict[str, int]]
"""Topic -> partition -> offset, as Spark's own Kafka source writes them."""


class Range(NamedTuple):
    """What one task reads."""

    partition: TopicPartition
    first: int
    end: int
    earliest: bool = False
    """Whether it begins at the first record that the log has when it is read."""


class _Bound(NamedTuple):
    """Where to begin or end: offsets, or (``at_time``) what was written from a time (ms) on."""

    option: str
    values: int | Offsets
    default: int
    at_time: bool = False


@final
class ReadOptions:
    """The options of one read, checked; Spark hands them on in lower case.

    Args:
        options: as given to ``option``.
        stream: whether ``readStream`` reads; it begins at the end of the logs by default, and has
            no end.

    Raises:
        ConfigError: an option is unknown, missing or wrong.
    """

    def __init__(self, options: Mapping[str, str], *, stream: bool = False) -> None:
        named = {_OURS[key.lower()]: text for key, text in options.items() if key.lower() in _OURS}
        self.properties = client_properties(options, _OURS, _REFUSED)
        settings = consumer_settings(self.properties, scope='format("mm2py")')
        self.read_committed = settings.isolation_level == "read_committed"
        self.fails_on_loss = _one_of(named, "failOnDataLoss", "true", "false") == "true"
        self._chosen = _choice(named, skips_absent=stream and not self.fails_on_loss)
        begin = LATEST if stream else EARLIEST
        self.starting = _bound(named, "starting", begin)
        self.ending = _bound(named, "ending", LATEST)
        for name in named:
            if stream and name.startswith("ending"):
                raise ConfigError(f"{name} is only for spark.read; a stream has no end")
        self._takes_latest = (
            _one_of(named, "startingOffsetsByTimestampStrategy", "error", "latest") == "latest"
        )
        self.has_headers = _one_of(named, "includeHeaders", "false", "true") == "true"
        self.least_tasks = _number(named, "minPartitions")
        self.most_of_task = _number(named, "maxRecordsPerPartition")
        self.most_rows = _number(named, "maxOffsetsPerTrigger")
        self.least_rows = _number(named, "minOffsetsPerTrigger")
        if self.most_rows and self.least_rows and self.least_rows > self.most_rows:
            raise ConfigError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        self.longest_delay_s = _delay_s(named.get("maxTriggerDelay", "15m"))

    async def log_ends(self, cluster: Cluster) -> Ends:
        """Ask the cluster where the chosen partitions begin and end now.

        Raises:
            ConfigError: a topic or partition that is named is not there.
            Mm2pyError: the cluster does not answer.
        """
        partitions = await self._chosen(Admin(cluster))
        return await log_ends(cluster, partitions, read_committed=self.read_committed)

    async def beginnings(self, cluster: Cluster, ends: Ends) -> dict[TopicPartition, int]:
        """Return where each partition begins.

        Raises:
            ConfigError: an option names what was not chosen.
            PartitionError: the log has no such offset or time.
        """
        return await self._offsets(cluster, self.starting, ends)

    async def ranges(self, cluster: Cluster) -> list[Range]:
        """Fix what a batch reads now: numbers, so that a task that is tried again reads the same.

        Raises:
            ConfigError: it begins at the end or ends at the beginning, or an option names what was
                not chosen.
            PartitionError: the log has no such offset or time.
        """
        # ``KafkaSourceProvider.validateBatchOptions``: such a range would have nothing in it.
        _refuse(self.starting, LATEST, "latest")
        _refuse(self.ending, EARLIEST, "earliest")
        ends = await self.log_ends(cluster)
        firsts = await self.beginnings(cluster, ends)
        lasts = await self._offsets(cluster, self.ending, ends)
        for tp, first in firsts.items():
            if first > lasts[tp] and self.fails_on_loss:
                raise PartitionError(
                    f"{self.starting.option} {first} is behind {self.ending.option} {lasts[tp]}",
                    topic=tp.topic,
                    partition=tp.partition,
                )
        whole = [
            Range(tp, first, lasts[tp], first == ends[tp].start and self._is_earliest(tp))
            for tp, first in firsts.items()
            if first < lasts[tp]
        ]
        return self.cut(whole)

    def cut(self, ranges: list[Range]) -> list[Range]:
        """Return about ``minPartitions`` ranges, as Spark shares them out, of at most
        ``maxRecordsPerPartition`` offsets; the largest first."""
        total = sum(it.end - it.first for it in ranges)
        pieces: list[Range] = []
        for it in ranges:
            size = it.end - it.first
            # ``KafkaOffsetRangeCalculator``: by its part of all offsets, at least one task.
            count = max(1, round(size * (self.least_tasks or 0) / total))
            if self.most_of_task:
                count = max(count, -(-size // self.most_of_task))
            count = min(count, size)
            bounds = [it.first + size * number // count for number in range(count + 1)]
            pieces += [it._replace(first=first, end=end) for first, end in pairwise(bounds)]
        return sorted(pieces, key=lambda it: it.first - it.end)

    def _is_earliest(self, tp: TopicPartition) -> bool:
        values = self.starting.values
        if self.starting.at_time:
            return False
        if isinstance(values, int):
            return values == EARLIEST
        return values.get(tp.topic, {}).get(str(tp.partition), EARLIEST) == EARLIEST

    async def _offsets(
        self, cluster: Cluster, bound: _Bound, ends: Ends
    ) -> dict[TopicPartition, int]:
        wanted = _wanted(bound, ends)
        if bound.at_time:
            wanted |= await self._at_times(cluster, bound, wanted)
        return {tp: self._offset(bound, tp, offset, ends[tp]) for tp, offset in wanted.items()}

    async def _at_times(
        self, cluster: Cluster, bound: _Bound, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        times = {tp: at_ms for tp, at_ms in wanted.items() if at_ms >= 0}
        listed = await Admin(cluster).list_offsets(times, read_committed=self.read_committed)
        found: dict[TopicPartition, int] = {}
        for tp, it in listed.items():
            if it.error is not None:
                raise it.error
            if it.offset < 0 and bound is self.starting and not self._takes_latest:
                raise PartitionError(
                    f"{bound.option}: no record from {times[tp]} ms on",
                    topic=tp.topic,
                    partition=tp.partition,
                    remedy="set startingOffsetsByTimestampStrategy to latest, or an earlier time",
                )
            # ListOffsets answers -1 where no record is as late; an end by time is the log end then.
            found[tp] = it.offset if it.offset >= 0 else LATEST
        return found

    def _offset(self, bound: _Bound, tp: TopicPartition, offset: int, ends: LogEnds) -> int:
        if offset == EARLIEST:
            return ends.start
        if offset == LATEST:
            return ends.end
        if not self.fails_on_loss:
            return min(max(offset, ends.start), ends.end)
        # An offset of a time is at most the end for readers of uncommitted records.
        if not ends.start <= offset <= ends.end and not bound.at_time:
            raise PartitionError(
                f"{bound.option} {offset} is not in the log, which has {ends.start} to {ends.end}",
                topic=tp.topic,
                partition=tp.partition,
            )
        return min(offset, ends.end)


def client_properties(
    options: Mapping[str, str], ours: Collection[str], refused: Collection[str]
) -> dict[str, str]:
    """Return the Kafka client properties among options, without ``kafka.`` before them.

    Raises:
        ConfigError: an option is none of ``ours`` (in lower case) nor a property, is ``refused``,
            or names no cluster.
    """
    properties: dict[str, str] = {}
    for key, text in options.items():
        name = key.lower()
        if name in ours or name.startswith(_IGNORED):
            continue
        if "." not in name:
            raise ConfigError(
                f"option {key!r} is not known",
                remedy=f"write one of {', '.join(_OURS.get(it, it) for it in ours)}, or a Kafka "
                "client property",
            )
        plain = name.removeprefix(_KAFKA)
        if plain in refused:
            raise ConfigError(
                f"option {key!r} is not supported, as in Spark's own Kafka source and sink"
            )
        properties[plain] = text
    if not properties.get("bootstrap.servers"):
        raise ConfigError(
            'option "kafka.bootstrap.servers" is missing', remedy="write host1:9092,host2:9092"
        )
    return properties


# ---- which partitions

_Chooser = Callable[[Admin], Awaitable[list[TopicPartition]]]


def _choice(named: Mapping[str, str], *, skips_absent: bool) -> _Chooser:
    given = [name for name in _CHOICES if name in named]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other")
    text = named[given[0]].strip() if given else ""
    if not text:
        raise ConfigError(
            f'option "{given[0] if given else "subscribe"}" is missing',
            remedy="write names or patterns",
        )
    if given[0] == "assign":
        return _assigned(text)
    if given[0] == "subscribe":
        names = sorted({it for it in parse_list(text) if it})
        return lambda admin: _named(admin, names, skips_absent=skips_absent)
    patterns = tuple(it for it in parse_list(text) if it) if given[0] == "topics" else (text,)
    matches = PatternList(patterns).matches

    async def matched(admin: Admin) -> list[TopicPartition]:
        listed = await admin.list_topics()
        chosen = _all_of({name: it for name, it in listed.items() if matches(name)})
        # A pattern of Spark's may match later topics; names of a properties file are there.
        if not chosen and given[0] == "topics":
            raise ConfigError(
                f"topics={text}: {admin.cluster.settings.addresses} has no such topic"
            )
        return chosen

    return matched


async def _named(
    admin: Admin, names: Iterable[str], *, skips_absent: bool = False
) -> list[TopicPartition]:
    described = await admin.describe_topics(names)
    for name in names:
        found = described.get(name)
        if found is None and skips_absent:
            continue  # a stream that may lose data outlives its topics
        if found is None:
            raise ConfigError(f"{admin.cluster.settings.addresses} has no such topic: {name}")
        if found.error is not None:
            raise found.error
    return _all_of(described)


def _all_of(described: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    return [
        TopicPartition(name, number)
        for name, description in sorted(described.items())
        for number in sorted(description.partitions)
    ]


def _assigned(text: str) -> _Chooser:
    try:
        document = cast("dict[str, list[int]]", json.loads(text))
        wanted = [
            TopicPartition(topic, int(it)) for topic, numbers in document.items() for it in numbers
        ]
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(
            f"assign={text} is no JSON of partitions", remedy='write {"orders": [0, 1]}'
        ) from None

    async def chosen(admin: Admin) -> list[TopicPartition]:
        there = {*await _named(admin, sorted({tp.topic for tp in wanted}))}
        for tp in wanted:
            if tp not in there:
                raise ConfigError(f"assign names {tp}, which is no partition")
        return sorted(wanted)

    return chosen


# ---- from where, to where


def _bound(named: Mapping[str, str], side: str, default: int) -> _Bound:
    """Return the bound with the highest precedence: a time for all, times, offsets."""
    at, times, offsets = (
        f"{side}Timestamp",
        f"{side}OffsetsByTimestamp",
        f"{side}Offsets",
    )
    if at in named:
        return _Bound(at, {}, _at_ms(named[at], at), at_time=True)
    if times in named:
        return _Bound(times, _parsed(named[times], times), default, at_time=True)
    if offsets in named:
        return _Bound(offsets, _parsed(named[offsets], offsets), default)
    return _Bound(offsets, default, default)


def _refuse(bound: _Bound, value: int, word: str) -> None:
    given = bound.values
    found = (
        (it for row in given.values() for it in row.values())
        if isinstance(given, dict)
        else (given,)
    )
    if not bound.at_time and value in found:
        raise ConfigError(
            f"{bound.option} cannot be {word} ({value}) in spark.read, as in "
            "Spark's own Kafka source"
        )


def _at_ms(text: str, option: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{option}={text}: no time in ms since 1970")
    return int(text)


def _parsed(text: str, option: str) -> int | Offsets:
    is_time = "Timestamp" in option
    word = None if is_time else _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    try:
        document: object = json.loads(text)
        assert isinstance(document, dict)
        offsets: Offsets = {}
        for topic, partitions in cast("dict[str, dict[str, object]]", document).items():
            offsets[topic] = {str(int(it)): int(str(number)) for it, number in partitions.items()}
        assert not is_time or all(at >= 0 for it in offsets.values() for at in it.values())
    except (ValueError, AssertionError, AttributeError):
        raise ConfigError(
            f"{option}={text}: no JSON of times in ms"
            if is_time
            else f"{option}={text}: neither earliest, latest nor JSON",
            remedy='write for example {"orders": {"0": 23, "1": -2}}; -2 is earliest, -1 latest',
        ) from None
    return offsets


def _wanted(bound: _Bound, ends: Ends) -> dict[TopicPartition, int]:
    """Return an offset or time per partition; those that JSON leaves out have the default."""
    if isinstance(bound.values, int):
        return dict.fromkeys(ends, bound.values)
    given = {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in bound.values.items()
        for number, offset in partitions.items()
    }
    unknown = sorted(given.keys() - ends.keys())
    if unknown:
        raise ConfigError(
            f"{bound.option} names {unknown[0]}, which is no partition of the chosen topics"
        )
    return {tp: given.get(tp, bound.default) for tp in ends}


# ---- words and numbers


def _number(named: Mapping[str, str], option: str) -> int | None:
    text = named.get(option)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{option}={text}: not a positive number")
    return int(text)


def _one_of(named: Mapping[str, str], option: str, default: str, other: str) -> str:
    text = named.get(option, default).strip().lower()
    if text not in {default, other}:
        raise ConfigError(f"{option}={text}: neither {default} nor {other}")
    return text


def _delay_s(text: str) -> float:
    found = _DELAY.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"maxTriggerDelay={text}: no time", remedy="write 15m, 90s or 1h")
    return int(found[1]) * _UNIT_S[found[2] or ""]
