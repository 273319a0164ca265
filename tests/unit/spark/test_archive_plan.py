"""What a run of an archive plans, reports and leaves, over a broker in memory and lanes in this process."""

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError, FatalError
from mm2py.mirror.backfills import LANE_LOST
from mm2py.mirror.failovers import HANGS_MS
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.archive import archive
from mm2py_jobs.archive.archive import archive_flow, archive_root, missing_of
from mm2py_jobs.archive.archive_format import (
    ArchivedTopic,
    ArchiveHead,
    FileManifest,
    Shape,
    archived_batches,
    chain_of,
    note_ranges,
    noted_ranges,
    partition_folder,
    publish_staged,
    put_manifest,
    put_or_check,
    range_of_chain,
    topic_of,
)
from mm2py_jobs.archive.archive_removal import remove_doubled
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.log.log_ends import LogEnds
from mm2py_jobs.spark.session import OpenSession
from tests.kit.fakes.broker import FakeBroker
from tests.unit.spark.test_archive_task import a_batch
from tests.unit.spark.test_lanes_that_fail import OneSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, object]
AB = FlowName(ClusterAlias("A"), ClusterAlias("B"))
T, U = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture(autouse=True)
def no_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_admin: Admin, names: Mapping[str, object]) -> Mapping[str, object]:
        return dict.fromkeys(names, ())

    monkeypatch.setattr(Admin, "read_topic_configs", none)
    monkeypatch.setattr(Admin, "describe_topic_configs", none)


def sides(broker: FakeBroker, isolation: str = "read_uncommitted") -> FlowSides:
    connector = {
        "source.consumer.isolation.level": isolation,
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": f"127.0.0.1:{broker.port}",
        "source.consumer.default.api.timeout.ms": "1000",
        "topics": ".*",
    }
    return FlowSides(AB, connector, {})


async def archived(
    broker: FakeBroker,
    path: Path,
    shape: Shape = Shape.BATCHES,
    before: Callable[[], object] = lambda: None,
    isolation: str = "read_uncommitted",
) -> dict[str, Row]:
    """Archive everything, after something has happened ``before`` the lanes begin; return the rows of the report."""

    def opened() -> OpenSession:
        before()
        return OpenSession(cast("SparkSession", OneSlot()), owned=False)

    report = await asyncio.to_thread(
        archive_flow, sides(broker, isolation), str(path), shape, opened
    )
    return {
        f"{it['topic']}-{it['partition']}": it for it in cast("list[Row]", report["partitions"])
    }


def store_in(path: Path) -> ArchiveStore:
    return ArchiveStore(f"{path}/A-B")


async def test_what_cannot_be_archived_of_one_topic_ends_no_other(tmp_path: Path) -> None:
    names = ("again", "damaged", "gap", "headless", "well")
    async with FakeBroker(topics=dict.fromkeys(names, 1)) as broker:
        for name in names:
            broker.append(TopicPartition(name, 0), bytes(a_batch(0)))
        first = await archived(broker, tmp_path)
        assert {it["cause"] for it in first.values()} == {""}
        folder = tmp_path / "A-B"
        manifest = next((folder / "topic=damaged/partition=0").glob("*.json"))
        manifest.write_bytes(manifest.read_bytes()[:20])
        moved = next((folder / "topic=gap/partition=0").glob("*.json"))
        moved.write_bytes(moved.read_bytes().replace(b'"gap"', b'"gab"'))
        broker.cluster.topics["headless"].leaders[0] = -1
        del broker.cluster.topics["again"]
        broker.create_topic("again")
        for name in names:
            if name != "headless":
                broker.append(TopicPartition(name, 0), bytes(a_batch(0)))
        rows = await archived(broker, tmp_path)
    assert {name: bool(it["cause"]) for name, it in rows.items()} == {
        "again--1": True,
        "damaged-0": True,
        "gap-0": True,
        "headless-0": True,
        "well-0": False,
    }
    assert (rows["well-0"]["from"], rows["well-0"]["to"]) == (5, 10)
    assert "archive to another folder" in str(rows["again--1"]["cause"])


async def test_a_partition_that_loses_its_leader_while_it_is_archived_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "TRIES", 1)
    names = ("a", "headless", "z")
    async with FakeBroker(topics=dict.fromkeys(names, 1)) as broker:
        for name in names:
            broker.append(TopicPartition(name, 0), bytes(a_batch(0)))
        leaders = broker.cluster.topics["headless"].leaders
        rows = await archived(broker, tmp_path, before=lambda: leaders.update({0: -1}))
        assert {it: row["records"] for it, row in rows.items()} == {
            "a-0": 5,
            "headless-0": 0,
            "z-0": 5,
        }
        assert [it for it, row in rows.items() if row["cause"]] == ["headless-0"]


