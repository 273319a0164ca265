"""Stored positions, read and changed over REST: of sources and of sinks."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import pytest

from mm2py.api.connector import ConnectorFactory
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR
from mm2py.errors import ConfigError, Mm2pyError, RequestTimedOutError, RetriableError
from mm2py.mirror.offset_checks import java_text
from mm2py.protocol import error_codes as codes
from mm2py.runtime.errors import BadRequestError, HerderError
from mm2py.runtime.herder.api import OffsetEditing, OffsetEntry
from mm2py.runtime.herder.offset_editing import OffsetEditor, SinkOffsetEditor, editor_by_type
from mm2py.types import TopicPartition
from tests.kit.fakes.stores import MemoryOffsetBackingStore

CONFIG = {"connector.class": "Checked"}
KEY = b'["c",{"cluster":"A","partition":0,"topic":"t"}]'
OTHER_ORDER = b'["c",{"topic":"t","cluster":"A","partition":0}]'
PARTITION: dict[str, str | int | float | bool | None] = {
    "topic": "t",
    "partition": 0,
    "cluster": "A",
}
FOREIGN = b'["d",{"cluster":"A","partition":0,"topic":"t"}]'

Positions = Sequence[tuple[Mapping[str, object] | None, Mapping[str, object] | None]]


class Checked:
    """A connector class that has a say."""

    @staticmethod
    def check_offsets(config: Mapping[str, str], offsets: Positions) -> bool:
        assert config == CONFIG
        if any(offset == {"offset": "bad"} for _, offset in offsets):
            raise ConfigError("Source offset is bad")
        return True


class Silent:
    """A connector class without a say."""


class Files:
    plugin_type = "sink"


class Mirror:
    plugin_type = "sink"

    @staticmethod
    def consumer_properties(config: Mapping[str, str]) -> Mapping[str, str]:
        return {"bootstrap.servers": "source:1"}

    @staticmethod
    def check_offsets(config: Mapping[str, str], offsets: object) -> bool:
        return True


def find(name: str) -> ConnectorFactory:
    classes = {it.__name__: it for it in (Checked, Silent, Files, Mirror)}
    return cast("ConnectorFactory", classes.get(name, Silent))


class Broken:
    """A store that is away."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        raise RetriableError("the target is away")

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        raise RetriableError("the target is away")


class Bench:
    def __init__(self) -> None:
        self.store = MemoryOffsetBackingStore()
        self.editor: OffsetEditing = OffsetEditor(self.store, find)

    async def value(self, key: bytes) -> bytes | None:
        return (await self.store.get([key]))[0]


@asynccontextmanager
async def filled() -> AsyncGenerator[Bench]:
    bench = Bench()
    await bench.store.set({KEY: b'{"offset":41}', FOREIGN: b'{"offset":1}'})
    yield bench


@pytest.fixture
def bench() -> AbstractAsyncContextManager[Bench]:
    return filled()


async def test_positions_are_read_without_tombstones_and_of_one_connector(bench: Bench) -> None:
    await bench.store.set({b'["c",null]': b"{}", b'["c",{"x":1}]': b"{}"})
    await bench.store.set({b'["c",{"x":1}]': None})
    assert await bench.editor.read("c", CONFIG) == [
        OffsetEntry(None, {}),
        OffsetEntry(PARTITION, {"offset": 41}),
    ]
    assert await bench.editor.read("unknown", CONFIG) == []


async def test_what_a_connectors_own_topic_has_counts_before_the_workers(bench: Bench) -> None:
    own = MemoryOffsetBackingStore()
    await own.set({KEY: b'{"offset":50}'})
    editor = OffsetEditor(bench.store, find, lambda _topic: own)
    config = {**CONFIG, "connector.class": "Silent", "offsets.storage.topic": "own"}
    assert await editor.read("c", config) == [OffsetEntry(PARTITION, {"offset": 50})]
    await editor.reset("c", config)
    assert await editor.read("c", config) == []
    assert await own.get([KEY]) == [None]


async def test_a_partition_in_two_orders_is_one(bench: Bench) -> None:
    await bench.store.set({OTHER_ORDER: b'{"offset":7}'})
    assert await bench.editor.read("c", CONFIG) == [OffsetEntry(PARTITION, {"offset": 41})]
    await bench.editor.alter("c", CONFIG, [OffsetEntry(PARTITION, None)])
    assert await bench.editor.read("c", CONFIG) == []


