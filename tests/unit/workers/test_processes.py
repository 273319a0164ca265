"""How processes start and end: signals, imports, forks of task hosts; and their memory."""

import asyncio
import gc
import os
import platform
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.testing.clock import FakeClock
from mm2py.types import State, TaskId, TopicPartition
from mm2py_workers.connect_wiring import HostsBySource, SourceHost
from mm2py_workers.process_memory import FEW, SURE_LOOKS, collect, settle
from mm2py_workers.signals import StopSignal
from mm2py_workers.task_host import STARTER_COMMAND
from tests.unit.runtime.herder_fakes import ObedientHost

# -- while a command is being loaded ---------------------------------------------------------------

# The first import of ours behind the entry point sends the signal, as a terminal would at that moment.
SIGNALLED = """
import os, signal, sys
from {package} import entry

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("mm2py"):
            os.kill(os.getpid(), signal.{number})
        return None

sys.meta_path.insert(0, Finder())
entry.{command}()
"""


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("mm2py_workers", "connect_mirror_maker"),
        ("mm2py_workers", "connect_distributed"),
        ("mm2py_workers", "connect_standalone"),
        ("mm2py_cli", "mm2py"),
    ],
)
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_the_imports_ends_the_process_without_a_trace(
    package: str, command: str, number: str, code: int
) -> None:
    program = SIGNALLED.format(package=package, command=command, number=number)
    done = subprocess.run([sys.executable, "-c", program], timeout=90, capture_output=True)
    assert (done.returncode, done.stderr) == (code, b"")


def loaded_by(*modules: str) -> set[str]:
    """Return what a process has loaded that has imported these modules."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=90, capture_output=True, text=True, check=True
    )
    return {*ended.stdout.split()}


def test_the_console_scripts_begin_there() -> None:
    """Their own first import must load nothing that takes long."""
    loaded = loaded_by("mm2py_cli.entry")
    ours = {name for name in loaded if name.startswith("mm2py")}
    assert ours == {"mm2py_cli", "mm2py_cli.entry", "mm2py_workers", "mm2py_workers.entry"}
    assert "asyncio" not in loaded


def test_a_worker_that_asks_no_other_loads_nothing_for_terminals_and_no_http_client() -> None:
    """They are megabytes of each of its processes."""
    loaded = loaded_by("mm2py_workers.connect_mirror_maker", "mm2py_workers.rest_wiring")
    assert not {"rich", "httpx", "pygments", "tests.kit.kafka"} & loaded


# -- the first signal asks for a stop, the second ends the process at once -------------------------

STUBBORN = """
import asyncio, os, signal, sys
from mm2py_workers.signals import StopSignal

async def main() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.{name})
        await stop.wait()
        os.kill(os.getpid(), signal.{name})
        await asyncio.sleep(20)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_asks_for_a_stop_behind_which_the_handlers_of_before_count_again(
    number: signal.Signals,
) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopSignal() as stop:
            was_asked = stop.asked
            os.kill(os.getpid(), number)
            async with asyncio.timeout(90):
                await stop.wait()
            assert (was_asked, stop.asked) == (False, True)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_second_signal_ends_the_process_at_once(name: str, code: int) -> None:
    program = STUBBORN.replace("{name}", name)
    done = subprocess.run([sys.executable, "-c", program], timeout=90, capture_output=True)
    assert done.returncode == code, done.stderr


async def test_a_closed_terminal_asks_for_a_stop_however_often_it_says_so() -> None:
    with StopSignal() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(90):
                await stop.wait()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with StopSignal():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- task hosts ------------------------------------------------------------------------------------


