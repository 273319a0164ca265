"""Fakes of the clusters that connectors see: admin, reader, writer and contexts, all in memory."""

from collections.abc import Callable, Collection, Mapping, Sequence

from mm2py.api.records import SourcePartition
from mm2py.client.connect.admin import ConfigOp, ListedOffset, TopicDescription
from mm2py.clock import Clock
from mm2py.errors import ConnectionFailedError, Mm2pyError, ServerError
from mm2py.protocol.acls import Acl
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.error_codes import (
    LEADER_NOT_AVAILABLE,
    TOPIC_ALREADY_EXISTS,
    server_error,
)
from mm2py.protocol.records import NewRecord
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import EARLIEST, LATEST, TopicPartition
from mm2py_connectors.clients import (
    AdminSession,
    ReaderEvents,
    ReaderSession,
    ReaderTuning,
    WriterSession,
)
from tests.kit.fakes.reader import FakeReader


def flow_config(name: str, **more: str) -> dict[str, str]:
    """Return what each connector of the flow A->B has; ``_`` in a name is a dot."""
    config = {"name": name, "source.cluster.alias": "A", "target.cluster.alias": "B"}
    config |= {"source.cluster.bootstrap.servers": "a:1", "target.cluster.bootstrap.servers": "b:1"}
    return config | {key.replace("_", "."): text for key, text in more.items()}


class FakeSession:
    def __init__(self) -> None:
        self.connected = 0
        self.closed = 0
        self.refuse = 0
        self.cluster_id = "cluster"
        self.silent = ""

    def unanswered(self, longer_than_s: float) -> str:
        return self.silent

    async def connect(self) -> None:
        if self.refuse:
            self.refuse -= 1
            raise ConnectionFailedError("nobody answers")
        self.connected += 1

    async def close(self) -> None:
        self.closed += 1


class FakeAdmin:
    """One cluster: topics, configs and ACLs as dicts; ``refuse`` answers creations with errors."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.topics = dict(topics or {})
        self.configs: dict[str, tuple[ConfigEntry, ...]] = {}
        self.acls: list[Acl] | None = None
        self.acl_answers: list[ServerError | None] | None = None
        self.no_acls: Exception | None = None
        self.refuse: dict[str, ServerError] = {}
        self.refuse_configs: dict[str, ServerError] = {}
        """A topic's change is refused as one when it has one of these."""
        self.commits: list[dict[TopicPartition, int] | Mm2pyError] = []
        """Answers about the newest commits, one a question; there is no commit later."""
        self.described: list[tuple[str, ...]] = []
        self.unreadable: dict[str, ServerError] = {}
        self.unwritable_topics: dict[str, ServerError] = {}
        self.created: list[NewTopic] = []
        self.altered: list[dict[str, list[ConfigOp]]] = []
        self.written: dict[tuple[str, str], str | None] = {}
        self.created_acls: list[Acl] = []
        self.listings = 0
        self.broken: Exception | None = None
        self.hidden: set[str] = set()
        """Topics that are there and not in the list."""
        self.denied: dict[str, ServerError] = {}
        """What is answered of topics that are not in the list and may not be described."""
        self.put_off: Exception | None = None
        """Raised by a creation of which nothing can be done now."""
        self.logs: dict[TopicPartition, list[int]] = {}
        """Timestamps of the records of each log; offsets begin at ``log_start``."""
        self.log_start = 0
        self.leaderless: Collection[TopicPartition] = ()
        self.sizes: dict[TopicPartition, int] = {}
        self.sizes_refusal: ServerError | None = None

    async def list_topics(self) -> Mapping[str, TopicDescription]:
        self.listings += 1
        if self.broken is not None:
            raise self.broken
        return {
            name: TopicDescription(name, b"\0" * 16, tuple(range(count)), internal=False)
            for name, count in self.topics.items()
            if name not in self.hidden
        }

    async def denied_topics(self, names: Collection[str]) -> Mapping[str, ServerError]:
        return {it: error for it, error in self.denied.items() if it in names}

    async def create_topics(
        self, topics: Sequence[NewTopic], *, at_once: bool = False
    ) -> dict[str, ServerError | None]:
        del at_once
        if self.put_off is not None:
            raise self.put_off
        answers: dict[str, ServerError | None] = {}
        for topic in topics:
            answers[topic.name] = self.refuse.get(topic.name)
            if topic.name in self.hidden:
                answers[topic.name] = server_error(TOPIC_ALREADY_EXISTS, "exists")
            elif topic.name not in self.refuse:
                self.created.append(topic)
                self.topics[topic.name] = topic.partitions
        return answers

    async def create_partitions(
        self, totals: Mapping[str, int], *, at_once: bool = False
    ) -> dict[str, ServerError | None]:
        del at_once
        answers = {name: self.refuse.get(name) for name in totals}
        self.topics |= {name: totals[name] for name, error in answers.items() if error is None}
        return answers

    async def describe_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]:
        described: dict[str, tuple[ConfigEntry, ...]] = {}
        for name, answer in (await self.read_topic_configs(names)).items():
            if isinstance(answer, ServerError):
                raise answer
            described[name] = answer
        return described

    async def read_topic_configs(
        self, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...] | ServerError]:
        self.described.append(tuple(names))
        return {
            name: self.unreadable.get(name) or self.configs.get(name, ())
            for name in names
            if name in self.topics
        }

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> dict[str, ServerError | None]:
        self.altered.append({name: list(ops) for name, ops in changes.items()})
        answers: dict[str, ServerError | None] = {}
        for name, ops in changes.items():
            refused = [self.refuse_configs[it.name] for it in ops if it.name in self.refuse_configs]
            answers[name] = self.refuse.get(name) or next(iter(refused), None)
            if answers[name] is None:
                self.written |= {(name, it.name): it.value for it in ops}
        return answers

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        del read_committed
        listed: dict[TopicPartition, ListedOffset] = {}
        for tp, at in timestamps.items():
            if tp in self.leaderless:
                listed[tp] = ListedOffset(-1, -1, error=server_error(LEADER_NOT_AVAILABLE))
                continue
            offset, times = self._offset(tp, at), self.logs.get(tp, [])
            # Of the log's ends brokers return no timestamp.
            by_time = at >= 0 <= offset
            listed[tp] = ListedOffset(offset, times[offset - self.log_start] if by_time else -1)
        return listed

    def _offset(self, tp: TopicPartition, at: int) -> int:
        times = self.logs.get(tp, [])
        if at == EARLIEST:
            return self.log_start
        if at == LATEST:
            return self.log_start + len(times)
        return next((self.log_start + n for n, it in enumerate(times) if it >= at), -1)

    async def newest_commits(self) -> Mapping[TopicPartition, int]:
        said = self.commits.pop(0) if self.commits else {}
        if isinstance(said, Mm2pyError):
            raise said
        return said

    async def partition_sizes(
        self, topics: Mapping[str, Sequence[int]]
    ) -> Mapping[TopicPartition, int]:
        if self.sizes_refusal is not None:
            raise self.sizes_refusal
        return self.sizes

    async def describe_topic_acls(self) -> Sequence[Acl] | None:
        if self.no_acls is not None:
            raise self.no_acls
        return self.acls

    async def unwritable(self, topics: Collection[str]) -> Mapping[str, ServerError]:
        return {it: error for it, error in self.unwritable_topics.items() if it in topics}

    async def create_acls(self, acls: Sequence[Acl]) -> Sequence[ServerError | None]:
        self.created_acls += acls
        return self.acl_answers or [None] * len(acls)


