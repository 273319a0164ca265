"""docs/runbook.md: each section's commands, run as they are written by a shell, on the occasion that the section is about.

Flow: the page -> ``sh`` blocks by section -> a folder with ``mm2.properties`` and a PATH that has our commands and Kafka's scripts ->
blocks run with ``bash -eu``; what each occasion needs before, between and after them is in its test. Clusters and topics have the page's own names, so they are
of this file alone.
"""

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, final

import pytest

from bench.java_mm2 import MAIN_CLASS, QUICK_START_FLAGS
from mm2py_jobs.spark.java import find_java
from tests.integration.cluster_changes import set_config
from tests.integration.mirror_process import until, write_file
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.traffic import Load, Sent, assert_equal, ends, read, write
from tests.kit.kafka.jars import fetch_jars
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import Region, started
from tests.kit.regions import ANY_SESSION, CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(900)]

PAGE: Final = Path(__file__).parents[2] / "docs" / "runbook.md"
BLOCK_S: Final = 300.0
PARTITIONS: Final = 3
START: Final = "Start and stop a worker"
_PIDS: Final = ("worker.pid", "new.pid", "java.pid")


def sections() -> dict[str, list[str]]:
    """Return the ``sh`` blocks of each section."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@final
class Operator:
    """A folder in which blocks of the page are run, and the two clusters that they are about."""

    def __init__(self, folder: Path, a: Region, b: Region) -> None:
        self.folder, self.a, self.b = folder, a, b
        tools = folder / "bin"
        tools.mkdir()
        for name, words in self._scripts().items():
            script = tools / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self._environ = {
            **os.environ,
            "PATH": os.pathsep.join(
                [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "MM2PY_STATE_DIR": str(folder / "state"),
            # Other tests have workers on this machine.
            "MM2PY_FILE": str(folder / "mm2.properties"),
            "A_BROKERS": a.bootstrap_servers,
            "B_BROKERS": b.bootstrap_servers,
            "NO_COLOR": "1",
        }

    @staticmethod
    def _scripts() -> dict[str, list[str]]:
        java = str(find_java().executable)
        classpath = os.pathsep.join(map(str, fetch_jars("tools")))
        run = [java, *QUICK_START_FLAGS, "-cp", classpath]
        return {
            "connect-mirror-maker.sh": [*run, MAIN_CLASS],
            "kafka-configs.sh": [*run, "kafka.admin.ConfigCommand"],
        }

    def write_flow(self, **more: str) -> None:
        """Write the file of the page; ``more`` with dots as two underscores."""
        lines = {
            "clusters": "A, B",
            "A.bootstrap.servers": self.a.bootstrap_servers,
            "B.bootstrap.servers": self.b.bootstrap_servers,
            "A->B.enabled": "true",
            "A->B.topics": "orders",
            "emit.heartbeats.enabled": "false",
            "sync.topic.configs.enabled": "false",
            "listeners": "http://127.0.0.1:0",
            "refresh.topics.interval.seconds": "1",
        }
        for kind in ("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic.", "offset.storage.", "status.storage.", "config.storage."):  # fmt: skip
            lines[f"{kind}replication.factor"] = "1"
        lines |= {name.replace("__", "."): value for name, value in more.items()}
        write_file(self.folder / "mm2.properties", lines)

    def run(self, block: str) -> str:
        """Run a block; return what it printed."""
        with (self.folder / "output.txt").open(
            "w+b"
        ) as output:  # a process behind it keeps a pipe open
            done = subprocess.run(
                ["bash", "-eu", "-c", block],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=BLOCK_S,
            )
            output.seek(0)
            printed = output.read().decode(errors="replace")
        for pid in self._pids():
            REAPER.watch_process(pid)
        assert done.returncode == 0, f"{block}\n-- ended with {done.returncode}:\n{printed}"
        return printed

    def log(self, name: str = "worker.log") -> str:
        file = self.folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    def ended(self, name: str) -> bool:
        """Whether the process of a pid file has ended; what a shell has left may have no parent that waits for it."""
        try:
            state = Path(f"/proc/{(self.folder / name).read_text().strip()}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state.rpartition(")")[2].split()[0] == "Z"

    def close(self) -> None:
        """Kill what a failed test left."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            REAPER.forget_process(pid)

    def _pids(self) -> Iterator[int]:
        for name in _PIDS:
            file = self.folder / name
            if file.exists():
                yield int(file.read_text())

    def write(self, topic: str, count: int, region: Region | None = None) -> None:
        """Append records with new values."""
        first = sum(ends(region or self.a, topic).values())
        records = [Sent(it % PARTITIONS, b"%d" % it, b"k") for it in range(first, first + count)]
        write(region or self.a, topic, records)

    def wait_until_equal(self, topic: str = "orders", copy: str = "A.orders") -> None:
        """Wait until the copy has as many records, then compare them."""
        a, b = (self.a, self.b) if copy.startswith("A.") else (self.b, self.a)
        until(
            lambda: sum(ends(b, copy).values()) >= sum(ends(a, topic).values()),
            90,
            lambda: f"{copy}: {ends(b, copy)} of {ends(a, topic)}\n{self.log()[-4_000:]}",
        )
        assert_equal(read(a, topic), read(b, copy))