def test_a_task_host_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for module in ("pydantic", "queue", "mm2py_workers", "typing"):
        (tmp_path / f"{module}.py").write_text('raise SystemExit("code of the directory ran")\n')
    ended = subprocess.run(
        [*STARTER_COMMAND, "no-descriptor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode != 0
    assert "no-descriptor" in ended.stderr
    assert "code of the directory ran" not in ended.stderr


# Says on stdout when the process forks; everything else is on stderr.
WATCHED = """
import os, sys
from mm2py_workers.{module} import main
os.register_at_fork(before=lambda: print("forks", flush=True))
main(sys.argv[1:])
"""
DEDICATED = """\
clusters = A, B
A.bootstrap.servers = 127.0.0.1:1
B.bootstrap.servers = 127.0.0.1:1
A->B.enabled = true
listeners = http://127.0.0.1:0
"""
STANDALONE = """\
bootstrap.servers = 127.0.0.1:1
key.converter = StringConverter
value.converter = StringConverter
listeners = http://127.0.0.1:0
offset.storage.file.filename = offsets
"""


@pytest.mark.parametrize(
    ("module", "text", "reached", "forks"),
    [
        ("connect_mirror_maker", DEDICATED + "task.host.processes = 0\n", "waiting for", False),
        ("connect_mirror_maker", DEDICATED + "task.host.processes = 1\n", "waiting for", True),
        ("connect_mirror_maker", "clusters = A, B\n", "bad configuration", False),
        ("connect_standalone", STANDALONE, "rest listens", False),
    ],
)
def test_a_process_is_forked_only_by_workers_whose_tasks_live_in_processes(
    tmp_path: Path, module: str, text: str, reached: str, forks: bool
) -> None:
    file = tmp_path / "worker.properties"
    file.write_text(text)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED.format(module=module), str(file)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        assert worker.stdout is not None
        try:
            assert any(reached in line for line in worker.stderr)
        finally:
            worker.kill()
        assert ("forks" in worker.stdout.read()) is forks


def _spec(connector: str, source: str) -> TaskSpec:
    return TaskSpec(id=TaskId(connector, 0), connector_config={"source": source}, config={})


async def test_each_source_has_a_host_and_all_of_them_hear_what_concerns_the_worker() -> None:
    opened: dict[str, ObedientHost] = {}
    states: list[tuple[str, State]] = []

    def host(source: str) -> SourceHost:
        opened[source] = ObedientHost(lambda task, status: states.append((str(task), status.state)))
        return SourceHost(opened[source], None)

    hosts = HostsBySource(lambda spec: spec.connector_config["source"], host)
    await hosts.start_task(_spec("one", "A"))
    await hosts.start_task(_spec("two", "B"))
    await hosts.start_task(_spec("three", "A"))
    assert [sorted(map(str, it.running)) for it in opened.values()] == [
        ["one-0", "three-0"],
        ["two-0"],
    ]
    assert set(hosts.tasks()) == {TaskId(name, 0) for name in ("one", "two", "three")}
    held = frozenset({TopicPartition("orders", 0)})
    hosts.hold(held)
    await hosts.start_task(_spec("four", "C"))
    assert opened["C"].held == held, "a host that is opened later knows"
    assert all(it.held == held for it in opened.values())
    hosts.hold(frozenset())
    assert not any(it.held for it in opened.values())

    await hosts.pause_task(TaskId("two", 0), paused=True)
    assert states[-1] == ("two-0", State.PAUSED)
    status = hosts.status(TaskId("two", 0))
    assert status is not None
    assert status.state is State.PAUSED
    await hosts.start_task(_spec("two", "A"))
    assert not opened["B"].running, "it moved with its source"
    await hosts.stop_task(TaskId("two", 0), 1)
    await hosts.stop_task(TaskId("unknown", 0), 1)
    assert hosts.status(TaskId("two", 0)) is None
    await hosts.close()
    assert all(it.closed for it in opened.values())


# -- memory of a process that moves records


PIECE_BYTES = 100_000
PIECES = 600


class Ring:
    """An object that nothing but itself refers to, as a closed connection and its receiver do."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def test_what_refers_to_itself_alone_is_freed_within_minutes_at_little_load() -> None:
    clock = FakeClock()
    settling = asyncio.create_task(settle(clock))
    await clock.advance(10)
    assert gc.get_threshold()[0] > 10_000
    for _ in range(2):
        rings = [Ring() for _ in range(FEW + 1)]
        ring = weakref.ref(rings.pop())
        rings.clear()
        assert ring() is not None
        await clock.advance(60)
        assert ring() is None
    ring = weakref.ref(Ring())
    for _ in range(SURE_LOOKS):
        await clock.advance(60)
    assert ring() is None, "also where hardly anything was made"
    settling.cancel()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_that_were_freed_below_a_living_object_go_back_to_the_system() -> None:
    collect()
    before = resident_bytes()
    pieces = [bytearray(b"x") * PIECE_BYTES for _ in range(PIECES)]
    pinned = pieces[:: PIECES // 10]
    whole = PIECES * PIECE_BYTES
    assert resident_bytes() > before + whole // 2
    pieces.clear()
    collect()
    assert resident_bytes() < before + whole // 2
    assert len(pinned) == 10


SCRIPT = """
from collections import deque
from resource import RUSAGE_SELF, getrusage
from mm2py_workers.process_memory import keep_freed_memory

keep_freed_memory()
batches = deque(maxlen=5)

def join(times):
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(times):
        batches.append(bytearray(256 * 1024))
    batches.clear()
    return getrusage(RUSAGE_SELF).ru_minflt - before

join(10)
print(join(1000))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_the_memory_of_joined_batches_is_not_faulted_in_anew() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert int(ended.stdout) < 100  # 64 pages each, 64,000 together, if it went back every time
