"""The process of a task host and the one that starts it: starts, ends, calls; none outlives its worker."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import FatalError
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.hosts.child_host import ChildTaskHost
from mm2py.runtime.hosts.pool import HostLink, HostPool
from mm2py.runtime.hosts.process import HostStarter
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_context import NoLedger
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.types import ClusterAlias, FlowName, TaskId
from mm2py_workers.flow_parts import FlowParts
from mm2py_workers.task_host import host_pool, host_starter
from tests.integration.mirror_process import until
from tests.integration.test_task_hosts import runs
from tests.kit.kafka.ports import HOST, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
TASK = TaskId("MirrorSourceConnector", 0)
CANARY = "hunter2-canary"


def nobody() -> str:
    """An address where nothing listens."""
    return f"{HOST}:{free_ports(1)[0]}"


def spec() -> TaskSpec:
    config = {
        "name": TASK.connector,
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": nobody(),
        "target.cluster.bootstrap.servers": nobody(),
        "source.cluster.ssl.keystore.password": CANARY,
    }
    return TaskSpec(
        id=TASK,
        connector_config=config,
        config={**config, "task.index": "0", "task.assigned.partitions": "orders-0"},
    )


class Flow:
    """One flow over real children."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        props = {
            "bootstrap.servers": nobody(),
            "group.id": "g",
            "config.storage.topic": "c",
            "offset.storage.topic": "o",
            "status.storage.topic": "s",
            "task.shutdown.graceful.timeout.ms": "500",
        }
        pool = host_pool(1, host_starter(SYSTEM_CLOCK))
        assert pool is not None
        self.pool: HostPool = pool
        parts = FlowParts.of(FLOW, props, plugins=Plugins(), permit=UNLIMITED, clock=SYSTEM_CLOCK)
        self.host: ChildTaskHost = parts.child_host(
            pool,
            lambda _task, status: self.statuses.append(status),
            FlowReports(
                meter=FlowMeter(FLOW, SYSTEM_CLOCK),
                events=NoLedger(),
                on_topic=lambda _task, _topic: None,
            ),
        )

    def words(self) -> list[str]:
        return [status.state.value for status in self.statuses]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)


async def test_a_task_waits_in_a_child_whose_log_and_death_the_worker_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    flow = Flow()
    flow.pool.start()
    await flow.host.start_task(spec())
    await reached(lambda: "waiting for=target cluster B" in caplog.text)
    (pid,) = flow.pool.pids
    os.kill(pid, signal.SIGKILL)
    await reached(lambda: flow.words() == ["FAILED"])
    assert str(flow.statuses[0].cause) == f"task host {pid} ended with signal 9"
    await flow.host.start_task(spec())
    (other,) = flow.pool.pids
    assert other != pid
    await flow.host.stop_task(TASK, 1.0)
    assert flow.words() == ["FAILED"], "a task that never ran has no end to tell"
    assert flow.host.tasks() == ()
    await flow.host.close()
    await flow.pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)
    assert CANARY not in caplog.text
    assert "task host ended with code 0" in caplog.text


async def test_a_child_whose_worker_is_gone_ends() -> None:
    starter = host_starter(SYSTEM_CLOCK)
    link: HostLink = await starter.spawn()
    # A terminal signals the whole group, also while the child is still being loaded.
    os.kill(link.pid, signal.SIGINT)
    await link.greeted()
    os.kill(link.pid, signal.SIGTERM)
    os.kill(link.pid, signal.SIGINT)
    link.hang_up()
    async with asyncio.timeout(90):
        await link.gone()
    starter.close()


async def test_a_killed_starter_takes_its_hosts_with_it_and_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starter = host_starter(SYSTEM_CLOCK)
    first, second = await starter.spawn(), await starter.spawn()
    await first.greeted()
    await second.greeted()
    (parent,) = {parent_of(link.pid) for link in (first, second)}
    assert parent != os.getpid()
    os.kill(parent, signal.SIGKILL)
    async with asyncio.timeout(90):
        await first.gone()
        await second.gone()
    assert "the process that starts task hosts has ended" in caplog.text
    third = await starter.spawn()
    await third.greeted()
    await third.leave()
    starter.close()


