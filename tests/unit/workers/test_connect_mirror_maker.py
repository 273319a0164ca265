"""The dedicated mode's command line, its one-line complaints, what it says at start, and which flows it may run."""

import json
import logging
import re
from pathlib import Path

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.findings import LintFinding, Severity
from mm2py.config.lint import lint, load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
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


def test_an_unknown_cluster_alias_is_wrong_usage(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(str(path), "--clusters", "B", "X") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "X" in line


def test_bad_content_is_told_with_its_line_in_the_last_line_which_is_json_as_all_are_in_a_json_log(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(FILE + "A->B.tasks.max = many\n")
    assert _ends(str(path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}:8" in line
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
    path.write_text(f"clusters = {','.join(names)}\n{servers}")
    config, findings = load_checked(path, CONNECTORS)
    announce(config, config.flows(), findings)
    assert caplog.text.count("is disabled, only its heartbeats run") == 10
    assert "as do those of 10 more disabled flows" in caplog.text


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


async def test_with_a_flow_back_that_was_added_later_loops_are_not_left_to_what_a_cluster_allows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file has both: a flow that cannot suppress loops fails, and starts no endless circle."""
    path.write_text(FILE + "replication.policy.class = IdentityReplicationPolicy\n")
    node = _node(_checked(path))
    there, back = (FlowName(*map(ClusterAlias, it)) for it in ("AB", "BA"))
    herder, added = node.fleet.nodes[there].herder, node.fleet.nodes[back].overrides
    source = node.fleet.file(there)["MirrorSourceConnector"]
    assert "loop.suppression" not in herder.resolved(source)
    whole = {name: {**it, "enabled": "true"} for name, it in node.fleet.file(back).items()}
    monkeypatch.setattr(added, "effective", lambda: whole)
    for given in (source, {**source, "loop.suppression": "auto"}):
        assert herder.resolved(given)["loop.suppression"] == "on"
    assert herder.resolved({**source, "loop.suppression": "off"})["loop.suppression"] == "off"
    assert await node.stop(1)


# -- what ``mm2py lint`` and a start find in the transforms of a file, with its line


HEAD = (
    "clusters = A, B\nA.bootstrap.servers = h:1\nB.bootstrap.servers = h:2\nA->B.enabled = true\n"
)
FILTER = "A->B.transforms = f\nA->B.transforms.f.type = Filter\n"


def _found(tmp_path: Path, text: str) -> list[LintFinding]:
    file = tmp_path / "mm2.properties"
    file.write_text(HEAD + text)
    return lint(file, CHECKED_CONNECTORS, environ={})


@pytest.mark.parametrize(
    ("text", "severity", "line", "said"),
    [
        ("A->B.transforms = f", "ERROR", 0, r"A->B.transforms.f.type: .*Missing required"),
        ("A->B.transforms = f\nA->B.transforms.f.type = no.Such", "ERROR", 6,
         "Class no.Such could not be found."),
        (
            "A->B.transforms = f\nA->B.transforms.f.type = org.apache.kafka.connect.transforms.InsertField$Value",
            "ERROR",
            6,
            r"changes fields of structures, and the records of a mirror are bytes",
        ),
        (
            "A->B.transforms = f\nA->B.transforms.f.type = RegexRouter\nA->B.transforms.f.replacement = x\n"
            "A->B.transforms.f.regex = (",
            "ERROR",
            8,
            "Invalid regex",
        ),
        (FILTER + "A->B.transforms.f.predicate = p", "ERROR", 7, r"not among the predicates \[\]"),
        ("A->B.transforms = f, f\nA->B.transforms.f.type = Filter", "ERROR", 5, "names f twice"),
        (FILTER + "A->B.transforms.g.type = Filter", "WARNING", 7,
         "names no transformation whose keys"),
        (FILTER + "A->B.transforms.f.patern = x", "WARNING", 7,
         "has no such key; its keys are negate"),
        (FILTER + "A->B.predicates.p.type = HasHeaderKey", "WARNING", 7, "names no predicate"),
        (
            "A->B.topic.creation.default.partitions = 3\nA->B.topic.creation.default.replication.factor = 1",
            "WARNING",
            5,
            r"topic\.creation\.\* has no effect",
        ),
        ("A->B.topic.creation.groups = x\nA->B.copy.connector = sink", "WARNING", 5,
         "has no effect"),
        (FILTER + "A->B.offsets.identical = require", "ERROR", 7, "not possible with transforms"),
        (FILTER + "A->B.flow.engine = spark", "ERROR", 7, "not possible with transforms"),
        ("A->B.errors.tolerance = all", "ERROR", 5, "drops no record here"),
        (FILTER + "A->B.copy.connector = sink\nA->B.transforms.f.predicate = p", "ERROR", 8,
         "not among the predicates"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_transforms_is_found_with_its_line(
    tmp_path: Path, text: str, severity: str, line: int, said: str
) -> None:
    (finding,) = _found(tmp_path, text + "\n")
    assert finding.severity is Severity[severity]
    assert re.search(said, finding.describe("f"))
    assert finding.line == line


@pytest.mark.parametrize(
    "text",
    [
        FILTER,
        FILTER + "A->B.transforms.f.predicate = p\nA->B.predicates = p\nA->B.predicates.p.type = RecordIsTombstone\n",
        FILTER + "A->B.errors.tolerance = all\n",
        FILTER + "A->B.offsets.identical = prefer\n",
        FILTER + "A->B.copy.connector = sink\n",
    ],
)  # fmt: skip
def test_transforms_that_are_right_get_no_finding(tmp_path: Path, text: str) -> None:
    assert _found(tmp_path, text) == []


def test_a_start_is_refused_with_the_line_of_a_wrong_transform(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(HEAD + "A->B.transforms = f\nA->B.transforms.f.type = ValueToKey\n")
    with pytest.raises(
        ConfigError, match=r"mm2.properties:6: A->B.transforms.f.type: .*structures"
    ):
        load_checked(file, CHECKED_CONNECTORS, environ={})
