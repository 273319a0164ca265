"""Bad input ends the command with one line that says what, where and what to do; no cluster is needed."""

import os
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, run_to_end, write_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GOOD = {
    "clusters": "A, B",
    "A.bootstrap.servers": "127.0.0.1:9",
    "B.bootstrap.servers": "127.0.0.1:9",
    "A->B.enabled": "true",
    "A->B.topics": "orders",
}
FILE_PROVIDER = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}

# What is changed in the file, and what the line must say: the place, then the rest of it.
REFUSED = {
    "unknown alias": ({"A->C.enabled": "true"}, ":6: A->C.enabled:", "'C' is no cluster"),
    "no provider": ({"A->B.topics": "${env:HOME}"}, ":5: A->B.topics:", "config.providers"),
    "no secret": (
        {**FILE_PROVIDER, "A.ssl.key.password": "${file:/nowhere/secrets:key}"},
        ":8: A.ssl.key.password:",
        "/nowhere/secrets",
    ),
    "no number": ({"replication.factor": "two"}, ":6: replication.factor:", "'two'"),
    "comment": ({"A->B.topics": "t # all"}, ":5: A->B.topics:", "comment"),
    "client": ({"B.producer.linger.ms": "-4"}, ":6: B.producer.linger.ms:", "'-4'"),
    "worker": ({"B.session.timeout.ms": "soon"}, ":6: B.session.timeout.ms:", "'soon'"),
    "policy": (
        {"replication.policy.class": "com.example.Own"},
        ":6: replication.policy.class:",
        "com.example.Own",
    ),
    "nothing to do": (
        {"A->B.enabled": "false", "emit.heartbeats.enabled": "false"},
        ":",
        "no replication flows",
    ),
}


def one_line(output: str) -> str:
    lines = output.splitlines()
    assert len(lines) == 1, output
    assert "Traceback" not in output
    assert lines[0].startswith("connect-mirror-maker-py: ")
    return lines[0]


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_run_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    changes, place, text = REFUSED[case]
    file = tmp_path / "mm2.properties"
    write_file(file, {**GOOD, **changes})
    ended = run_to_end(file)
    said = one_line(ended.stderr)
    assert f"{file}{place}" in said
    assert text in said
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "FILE"),
        (["{file}", "--clusters", "C"], "--clusters C"),
        (["{file}", "--colour"], "--colour"),
        (["{file}", "--clusters"], "--clusters"),
        (["{file}", "another"], "another"),
    ],
    ids=["no file", "unknown cluster", "unknown option", "no alias", "two files"],
)
def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: list[str], text: str) -> None:
    file = tmp_path / "mm2.properties"
    write_file(file, GOOD)
    ended = run_to_end(*(word.format(file=file) for word in arguments))
    assert text in one_line(ended.stderr)
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, folder, binary = tmp_path / "missing", tmp_path, tmp_path / "binary"
    binary.write_bytes(os.urandom(2_000))
    for path, text in (
        (missing, "does not exist"),
        (folder, "is a directory"),
        (binary, "not a text"),
    ):
        ended = run_to_end(path)
        said = one_line(ended.stderr)
        assert str(path) in said
        assert text in said
        assert ended.returncode == 1


def test_a_stack_trace_comes_only_with_debug(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    write_file(file, {**GOOD, "A->B.topics": "a(b"})
    assert "Traceback" not in run_to_end(file).stderr
    ended = run_to_end(file, "--debug")
    assert "Traceback" in ended.stderr
    assert ended.returncode == 1


def test_secrets_of_the_file_are_never_printed(tmp_path: Path) -> None:
    secret = "s3cret-of-the-file"  # noqa: S105 - a password of nothing
    secrets_file = tmp_path / "secrets.properties"
    write_file(secrets_file, {"key": secret})
    file = tmp_path / "mm2.properties"
    properties = {
        **GOOD,
        **FILE_PROVIDER,
        "A.ssl.key.password": f"${{file:{secrets_file}:key}}",
        "B.ssl.truststore.password": "another-s3cret",
    }
    write_file(file, properties)
    with Mirror(file, "--debug") as mirror:
        mirror.wait_for_log("waiting for=")
        assert mirror.stop() == 0
        assert "s3cret" not in mirror.log()
