"""A consumer group in memory, and a sink task that records what it is asked; steps of both can be made to fail."""

from collections.abc import Callable, Collection, Mapping, Sequence

from mm2py.api.context import SourceGap
from mm2py.api.records import SinkRecord
from mm2py.errors import RetriableError
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.sink_loop import AssignmentListener, Progress
from mm2py.runtime.tasks.sink_places import StoredPosition
from mm2py.types import EARLIEST, State, TopicPartition

FIRST_ID, SECOND_ID = bytes(15) + b"1", bytes(15) + b"2"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def a_record(place: TopicPartition, offset: int, value: bytes = b"v") -> SinkRecord:
    return SinkRecord(place.topic, place.partition, b"k", value, (), 1_000 + offset, offset, *place)


class FakeGroup:
    """Logs and committed positions of a cluster, for any number of members."""

    def __init__(self, **lengths: int) -> None:
        self.ends = {TopicPartition("t", int(name[1:])): end for name, end in lengths.items()}
        self.starts = dict.fromkeys(self.ends, 0)
        self.committed: dict[TopicPartition, int] = {}
        self.committed_ids: dict[TopicPartition, bytes] = {}
        self.ids = {"t": FIRST_ID}

    def recreate(self, topic_id: bytes, **lengths: int) -> None:
        """Delete the topic and create it again, with records; a broker that forgets no positions of it."""
        self.ids["t"] = topic_id
        self.ends |= {TopicPartition("t", int(name[1:])): end for name, end in lengths.items()}
        self.starts = dict.fromkeys(self.ends, 0)


class FakeConsumer:
    """One member; ``give``, ``take`` and ``lose`` change what it has at the next poll."""

    def __init__(self, group: FakeGroup, listener: AssignmentListener, *, most: int = 3) -> None:
        self.group, self.listener, self.most = group, listener, most
        self.subscribed: tuple[str, ...] = ()
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.events: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_errors: list[Exception | bool] = []
        self.id_errors: list[Exception] = []
        self.markers: dict[TopicPartition, int] = {}
        """How many control records end each log: their offsets are read over."""
        self.before: list[SinkRecord] = []
        """What the next poll has read before its events."""
        self.resets_to_end = False
        """``auto.offset.reset=latest``."""
        self.was_set: set[TopicPartition] = set()
        """Partitions whose position was outside of the log, or was set, until the end of the log is told."""
        self.refusals: dict[TopicPartition, str] = {}
        self.polls: list[float] = []
        self.closed = False
        self.heard: dict[TopicPartition, int] = {}
        self.on_poll: Callable[[], None] = lambda: None
        self.known: Collection[str] = ("t", "other")

    def give(self, *places: TopicPartition) -> None:
        self.events.append(("assigned", places))

    def take(self, *places: TopicPartition) -> None:
        self.events.append(("revoked", places))

    def lose(self, *places: TopicPartition) -> None:
        self.events.append(("lost", places))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.subscribed = tuple(topics)

    def topics(self) -> Collection[str]:
        return self.known

    def poll(self, timeout_s: float) -> Sequence[SinkRecord]:
        self.polls.append(timeout_s)
        self.on_poll()
        events, self.events = self.events, []
        for what, places in events:
            if what == "assigned":
                self.positions |= {it: self.group.committed.get(it, 0) for it in places}
                self.paused.difference_update(places)
                self.listener.assigned(places)
            else:
                (self.listener.revoked if what == "revoked" else self.listener.lost)(places)
                for place in places:
                    del self.positions[place]
        records, self.before = self.before, []
        for place, position in self.positions.items():
            if place not in self.paused:
                last = self.group.ends[place] - self.markers.get(place, 0)
                start = self.group.starts[place]
                is_inside = start <= position <= self.group.ends[place]
                reset = self.group.ends[place] if self.resets_to_end else start
                first = position if is_inside else reset
                if not is_inside:
                    self.was_set.add(place)
                end = max(first, min(last, first + self.most))
                records += [a_record(place, offset) for offset in range(first, end)]
                self.positions[place] = end
        return records

    def reached(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for place, position in self.positions.items():
            markers = self.markers.get(place, 0)
            if markers and position == self.group.ends[place] - markers:
                self.positions[place] = found[place] = self.group.ends[place]
            elif place in self.was_set and position == self.group.ends[place]:
                found[place] = position
        self.was_set.difference_update(found)
        return found

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        if self.id_errors:
            raise self.id_errors.pop(0)
        return {it: self.group.ids[it] for it in topics if it in self.group.ids}

    def start(self, partition: TopicPartition) -> int:
        return self.group.starts[partition]

    def commit(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, str]:
        answer = self.commit_errors.pop(0) if self.commit_errors else True
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            return dict.fromkeys(positions, "the group has changed")
        refused = {it: self.refusals[it] for it in positions if it in self.refusals}
        taken = {it: offset for it, offset in positions.items() if it not in refused}
        self.commits.append(taken)
        self.group.committed.update(taken)
        self.group.committed_ids.update((it, topic_ids[it]) for it in taken)
        return refused

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.positions.keys()
        self.paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.positions.keys()
        self.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = self.group.starts[partition] if offset == EARLIEST else offset
        self.was_set.add(partition)

    def end(self, partition: TopicPartition, *, ask: bool) -> int:
        self.heard[partition] = (
            self.group.ends[partition]
            if ask or partition not in self.paused
            else self.heard.get(partition, -1)
        )
        return self.heard[partition]

    def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredPosition]:
        ids = self.group.committed_ids
        return {
            it: StoredPosition(self.group.committed[it], ids.get(it, NO_TOPIC_ID))
            for it in partitions
            if it in self.group.committed
        }

    def close(self) -> None:
        self.closed = True


class RecordingTask:
    """Takes records; what it has taken is acknowledged when ``pre_commit`` is asked, unless ``stuck``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken: list[tuple[TopicPartition, int]] = []
        self.put_errors: list[Exception] = []
        self.start_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        self.answer: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]] = (
            lambda offsets: offsets
        )

    def start(self) -> None:
        self.calls.append("start")
        if self.start_errors:
            raise self.start_errors.pop(0)

    def open(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(f"open {','.join(map(str, sorted(partitions)))}")

    def put(self, records: Sequence[SinkRecord]) -> None:
        if self.put_errors:
            raise self.put_errors.pop(0)
        self.taken += [
            (TopicPartition(it.original_topic, it.original_partition), it.offset) for it in records
        ]

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return self.answer(offsets)

    def close(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(f"close {','.join(map(str, sorted(partitions)))}")

    def stop(self) -> None:
        self.calls.append("stop")


class Observed:
    """States and progress that were reported."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.made: list[Mapping[TopicPartition, Progress]] = []
        self.standstills: list[str] = []
        self.gaps: list[SourceGap] = []
        self.ids: dict[TopicPartition, bytes] = {}

    def state(self, state: State) -> None:
        self.states.append(state.value)

    def progress(self, made: Mapping[TopicPartition, Progress]) -> None:
        self.made.append(made)

    def standstill(self, cause: str) -> None:
        self.standstills.append(cause)

    def lost(self, gap: SourceGap) -> None:
        self.gaps.append(gap)

    def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return self.ids

    def began(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.ids[partition] = topic_id


def not_now(text: str = "not now") -> RetriableError:
    return RetriableError(text)
