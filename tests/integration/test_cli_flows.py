"""``mm2py flow``, ``lag`` and ``topics`` as a user runs them, against the product on real brokers.

Flow: a worker as a process -> its REST address from the log -> the command as a process -> output and exit code.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
from typer.testing import CliRunner

from mm2py_cli.app import app
from tests.certificates import Authority
from tests.integration.flow_questions import flows_file
from tests.integration.mirror_process import (
    COMMAND,
    MM2PY,
    Flow,
    Mirror,
    running,
    until,
    write_flow,
)
from tests.integration.rest_asking import ask
from tests.integration.setups import Setup
from tests.integration.traffic import Load
from tests.kit.kafka.ports import free_ports
from tests.kit.kafka.region import ForeignRegion, KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS: Final = 2
COMMAND_S: Final = 100.0
CANARY: Final = "canary-5ecret"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands against one worker."""

    url: str
    flow: Flow
    topic: str

    @property
    def name(self) -> str:
        """The flow as it needs no quotes."""
        return f"{self.flow.source_alias}/{self.flow.target_alias}"

    def environ(self, url: str = "", env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return what a command finds in its environment."""
        return {"MM2PY_URL": url or self.url, "NO_COLOR": "1", **(env or {})}

    def process(
        self, *words: str, url: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command as a process."""
        return subprocess.run(
            [MM2PY, *words],
            env={**os.environ, **self.environ(url, env)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def run(self, *words: str, url: str = "", env: Mapping[str, str] | None = None) -> Ended:
        """Run one command here: a process needs a second of CPU to load it."""
        ended = CliRunner().invoke(app, list(words), env=self.environ(url, env))
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Ended(ended.exit_code, ended.stdout, ended.stderr)

    def ok(self, *words: str) -> str:
        """Run one command until it ends with 0; return what it printed. A rebalance is waited for."""
        ended = until(lambda: None if "not now (409)" in (it := self.run(*words)).stderr else it)
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def json(self, *words: str) -> Any:
        """Run one command that must end with 0; return its JSON."""
        return json.loads(self.ok(*words, "-o", "json"))

    def state(self) -> str:
        """Return the state of the flow, whatever the exit code."""
        ended = self.run("flow", "list", "-o", "json")
        assert ended.returncode in (0, 3), ended.stderr
        rows = cast("list[dict[str, str]]", json.loads(ended.stdout))
        name = self.name.replace("/", "->")
        return next((it["state"] for it in rows if it["flow"] == name), "")

    def properties(self) -> dict[str, str]:
        """Return the config in force of the source connector."""
        connectors = self.json("flow", "config", self.name)
        found = next(it for it in connectors if it["connector"] == "MirrorSourceConnector")
        return {it["key"]: it["value"] for it in found["properties"]}


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("cli", PARTITIONS)


def url_of(worker: Mirror) -> str:
    """Return where a worker serves its users."""
    return worker.wait_for_log("public=http").split("public=")[1].split()[0].split(",")[0]


def shell_of(worker: Mirror, flow: Flow, topic: str) -> Shell:
    """Wait until a worker copies, and return who talks to it."""
    worker.wait_ready()
    shell = Shell(url_of(worker), flow, topic)
    until(lambda: shell.state() == "RUNNING", 90, "the flow to run", alive=worker)
    return shell


@pytest.fixture(scope="module")
def shell(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shell]:
    """A worker that several tests ask; each leaves its flow running."""
    topic = unique("cli")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path_factory.mktemp("cli"), region_a, region_b, topic)
    with running(flow.file, ready=False) as worker:
        yield shell_of(worker, flow, topic)


def test_a_flow_is_seen_paused_changed_and_resumed_from_a_shell(shell: Shell) -> None:
    flow, topic = shell.flow, shell.topic
    with Load(flow.source, topic, PARTITIONS, rate=200) as load:
        until(lambda: topic in shell.run("lag", "--flow", shell.name).stdout, 90, "the topic")
        wanted = [topic, flow.remote(topic), str(PARTITIONS), "RUNNING"]

        def row() -> list[str]:
            return shell.ok("topics", topic).splitlines()[1].split()[1:]

        until(lambda: row() == wanted, 90, lambda: f"{wanted}: {row()}")
        assert len(shell.json("topics", "--partitions", "--flow", shell.name)) == PARTITIONS
        assert "MirrorSourceConnector-0" in shell.ok("flow", "describe", shell.name, "-o", "wide")

        shell.ok("flow", "pause", shell.name, "--dry-run", "--wait")
        assert shell.state() == "RUNNING"
        assert "PAUSED" in shell.ok("flow", "pause", shell.name, "--wait")
        assert shell.state() == "PAUSED"
        load.wait_acked(400)
        assert shell.run("lag").returncode == 0
        late = shell.run("lag", "--max-seconds", "0.1")
        assert (late.returncode, "is PAUSED" in late.stderr) == (3, True)

        before = shell.properties()
        changes = shell.ok(
            "flow", "set", shell.name, "refresh.topics.interval.seconds=7", "--dry-run"
        )
        assert "refresh.topics.interval.seconds" in changes
        assert shell.properties() == before
        shell.ok("flow", "set", shell.name, "refresh.topics.interval.seconds=7")
        assert shell.properties()["refresh.topics.interval.seconds"] == "7"
        assert "refresh.topics.interval.seconds" in shell.ok(
            "flow", "config", shell.name, "--changed"
        )
        shell.ok("flow", "resume", shell.name, "--wait")
        assert shell.state() == "RUNNING", "with the change, which went to the tasks only now"
        actions = [it["action"] for it in shell.json("flow", "history", shell.name)]
        assert actions[:3] == ["resume", "change", "pause"]


def test_one_topic_is_paused_and_a_flow_restarted(shell: Shell) -> None:
    topic = shell.topic
    until(lambda: topic in shell.ok("topics"), 90, "the topic")
    shell.ok("flow", "pause", shell.name, "--topic", topic)
    until(lambda: "PAUSED" in shell.ok("topics", topic), 90, "the topic to pause")
    shell.ok("flow", "resume", shell.name, "--topic", topic)
    until(lambda: "PAUSED" not in shell.ok("topics", topic), 90, "the topic to go on")
    shell.ok("flow", "restart", shell.name, "--wait")
    shell.ok("flow", "stop", shell.name, "--wait")
    shell.ok("flow", "resume", shell.name, "--wait")


def test_what_goes_wrong_is_one_line_and_an_exit_code(shell: Shell) -> None:
    secure = shell.url.replace("http://", "https://")
    for words, url, code, said in (
        (["flow", "describe", "A/X"], "", 1, "not found (404): No flow A->X"),
        (["flow", "pause", "A-"], "", 2, "is not a flow"),
        (["flow", "set", shell.name, "tasks.max=none"], "", 1, "refused (400): "),
        (["flow", "list"], secure, 1, "does not speak TLS on this port"),
        (["flow", "list"], f"{shell.url}no/such/path", 1, "is --url the address of a worker"),
    ):
        # What ends the process is one for all: one of them is one.
        ended = (shell.process if code == 2 else shell.run)(*words, url=url)
        assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
        assert ended.stderr.startswith("mm2py: ")
        assert ended.stderr.count("\n") == 1
        assert said in ended.stderr


def test_a_flow_is_created_rolled_back_and_deleted_from_a_shell(setup: Setup, topic: str) -> None:
    kept, new = flows_file(setup.folder, setup.a, setup.b, [f"{topic}.none", topic], running=1)
    with Mirror(kept.file) as worker:
        shell = Shell(url_of(worker), new, topic)
        # No topic matches the first flow yet: it is in order, and says so.
        until(lambda: Shell(shell.url, kept, topic).state() == "RUNNING", 90, "the first flow")
        listed = shell.run("flow", "list")
        assert (listed.returncode, "matches no topic" in listed.stderr) == (0, True)
        planned = shell.ok("flow", "create", shell.name, f"topics={topic}", "--dry-run")
        assert {"added", f"{new.source_alias}->{new.target_alias}"} <= set(planned.split())
        assert shell.state() == ""
        shell.ok("flow", "create", shell.name, f"topics={topic}", "--wait")
        again = shell.run("flow", "create", shell.name)
        assert (again.returncode, "(409)" in again.stderr) == (1, True)
        completed = shell.process(
            env={
                "_MM2PY_COMPLETE": "complete_bash",
                "COMP_WORDS": f"mm2py flow pause {new.source_alias}",
                "COMP_CWORD": "3",
            }
        )
        assert completed.stdout.split() == [shell.name]

        made = shell.json("flow", "history", shell.name)[0]["revision"]
        shell.ok("flow", "set", shell.name, f"topics={topic},{topic}.2")
        shell.ok("flow", "delete", shell.name, "--topic", f"{topic}.2", "--yes")
        shell.ok("flow", "rollback", shell.name, str(made), "--wait")
        assert (shell.properties()["topics"], shell.state()) == (topic, "RUNNING")
        unsure = shell.run("flow", "delete", shell.name)
        assert (unsure.returncode, "use --yes" in unsure.stderr) == (2, True)
        shell.ok("flow", "delete", shell.name, "--yes")
        assert shell.state() == ""
        assert worker.stop() == 0
    # The port of the worker may be another test's by now.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        gone = Shell(f"http://127.0.0.1:{bound.getsockname()[1]}", new, topic).process("lag")
    assert (gone.returncode, "nothing listens at" in gone.stderr) == (1, True)


def test_a_worker_with_tls_is_asked_with_certificate_and_password(setup: Setup, topic: str) -> None:
    authority = Authority()
    own = authority.issue("worker")
    files = {
        "ca.pem": authority.pem(),
        "own.pem": own.key_pem() + own.chain_pem(),
        "users": f"ann={CANARY}\nbob={CANARY}2\n",
        "password": f"{CANARY}\n",
        "token": f"{CANARY}3\n",
        "tokens": f"robot={CANARY}3\n",
    }
    for name, text in files.items():
        (setup.folder / name).write_text(text)
    rest = {
        "listeners": "https://127.0.0.1:0",
        "listeners.https.ssl.keystore.type": "PEM",
        "listeners.https.ssl.keystore.location": str(setup.folder / "own.pem"),
        "rest.basic.auth.file": str(setup.folder / "users"),
        "rest.bearer.tokens.file": str(setup.folder / "tokens"),
        "rest.read.only.users": "bob",
    }
    flow = setup.flow(topic, rest)
    ca = ["--ca-file", str(setup.folder / "ca.pem")]
    ann = [*ca, "--user", "ann", "--password-file", str(setup.folder / "password")]
    with running(flow.file) as worker:
        shell = Shell(url_of(worker), flow, topic)
        plain = shell.url.replace("https://", "http://")
        pause = ["flow", "pause", shell.name, "--dry-run"]
        bob = {"MM2PY_USER": "bob", "MM2PY_PASSWORD": f"{CANARY}2"}
        wrong = {"MM2PY_USER": "ann", "MM2PY_PASSWORD": f"{CANARY}4"}
        for words, url, env, said in (
            (["flow", "list"], "", {}, "is not trusted: "),
            (["flow", "list", *ca], "", {}, "wants to know who you are (401)"),
            (["flow", "list", *ca], "", wrong, "refuses these credentials (401)"),
            ([*pause, *ca], "", bob, "not allowed (403): User bob may only read"),
            (["flow", "list"], plain, {}, "use https:// if that port speaks TLS"),
        ):
            ended = shell.run(*words, url=url, env=env)
            assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
            assert said in ended.stderr
            assert CANARY not in ended.stderr
        assert shell.run("flow", "list", *ca, env=bob).returncode in (0, 3)
        shell.ok(*pause, *ann)
        shell.ok(*pause, *ca, "--token-file", str(setup.folder / "token"))


@pytest.fixture
def away(tmp_path: Path) -> tuple[Path, int]:
    """The file of a flow whose clusters are at a port that has no listener."""
    port, rest = free_ports(2)
    file = tmp_path / "away.properties"
    file.write_text(
        f"clusters = A, B\nA.bootstrap.servers = 127.0.0.1:{port}\nB.bootstrap.servers = 127.0.0.1:{port}\n"
        f"A->B.enabled = true\nlisteners = http://127.0.0.1:{rest}\n"
    )
    return file, port


def test_a_worker_whose_clusters_are_away_at_its_start_says_why_everywhere_and_ends_in_order(
    away: tuple[Path, int],
) -> None:
    file, port = away
    cause = f"waits for target cluster B at 127.0.0.1:{port}"
    nobody = ForeignRegion("away", f"127.0.0.1:{port}")
    with Mirror(file) as worker:
        shell = Shell(url_of(worker), Flow(nobody, nobody, "A", "B", file), "t")
        until(lambda: cause in shell.run("flow", "list").stderr, 90, "the cause", alive=worker)
        for words, code in (
            (("flow", "list"), 3),
            (("flow", "describe", "A/B"), 3),
            (("lag",), 3),
            (("topics",), 3),
            (("group", "list", "A/B"), 1),
            (("flow", "pause", "A/B"), 1),
        ):
            ended = shell.run(*words)
            said = ended.stdout + ended.stderr
            assert (ended.returncode, cause in said, "rebalance" in said) == (code, True, False)
        rows = json.loads(shell.run("flow", "list", "-o", "json").stdout)
        assert {it["flow"]: it["enabled"] for it in rows} == {"A->B": True, "B->A": False}
        worker.send(signal.SIGHUP)  # to all of its processes, as of a closed terminal
        assert worker.wait() == 0
        assert "stopped" in worker.log().splitlines()[-1]


def test_a_worker_under_nohup_outlives_its_terminal_and_ends_in_order(
    away: tuple[Path, int],
) -> None:
    with Mirror(away[0], program=("nohup", COMMAND)) as worker:
        url = url_of(worker)
        worker.send(signal.SIGHUP)
        assert ask(url)[0] == 200
        assert worker.stop() == 0
        assert "stopped" in worker.log().splitlines()[-1]
