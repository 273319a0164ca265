"""Command lines of workers, and files of the two Connect workers: what is refused, and in how many words; and what ends their process, with which code."""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.findings import LintFinding, Severity
from mm2py.config.lint import lint, load_checked
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually
from mm2py.types import ClusterAlias, FlowName, TargetState
from mm2py_connectors.config import CONNECTORS
from mm2py_workers import connect_distributed, connect_mirror_maker, connect_standalone
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
from mm2py_workers.connect_arguments import ProblemsError
from mm2py_workers.connect_mirror_maker import announce, main, run_flows, secrets_of
from mm2py_workers.connect_standalone import load_connector_file
from mm2py_workers.connect_wiring import ConnectWorker, build_distributed, build_standalone
from mm2py_workers.signals import StopSignal
from mm2py_workers.wiring import Node, build_node
from mm2py_workers.worker_file import load_worker_file

pytestmark = pytest.mark.timeout(60)

EXAMPLES = Path(__file__).parents[3] / "examples"
FILE = """\
bootstrap.servers = k1:9092
group.id = g
config.storage.topic = c
offset.storage.topic = o
status.storage.topic = s
key.converter = org.apache.kafka.connect.converters.ByteArrayConverter
value.converter = JsonConverter
"""
ALONE = """\
key.converter = StringConverter
value.converter = StringConverter
offset.storage.file.filename = offsets
"""
MIRROR = "org.apache.kafka.connect.mirror.MirrorSourceConnector"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(text: str, name: str = "worker.properties") -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    return written


def _ends(main: Callable[[Sequence[str]], NoReturn], *words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("words", ["", "--no-such", "f --log-level x", "--clusters B"])
@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("distributed", connect_distributed.main),
        ("standalone", connect_standalone.main),
        ("mirror-maker", connect_mirror_maker.main),
    ],
)
def test_wrong_usage_and_a_missing_file_are_one_line_with_exit_codes_2_and_1(
    name: str,
    main: Callable[[Sequence[str]], NoReturn],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _ends(main, *words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"connect-{name}-py: ")
    assert "-py --help" in line
    assert _ends(main, "/no/such/file") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "/no/such/file does not exist" in line


def test_every_problem_of_a_file_is_one_line_with_its_place(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.replace("= JsonConverter", "= io.example.AvroConverter").replace("= s\n", "= o\n")
    file = write(text.replace("group.id = g\n", "") + "session.timeout.ms = soon\nport = ${x:y}\n")
    assert _ends(connect_distributed.main, file) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{file}:8: port: ${{x:y}}" in line, "nothing else is sure before"
    file.write_text(file.read_text().replace("port = ${x:y}\n", ""))
    assert _ends(connect_distributed.main, file) == 1
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("connect-distributed-py: bad configuration: ") for line in lines)
    told = "\n".join(lines)
    for part in (
        f"{file}: group.id: is missing",
        f"{file}:7: session.timeout.ms=soon: ",
        f"{file}:6: value.converter: Class io.example.AvroConverter could not be found.",
        f"{file}:4: status.storage.topic: names o, as offset.storage.topic does",
    ):
        assert part in told
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("listeners = http://0.0.0.0:8083\n", "8: listeners has http://0.0.0.0:8083"),
        ("listeners = gopher://x:1\n", "8: listeners"),
        ("rest.extension.classes = com.example.E\n", "8: rest.extension.classes"),
        ("connector.client.config.override.policy = Most\n", "override.policy=Most"),
        ("task.host.processes = many\n", "task.host.processes=many"),
        ("security.protocol = MAGIC\n", "security.protocol"),
        ("rest.basic.auth.file = /no/such/file\n", "/no/such/file"),
    ],
)
def test_what_cannot_be_served_or_reached_refuses_the_start(
    more: str, place: str, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(connect_distributed.main, write(FILE + more)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line


def test_insecure_lets_other_machines_in(write: Callable[..., Path]) -> None:
    file = write(FILE + "listeners = http://0.0.0.0:8083\n")
    rest = load_worker_file(file, standalone=False, insecure=True).rest
    assert [str(it) for it in rest.listeners] == ["http://0.0.0.0:8083"]


def test_placeholders_come_from_the_files_providers(write: Callable[..., Path]) -> None:
    providers = (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    )
    text = FILE.replace("= g\n", "= ${env:GROUP}\n") + providers
    file = load_worker_file(
        write(text), standalone=False, environ={"GROUP": "team", "PW": "hunter2"}
    )
    assert file.worker.group_id == "team"
    config = {"a": "${env:PW}", "b": "${topic}", "c": "${other:x}", "d": None}
    assert file.resolve(config) == {"a": "hunter2", "b": "${topic}", "c": "${other:x}"}
    assert {"hunter2", "team"} <= file.secrets()
    with pytest.raises(Exception, match=r"a: \$\{env:NONE\} is not found"):
        file.resolve({"a": "${env:NONE}"})


def test_a_secret_in_a_wrong_place_is_in_no_complaint(write: Callable[..., Path]) -> None:
    text = FILE + (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "security.protocol = ${env:PW}\nsession.timeout.ms = ${env:PW}\n"
    )
    with pytest.raises(ProblemsError) as told:
        load_worker_file(write(text), standalone=False, environ={"PW": "hunter2"})
    assert "session.timeout.ms=[hidden]" in str(told.value)
    assert "hunter2" not in str(told.value)


def test_what_has_no_effect_is_said(write: Callable[..., Path]) -> None:
    text = (
        ALONE
        + "plugin.path = /opt\ntask.host.processes = 2\nexactly.once.source.support = enabled\n"
    )
    notices = load_worker_file(write(text), standalone=True).notices
    named = ("plugin.path", "exactly.once.source.support", "task.host.processes")
    assert [it for it in named if any(notice.startswith(it) for notice in notices)] == list(named)


@pytest.mark.parametrize("name", ["distributed", "standalone"])
def test_the_examples_can_be_run(name: str) -> None:
    file = load_worker_file(
        EXAMPLES / f"connect-{name}.properties", standalone=name == "standalone"
    )
    assert not file.notices


def test_a_standalone_worker_needs_a_file_for_offsets(write: Callable[..., Path]) -> None:
    with pytest.raises(ProblemsError, match=r"offset\.storage\.file\.filename"):
        load_worker_file(write(ALONE.replace("offset", "x-offset")), standalone=True)


# ---- files of connectors


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("name = m\ntasks.max = 2\n", None),
        ('{"name": "m", "tasks.max": 2}', None),
        ('{"name": "m", "config": {"tasks.max": "2"}}', None),
        (
            '{"name": "m", "config": {"name": "m", "tasks.max": 2}, "initial_state": "PAUSED"}',
            "PAUSED",
        ),
        ('{"config": {"name": "m", "tasks.max": 2}, "initial_state": "RUNNING"}', "STARTED"),
    ],
)
def test_a_connector_is_read_in_every_form(
    text: str, target: str | None, write: Callable[..., Path]
) -> None:
    found = load_connector_file(write(text, "connector"))
    assert (found.name, dict(found.config)) == ("m", {"name": "m", "tasks.max": "2"})
    assert found.target == (None if target is None else TargetState(target))


