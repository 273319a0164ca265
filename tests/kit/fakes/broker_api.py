"""The requests that the fake broker understands, each in the versions it advertises.

Flow: ``Request`` -> ``handle`` -> ``AnswerWriter``; ``answer_error`` gives every partition one code.
"""

from collections.abc import Awaitable, Callable, Mapping
from struct import pack
from typing import Final, NamedTuple

from mm2py.protocol.error_codes import (
    NONE,
    NOT_COORDINATOR,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from mm2py.types import EARLIEST, TopicPartition
from tests.kit.fakes.broker_fetch import fetch
from tests.kit.fakes.broker_log import AppendResult, PartitionLog
from tests.kit.fakes.broker_state import FakeTopic, Request
from tests.kit.fakes.wire import AnswerWriter

REBOOTSTRAP_REQUIRED: Final = 129
"""Of Metadata as a whole; other codes are those of topics."""

_NO_TOPIC_ID: Final = bytes(16)


class Api(NamedTuple):
    """What the broker advertises of one request."""

    oldest: int
    newest: int
    flexible_from: int
    respond: Callable[[Request], Awaitable[AnswerWriter]]


async def handle(request: Request, versions: Mapping[int, tuple[int, int]]) -> AnswerWriter:
    """Apply a request and return its answer."""
    if request.api_key == 18:
        features = request.cluster.transactions.features
        if features and request.version >= 3:
            return _versions_and_features(versions, features)
        return _versions(NONE, versions)
    return await APIS[request.api_key].respond(request)


async def answer_error(request: Request, code: int, *, apply: bool) -> AnswerWriter:
    """Return an answer that carries ``code`` everywhere, storing what was produced if ``apply``."""
    request.forced, request.apply = code, apply
    return await APIS[request.api_key].respond(request)


def unsupported(correlation_id: int, versions: Mapping[int, tuple[int, int]]) -> bytes:
    """Answer an ApiVersions request that is too new: version 0, error 35 (KIP-511)."""
    return _versions(UNSUPPORTED_VERSION, versions).frame(correlation_id, flexible_header=False)


def _versions(code: int, versions: Mapping[int, tuple[int, int]]) -> AnswerWriter:
    out = AnswerWriter().int16(code).count(len(versions))
    for key, (oldest, newest) in sorted(versions.items()):
        out.int16(key).int16(oldest).int16(newest)
    return out


def _versions_and_features(
    versions: Mapping[int, tuple[int, int]], features: Mapping[str, int]
) -> AnswerWriter:
    out = AnswerWriter(flexible=True).int16(NONE).count(len(versions))
    for key, (oldest, newest) in sorted(versions.items()):
        out.int16(key).int16(oldest).int16(newest).tags()
    finalized = AnswerWriter(flexible=True).count(len(features))
    for name, level in features.items():
        finalized.string(name).int16(level).int16(0).tags()
    return out.int32(0).tags({1: bytes(8), 2: finalized.taken()})


def _find(request: Request, topic: str, partition: int) -> PartitionLog | int:
    """Return the log, or the code that says why this broker has none."""
    if request.forced != -2:
        return request.forced
    log = request.cluster.find(topic, partition)
    if log is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    if not request.cluster.leads(request.node_id, topic, partition):
        return NOT_LEADER_OR_FOLLOWER
    return log


async def _versions_answer(request: Request) -> AnswerWriter:
    code = max(request.forced, NONE)
    return _versions(code, {key: (api.oldest, api.newest) for key, api in APIS.items()})


async def _metadata(request: Request) -> AnswerWriter:
    reader, cluster = request.reader, request.cluster
    asked = reader.count()
    names: list[str] = []
    for _ in range(asked):
        reader.raw(16)
        names.append(reader.text())
        reader.tags()
    if asked < 0:
        names = sorted(cluster.topics)
    refusal = REBOOTSTRAP_REQUIRED if request.forced == REBOOTSTRAP_REQUIRED else NONE
    names = [] if refusal else names
    out = request.answer.int32(0).count(len(cluster.brokers))
    for node_id, (host, port) in sorted(cluster.brokers.items()):
        out.int32(node_id).string(host).int32(port).string(None).tags()
    out.string(cluster.cluster_id).int32(min(cluster.brokers)).count(len(names))
    for name in names:
        _topic_metadata(out, name, cluster.topics.get(name), request.forced)
    if request.version >= 13:
        out.int16(refusal)
    return out.tags()


def _topic_metadata(out: AnswerWriter, name: str, topic: FakeTopic | None, forced: int) -> None:
    code = forced if forced != -2 else NONE if topic else UNKNOWN_TOPIC_OR_PARTITION
    out.int16(code).string(name).raw(topic.topic_id if topic else _NO_TOPIC_ID).int8(0)
    partitions = topic.logs if topic and not code else {}
    out.count(len(partitions))
    for index, log in partitions.items():
        leader = topic.leaders[index] if topic else -1
        out.int16(NONE if leader >= 0 else 5).int32(index).int32(leader).int32(log.leader_epoch)
        out.ints((leader,)).ints((leader,)).ints(()).tags()
    out.int32(-(2**31)).tags()


async def _init_producer_id(request: Request) -> AnswerWriter:
    reader, cluster = request.reader, request.cluster
    name = reader.string()
    reader.int32()
    asked = reader.int64(), reader.int16()
    if name is not None and request.forced == -2:
        code = _coordinated(request)
        answer = (code, -1, -1)
        if not code:
            answer = cluster.transactions.init(name, *asked, cluster.new_producer_id())
            cluster.write_markers()
        return request.answer.int32(0).int16(answer[0]).int64(answer[1]).int16(answer[2]).tags()
    code = max(request.forced, NONE) if request.forced != -1 else -1
    producer_id = -1 if code else request.cluster.new_producer_id()
    out = request.answer.int32(0).int16(code).int64(producer_id).int16(-1 if code else 0)
    return out.tags()


def _coordinated(request: Request) -> int:
    """Return why this broker answers nothing about transactions."""
    coordinator = request.cluster.transactions.coordinator
    return NONE if coordinator in (-1, request.node_id) else NOT_COORDINATOR


async def _find_coordinator(request: Request) -> AnswerWriter:
    reader, cluster = request.reader, request.cluster
    reader.text()
    reader.int8()
    node_id = cluster.transactions.coordinator
    node_id = request.node_id if node_id < 0 else node_id
    host, port = cluster.brokers[node_id]
    code = max(request.forced, NONE)
    return request.answer.int32(0).int16(code).string(None).int32(node_id).string(host).int32(port)


async def _add_partitions(request: Request) -> AnswerWriter:
    reader, out = request.reader, request.answer
    name, _, epoch = reader.text(), reader.int64(), reader.int16()
    topics: dict[str, list[int]] = {}
    for _ in range(reader.count()):
        topic = reader.text()
        topics[topic] = [reader.int32() for _ in range(reader.count())]
    code = request.forced if request.forced != -2 else _coordinated(request)
    if not code:
        wanted = {TopicPartition(topic, p) for topic, indexes in topics.items() for p in indexes}
        code = request.cluster.transactions.add(name, epoch, wanted)
    out.int32(0).count(len(topics))
    for topic, indexes in topics.items():
        out.string(topic).count(len(indexes))
        for index in indexes:
            refusal = request.cluster.transactions.refusals.get(TopicPartition(topic, index), code)
            out.int32(index).int16(refusal if request.forced == -2 else code)
    return out


async def _end_txn(request: Request) -> AnswerWriter:
    reader, transactions = request.reader, request.cluster.transactions
    name, _, epoch = reader.text(), reader.int64(), reader.int16()
    commit, implicit = bool(reader.int8()), request.version >= 5
    code = request.forced if request.forced != -2 else _coordinated(request)
    if not code:
        code = transactions.end(name, epoch, commit=commit, implicit=implicit)
        request.cluster.write_markers()
    out = request.answer.int32(0).int16(code)
    if implicit:
        producer_id, epoch = (-1, -1) if code else transactions.current(name)
        out.int64(producer_id).int16(epoch)
    return out.tags()


async def _write_markers(request: Request) -> AnswerWriter:
    reader, cluster, out = request.reader, request.cluster, request.answer
    markers = reader.count()
    out.count(markers)
    for _ in range(markers):
        producer_id, epoch = reader.int64(), reader.int16()
        reader.int8()
        topics = reader.count()
        out.int64(producer_id).count(topics)
        for _ in range(topics):
            topic, partitions = reader.text(), reader.count()
            out.string(topic).count(partitions)
            for partition in [reader.int32() for _ in range(partitions)]:
                found = _find(request, topic, partition)
                code = found if isinstance(found, int) else found.abort(producer_id, epoch)
                if not code:
                    cluster.write_marker(TopicPartition(topic, partition), producer_id, epoch)
                out.int32(partition).int16(code).tags()
            reader.tags()
            out.tags()
        reader.int32()
        reader.tags()
        out.tags()
    return out.tags()


async def _produce(request: Request) -> AnswerWriter:
    reader, out = request.reader, request.answer
    reader.string()  # transactional id
    reader.int16()
    reader.int32()
    topics = reader.count()
    out.count(topics)
    for _ in range(topics):
        topic = reader.text()
        partitions = reader.count()
        out.string(topic).count(partitions)
        for _ in range(partitions):
            tp = TopicPartition(topic, reader.int32())
            data = reader.data()
            reader.tags()
            _produced(out, request, tp, _append(request, tp, data or b""))
        reader.tags()
        out.tags()
    return out.int32(request.cluster.produce_throttle_ms).tags()


def _append(request: Request, tp: TopicPartition, data: bytes) -> AppendResult:
    if request.forced != -2:
        if request.apply and request.cluster.find(*tp) is not None:
            request.cluster.append(tp, data, request.version)
        return AppendResult(request.forced)
    found = _find(request, *tp)
    return (
        AppendResult(found)
        if isinstance(found, int)
        else request.cluster.append(tp, data, request.version)
    )


def _produced(
    out: AnswerWriter, request: Request, tp: TopicPartition, result: AppendResult
) -> None:
    out.int32(tp.partition).int16(result.error_code)
    out.int64(result.base_offset).int64(result.append_time)
    if request.version >= 5:
        log = request.cluster.find(*tp)
        out.int64(-1 if result.error_code or log is None else log.start)
    if request.version >= 8:
        out.count(0).string(None)
    tagged: dict[int, bytes] = {}
    topic = request.cluster.topics.get(tp.topic)
    if request.version >= 10 and result.error_code == NOT_LEADER_OR_FOLLOWER and topic:
        leader, epoch = topic.leaders[tp.partition], topic.logs[tp.partition].leader_epoch
        tagged[0] = leader.to_bytes(4, "big", signed=True) + epoch.to_bytes(4, "big") + b"\x00"
    out.tags(tagged)


async def _list_offsets(request: Request) -> AnswerWriter:
    reader, out = request.reader, request.answer
    reader.int32()
    committed = reader.int8() == 1
    topics = reader.count()
    out.int32(0).count(topics)
    for _ in range(topics):
        topic = reader.text()
        partitions = reader.count()
        out.string(topic).count(partitions)
        for _ in range(partitions):
            partition, _, timestamp = reader.int32(), reader.int32(), reader.int64()
            found = _find(request, topic, partition)
            out.int32(partition)
            if isinstance(found, int):
                out.int16(found).int64(-1).int64(-1).int32(-1)
            else:
                end = found.stable_end if committed else found.end
                offset = found.start if timestamp == EARLIEST else end
                if timestamp >= 0:
                    offset = found.first_since(timestamp)
                out.int16(NONE).int64(-1).int64(offset).int32(found.leader_epoch)
    return out


async def _epoch_ends(request: Request) -> AnswerWriter:
    reader, out = request.reader, request.answer
    reader.int32()
    topics = reader.count()
    out.int32(0).count(topics)
    for _ in range(topics):
        topic = reader.text()
        partitions = reader.count()
        out.string(topic).count(partitions)
        for _ in range(partitions):
            partition, _, epoch = reader.int32(), reader.int32(), reader.int32()
            found = _find(request, topic, partition)
            if isinstance(found, int):
                out.int16(found).int32(partition).int32(-1).int64(-1)
            else:
                known, end = found.epoch_end(epoch)
                out.int16(NONE).int32(partition).int32(known).int64(end)
    return out


async def _create_topics(request: Request) -> AnswerWriter:
    reader, out, cluster = request.reader, request.answer, request.cluster
    topics = reader.count()
    out.int32(0).count(topics)
    for _ in range(topics):
        name, partitions = reader.text(), reader.int32()
        reader.int16()
        for _ in range(reader.count()):
            reader.int32()
            for _ in range(reader.count()):
                reader.int32()
        for _ in range(reader.count()):
            reader.string()
            reader.string()
        code = request.forced if request.forced != -2 else NONE
        if not code and name in cluster.topics:
            code = TOPIC_ALREADY_EXISTS
        if not code:
            cluster.create_topic(name, max(partitions, 1), request.node_id)
        out.string(name).int16(code).string(None)
    return out


async def _client_quotas(request: Request) -> AnswerWriter:
    quotas = request.cluster.quotas
    out = request.answer.int32(0).int16(max(request.forced, NONE)).string(None).count(len(quotas))
    for client_id, rate in quotas.items():
        out.count(1).string("client-id").string(client_id)
        out.count(1).string("consumer_byte_rate").raw(pack(">d", rate))
    return out


APIS: Final[Mapping[int, Api]] = {
    0: Api(3, 9, 9, _produce),
    1: Api(4, 12, 12, fetch),
    2: Api(5, 5, 6, _list_offsets),
    3: Api(12, 13, 9, _metadata),
    10: Api(1, 2, 3, _find_coordinator),
    18: Api(0, 0, 3, _versions_answer),
    19: Api(4, 4, 5, _create_topics),
    22: Api(3, 4, 2, _init_producer_id),
    23: Api(3, 3, 4, _epoch_ends),
    24: Api(0, 2, 3, _add_partitions),
    26: Api(0, 5, 3, _end_txn),
    27: Api(1, 1, 1, _write_markers),
    48: Api(0, 0, 1, _client_quotas),
}
"""By api key. ``FakeBroker(versions=...)`` narrows; Produce may be widened to 12, Fetch to 17."""
