"""``mm2py flow``, ``lag`` and ``topics`` as a user runs them, against the product on real brokers.

Flow: a worker as a process -> its REST address from the log -> the command as a process -> output and exit code.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest

from mm2py.embedded.region import KafkaAddress
from tests.integration.conftest import CreateTopic
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import Load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
PARTITIONS: Final = 2
COMMAND_S: Final = 100.0


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands against one worker."""

    url: str
    flow: Flow

    @property
    def name(self) -> str:
        """The flow as it needs no quotes."""
        return f"{self.flow.source_alias}/{self.flow.target_alias}"

    def run(self, *words: str, url: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command."""
        return subprocess.run(
            [COMMAND, *words],
            env={**os.environ, "MM2PY_URL": url or self.url, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def ok(self, *words: str) -> str:
        """Run one command that must end with 0; return what it printed."""
        ended = self.run(*words)
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
def topic(region_a: KafkaAddress, unique: Callable[[str], str], create_topic: CreateTopic) -> str:
    name = unique("cli")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic)


def shell_of(worker: Mirror, flow: Flow) -> Shell:
    """Wait until a worker copies, and return who talks to it."""
    worker.wait_ready(60)
    url = worker.wait_for_log("public=http").split("public=")[1].split()[0].split(",")[0]
    shell = Shell(url, flow)
    until(lambda: shell.state() == "RUNNING", 60, "the flow to run", alive=worker)
    return shell


def test_a_flow_is_seen_paused_changed_and_resumed_from_a_shell(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=200) as load, Mirror(flow.file) as worker:
        shell = shell_of(worker, flow)
        until(lambda: topic in shell.run("lag", "--flow", shell.name).stdout, 60, "the topic")
        row = shell.ok("topics", topic).splitlines()[1].split()
        assert row[1:] == [topic, flow.remote(topic), str(PARTITIONS), "RUNNING"]
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
        assert shell.state() == "RUNNING"
        actions = [it["action"] for it in shell.json("flow", "history", shell.name)]
        assert actions == ["resume", "change", "pause"]
        assert worker.stop() == 0


def test_one_topic_is_paused_and_a_flow_restarted(flow: Flow, topic: str) -> None:
    with Mirror(flow.file) as worker:
        shell = shell_of(worker, flow)
        until(lambda: topic in shell.ok("topics"), 60, "the topic", alive=worker)
        shell.ok("flow", "pause", shell.name, "--topic", topic)
        until(lambda: "PAUSED" in shell.ok("topics", topic), 30, "the topic to pause")
        shell.ok("flow", "resume", shell.name, "--topic", topic)
        until(lambda: "PAUSED" not in shell.ok("topics", topic), 30, "the topic to go on")
        shell.ok("flow", "restart", shell.name, "--wait")
        shell.ok("flow", "stop", shell.name, "--wait")
        shell.ok("flow", "resume", shell.name, "--wait")
        assert worker.stop() == 0


def test_what_goes_wrong_is_one_line_and_an_exit_code(flow: Flow) -> None:
    with Mirror(flow.file) as worker:
        shell = shell_of(worker, flow)
        secure = shell.url.replace("http://", "https://")
        for words, url, code, said in (
            (["flow", "describe", "A/X"], "", 1, "not found (404): No flow A->X"),
            (["flow", "pause", "A-"], "", 2, "is not a flow"),
            (["flow", "set", shell.name, "tasks.max=none"], "", 1, "refused (400): "),
            (["flow", "list"], secure, 1, "does not speak TLS on this port"),
            (["flow", "list"], f"{shell.url}no/such/path", 1, "is --url the address of a worker"),
        ):
            ended = shell.run(*words, url=url)
            assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
            assert ended.stderr.startswith("mm2py: ")
            assert ended.stderr.count("\n") == 1
            assert said in ended.stderr
        assert worker.stop() == 0
        gone = shell.run("lag")
        assert (gone.returncode, "nothing listens at" in gone.stderr) == (1, True)
