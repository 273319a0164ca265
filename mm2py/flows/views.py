"""Builds the views of a flow: states, lag, rates, the last error, history and configs.

Flow: herder's states + ``NodeSnapshot`` of every member -> views. Plain data, no I/O; unknown
numbers are None.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from mm2py.api.context import PartitionState
from mm2py.api.policies import HEARTBEATS
from mm2py.config.secret_names import names_a_secret
from mm2py.errors import ProtocolError, command_in, is_away
from mm2py.flows.states import DEGRADED, ConnectorWork, FlowWork, state_name
from mm2py.flows.view_models import (
    ChangeView,
    ConnectorView,
    ErrorView,
    FlowView,
    ForecastView,
    HistoryView,
    PartitionView,
    SampleView,
    TaskView,
    TopicView,
)
from mm2py.mirror.flow_overrides import Change, HistoryEntry, parse_hold_key, parse_override_key
from mm2py.mirror.flow_state import enabled, engine
from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.observability.metrics import FlowSample, Lag, NodeSnapshot, PartitionSnapshot, lag_of
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import FlowName, State, TaskId, TopicPartition, names_a_topic

MOST_ERRORS: Final = 100
"""Errors shown of a flow at most; the partitions have all of them."""
_WHOLE_TOPIC: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMembers:
    """What the members of a flow copy, and which of them are missing.

    ``assigned``: the partitions that the flow's tasks are to copy, with the state of those that no
    worker measures. ``silent``: why a member gave no answer, by its URL.
    """

    snapshots: Sequence[NodeSnapshot]
    assigned: Mapping[TopicPartition, tuple[TaskId, State]] = field(
        default_factory=dict[TopicPartition, tuple[TaskId, State]]
    )
    incomplete: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict[str, str])

    def wrongs(self) -> Iterator[tuple[str, str]]:
        """Return what is wrong with members: displays need HTTP between them, copying does not."""
        for url, reason in self.silent.items():
            yield (
                url,
                f"this worker gave no answer ({reason}), its numbers are missing: open the port of "
                "its internal.listener to the other workers, or set rest.advertised.host.name",
            )

    def partitions(self) -> list[tuple[str, PartitionSnapshot]]:
        """Return each partition with its worker.

        Without a worker and numbers: those that no worker measures, because their task's host or
        worker has just ended, or the task has just been started.
        """
        shown = [(node.worker, it) for node in self.snapshots for it in node.partitions]
        counted = {it.source for _, it in shown if it.task}
        # What waits for its copy is the leader's to report, and may be another worker's by now.
        partitions = [
            (worker, it)
            for worker, it in shown
            if is_of_topic(it) and (it.task or it.source not in counted)
        ]
        measured = {part.source for _, part in partitions}
        partitions += [
            ("", PartitionSnapshot.unmeasured(source, state=state, task=str(task)))
            for source, (task, state) in self.assigned.items()
            if source not in measured
        ]
        return partitions


# -- one flow --------------------------------------------------------------------------------------


def flow_view(
    flow: FlowName,
    work: FlowWork,
    members: FlowMembers,
    overrides: FlowOverridesStore,
    mask: SecretMask,
    is_heartbeats: Callable[[str], bool] = HEARTBEATS.__eq__,
) -> FlowView:
    """Return everything about one flow."""
    nodes = members.snapshots
    partitions = [it for _, it in members.partitions()]
    beats = set(filter(is_heartbeats, {it.source.topic for it in partitions}))
    of_users = [it for it in partitions if it.source.topic not in beats]
    wrongs = dict.fromkeys([*members.wrongs(), *work.wrongs(nodes)])
    if work.disabled:
        wrongs.clear()
    state = work.state(nodes)
    if members.silent and state == State.RUNNING.value:
        state = DEGRADED
    workers = {it.worker_id for _, it in work.works() if it is not None}
    lag = _lag(partitions)
    return FlowView(
        flow=str(flow),
        source=flow.source,
        target=flow.target,
        enabled=work.source is not None and enabled(work.source.info.config),
        engine="worker" if work.source is None else engine(work.source.info.config),
        since_ms=None,
        revision=overrides.state.revision,
        state=state,
        workers=tuple(sorted(workers - {""})),
        partitions=len(partitions),
        topics=len({it.source.topic for it in of_users}),
        copied_topics=len({it.source.topic for it in of_users if it.state == State.RUNNING}),
        failed_partitions=sum(1 for partition in partitions if partition.state == State.FAILED),
        held_partitions=sum(1 for it in partitions if it.state == PartitionState.HELD),
        paused=tuple(sorted(held_name(it) for it in overrides.held())),
        lag_records=lag.records,
        lag_ms=lag.ms,
        records_per_s=_rate(partition.records_per_s for partition in partitions),
        bytes_per_s=_rate(partition.bytes_per_s for partition in partitions),
        records_looped=sum(partition.looped for partition in partitions),
        conflicts=sum(partition.conflicts for partition in partitions),
        records_lost=sum(node.records_lost for node in nodes),
        errors=tuple(
            error_view(mask.apply(where), mask.apply(text))
            for where, text in islice(wrongs, MOST_ERRORS)
        ),
        # Several workers note the same of their flow.
        notes=tuple(dict.fromkeys(map(mask.apply, work.notes(nodes)))),
        connectors=tuple(_connector(connector) for connector in work.connectors),
        incomplete=members.incomplete,
    )


def error_view(where: str, message: str) -> ErrorView:
    """Return a problem, with what displays need to know of its cause."""
    return ErrorView(
        where=where, message=message, away=is_away(message), command=command_in(message)
    )


def _connector(work: ConnectorWork) -> ConnectorView:
    return ConnectorView(
        name=work.name,
        state=state_name(work.state),
        worker="" if work.state is None else work.state.worker_id,
        tasks=tuple(
            TaskView(
                number=task.number,
                state=state_name(state),
                worker="" if state is None else state.worker_id,
            )
            for task, state in work.tasks.items()
        ),
    )


def held_name(held: TopicPartition) -> str:
    """Return a paused topic or partition as it is written in commands."""
    return held.topic if held.partition == _WHOLE_TOPIC else str(held)


# -- partitions and topics -------------------------------------------------------------------------


CopyName = Callable[[str], str | None]
"""Source topic -> name of its copy, None where that is not known."""


def partition_views(
    flow: FlowName,
    members: FlowMembers,
    mask: SecretMask,
    copy_name: CopyName,
    topic: str | None = None,
) -> list[PartitionView]:
    """Return every partition of a flow or of one topic, in order."""
    views = [
        PartitionView(
            flow=str(flow),
            topic=it.source.topic,
            partition=it.source.partition,
            target_topic=copy_name(it.source.topic) if it.target is None else it.target.topic,
            task=it.task,
            worker=worker,
            state=it.state,
            cause=mask.apply(it.cause),
            lag_records=_known(it.lag_records),
            lag_ms=it.age_ms,
            records_per_s=_known_rate(it.records_per_s),
            bytes_per_s=_known_rate(it.bytes_per_s),
            records_looped=it.looped,
            conflicts=it.conflicts,
        )
        for worker, it in members.partitions()
        if topic in (None, it.source.topic)
    ]
    return sorted(views, key=lambda it: (it.topic, it.partition))


def forecast_views(flow: FlowName, members: FlowMembers, now_ms: int) -> list[ForecastView]:
    """Return when retention overtakes which partitions, the soonest first; others are left out."""
    views = [
        ForecastView(
            flow=str(flow),
            topic=it.source.topic,
            partition=it.source.partition,
            by=said.by,
            limit=said.limit,
            at_ms=said.at_ms,
            in_s=max(0.0, (said.at_ms - now_ms) / 1000),
            records=said.records,
            size_bytes=_known(said.size_bytes),
        )
        for _, it in members.partitions()
        if (said := it.forecast) is not None
    ]
    return sorted(views, key=lambda it: (it.at_ms, it.topic, it.partition))


def sample_views(samples: Sequence[FlowSample]) -> list[SampleView]:
    """Return samples with the rates since the one before; a counter that fell began anew."""
    views: list[SampleView] = []
    for before, it in zip((None, *samples), samples, strict=False):
        took_s = 0 if before is None else (it.at_ms - before.at_ms) / 1000
        rates: list[float | None] = [None, None]
        if before is not None and took_s > 0 and it.records >= before.records:
            grown = it.records - before.records, it.size_bytes - before.size_bytes
            rates = [round(count / took_s, 1) for count in grown]
        views.append(
            SampleView(
                at_ms=it.at_ms,
                lag_records=it.lag_records,
                lag_ms=it.lag_ms,
                records_per_s=rates[0],
                bytes_per_s=rates[1],
            )
        )
    return views


def topic_views(flow: FlowName, members: FlowMembers, copy_name: CopyName) -> list[TopicView]:
    """Return every topic of a flow, the largest lag in time first."""
    topics: dict[str, list[PartitionSnapshot]] = {}
    for _, it in members.partitions():
        topics.setdefault(it.source.topic, []).append(it)
    views = [_topic_view(str(flow), topic, parts, copy_name) for topic, parts in topics.items()]
    return sorted(views, key=lambda it: (-(it.lag_ms or 0), -(it.lag_records or 0), it.topic))


def _topic_view(
    flow: str, topic: str, parts: Sequence[PartitionSnapshot], copy_name: CopyName
) -> TopicView:
    states = [it.state for it in parts]
    named = next((it.target.topic for it in parts if it.target is not None), None)
    lag = _lag(parts)
    return TopicView(
        flow=flow,
        topic=topic,
        target_topic=copy_name(topic) if named is None else named,
        partitions=len(parts),
        failed_partitions=states.count("FAILED"),
        held_partitions=states.count("HELD"),
        paused_partitions=states.count("PAUSED"),
        state=_worst_state(states),
        lag_records=lag.records,
        lag_ms=lag.ms,
        records_per_s=_rate([it.records_per_s for it in parts]),
        bytes_per_s=_rate([it.bytes_per_s for it in parts]),
    )


def _worst_state(states: Sequence[str]) -> str:
    worst = next((it for it in ("FAILED", "HELD", "UNASSIGNED") if it in states), "")
    if worst or "PAUSED" not in states:
        return worst or State.RUNNING.value
    return "PAUSED" if states.count("PAUSED") == len(states) else "PARTLY PAUSED"


def is_of_topic(part: PartitionSnapshot) -> bool:
    """Whether it is a topic's: heartbeats and other sources have names that no topic can have."""
    return names_a_topic(part.source.topic)


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _known_rate(rate: float) -> float | None:
    return round(rate, 1) if rate >= 0 else None