@pytest.fixture(scope="module")
def regions_of_the_page(create_topic: CreateTopic) -> Iterator[tuple[Region, Region]]:
    a, b = (Region(f"runbook-{name}", properties=ANY_SESSION) for name in "ab")
    with started(a, b):
        create_topic(a, "orders", PARTITIONS)
        create_topic(a, "invoices", PARTITIONS)
        create_topic(b, "payments", PARTITIONS)
        yield a, b


@pytest.fixture
def operator(regions_of_the_page: tuple[Region, Region], tmp_path: Path) -> Generator[Operator]:
    with closing(Operator(tmp_path, *regions_of_the_page)) as found:
        found.write_flow()
        yield found


@contextmanager
def worker(operator: Operator) -> Generator[None]:
    """Run both blocks of the first section around the occasion."""
    start, stop = sections()[START]
    try:
        operator.run(start)
        yield
        operator.run(stop)
        until(lambda: operator.ended("worker.pid"), 90, lambda: operator.log()[-4_000:])
    except BaseException as error:
        error.add_note(operator.log()[-6_000:])
        raise
    assert "internal error" not in operator.log()


def test_each_section_with_commands_has_a_test() -> None:
    tested = set(re.findall(r'sections\(\)\["(.+?)"\]', Path(__file__).read_text())) | {START}
    assert {title for title, blocks in sections().items() if blocks} == tested


def test_start_and_stop(operator: Operator) -> None:
    with worker(operator):
        operator.write("orders", 300)
        operator.wait_until_equal()


def test_add_a_flow(operator: Operator) -> None:
    add, undo = sections()["Add a flow"]
    with worker(operator):
        operator.run(add)
        operator.write("payments", 30, operator.b)
        operator.write("invoices", 30)
        operator.wait_until_equal("payments", "B.payments")
        operator.wait_until_equal("invoices", "A.invoices")
        printed = operator.run(undo)
        assert "invoices" in printed, "the history shows the change"
        assert "B->A" not in operator.run("mm2py flow list")


def test_pause(operator: Operator) -> None:
    (block,) = sections()["Pause"]
    with worker(operator):
        printed = operator.run(block)
        assert "PAUSED" in printed
        operator.write("orders", 30)
        operator.wait_until_equal()


