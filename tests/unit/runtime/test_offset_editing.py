"""Positions read, altered and reset by hand (kcr 1.9, 2.3, 8 no. 78)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import pytest

from mm2py.api.connector import ConnectorFactory
from mm2py.errors import ConfigError, RetriableError
from mm2py.runtime.errors import BadRequestError, HerderError
from mm2py.runtime.herder.api import OffsetEditing, OffsetEntry
from mm2py.runtime.herder.offset_editing import OffsetEditor
from mm2py.storage.memory import MemoryOffsetBackingStore

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


class Broken:
    """A store that is away."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        raise RetriableError("the target is away")

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        raise RetriableError("the target is away")


def find(name: str) -> ConnectorFactory:
    return cast("ConnectorFactory", {"Checked": Checked, "Silent": Silent}[name])


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


async def test_positions_are_read_without_tombstones_and_without_other_connectors(
    bench: Bench,
) -> None:
    await bench.store.set({b'["c",null]': b"{}", b'["c",{"x":1}]': b"{}"})
    await bench.store.set({b'["c",{"x":1}]': None})
    assert await bench.editor.read("c", CONFIG) == [
        OffsetEntry(None, {}),
        OffsetEntry(PARTITION, {"offset": 41}),
    ]
    assert await bench.editor.read("unknown", CONFIG) == []


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


async def test_a_reset_removes_what_is_there_of_this_connector_only(bench: Bench) -> None:
    await bench.store.set({OTHER_ORDER: b'{"offset":7}'})
    answer = await bench.editor.reset("c", CONFIG)
    assert answer == "The offsets for this connector have been reset successfully"
    assert await bench.store.entries("c") == {}
    assert await bench.value(FOREIGN) == b'{"offset":1}'


async def test_a_connector_without_a_say_gets_the_longer_message(bench: Bench) -> None:
    answer = await bench.editor.reset("c", {"connector.class": "Silent"})
    assert answer.startswith(
        "The Connect framework-managed offsets for this connector have been reset successfully."
    )
    assert answer.endswith("manually reset in the system that the connector uses.")


async def test_the_connectors_refusal_is_a_400_in_its_words_and_nothing_is_written(
    bench: Bench,
) -> None:
    entries = [OffsetEntry(PARTITION, {"offset": 1}), OffsetEntry(PARTITION, {"offset": "bad"})]
    with pytest.raises(HerderError) as refused:
        await bench.editor.alter("c", CONFIG, entries)
    assert (refused.value.status, refused.value.message) == (400, "Source offset is bad")
    assert await bench.value(KEY) == b'{"offset":41}'


async def test_nothing_to_alter_is_a_bad_request(bench: Bench) -> None:
    with pytest.raises(BadRequestError, match="Partitions / offsets need to be provided"):
        await bench.editor.alter("c", CONFIG, [])


async def test_an_empty_entry_is_a_tombstone(bench: Bench) -> None:
    await bench.editor.alter("c", CONFIG, [OffsetEntry(None, None)])
    assert await bench.value(b'["c",null]') is None


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
