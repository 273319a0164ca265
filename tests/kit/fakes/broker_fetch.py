"""Fetch as the fake broker answers it: v4 to v17, sessions, followers, divergence, quotas.

Flow: ``Request`` -> session (KIP-227) -> each partition's log -> ``AnswerWriter``. Waits for data as a
real broker does, and leaves out of a session's answer what has not changed.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from mm2py.protocol.error_codes import (
    FENCED_LEADER_EPOCH,
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mm2py.types import TopicPartition
from tests.kit.fakes.broker_log import PartitionLog
from tests.kit.fakes.broker_state import FakeCluster, FakeSession, Key, Request, Wanted
from tests.kit.fakes.wire import AnswerWriter

_MAX_WAIT_MS: Final = 60_000
_SESSION_CODES: Final = frozenset(
    {FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR}
)


class _Found(NamedTuple):
    code: int
    records: bytes = b""
    log: PartitionLog | None = None
    diverging: tuple[int, int] | None = None
    preferred: int = -1

    @property
    def news(self) -> bool:
        return bool(self.code or self.records or self.diverging or self.preferred >= 0)

    @property
    def bounds(self) -> tuple[int, int, int]:
        log = self.log
        return (-1, -1, -1) if log is None else (log.end, log.stable_end, log.start)


class _Asked(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    partitions: list[Wanted]
    forgotten: list[Key]
    rack: str


async def fetch(request: Request) -> AnswerWriter:
    """Answer one Fetch."""
    asked = _parse(request)
    cluster = request.cluster
    cluster.fetches.append((asked.session_epoch, len(asked.partitions), len(asked.forgotten)))
    cluster.waits.append((asked.max_wait_ms, asked.min_bytes))
    if request.forced in _SESSION_CODES:
        return _empty(request, request.forced)
    if asked.session_epoch < 0 < cluster.throttled:
        cluster.throttled -= 1
        return _empty(request, NONE)
    if cluster.withholds:
        in_session = asked.session_epoch > 0
        same_id, code = _session(request, asked) if in_session else (0, NONE)
        return _top(request, same_id, code).count(0).tags()
    session: FakeSession | None = None
    session_id = 0
    wanted = asked.partitions
    if request.version >= 7 and asked.session_epoch >= 0:
        session_id, code = _session(request, asked)
        if code:
            return _empty(request, code)
        session = cluster.sessions[session_id]
        wanted = list(session.wanted.values())
    clock = asyncio.get_running_loop()
    end = clock.time() + asked.max_wait_ms / 1000
    while True:
        found = _read_all(request, asked, wanted)
        answer = list(zip(wanted, found, strict=True))
        if session is not None and asked.session_epoch > 0:
            answer = [(want, got) for want, got in answer if _changed(session, want, got)]
        left = end - clock.time()
        if left <= 0 or _enough(found, asked.min_bytes):
            if session is not None:
                _remember(session, answer)
            return _fetched(request, session_id, answer)
        await cluster.wait_for_data(left)


def _enough(found: Sequence[_Found], min_bytes: int) -> bool:
    if sum(len(got.records) for got in found) >= max(min_bytes, 1):
        return True
    return any(got.news and not got.records for got in found)


# ---- request ----


def _parse(request: Request) -> _Asked:
    reader, version = request.reader, request.version
    if version < 15:
        reader.int32()  # replica id
    max_wait_ms = min(reader.int32(), _MAX_WAIT_MS)
    min_bytes, max_bytes, isolation = reader.int32(), reader.int32(), reader.int8()
    session_id, session_epoch = (reader.int32(), reader.int32()) if version >= 7 else (0, -1)
    partitions = _partitions(request)
    forgotten: list[Key] = []
    for _ in range(reader.count() if version >= 7 else 0):
        topic = _topic(request)
        forgotten += [(topic, reader.int32()) for _ in range(reader.count())]
        reader.tags()
    rack = reader.text() if version >= 11 else ""
    return _Asked(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation == 1,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack,
    )


def _topic(request: Request) -> str | bytes:
    return request.reader.raw(16) if request.version >= 13 else request.reader.text()


def _partitions(request: Request) -> list[Wanted]:
    reader, version = request.reader, request.version
    wanted: list[Wanted] = []
    for _ in range(reader.count()):
        topic = _topic(request)
        for _ in range(reader.count()):
            partition = reader.int32()
            leader_epoch = reader.int32() if version >= 9 else -1
            offset = reader.int64()
            last_epoch = reader.int32() if version >= 12 else -1
            if version >= 5:
                reader.int64()  # log start of a follower
            wanted.append(
                Wanted(topic, partition, leader_epoch, offset, last_epoch, reader.int32())
            )
            reader.tags()
        reader.tags()
    return wanted


# ---- sessions ----


def _session(request: Request, asked: _Asked) -> tuple[int, int]:
    """Apply the request to its session; returns (session id, error code)."""
    cluster = request.cluster
    if asked.session_epoch == 0:
        cluster.sessions.pop(asked.session_id, None)
        session = FakeSession(request.node_id)
        session.wanted = {(want.topic, want.partition): want for want in asked.partitions}
        cluster.last_session_id += 1
        cluster.sessions[cluster.last_session_id] = session
        return cluster.last_session_id, NONE
    found = cluster.sessions.get(asked.session_id)
    if found is None or found.node_id != request.node_id:
        return 0, FETCH_SESSION_ID_NOT_FOUND
    if found.epoch != asked.session_epoch:
        return 0, INVALID_FETCH_SESSION_EPOCH
    found.epoch += 1
    for want in asked.partitions:
        found.wanted[want.topic, want.partition] = want
    for key in asked.forgotten:  # after the changes, as FetchSession.update does
        found.wanted.pop(key, None)
        found.told.pop(key, None)
    return asked.session_id, NONE


def _changed(session: FakeSession, want: Wanted, found: _Found) -> bool:
    return found.news or session.told.get((want.topic, want.partition)) != found.bounds


def _remember(session: FakeSession, answer: list[tuple[Wanted, _Found]]) -> None:
    for want, found in answer:
        key = want.topic, want.partition
        session.told[key] = found.bounds
        if found.records:  # whoever was served goes to the end
            session.wanted[key] = session.wanted.pop(key)


# ---- reading ----


def _read_all(request: Request, asked: _Asked, wanted: list[Wanted]) -> list[_Found]:
    left = asked.max_bytes
    found: list[_Found] = []
    for want in wanted:
        # KIP-74: only the first partition with data may go beyond the limits.
        first = left == asked.max_bytes
        got = _read(request, want, asked, left if first else max(left, 0), first=first)
        left -= len(got.records)
        found.append(got)
    return found


def _read(request: Request, want: Wanted, asked: _Asked, limit: int, *, first: bool) -> _Found:
    cluster = request.cluster
    log, preferred = _log(request, want, asked)
    if isinstance(log, int):
        return _Found(log)
    if preferred >= 0:
        return _Found(NONE, log=log, preferred=preferred)
    problem = _epoch_problem(want, log)
    if problem is not None:
        return problem
    if not log.start <= want.offset <= log.end:
        return _Found(OFFSET_OUT_OF_RANGE)
    last = log.stable_end if asked.read_committed else log.end
    records = log.read(want.offset, min(want.max_bytes, limit), before=last, at_least_one=first)
    cluster.served.append((want.partition, len(records)))
    return _Found(NONE, records, log)


def _epoch_problem(want: Wanted, log: PartitionLog) -> _Found | None:
    if want.leader_epoch > log.leader_epoch:
        return _Found(UNKNOWN_LEADER_EPOCH)
    if -1 < want.leader_epoch < log.leader_epoch:
        return _Found(FENCED_LEADER_EPOCH)
    if want.last_fetched_epoch >= 0:
        epoch, end = log.epoch_end(want.last_fetched_epoch)
        if end < 0:
            return _Found(OFFSET_OUT_OF_RANGE)
        if epoch < want.last_fetched_epoch or end < want.offset:
            return _Found(NONE, log=log, diverging=(epoch, end))
    return None


def _log(request: Request, want: Wanted, asked: _Asked) -> tuple[PartitionLog | int, int]:
    """Return the log or the code that says why there is none, and the replica to read instead."""
    cluster = request.cluster
    if request.forced != -2:
        return request.forced, -1
    name = _name(cluster, want.topic)
    if name is None:
        return UNKNOWN_TOPIC_ID, -1
    log = cluster.find(name, want.partition)
    if log is None:
        return UNKNOWN_TOPIC_OR_PARTITION, -1
    follower = cluster.nearest.get(TopicPartition(name, want.partition), -1)
    if not cluster.leads(request.node_id, name, want.partition):
        if follower != request.node_id:
            return NOT_LEADER_OR_FOLLOWER, -1
        code = cluster.follower_codes.pop(0) if cluster.follower_codes else NONE
        return code or log, -1
    return log, follower if asked.rack else -1


def _name(cluster: FakeCluster, topic: str | bytes) -> str | None:
    if isinstance(topic, str):
        return topic
    for found in cluster.topics.values():
        if found.topic_id == topic:
            return found.name
    return None


# ---- answer ----


def _top(request: Request, session_id: int, code: int) -> AnswerWriter:
    out = request.answer.int32(request.cluster.throttle_ms)
    if request.version >= 7:
        out.int16(code).int32(session_id)
    return out


def _empty(request: Request, code: int) -> AnswerWriter:
    return _top(request, 0, code).count(0).tags()


def _fetched(
    request: Request, session_id: int, answer: list[tuple[Wanted, _Found]]
) -> AnswerWriter:
    version, out = request.version, _top(request, session_id, NONE)
    out.count(len(answer))
    for want, found in answer:
        if isinstance(want.topic, bytes):
            out.raw(want.topic)
        else:
            out.string(want.topic)
        end, stable, start = found.bounds
        out.count(1).int32(want.partition).int16(found.code).int64(end).int64(stable)
        if version >= 5:
            out.int64(start)
        out.count(-1)
        if version >= 11:
            out.int32(found.preferred)
        out.data(found.records)
        tagged: dict[int, bytes] = {}
        if found.diverging is not None:
            epoch, cut = found.diverging
            tagged[0] = epoch.to_bytes(4, "big") + cut.to_bytes(8, "big") + b"\x00"
        out.tags(tagged).tags()
    return out.tags()