@pytest.mark.parametrize(("age_ms", "hangs"), [(HANGS_MS + 60_000, True), (1_000, False)])
async def test_what_lies_behind_a_hanging_transaction_is_said_whether_there_is_something_before_it_or_not(
    tmp_path: Path, age_ms: int, *, hangs: bool
) -> None:
    stamp = SYSTEM_CLOCK.now_ms() - age_ms
    opened = bytes(encode_batch([NewRecord(None, b"open", (), stamp)]))
    async with FakeBroker(topics={"t": 1, "u": 1}) as broker:
        for tp in (T, U):
            broker.append(tp, bytes(a_batch(0)))
            broker.append(tp, opened)
        broker.partition(T).open_transaction_at = 5
        rows = [await archived(broker, tmp_path, isolation="read_committed") for _ in range(2)]
    assert [(row["t-0"]["to"], row["u-0"]["to"]) for row in rows[:1]] == [(5, 6)]
    assert not rows[0]["u-0"]["cause"]
    causes = [str(row["t-0"]["cause"]) for row in rows if "t-0" in row]
    assert len(causes) == (2 if hangs else 1)
    assert all(("a transaction is open at offset 5" in it) is hangs for it in causes)


run_lane = archive.run_lane


def dies_of_u(lane: Mapping[str, object]) -> dict[str, object]:
    rows = cast("list[list[object]]", lane["partitions"])
    if not lane["lost"] and any(row[0] == "u" for row in rows):
        os._exit(9)
    return run_lane(lane)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
async def test_a_partition_that_the_process_of_its_lane_dies_of_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm2py_jobs.spark.session._attempt", lambda: 5)
    monkeypatch.setattr(archive, "run_lane", dies_of_u)
    monkeypatch.setattr("mm2py_jobs.copy.dealing.LANES_PER_SLOT", 1)
    async with FakeBroker(topics={"t": 1, "u": 1, "v": 1}) as broker:
        for name in "tuv":
            broker.append(TopicPartition(name, 0), bytes(a_batch(0)))
        rows = await archived(broker, tmp_path)
    assert {name: row["records"] for name, row in rows.items()} == {"t-0": 5, "u-0": 0, "v-0": 5}
    assert rows["u-0"]["cause"] == f"u-0: {LANE_LOST} (exit code 9)"
    assert {name for name, row in rows.items() if row["cause"]} == {"u-0"}


