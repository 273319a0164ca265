"""The content of the config topic: connectors, task configs, target states, session key.

Flow: records of the topic -> an immutable ``ConfigSnapshot``, and ``ConfigEvent`` (``config_fold``)
for a listener. Maps hold raw texts, placeholders kept. No I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2py.types import TargetState, TaskId

ConnectorConfig = Mapping[str, str | None]
"""Config of a connector or task as it was put; values may be null."""


def texts_of(config: ConnectorConfig) -> dict[str, str]:
    """Return a config without what is null in it."""
    return {key: text for key, text in config.items() if text is not None}


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key that workers sign their requests to each other with.

    ``first``: the key that the group's first rotation replaced, empty before it. It signs nothing.
    """

    key: bytes = field(repr=False)
    algorithm: str
    created_ms: int
    first: bytes = field(default=b"", repr=False)

    @property
    def lasting(self) -> bytes:
        """A secret of the workers that no rotation changes."""
        return self.first or self.key


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """A restart request for a connector, its tasks, or only those of them that failed."""

    connector: str
    only_failed: bool
    include_tasks: bool

    @property
    def impact(self) -> int:
        """How far it reaches, 0 to 3; of several waiting requests the widest counts."""
        return 2 * (not self.only_failed) + self.include_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSnapshot:
    """All configs at one offset of the topic (Java's ``ClusterConfigState``).

    ``offset`` is that of the next record, 0 while the topic is empty. ``generations`` counts the
    commits per connector from 0; ``applied`` holds the connector config in force at the last
    commit. ``commit_offset`` is the one after the newest commit of task configs, of any connector.
    ``beside``: what the last commit gave the tasks of a connector besides; it is in
    ``task_configs`` too. ``former``: task configs that were in force when a stop removed them, or
    that compaction has left before a newer connector config. ``unfinished``: connectors whose
    newest task configs no commit follows; compaction keeps them in place of those of the last
    commit.
    """

    offset: int = 0
    commit_offset: int = 0
    session_key: SessionKey | None = None
    connectors: Mapping[str, ConnectorConfig] = field(default_factory=dict[str, ConnectorConfig])
    task_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    targets: Mapping[str, TargetState] = field(default_factory=dict[str, TargetState])
    task_configs: Mapping[TaskId, ConnectorConfig] = field(
        default_factory=dict[TaskId, ConnectorConfig]
    )
    generations: Mapping[str, int] = field(default_factory=dict[str, int])
    applied: Mapping[str, ConnectorConfig] = field(default_factory=dict[str, ConnectorConfig])
    task_count_records: Mapping[str, int] = field(default_factory=dict[str, int])
    beside: Mapping[str, Sequence[Mapping[str, str]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, str]]]
    )
    former: Mapping[str, Sequence[ConnectorConfig]] = field(
        default_factory=dict[str, Sequence[ConnectorConfig]]
    )
    pending_fencing: frozenset[str] = frozenset()
    inconsistent: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()

    def tasks(self, connector: str) -> tuple[TaskId, ...]:
        """Return a connector's tasks in order, none where its task configs are inconsistent."""
        # Java's ClusterConfigState.tasks: none, until a later commit is complete.
        if connector in self.inconsistent:
            return ()
        return tuple(TaskId(connector, n) for n in range(self.task_counts.get(connector, 0)))

    def published(self, connector: str) -> list[dict[str, str]]:
        """Return the task configs that are in force, after a stop (KIP-875) those before it: none
        before a connector's first start."""
        # Of an incomplete commit everything that is there: the connector continues the deal of its
        # partitions from it.
        in_force = [
            config
            for task, config in self.task_configs.items()
            if task.connector == connector
            and (connector in self.inconsistent or task in self.tasks(connector))
        ]
        # What comes while a stop lasts is no first start's.
        return list(map(texts_of, in_force or self.former.get(connector, ())))

    def target(self, connector: str) -> TargetState:
        """Return the target state of a connector, STARTED where it is not known."""
        return self.targets.get(connector, TargetState.STARTED)


EMPTY: Final = ConfigSnapshot()
"""The topic without a record."""
