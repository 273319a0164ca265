"""``mm2py migrate`` and ``mm2py import``: streams, files and exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mm2py_cli.app import app

RESOURCE = """
kind: KafkaMirrorMaker2
spec:
  version: 4.0.0
  target: {alias: b, bootstrapServers: "b:1"}
  mirrors:
    - source: {alias: a, bootstrapServers: "a:1"}
      sourceConnector: {}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("c").write_text("metadata.broker.list=a:1\ngroup.id=g\n")
    Path("p").write_text("bootstrap.servers=b:1\n")
    return ["--consumer.config", "c", "--producer.config=p"]


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, words, input=stdin)


@pytest.mark.parametrize("script", [[], ["kafka-run-class.sh", "kafka.tools.MirrorMaker"]])
def test_a_command_line_is_taken_as_it_is(files: list[str], script: list[str]) -> None:
    found = run("migrate", "mm1", *script, *files, "--whitelist", "x", "--num.streams", "2")
    assert found.exit_code == 0
    assert "source->target.topics = x\n" in found.stdout
    assert "tasks.max = 2\n" in found.stdout
    assert "metadata.broker.list is taken as bootstrap.servers" in found.stderr
    assert "positions of group g are not carried over" in found.stderr
    assert found.stderr not in found.stdout


def test_names_of_clusters_and_a_file_can_be_given(files: list[str]) -> None:
    names = ("--source", "old", "--target", "new", "--to", "out.properties")
    found = run("migrate", "mm1", *files, "--whitelist", "x", *names)
    assert (found.exit_code, found.stdout) == (0, "")
    assert "old->new.enabled = true\n" in Path("out.properties").read_text()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--num.producers", "2"), "--num.producers has no property"),
        (("--queue.size", "5"), "--queue.size has no property"),
        (("--offset.commit.interval.ms", "5"), "--offset.commit.interval.ms has no property"),
        (("--abort.on.send.failure", "false"), "--abort.on.send.failure false has no property"),
        (("--message.handler", "a.B"), "--message.handler a.B has no property"),
        (("--consumer.rebalance.listener", "a.B"), "listener a.B has no property"),
        (("--new.consumer",), ""),
    ],
)
def test_each_option_is_carried_over_or_named(
    files: list[str], option: tuple[str, ...], said: str
) -> None:
    found = run("migrate", "mm1", *files, "--whitelist", "x", *option)
    assert found.exit_code == 0
    assert said in found.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--whitelist", "x", "--no.such.option", "1"), 2),
        (("--whitelist", "x", "--target", "source"), 2),
        ((), 1),
        (("--whitelist", "x", "--blacklist", "y"), 1),
    ],
)
def test_what_mirror_maker_refuses_is_refused(
    files: list[str], words: tuple[str, ...], code: int
) -> None:
    found = run("migrate", "mm1", *files, *words)
    assert found.exit_code == code
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1


def test_a_name_that_no_topic_can_have_is_refused(files: list[str]) -> None:
    found = run("migrate", "mm1", *files, "--whitelist", "x", "--source", "a b")
    assert found.exit_code == 2
    assert "'a b' is no name of a cluster" in found.stderr


def test_the_checker_says_what_takes_the_place_of_zookeeper() -> None:
    found = run("consumer-offset-checker", "--group", "g", "--zkconnect", "zk:2181", "--topic", "t")
    assert found.exit_code == 2
    assert "--zkconnect names ZooKeeper" in found.stderr
    assert "--bootstrap-server HOST:9092" in found.stderr


def test_a_resource_is_read_from_standard_input() -> None:
    found = run("import", "strimzi", "-", stdin=RESOURCE)
    assert found.exit_code == 0
    assert "a->b.enabled = true\n" in found.stdout
    assert "spec.version has no property" in found.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML"),
        ("kind: Kafka", "has 0 resources of kind KafkaMirrorMaker2"),
        (f"{RESOURCE}\n---\n{RESOURCE}", "has 2 resources"),
    ],
)
def test_a_file_without_one_resource_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mirror.yaml"
    file.write_text(text)
    found = run("import", "strimzi", str(file))
    assert (found.exit_code, found.stdout) == (1, "")
    assert said in found.stderr


def test_one_resource_among_others_is_found(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(f"kind: Kafka\n---\n{RESOURCE}")
    assert run("import", "strimzi", str(file)).exit_code == 0


def test_a_list_is_opened(tmp_path: Path) -> None:
    items = "".join(f"  {line}\n" for line in RESOURCE.strip().splitlines())
    file = tmp_path / "list.yaml"
    text = f"apiVersion: v1\nkind: List\nitems:\n-{items[1:]}- kind: Kafka\n"
    file.write_text(text)
    found = run("import", "strimzi", str(file))
    assert found.exit_code == 0, found.stderr
    assert "a->b.enabled = true\n" in found.stdout
    file.write_text(f"{text}-{items[1:]}")
    assert "has 2 resources" in run("import", "strimzi", str(file)).stderr
