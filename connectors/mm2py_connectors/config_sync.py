"""Topic configs: what a new remote topic gets, and what keeps existing ones equal to the source.

Flow: source topic configs -> filters of ``MirrorSourceConnector.targetConfig`` -> configs of a new
topic, or incremental SET/DELETE (KIP-339) per remote topic. A refusal is logged once until it
changes; it holds back only the configs that the target refuses, though a broker takes or refuses
those of a topic as one.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, final

from mm2py.api.policies import ConfigPropertyFilter
from mm2py.client.connect.admin import ConfigOp
from mm2py.errors import RetriableError, ServerError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorAdmin

log = logging.getLogger(__name__)

TOPICS_PER_REQUEST: Final = 100
_DELETES: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
_FORMAT: Final = "message.format.version"
_OF_ONE_CONFIG: Final = frozenset(
    {codes.INVALID_CONFIG, codes.INVALID_REQUEST, codes.POLICY_VIOLATION}
)
"""Refusals that one config may have caused; the others are about the topic."""


def new_topic_configs(
    entries: Iterable[ConfigEntry], property_filter: ConfigPropertyFilter
) -> dict[str, str]:
    """Return the configs that a new remote topic is created with."""
    return {
        entry.name: entry.value
        for entry in entries
        if entry.value is not None
        and _copied(entry, property_filter)
        and (not entry.is_default or property_filter.should_replicate_source_default(entry.name))
    }


def config_operations(
    entries: Iterable[ConfigEntry], property_filter: ConfigPropertyFilter
) -> list[ConfigOp]:
    """Return the changes that make a remote topic's configs follow the source's.

    A default of the source becomes a DELETE, so that the target falls back to its own default.
    """
    operations: list[ConfigOp] = []
    for entry in entries:
        if not _copied(entry, property_filter):
            continue
        if entry.is_default and not property_filter.should_replicate_source_default(entry.name):
            operations.append(ConfigOp(entry.name, "DELETE"))
        elif entry.value is not None:
            operations.append(ConfigOp(entry.name, "SET", entry.value))
    return operations


def _copied(entry: ConfigEntry, property_filter: ConfigPropertyFilter) -> bool:
    return (
        not entry.is_read_only
        # Brokers never return the values of sensitive configs.
        and not entry.is_sensitive
        # A value of the broker's file is no choice of the topic's.
        and not _is_of_file(entry)
        and property_filter.should_replicate_config_property(entry.name)
    )


def _set_by(operations: Iterable[ConfigOp]) -> set[str]:
    return {it.name for it in operations if it.op == "SET"}


def _is_of_file(entry: ConfigEntry) -> bool:
    return entry.source is ConfigSource.STATIC_BROKER_CONFIG


@final
class ConfigSync:
    """The periodic job of one flow."""

    def __init__(
        self,
        source: MirrorAdmin,
        target: MirrorAdmin,
        property_filter: ConfigPropertyFilter,
        *,
        target_alias: str,
    ) -> None:
        self._source = source
        self._target = target
        self._filter = property_filter
        self._target_alias = target_alias
        self._formats: set[str] = set()
        self._written: dict[str, set[str]] = {}
        """By remote topic: the configs that may be set there because the source topic had them."""
        self._begin = ""
        self._refusals = ChangeLog(log, "topic configs cannot be written")

    @property
    def refusals(self) -> Mapping[str, str]:
        """Remote topics whose configs the target refuses, with the cause."""
        return self._refusals.entries

    async def run(self, remote_topics: Mapping[str, str]) -> None:
        """Sync ``remote_topics`` (source topic -> its copy), which exist on the target."""
        topics = sorted(remote_topics)
        at = bisect_left(topics, self._begin)
        topics = topics[at:] + topics[:at]
        seen: set[str] = set()
        for start in range(0, len(topics), TOPICS_PER_REQUEST):
            chunk = topics[start : start + TOPICS_PER_REQUEST]
            # A failed or slow run is continued behind, or what comes last would never be reached.
            self._begin = (topics[start + TOPICS_PER_REQUEST :] or topics)[0]
            described = self._readable(
                await self._source.read_topic_configs(chunk), remote_topics, seen
            )
            self._note_formats(described)
            changes = {
                remote_topics[topic]: operations
                for topic, entries in described.items()
                if (operations := self._operations(remote_topics[topic], entries))
            }
            refused = await self._alter(changes)
            for remote, operations in changes.items():
                self._note(remote, refused.get(remote))
                if remote not in refused:
                    self._written[remote] = _set_by(operations)
            seen.update(changes)
        self._refusals.keep_only(seen)

    def _operations(self, remote: str, entries: Sequence[ConfigEntry]) -> list[ConfigOp]:
        """Return the changes; they take back what the source topic does not set any more.

        A value of the broker's file changes nothing on the copy, which Java then leaves with what
        was copied before: for good, be it a retention of a second that was meant to empty a topic.
        """
        operations = config_operations(entries, self._filter)
        written = self._written.setdefault(remote, set())
        operations += [
            ConfigOp(it.name, "DELETE") for it in entries if _is_of_file(it) and it.name in written
        ]
        # Before the request: it may be carried out and not answered.
        written |= _set_by(operations)
        return operations

    def _readable(
        self,
        described: Mapping[str, tuple[ConfigEntry, ...] | ServerError],
        remote_topics: Mapping[str, str],
        seen: set[str],
    ) -> Mapping[str, tuple[ConfigEntry, ...]]:
        """Return the configs that may be read; the copy of a topic whose may not is refused alone.
        ``RetriableError``: some cannot be read now."""
        entries: dict[str, tuple[ConfigEntry, ...]] = {}
        for topic, answer in described.items():
            if isinstance(answer, RetriableError):
                raise answer
            if not isinstance(answer, ServerError):
                entries[topic] = answer
                continue
            remote = remote_topics[topic]
            seen.add(remote)
            self._refusals.note(remote, f"those of {topic} cannot be read: {answer}")
        return entries

    async def _alter(self, changes: Mapping[str, Sequence[ConfigOp]]) -> dict[str, str]:
        """Write what the target accepts and return the causes of the rest; refused changes are
        halved down to one config."""
        refused: dict[str, list[str]] = {}
        pending = [dict(changes)]
        # Rounds of halves: log2 of the number of topics' configs bounds the requests.
        while pending:
            part = pending.pop(0)
            halves: tuple[dict[str, Sequence[ConfigOp]], ...] = ({}, {})
            for remote, error in (await self._target.alter_topic_configs(part)).items():
                operations = part[remote]
                if error is None:
                    continue
                # What decides which records are deleted goes together, first: short retention is
                # harmless beside compact alone.
                deleting = [it for it in operations if it.name in _DELETES]
                others = [it for it in operations if it.name not in _DELETES]
                is_one = len(operations) == 1 or not others
                if is_one or error.code not in _OF_ONE_CONFIG:
                    refused.setdefault(remote, []).append(self._refusal(operations, error))
                    continue
                middle = len(others) // 2
                first, second = (
                    (deleting, others) if deleting else (others[:middle], others[middle:])
                )
                halves[0][remote], halves[1][remote] = first, second
            pending += [half for half in halves if half]
        return {remote: "; ".join(sorted(causes)) for remote, causes in refused.items()}

    def _note_formats(self, described: Mapping[str, Iterable[ConfigEntry]]) -> None:
        """Log once which topics have a message format that their copies do not get."""
        for topic, entries in described.items():
            old = [
                entry.value for entry in entries if entry.name == _FORMAT and not entry.is_default
            ]
            if (
                not old
                or topic in self._formats
                or self._filter.should_replicate_config_property(_FORMAT)
            ):
                continue
            self._formats.add(topic)
            log.info(
                "%s is left out of the copy's configs topic=%s value=%s", _FORMAT, topic, old[0]
            )

    def _note(self, remote: str, cause: str | None) -> None:
        if cause is None:
            self._refusals.clear(remote)
            return
        self._refusals.note(remote, cause)

    def _refusal(self, operations: Sequence[ConfigOp], error: ServerError) -> str:
        if error.code not in _OF_ONE_CONFIG:
            return str(error)
        names = [it.name for it in operations]
        is_named = len(names) == 1 or _DELETES.issuperset(names)
        text = f"{', '.join(names)}: {error}" if is_named else str(error)
        return f"{text} (on {self._target_alias}): name the config in config.properties.exclude"
