"""Random courses of an archive: runs, joins and removals of what is old, killed at any step, or frozen there while others do their work;
retention of the source in between, with and without hard links.

What holds after a run without a cause: the chain has each record that the log has, once; what was published once is still there, unless
it was too old; what is missing is named as lost; nothing is staged, ``ranges.json`` ends where the chain does, and no run begins before
that. A join after that leaves no second file of what one has.
"""

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.errors import FatalError
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from mm2py_jobs.archive import archive, archive_removal, archive_upkeep
from mm2py_jobs.archive.archive_format import (
    VERSION,
    ArchiveHead,
    FileManifest,
    Shape,
    archived_batches,
    chain_of,
    date_folder,
    day_of,
    head_of,
    noted_ranges,
    partition_folder,
    put_or_check,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_upkeep import Upkeep
from mm2py_jobs.copy import dealing
from mm2py_jobs.spark.session import OpenSession
from tests.kit.fakes.broker import FakeBroker
from tests.property.effort import examples
from tests.unit.spark.test_archive_plan import sides
from tests.unit.spark.test_archive_upkeep import DAY_MS, NOON_MS, in_order
from tests.unit.spark.test_lanes_that_fail import OneSlot

T = TopicPartition("t", 0)
RECORDS = 5
"""Of each batch."""


class KilledError(FatalError):
    """The process ends here."""


class Course:
    def __init__(self, chance: random.Random, broker: FakeBroker, path: Path) -> None:
        self._chance, self._broker, self._path = chance, broker, path
        self._run: ContextVar[SimpleNamespace] = ContextVar("run")
        self._nested = False
        self.store = ArchiveStore(f"{path}/A-B")
        self.published: set[int] = set()
        self.young: set[int] = set()
        """Offsets of records that no removal takes."""

    def stepped(self, step: Callable[..., object]) -> Callable[..., object]:
        """Let a step of a store be the one at which something happens to its run."""

        def taken(*arguments: object) -> object:
            run = self._run.get(None)  # of this thread, or of the one that it works for
            if run is not None:
                run.left -= 1
            event = "" if run is None or run.left else run.event
            if event == "before":
                raise KilledError("killed")
            if event == "twin" and not self._nested:
                self._run_others()
            if event == "retention":
                self.delete_old()
            done = step(*arguments)
            if event == "after":
                raise KilledError("killed")
            return done

        return taken

    def append(self) -> None:
        for _ in range(self._chance.randrange(12)):
            stamp = self._chance.choice((-1, NOON_MS * 1_000, NOON_MS, NOON_MS + DAY_MS))
            records = [NewRecord(b"k", b"%d" % it, (), stamp) for it in range(RECORDS)]
            end = self._broker.partition(T).end
            self._broker.append(T, bytes(encode_batch(records)))
            if stamp > NOON_MS:
                self.young |= {*range(end, end + RECORDS)}

    def delete_old(self) -> None:
        log = self._broker.partition(T)
        start = self._chance.randrange(log.start, log.end + 1)
        log.start = max(log.start, start - start % RECORDS)
        log.batches[:] = [it for it in log.batches if it.last_offset >= log.start]

    def chosen(self) -> Upkeep | None:
        """Return what a run does: join, remove, both; None: archive."""
        oldest_ms = self._chance.choice((-1, -1, -1, NOON_MS + 1))
        upkeep = Upkeep(joins=self._chance.random() < 0.4, oldest_ms=oldest_ms)
        return upkeep if upkeep.is_asked else None

    def run(self, event: str = "", upkeep: Upkeep | None = None) -> list[str]:
        """Archive, or keep up; return the causes, one where it was killed."""
        self._run.set(SimpleNamespace(event=event, left=self._chance.randrange(1, 15)))
        opened = OpenSession(OneSlot(), owned=False, lanes=self._chance.choice((1, 3)))  # type: ignore[arg-type]
        flow, path, done = sides(self._broker), str(self._path), self.end()
        try:
            if upkeep is not None:
                rows = archive_upkeep.keep_up(flow, path, upkeep, lambda: opened)
            else:
                report = archive.archive_flow(flow, path, Shape.BATCHES, lambda: opened)
                rows = cast("list[dict[str, object]]", report["partitions"])
                assert all(int(str(it["from"])) >= done for it in rows if not it["cause"])
        except FatalError as error:
            if "killed" not in str(error):
                raise
            return [str(error)]
        return [str(it["cause"]) for it in rows if it["cause"]]

    def end(self) -> int:
        """Return where the chain ends."""
        chain = chain_of(self.store, T)
        return chain[-1].end if chain else 0

    def _run_others(self) -> None:
        self._nested = True
        others = threading.Thread(target=self._others)
        others.start()
        others.join()
        self._nested = False

    def _others(self) -> None:
        for _ in range(self._chance.randrange(1, 4)):
            self.run(self._chance.choice(("before", "after", "retention", "")), self.chosen())
            if self._chance.random() < 0.3:
                self.append()

    def note(self) -> None:
        """Keep which records are published, or staged."""
        folder = partition_folder(T)
        for manifest in chain_of(self.store, T):
            self.published |= offsets_of(self.store, manifest)
        for name in self.store.files(folder):
            if name.endswith(".staged"):
                manifest = FileManifest.parse(self.store.read(f"{folder}/{name}"), name)
                self.published |= offsets_of(self.store, manifest)

    def check(self) -> None:
        log, chain = self._broker.partition(T), chain_of(self.store, T)
        parts = [offsets_of(self.store, it) for it in chain]
        found = {offset for part in parts for offset in part}
        assert sum(map(len, parts)) == len(found), "a record is there twice"
        begins = chain[0].begins if chain else log.end
        known = {*range(log.start, log.end)} | self.published
        assert found >= {it for it in known if it >= begins or it in self.young}
        for it in chain:
            folder, days = it.file.rpartition("/")[0], days_of(self.store, it)
            assert folder == (date_folder(max(days)) if head_of(self.store).is_dated else "")
        if chain:
            lost = {offset for it in chain for offset in range(it.begins, it.first)}
            assert {*range(chain[0].begins, chain[-1].end)} == found | lost
            assert noted_ranges(self.store, "t")[0][1] == chain[-1].end
        assert not [it for it in self.store.files(partition_folder(T)) if it.endswith(".staged")]


def days_of(store: ArchiveStore, manifest: FileManifest) -> set[int]:
    return {day_of(it.max_timestamp) for it in archived_batches(store, manifest)} or {-1}


def offsets_of(store: ArchiveStore, manifest: FileManifest) -> set[int]:
    return {
        offset
        for batch in archived_batches(store, manifest)
        for offset in range(batch.base_offset, batch.last_offset + 1)
        if offset >= manifest.first
    }


async def run_course(chance: random.Random, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker(topics={"t": 1}) as broker:
        course = Course(chance, broker, path)
        head = ArchiveHead(
            flow="A->B",
            source_cluster=broker.cluster.cluster_id,
            shape=Shape.BATCHES,
            version=chance.choice((1, VERSION)),
        )
        put_or_check(course.store, "manifest.json", head)
        for name in ("put_if_absent", "publish", "delete", "replace"):
            monkeypatch.setattr(ArchiveStore, name, course.stepped(getattr(ArchiveStore, name)))
        for _ in range(chance.randrange(2, 6)):
            course.append()
            if chance.random() < 0.3:
                course.delete_old()
            event = chance.choice(("before", "after", "twin", "retention", ""))
            await asyncio.to_thread(course.run, event, course.chosen())
            course.note()
        for left in (2, 1, 0):
            causes = await asyncio.to_thread(course.run)
            assert left or not causes
            if not causes:
                break
            course.note()
        course.check()
        assert not await asyncio.to_thread(course.run, "", Upkeep(joins=True))
        course.check()
        names, chain = course.store.files(partition_folder(T)), chain_of(course.store, T)
        named = {it.file for it in chain}  # one that has nothing lies within the next one's range
        for it in chain:
            assert not {*archive_removal.files_within(names, it.first, it.end)} - named


@pytest.mark.fuzz
@pytest.mark.parametrize("has_links", [True, False])
async def test_an_archive_has_each_record_once_whatever_happens_to_its_runs(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    async def no_configs(_admin: Admin, names: Mapping[str, object]) -> Mapping[str, object]:
        return dict.fromkeys(names, ())

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(Admin, "read_topic_configs", no_configs)
    monkeypatch.setattr(dealing, "PART_OFFSETS", 10)
    monkeypatch.setattr(archive, "FILE_BYTES", 200)
    monkeypatch.setattr(archive, "DATES", 2)
    monkeypatch.setattr(archive_upkeep, "FILE_BYTES", 4_000)
    for module in (archive_upkeep, archive_removal):
        monkeypatch.setattr(module, "each", in_order)  # in the thread that is killed
    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    chance = random.Random(seed)
    for number in range(examples(6, share=0.1)):
        with monkeypatch.context() as patched:
            await run_course(chance, tmp_path / str(number), patched)