def test_wrong_connector_files_are_told_one_line_each(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        write("tasks.max = 2\n", "nameless"),
        write('{"name": "a", "config": {"name": "b"}}', "twonames"),
        write('{"name": "a", "x": []}', "list"),
        write('{"name": "a", "config": {}, "initial_state": "ASLEEP"}', "asleep"),
        write('{"name": "a", "config": {}, "initial_state": "STARTED"}', "started"),
        Path("/no/such/file"),
    ]
    worker = write(ALONE + "listeners = http://127.0.0.1:0\n")
    assert _ends(connect_standalone.main, worker, *files) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(files)
    for line, file in zip(lines, files, strict=True):
        assert str(file) in line


def test_a_connector_that_is_refused_starts_nothing(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"name": "m", "connector.class": MIRROR, "tasks.max": "none"}
    good = write(json.dumps(config | {"tasks.max": "1", "topics": "["}), "mirror.json")
    bad = write(json.dumps(config), "bad.json")
    worker = write(ALONE + "listeners = http://127.0.0.1:0\n")
    assert _ends(connect_standalone.main, worker, bad) == 1
    told = capsys.readouterr().err
    assert f"{bad}: tasks.max: Invalid value none" in told
    again = write(good.read_text(), "again.json")
    assert _ends(connect_standalone.main, worker, good, again) == 1
    assert "name=m is that of" in capsys.readouterr().err


# -- a worker's process; nothing listens on Kafka's side here --------------------------------------

LISTENERS = "listeners = http://127.0.0.1:0\ninternal.listener = http://127.0.0.1:0\n"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def written(more: str = "") -> Path:
        path = tmp_path / "worker.properties"
        text = FILE.replace("k1:9092", "127.0.0.1:1") + LISTENERS
        path.write_text(f"{text}offset.storage.file.filename = {tmp_path / 'offsets'}\n{more}")
        return path

    return written


def _built(path: Path, *, standalone: bool = False) -> ConnectWorker:
    loaded = load_worker_file(path, standalone=standalone)
    build = build_standalone if standalone else build_distributed
    return build(loaded, metrics=Metrics(SYSTEM_CLOCK), clock=SYSTEM_CLOCK, mask=SecretMask())