def _lag(partitions: Iterable[PartitionSnapshot]) -> Lag:
    return lag_of((it.lag_records, it.age_ms, it.state) for it in partitions)


def _rate(rates: Iterable[float]) -> float | None:
    measured = [rate for rate in rates if rate >= 0]
    return round(sum(measured), 1) if measured else None


# -- changes ---------------------------------------------------------------------------------------


def history_view(flow: FlowName, entry: HistoryEntry, mask: SecretMask) -> HistoryView:
    """Return one line of the history."""
    return HistoryView(
        revision=entry.revision.number,
        at_ms=entry.revision.at_ms,
        by=entry.revision.by,
        action=entry.action,
        target=entry.target,
        changes=tuple(change_view(flow, it, mask) for it in entry.changes),
    )


def change_view(flow: FlowName, change: Change, mask: SecretMask) -> ChangeView:
    """Return one thing that a request changes or changed, under its display name."""
    name, key = _named(flow, change.key)
    before, after = (shown_value(key, it, mask) for it in (change.before, change.after))
    return ChangeView(key=name, before=before, after=after)


def _named(flow: FlowName, key: str) -> tuple[str, str]:
    """Return what a key of the topic is called, and the property that it is about, if any."""
    kind, _, rest = key.partition(":")
    try:
        if kind == "override":
            connector, name = parse_override_key(key)
            return f"{connector}.{name}", name
        if kind == "hold":
            return held_name(parse_hold_key(rest)), ""
    except ProtocolError:
        return key, key  # another program wrote it
    return rest or str(flow), ""


def shown_value(key: str, value: str | None, mask: SecretMask) -> str | None:
    """Return a property's text without secrets."""
    if not value:
        return value
    return HIDDEN if names_a_secret(key) else mask.apply(value)
