"""``mm2py lint`` and ``mm2py config explain``: lines, exit codes, secrets."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mm2py.config.lint import load_checked
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py_cli.config_commands import explain_file, lint_file
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.wiring import build_node

HEAD = "clusters=A,B\nA.bootstrap.servers=h:1\nB.bootstrap.servers=h:2\n"
ON = HEAD + "A->B.enabled=true\n"


class Screen:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._out = StringIO()

    def lint(self, text: str) -> tuple[int, str]:
        self.path.write_text(text)
        return lint_file(self.path, console=self._console()), self._out.getvalue()

    def explain(self, text: str, flow: str | None = None) -> tuple[int, str]:
        self.path.write_text(text)
        return explain_file(self.path, flow, console=self._console()), self._out.getvalue()

    def _console(self) -> Console:
        self._out = StringIO()
        return Console(file=self._out, highlight=False, width=40)


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    return Screen(tmp_path / "mm2.properties")


def test_lint_prints_one_line_per_finding_and_counts_them(screen: Screen) -> None:
    code, text = screen.lint(ON + "max.tasks=1\n")
    lines = text.splitlines()
    assert code == 0
    assert lines[0].startswith(f"warning  {screen.path}:5: max.tasks: is not known")
    assert lines[1] == f"{screen.path}: errors: 0, warnings: 1; it would start"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clusters=A\nA.bootstrap.servers=h:1\n", "no replication flows; name at least two"),
        ("clusters=A, A\nA.bootstrap.servers=h:1\n", ":1: clusters: names A twice"),
        (ON + "listeners = 8083\n", ":5: listeners has '8083', which is no listener"),
        (
            ON + "B.inter.worker.signature.algorithm = x\n",
            "signature.algorithm=x: no such algorithm",
        ),
        (ON + "listeners = http://0.0.0.0:70000\n", "which is no listener"),
        (ON + "B.receive.buffer.bytes = x\n", "worker of A->B: receive.buffer.bytes=x: must be"),
        (ON + "B.inter.worker.signature.algorithm = x\n", "signature.algorithm=x: no such"),
        (ON + "rest.max.body.bytes = 0\n", "rest.max.body.bytes"),
        (ON + "internal.listener = x\n", ":5: internal.listener"),
    ],
)
def test_lint_refuses_what_the_start_refuses(screen: Screen, text: str, said: str) -> None:
    code, lines = screen.lint(text)
    assert (code, said in lines, "errors: 1" in lines) == (1, True, True)
    assert lines.endswith("it would not start\n")
    with pytest.raises(ConfigError):
        started(screen.path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "no flow is enabled: nothing is copied; set A->B.enabled = true"),
        (ON.replace("h:2", "h:1"), "A, B have the same bootstrap.servers"),
        (ON + "rest.basic.auth.file = /no/file\n", ":5: rest.basic.auth.file: is no file"),
    ],
)
def test_lint_warns_of_a_file_that_runs_and_does_less_than_it_seems(
    screen: Screen, text: str, said: str
) -> None:
    code, lines = screen.lint(text)
    assert (code, said in lines, "warnings: 1; it would start" in lines) == (0, True, True)


def test_lint_ends_with_1_when_the_file_cannot_run(screen: Screen, tmp_path: Path) -> None:
    assert screen.lint(HEAD + "tasks.max=0\n")[0] == 1
    assert screen.lint("a=1\n")[0] == 1
    missing = StringIO()
    assert lint_file(tmp_path / "no", console=Console(file=missing, width=200)) == 1
    assert "does not exist" in missing.getvalue()


CIRCLE = HEAD + (
    "A->B.enabled=true\nB->A.enabled=true\ntopics=orders\n"
    "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("B->A.loop.suppression=off\n", "let each of them suppress loops"),
        ("copy.connector=sink\n", "set copy.connector=source for A->B, B->A"),
        ("B->A.copy.connector=sink\nA->B.loop.suppression=on\n", "copy.connector=source for B->A"),
    ],
)
def test_lint_refuses_a_circle_as_the_start_does(screen: Screen, lines: str, said: str) -> None:
    code, text = screen.lint(CIRCLE + lines)
    assert code == 1
    assert f"{screen.path}:4: A->B.enabled: records would be copied in a circle: A->B, B->A" in text
    assert said in text
    with pytest.raises(ConfigError, match=said):
        started(screen.path)


def test_lint_and_start_refuse_routers_that_let_copies_run_in_a_circle(screen: Screen) -> None:
    text = HEAD + "A->B.enabled=true\nB->A.enabled=true\ntopics=orders\n"
    for source, target in ("AB", "BA"):
        own = f"{source}->{target}.transforms"
        text += f"{own}=strip\n{own}.strip.type=RegexRouter\n{own}.strip.replacement=$1\n"
        text += f"{own}.strip.regex={source}[.](.*)\n"
    assert screen.lint(text)[0] == 0, "loops are suppressed where routers keep names"
    code, said = screen.lint(text + "B->A.loop.suppression=off\n")
    assert code == 1
    assert "records would be copied in a circle: A->B, B->A (topic orders)" in said
    with pytest.raises(ConfigError, match=r"loop\.suppression=on"):
        started(screen.path)


def test_the_marks_that_the_documentation_shows_open_a_circle_of_groups(screen: Screen) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/copying.md").read_text(encoding="utf-8")
    marks = page.partition("A->B.transforms = drop,mark")
    there = "".join(marks[1:]).partition("```")[0]
    lines = f"copy.connector=sink\n{there}\n{there.replace('A->B.', 'B->A.')}"
    assert screen.lint(CIRCLE + "copy.connector=sink\n")[0] == 1
    code, text = screen.lint(CIRCLE + lines)
    assert code == 0, text


MEETING = HEAD.replace("A,B", "A,B,C") + "C.bootstrap.servers = h:3\ntopics = orders\n"


@pytest.mark.parametrize(
    ("lines", "meet"),
    [
        ("A->B.enabled = true\nC->B.enabled = true\n", True),
        ("A->B.enabled = true\nC->B.enabled = true\ncopy.connector = sink\n", True),
        ("A->B.enabled = true\nC->B.enabled = true\nC->B.topics = others\n", False),
        ("A->B.enabled = true\nA->C.enabled = true\n", False),
        ("A->B.enabled = true\nB->A.enabled = true\n", False),
    ],
)
def test_lint_names_flows_that_write_into_one_topic(screen: Screen, lines: str, meet: bool) -> None:
    keeps_names = "replication.policy.class = IdentityReplicationPolicy\n"
    code, said = screen.lint(MEETING + keeps_names + lines)
    assert code == 0, said
    text = "A->B, C->B write into one topic (topic orders): no group is checkpointed or synced"
    assert (text in said) is meet
    assert "write into one topic" not in screen.lint(MEETING + lines)[1], "prefixes never meet"


def started(path: Path) -> None:
    """Build what a start builds."""
    config, _ = load_checked(path, CONNECTORS, environ={})
    clock = FakeClock()
    build_node(config, metrics=Metrics(clock), clock=clock, mask=SecretMask())


def test_explain_says_where_every_value_comes_from(screen: Screen) -> None:
    code, text = screen.explain(HEAD + "A->B.enabled=true\ntopics=x\nB.producer.acks=1\n", "A->B")
    lines = text.splitlines()
    assert code == 0
    assert "A->B: replicates" in lines
    assert "  topics = x    # line 5: topics" in lines
    assert "  refresh.topics.interval.seconds = 5    # our default (Java: 600)" in lines
    assert "  acks = 1    # line 6: B.producer.acks" in lines
    assert "  enable.auto.commit = false    # fixed by the derivation" in lines
    assert not [line for line in lines if line.startswith("B->A")]


def test_explain_shows_all_flows_without_a_flow(screen: Screen) -> None:
    code, text = screen.explain(HEAD + "A->B.enabled=true\n")
    assert code == 0
    assert "A->B: replicates" in text
    assert "B->A: heartbeats only" in text


def test_explain_never_shows_a_secret(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("p=hunter2\n")
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    _, text = screen.explain(
        f"{HEAD}config.providers=file\nconfig.providers.file.class={provider}\n"
        f"B.ssl.key.password=${{file:{tmp_path}/s:p}}\nB.producer.client.id=${{file:{tmp_path}/s:p}}\n"
        "A.sasl.jaas.config=hunter2\nA->B.xx.password=hunter2\nA.ssl.key.pasword=hunter2\n"
        f'B.sasl.jaas.config=x.Y required username="${{file:{tmp_path}/s:p}}" password="hunter2";\n'
        'A.sasl.jaas=hunter2\nA.login=x.OwnLoginModule required key="hunter2";\n'
    )
    assert "hunter2" not in text
    assert f"sasl.jaas.config = ******** ${{file:{tmp_path}/s:p}}" in text
    assert f"client.id = ${{file:{tmp_path}/s:p}}" in text
    assert "sasl.jaas.config = ********" in text


@pytest.mark.parametrize("flow", ["A->Z", "A", "A->A", "Z->A", "A/Z"])
def test_explain_of_an_unknown_flow_is_wrong_usage(screen: Screen, flow: str) -> None:
    code, text = screen.explain(HEAD, flow)
    assert code == 2
    assert "is no flow of" in text or "is not a flow" in text


def test_a_flow_is_named_with_an_arrow_or_a_slash(screen: Screen) -> None:
    assert screen.explain(HEAD, "A/B") == screen.explain(HEAD, "A->B")


def test_explain_of_a_bad_file_ends_with_1(screen: Screen) -> None:
    code, text = screen.explain("clusters=A\n")
    assert (code, "A.bootstrap.servers: is missing" in text) == (1, True)