class Reads:
    """Counts what a store reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        read = ArchiveStore.read

        def counted(store: ArchiveStore, name: str) -> bytes:
            self.names.append(name)
            return read(store, name)

        monkeypatch.setattr(ArchiveStore, "read", counted)


async def test_a_further_run_reads_one_manifest_of_a_partition_however_long_it_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeBroker(topics={"t": 1, "u": 1}) as broker:
        broker.append(U, bytes(a_batch(0)))
        counts: list[int] = []
        for _ in range(4):
            broker.append(T, bytes(a_batch(0)))
            with monkeypatch.context() as patched:
                reads = Reads(patched)
                rows = await archived(broker, tmp_path)
            assert (rows["t-0"]["cause"], rows["t-0"]["records"]) == ("", 5)
            counts.append(sum("partition=" in name for name in reads.names))
        assert [it.end for it in chain_of(store_in(tmp_path), T)] == [5, 10, 15, 20]
        assert counts[1] == counts[2] == counts[3]
        reads = Reads(monkeypatch)
        assert await archived(broker, tmp_path) == {}
        assert sum("partition=" in name for name in reads.names) == 2


async def test_an_archive_notes_how_far_its_partitions_are(tmp_path: Path) -> None:
    async with FakeBroker(topics={"t": 1, "u": 1}) as broker:
        await archived(broker, tmp_path)  # both are empty
        store = store_in(tmp_path)
        assert (noted_ranges(store, "t"), topic_of(store, "t").ends) == ({}, {"0": 0})
        for end in (5, 10):
            broker.append(T, bytes(a_batch(0)))
            await archived(broker, tmp_path)
            assert noted_ranges(store, "t") == {0: (0, end)}
        (tmp_path / "A-B/topic=t/ranges.json").write_bytes(b"{")
        await archived(broker, tmp_path)
        assert noted_ranges(store, "t") == {0: (0, 10)}


# -- files of a store


def staged_file(begins: int, end: int, mark: str) -> tuple[str, FileManifest]:
    name = f"{mark}.parquet"
    return name, FileManifest(
        topic="t", partition=0, first=begins, end=end, records=1, size_bytes=1, file=name, sha256=""
    )


def test_what_is_staged_is_published_when_the_chain_has_reached_it(tmp_path: Path) -> None:
    tp, store = TopicPartition("t", 0), ArchiveStore(str(tmp_path))

    def put(begins: int, end: int, mark: str, *, staged: bool) -> None:
        name, manifest = staged_file(begins, end, mark)
        store.replace(f"{partition_folder(tp)}/{name}", b"x")
        assert put_manifest(store, manifest, staged=staged)

    def files() -> list[str]:
        return [it for it in store.files(partition_folder(tp)) if not it.endswith(".parquet")]

    put(20, 30, "c", staged=True)
    assert publish_staged(store, tp), "where the chain begins is not known yet"
    assert publish_staged(store, tp, 19), "the log has what lies before"
    put(0, 10, "a", staged=False)
    assert publish_staged(store, tp)
    assert [it.file for it in chain_of(store, tp)] == ["a.parquet"]
    put(10, 20, "b", staged=True)
    put(40, 50, "e", staged=True)
    assert publish_staged(store, tp)
    assert [it.file for it in chain_of(store, tp)] == ["a.parquet", "b.parquet", "c.parquet"]
    put(30, 45, "d", staged=False)  # of another run, which had other parts
    put(32, 45, "d2", staged=True)
    assert not publish_staged(store, tp)
    assert files() == [f"{it:020d}.json" for it in (0, 10, 20, 30, 40)]
    assert not store.exists(f"{partition_folder(tp)}/d2.parquet")
    put(50, 60, "f", staged=False)
    put(50, 60, "f2", staged=True)
    put(30, 45, "d", staged=True)  # killed before it was removed
    assert not publish_staged(store, tp)
    assert store.exists(f"{partition_folder(tp)}/d.parquet")
    assert not store.exists(f"{partition_folder(tp)}/f2.parquet")
    chain = chain_of(store, tp)
    assert [(it.begins, it.end) for it in chain[2:]] == [(20, 30), (30, 45), (45, 50), (50, 60)]


def test_what_is_staged_and_a_run_that_continued_behind_it_has_not_is_published(
    tmp_path: Path,
) -> None:
    """The run that staged it was killed beside another one, which took it for archived."""
    store = ArchiveStore(str(tmp_path))
    staged = ((10, 15), (15, 30))
    for begins, end in ((0, 10), *staged, (30, 40)):
        name, manifest = staged_file(begins, end, str(begins))
        store.replace(f"{partition_folder(T)}/{name}", b"x")
        assert put_manifest(store, manifest, staged=(begins, end) in staged)
    assert not publish_staged(store, T)
    assert [(it.begins, it.end) for it in chain_of(store, T)] == [(0, 10), *staged, (30, 40)]
    names = store.files(partition_folder(T))
    assert {it.file for it in chain_of(store, T)} <= {*names}
    assert not [it for it in names if it.endswith(".staged")]


def test_what_is_staged_begins_the_chain_once_the_log_has_nothing_before_it(tmp_path: Path) -> None:
    tp, store = TopicPartition("t", 0), ArchiveStore(str(tmp_path))
    for begins, end in ((20, 30), (30, 40), (50, 60)):
        _, manifest = staged_file(begins, end, str(begins))
        put_manifest(store, manifest, staged=True)
    assert publish_staged(store, tp, 35), "retention was ahead of a part that nobody has archived"
    assert [(it.begins, it.end) for it in chain_of(store, tp)] == [(20, 30), (30, 40)]
    assert missing_of(tp, 40, LogEnds(45, 70), [(50, 60)]) == [
        (*tp, 45, 50, 40, True, False),
        (*tp, 60, 70, -1, True, True),
    ]


def refused(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def none_yet(_store: ArchiveStore, _folder: str) -> list[str]:
    return []


@pytest.mark.parametrize("has_links", [True, False])
def test_what_two_writers_publish_is_read_once_and_none_replaces_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    store = ArchiveStore(str(tmp_path))
    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    _, short = staged_file(0, 10, "short")
    _, wide = staged_file(0, 15, "wide")
    assert put_manifest(store, short)
    assert not put_manifest(store, wide)
    assert store.put_if_absent("m.json", b"1")
    assert not store.put_if_absent("m.json", b"2")
    assert store.read("m.json") == b"1"
    assert not [it for it in store.names("") if it.endswith(".tmp")]
    if has_links:
        return
    names = ArchiveStore.names
    monkeypatch.setattr(ArchiveStore, "names", none_yet)  # in the same instant
    assert put_manifest(store, wide)
    monkeypatch.setattr(ArchiveStore, "names", names)
    _, later = staged_file(10, 30, "later")
    assert put_manifest(store, later)
    found = [(it.file, it.first, it.end) for it in chain_of(store, T)]
    assert found == [("wide.parquet", 0, 15), ("later.parquet", 15, 30)]


@pytest.mark.parametrize("moment", ["before", "listed", "after"])
def test_of_two_that_put_a_file_in_the_same_instant_without_hard_links_one_has_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The second does so around the first write of the other after that has found no file, or while
    that lists the folder, which shows neither file nor claim then."""
    store, answers, begun = ArchiveStore(str(tmp_path)), dict[bytes, bool](), list[bytes]()
    write = getattr(ArchiveStore, "_write")  # noqa: B009 - private
    names, missed = ArchiveStore.names, list[str]()
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr("mm2py_jobs.archive.archive_store.AGREE_S", -1)

    def put(data: bytes) -> None:
        try:
            answers[data] = store.put_if_absent("m.json", data, data.__eq__)
        except ConfigError:
            answers[data] = False

    def beside(self: ArchiveStore, name: str, data: bytes) -> None:
        begun.append(data)
        is_first = data == b"1" and begun == [data] * 2  # after that of the link
        if is_first and moment != "after":
            put(b"2")
            missed.extend(["m.json"] * (moment == "listed"))
        write(self, name, data)
        if is_first and moment == "after":
            put(b"2")

    def listed(self: ArchiveStore, folder: str) -> list[str]:
        gone = missed.pop() if missed else ""
        return [it for it in names(self, folder) if it != gone]

    monkeypatch.setattr(ArchiveStore, "_write", beside)
    monkeypatch.setattr(ArchiveStore, "names", listed)
    put(b"1")
    (winner,) = (it for it, is_new in answers.items() if is_new)
    assert (winner, store.read("m.json")) == ((b"1", b"1") if moment == "after" else (b"2", b"2"))
    assert store.names("") == ["m.json"]


