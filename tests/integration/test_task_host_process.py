"""A real child process as task host, with clusters that do not answer: start, logs, kill, orphan, good-bye."""

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

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
TASK = TaskId("MirrorSourceConnector", 0)
CANARY = "hunter2-canary"


def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)


async def test_a_task_waits_in_a_child_whose_log_and_death_the_worker_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    flow = Flow()
    flow.pool.start()
    await flow.host.start_task(spec())
    await until(lambda: "waiting for=target cluster B" in caplog.text)
    (pid,) = flow.pool.pids
    os.kill(pid, signal.SIGKILL)
    await until(lambda: flow.words() == ["FAILED"])
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(20):
        await first.gone()
        await second.gone()
    assert "the process that starts task hosts has ended" in caplog.text
    third = await starter.spawn()
    await third.greeted()
    await third.leave()
    starter.close()


async def test_a_starter_that_does_not_answer_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py.runtime.hosts.process.START_WITHIN_S", 0.5)
    starter = host_starter(SYSTEM_CLOCK)
    with monkeypatch.context() as patient:
        patient.setattr("mm2py.runtime.hosts.process.START_WITHIN_S", 30)
        first = await starter.spawn()
    await first.greeted()
    os.kill(parent_of(first.pid), signal.SIGSTOP)
    with pytest.raises(OSError, match="no process was forked"):
        await starter.spawn()
    async with asyncio.timeout(20):
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
    async with asyncio.timeout(20):
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
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
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
