"""Properties files of the legacy MirrorMaker 1, with the names of every client that it has had.

Flow: file -> placeholders -> ZooKeeper properties refused -> old names of the Scala clients as
today's names, a line each -> MirrorMaker 1's own defaults where the file is silent ->
``librdkafka``. Source: ``kafka.tools.MirrorMaker`` of Kafka 0.8 to 3.9.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mm2py.config.java_regex import JavaPattern
from mm2py.config.properties import PropertiesFile, load
from mm2py.config.providers import Providers, placeholders
from mm2py.errors import ConfigError

_CODECS: Final = {"0": "none", "1": "gzip", "2": "snappy", "3": "lz4", "4": "zstd"}
_RESETS: Final = {"smallest": "earliest", "largest": "latest"}
_ZOOKEEPER: Final = re.compile(r"(zk|zookeeper)\..*")
_ZOOKEEPER_ADDRESS: Final = ("zookeeper.connect", "zk.connect")
_LONGEST_MS: Final = "2147483647"
_SCALA: Final = "kafka."
"""Package of classes of the clients that are gone."""

_RENAMED: Final[Mapping[str, str]] = {
    "auto.commit.enable": "enable.auto.commit",
    "auto.commit.enabled": "enable.auto.commit",
    "autocommit.enable": "enable.auto.commit",
    "autooffset.reset": "auto.offset.reset",
    "broker.list": "bootstrap.servers",
    "clientid": "client.id",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.size": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "groupid": "group.id",
    "max.message.size": "max.request.size",
    "message.send.max.retries": "retries",
    "metadata.broker.list": "bootstrap.servers",
    "num.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "queue.time": "linger.ms",
    "request.required.acks": "acks",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "socketbuffersize": "receive.buffer.bytes",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}
_WITHOUT_EFFECT: Final = frozenset((
    "batch.num.messages", "block.on.buffer.full", "consumer.id", "consumer.timeout.ms",
    "dual.commit.enabled", "key.serializer.class", "mirror.consumer.numthreads",
    "num.consumer.fetchers", "offsets.storage", "partitioner.class",
    "queue.buffering.max.messages", "queue.enqueue.timeout.ms", "queue.enqueuetimeout.ms",
    "queue.size", "queued.max.message.chunks", "rebalance.backoff.ms", "rebalance.max.retries",
    "refresh.leader.backoff.ms", "serializer.class", "shallow.iterator.enable",
))  # fmt: skip
"""Of clients that are gone; compared in lower case, as guides write them."""

_OWN: Final[Mapping[str, str]] = {
    "mirror.topics.blacklist": "--blacklist, where the command line names no topics",
    "mirror.topics.whitelist": "--whitelist, where the command line names no topics",
    "producer.type": "how records are sent: one at a time with sync, in batches otherwise",
}
"""Old names that MirrorMaker reads itself, and what they stand for."""

_PRODUCER_DEFAULTS: Final[Mapping[str, str]] = {
    "acks": "all",
    "delivery.timeout.ms": _LONGEST_MS,
    "max.in.flight.requests.per.connection": "1",
}


@dataclass(frozen=True, slots=True)
class ClientFile:
    """One file as today's client reads it.

    ``remarks``: a line each; ``warnings``: what may lose or reorder records; ``secrets``: never to
    be printed. ``is_sync``: ``producer.type=sync``, each record waits for its acknowledgement.
    ``include`` and ``exclude``: topics that the file of a consumer names
    (``mirror.topics.whitelist``). ``written``: what the file sets under today's names, placeholders
    kept; without the defaults that ``values`` has.
    """

    values: Mapping[str, str]
    remarks: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    secrets: frozenset[str] = frozenset()
    is_sync: bool = False
    include: str = ""
    exclude: str = ""
    written: Mapping[str, str] = field(default_factory=dict[str, str])


def consumer_file(path: str) -> ClientFile:
    """Read the file of ``--consumer.config``; ``ConfigError``: it cannot be read, names ZooKeeper,
    or lacks addresses or the group."""
    properties = _read(path)
    values = dict(properties.values)
    include = values.pop("mirror.topics.whitelist", "")
    exclude = values.pop("mirror.topics.blacklist", "")
    if not values.get("group.id", "").strip():
        raise ConfigError(
            f"{path}: group.id is missing", remedy="name the consumer group of the mirror"
        )
    warnings = [*properties.warnings]
    if values.get("enable.auto.commit", "false").strip().lower() == "true":
        warnings.append(
            f"{path}: enable.auto.commit=true commits records that were not sent yet: a failure "
            "loses them; remove it, the mirror commits what was acknowledged"
        )
    values.setdefault("enable.auto.commit", "false")
    return replace(
        properties, values=values, warnings=tuple(warnings), include=include, exclude=exclude
    )


def producer_file(path: str) -> ClientFile:
    """Read the file of ``--producer.config``; where it is silent, nothing is lost or reordered.
    ``ConfigError``: it cannot be read, names ZooKeeper, or lacks addresses."""
    properties = _read(path)
    values = dict(properties.values)
    is_sync = values.pop("producer.type", "async").strip().lower() == "sync"
    warnings = [*properties.warnings]
    warnings += [
        f"{path}: {name}={values[name]}, not {default}: a failure may lose or reorder records"
        for name, default in _PRODUCER_DEFAULTS.items()
        if name in values and not _is_same(name, values[name], default)
    ]
    if values.get("retries", "").strip() == "0":
        warnings.append(f"{path}: retries=0: a failure may lose records")
    values = {**_PRODUCER_DEFAULTS, **values}
    return replace(properties, values=values, warnings=tuple(warnings), is_sync=is_sync)


def _is_same(name: str, given: str, default: str) -> bool:
    known = {"-1": "all"} if name == "acks" else {}
    text = given.strip().lower()
    return known.get(text, text) == default


def _read(path: str) -> ClientFile:
    file = load(path)
    given, warnings = _without_address_of_zookeeper(path, file)
    providers = Providers.of(given, os.environ)
    values: dict[str, str] = {}
    written: dict[str, str] = {}
    remarks: list[str] = []
    for name, text in providers.resolve(given).items():
        if name == "partitioner.class" and not text.strip().startswith(_SCALA):
            warnings.append(
                f"{path}: {name}={text.strip()} is not loaded: the key chooses the partition"
            )
            continue
        if _ZOOKEEPER.fullmatch(name) or name.lower() in _WITHOUT_EFFECT:
            remarks.append(f"{path}: {name} has no effect any more")
            continue
        if name in _OWN:
            remarks.append(f"{path}: {name}={text.strip()} is taken as {_OWN[name]}")
        modern = _RENAMED.get(name.lower(), name)
        value = _modern_value(modern, text)
        if modern != name:
            if modern in given:
                remarks.append(f"{path}: {name} is ignored, {modern} is set too")
                continue
            remarks.append(f"{path}: {name} is taken as {modern}{_shown(value, text)}")
        elif value != text.strip() and modern in ("auto.offset.reset", "compression.type", "acks"):
            remarks.append(f"{path}: {name}={text} is taken as {name}={value}")
        values[modern] = value
        written[modern] = given[name].strip() if placeholders(given[name]) else value
    if not values.get("bootstrap.servers", "").strip():
        raise ConfigError(
            f"{path}: bootstrap.servers is missing",
            remedy="add the addresses of brokers, HOST:9092,...",
        )
    return ClientFile(
        values, tuple(remarks), tuple(warnings), secrets=providers.secrets, written=written
    )


def _without_address_of_zookeeper(
    path: str, file: PropertiesFile
) -> tuple[dict[str, str], list[str]]:
    """Return the properties and warnings: beside addresses of brokers Java's consumer ignores it as
    any name that it does not know."""
    given = dict(file.values)
    warnings: list[str] = []
    for name in _ZOOKEEPER_ADDRESS:
        if given.pop(name, None) is None:
            continue
        if not given.get("bootstrap.servers", "").strip():
            line = next(entry.line for entry in file.entries if entry.key == name)
            raise ConfigError(
                f"{path}:{line}: {name} names ZooKeeper, which clients of Kafka do not use any "
                "more",
                remedy="remove it and put bootstrap.servers=HOST:9092,... there, with the "
                "addresses of brokers",
            )
        warnings.append(f"{path}: {name} is ignored, bootstrap.servers counts: remove it")
    return given, warnings


def _shown(value: str, text: str) -> str:
    return f"={value}" if value != text.strip() else ""


def _modern_value(name: str, text: str) -> str:
    trimmed = text.strip()
    if name == "compression.type":
        return _CODECS.get(trimmed, trimmed)
    if name == "auto.offset.reset":
        return _RESETS.get(trimmed.lower(), trimmed)
    if name == "retries" and trimmed.lower() in ("int.maxvalue", "max integer"):
        return _LONGEST_MS
    return trimmed


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics are mirrored: those that ``matches`` chooses; ``text`` for messages."""

    text: str
    matches: Callable[[str], bool]