HEAD = ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES)
TOPIC = ArchivedTopic(topic="t", topic_id="1", partitions=1, configs={}, ends={"0": 5})


@pytest.mark.parametrize(
    ("mine", "killed", "continues"),
    [
        (HEAD, HEAD, True),
        (HEAD, None, True),  # before all of its claim was written
        (HEAD, replace(HEAD, shape=Shape.RECORDS), False),
        (TOPIC, replace(TOPIC, ends={"0": 3}), True),
        (TOPIC, replace(TOPIC, topic_id="2"), False),
    ],
)
def test_the_claim_of_a_killed_run_refuses_only_runs_with_other_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mine: ArchiveHead | ArchivedTopic,
    killed: ArchiveHead | ArchivedTopic | None,
    *,
    continues: bool,
) -> None:
    store, claim = ArchiveStore(str(tmp_path)), "m.json.0badcafe.claim"
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr("mm2py_jobs.archive.archive_store.AGREE_S", -1)
    put_or_check(store, "killed", killed or mine)
    store.replace(claim, store.read("killed") if killed else store.read("killed")[:9])
    if not continues:
        # Of one topic: a plan leaves it out, and archives the others.
        with pytest.raises(ConfigError, match=f"as {claim} says.*remove {claim} below {tmp_path}"):
            put_or_check(store, "m.json", mine)
        assert store.names("") == ["killed", claim]
        return
    put_or_check(store, "m.json", mine)
    assert json.loads(store.read("m.json")) == asdict(mine)