@pytest.mark.parametrize("standalone", [False, True])
async def test_a_stop_ends_a_worker_whose_cluster_is_away(
    standalone: bool, file: Callable[..., Path]
) -> None:
    worker = _built(file(), standalone=standalone)
    assert worker.herder.worker_id.startswith("127.0.0.1:")
    assert worker.herder.flow is None
    stop = StopSignal()

    async def begun() -> None:
        stop.ask()

    assert await worker.run(stop, begun) == 0


async def test_files_of_connectors_wait_for_a_cluster_that_is_away_and_the_worker_goes_on(
    file: Callable[..., Path],
) -> None:
    worker = _built(file(), standalone=True)
    connectors = [connect_standalone.ConnectorFile(Path("c.json"), "c", {}, None)]
    stop = StopSignal()

    async def begun() -> None:
        create = connect_standalone._create  # pyright: ignore[reportPrivateUsage]
        creating = asyncio.create_task(create(connectors, worker))
        await eventually(lambda: "waits for" in worker.herder.not_ready)
        assert (await worker.herder.health()).status == "starting"
        await SYSTEM_CLOCK.sleep(0)
        assert not creating.done()
        creating.cancel()
        stop.ask()

    assert await worker.run(stop, begun) == 0


async def test_what_fails_at_first_ends_the_worker_and_is_told(file: Callable[..., Path]) -> None:
    async def begun() -> None:
        raise ConfigError("no such connector")

    with pytest.raises(ConfigError, match="no such connector"):
        await _built(file()).run(StopSignal(), begun)


async def test_a_worker_is_known_by_its_advertised_address(file: Callable[..., Path]) -> None:
    more = "rest.advertised.host.name = worker-1.example\nrest.advertised.port = 8083\n"
    worker = _built(file(more))
    await worker.abandon()
    assert worker.herder.worker_id == "worker-1.example:8083"


async def test_a_taken_port_that_was_asked_for_refuses_the_start(file: Callable[..., Path]) -> None:
    first = _built(file())
    port = first.herder.worker_id.rpartition(":")[2]
    path = file()
    path.write_text(
        path.read_text().replace(
            "listeners = http://127.0.0.1:0", f"listeners = http://127.0.0.1:{port}", 1
        )
    )
    try:
        with pytest.raises(ConfigError, match=rf"REST cannot listen at 127\.0\.0\.1:{port}"):
            _built(path)
    finally:
        await first.abandon()


# ---- the dedicated mode: its complaints, what it says at start, and which flows it may run


FLOW_FILE = """\
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
    file.write_text(FLOW_FILE)
    return file


def test_an_unknown_alias_and_bad_content_are_told_with_its_line_and_in_a_json_log_as_json(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ends(main, path, "--clusters", "B", "X") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "X" in line
    path.write_text(FLOW_FILE + "A->B.tasks.max = many\n")
    assert _ends(main, path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}:8" in line
    before = list(logging.getLogger().handlers)
    try:
        assert _ends(main, path, "--log-format", "json") == 1
    finally:
        logging.getLogger().handlers[:] = before
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert f"bad configuration: {path}:8" in events[-1]["message"]
    assert events[-1]["level"] == "ERROR"


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
    assert "hunter2-clear" in secrets_of(config)


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
    node = _node(path, ["B"])
    assert [str(flow) for flow in node.fleet.herders] == ["A->B"]
    assert await node.stop(1)


def _node(path: Path, targets: list[str] | None = None) -> Node:
    clock, (config, _) = FakeClock(), load_checked(path, CONNECTORS)
    return build_node(
        config, metrics=Metrics(clock), clock=clock, mask=SecretMask(), targets=targets
    )


async def test_a_stop_ends_the_process_in_order(path: Path) -> None:
    """No cluster answers here: the flows wait, and still end at once."""
    # A child process would live by another clock than the node here.
    path.write_text(path.read_text() + "\ntask.host.processes = 0\n")
    with StopSignal() as stop:
        stop.ask()
        assert await run_flows(_node(path), stop, SYSTEM_CLOCK) == 0


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
    path.write_text(FLOW_FILE.replace("A, B", "A, B, C") + more)
    node = _node(path, targets)
    assert sorted(map(str, node.fleet.nodes)) == runs
    assert sorted(map(str, node.fleet.pairs)) == may
    assert sorted(map(str, node.fleet.elsewhere)) == elsewhere
    assert all(node.fleet.file(pair) for pair in node.fleet.pairs)
    assert await node.stop(1)


async def test_with_a_flow_back_that_was_added_later_loops_are_not_left_to_what_a_cluster_allows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file has both: a flow that cannot suppress loops fails, and starts no endless circle."""
    path.write_text(FLOW_FILE + "replication.policy.class = IdentityReplicationPolicy\n")
    node = _node(path)
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
