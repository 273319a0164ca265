"""The effective state of one flow (file and changes over REST), and how one state becomes another.

Flow: file configs + entries -> ``FlowPicture`` (what is in force) -> another picture -> the records
that lead there and the line of the history; the history backwards -> the picture of then. No I/O.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from mm2py.config.java_values import parse_boolean_leniently
from mm2py.config.providers import placeholders
from mm2py.errors import ProtocolError
from mm2py.mirror.flow_overrides import (
    Change,
    ConnectorEntry,
    FlowEntry,
    FlowOverrideEntry,
    HistoryEntry,
    HoldEntry,
    OverrideEntry,
    Presence,
    Revision,
    connector_key,
    flow_record_key,
    hold_key,
    override_key,
    parse_hold_key,
    parse_override_key,
)
from mm2py.observability.logging import HIDDEN
from mm2py.types import TopicPartition

FLOW_KEY: Final = "flow"

Configs = Mapping[str, Mapping[str, str]]
"""Connector -> its config."""

Puts = dict[str, FlowOverrideEntry | None]
"""Key -> what its record becomes; None is a tombstone."""


def enabled(config: Mapping[str, str | None]) -> bool:
    """Return whether a source connector with this config copies topics."""
    # Absent means true, as in Connect; the derivation writes false for a pair that is not enabled.
    return parse_boolean_leniently(config.get("enabled"), absent=True)


def engine(config: Mapping[str, str | None]) -> str:
    """Return what copies the records of a flow with this source connector: worker, or spark."""
    return (config.get("flow.engine") or "").strip() or "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPicture:
    """What is in force; ``presence`` None: not set over REST, the file decides.

    ``configs`` are those of a flow that is there; of a deleted one they are the file's. ``own`` are
    properties, by connector, that do not follow the file though it says the same; what differs from
    it does not follow it in any case.
    """

    presence: Presence | None
    configs: Configs
    held: frozenset[TopicPartition]
    own: frozenset[tuple[str, str]] = frozenset()

    def with_config(
        self, name: str, config: Mapping[str, str] | None, file: Configs
    ) -> "FlowPicture":
        """Return it with another config of one connector, None without the connector.

        What it lets copy is a flow from then on, also where ``file`` has its pair run for
        heartbeats only, or no longer.
        """
        configs = {other: texts for other, texts in self.configs.items() if other != name}
        presence, old = self.presence, self.configs.get(name, {})
        # A property that was set to what the file says stays the user's until it is changed again:
        # a later edit of the file must not change it.
        own = frozenset(
            (other, prop)
            for other, prop in self.own
            if other != name or (config is not None and old.get(prop) == config.get(prop))
        )
        if config is not None:
            configs[name] = config
            by_file = any(enabled(texts) for texts in file.values())
            # A pair that the file runs for heartbeats only, or has dropped, becomes a flow by the
            # first config that copies; else the file would end it again.
            if presence is None and not by_file and enabled(config):
                presence = Presence.ADDED
        return replace(self, presence=presence, configs=configs, own=own)


@final
class FlowState:
    """Entries of one flow over its file.

    Args:
        file: the file's connector configs, placeholders kept.
        names_a_secret: returns whether the value of a key must not be in the topic.
        by_file: whether the file has the flow run.
    """

    def __init__(
        self,
        file: Mapping[str, Mapping[str, str]],
        names_a_secret: Callable[[str], bool],
        *,
        by_file: bool,
    ) -> None:
        self.file = file
        self._names_a_secret = names_a_secret
        self._by_file = by_file
        self._entries: dict[str, FlowOverrideEntry] = {}
        self.revision = 0
        """Number of the newest change."""

    def clear(self) -> None:
        self._entries.clear()
        self.revision = 0

    def pass_line(self, key: str) -> None:
        """Count a line of the history that cannot be read, in place of one before it: its number is
        in its key."""
        kind, _, number = key.partition(":")
        # ``isdigit`` alone takes digits of other scripts, and ``int`` of a long key would cost
        # quadratic time.
        if kind == "history" and number.isascii() and number.isdigit() and len(number) <= 15:
            self._entries.pop(key, None)
            self.revision = max(self.revision, int(number))

    def take(self, key: str, entry: FlowOverrideEntry | None) -> FlowOverrideEntry | None:
        """Take one record, None for a tombstone; return the entry that it is or ends."""
        if entry is None:
            return self._entries.pop(key, None)
        self._entries[key] = entry
        self.revision = max(self.revision, entry.revision.number)
        return entry

    # ---- what is in force

    @property
    def presence(self) -> Presence | None:
        """Explicit presence set over REST; None: not set, the file decides."""
        entry = self._entries.get(FLOW_KEY)
        return entry.state if isinstance(entry, FlowEntry) else None

    @property
    def present(self) -> bool:
        return self.is_present(self.presence)

    def is_present(self, presence: Presence | None) -> bool:
        """Whether there is a flow whose ``presence`` was changed over REST."""
        return self._by_file if presence is None else presence is Presence.ADDED

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Paused source partitions; -1 is a whole topic."""
        return frozenset(
            TopicPartition(entry.topic, entry.partition)
            for entry in self._entries.values()
            if isinstance(entry, HoldEntry)
        )

    def picture(self) -> FlowPicture:
        configs = {name: dict(config) for name, config in self.file.items()}
        for entry in self._entries.values():
            if isinstance(entry, ConnectorEntry):
                if entry.state is Presence.DELETED:
                    configs.pop(entry.name, None)
                # Where the file has the connector by now, the file's config counts again, with
                # overrides on top.
                elif entry.name not in self.file:
                    configs[entry.name] = dict(entry.config)
        for entry in self._entries.values():
            # A second pass, after every connector is known: the order of keys in the topic says
            # nothing.
            if isinstance(entry, OverrideEntry) and entry.connector in configs:
                if entry.value is None:
                    configs[entry.connector].pop(entry.property, None)
                else:
                    configs[entry.connector][entry.property] = entry.value
        overridden = (
            (entry.connector, entry.property)
            for entry in self._entries.values()
            if isinstance(entry, OverrideEntry)
        )
        own = self._as_in_file(overridden, configs)
        return FlowPicture(presence=self.presence, configs=configs, held=self.held, own=own)

    def _as_in_file(
        self, properties: Iterable[tuple[str, str]], configs: Configs
    ) -> frozenset[tuple[str, str]]:
        return frozenset(
            (name, prop)
            for name, prop in properties
            if name in self.file
            and name in configs
            and configs[name].get(prop) == self.file[name].get(prop)
        )

    def overrides(self, connector: str) -> Mapping[str, OverrideEntry]:
        return {
            entry.property: entry
            for entry in self._entries.values()
            if isinstance(entry, OverrideEntry) and entry.connector == connector
        }

    def orphans(self) -> Sequence[str]:
        """Return changed properties of connectors that the flow does not have, such as the one that
        copied it before."""
        there = self.picture().configs
        return sorted(
            f"{entry.connector}.{entry.property}"
            for entry in self._entries.values()
            if isinstance(entry, OverrideEntry) and entry.connector not in there
        )

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return who changed what, newest first."""
        entries = [entry for entry in self._entries.values() if isinstance(entry, HistoryEntry)]
        return tuple(sorted(entries, key=lambda entry: -entry.revision.number))

    # ---- from one picture to another

    def missing_in(self, there: "FlowState") -> Puts:
        """Return the records that make the entries of ``there`` these.

        Lines of the history come last, the newest at the end: whoever has read that has read all.
        """
        old, new = there._entries, self._entries  # noqa: SLF001 - of the same class
        keys = sorted({*old, *new}, key=lambda key: (key.startswith("history:"), key))
        return {key: new.get(key) for key in keys if old.get(key) != new.get(key)}

    def puts(self, after: FlowPicture, revision: Revision) -> Puts:
        """Return the records that make ``after`` what is in force.

        Entries of connectors that do not change stay as they are, those of unknown connectors too.
        """
        before = self.picture()
        # Only their entries are rewritten: entries that a newer version wrote about others stay
        # byte for byte.
        touched = {name for name, _ in before.own ^ after.own}
        touched |= {
            name
            for name in {*before.configs, *after.configs}
            if before.configs.get(name) != after.configs.get(name)
        }
        records = {flow_record_key(it): it for it in self._entries_of(after, touched, revision)}
        puts: Puts = {}
        for key, now in self._entries.items():
            if key not in records and _is_about(now, touched):
                puts[key] = None
        for key, entry in records.items():
            # An entry that says the same keeps its old revision: who set it and when stays true.
            there = self._entries.get(key)
            if there is None or replace(entry, revision=there.revision) != there:
                puts[key] = entry
        return puts

    def changes(self, after: FlowPicture) -> tuple[Change, ...]:
        """Return the line of the history: each key, and what is in force under it before and
        after."""
        return tuple(self._changes(self.picture(), after))

    def at(self, number: int) -> FlowPicture | None:
        """Return the picture after revision ``number``, 0 for the file; None where a line of the
        history since then is missing."""
        # The file alone, whatever lines are missing: a rollback to it is always possible.
        if number == 0:
            return FlowPicture(presence=None, configs=self.file, held=frozenset())
        if not self.oldest <= number <= self.revision:
            return None
        picture = self.picture()
        try:
            for line in self.history():
                # Newest first, each undone with what it noted as the state before it.
                if line.revision.number > number:
                    picture = self._undone(picture, line)
        except (ProtocolError, ValueError):
            return None  # a later version wrote of things that this one does not know
        return replace(picture, own=self._as_in_file(picture.own, picture.configs))

    @property
    def oldest(self) -> int:
        """The first revision that the history reaches: a line that is not there, or cannot be read,
        may have changed anything."""
        number = self.revision
        # Stops at the first gap: undoing the lines beyond it would build on a change that is not
        # known.
        for line in self.history():
            if line.revision.number != number:
                break
            number -= 1
        return number

    def _entries_of(
        self, picture: FlowPicture, touched: set[str], revision: Revision
    ) -> Iterator[FlowOverrideEntry]:
        if picture.presence is not None:
            yield FlowEntry(state=picture.presence, revision=revision)
        for name in sorted(touched):
            config, file = picture.configs.get(name), self.file.get(name)
            # A connector of the file: one entry per property that differs. Any other is stored
            # whole, or as deleted.
            if config is not None and file is not None:
                own = {prop for connector, prop in picture.own if connector == name}
                for prop in sorted({*file, *config, *own}):
                    if prop in own or config.get(prop) != file.get(prop):
                        yield OverrideEntry(
                            connector=name,
                            property=prop,
                            value=config.get(prop),
                            revision=revision,
                        )
            elif config is not None or file is not None:
                yield ConnectorEntry(
                    name=name,
                    state=Presence.DELETED if config is None else Presence.ADDED,
                    config={} if config is None else dict(config),
                    revision=revision,
                )
        for held in sorted(picture.held):
            yield HoldEntry(topic=held.topic, partition=held.partition, revision=revision)

    def _changes(self, before: FlowPicture, after: FlowPicture) -> Iterator[Change]:
        if before.presence is not after.presence:
            yield Change(
                key=FLOW_KEY,
                before=None if before.presence is None else before.presence.value,
                after=None if after.presence is None else after.presence.value,
            )
        # First, as what is undone later counts.
        yield from self._owner_changes(before, after)
        for name in sorted({*before.configs, *after.configs}):
            yield from self._config_changes(name, before.configs.get(name), after.configs.get(name))
        for held in sorted(before.held ^ after.held):
            words = ("running", "paused") if held in after.held else ("paused", "running")
            yield Change(key=hold_key(*held), before=words[0], after=words[1])

    def _config_changes(
        self, name: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None
    ) -> Iterator[Change]:
        if old == new:
            return
        if old is None or new is None:
            yield Change(
                key=connector_key(name),
                before=None if old is None else Presence.ADDED.value,
                after=(Presence.DELETED if new is None else Presence.ADDED).value,
            )
        # Of a connector that comes or goes: what differs from the file, so that it can be undone.
        file = self.file.get(name, {})
        texts = (file if old is None else old), (file if new is None else new)
        for prop in sorted({*texts[0], *texts[1]}):
            before, after = texts[0].get(prop), texts[1].get(prop)
            if before != after:
                if self._names_a_secret(prop):
                    before, after = _hidden(before), _hidden(after)
                yield Change(key=override_key(name, prop), before=before, after=after)

    def _owner_changes(self, before: FlowPicture, after: FlowPicture) -> Iterator[Change]:
        """Yield properties that begin or end to follow a file that says the same: its text before
        and after."""
        for name, prop in sorted(before.own ^ after.own):
            text = self.file[name].get(prop)
            text = _hidden(text) if self._names_a_secret(prop) else text
            yield Change(key=override_key(name, prop), before=text, after=text)

    def _undone(self, picture: FlowPicture, line: HistoryEntry) -> FlowPicture:
        presence, held, own = picture.presence, set(picture.held), set(picture.own)
        configs = {name: dict(config) for name, config in picture.configs.items()}
        for change in line.changes:
            kind, _, rest = change.key.partition(":")
            if change.key == FLOW_KEY:
                presence = None if change.before is None else Presence(change.before)
            # It was deleted by the line: its base is the file's config; property lines of the same
            # change restore the rest.
            elif kind == "connector" and change.before == Presence.ADDED.value:
                configs.setdefault(rest, dict(self.file.get(rest, {})))
            elif kind == "connector":
                configs.pop(rest, None)
            elif kind == "hold":
                (held.add if change.before == "paused" else held.discard)(parse_hold_key(rest))
            elif kind != "state":
                self._undo_property(configs, change)
                if change.before == change.after != HIDDEN:  # a secret of the file stays there
                    own ^= {parse_override_key(change.key)}
        return FlowPicture(
            presence=presence, configs=configs, held=frozenset(held), own=frozenset(own)
        )

    def _undo_property(self, configs: dict[str, dict[str, str]], change: Change) -> None:
        connector, prop = parse_override_key(change.key)
        if connector not in configs:
            return
        # Only the file may hold a secret in clear.
        secret = change.before == HIDDEN
        # The value itself was never stored.
        text = self.file.get(connector, {}).get(prop) if secret else change.before
        if text is None:
            configs[connector].pop(prop, None)
        else:
            configs[connector][prop] = text


def _is_about(entry: FlowOverrideEntry, touched: set[str]) -> bool:
    match entry:
        case FlowEntry() | HoldEntry():
            return True
        case OverrideEntry():
            return entry.connector in touched
        case ConnectorEntry():
            return entry.name in touched
        case HistoryEntry():
            return False


def is_placeholder(value: str) -> bool:
    """Return whether a text refers to a config provider."""
    # Exactly one placeholder and nothing around it: a text with a secret beside one would be shown
    # in clear otherwise.
    return [placeholder.text for placeholder in placeholders(value)] == [value]


def _hidden(value: str | None) -> str | None:
    return value if value is None or is_placeholder(value) else HIDDEN
