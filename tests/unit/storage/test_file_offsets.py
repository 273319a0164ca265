"""Offsets in a file: there after a restart, never half written, nobody else's file overwritten."""

import stat
from pathlib import Path

import pytest

from mm2py.errors import ConfigError, RetriableError
from mm2py.storage.offset_backing_store import FileOffsetBackingStore

KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"gr\xc3\xb6\xc3\x9fe"}]'
OTHER = b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]'


async def opened(path: Path) -> FileOffsetBackingStore:
    store = FileOffsetBackingStore(path)
    await store.start()
    return store


async def test_offsets_are_there_after_a_restart_and_tombstones_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = await opened(path)
    assert await store.get([KEY]) == [None]
    await store.set({KEY: b'{"offset":1}', OTHER: b'{"offset":0}'})
    await store.set({KEY: b'{"offset":2}'})
    await store.set({OTHER: None})
    await store.stop()
    again = await opened(path)
    assert await again.get([KEY, OTHER]) == [b'{"offset":2}', None]
    assert await again.entries("MirrorSourceConnector") == {KEY: b'{"offset":2}'}
    assert [entry.name for entry in tmp_path.iterdir()] == ["offsets.json"]
    assert stat.S_IMODE((tmp_path / "offsets.json").stat().st_mode) == 0o600


async def test_a_failed_write_leaves_the_old_file_and_the_old_values(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = await opened(path)
    await store.set({KEY: b'{"offset":1}'})
    (tmp_path / ".offsets.json.new").mkdir()
    with pytest.raises(RetriableError, match=r"offsets cannot be written to .*offsets\.json"):
        await store.set({KEY: b'{"offset":2}'})
    assert await store.get([KEY]) == [b'{"offset":1}']
    assert await (await opened(path)).get([KEY]) == [b'{"offset":1}']
    (tmp_path / ".offsets.json.new").rmdir()
    await store.set({KEY: b'{"offset":2}'})


@pytest.mark.parametrize(
    "content",
    [
        b"\xac\xed\x00\x05sr",
        b"",
        b"[]",
        b"{}",
        b'{"format":"mm2py-offsets-2","offsets":{}}',
        b'{"format":"mm2py-offsets-1","offsets":{"a":1}}',
    ],
)
async def test_a_file_of_somebody_else_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no offset file of mm2py"):
        await opened(path)
    assert path.read_bytes() == content


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"offset\.storage\.file\.filename=.* cannot be read"):
        await opened(tmp_path)
