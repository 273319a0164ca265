"""What ``mm2py lint`` and a start find in the transforms of a file, with its line."""

import re
from pathlib import Path

import pytest

from mm2py.config.findings import Finding, Severity
from mm2py.config.lint import lint, load_checked
from mm2py.errors import ConfigError
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS

HEAD = (
    "clusters = A, B\nA.bootstrap.servers = h:1\nB.bootstrap.servers = h:2\nA->B.enabled = true\n"
)
FILTER = "A->B.transforms = f\nA->B.transforms.f.type = Filter\n"


def _found(tmp_path: Path, text: str) -> list[Finding]:
    file = tmp_path / "mm2.properties"
    file.write_text(HEAD + text)
    return lint(file, CHECKED_CONNECTORS, environ={})


@pytest.mark.parametrize(
    ("text", "severity", "line", "said"),
    [
        ("A->B.transforms = f", "ERROR", 0, r"A->B.transforms.f.type: .*Missing required"),
        (
            "A->B.transforms = f\nA->B.transforms.f.type = no.Such",
            "ERROR",
            6,
            "Class no.Such could not be found.",
        ),
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
        (
            FILTER + "A->B.transforms.g.type = Filter",
            "WARNING",
            7,
            "names no transformation whose keys",
        ),
        (
            FILTER + "A->B.transforms.f.patern = x",
            "WARNING",
            7,
            "has no such key; its keys are negate",
        ),
        (FILTER + "A->B.predicates.p.type = HasHeaderKey", "WARNING", 7, "names no predicate"),
        (
            "A->B.topic.creation.default.partitions = 3\nA->B.topic.creation.default.replication.factor = 1",
            "WARNING",
            5,
            r"topic\.creation\.\* has no effect",
        ),
        (
            "A->B.topic.creation.groups = x\nA->B.copy.connector = sink",
            "WARNING",
            5,
            "has no effect",
        ),
        (FILTER + "A->B.offsets.identical = require", "ERROR", 7, "not possible with transforms"),
        (FILTER + "A->B.flow.engine = spark", "ERROR", 7, "not possible with transforms"),
        ("A->B.errors.tolerance = all", "ERROR", 5, "drops no record here"),
        (
            FILTER + "A->B.copy.connector = sink\nA->B.transforms.f.predicate = p",
            "ERROR",
            8,
            "not among the predicates",
        ),
    ],
)
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