async def test_only_the_listed_positions_change_and_are_stored_as_java_does(bench: Bench) -> None:
    second = {**PARTITION, "partition": 1}
    answer = await bench.editor.alter(
        "c", CONFIG, [OffsetEntry(second, {"offset": 5}), OffsetEntry(second, {"offset": 6})]
    )
    assert answer == "The offsets for this connector have been altered successfully"
    assert await bench.value(KEY.replace(b":0", b":1")) == b'{"offset":6}'
    assert await bench.value(KEY) == b'{"offset":41}'
    await bench.editor.alter("c", CONFIG, [OffsetEntry(PARTITION, None)])
    assert await bench.value(KEY) is None


@pytest.mark.parametrize("name", ["Silent", MIRROR_SOURCE_CONNECTOR])
async def test_a_mirrors_position_that_is_written_back_is_none_that_its_task_stored(
    bench: Bench, name: str
) -> None:
    """Another connector's has whatever members it has."""
    offset: Mapping[str, str | int] = {"offset": 7, "epoch": "3@7", "topic_id": "00@7"}
    await bench.editor.alter("c", {"connector.class": name}, [OffsetEntry(PARTITION, offset)])
    (entry,) = await bench.editor.read("c", CONFIG)
    assert entry.offset == (offset if name == "Silent" else {"offset": 7})


@pytest.mark.parametrize(
    ("change", "offset", "warned"),
    [
        ({}, {"offset": 5}, False),
        ({"cluster": "B"}, {"offset": 5}, True),
        ({"topic": "u"}, {"offset": 5}, True),
        ({"partition": 9}, {"offset": 5}, True),
        ({"partition": 9}, None, False),
    ],
)
async def test_a_position_of_what_had_none_is_stored_as_in_java_and_logged(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    change: Mapping[str, str | int],
    offset: Mapping[str, int] | None,
    warned: bool,
) -> None:
    partition = {**PARTITION, **change}
    answer = await bench.editor.alter("c", CONFIG, [OffsetEntry(partition, offset)])
    assert answer == "The offsets for this connector have been altered successfully"
    shown = f"partitions={java_text(partition)}; they count where the connector has these"
    assert (shown in caplog.text) == warned


async def test_a_connector_without_a_say_gets_the_longer_message(bench: Bench) -> None:
    answer = await bench.editor.reset("c", {"connector.class": "Silent"})
    assert answer.startswith(
        "The Connect framework-managed offsets for this connector have been reset successfully."
    )
    assert answer.endswith("manually reset in the system that the connector uses.")


async def test_the_connectors_refusal_is_a_400_and_nothing_is_written(bench: Bench) -> None:
    entries = [OffsetEntry(PARTITION, {"offset": 1}), OffsetEntry(PARTITION, {"offset": "bad"})]
    with pytest.raises(HerderError) as refused:
        await bench.editor.alter("c", CONFIG, entries)
    assert (refused.value.status, refused.value.message) == (400, "Source offset is bad")
    assert await bench.value(KEY) == b'{"offset":41}'


@pytest.mark.parametrize(("member", "kind"), [({"a": 1}, "MAP"), ([1], "ARRAY")])
async def test_only_primitive_values_are_stored(bench: Bench, member: object, kind: str) -> None:
    partition = cast("dict[str, str]", {"f": member})
    with pytest.raises(HerderError) as refused:
        await bench.editor.alter("c", CONFIG, [OffsetEntry(partition, {"offset": 1})])
    assert refused.value.message == (
        f"Offsets may only contain primitive types as values, but field f contains {kind}"
    )


async def test_a_store_that_is_away_is_said_as_it_is() -> None:
    editor = OffsetEditor(Broken(), find)
    with pytest.raises(HerderError, match=r"Failed to read offsets for connector c: .* away"):
        await editor.read("c", CONFIG)


# ---- sinks


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FILES = {"name": "files", "connector.class": "Files"}
MIRROR = {"name": "m", "connector.class": "Mirror"}
HALF = "However, if this connector manages offsets externally, they will need to be manually {0} in the system"


