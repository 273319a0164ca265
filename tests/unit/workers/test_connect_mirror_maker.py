"""The dedicated mode's command line, its one-line complaints, what it says at start, and which flows it may run."""

import json
import logging
from pathlib import Path

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.lint import load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.connect_mirror_maker import announce, main, run_flows, secrets_of
from mm2py_workers.signals import StopSignal
from mm2py_workers.wiring import Node, build_node

FILE = """\
clusters = A, B
A.bootstrap.servers = a1:9092
B.bootstrap.servers = b1:9092
A->B.enabled = true
A->B.topics = orders
A.sasl.password = hunter2-clear
A->B.topic.creation.default.partitions = 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    return file


def _ends(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    "words", [(), ("--clusters", "B"), ("--no-such",), ("f", "--log-level", "x")]
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(*words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("connect-mirror-maker-py: ")
    assert "--help" in lines[0]


def test_an_unknown_cluster_alias_is_wrong_usage(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(str(path), "--clusters", "B", "X") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "X" in line


def test_a_missing_file_is_a_failure_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ends("/no/such/mm2.properties") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "/no/such/mm2.properties" in line
    assert "Traceback" not in line


def test_bad_content_names_the_file_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(FILE + "A->B.tasks.max = many\n")
    assert _ends(str(path)) == 1
    err = capsys.readouterr().err
    assert f"{path}:8" in err
    assert "Traceback" not in err


def test_the_last_line_of_a_json_log_is_json_too(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(FILE + "A->B.tasks.max = many\n")
    before = list(logging.getLogger().handlers)
    try:
        assert _ends(str(path), "--log-format", "json") == 1
    finally:
        logging.getLogger().handlers[:] = before
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert f"bad configuration: {path}:8" in events[-1]["message"]
    assert events[-1]["level"] == "ERROR"


def _checked(path: Path) -> MirrorMakerConfig:
    config, _ = load_checked(path, CONNECTORS)
    return config


def test_start_names_flows_and_what_has_no_effect(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config, findings = load_checked(path, CONNECTORS)
    announce(config, config.flows(), findings)
    text = caplog.text
    assert "flow=A->B replicates" in text
    assert "flow=B->A is disabled" in text
    assert text.count("topic.creation.* has no effect") == 1


def test_start_names_ten_flows_of_heartbeats_and_counts_the_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [f"c{number}" for number in range(5)]
    servers = "".join(f"{it}.bootstrap.servers = {it}:1\n" for it in names)
    path.write_text(f"clusters = {','.join(names)}\n{servers}c0->c1.enabled = true\n")
    config, findings = load_checked(path, CONNECTORS)
    announce(config, config.flows(), findings)
    assert caplog.text.count("is disabled, only its heartbeats run") == 10
    assert "as do those of 9 more disabled flows" in caplog.text


async def test_only_flows_to_the_chosen_targets_are_built(path: Path) -> None:
    node = _node(_checked(path), ["B"])
    assert [str(flow) for flow in node.fleet.herders] == ["A->B"]
    assert await node.stop(1)


def _node(config: MirrorMakerConfig, targets: list[str] | None = None) -> Node:
    clock = FakeClock()
    return build_node(
        config, metrics=Metrics(clock), clock=clock, mask=SecretMask(), targets=targets
    )


def test_a_clear_text_password_is_a_secret(path: Path) -> None:
    assert "hunter2-clear" in secrets_of(_checked(path))


async def test_a_stop_ends_the_process_in_order(path: Path) -> None:
    """No cluster answers here: the flows wait, and still end at once."""
    # A child process would live by another clock than the node here.
    path.write_text(path.read_text() + "\ntask.host.processes = 0\n")
    with StopSignal() as stop:
        stop.ask()
        assert await run_flows(_node(_checked(path)), stop, SYSTEM_CLOCK) == 0


@pytest.mark.parametrize(
    ("targets", "runs", "may", "elsewhere"),
    [
        (None, ["A->B", "B->C"], ["A->B", "A->C", "B->A", "B->C", "C->A", "C->B"], []),
        (["B"], ["A->B"], ["A->B", "C->B"], ["B->C"]),
    ],
)
async def test_flows_to_the_chosen_targets_may_be_added(
    path: Path, targets: list[str] | None, runs: list[str], may: list[str], elsewhere: list[str]
) -> None:
    more = "C.bootstrap.servers = c1:9092\nB->C.enabled = true\nemit.heartbeats.enabled = false\n"
    path.write_text(FILE.replace("A, B", "A, B, C") + more)
    node = _node(_checked(path), targets)
    assert sorted(map(str, node.fleet.nodes)) == runs
    assert sorted(map(str, node.fleet.pairs)) == may
    assert sorted(map(str, node.fleet.elsewhere)) == elsewhere
    assert all(node.fleet.file(pair) for pair in node.fleet.pairs)
    assert await node.stop(1)
