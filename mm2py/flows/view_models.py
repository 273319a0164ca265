"""What ``/flows`` answers: REST returns these models, ``/openapi.json`` describes them, the command
line reads and prints them.

No logic. Members that a newer worker adds are kept, so that JSON output of a command shows the
whole answer.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Direction(StrEnum):
    """Which way an offset is translated."""

    TO_TARGET = "to-target"
    TO_SOURCE = "to-source"


class View(BaseModel):
    """One object of an answer."""

    model_config = ConfigDict(frozen=True, extra="allow")


class ErrorView(View):
    """A problem of a connector, task or partition; the message has the remedy.

    ``away``: it is a cluster or broker that cannot be reached, whatever else that keeps from
    working. ``command`` of Kafka's tools in the message repairs it, empty where none does.
    """

    where: str
    message: str
    away: bool = False
    command: str = ""


class ClusterView(View):
    """A cluster of the worker's file: the clusters that a flow may copy it to and from here, with
    those that have one. ``note``: why there is none."""

    alias: str
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    note: str = ""


class TaskView(View):
    """One task."""

    number: int
    state: str
    worker: str


class ConnectorView(View):
    """One connector of a flow."""

    name: str
    state: str
    worker: str
    tasks: tuple[TaskView, ...]


class FlowView(View):
    """One flow; sums over its partitions, ``lag_ms`` is the largest; both lags are None while one
    is not known.

    ``incomplete`` names workers that did not answer: their partitions are missing from the numbers.
    Without ``enabled`` only heartbeats run. ``engine`` is worker, or spark where ``mm2py stream``
    copies the records. ``revision`` is that of the last change, 0 for none; ``since_ms`` when the
    state was first seen (ms since the epoch). ``notes``: the flow is in order, but has nothing to
    copy yet, or leaves partitions to a backfill. ``topics`` counts source topics without
    heartbeats: a flow with none copies nothing of its users; ``copied_topics`` those with a
    partition that is neither paused, held, failed nor without a task. Both are None where a worker
    of an older build answered. ``pending``: tasks have not taken the last change yet.
    """

    flow: str
    source: str
    target: str
    enabled: bool
    engine: str
    state: str
    pending: bool = False
    since_ms: int | None
    revision: int
    workers: tuple[str, ...]
    topics: int | None = None
    copied_topics: int | None = None
    partitions: int
    failed_partitions: int
    held_partitions: int = 0
    paused: tuple[str, ...]
    lag_records: int | None
    lag_ms: int | None
    records_per_s: float | None
    bytes_per_s: float | None
    records_looped: int
    conflicts: int
    records_lost: int
    errors: tuple[ErrorView, ...]
    notes: tuple[str, ...]
    connectors: tuple[ConnectorView, ...]
    incomplete: tuple[str, ...]


class PartitionView(View):
    """One source partition."""

    flow: str
    topic: str
    partition: int
    target_topic: str | None
    task: str
    worker: str
    state: str
    cause: str
    lag_records: int | None
    lag_ms: int | None
    records_per_s: float | None
    bytes_per_s: float | None
    records_looped: int
    conflicts: int


class ForecastView(View):
    """When the source deletes the first record of a partition that is not copied yet, at the rates
    of the last minutes.

    ``by``: the topic's property that does it, ``limit`` its value (ms or bytes). ``at_ms`` since
    the epoch and ``in_s`` from now on, 0 where it has begun. ``records`` offsets wait, of
    ``size_bytes`` in the source's log, null where its brokers do not disclose that.
    """

    flow: str
    topic: str
    partition: int
    by: str
    limit: int
    at_ms: int
    in_s: float
    records: int
    size_bytes: int | None


class SampleView(View):
    """One worker's part of a flow at one moment (ms since the epoch); rates since the sample
    before, null is not known."""

    at_ms: int
    lag_records: int | None
    lag_ms: int | None
    records_per_s: float | None
    bytes_per_s: float | None


class TopicView(View):
    """One source topic; sums over its partitions, ``lag_ms`` is the largest, as of ``FlowView``;
    ``state`` is the worst."""

    flow: str
    topic: str
    target_topic: str | None
    partitions: int
    failed_partitions: int
    held_partitions: int = 0
    paused_partitions: int
    state: str = ""
    lag_records: int | None
    lag_ms: int | None
    records_per_s: float | None
    bytes_per_s: float | None


class ChangeView(View):
    """One thing before and after; null is absent."""

    key: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.key}: {self.before or '(none)'} -> {self.after or '(none)'}"


class TopicsChange(View):
    """Source topics that a change begins and ends to copy: how many, and the first names of each.
    Copies that were made stay."""

    starts: int
    starting: tuple[str, ...]
    stops: int
    stopping: tuple[str, ...]


class ChangeResult(View):
    """What a change did, or with ``dry_run`` would do; ``revision`` is its number in the history.

    ``still_paused`` names topics and partitions that a resumed flow does not copy: they were paused
    alone; ``not_there`` a topic that was paused or stopped and that no task copies now, so that it
    begins so when it appears. ``topics`` is of a dry run that changes which are chosen; null for
    others, and where the source does not answer in time.
    """

    flow: str
    action: str
    dry_run: bool
    revision: int | None
    changes: tuple[ChangeView, ...]
    still_paused: tuple[str, ...] = ()
    not_there: tuple[str, ...] = ()
    topics: TopicsChange | None = None


class HistoryView(View):
    """Who changed what and when (ms since the epoch)."""

    revision: int
    at_ms: int
    by: str
    action: str
    target: str
    changes: tuple[ChangeView, ...]


class PropertyView(View):
    """One property in force; ``file_value`` is its text in the properties file.

    ``changed_by``, ``changed_at_ms`` and ``revision`` are null where the file is in force.
    """

    key: str
    value: str | None
    file_value: str | None
    changed_by: str | None
    changed_at_ms: int | None
    revision: int | None


class ConfigView(View):
    """The config of one connector."""

    connector: str
    properties: tuple[PropertyView, ...]


class TranslationView(View):
    """Where an offset is on the other cluster.

    ``place`` is ``copied``, ``at-end``, ``never-existed``, ``lost``, ``expired``,
    ``not-yet-copied``, ``unknown`` or ``no-map``;
    ``to_offset`` is where a consumer continues there, null where that is not known.
    """

    flow: str
    direction: str
    topic: str
    partition: int
    offset: int
    to_topic: str
    to_offset: int | None
    place: str
    text: str


class GroupPartitionView(View):
    """One partition of a group: offsets on both sides, and what a consumer that moves now reads
    again or skips.

    ``continues_at`` is where it would continue on the target: its offset there, else its
    checkpoint; ``exact`` where it should. Null is not known or not there. ``place`` is as of a
    translation, or ``shared``: another flow writes into the copy too. ``reason``: why it has no
    exact place while the group is ahead of the copy; what it reads again counts what is still to be
    copied.
    """

    topic: str
    partition: int
    target_topic: str
    committed: int
    exact: int | None
    checkpoint: int | None
    committed_there: int | None
    continues_at: int | None
    reads_again: int | None
    skips: int | None
    place: str
    reason: str = ""


class GroupView(View):
    """One group of the source; ``state`` and ``state_there`` are those of the groups on both
    clusters.

    ``type`` is ``classic``, ``consumer``, ``streams`` or ``share``, empty where the broker is older
    than 3.8. A share group has no checkpoints; its offsets are start offsets, and records after
    them that it has acknowledged are read again too: brokers from 4.2 on report their number, and
    they are counted. Sums of its partitions are null while one is not known; ``not_synced`` is the
    reason why its offsets are not written to the target, empty where they are.
    """

    flow: str
    group: str
    type: str
    state: str
    state_there: str
    members: int | None
    members_there: int | None
    reads_again: int | None
    skips: int | None
    not_synced: str
    partitions: tuple[GroupPartitionView, ...]


class LedgerEventView(View):
    """One event of the loss ledger: source offsets, both ends inclusive; ``at_ms`` when it was
    noticed, since the epoch.

    ``kind`` is a word of ``mm2py.api.context.EventKind``. ``first`` is null where the offset is not
    known, ``last`` where none is known to be in the range. ``policy`` is ``property=value``, empty
    where none applies.
    """

    flow: str
    at_ms: int
    topic: str
    partition: int
    kind: str
    first: int | None
    last: int | None
    offsets: int
    policy: str
    cause: str
    task: str


class LedgerTopicView(View):
    """Sums of one source topic: ``refused`` partitions stopped there, everything else in source
    offsets."""

    flow: str
    topic: str
    events: int
    lost: int
    refused: int
    truncated: int
    may_be_doubled: int


class LedgerView(View):
    """What a flow lost, stopped at or may have doubled: the newest events of ``total``, and sums of
    all by topic.

    ``unreadable`` records are of a newer version, and in no sum.
    """

    flow: str
    total: int
    unreadable: int
    topics: tuple[LedgerTopicView, ...]
    events: tuple[LedgerEventView, ...]