class Groups:
    """Groups in memory; ``error`` is raised by each change."""

    def __init__(self) -> None:
        self.committed = {"connect-files": {T1: 7, T0: 3}}
        self.error: Mm2pyError | None = None
        self.opened: list[str] = []

    @asynccontextmanager
    async def open(self, consumer: Mapping[str, str], connector: str) -> AsyncGenerator["Groups"]:
        self.opened.append(consumer["bootstrap.servers"])
        yield self

    async def offsets(self, group: str) -> Mapping[TopicPartition, int]:
        if self.error is not None:
            raise self.error
        return self.committed.get(group, {})

    async def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        if self.error is not None:
            raise self.error
        self.committed.setdefault(group, {}).update(positions)

    async def remove(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self.committed[group].pop(partition, None)

    async def delete(self, group: str) -> None:
        if self.error is not None:
            raise self.error
        self.committed.pop(group, None)


def editor(groups: Groups) -> SinkOffsetEditor:
    return SinkOffsetEditor(find, {"bootstrap.servers": "worker:1"}, groups.open)


def entry(topic: object, partition: object, offset: object) -> OffsetEntry:
    position = None if offset is None else {"kafka_offset": offset}
    return OffsetEntry({"kafka_topic": topic, "kafka_partition": partition}, position)  # type: ignore[dict-item, arg-type]


async def test_positions_are_those_of_the_group_on_the_cluster_that_the_tasks_read() -> None:
    groups = Groups()
    assert await editor(groups).read("files", FILES) == [entry("t", 0, 3), entry("t", 1, 7)]
    groups.committed["connect-m"] = {T0: 1}
    assert await editor(groups).read("m", MIRROR) == [entry("t", 0, 1)]
    assert groups.opened == ["worker:1", "source:1"]


async def test_only_what_is_listed_changes_null_removes_and_a_reset_deletes_the_group() -> None:
    groups = Groups()
    given = [entry("t", "0", "12"), entry("t", 1, None), entry(5, 0, 1)]
    text = await editor(groups).alter("files", FILES, given)
    assert groups.committed["connect-files"] == {T0: 12, TopicPartition("5", 0): 1}
    assert HALF.format("altered") in text
    assert HALF.format("reset") in await editor(groups).reset("files", FILES)
    assert groups.committed == {}
    answered = await editor(groups).alter("m", MIRROR, [entry("t", 0, 1)])
    assert answered == "The offsets for this connector have been altered successfully"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "Partitions / offsets need to be provided for an alter offsets request"),
        (
            [OffsetEntry(None, None)],
            "The partition for a sink connector offset cannot be null or missing",
        ),
        (
            [OffsetEntry({"topic": "t"}, None)],
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'",
        ),
        ([entry(None, 0, 1)], "Kafka topic names must be valid strings and may not be null"),
        ([entry("t", None, 1)], "Kafka partitions must be valid numbers and may not be null"),
        (
            [entry("t", "x", 1)],
            "Failed to parse the following Kafka partition value in the provided offsets: 'x'. Partition values for sink"
            " connectors need to be integers.",
        ),
        (
            [entry("t", 1 << 31, 1)],
            "Failed to parse the following Kafka partition value in the provided offsets: '2147483648'. Partition values for sink"
            " connectors need to be integers.",
        ),
        (
            [entry("t", 0, 1 << 63)],
            "Failed to parse the following Kafka offset value in the provided offsets: '9223372036854775808'. Offset values for"
            " sink connectors need to be integers.",
        ),
        (
            [OffsetEntry({"kafka_topic": "t", "kafka_partition": 0}, {"offset": 1})],
            "The offset for a sink connector should either be null or contain the key 'kafka_offset'",
        ),
        (
            [OffsetEntry({"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": None})],
            "Failed to parse the following Kafka offset value in the provided offsets: 'null'. Offset values for sink"
            " connectors need to be integers.",
        ),
    ],
)
async def test_what_is_wrong_is_refused_in_connects_words_and_nothing_is_written(
    given: Sequence[OffsetEntry], text: str
) -> None:
    groups = Groups()
    with pytest.raises(BadRequestError) as caught:
        await editor(groups).alter("files", FILES, [entry("t", 0, 9), *given] if given else given)
    assert caught.value.message == text
    assert groups.opened == []


async def test_a_negative_offset_is_no_offset() -> None:
    with pytest.raises(HerderError, match="Failed to modify offsets for sink connector files"):
        await editor(Groups()).alter("files", FILES, [entry("t", 0, -1)])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (codes.server_error(codes.UNKNOWN_MEMBER_ID), "zombie sink task"),
        (codes.server_error(codes.NON_EMPTY_GROUP), "zombie sink task"),
        (RequestTimedOutError("no answer"), "group offsets for connector files: no answer"),
    ],
)
async def test_a_task_in_the_group_and_a_cluster_that_does_not_answer_are_named(
    error: Mm2pyError, said: str
) -> None:
    groups = Groups()
    groups.error = error
    with pytest.raises(HerderError, match=said):
        await editor(groups).alter("files", FILES, [entry("t", 0, 1)])
    with pytest.raises(HerderError, match=said):
        await editor(groups).reset("files", FILES)
    with pytest.raises(HerderError, match="Failed to list offsets for connector files"):
        await editor(groups).read("files", FILES)


async def test_each_connector_goes_to_the_editor_of_its_type() -> None:
    groups = Groups()
    both = editor_by_type(find, OffsetEditor(MemoryOffsetBackingStore(), find), editor(groups))
    assert await both(FILES).read("files", FILES)
    assert await both({"connector.class": "Silent"}).read("s", {}) == []
    assert len(groups.opened) == 1
    await both(FILES).reset("files", FILES)
    assert groups.committed == {}