async def test_a_starter_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py.runtime.hosts.process.START_WITHIN_S", 0.5)
    starter = host_starter(SYSTEM_CLOCK)
    with monkeypatch.context() as patient:
        patient.setattr("mm2py.runtime.hosts.process.START_WITHIN_S", 90)
        first = await starter.spawn()
    await first.greeted()
    os.kill(parent_of(first.pid), signal.SIGSTOP)
    with pytest.raises(OSError, match="no process was forked"):
        await starter.spawn()
    async with asyncio.timeout(90):
        await first.gone()
    monkeypatch.undo()
    second = await starter.spawn()
    await second.greeted()
    await second.leave()
    starter.close()


async def test_a_host_whose_end_is_not_reported_is_given_up_with_its_starter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starter = host_starter(SYSTEM_CLOCK)
    link = await starter.spawn()
    await link.greeted()
    monkeypatch.setattr("mm2py.runtime.hosts.process.EXIT_WITHIN_S", 0.5)
    os.kill(parent_of(link.pid), signal.SIGSTOP)
    os.kill(link.pid, signal.SIGKILL)
    async with asyncio.timeout(90):
        await link.gone()
    another = await starter.spawn()
    await another.greeted()
    monkeypatch.undo()
    await another.leave()
    starter.close()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_worker_starts_without_standard_streams(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA->B.enabled = true\n")  # no addresses: refused
    command = f'"{sys.executable}" -m mm2py_workers.connect_mirror_maker "{file}" {closed}'
    ended = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "2>" in closed or "bootstrap.servers" in ended.stderr


async def test_another_program_is_no_task_host() -> None:
    starter = HostStarter(
        [sys.executable, "-c", "raise SystemExit(3)"], version="1", clock=SYSTEM_CLOCK
    )
    with pytest.raises(OSError, match="has ended"):
        await starter.spawn()


ENDED_AT_ONCE = """
import socket, struct, sys
control = socket.socket(fileno=int(sys.argv[1]))
control.recv(1)
control.sendall(struct.pack("!iiiiii", 4_000_000, 0, 0, 4_000_000, 1, -9))
control.recv(1)
"""


async def test_a_host_that_ends_before_its_start_was_noticed_is_one_that_did_not_start() -> None:
    starter = HostStarter([sys.executable, "-c", ENDED_AT_ONCE], version="1", clock=SYSTEM_CLOCK)
    link = await starter.spawn()
    with pytest.raises(FatalError, match="ended with signal 9"):
        await link.greeted()
    starter.close()


ROOT = Path(__file__).parents[2]
PLUGIN = """
import re, time
from pathlib import Path

class Blocking:
    java_class = "org.example.Blocking"

    def __init__(self, config):
        pass

    def open_task(self, config, context):
        Path(__file__).with_name(config["how"]).touch()
        if config["how"] == "sleeps":
            time.sleep(600)
        re.match("(a+)+$", "a" * 64 + "b")  # for ages, without the interpreter lock ever being free
"""


def install(folder: Path) -> None:
    """Make a package of a third party with the connector."""
    (folder / "blocking_plugin.py").write_text(PLUGIN)
    about = folder / "blocking_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: blocking-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[mm2py.connectors]\nBlocking = blocking_plugin:Blocking\n"
    )


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_hosts_whose_plug_in_blocks_end_after_a_killed_worker(tmp_path: Path) -> None:
    install(tmp_path)
    hows = ("sleeps", "holds_the_interpreter_lock")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.integration.host_worker", *hows]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        hosts = [int(pid) for pid in worker.stdout.readline().split()]
        try:
            assert len(hosts) == 2
            until(lambda: all((tmp_path / how).exists() for how in hows), 90, "both block")
            assert all(map(runs, hosts))
        finally:
            worker.kill()
    try:
        until(lambda: not any(map(runs, hosts)), 90, "hosts end")
    finally:
        for pid in filter(runs, hosts):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.faults
def test_a_process_that_sleeps_ends_after_the_other_end_of_its_pipe() -> None:
    script = """
import os, sys, time
from mm2py.runtime.hosts.process import end_with_worker

sys.platform = "another"
end_with_worker(0, after_s=0.01)
print("watches", flush=True)
time.sleep(600)
"""
    here, there = socket.socketpair()
    with (
        there,
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=there.fileno(), stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        there.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "watches\n"
        assert process.poll() is None
        here.close()
        assert process.wait(90) == 1