def test_of_files_that_two_writers_publish_from_the_same_offset_on_the_widest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of an archive of records read all its files; what is staged is left to its turn."""
    store, files = ArchiveStore(str(tmp_path)), dict[str, bool]()
    monkeypatch.setattr(os, "link", refused)
    names = ArchiveStore.names
    monkeypatch.setattr(ArchiveStore, "names", none_yet)  # in the same instant
    for begins, end, mark, staged, stays in (
        (0, 10, "a", False, False),
        (0, 15, "b", False, True),
        (0, 15, "c", True, True),
        (15, 20, "d", False, True),
    ):
        name = f"{begins:020d}-{end - 1:020d}.{mark}.parquet"
        files[name] = stays
        store.replace(f"{partition_folder(T)}/{name}", b"")
        put_manifest(store, replace(staged_file(begins, end, mark)[1], file=name), staged=staged)
    monkeypatch.setattr(ArchiveStore, "names", names)
    remove_doubled(store, T)
    left = [it for it in store.files(partition_folder(T)) if it.endswith(".parquet")]
    assert left == [it for it, stays in files.items() if stays]
    assert [it.end for it in chain_of(store, T)] == [15, 20]
    assert {it.file for it in chain_of(store, T)} <= {*left}


async def test_a_link_that_was_made_by_a_request_whose_answer_was_lost_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS asks again, and is told that the name exists: taken for another one's, its file was removed."""
    link = os.link

    def asked_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    async with FakeBroker(topics={"t": 1}) as broker:
        broker.append(T, bytes(a_batch(0)))
        monkeypatch.setattr(os, "link", asked_twice)
        rows = await archived(broker, tmp_path)
    assert (rows["t-0"]["records"], rows["t-0"]["cause"]) == (5, "")
    store = store_in(tmp_path)
    assert [
        it.last_offset for file in chain_of(store, T) for it in archived_batches(store, file)
    ] == [4]


class Remembering:
    """A file system of fsspec, over a folder: it answers from what it has listed before."""

    protocol = "sftp"

    def __init__(self) -> None:
        self._listed: dict[tuple[str, bool], dict[str, dict[str, object]]] = {}
        self.moved: list[str] = []

    def invalidate_cache(self) -> None:
        self._listed.clear()

    def find(
        self, folder: str, maxdepth: int | None = 1, **_: object
    ) -> dict[str, dict[str, object]]:
        if (folder, is_deep := maxdepth is None) not in self._listed:
            self._listed[folder, is_deep] = {
                str(it): {"type": "directory" if it.is_dir() else "file", "size": 1}
                for it in Path(folder).glob("**/*" if is_deep else "*")
            }
        return self._listed[folder, is_deep]

    def isdir(self, path: str) -> bool:
        return Path(path).is_dir()

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def isfile(self, path: str) -> bool:
        return path in self.find(str(Path(path).parent))

    def mkdir(self, path: str, *, create_parents: bool) -> None:
        Path(path).mkdir(parents=create_parents, exist_ok=True)

    def info(self, path: str) -> dict[str, object]:
        return {"name": path, "type": "file", "size": Path(path).stat().st_size}

    def cat_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def open(self, path: str, mode: str) -> object:
        if "w" in mode:
            self._listed.clear()
        return Path(path).open(mode)

    def rm(self, path: str) -> None:
        Path(path).unlink()

    def mv(self, source: str, target: str, *, recursive: bool) -> None:
        assert recursive
        self.moved.append(target)
        Path(source).rename(target)


def store_over(system: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveStore:
    """Return a store over a file system of fsspec."""

    def url_to_fs(_url: str) -> tuple[object, str]:
        return system, str(folder)

    monkeypatch.setitem(sys.modules, "fsspec.core", SimpleNamespace(url_to_fs=url_to_fs))
    return ArchiveStore("bucket://x")


def test_a_file_system_that_remembers_its_folders_shows_what_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Remembering()
    store = store_over(system, tmp_path, monkeypatch)
    other = ArchiveStore(str(tmp_path))
    manifest = staged_file(0, 10, "a")[1]
    assert put_manifest(store, manifest)
    assert range_of_chain(store, T) == (0, 10)
    assert [it.rpartition(".")[2] for it in system.moved] == ["json"]  # as a whole
    assert put_manifest(other, staged_file(10, 20, "b")[1])
    assert range_of_chain(store, T) == (0, 20)
    assert not put_manifest(store, staged_file(10, 15, "c")[1])
    assert [it.file for it in chain_of(store, T)] == ["a.parquet", "b.parquet"]


class Bucket(Remembering):
    """A store without folders: there is one when it has a file."""

    protocol = "s3"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error, self._asked = error, 0

    def isdir(self, path: str) -> bool:
        if self._error is not None:
            raise self._error
        self._asked += 1
        return self._asked > 1 and super().isdir(path)

    def mkdir(self, path: str, *, create_parents: bool) -> None:
        raise AssertionError(path, create_parents)  # s3fs makes the bucket


def test_a_folder_of_a_bucket_that_another_process_begins_is_read_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    store = store_over(Bucket(), tmp_path, monkeypatch)
    assert store.names("") == ["f"]
    store.replace("m", b"1")
    assert store.read("m") == b"1"


def test_a_bucket_that_cannot_be_reached_is_named_with_the_error_of_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_over(Bucket(LookupError("no credentials")), tmp_path, monkeypatch)
    with pytest.raises(FatalError, match=r"bucket://x: LookupError: no credentials"):
        store.names("")


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/lake/", "/lake/A-B"),
        ("/odd?name", "/odd?name/A-B"),
        ("s3://lake/k?scheme=http&region=x", "s3://lake/k/A-B?scheme=http&region=x"),
    ],
)
def test_an_archive_of_a_flow_is_below_its_folder_before_the_options_of_a_url(
    path: str, root: str
) -> None:
    assert archive_root(path, AB) == root