def topic_lists(include: str, exclude: str, consumer: ClientFile) -> tuple[str, str]:
    """Return which topics to mirror and to leave out; the file's where no option names any."""
    if include or exclude:
        return include, exclude
    return consumer.include, "" if consumer.include else consumer.exclude


def topic_choice(include: str, exclude: str) -> TopicChoice:
    """Read ``--include`` (``--whitelist``) or ``--blacklist``: commas are alternatives, blanks and
    quotes are removed.

    Raises:
        ConfigError: both, neither, or an expression that cannot be translated.
    """
    if bool(include.strip()) == bool(exclude.strip()):
        raise ConfigError(
            "exactly one of --whitelist (--include) and --blacklist has to be given",
            remedy="name the topics to mirror with --whitelist, or those to leave out with "
            "--blacklist",
        )
    pattern = JavaPattern(topic_expression(include or exclude))
    if include.strip():
        return TopicChoice(f"topics that match {pattern.text}", pattern.matches)
    return TopicChoice(
        f"topics that do not match {pattern.text}", lambda name: not pattern.matches(name)
    )


def topic_expression(text: str) -> str:
    """Return the Java expression of a list of topics
    (``org.apache.kafka.server.util.TopicFilter``)."""
    return re.sub(r"^[\"']+|[\"']+$", "", text.strip().replace(",", "|").replace(" ", ""))