class FakeWriter:
    """Acknowledges at once."""

    def __init__(self) -> None:
        self.records: list[tuple[TopicPartition, NewRecord]] = []
        self.started = 0
        self.closed = 0
        self.start_error: Exception | None = None

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.started += 1

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> None:
        self.records += [(tp, record) for record in records]
        done(0)

    async def close(self) -> None:
        self.closed += 1


class Region:
    """The factories of one flow's clients, with what they were asked for."""

    def __init__(self, source: Mapping[str, int], target: Mapping[str, int] | None = None) -> None:
        self.source, self.target = FakeAdmin(source), FakeAdmin(target)
        self.sessions: list[FakeSession] = []
        self.client_ids: list[str] = []
        self.readers: list[FakeReader] = []
        self.tuning: list[ReaderTuning] = []
        self.writers: list[FakeWriter] = []
        self.refuse_connect = 0
        self.cluster_id = ""
        """The id that all sessions see; empty: each address is a cluster of its own."""

    def open_admin(self, props: Mapping[str, str], alias: str, clock: Clock) -> AdminSession:
        session = self._session(props)
        return AdminSession(session, self.source if alias == "A" else self.target)

    def open_reader(
        self,
        props: Mapping[str, str],
        alias: str,
        clock: Clock,
        events: ReaderEvents,
        tuning: ReaderTuning,
    ) -> ReaderSession:
        reader = FakeReader(events)
        self.readers.append(reader)
        self.tuning.append(tuning)
        return ReaderSession(self._session(props), reader)

    def open_writer(self, props: Mapping[str, str], alias: str, clock: Clock) -> WriterSession:
        writer = FakeWriter()
        self.writers.append(writer)
        rights = self.source if alias == "A" else self.target
        return WriterSession(self._session(props), writer, rights)

    @property
    def all_closed(self) -> bool:
        return all(session.closed for session in self.sessions)

    def _session(self, props: Mapping[str, str]) -> FakeSession:
        self.client_ids.append(props["client.id"])
        session = FakeSession()
        session.cluster_id = self.cluster_id or f"id of {props['bootstrap.servers']}"
        if self.refuse_connect:
            self.refuse_connect -= 1
            session.refuse = 1
        self.sessions.append(session)
        return session


class MirrorTaskContext(FakeTaskContext):
    """Lent to a task of cluster A; positions by partition."""

    def __init__(self, stored: Mapping[TopicPartition, int] | None = None) -> None:
        super().__init__("MirrorSourceConnector-0")
        for tp, offset in (stored or {}).items():
            where: SourcePartition = {"cluster": "A", "partition": tp.partition, "topic": tp.topic}
            self.store(where, {"offset": offset})