def test_what_another_run_replaces_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = ArchiveStore(str(tmp_path)), ArchiveStore.read
    note_ranges(store, "t", {0: (0, 10)})
    torn: list[Exception | bytes] = [FatalError("expired"), b"{"]

    def once(store: ArchiveStore, name: str) -> bytes:
        monkeypatch.setattr(ArchiveStore, "read", read)
        found = torn.pop()
        if isinstance(found, Exception):
            raise found
        return found

    while torn:
        monkeypatch.setattr(ArchiveStore, "read", once)
        assert noted_ranges(store, "t") == {0: (0, 10)}


def rows_of_files(path: Path) -> list[list[Row]]:
    """Return what a reader of all files of a partition finds, by file."""
    store, folder = store_in(path), partition_folder(T)
    files = [it for it in store.files(folder) if it.endswith(".parquet")]
    return [store.columns(f"{folder}/{it}", ["offset"]) for it in files]


async def test_what_killed_attempts_have_left_is_no_second_row_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of an archive of records read all its files."""
    publish = ArchiveStore.publish

    def killed(*_: object) -> bool:
        raise FatalError("killed")

    def offsets() -> list[int]:
        return sorted(cast("int", row["offset"]) for it in rows_of_files(tmp_path) for row in it)

    async with FakeBroker(topics={"t": 1, "u": 1}) as broker:
        broker.append(T, bytes(a_batch(0)))
        await archived(broker, tmp_path, Shape.RECORDS)
        broker.append(T, bytes(a_batch(0)))
        monkeypatch.setattr(ArchiveStore, "publish", killed)
        with pytest.raises(FatalError, match="killed"):
            await archived(broker, tmp_path, Shape.RECORDS)
        monkeypatch.setattr(ArchiveStore, "publish", publish)
        broker.append(T, bytes(a_batch(0)))
        assert offsets() == list(range(10))
        await archived(broker, tmp_path, Shape.RECORDS)
        assert offsets() == list(range(15))


async def test_a_range_without_records_is_a_file_that_readers_take(tmp_path: Path) -> None:
    async with FakeBroker(topics={"t": 1}) as broker:
        for _ in range(3):
            broker.append(T, bytes(a_batch(0)))
        log = broker.partition(T)
        await archived(broker, tmp_path, Shape.RECORDS)
        for _ in range(3):
            broker.append(T, bytes(a_batch(0)))
        log.start = log.end  # retention
        rows = await archived(broker, tmp_path, Shape.RECORDS)
    assert (rows["t-0"]["lost_from"], rows["t-0"]["lost_to"]) == (15, 30)
    assert [len(it) for it in rows_of_files(tmp_path)] == [15, 0]


async def test_what_the_source_deleted_of_a_partition_before_its_first_file_is_reported(
    tmp_path: Path,
) -> None:
    """A run that was killed had written what the topic is, and nothing of the partition."""
    async with FakeBroker(topics={"t": 1, "u": 1}) as broker:
        await archived(broker, tmp_path)
        for _ in range(3):
            broker.append(T, bytes(a_batch(0)))
        broker.partition(T).start = 5  # retention
        rows = await archived(broker, tmp_path)
    row = rows["t-0"]
    assert (row["lost_from"], row["lost_to"], row["records"], row["cause"]) == (0, 5, 10, "")
    assert "u-0" not in rows
