"""Two regions, a flow between them under the same names, a client that writes where it may, and ``mm2py failover`` as a process.

Flow: ``secured_pair`` -> ``Shop`` (writes to a region until that refuses, then looks for where it may write) -> ``Drivers`` runs commands, and
kills them at a step -> ``check_both_sides``.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, NamedTuple, cast, final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mm2py.errors import ProtocolError
from mm2py.mirror.failovers import Failover, decode_failover, failover_topic
from tests.integration.active_active import IDENTITY
from tests.integration.cluster_changes import allow
from tests.integration.earlier_build import PRESENT, Build
from tests.integration.mirror_process import (
    ENTRIES,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
    write_flow,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.traffic import ends, producer, read
from tests.kit.fork_server import FORKS, Forked
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import MIN_FREE_BYTES, KafkaAddress, Region, started
from tests.kit.kafka.server_properties import Listener
from tests.kit.regions import ANY_SESSION, COMPACTING, CreateTopic

Sides = tuple[Region, Region]
PARTITIONS: Final = 2
LISTENER: Final = "LOGIN"
COMMAND_S: Final = 300.0
BATCH: Final = 5
PAUSE_S: Final = 0.05
EXACTLY_ONCE: Final = {
    f"{{{side}}}.{key}": value
    for side in ("source", "target")
    for key, value in (
        ("exactly.once.source.support", "enabled"),
        ("consumer.isolation.level", "read_committed"),
    )
}
"""Of both flows; they read committed records."""
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def secured_region(
    name: str, properties: Mapping[str, str] | None = None, *, disk: Path | None = None
) -> Region:
    """Return a region where ``shop`` and ``mirror`` log in; a mirror that does not is its super user. Not started yet."""
    login = {
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f'{_MODULE} user_shop="word" user_mirror="word";',
    }
    return Region(
        name,
        properties={**ANY_SESSION, **COMPACTING, **(properties or {})},
        listeners=[Listener(LISTENER, "SASL_PLAINTEXT", login)],
        folder=disk,
        min_free_bytes=1 if disk else MIN_FREE_BYTES,
    )


@contextmanager
def secured_pair(name: str) -> Generator[Sides]:
    """Start the two regions of a flow side by side; both are removed at the end."""
    a, b = secured_region(f"{name}-a"), secured_region(f"{name}-b")
    with started(a, b):
        yield a, b


def as_mirror(region: Region, alias: str) -> dict[str, str]:
    """Return the properties of a flow whose workers log in as ``mirror`` at one of its clusters."""
    return {
        f"{alias}.bootstrap.servers": region.listener_servers(LISTENER),
        f"{alias}.security.protocol": "SASL_PLAINTEXT",
        f"{alias}.sasl.mechanism": "PLAIN",
        f"{alias}.sasl.jaas.config": f'{_MODULE} username="mirror" password="word";',
    }


def login(region: Region) -> dict[str, str]:
    """Return what a client of librdkafka needs to be ``User:shop``."""
    return {
        "bootstrap.servers": region.listener_servers(LISTENER),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": "word",
    }


def failover_of(region: KafkaAddress, other_alias: str) -> Failover | None:
    """Return the newest failover into a region."""
    try:
        logs = read(region, failover_topic(other_alias), committed=True)
    except KeyError:
        return None
    found: list[Failover] = []
    for log in logs.values():
        for record in log.records:
            try:
                it = decode_failover(record.key, record.value or b"")
            except ProtocolError:
                continue
            if isinstance(it, Failover):
                found.append(it)
    return found[-1] if found else None


@final
class Shop:
    """Writes numbered records, one partition after the other, to one region at a time; ends with the ``with`` block.

    Where a write is refused it waits until a failover says where to write.
    """

    def __init__(self, flow: Flow, topic: str, partitions: int) -> None:
        assert isinstance(flow.source, Region)
        assert isinstance(flow.target, Region)
        self._sides = {"source": flow.source, "target": flow.target}
        self._flow, self._topic, self._partitions = flow, topic, partitions
        self.side = "source"
        self._producer = self._new()
        self.acked = 0
        self.gaps: list[float] = []
        """For how long it could not write, for each time that it was refused."""
        self._refused = False
        self._acked_s = time.monotonic()
        self._error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)

    def _new(self) -> Producer:
        """Return a producer: one that was refused once remembers that for long."""
        region = self._sides[self.side]
        settings = {"message.timeout.ms": 50_000, "enable.idempotence": True}
        return producer(region, **settings, **login(region))

    def wait_acked(self, more: int) -> None:
        """Wait until so many more records are written, wherever."""
        goal = self.acked + more
        until(lambda: self.acked >= goal or self._failed(), 120, lambda: f"{goal}, {self.acked}")

    def _failed(self) -> bool:
        if self._error is not None:
            raise self._error
        return False

    def _run(self) -> None:
        try:
            while not self._end.wait(PAUSE_S):
                if self._write():
                    continue
                self.side = self._allowed()
                self._producer = self._new()
        except BaseException as error:  # noqa: BLE001 - shown by who waits for it
            self._error = error

    def _write(self) -> bool:
        """Write the next records one behind the other; False where the region refuses."""
        client, refused = self._producer, [False]

        def answered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                return
            if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise AssertionError(f"write to {self.side} failed: {error}")
            refused[0] = True

        for _ in range(BATCH):
            try:
                client.produce(
                    self._topic,
                    value=b"%d" % self.acked,
                    partition=self.acked % self._partitions,
                    on_delivery=answered,
                )
            except KafkaException as error:
                answered(error.args[0], cast("Message", None))
            assert client.flush(60) == 0
            if refused[0]:
                self._refused = True
                return False
            now = time.monotonic()
            if self._refused:
                self.gaps.append(now - self._acked_s)
            self._refused, self._acked_s = False, now
            self.acked += 1
        return True

    def _allowed(self) -> str:
        """Return the side that clients may write to by what the failovers' records say."""
        flow = self._flow
        there = failover_of(flow.target, flow.source_alias)
        back = failover_of(flow.source, flow.target_alias)
        when = {
            "target": 0 if there is None else there.switched_ms,
            "source": 1 if back is None else max(1, back.switched_ms),
        }
        return max(when, key=lambda side: when[side])

    def __enter__(self) -> "Shop":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(120)
        self._producer.flush(10)
        self._failed()


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """Two secured regions, and what a flow between them is made of."""

    a: Region
    b: Region
    unique: Callable[[str], str]
    create_topic: CreateTopic
    folder: Path

    def same_names(self, topic: str, properties: Mapping[str, str] | None = None) -> Flow:
        """Return a flow of a topic that is on both sides, and that the shop may write on both."""
        for region in (self.a, self.b):
            self.create_topic(region, topic, PARTITIONS)
            allow(region, topic)
        names = {"replication.policy.class": IDENTITY}
        return write_flow(self.folder, self.a, self.b, topic, {**names, **(properties or {})})

    @contextmanager
    def home(self, topic: str, properties: Mapping[str, str] | None = None) -> Generator["Drivers"]:
        """Run a worker of such a flow; lend what moves its clients."""
        flow = self.same_names(topic, properties)
        with running(flow.file) as mirror:
            yield Drivers(flow, mirror)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; ``document`` is what it printed as JSON, None where that is none."""

    code: int
    document: Any
    said: str


class Command(NamedTuple):
    """A command that runs: what it says as it says it, and the file of what it prints."""

    process: subprocess.Popen[str] | Forked
    said: IO[str]
    out: Path


def _started(words: Sequence[str], environ: Mapping[str, str], folder: Path) -> Command:
    """Start one: forked where it is of this build, as it takes a second of CPU to load it."""
    out, said = folder / "out", folder / "said"
    if words[0] in ENTRIES:
        os.mkfifo(said)
        forked = FORKS.start(ENTRIES[words[0]], words, said, out, environ=environ)
        return Command(forked, said.open(), out)
    with out.open("w") as printed:
        process = subprocess.Popen(
            words,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stderr is not None
    return Command(process, process.stderr, out)


@final
@dataclass(slots=True)
class Drivers:
    """Runs ``mm2py failover`` and ``failback`` for one flow against one worker."""

    flow: Flow
    mirror: Mirror
    said: list[str] = field(default_factory=list[str])

    @property
    def name(self) -> str:
        """The flow."""
        return self.flow.name

    @property
    def worker(self) -> str:
        """The worker's address."""
        return public_url(self.mirror).rstrip("/")

    @property
    def url(self) -> str:
        """The flow's address."""
        return f"{self.worker}/flows/{self.name.replace('>', '%3E')}"

    def change_flow(self, change: str, state: str) -> None:
        """Stop, pause or resume the flow; returns when it is in that state."""
        status, answer = ask(f"{self.url}/{change}", "POST")
        assert status == 200, answer
        until(lambda: ask(self.url)[1]["state"] == state, 120, state, alive=self.mirror)

    def run(self, kind: str, *words: str, kill_at: str = "", build: Build = PRESENT) -> Ended:
        """Run a command to its end, or kill it as soon as it says that it is at a step."""
        with self._process(kind, *words, build=build) as command:
            lines: list[str] = []
            for line in command.said:
                lines.append(line)
                if kill_at and f": {kill_at}" in line:
                    command.process.send_signal(signal.SIGKILL)
            code = command.process.wait(COMMAND_S)
            out = command.out.read_text()
        said = "".join(lines)
        self.said.append(f"$ {kind} {' '.join(words)}\n{said}{out[:2000]}\n-> {code}")
        try:
            document = json.loads(out) if out.strip() else None
        except ValueError:
            document = None
        return Ended(code, document, said)

    @contextmanager
    def standing_still(self, kind: str, step: str) -> Generator[Command]:
        """Yield a command that is suspended (SIGSTOP) as soon as it reports a step."""
        with self._process(kind, "--execute", "--settle", "1") as command:
            assert any(step in line for line in command.said), f"it ended before {step}"
            command.process.send_signal(signal.SIGSTOP)
            yield command

    @contextmanager
    def _process(self, kind: str, *words: str, build: Build = PRESENT) -> Generator[Command]:
        asked = {"MM2PY_URL": self.worker, "NO_COLOR": "1"}
        command = [*build.command, kind, str(self.flow.file), "--flow", self.name, *words]
        with TemporaryDirectory(prefix="mm2py-command-") as folder:
            started = _started(command, {**asked, **(build.environ or {})}, Path(folder))
            REAPER.watch_process(started.process.pid)
            timer = threading.Timer(COMMAND_S, started.process.send_signal, [signal.SIGKILL])
            timer.start()
            try:
                yield started
            except BaseException as error:
                error.add_note("\n".join(self.said))
                raise
            finally:
                timer.cancel()
                started.process.send_signal(signal.SIGKILL)
                started.process.wait(COMMAND_S)
                started.said.close()
                REAPER.forget_process(started.process.pid)

    def execute(self, kind: str, *words: str, kills: Sequence[str] = ()) -> Ended:
        """Execute to the end; drivers before the last one are killed at steps."""
        given = ("--execute", "--settle", "1", "-o", "json", *words)
        for step in kills:
            self.run(kind, *given, kill_at=step)
        ended = self.run(kind, *given)
        assert ended.code == 0, "\n".join(self.said)
        assert ended.document["step"] == "DONE"
        return ended


def values_of(region: KafkaAddress, topic: str) -> list[list[int]]:
    """Return the numbers in a topic, by partition."""
    logs = read(region, topic, timeout_s=120)
    return [
        [int(record.value or b"-1") for record in logs[partition].records]
        for partition in sorted(logs)
    ]


def settled(a: Region, b: Region, topic: str, count: int, mirror: Mirror) -> None:
    """Wait until both sides hold every number once, in order."""

    def there() -> bool:
        return all(sum(ends(it, topic).values()) >= count for it in (a, b))

    until(there, 120, lambda: f"{count}: {ends(a, topic)} {ends(b, topic)}", alive=mirror)
    # Markers of transactions count in the ends.
    wanted = [list(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)]
    until_equal(lambda: [values_of(it, topic) for it in (a, b)], [wanted] * 2, alive=mirror)
