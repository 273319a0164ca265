"""Documents name tests as proof of what they claim: every such test exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(test_\w+)`")
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


def test_every_file_in_the_table_of_the_slowest_exists() -> None:
    names = re.findall(
        r"^\| (test_\w+\.py) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M
    )
    assert {name for name in names if not list((ROOT / "tests").rglob(name))} == set()
    assert names


def test_every_test_that_a_document_names_exists() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    named = {name for file in documents for name in NAMED.findall(file.read_text("utf-8"))}
    tests = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for text in tests for name in DEFINED.findall(text)}
    assert named - defined == set()
    assert named