def test_failover_and_failback(setup: Setup) -> None:
    look, switch = sections()["Failover"]
    (back,) = sections()["Failback"]
    a, b = (Region(f"runbook-move-{name}", properties=ANY_SESSION) for name in "ab")
    with started(a, b):
        for region in (a, b):
            setup.create_topic(region, "orders", PARTITIONS)
        operator = Operator(setup.folder, a, b)
        operator.write_flow()
        try:
            with worker(operator):
                operator.write("orders", 30)
                operator.wait_until_equal()
                operator.run(look)
                assert (setup.folder / "drill.json").stat().st_size
                assert "DONE" in operator.run(switch)
                operator.write("orders", 30, b)
                operator.wait_until_equal("orders", "B.orders")
                operator.run(back)
                operator.write("orders", 30)
                operator.wait_until_equal()
        finally:
            operator.close()


@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_region_is_lost(operator: Operator, lost: str) -> None:
    look, back = sections()["A region is lost"]
    region = operator.a if lost == "source" else operator.b
    with worker(operator):
        operator.write("orders", 30)
        operator.wait_until_equal()
        region.stop()
        try:
            until(lambda: "RUNNING" not in operator.run("mm2py flow list || test $? -eq 3"))
            operator.run(look)
        finally:
            region.start()
        operator.write("orders", 30)
        operator.run(back)
        operator.wait_until_equal()


def test_a_partition_failed(operator: Operator, create_topic: CreateTopic) -> None:
    look, cure = sections()["A partition failed"]
    with worker(operator):
        operator.write("orders", 30)
        operator.wait_until_equal()
        set_config(operator.b, "A.orders", "max.message.bytes", "5000")
        write(operator.a, "orders", [Sent(1, os.urandom(20_000), b"k")])
        until(lambda: "partition failed" in operator.log(), 90, lambda: operator.log()[-4_000:])
        operator.write("orders", 30)
        printed = operator.run(look)
        assert "orders" in printed
        assert "FAILED" in printed
        operator.run(cure)
        operator.wait_until_equal()


def test_a_full_target(setup: Setup, regions_of_the_page: tuple[Region, Region]) -> None:
    look, back = sections()["A full target"]
    a, _ = regions_of_the_page
    with (
        small_disk(setup.folder) as disk,
        Region("runbook-full", properties=FEW_INDEXES, folder=disk, min_free_bytes=1) as target,
    ):
        operator = Operator(setup.folder, a, target)
        operator.write_flow()
        try:
            with (
                worker(operator),
                Load(a, "orders", PARTITIONS, rate=500, value_bytes=1_000) as load,
            ):
                load.wait_acked(500)
                fill(disk / "ballast")
                until(lambda: not target.node(1).is_running, 90, "the broker to stop")
                until(
                    lambda: "RUNNING" not in operator.run("mm2py flow list || test $? -eq 3"),
                    90,
                    "the state of the flow",
                )
                operator.run(look)
                load.stop()
                (disk / "ballast").unlink()
                target.start()
                operator.run(back)
                operator.wait_until_equal()
        finally:
            operator.close()


def test_an_upgrade(operator: Operator) -> None:
    (block,) = sections()["An upgrade"]
    operator.write_flow(tasks__max="2")
    with worker(operator):
        with Load(operator.a, "orders", PARTITIONS, rate=300) as load:
            load.wait_acked(300)
            operator.run(block)
            load.wait_acked(300)
            load.stop()
        operator.wait_until_equal()


@pytest.mark.java
def test_a_takeover_from_java_and_back(operator: Operator) -> None:
    take, back = sections()["A takeover from Java, and back"]
    operator.write("orders", 30)
    operator.run(f"{back.splitlines()[-2]}\n{back.splitlines()[-1]}")
    operator.wait_until_equal()
    operator.write("orders", 30)
    operator.run(take)
    operator.wait_until_equal()
    operator.write("orders", 30)
    operator.wait_until_equal()
    operator.run(back)
    operator.write("orders", 30)
    operator.wait_until_equal()
    operator.run('kill -TERM "$(cat java.pid)"')
    until(lambda: operator.ended("java.pid"), 90, lambda: operator.log("java.log")[-4_000:])
